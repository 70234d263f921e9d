"""InferResponse -> JSON bodies of `:predict`: {"predictions": [...]} by rows, {"outputs": ...} by columns.

Clients parse JSON and care little for white space, but proxies, caches and recorded tests compare bytes, so the layout
is the original's. That is RapidJSON's pretty writer, four spaces a level, arrays counting as a level; the row format
writes the arrays inside a row, and the rows if they are bare, on one line.
"""

from __future__ import annotations

import math
from typing import Final

import pybase64

from tensorgate.adapters.json.texts import json_strings
from tensorgate.adapters.tf_serving.data_types import TYPE_NAMES
from tensorgate.adapters.tf_serving.errors import JSON_HEADERS
from tensorgate.adapters.tf_serving.json_text import INDENT, number_rows, quote
from tensorgate.adapters.tf_serving.predict_request import PredictForm
from tensorgate.adapters.tf_serving.tensors import WITHOUT_JSON, Tensor, output_of
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import EncodingFailed
from tensorgate.gateway.contract.tensor import BYTES

_BASE64_SUFFIX: Final = "_bytes"
_OPEN: Final = '{\n    "predictions": ['
_CLOSE: Final = "\n    ]\n}"
_ROW: Final = INDENT * 2
_MEMBER: Final = INDENT * 3
_JOINED_BYTES: Final = 64 << 10
"""Smaller bodies are cheaper to send in one piece."""
_ROWS_OF_TEXTS: Final = (_OPEN.encode(), b", ", _CLOSE.encode())
_COLUMN_OF_TEXTS: Final = (b'{\n    "outputs": [\n        ', b",\n        ", b"\n    ]\n}")


def encode_predict(response: InferResponse, request: InferRequest) -> Reply:
    """Outputs under the caller's names -> JSON. Raises EncodingFailed for what this format cannot carry."""
    asked: PredictForm = request.wire
    outputs = {name: output_of(response, spec.name) for name, spec in asked.signature.outputs.items()}
    rows = _count_rows(outputs) if asked.rows else None
    _refuse_without_json(outputs)
    parts = _lone_texts(outputs, in_rows=rows is not None) if len(outputs) == 1 else None
    if parts is not None:
        is_small = sum(map(len, parts)) < _JOINED_BYTES
        return Reply(b"".join(parts) if is_small else parts, headers=JSON_HEADERS)
    text = _columns(outputs) if rows is None else _rows(outputs, rows)
    return Reply(text.encode("utf-8", "surrogateescape"), headers=JSON_HEADERS)


def _lone_texts(outputs: dict[str, Tensor], *, in_rows: bool) -> list[bytes] | None:
    """A vector of strings that is the only output, in parts; None for all else, and without the compiled helper."""
    name, tensor = next(iter(outputs.items()))
    if tensor.dtype != BYTES or tensor.ndim != 1 or not tensor.size or name.endswith(_BASE64_SUFFIX):
        return None
    opening, between, closing = _ROWS_OF_TEXTS if in_rows else _COLUMN_OF_TEXTS
    parts = json_strings(tensor, between, upper=True, utf8=False)
    return None if parts is None else [opening, *parts, closing]


def _refuse_without_json(outputs: dict[str, Tensor]) -> None:
    """An empty tensor has nothing that could not be written."""
    for tensor in outputs.values():
        if tensor.dtype in WITHOUT_JSON and tensor.size:
            raise EncodingFailed(f"Failed to write JSON value for tensor type: {TYPE_NAMES[tensor.dtype]}")


# ---------------------------------------------------------------------------------------------------------- row format


def _rows(outputs: dict[str, Tensor], rows: int) -> str:
    """A lone output's rows stand bare on one line, several outputs make an object of each row."""
    if not rows:
        return '{\n    "predictions": []\n}'
    if len(outputs) == 1:
        [(name, tensor)] = outputs.items()
        if tensor.ndim == 1:
            return _OPEN + _lines(name, tensor, ", ", 2)[0] + _CLOSE
        return _OPEN + ", ".join(_slices(name, tensor, 2)) + _CLOSE
    return _OPEN + ",".join(_objects(outputs)) + _CLOSE


