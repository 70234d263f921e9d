"""A sample request to POST /v2/models/{model}/infer in JSON, made of a model's example inputs."""

from __future__ import annotations

from urllib.parse import quote

import orjson

from tensorgate.adapters.open_inference.response import json_text
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import SampleRequest
from tensorgate.gateway.contract.errors import EncodingFailed
from tensorgate.gateway.contract.tensor import DATATYPES


def sample(view: ModelView) -> SampleRequest | None:
    """Infer in JSON, or None where JSON cannot carry the inputs or one reply cannot carry the answers."""
    if view.decoupled or not view.example_inputs:
        return None
    try:
        inputs = [
            {
                "name": name,
                "shape": array.shape,
                "datatype": DATATYPES[array.dtype],
                "data": orjson.Fragment(b"".join(json_text(name, array))),
            }
            for name, array in view.example_inputs.items()
        ]
    except EncodingFailed:
        return None
    body = orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return SampleRequest(f"/v2/models/{quote(view.name, safe='')}/infer", body)
