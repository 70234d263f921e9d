"""What an ONNX file says of its inputs and outputs, read without loading its weights.

ONNX Runtime reports the shape [] for a scalar and for a tensor of unknown rank alike; only the file tells them apart,
by whether the shape field is there. And a configuration can be checked against the file long before it is loaded.

This walks the few protobuf fields on the way there and skips everything else, gigabytes of weights included; a file
that is made of countless little ones is left alone after some seconds. Source: onnx.proto (ModelProto.ir_version = 1,
graph = 7; GraphProto.initializer = 5, input = 11, output = 12, sparse_initializer = 15; TensorProto.name = 8;
SparseTensorProto.values = 1; ValueInfoProto.name = 1, type = 2; TypeProto.tensor_type = 1; TypeProto.Tensor.elem_type
= 1, shape = 2; TensorShapeProto.dim = 1; Dimension.dim_value = 1; TypeProto.sequence_type = 4, map_type = 5;
TypeProto.Sequence.elem_type = 1; TypeProto.Map.value_type = 2).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODEL_FILE: Final = "model.onnx"
_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_OVERRIDABLE: Final = 4
"""The first ir_version in which an initializer that is an input, too, is only its default."""
_LFS: Final = b"version https://git-lfs"
_FLOAT: Final = 1
_MAX_FIELDS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output of a graph. `element` is the number of its type, 0 if it is no tensor; a dimension that varies
    is -1; the shape of one of unknown rank is None. An output that is a
    list of maps to floats, as ZipMap makes it, is a table of them.
    """

    name: str
    element: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Graph:
    """The tensors that a file's graph takes and gives; `defaults` are inputs that may be left out."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    defaults: tuple[GraphTensor, ...]


class TooLong(Exception):
    """More fields than anybody wants to wait for."""


def model_file(path: Path, file: str) -> Path:
    """The model in a version's folder, a file or of a folder the usual one; or `path` itself, if it is a file. Raises
    ValueError if it is not there.
    """
    if path.is_file():
        return path
    found = path / file
    if found.is_dir():
        found = found / MODEL_FILE
    if not found.is_file():
        raise ValueError(f"no such file: {found}")
    return found


def unknown_ranks(path: Path) -> frozenset[str]:
    """The names of graph inputs and outputs that have no shape field. Raises ValueError if the file is not protobuf."""
    graph = read_graph(path, fields=None)
    tensors = (*graph.inputs, *graph.outputs, *graph.defaults)
    return frozenset(tensor.name for tensor in tensors if tensor.element and tensor.shape is None)


def read_graph(path: Path, fields: int | None = _MAX_FIELDS) -> Graph:
    """What the file takes and gives. Raises ValueError if it is not protobuf, TooLong after so many fields."""
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty, and no ONNX file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _GraphReader(data, fields).graph()
        except (IndexError, UnicodeDecodeError):
            raise ValueError(f"{path} {_what_it_is(path)}") from None


class _GraphReader:
    """One walk through one file."""

    def __init__(self, data: mmap.mmap, fields: int | None) -> None:
        self._data = data
        self._left = fields

    def graph(self) -> Graph:
        version = 0
        known: set[str] = set()
        takes: list[GraphTensor] = []
        gives: list[GraphTensor] = []
        for number, value in self._fields((0, len(self._data))):
            if number == 1 and isinstance(value, int):
                version = value
            elif number == 7 and isinstance(value, tuple):
                for part, span in self._fields(value):
                    if not isinstance(span, tuple):
                        continue
                    if part == 5:
                        known |= self._names(span)
                    elif part == 15:
                        known |= {name for values in self._messages(span, 1) for name in self._names(values)}
                    elif part in (11, 12):
                        (takes if part == 11 else gives).append(self._tensor(span, gives=part == 12))
        defaults = [tensor for tensor in takes if tensor.name in known] if version >= _OVERRIDABLE else []
        inputs = [tensor for tensor in takes if tensor.name not in known]
        return Graph(tuple(inputs), tuple(gives), tuple(defaults))

    def _names(self, tensor: tuple[int, int]) -> set[str]:
        return {self._data[start:end].decode() for start, end in self._messages(tensor, 8)}

    def _tensor(self, value: tuple[int, int], *, gives: bool) -> GraphTensor:
        name, element, shape = "", 0, None
        for start, end in self._messages(value, 1):
            name = self._data[start:end].decode()
        for kind in self._messages(value, 2):
            if gives and self._is_table(kind):
                return GraphTensor(name, _FLOAT, (-1, -1))
            for tensor in self._messages(kind, 1):
                for number, part in self._fields(tensor):
                    if number == 1 and isinstance(part, int):
                        element = part
                    elif number == 2 and isinstance(part, tuple):
                        shape = tuple(map(self._size, self._messages(part, 1)))
        return GraphTensor(name, element, shape)

    def _is_table(self, kind: tuple[int, int]) -> bool:
        """Whether a type is a sequence of maps to floats."""
        return any(
            (1, _FLOAT) in self._fields(tensor)
            for sequence in self._messages(kind, 4)
            for element in self._messages(sequence, 1)
            for table in self._messages(element, 5)
            for values in self._messages(table, 2)
            for tensor in self._messages(values, 1)
        )

    def _size(self, dimension: tuple[int, int]) -> int:
        """-1 where it has a name, or nothing, in place of a size."""
        size = -1
        for number, value in self._fields(dimension):
            if number == 1 and isinstance(value, int):
                size = value if value < 1 << 63 else -1
        return size

    def _messages(self, message: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
        return (value for number, value in self._fields(message) if number == wanted and isinstance(value, tuple))

    def _fields(self, message: tuple[int, int]) -> Iterator[tuple[int, int | tuple[int, int]]]:
        """Each field's number, with an integer, or with where its contents start and end. Raises IndexError."""
        at, end = message
        while at < end:
            self._count()
            tag, at = self._varint(at)
            kind, number = tag & 7, tag >> 3
            if kind == _VARINT:
                value, at = self._varint(at)
                yield number, value
            elif kind == _LENGTH:
                size, at = self._varint(at)
                if at + size > end:
                    raise IndexError
                yield number, (at, at + size)
                at += size
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise IndexError
        if at > end:
            raise IndexError

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise TooLong

    def _varint(self, at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise IndexError


def _what_it_is(path: Path) -> str:
    """Of a file that is no protobuf."""
    with path.open("rb") as file:
        begins = file.read(len(_LFS))
    if begins == _LFS:
        return "is a pointer of Git LFS in place of the file: git lfs pull fetches that"
    return "is cut short, or no ONNX file"
