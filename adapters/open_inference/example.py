"""A line for the shell that calls a model with inputs that came with it."""

from __future__ import annotations

import shlex
from typing import Final
from urllib.parse import quote

import orjson

from adapters.open_inference.response import json_text
from gateway.canonical import datatype_of
from gateway.errors import EncodingFailed
from gateway.ports import ModelView

_MAX_ARGUMENT_BYTES: Final = 128 << 10
"""Linux takes no longer argument."""


def example(view: ModelView, base_url: str) -> str | None:
    """One curl command, or None where JSON cannot carry the inputs or one reply cannot carry the answers."""
    if view.decoupled or not view.example_inputs:
        return None
    try:
        inputs = [
            {
                "name": name,
                "shape": array.shape,
                "datatype": datatype_of(array.dtype),
                "data": orjson.Fragment(json_text(name, array)),
            }
            for name, array in view.example_inputs.items()
        ]
    except EncodingFailed:
        return None
    body = shlex.quote(orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY).decode())
    url = shlex.quote(f"{base_url.rstrip('/')}/v2/models/{quote(view.name, safe='')}/infer")
    return f"curl -s {url} -d {body}" if len(body.encode()) < _MAX_ARGUMENT_BYTES else None
