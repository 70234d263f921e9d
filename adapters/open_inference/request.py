"""HTTP bodies of Open Inference V2's infer -> InferRequest: by a template where one like it was read before, else whole
(`document`).

A client in production sends the same few bytes around other numbers, request after request. Reading those bytes anew
each time costs more than reading the numbers. So a request that has been read whole and found right leaves a
*template*: the text before the array of its only input, the text after it, and what they meant. The next request with
the same text around an array is that request with other numbers. Of binary tensors all of the JSON is such a text: it
holds no numbers, so a client repeats it to the byte, and what the same bytes said before they say again.

Why this is sound: JSON is read from left to right, so a text that begins like the template's has, at the same place,
the same meaning: a value of inputs[0].data begins there. What stands between must by itself be one JSON array, so the
value ends where the template's rest begins, and that rest means what it meant. That the place is right is not
concluded but tried, once per template: documents with marked arrays in it are read, and must show the mark as the
data of the input. Anything that does not fit, for whatever reason, is read the long way, which words every error.

The order of the checks is part of the contract: version text, model, decoupled, content encoding, then `document`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import simdjson

from tensorgate.adapters._native import helper
from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.open_inference.compression import plain_body
from tensorgate.adapters.open_inference.document import infer_request, raw_request
from tensorgate.adapters.open_inference.raw import HEADER_LENGTH, numbers_of
from tensorgate.gateway.contract.call import Buffer, Call, MustOffload
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import INLINE_DECODE_MAX_JSON_BYTES, INLINE_DECODE_MAX_TENSOR_BYTES, Resolve
from tensorgate.gateway.contract.errors import BodyTooLarge, InvalidArgument, MalformedJson, ModelDecoupled
from tensorgate.gateway.contract.questions import ModelMetadata
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Array, Tensors

MAX_JSON_DEPTH: Final = 100
_INT64_MAX: Final = 2**63 - 1
_HEADER_LENGTH: Final = HEADER_LENGTH.lower()
_INTEGER: Final = re.compile(r"-?[0-9]+")
_EMPTY: Final = memoryview(b"")
LONGEST_REMEMBERED: Final = 256
"""Longer names are some caller's own: to remember them would let it fill our memory."""


def ref_of(call: Call) -> ModelRef:
    """The model of an address. Raises InvalidArgument for a version that is too large."""
    return model_ref(call.args["model"], call.args.get("version"))


def model_of(args: Mapping[str, str], begun: bytes) -> ModelRef:
    """The model of an address, whatever the body says. Raises InvalidArgument for a version that is too large."""
    return model_ref(args["model"], args.get("version"))


def decode_metadata(call: Call, resolve: Resolve) -> ModelMetadata:
    return metadata_of(ref_of(call), resolve)


def metadata_of(ref: ModelRef, resolve: Resolve) -> ModelMetadata:
    """Of the versions, only the one that was asked for, if one was."""
    view = resolve(ref)
    return ModelMetadata(view if ref.version is None else replace(view, versions=(view.version,)))


def model_ref(name: str, version: str | None) -> ModelRef:
    """Raises InvalidArgument for a version that is too large."""
    usual = len(name) + len(version or "") <= LONGEST_REMEMBERED
    return (_remembered_ref if usual else _model_ref)(name, version)


def _model_ref(name: str, version: str | None) -> ModelRef:
    if version is None:
        return ModelRef(name)
    digits = version.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > _INT64_MAX:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{version}' (details: stol), "
            "version should be an integral value > 0"
        )
    return ModelRef(name, int(digits))


_remembered_ref: Final = lru_cache(maxsize=1024)(_model_ref)  # never stale: a name, which is resolved each time


# --------------------------------------------------------------------------------------------------------------- infer


def decode_infer(call: Call, resolve: Resolve) -> InferRequest:
    """An infer request -> tensors, checked against what the model declares: dtypes, shapes and batch size.

    Raises ModelNotFound, ModelDecoupled, MalformedJson, InvalidArgument and its kinds, Unsupported, NotFound,
    BodyTooLarge; MustOffload.
    """
    view = resolve(model_ref(call.args["model"], call.args.get("version")))
    if view.decoupled:
        raise ModelDecoupled(view.name)
    header = call.headers.get(_HEADER_LENGTH)
    is_coded = "content-encoding" in call.headers
    if header is None:
        if len(call.body) > INLINE_DECODE_MAX_TENSOR_BYTES and not call.in_thread:
            raise MustOffload
        body = plain_body(call, call.max_body_bytes) if is_coded else call.body
        return _request(call, view, _json_templates, body, _EMPTY)
    message = memoryview(plain_body(call, call.max_binary_bytes) if is_coded else call.body)
    size = _header_length(header, len(message))
    if not size:
        return raw_request(call, view, message)
    if size > call.max_body_bytes:
        raise BodyTooLarge(call.max_body_bytes)
    if size > INLINE_DECODE_MAX_JSON_BYTES and not call.in_thread:
        raise MustOffload
    return _request(call, view, _binary_heads, message[:size], message[size:])


def _request(
    call: Call, view: ModelView, templates: JsonTemplates | BinaryHeads | None, text: Buffer, tail: memoryview
) -> InferRequest:
    """JSON and the binary data behind it -> the request, by its template, if one like it was read before."""
    accepted = call.headers.get("accept-encoding")
    depth = max_depth(call)
    known = None if templates is None else templates.read(view, accepted, depth, text, tail)
    if known is not None:
        template, arrays = known
        call.notes["id"] = ""
        return InferRequest(view, arrays, "", template.outputs, deadline=call.deadline, wire=template.wire)
    if not tail and len(text) > INLINE_DECODE_MAX_JSON_BYTES and not call.in_thread:
        raise MustOffload
    whole = text if type(text) is bytes else bytes(text)
    request = infer_request(call, view, whole, tail, depth)
    if templates is not None:
        templates.learn(request, accepted, depth, whole, tail)
    return request


def max_depth(call: Call) -> int:
    return MAX_JSON_DEPTH if call.max_json_depth is None else call.max_json_depth


def _header_length(text: str, body_bytes: int) -> int:
    if not _INTEGER.fullmatch(text):
        raise InvalidArgument(f"Unable to parse {HEADER_LENGTH}, got: {text}")
    if len(text) > 19 or not 0 <= int(text) <= body_bytes:
        raise InvalidArgument(f"inference header size should be in range (0, {body_bytes}), got: {text}")
    return int(text)


# ----------------------------------------------------------------------------------------------------------- templates

_KEY: Final = b'"data":'
_MARKS: Final = (-7.0625, 9.125)
"""Two, so that no number that stands elsewhere in the text can be taken for them."""
_ELSEWHERE: Final = (b'"data"', b"shared_memory", b"\\")
_MAX_TEXT_BYTES: Final = 1024
_MAX_TEMPLATES: Final = 256
_READ_AT_ONCE: Final[Mapping[Any, str]] = {DTYPES["FP32"]: "f", DTYPES["FP64"]: "d", DTYPES["INT64"]: "i"}
_DEPTH_OF_DATA: Final = 3
"""{"inputs": [{"data": stands inside three brackets."""