def _count_rows(outputs: dict[str, Tensor]) -> int:
    rows = None
    for name, tensor in outputs.items():
        if not tensor.ndim:
            raise EncodingFailed(f"Tensor name: {name} has no shape information ")
        if rows is None:
            rows = tensor.shape[0]
        if tensor.shape[0] != rows:
            raise EncodingFailed(
                f"Tensor name: {name} has inconsistent batch size: {tensor.shape[0]} expecting: {rows}"
            )
    return rows or 0


def _slices(name: str, tensor: Tensor, level: int) -> list[str]:
    """The text of every row, arrays on one line; a row stands `level` deep."""
    if tensor.ndim == 1:
        return _leaf_texts(name, tensor, level)
    rest = tensor.shape[1:]
    texts = _lines(name, tensor, ", ", level + len(rest))
    texts = [f"[{text}]" for text in texts]
    for axis in range(len(rest) - 2, -1, -1):
        texts = _join(texts, rest[axis], tensor.shape[0] * math.prod(rest[:axis]), "[", ", ", "]")
    return texts


def _objects(outputs: dict[str, Tensor]) -> list[str]:
    """One object per row, a member per output."""
    columns = [_slices(name, tensor, 3) for name, tensor in outputs.items()]
    keys = [f"\n{_MEMBER}{quote(name)}: " for name in outputs]
    template = f"\n{_ROW}{{" + ",".join(f"{key.replace('%', '%%')}%s" for key in keys) + f"\n{_ROW}}}"
    return [template % row for row in zip(*columns, strict=True)]


# ----------------------------------------------------------------------------------------------------- columnar format


def _columns(outputs: dict[str, Tensor]) -> str:
    if len(outputs) == 1:
        [(name, tensor)] = outputs.items()
        return f'{{\n    "outputs": {_expanded(name, tensor, 1)}\n}}'
    members = [f"\n{_ROW}{quote(name)}: {_expanded(name, tensor, 2)}" for name, tensor in outputs.items()]
    return f'{{\n    "outputs": {{{",".join(members)}\n    }}\n}}'


def _expanded(name: str, tensor: Tensor, level: int) -> str:
    """The whole tensor, every element on a line of its own; its bracket stands `level` deep."""
    if not tensor.ndim:
        return _leaf_texts(name, tensor, level)[0]
    texts: list[str] = []
    for axis in range(tensor.ndim - 1, -1, -1):
        line = "\n" + INDENT * (level + axis)
        opening, between, closing = f"[{line}{INDENT}", f",{line}{INDENT}", f"{line}]"
        if axis == tensor.ndim - 1:
            lines = _lines(name, tensor, between, level + tensor.ndim)
            texts = [opening + text + closing if text else "[]" for text in lines]
        else:
            texts = _join(texts, tensor.shape[axis], math.prod(tensor.shape[:axis]), opening, between, closing)
    return texts[0]


# -------------------------------------------------------------------------------------------------------------- leaves


def _join(texts: list[str], size: int, count: int, opening: str, between: str, closing: str) -> list[str]:
    """Every `size` texts become one array: `count` arrays in all."""
    if not size:
        return ["[]"] * count
    return [opening + between.join(texts[at : at + size]) + closing for at in range(0, len(texts), size)]


def _lines(name: str, tensor: Tensor, between: str, level: int) -> list[str]:
    """The elements of every innermost array, joined; an element stands `level` deep."""
    columns = tensor.shape[-1]
    count = math.prod(tensor.shape[:-1])
    if not columns or not count:
        return [""] * count
    if tensor.dtype != BYTES:
        return number_rows(tensor, columns, between)
    return _join(_leaf_texts(name, tensor, level), columns, count, "", between, "")


def _leaf_texts(name: str, tensor: Tensor, level: int) -> list[str]:
    """The text of every element, in row-major order; an element stands `level` deep."""
    if tensor.dtype != BYTES:
        return number_rows(tensor, 1)
    if name.endswith(_BASE64_SUFFIX):
        return [_base64_object(value, level) for value in tensor.reshape(-1)]
    return [quote(value.decode("utf-8", "surrogateescape")) for value in tensor.reshape(-1)]


def _base64_object(value: bytes, level: int) -> str:
    """An object spreads over lines even where arrays do not."""
    indent = INDENT * level
    return f'{{\n{indent}{INDENT}"b64": "{pybase64.b64encode_as_string(value)}"\n{indent}}}'
