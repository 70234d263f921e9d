"""The models of MLServer's own tests, as classes of the gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class Sum:
    """INT32 `input-0` [b, n] -> INT64 `total` [b, 1]."""

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
        return {"total": inputs["input-0"].sum(axis=1, keepdims=True, dtype=np.int64)}


class Text(Sum):
    """BYTES `prompt` -> `output`, the same."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
        return {"output": inputs["prompt"]}


class Words:
    """BYTES `prompt` -> `output`, one answer a word, each but the first with the space before it."""

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Iterator[Mapping[str, Any]]:
        text = inputs["prompt"].reshape(-1)[0]
        words = (text.decode() if isinstance(text, bytes) else text).split(" ")
        for index, word in enumerate(words):
            yield {"output": np.array([(" " if index else "") + word], dtype=object)}
