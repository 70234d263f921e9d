"""Templates of Open Inference V2's infer bodies over HTTP: JSON that differs from an earlier request in the digits
of its only input, and JSON in front of binary tensors that is an earlier one to the byte.

A client in production sends the same few bytes around other numbers, request after request. Reading those bytes anew
each time costs more than reading the numbers. So a request that has been read whole and found right leaves a
*template*: the text before the array of its only input, the text after it, and what they meant. The next request with
the same text around an array is that request with other numbers.

Why this is sound: JSON is read from left to right, so a text that begins like the template's has, at the same place,
the same meaning: a value of inputs[0].data begins there. What stands between must by itself be one JSON array, so the
value ends where the template's rest begins, and that rest means what it meant. That the place is right is not
concluded but tried, once per template: documents with marked arrays in it are read, and must show the mark as the
data of the input. Anything that does not fit, for whatever reason, is read the long way, which words every error.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import simdjson

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.open_inference.raw import numbers_of
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.canonical import InferRequest, ModelView, OutputRequest
from tensorgate.gateway.contract.errors import MalformedJson
from tensorgate.gateway.contract.tensor import BYTES, Array

_KEY: Final = b'"data":'
_MARKS: Final = (-7.0625, 9.125)
"""Two, so that no number that stands elsewhere in the text can be taken for them."""
_ELSEWHERE: Final = (b'"data"', b"shared_memory", b"\\")
_MAX_TEXT_BYTES: Final = 1024
_MAX_TEMPLATES: Final = 256
_DEPTH_OF_DATA: Final = 3
"""{"inputs": [{"data": stands inside three brackets."""


class JsonTemplate(NamedTuple):
    """What a request says apart from its numbers."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    elements: int
    outputs: tuple[OutputRequest, ...]
    wire: Any


class JsonTemplates:
    """Those of one process. Bounded: when there are too many, it begins anew.

    They are kept by the view, the coding that the caller accepts (the reply's form depends on it), and the text
    before the array.
    """

    def __init__(self) -> None:
        # Stale when the model is another version: a view, part of the key, is one version's, and equal to itself alone.
        self._by_text: dict[tuple[ModelView, str | None, int, bytes], list[tuple[bytes, JsonTemplate]]] = {}
        self._count = 0

    def read(
        self, view: ModelView, accepted: str | None, depth: int, body: Buffer
    ) -> tuple[JsonTemplate, Array] | None:
        """A body -> what it says and the array of its only input, or None if it has to be read the long way."""
        head = bytes(body[: _MAX_TEXT_BYTES + 1])
        start = head.find(b"[", head.find(_KEY))
        for rest, template in self._by_text.get((view, accepted, depth, head[:start]), ()):
            if body[-len(rest) :] == rest:
                array = _numbers(body, start, len(body) - len(rest), template, depth - _DEPTH_OF_DATA)
                return None if array is None else (template, array)
        return None

    def learn(self, request: InferRequest, accepted: str | None, depth: int, body: bytes) -> None:
        """Keep what a request said that was read the long way, if its text can be told from its numbers."""
        if len(request.inputs) != 1 or not _is_usual(request):
            return
        if request.into is not None:  # a template would keep the memory
            return
        ((name, array),) = request.inputs.items()
        if array.dtype.kind not in "fiu" or not array.size:
            return
        start = body.find(b"[", body.find(_KEY))
        before, after = body[:start], body[_end_of_array(body, start) :]
        if max(len(before), len(after)) > _MAX_TEXT_BYTES or not _marks_the_data(before, after, depth):
            return
        if self._count >= _MAX_TEMPLATES:
            self._by_text.clear()
            self._count = 0
        template = JsonTemplate(name, array.dtype, array.shape, array.size, request.outputs, request.wire)
        self._by_text.setdefault((request.view, accepted, depth, before), []).append((after, template))
        self._count += 1


class BinaryHead(NamedTuple):
    """The JSON in front of binary tensors: every input's dtype, shape, number of elements and bytes, in order."""

    inputs: tuple[tuple[str, Any, tuple[int, ...], int, int], ...]
    tail_bytes: int
    outputs: tuple[OutputRequest, ...]
    wire: Any


class BinaryHeads:
    """Templates of requests whose tensors are all binary: the JSON in front of them holds no numbers, so a client
    repeats it to the byte, and what the same bytes said before they say again. Of one process; bounded.
    """

    def __init__(self) -> None:
        # Stale when the model is another version: a view, part of the key, is one version's, and equal to itself alone.
        self._by_text: dict[tuple[ModelView, str | None, int, bytes], BinaryHead] = {}

    def read(
        self, view: ModelView, accepted: str | None, depth: int, text: bytes, tail: memoryview
    ) -> tuple[BinaryHead, dict[str, Array]] | None:
        """A head and the bytes behind it -> what it says and the inputs, or None if it has to be read the long way."""
        head = self._by_text.get((view, accepted, depth, text))
        if head is None or len(tail) != head.tail_bytes:
            return None
        arrays = {}
        at = 0
        for name, dtype, shape, elements, size in head.inputs:
            arrays[name] = numbers_of(tail[at : at + size], dtype, shape, elements)
            at += size
        return head, arrays

    def learn(self, request: InferRequest, accepted: str | None, depth: int, text: bytes, tail: memoryview) -> None:
        """Keep what a head said that was read the long way, if it says nothing of this one request alone.

        Where it names no other place of data, and has no escapes that could spell one, every input is in the tail, in
        the order of the head.
        """
        if not _is_usual(request) or len(text) > _MAX_TEXT_BYTES or any(word in text for word in _ELSEWHERE):
            return
        inputs = tuple([(name, a.dtype, a.shape, a.size, a.nbytes) for name, a in request.inputs.items()])
        if sum([size for *_, size in inputs]) != len(tail) or any(dtype == BYTES for _, dtype, *_ in inputs):
            return
        if len(self._by_text) >= _MAX_TEMPLATES:
            self._by_text.clear()
        self._by_text[request.view, accepted, depth, text] = BinaryHead(
            inputs, len(tail), request.outputs, request.wire
        )


def _is_usual(request: InferRequest) -> bool:
    """Whether nothing in a request but its tensors belongs to this one alone."""
    return not (
        request.id or request.parameters or request.sequence is not None or request.priority or request.queue_timeout_us
    )


def _numbers(body: Buffer, start: int, end: int, template: JsonTemplate, depth: int) -> Array | None:
    """The array that is the text from `start` to `end` -> array of the template's dtype and shape; None if it is
    something else, of another size, or deeper than `depth`.
    """
    found = json_body.scan(body, start, template.dtype)
    if found is None:
        flat = _numbers_of_document(bytes(body[start:end]), template, depth)
    elif found[1] == end:
        flat = found[0] if found[0].ndim <= depth else None
    else:  # it ends sooner, so what follows is not the template's
        flat = None
    if flat is None or flat.size != template.elements:
        return None
    return flat.reshape(template.shape)


def _numbers_of_document(text: bytes, template: JsonTemplate, depth: int) -> Array | None:
    """The numbers of a text that is read as a document, without a shape; None if it is no array of them."""
    try:
        value = json_body.read(text, min(depth, json_body.MAX_DIMENSIONS))
        return json_body.numbers(value, template.dtype) if isinstance(value, simdjson.Array) else None
    except (MalformedJson, json_body.WrongLeaf):
        return None


def _end_of_array(body: bytes, start: int) -> int:
    """Behind the array of numbers that begins at `start`: a member of an object, so what closes it is the last
    bracket before the next member or the end of the object.
    """
    stops = [body.find(stop, start) for stop in (b'"', b"}")]
    return body.rfind(b"]", start, min([stop for stop in stops if stop >= 0], default=0)) + 1


def _marks_the_data(before: bytes, after: bytes, depth: int) -> bool:
    """Whether an array between these texts is the data of the only input. Read once per template."""
    try:
        return all(_only_data(before + b"[%f]" % mark + after, depth) == [mark] for mark in _MARKS)
    except (MalformedJson, KeyError, TypeError, IndexError):
        return False


def _only_data(body: bytes, depth: int) -> list[Any] | None:
    """The data of the only input, None if there are several."""
    inputs = json_body.read(body, depth)["inputs"]
    return list(inputs[0]["data"]) if len(inputs) == 1 else None
