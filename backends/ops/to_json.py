"""Tensors as one text of JSON for each row: numbers and texts [N, ...] -> BYTES [N], UTF-8, on the host.

What is no number of JSON (NaN, infinities) is null. Bytes that are no UTF-8 have U+FFFD in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson
from pydantic import Field

from tensorgate.backends.ops.checks import given, integral, one, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Array, Tensors, TensorSpec


class ToJsonOptions(Options):
    """Tensors as one text of JSON for each row of a batch, cut to the counts that an nms gives.

    Example: {op: to_json, fields: {box: boxes, score: scores, name: names}, counts: counts, output: found}
    """

    op: Literal["to_json"]
    fields: Mapping[str, str] = Field(min_length=1, description="Key in the text -> name of a tensor [N, ...].")
    counts: str | None = Field(
        None, description="Name of a tensor [N] of integers: so many entries of the axis 1 there are; null: all."
    )
    form: Literal["objects", "columns"] = Field(
        "objects",
        description="A list with an object for each entry of the axis 1, or one object with a list for each key.",
    )
    output: str = Field("json", description="Name of the texts.")
    keep_inputs: bool = Field(False, description="Whether the tensors themselves stay, too.")


class ToJson(Op):
    """Any tensors with rows -> BYTES [N]."""

    def __init__(self, options: ToJsonOptions) -> None:
        self._fields = dict(options.fields)
        self._counts = options.counts
        self._objects = options.form == "objects"
        self._output = options.output
        named = [*self._fields.values(), *([options.counts] if options.counts else [])]
        self._old = () if options.keep_inputs else tuple(dict.fromkeys(named))

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        least = 2 if self._objects or self._counts else 1
        tensors = [one("to_json", name, specs) for name in self._fields.values()]
        for spec in tensors:
            if spec.dtype == DTYPES["BF16"]:
                raise ValueError(f"to_json: '{spec.name}' is BF16; cast it to FP32 first")
            if spec.shape is not None and len(spec.shape) < least:
                raise ValueError(f"to_json: '{spec.name}' has shape {list(spec.shape)}, without entries to list")
        if self._counts is not None:
            integral("to_json", one("to_json", self._counts, specs))
        rows = next((spec.shape[0] for spec in tensors if spec.shape), -1)
        return replaced("to_json", specs, self._old, [TensorSpec(self._output, BYTES, (rows,))])

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        columns = {key: _on_host(given("to_json", name, tensors)) for key, name in self._fields.items()}
        rows = len(next(iter(columns.values())))
        counts = None if self._counts is None else _on_host(given("to_json", self._counts, tensors)).reshape(-1)
        sizes = {array.shape[1] if array.ndim > 1 else -1 for array in columns.values()}
        if any(len(array) != rows for array in columns.values()) or (counts is not None and len(counts) != rows):
            raise InvalidArgument("to_json: the tensors have different numbers of rows")
        if self._objects and len(sizes) > 1:
            raise InvalidArgument(f"to_json: the tensors have different numbers of entries: {sorted(sizes)}")
        texts = np.empty(rows, np.object_)
        for row in range(rows):
            part = slice(None) if counts is None else slice(0, max(0, int(counts[row])))
            lists = {key: _plain(array[row] if array.ndim == 1 else array[row, part]) for key, array in columns.items()}
            told: Any = lists
            if self._objects:
                told = [dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)]
            texts[row] = orjson.dumps(told)
        return put(tensors, self._old, {self._output: texts})


def _on_host(array: Array) -> Array:
    return array if isinstance(array, (np.ndarray, np.generic)) else array.get()


def _plain(value: Any) -> Any:
    """What JSON has a word for. FP16 and FP32 in as few digits as tell them apart."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        if value.dtype == np.float32 or value.dtype == np.float16:
            return orjson.loads(
                orjson.dumps(np.ascontiguousarray(value, np.float32), option=orjson.OPT_SERIALIZE_NUMPY)
            )
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(each) for each in value] if isinstance(value, list) else value


KIND = OpKind(ToJsonOptions, ToJson)
