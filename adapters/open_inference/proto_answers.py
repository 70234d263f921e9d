"""Answers that differ from an earlier one in nothing but the numbers of their tensors: read without protobuf, as such
requests are (see proto_template, which also says why this is sound).

Answers with an id, parameters, texts or anything unusual are no templates. Of one model of one other server.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from adapters.open_inference.proto_template import Common, Store, Tensor, find_tensors
from adapters.open_inference.proto_wire import RAW_OUTPUTS
from gateway.canonical import InferResponse
from gateway.ports import Buffer
from gateway.shortcuts import is_taken

_KIND: Final = "inference.ModelInferResponse"
_IS_TAKEN: Final = is_taken("v2_answer_templates")


class _Template(NamedTuple):
    common: Common
    tensors: tuple[Tensor, ...]


class Answers:
    """The templates."""

    def __init__(self) -> None:
        self._known: Store[_Template] = Store()

    def read(self, body: Buffer) -> InferResponse | None:
        """The answer, if it has a template: its arrays are views of the body."""
        known = self._known.find(body) if _IS_TAKEN else None
        if known is None:
            return None
        return InferResponse({name: np.ndarray(shape, dtype, body, at) for name, shape, dtype, at in known.tensors})

    def learn(self, body: Buffer, answer: InferResponse) -> None:
        """Keep what is common to messages like this one, without an id, which was read as that answer."""
        if not _IS_TAKEN or answer.parameters or not answer.final:
            return
        found = find_tensors(body, _KIND, RAW_OUTPUTS, answer.outputs)
        if found is not None:
            self._known.keep(body, _Template(*found))
