"""What an ONNX file says of its inputs and outputs, read without loading its weights.

ONNX Runtime reports the shape [] for a scalar and for a tensor of unknown rank alike; only the file tells them apart,
by whether the shape field is there. This walks the few protobuf fields on the way to it and skips everything else,
gigabytes of weights included. Source: onnx.proto (ModelProto.graph = 7; GraphProto.input = 11, output = 12;
ValueInfoProto.name = 1, type = 2; TypeProto.tensor_type = 1; TypeProto.Tensor.shape = 2).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5


def unknown_ranks(path: Path) -> frozenset[str]:
    """The names of graph inputs and outputs that have no shape field. Raises ValueError if the file is not protobuf."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return frozenset(_without_shape(data))
        except (IndexError, UnicodeDecodeError):
            raise ValueError(f"{path} is cut short, or no ONNX file") from None


def _without_shape(data: mmap.mmap) -> Iterator[str]:
    for graph in _fields(data, (0, len(data)), 7):
        for number in (11, 12):
            for value in _fields(data, graph, number):
                tensors = [tensor for kind in _fields(data, value, 2) for tensor in _fields(data, kind, 1)]
                shapes = [shape for tensor in tensors for shape in _fields(data, tensor, 2)]
                if tensors and not shapes:
                    yield from (data[start:end].decode() for start, end in _fields(data, value, 1))


def _fields(data: mmap.mmap, message: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
    """Where the contents of every length-delimited field of this number start and end."""
    at, end = message
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        elif kind == _LENGTH:
            size, at = _varint(data, at)
            if tag >> 3 == wanted:
                yield at, at + size
            at += size
        else:
            raise IndexError


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
