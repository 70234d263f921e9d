"""Answers that differ from an earlier one in nothing but the numbers of their tensors: read without protobuf, as such
requests are (see proto_template, which also says why this is sound).

Answers with an id, parameters, texts or anything unusual are no templates. Of one model of one other server.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from adapters.open_inference.proto_template import KEY_BYTES, NUMBERS, REMEMBERED, Tensor, common_bytes
from adapters.open_inference.proto_wire import cut_out
from gateway.canonical import InferResponse
from gateway.ports import Buffer

_KIND: Final = "inference.ModelInferResponse"
_TAG: Final = 6 << 3 | 2
"""Of raw_output_contents."""


class _Template(NamedTuple):
    common: tuple[tuple[int, bytes], ...]
    tensors: tuple[Tensor, ...]


class Answers:
    """The templates."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], _Template] = {}

    def read(self, body: Buffer) -> InferResponse | None:
        """The answer, if it has a template: its arrays are views of the body."""
        known = self._known.get((len(body), bytes(body[:KEY_BYTES])))
        if known is None:
            return None
        for at, common in known.common:
            if body[at : at + len(common)] != common:
                return None
        return InferResponse({name: np.ndarray(shape, dtype, body, at) for name, shape, dtype, at in known.tensors})

    def learn(self, body: Buffer, answer: InferResponse) -> None:
        """Keep what is common to messages like this one, without an id, which was read as that answer."""
        arrays = answer.outputs
        if answer.parameters or not answer.final or not arrays:
            return
        if not all(array.size and array.dtype.kind in NUMBERS for array in arrays.values()):
            return
        head, raw = cut_out(body, _KIND, _TAG)
        sizes = [array.nbytes for array in arrays.values()]
        common = common_bytes(body, head, sizes, bytes([_TAG])) if [*map(len, raw)] == sizes else None
        if common is None:
            return
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        tensors = tuple(
            [
                Tensor(name, array.shape, array.dtype, at + len(before))
                for (name, array), (at, before) in zip(arrays.items(), common, strict=True)
            ]
        )
        self._known[len(body), bytes(body[:KEY_BYTES])] = _Template(common, tensors)
