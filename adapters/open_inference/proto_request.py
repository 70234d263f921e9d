"""Open Inference V2 over gRPC: ModelInferRequest -> InferRequest, by a template where one like it was read before, else
whole (`proto_message`).

A large tensor on its way in: the transport joins what it received to one `bytes`, and that is the last copy before the
batch's, or the device's. The array is a view of it; only BOOL, BYTES and typed contents are copied once more.

A message that differs from an earlier one in nothing but the numbers of its tensors, the usual case, is read without
protobuf. A *template* is what such messages have in common, which bytes stand where, and what they say. It is learned
from a message that was read and checked in full; one of the same size with the same bytes in the same places says the
same, so only its numbers are left to look at. Messages with an id, parameters, texts or anything unusual are no
templates.

Why this is sound: a template's first bytes are every field but raw_input_contents, then come these, each behind a tag
and a length that are the template's too. So a message that has the same bytes there has the same fields, and raw
contents of the same sizes; and every number of the right size is right. The model is resolved anew each time, and must
be the very version that the message was checked against. Of itself no template is ever stale.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.adapters.open_inference.proto_message import KIND, RAW_INPUTS, infer_request
from tensorgate.adapters.protobuf.wire_format import cut_out, varint
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import Tensors

_KEY_BYTES: Final = 16
"""Less than stands before the data of any tensor: names, a datatype and tags take more."""
_ALIKE: Final = 8
"""Templates of one size and beginning: of models whose names begin alike."""
_MAX_TEMPLATES: Final = 256
_MAX_HEAD_BYTES: Final = 2 << 10
_NUMBERS: Final = "iuf"
"""Kinds of dtypes of which any bytes are right."""

Common = tuple[tuple[int, bytes], ...]
"""Bytes that messages have in common, with the places where they stand."""


class RawTensor(NamedTuple):
    """Where a tensor's bytes begin, and what they are."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    at: int


class ProtoTemplate(NamedTuple):
    """What messages have in common: their bytes, their tensors, and all else that they say."""

    common: Common
    tensors: tuple[RawTensor, ...]
    ref: ModelRef
    view: ModelView
    outputs: tuple[OutputRequest, ...]
    wire: Any


def decode_infer(call: Call, resolve: Resolve) -> InferRequest:
    """ModelInfer: a request that has one answer.

    Raises ModelNotFound, ModelDecoupled, InvalidArgument and its kinds, Unsupported, NotFound.
    """
    known = None if _unary is None else _unary.read(call, resolve)
    return known or _request(call, resolve, _unary, stream=False)


def decode_stream(call: Call, resolve: Resolve) -> InferRequest:
    """One message of ModelStreamInfer: a request that may have any number of answers. Raises the same."""
    known = None if _streamed is None else _streamed.read(call, resolve, stream=True)
    return known or _request(call, resolve, _streamed, stream=True)


def _request(call: Call, resolve: Resolve, templates: ProtoTemplates | None, *, stream: bool) -> InferRequest:
    request, ref = infer_request(call, resolve, stream=stream)
    if templates is not None and ref is not None:
        templates.learn(call.body, ref, request)
    return request


class ProtoTemplates:
    """The templates of one method, by the size of their messages and how these begin. Bounded: when there are too many,
    it begins anew.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], tuple[ProtoTemplate, ...]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def read(self, call: Call, resolve: Resolve, *, stream: bool = False) -> InferRequest | None:
        """The request, if it has a template. Raises what `resolve` does."""
        body = call.body
        known = self._find(body)
        if known is None:
            return None
        call.notes["id"] = ""
        try:
            view = resolve(known.ref)
        except Exception:  # see infer_request
            call.notes["model"] = known.ref.name
            raise
        if view is not known.view:
            return None
        call.notes["model"] = view.name
        inputs = {name: np.ndarray(shape, dtype, body, at) for name, shape, dtype, at in known.tensors}
        return InferRequest(view, inputs, outputs=known.outputs, deadline=call.deadline, stream=stream, wire=known.wire)

    def _find(self, body: Buffer) -> ProtoTemplate | None:
        for known in self._known.get((len(body), bytes(body[:_KEY_BYTES])), ()):
            for at, common in known.common:
                if body[at : at + len(common)] != common:
                    break
            else:
                return known
        return None

    def learn(self, body: Buffer, ref: ModelRef, request: InferRequest) -> None:
        """Keep what is common to messages like this one, which was read as that request; of messages with the same
        bytes in the same places, the latest counts.
        """
        common = _common_bytes(body, request.inputs)
        if common is None or len(common[0][1]) < _KEY_BYTES:
            return
        tensors = [
            RawTensor(name, array.shape, array.dtype, at + len(before))
            for (name, array), (at, before) in zip(request.inputs.items(), common, strict=True)
        ]
        template = ProtoTemplate(common, tuple(tensors), ref, request.view, request.outputs, request.wire)
        if len(self._known) >= _MAX_TEMPLATES:
            self._known.clear()
        key = len(body), bytes(body[:_KEY_BYTES])
        others = [each for each in self._known.get(key, ()) if each.common != common]
        self._known[key] = (template, *others[: _ALIKE - 1])


def _common_bytes(body: Buffer, arrays: Tensors) -> Common | None:
    """What stands before each tensor's bytes in a message from which these arrays were read; None unless it is a small
    head and then these bytes, as protobuf writes them, and any bytes would be right.
    """
    if not arrays or [each for each in arrays.values() if not each.size or each.dtype.kind not in _NUMBERS]:
        return None
    head, raw = cut_out(body, RAW_INPUTS, KIND)
    sizes = [array.nbytes for array in arrays.values()]
    if [*map(len, raw)] != sizes or len(head) > _MAX_HEAD_BYTES or body[: len(head)] != head:
        return None
    common: list[tuple[int, bytes]] = []
    at, before = 0, head
    for size in sizes:
        before += bytes([RAW_INPUTS]) + varint(size)
        common.append((at, before))
        at += len(before) + size
        before = b""
    return tuple(common) if at == len(body) else None


_unary: Final = ProtoTemplates() if is_taken("v2_grpc_templates") else None
_streamed: Final = ProtoTemplates() if is_taken("v2_grpc_templates") else None
