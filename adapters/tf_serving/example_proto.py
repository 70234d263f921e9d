"""tensorflow.Example messages -> features: those of TensorFlow Serving's gRPC requests, and serialized ones in a tensor
of strings.

Protobuf makes up to 25 bytes of one where a message is all structure: short features, empty strings. So large messages
are taken apart by hand as far as their Examples, these are parsed one at a time, and a large Example is looked through
before. Where all Examples are written as everybody writes them, the compiled helper `_examples` reads them at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from tensorgate.adapters._native import helper
from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import MAX_ELEMENTS, MAX_HEAD_BYTES, cut_out, fields, parse, too_large
from tensorgate.adapters.tf_serving.example_tensors import (
    KIND_DTYPES,
    Column,
    Examples,
    ExampleVectors,
    Feature,
    Kind,
    merge,
    model_inputs,
)
from tensorgate.adapters.tf_serving.tensors import Tensor
from tensorgate.gateway.contract.call import Buffer, MustOffload
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import Signature, Tensors

_native_read = helper("native_examples", "_examples", "read")

SMALL_BYTES: Final = 64 << 10
"""Of Examples; more are read in a thread: each feature costs a microsecond."""
_LARGE_BYTES: Final = 4 << 20
_KIND: Final = "tensorflow.Example"
_Example: Final = message(_KIND)
_KINDS: Final[dict[str, Kind]] = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
_FEW: Final = 32
"""More numbers than that are quicker copied at once."""
_PIECE: Final = 4096
"""Examples that are read at once; values of theirs become Python's objects without a pause."""
_FIRST: Final = 1 << 3 | 2
_SECOND: Final = 2 << 3 | 2
"""The tags of a message's fields 1 and 2."""


class ProtoExamples(Examples):
    """Examples of a small message; on a clash with the context an Example's own feature counts, even one without a
    kind.
    """

    def __init__(self, examples: Sequence[Any], context: Any = None) -> None:
        self._examples = examples
        self._context = context

    def __len__(self) -> int:
        return len(self._examples)

    def columns(self, names: Collection[str]) -> list[Column]:
        return _columns(names, self._examples, self._context)

    def serialized(self) -> list[bytes]:
        context = b"" if self._context is None else self._context.SerializeToString()
        return merge(context, [example.SerializeToString() for example in self._examples])


class SerializedExamples(Examples):
    """Examples that are messages still, parsed one at a time."""

    def __init__(self, examples: Sequence[bytes], context: bytes = b"") -> None:
        self._examples = examples
        self._context = context

    def __len__(self) -> int:
        return len(self._examples)

    def columns(self, names: Collection[str]) -> list[Column]:
        parsed = (_parse(f"Index: {index}", text) for index, text in enumerate(self._examples))
        return _columns(names, parsed, _parse("context", self._context) if self._context else None)

    def serialized(self) -> list[bytes]:
        return merge(self._context, [*self._examples])


class PlainExamples(Examples):
    """Examples that are a part of their request still: an ExampleList that the compiled helper knows to be right."""

    def __init__(self, data: memoryview, count: int) -> None:
        self._data = data
        self._count = count

    def __len__(self) -> int:
        return self._count

    def vectors(self, names: Collection[str]) -> list[ExampleVectors] | None:
        assert _native_read is not None  # noqa: S101  # it has read them before
        keys = tuple([name.encode() for name in names])
        parts: list[list[Any]] = []
        at = 0
        while at < len(self._data):
            found = _native_read(self._data, at, len(self._data), keys, _PIECE)
            if found is None:
                return None
            columns, _, at = found
            parts.append(columns)
        return _vectors(parts)

    def columns(self, names: Collection[str]) -> list[Column]:
        return self._apart().columns(names)

    def serialized(self) -> list[bytes]:
        return self._apart().serialized()

    def _apart(self) -> SerializedExamples:
        found = _Found([], [])
        found.add(self._data, _KIND)
        return SerializedExamples(found.examples)


def _vectors(parts: list[list[Any]]) -> list[ExampleVectors] | None:
    """Columns of the compiled helper, from so many Examples each -> of all; None if they are not of one kind and
    size.
    """
    vectors = []
    for pieces in zip(*parts, strict=True):
        kind, size, _ = pieces[0]
        if any((kind, size) != piece[:2] for piece in pieces):
            return None
        if kind == "bytes":
            flat = array_of([text for _, _, texts in pieces for text in texts])
        else:
            flat = np.concatenate([np.frombuffer(values, KIND_DTYPES[kind]) for _, _, values in pieces])
        vectors.append(ExampleVectors(kind, size, flat))
    return vectors


def _plain(lists: list[_List]) -> PlainExamples | None:
    """The only list, if it has no context, and all its Examples are plain ones."""
    if _native_read is None or len(lists) != 1 or lists[0].choice != _FIRST:
        return None
    [(_, data)] = lists
    found = _native_read(data, 0, len(data), (), MAX_ELEMENTS)
    return PlainExamples(data, found[1]) if found is not None and found[2] == len(data) else None


