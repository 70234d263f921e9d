"""Answers that differ from an earlier one in nothing but the numbers of their tensors: read without protobuf, as such
requests are (see proto_template, which also says why this is sound).

Answers with an id, parameters, texts or anything unusual are no templates. Of one model of one other server.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from adapters.open_inference.proto_template import KEY_BYTES, Common, Tensor, find_tensors, remember
from adapters.open_inference.proto_wire import RAW_OUTPUTS
from gateway.canonical import InferResponse
from gateway.ports import Buffer

_KIND: Final = "inference.ModelInferResponse"


class _Template(NamedTuple):
    common: Common
    tensors: tuple[Tensor, ...]


class Answers:
    """The templates."""

    def __init__(self) -> None:
        # By size and beginning. Never stale: all that such a message says but its numbers is compared.
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
        if answer.parameters or not answer.final:
            return
        found = find_tensors(body, _KIND, RAW_OUTPUTS, answer.outputs)
        if found is not None:
            remember(self._known, body, _Template(*found))
