"""`tensorgate call`: inputs from the command line or from files -> one Open Inference V2 request, and its answer for
people or programs.
"""

from __future__ import annotations

import io
import json
import math
import sys
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tensorgate.gateway.cli.client import ClientError, Gateway, PrintLine
from tensorgate.gateway.contract.tensor import DTYPES, Array

_HEADER_LENGTH: Final = "Inference-Header-Content-Length"
_NPY: Final = b"\x93NUMPY"
_SHOWN_CHARS: Final = 2000
"""Longer values are cut off, for people."""
_MAX_ROWS: Final = 50
_MAX_LINE_CHARS: Final = 120
"""Of a table."""


def call(
    gateway: Gateway, model: str, version: str | None, inputs: Iterable[str], print_line: PrintLine, *, as_json: bool
) -> None:
    """Send inputs as [NAME=]JSON or [NAME=]@FILE, print the outputs. Raises ClientError."""
    path = f"/v2/models/{urllib.parse.quote(model, safe='')}" + (f"/versions/{version}" if version else "")
    specs = {tensor["name"]: tensor for tensor in gateway.ask(path)["inputs"]}
    tensors, parts = [], []
    for text in inputs:
        tensor, binary = _tensor(text, specs)
        tensors.append(tensor)
        parts.append(binary)
    head = json.dumps({"inputs": tensors}).encode()
    headers = {_HEADER_LENGTH: str(len(head))} if any(parts) else {}
    answer = gateway.send(f"{path}/infer", head + b"".join(parts), headers)
    if as_json:
        print_line(json.dumps(answer, indent=2))
        return
    print_line(f"{answer['model_name']} version {answer['model_version']}")
    lines = _table(answer["outputs"]) or [
        f"  {output['name']}: {output['datatype']} {output['shape']} {_shown(output['data'])}"
        for output in answer["outputs"]
    ]
    for line in lines:
        print_line(line)


def _table(outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows by outputs, with a head; [] where the outputs have not the same rows, or a row does not fit on a line."""
    shapes = [output["shape"] for output in outputs]
    if not shapes or not all(len(shape) in (1, 2) for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        return []
    count = min(shapes[0][0], _MAX_ROWS)
    columns = [["row", *map(str, range(count))]]
    for output, shape in zip(outputs, shapes, strict=True):
        width = math.prod(shape[1:])
        cells = (" ".join(map(_cell, output["data"][row * width : (row + 1) * width])) for row in range(count))
        columns.append([f"{output['name']}: {output['datatype']}", *cells])
    widths = [max(map(len, column)) for column in columns]
    if not count or sum(widths) + 2 * (len(widths) - 1) > _MAX_LINE_CHARS:
        return []
    padded = (zip(row, widths, strict=True) for row in zip(*columns, strict=True))
    lines = ["  ".join([cell.ljust(width) for cell, width in row]).rstrip() for row in padded]
    more = shapes[0][0] - count
    return [*lines, f"{more} more rows (--json has all)"] if more else lines


def _cell(value: Any) -> str:
    """A number with six digits, or a text that no terminal takes for a command."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isprintable() else ascii(text)[1:-1]


def _shown(data: Any) -> str:
    text = json.dumps(data)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… (--json has all)"


def _tensor(text: str, specs: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The input that an argument stands for, and what follows the JSON of it: files as they are."""
    name, rest = _named(text, specs)
    spec = specs[name]
    content = _content(rest[1:]) if rest.startswith("@") else rest.encode()
    if content.startswith(_NPY):
        return _array(name, spec, content)
    try:
        value = json.loads(content)
    except ValueError as error:
        if spec["datatype"] != "BYTES":
            raise ClientError(f"input {name} is no JSON: {error}") from None
        return _binary(name, spec, [1], len(content).to_bytes(4, "little") + content)
    shape = _nesting(value)
    data = value if isinstance(value, list) else [value]
    return {"name": name, "datatype": spec["datatype"], "shape": _rows(shape, spec), "data": data}, b""


def _named(text: str, specs: Mapping[str, Any]) -> tuple[str, str]:
    name, separator, rest = text.partition("=")
    if separator and name in specs:
        return name, rest
    if len(specs) != 1:
        raise ClientError(f"say which input {text[:40]!r} is: NAME=..., with NAME one of {', '.join(specs)}")
    (name,) = specs
    return name, text


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise ClientError(f"cannot read {file}: {error.strerror}") from None


def _array(name: str, spec: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """NumPy's file of an array, which is cast where that loses no kind of number."""
    wanted = DTYPES[spec["datatype"]]
    try:
        array: Array = np.load(io.BytesIO(content), allow_pickle=False)
        cast = array.astype(wanted, casting="same_kind") if wanted.kind != "O" else array
    except (ValueError, TypeError, EOFError) as error:
        raise ClientError(f"input {name}, {spec['datatype']}: {error}") from None
    if wanted.kind == "O":
        raise ClientError(f"input {name} is BYTES, and an array of numbers is none")
    return _binary(name, spec, list(array.shape), np.ascontiguousarray(cast).tobytes())


def _binary(name: str, spec: Mapping[str, Any], shape: list[int], data: bytes) -> tuple[dict[str, Any], bytes]:
    parameters = {"binary_data_size": len(data)}
    shape = _rows(shape, spec)
    return {"name": name, "datatype": spec["datatype"], "shape": shape, "parameters": parameters}, data


def _rows(shape: list[int], spec: Mapping[str, Any]) -> list[int]:
    """With the batch dimension, if that alone is missing."""
    return [1, *shape] if len(shape) == len(spec["shape"]) - 1 else shape


def _nesting(value: Any) -> list[int]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape
