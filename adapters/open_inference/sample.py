"""Sample requests to POST /v2/models/{model}/infer, generate and generate_stream in JSON, made of a model's example
inputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import orjson

from tensorgate.adapters.open_inference.generate import filled_shape
from tensorgate.adapters.open_inference.response import json_text
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import SampleRequest
from tensorgate.gateway.contract.errors import EncodingFailed, GatewayError
from tensorgate.gateway.contract.tensor import DATATYPES


def sample(view: ModelView) -> SampleRequest | None:
    """Infer in JSON, or None where JSON cannot carry the inputs or one reply cannot carry the answers."""
    return None if view.decoupled else _infer(view, {})


def samples(view: ModelView) -> Iterator[SampleRequest]:
    """Every way to call the model with JSON: infer, of sequences one that begins and ends with it, and generate."""
    if view.configuration.get("sequences"):
        alone = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
        if not view.decoupled and (request := _infer(view, {"parameters": alone})) is not None:
            yield request
        return
    if (request := sample(view)) is not None:
        yield request
    flat = _flat(view)
    if flat is None:
        return
    streams = view.decoupled and _STREAM in view.inputs and view.inputs[_STREAM].datatype == "BOOL"
    path = f"/v2/models/{quote(view.name, safe='')}/generate"
    if streams or not view.decoupled:
        yield SampleRequest(path, json.dumps(flat), title="generate")
    body = json.dumps({**flat, _STREAM: True} if streams else flat)
    yield SampleRequest(f"{path}_stream", body, title="generate_stream", streams=True)


_STREAM: Final = "stream"
"""The input by which text models, Triton's and vLLM's among them, are told to answer piece by piece."""
_MAX_FLAT: Final = 4096
"""Elements that one still reads."""


def _flat(view: ModelView) -> dict[str, Any] | None:
    """The example as generate's flat object; None if it would fill other shapes, or nobody could read it."""
    found: dict[str, Any] = {}
    for name, array in view.example_inputs.items():
        if array.size > _MAX_FLAT or name not in view.inputs:
            return None
        try:
            if filled_shape(view.inputs[name], array.size, batched=view.max_batch_size > 0) != array.shape:
                return None
            values = json.loads(b"".join(json_text(name, array)))
        except (GatewayError, ValueError):
            return None
        found[name] = values[0] if len(values) == 1 else values
    return found or None


def _infer(view: ModelView, more: Mapping[str, Any]) -> SampleRequest | None:
    if not view.example_inputs:
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
    body = orjson.dumps({**more, "inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return SampleRequest(f"/v2/models/{quote(view.name, safe='')}/infer", body, title="infer")
