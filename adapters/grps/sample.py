"""Sample requests to POST /grps/v1/infer/predict in JSON, made of a model's example inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from tensorgate.adapters.grps.number_text import compact
from tensorgate.adapters.grps.tensors import Array, row_of
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import SampleRequest
from tensorgate.gateway.contract.tensor import BYTES

_LONGEST: Final = 16_000  # characters that one still pastes into a shell


def samples(view: ModelView) -> Iterator[SampleRequest]:
    """Predict, or its stream where a model may answer more than once."""
    if not view.configuration.get("sequences") and (request := _sample(view, streams=view.decoupled)) is not None:
        yield request


def sample(view: ModelView) -> SampleRequest | None:
    """An ndarray for a model of one FP32 input, str_data for one of a single text, else gtensors; None without
    example inputs, or if grps cannot carry them, or if nobody would paste them.
    """
    return _sample(view, streams=False)


def _sample(view: ModelView, *, streams: bool) -> SampleRequest | None:
    inputs = {name: view.example_inputs[name] for name in view.inputs if name in view.example_inputs}
    missing = [name for name, spec in view.inputs.items() if not spec.optional and name not in inputs]
    body = None if missing or not inputs else _body(inputs)
    if body is None:
        return None
    query = f"model={quote(f'{view.name}-{view.version}', safe='')}"
    first = next(iter(view.outputs.values()), None)
    if "ndarray" in body and first is not None and first.dtype == np.float32 and not streams:
        query += "&return-ndarray=true"
    if streams:
        query += "&streaming=true"
    text = json.dumps(body)
    if len(text) > _LONGEST:
        return None
    title = "streaming" if streams else "predict"
    return SampleRequest(f"/grps/v1/infer/predict?{query}", text, "application/json", title, streams)


def _body(inputs: Mapping[str, Array]) -> dict[str, Any] | None:
    arrays = list(inputs.values())
    if sum(array.size for array in arrays) * 2 > _LONGEST or not all(array.size for array in arrays):
        return None
    try:
        if len(arrays) == 1 and arrays[0].dtype == np.float32 and np.isfinite(arrays[0]).all():
            return {"ndarray": _plain(arrays[0])}
        if len(arrays) == 1 and arrays[0].dtype == BYTES and arrays[0].size == 1:
            return {"str_data": arrays[0].reshape(1)[0].decode()}
        tensors = [_tensor(name, array) for name, array in inputs.items()]
    except UnicodeDecodeError:
        return None
    return None if None in tensors else {"gtensors": {"tensors": tensors}}


def _tensor(name: str, array: Array) -> dict[str, Any] | None:
    row = row_of(array)
    if row is None:
        return None
    return {"name": name, "dtype": row.name, "shape": list(array.shape), row.field: _plain(array.reshape(-1))}


def _plain(array: Array) -> Any:
    """Nested lists, numbers by their shortest digits, what is not finite by name."""
    if array.dtype == BYTES:
        return [value.decode() for value in array]
    return json.loads(compact(array)) if array.ndim else _plain(array.reshape(1))[0]
