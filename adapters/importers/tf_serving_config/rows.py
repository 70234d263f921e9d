"""Whether a model's tensors have a dimension of rows, by its file alone: a SavedModel, or an ONNX model.

Of both formats only the fields are read that say it. Source: TensorFlow, saved_model.proto and meta_graph.proto; ONNX,
onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.protobuf.wire_format import fields, parse, read_varint, varint
from tensorgate.gateway.contract.errors import InvalidArgument

_MAX_FIELDS: Final = 1 << 24
_SERVE: Final = b"serve"
_HIDDEN: Final = "__saved_model_"
_SIGNATURE_MAP: Final = "tensorflow.serving.SignatureDefMap"
_ENTRY: Final = b"\x0a"
_META_GRAPH, _META_INFO, _TAGS, _SIGNATURES = 2, 1, 4, 5
_GRAPH, _INITIALIZER, _INITIALIZER_NAME, _INPUT, _OUTPUT = 7, 5, 8, 11, 12
_NAME, _TYPE, _TENSOR, _SHAPE, _DIMENSION = 1, 2, 1, 2, 1
_DIMENSION_VALUE: Final = 1 << 3

Span = tuple[int, int]


def first_whole_tensor(file: Path) -> str:
    """A tensor, named, that has no dimension of rows or one of a fixed size; "" where there is none, or where the file
    cannot be read as what its name says. Raises OSError.
    """
    if file.suffix not in (".pb", ".onnx") or not file.stat().st_size:
        return ""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            with suppress(InvalidArgument):
                return next(_whole_of_onnx(view) if file.suffix == ".onnx" else _whole_of_saved_model(view), "")
            return ""
        finally:
            view.release()


def _within(view: memoryview, span: Span, *path: int) -> Iterator[Span]:
    """Where the fields lie that a path of numbers leads to. Raises InvalidArgument."""
    if not path:
        yield span
        return
    for tag, _, data, end in fields(view, *span, "model", _MAX_FIELDS):
        if tag >> 3 == path[0]:
            yield from _within(view, (data, end), *path[1:])


def _whole_of_saved_model(view: memoryview) -> Iterator[str]:
    """Of the graph to serve, or the only one."""
    graphs = list(_within(view, (0, len(view)), _META_GRAPH))
    tagged = [graph for graph in graphs if _SERVE in _tags(view, graph)]
    for graph in (tagged or graphs)[:1]:
        entries = [view[slice(*span)] for span in _within(view, graph, _SIGNATURES)]
        signatures = parse(_SIGNATURE_MAP, b"".join([_ENTRY + varint(len(entry)) + entry for entry in entries]))
        for key, signature in sorted(signatures.signature_def.items()):
            if not key.startswith(_HIDDEN):
                yield from (f"{tensor} of signature {key}" for tensor in _whole_of(signature))


def _tags(view: memoryview, graph: Span) -> list[bytes]:
    return [bytes(view[slice(*tag)]) for tag in _within(view, graph, _META_INFO, _TAGS)]


def _whole_of(signature: Any) -> Iterator[str]:
    for what, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for name, info in sorted(tensors.items()):
            shape = info.tensor_shape
            known = info.HasField("tensor_shape") and not shape.unknown_rank
            if known and (not shape.dim or shape.dim[0].size >= 0):
                yield f"{what} {name}"


def _whole_of_onnx(view: memoryview) -> Iterator[str]:
    for graph in _within(view, (0, len(view)), _GRAPH):
        given = {bytes(view[slice(*at)]) for at in _within(view, graph, _INITIALIZER, _INITIALIZER_NAME)}
        for number, what in ((_INPUT, "input"), (_OUTPUT, "output")):
            for tensor in _within(view, graph, number):
                name = b"".join(bytes(view[slice(*at)]) for at in _within(view, tensor, _NAME))
                shape = next(_within(view, tensor, _TYPE, _TENSOR, _SHAPE), None)
                if shape is not None and name not in given and _is_whole(view, shape):
                    yield f"{what} {name.decode(errors='replace')}"


def _is_whole(view: memoryview, shape: Span) -> bool:
    first = next(_within(view, shape, _DIMENSION), None)
    if first is None:
        return True
    at, end = first
    return at < end and view[at] == _DIMENSION_VALUE and 0 < read_varint(view, at + 1, end, 10, "model")[0] < 1 << 63