def _columns(names: Collection[str], examples: Iterable[Any], context: Any) -> list[Column]:
    columns: list[Column] = [[] for _ in names]
    shared = {} if context is None else context.features.feature
    places = [(name, _feature(shared.get(name)), column) for name, column in zip(names, columns, strict=True)]
    for example in examples:
        own = example.features.feature
        for name, otherwise, column in places:
            found = own.get(name)
            column.append(otherwise if found is None else _feature(found))
    return columns


def _feature(feature: Any) -> Feature | None:
    """A copy, which does not keep the message."""
    field = None if feature is None else feature.WhichOneof("kind")
    if field is None:
        return None
    kind = _KINDS[field]
    values = getattr(feature, field).value
    return Feature(kind, values[:] if kind == "bytes" or len(values) < _FEW else np.array(values))


def example_inputs(signature: Signature, serialized: Tensor, *, in_thread: bool) -> Tensors:
    """Serialized Examples, host BYTES, -> inputs by the model's names, for a signature with features.

    Raises InvalidArgument, and MustOffload on the event loop where they are many.
    """
    if serialized.ndim != 1:
        shape = ",".join(map(str, serialized.shape))
        raise InvalidArgument(f"Expected serialized to be a vector, got shape: [{shape}]")
    texts = serialized.tolist()
    if not in_thread and sum(map(len, texts)) > SMALL_BYTES:
        raise MustOffload
    return model_inputs(signature, SerializedExamples(texts))


def _parse(place: str, text: bytes) -> Any:
    if len(text) > _LARGE_BYTES:
        _check_structure(text)
    try:
        return _Example.FromString(text)
    except DecodeError:
        raise InvalidArgument(f"Could not parse example input, {place}") from None


def _check_structure(text: bytes) -> None:
    """Refuse an Example that has more features, or strings in them, than is sane. Raises InvalidArgument."""
    strings = MAX_ELEMENTS
    for entry in _inside(text, [(0, len(text))], _FIRST, _FIRST):  # Example.features, Features.feature
        for lists in _inside(text, [entry], _SECOND, _FIRST):  # an entry's Feature, Feature.bytes_list
            strings -= sum([1 for _ in fields(text, *lists, _KIND, strings)])


def _inside(text: Buffer, spans: Iterable[tuple[int, int]], *tags: int) -> Iterable[tuple[int, int]]:
    """Where fields lie that are reached by a path of tags."""
    for tag in tags:
        spans = [(data, end) for span in spans for found, _, data, end in fields(text, *span, _KIND) if found == tag]
    return spans


# ------------------------------------------------------------------------------------------------------ whole requests


def read_request(kind: str, body: Buffer) -> tuple[Any, Examples]:
    """A ClassificationRequest, RegressionRequest or MultiInferenceRequest, and the Examples of its input.

    Raises InvalidArgument.
    """
    if len(body) > _LARGE_BYTES:
        head, lists = _split(kind, body)
        return parse(kind, head), _plain(lists) or _listed(kind, lists)
    if len(body) > SMALL_BYTES and _native_read is not None:
        with suppress(InvalidArgument):  # which the whole message words
            head, lists = _split(kind, body)
            plain = _plain(lists)
            if plain is not None:
                return parse(kind, head), plain
    request = parse(kind, body)
    if request.input.WhichOneof("kind") == "example_list_with_context":
        found = request.input.example_list_with_context
        return request, ProtoExamples(found.examples, found.context)
    return request, ProtoExamples(request.input.example_list.examples)


def _split(kind: str, body: Buffer) -> tuple[bytes, list[_List]]:
    """A request without its input, and the lists of Examples in this. All three kinds have it in field 2."""
    head, inputs = cut_out(body, _SECOND, kind)
    if len(head) > MAX_HEAD_BYTES:
        raise too_large()
    lists = []
    for data in inputs:
        inside = fields(data, 0, len(data), kind)
        lists += [_List(choice, data[at:end]) for choice, _, at, end in inside if choice in (_FIRST, _SECOND)]
    return head, lists


class _List(NamedTuple):
    """An ExampleList or an ExampleListWithContext, by its tag, as a view of a request."""

    choice: int
    data: memoryview


def _listed(kind: str, lists: list[_List]) -> SerializedExamples:
    """Of the two lists that an input can be, the last one counts; its pieces are one list, and a context's one
    context.
    """
    chosen = 0
    found = _Found([], [])
    for choice, data in lists:
        found = found if choice == chosen else _Found([], [])
        chosen = choice
        found.add(data, kind)
    return SerializedExamples(found.examples, b"".join(found.contexts) if chosen == _SECOND else b"")


class _Found(NamedTuple):
    """What an ExampleListWithContext has, and an ExampleList apart from contexts."""

    examples: list[bytes]
    contexts: list[bytes]

    def add(self, data: memoryview, kind: str) -> None:
        for tag, _, begin, end in fields(data, 0, len(data), kind, MAX_ELEMENTS):
            if tag == _FIRST:
                self.examples.append(bytes(data[begin:end]))
            elif tag == _SECOND:
                self.contexts.append(bytes(data[begin:end]))
        if len(self.examples) > MAX_ELEMENTS:
            raise InvalidArgument(f"failed to parse the request: it has more than {MAX_ELEMENTS} Examples")