class KnownTensor(NamedTuple):
    """An input of a template, with the number of its elements and of their bytes."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    elements: int
    nbytes: int


class Template(NamedTuple):
    """What a request says apart from its numbers."""

    inputs: tuple[KnownTensor, ...]
    nbytes: int
    outputs: tuple[OutputRequest, ...]
    wire: Any


class ReadyTemplate(NamedTuple):
    """A template with what the compiled helper needs to read a request by it at once: the texts around the array, the
    kind of its numbers, and how deep it may be.
    """

    before: bytes
    after: bytes
    kind: Any
    most: int
    template: Template


class _Templates:
    """Those of one process, by the view, the coding that the caller accepts (the reply's form depends on it), the depth
    that is allowed and a text; of those with the same text, what follows it tells them apart. Bounded: when there are
    too many, it begins anew.
    """

    def __init__(self) -> None:
        # Stale when the model is another version: a view, part of the key, is one version's, and equal to itself alone.
        self._by_text: dict[tuple[ModelView, str | None, int, bytes], list[tuple[bytes, Template]]] = {}
        self._count = 0

    def _keep(self, request: InferRequest, accepted: str | None, depth: int, text: bytes, rest: bytes) -> None:
        if self._count >= _MAX_TEMPLATES:
            self._clear()
        inputs = tuple([KnownTensor(name, a.dtype, a.shape, a.size, a.nbytes) for name, a in request.inputs.items()])
        template = Template(inputs, sum([a.nbytes for a in inputs]), request.outputs, request.wire)
        self._by_text.setdefault((request.view, accepted, depth, text), []).append((rest, template))
        self._count += 1

    def _clear(self) -> None:
        self._by_text.clear()
        self._count = 0


class JsonTemplates(_Templates):
    """Templates of JSON that differs from an earlier request in the digits of its only input."""

    def __init__(self) -> None:
        super().__init__()
        # Stale when the model is another version, as above; an entry is tried, and is right where its texts are there.
        self._latest: dict[tuple[ModelView, str | None, int], ReadyTemplate] = {}

    def read(
        self, view: ModelView, accepted: str | None, depth: int, body: Buffer, tail: memoryview = _EMPTY
    ) -> tuple[Template, Tensors] | None:
        """A body -> what it says and its only input, or None if it has to be read the long way."""
        latest = self._latest.get((view, accepted, depth))
        if latest is not None:
            before, after, kind, most, template = latest
            [(name, dtype, shape, elements, _)] = template.inputs
            numbers = _native_between(body, before, after, kind, elements, most)
            if numbers is not None:
                return template, {name: np.ndarray(shape, dtype, numbers)}
        return self._read_by_text(view, accepted, depth, body)

    def _read_by_text(
        self, view: ModelView, accepted: str | None, depth: int, body: Buffer
    ) -> tuple[Template, Tensors] | None:
        """The way of what is unlike the latest: its own text before the array finds the template."""
        head = bytes(body[: _MAX_TEXT_BYTES + 1])
        start = head.find(b"[", head.find(_KEY))
        for rest, template in self._by_text.get((view, accepted, depth, head[:start]), ()):
            if body[-len(rest) :] == rest:
                [tensor] = template.inputs
                most = depth - _DEPTH_OF_DATA
                array = _numbers(body, start, len(body) - len(rest), tensor, most)
                if array is None:
                    return None
                if _native_between is not None and tensor.dtype in _READ_AT_ONCE:
                    kind = _READ_AT_ONCE[tensor.dtype]
                    self._latest[view, accepted, depth] = ReadyTemplate(head[:start], rest, kind, most, template)
                return template, {tensor.name: array}
        return None

    def _clear(self) -> None:
        super()._clear()
        self._latest.clear()

    def learn(
        self, request: InferRequest, accepted: str | None, depth: int, body: bytes, tail: memoryview = _EMPTY
    ) -> None:
        """Keep what a request said that was read the long way, if its text can be told from its numbers."""
        if len(request.inputs) != 1 or not _is_usual(request) or request.into is not None:  # it would keep the memory
            return
        [array] = request.inputs.values()
        if array.dtype.kind not in "fiu" or not array.size:
            return
        start = body.find(b"[", body.find(_KEY))
        before, after = body[:start], body[_end_of_array(body, start) :]
        if max(len(before), len(after)) <= _MAX_TEXT_BYTES and _marks_the_data(before, after, depth):
            self._keep(request, accepted, depth, before, after)


class BinaryHeads(_Templates):
    """Templates of JSON in front of binary tensors that is an earlier one to the byte."""

    def read(
        self, view: ModelView, accepted: str | None, depth: int, text: Buffer, tail: memoryview
    ) -> tuple[Template, Tensors] | None:
        """A head and the bytes behind it -> what it says and the inputs, or None if it has to be read the long way."""
        for _, template in self._by_text.get((view, accepted, depth, bytes(text)), ()):
            if template.nbytes != len(tail):
                return None
            arrays = {}
            at = 0
            for name, dtype, shape, elements, size in template.inputs:
                arrays[name] = numbers_of(tail[at : at + size], dtype, shape, elements)
                at += size
            return template, arrays
        return None

    def learn(self, request: InferRequest, accepted: str | None, depth: int, text: bytes, tail: memoryview) -> None:
        """Keep what a head said that was read the long way, if it says nothing of this one request alone.

        Where it names no other place of data, and has no escapes that could spell one, every input is in the tail, in
        the order of the head.
        """
        if not _is_usual(request) or len(text) > _MAX_TEXT_BYTES or any(word in text for word in _ELSEWHERE):
            return
        arrays = request.inputs.values()
        if sum([a.nbytes for a in arrays]) == len(tail) and all(a.dtype != BYTES for a in arrays):
            self._keep(request, accepted, depth, text, b"")


def _is_usual(request: InferRequest) -> bool:
    """Whether nothing in a request but its tensors belongs to this one alone."""
    return not (
        request.id or request.parameters or request.sequence is not None or request.priority or request.queue_timeout_us
    )


def _numbers(body: Buffer, start: int, end: int, tensor: KnownTensor, depth: int) -> Array | None:
    """The array that is the text from `start` to `end` -> array of the tensor's dtype and shape; None if it is
    something else, of another size, or deeper than `depth`.
    """
    found = json_body.scan(body, start, tensor.dtype)
    if found is None:
        flat = _numbers_of_document(bytes(body[start:end]), tensor, depth)
    elif found[1] == end:
        flat = found[0] if found[0].ndim <= depth else None
    else:  # it ends sooner, so what follows is not the template's
        flat = None
    if flat is None or flat.size != tensor.elements:
        return None
    return flat.reshape(tensor.shape)


def _numbers_of_document(text: bytes, tensor: KnownTensor, depth: int) -> Array | None:
    """The numbers of a text that is read as a document, without a shape; None if it is no array of them."""
    try:
        value = json_body.read(text, min(depth, json_body.MAX_DIMENSIONS))
        return json_body.numbers(value, tensor.dtype) if isinstance(value, simdjson.Array) else None
    except (MalformedJson, json_body.WrongLeaf):
        return None


def _end_of_array(body: bytes, start: int) -> int:
    """Behind the array of numbers that begins at `start`: a member of an object, so what closes it is the last
    bracket before the next member or the end of the object.
    """
    stops = [body.find(stop, start) for stop in (b'"', b"}")]
    return body.rfind(b"]", start, min([stop for stop in stops if stop >= 0], default=0)) + 1


def _marks_the_data(before: bytes, after: bytes, depth: int) -> bool:
    """Whether an array between these texts is the data of the only input. Read once per tensor."""
    try:
        return all(_only_data(before + b"[%f]" % mark + after, depth) == [mark] for mark in _MARKS)
    except (MalformedJson, KeyError, TypeError, IndexError):
        return False


def _only_data(body: bytes, depth: int) -> list[Any] | None:
    """The data of the only input, None if there are several."""
    inputs = json_body.read(body, depth)["inputs"]
    return list(inputs[0]["data"]) if len(inputs) == 1 else None


_native_between = helper("native_numbers", "_numbers", "read_between")
_json_templates: Final = JsonTemplates() if is_taken("v2_json_templates") else None
_binary_heads: Final = BinaryHeads() if is_taken("v2_binary_heads") else None
