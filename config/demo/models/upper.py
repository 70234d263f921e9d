"""A model of text: what you send comes back in capitals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorgate import InvalidArgument, ModelContext, ModelRequest


class Upper:
    """BYTES `text` of any shape -> BYTES `shout` of the same shape.

    Made once, when the model is loaded. BYTES tensors are object arrays of `bytes`; they are on the host even where
    the model's other tensors are on a GPU.
    """

    def __init__(self, context: ModelContext) -> None:
        """`context` has the model's name, version, path, device, `xp` and the `parameters` of the YAML file."""
        self.model = context.name

    def infer(self, inputs: Mapping[str, Any], request: ModelRequest) -> Mapping[str, Any]:
        """Named arrays in, named arrays out. Whatever is raised here, the caller reads its last line; raise
        InvalidArgument where the fault is the caller's.
        """
        text = inputs["text"]
        shout = np.empty_like(text)
        for place, word in np.ndenumerate(text):
            shout[place] = self._capitals(word)
        return {"shout": shout}

    def _capitals(self, word: bytes) -> bytes:
        try:
            return word.decode().upper().encode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"model '{self.model}' takes UTF-8 only") from None
