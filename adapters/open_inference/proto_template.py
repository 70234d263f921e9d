"""Requests that differ from an earlier one in nothing but the numbers of their tensors: the usual case, read without
protobuf.

A template is what such messages have in common, which bytes stand where, and what they say. It is learned from a
message that was read and checked in full; one of the same size with the same bytes in the same places says the same,
so only its numbers are left to look at. Messages with an id, parameters, texts or anything unusual are no templates.

Why this is sound: a template's first bytes are every field but raw_input_contents, then come these, each behind a tag
and a length that are the template's too. So a message that has the same bytes there has the same fields, and raw
contents of the same sizes; and every number of the right size is right. The model is resolved anew each time, and must
be the very version that the message was checked against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.adapters.open_inference.proto_wire import RAW_INPUTS, cut_out
from tensorgate.adapters.protobuf.wire_format import varint
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.tensor import Tensors

_KEY_BYTES: Final = 16
"""Less than stands before the data of any tensor: names, a datatype and tags take more."""
_ALIKE: Final = 8
"""Templates of one size and beginning: of models whose names begin alike."""
_REMEMBERED: Final = 256
_MAX_HEAD_BYTES: Final = 2 << 10
_NUMBERS: Final = "iuf"
"""Kinds of dtypes of which any bytes are right."""

Common = tuple[tuple[int, bytes], ...]
"""Bytes that messages have in common, with the places where they stand."""


class Tensor(NamedTuple):
    """Where a tensor's bytes begin, and what they are."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    at: int


class Template(NamedTuple):
    common: Common
    tensors: tuple[Tensor, ...]
    ref: ModelRef
    view: ModelView
    outputs: tuple[OutputRequest, ...]
    wire: Any


class Templates:
    """The templates of one method."""

    def __init__(self) -> None:
        # Stale when the model is another version: it is resolved each time, and compared.
        self._known = Store()

    def read(self, call: Call, resolve: Resolve, *, stream: bool) -> InferRequest | None:
        """The request, if it has a template. Raises what `resolve` does."""
        body = call.body
        known = self._known.find(body)
        if known is None:
            return None
        call.notes["id"] = ""
        view = resolve(known.ref)
        if view is not known.view:
            return None
        call.notes["model"] = view.name
        inputs = {name: np.ndarray(shape, dtype, body, at) for name, shape, dtype, at in known.tensors}
        return InferRequest(view, inputs, outputs=known.outputs, deadline=call.deadline, stream=stream, wire=known.wire)

    def learn(self, body: Buffer, kind: str, ref: ModelRef, request: InferRequest) -> None:
        """Keep what is common to messages like this one, which was read as that request."""
        if request.parameters or request.sequence or request.priority or request.queue_timeout_us:
            return
        found = find_tensors(body, kind, RAW_INPUTS, request.inputs)
        if found is not None:
            self._known.keep(body, Template(*found, ref, request.view, request.outputs, request.wire))


def find_tensors(body: Buffer, kind: str, tag: int, arrays: Tensors) -> tuple[Common, tuple[Tensor, ...]] | None:
    """What a message from which these arrays were read has in common with others, and where its tensors are; None
    unless it ends with their bytes, as protobuf writes them under that tag, and any bytes would be right.
    """
    if not arrays or [each for each in arrays.values() if not each.size or each.dtype.kind not in _NUMBERS]:
        return None
    head, raw = cut_out(body, kind, tag)
    sizes = [array.nbytes for array in arrays.values()]
    common = _common(body, head, sizes, bytes([tag])) if [*map(len, raw)] == sizes else None
    if common is None:
        return None
    tensors = [
        Tensor(name, array.shape, array.dtype, at + len(before))
        for (name, array), (at, before) in zip(arrays.items(), common, strict=True)
    ]
    return common, tuple(tensors)


class Store:
    """Templates by the size of their messages and how these begin. There is an end to what is kept. Of itself nothing
    is ever stale: all that a message says but its numbers is compared.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], tuple[Template, ...]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def find(self, body: Buffer) -> Template | None:
        """The template of a message, if there is one."""
        for known in self._known.get((len(body), bytes(body[:_KEY_BYTES])), ()):
            for at, common in known.common:
                if body[at : at + len(common)] != common:
                    break
            else:
                return known
        return None

    def keep(self, body: Buffer, template: Template) -> None:
        """For messages like this one, in place of what was kept for them before."""
        if len(template.common[0][1]) < _KEY_BYTES:
            return
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        key = len(body), bytes(body[:_KEY_BYTES])
        others = [each for each in self._known.get(key, ()) if each.common != template.common]
        self._known[key] = (template, *others[: _ALIKE - 1])


def _common(body: Buffer, head: bytes, sizes: Sequence[int], tag: bytes) -> Common | None:
    """What stands before each piece of data, in a message that is this head and then, under that tag, data of these
    sizes; None if that is not their order.
    """
    if len(head) > _MAX_HEAD_BYTES or body[: len(head)] != head:
        return None
    common: list[tuple[int, bytes]] = []
    at, before = 0, head
    for size in sizes:
        before += tag + varint(size)
        common.append((at, before))
        at += len(before) + size
        before = b""
    return tuple(common) if at == len(body) else None
