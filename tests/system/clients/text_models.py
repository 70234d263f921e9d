"""Models of text that are as simple as can be, for clients of OpenAI and its neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class Letters:
    """BYTES `text` [n] -> FP32 `counts` [n, 3]: how many a, b and c each text has."""

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
        counts = [[text.count(letter) for letter in (b"a", b"b", b"c")] for text in inputs["text"].tolist()]
        return {"counts": np.array(counts, np.float32)}


class Overlap:
    """BYTES `query` and `text` [n] -> FP32 `score` [n]: which part of the query's words the text has."""

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
        pairs = zip(inputs["query"].tolist(), inputs["text"].tolist(), strict=True)
        scores = [len({*query.split()} & {*text.split()}) / len({*query.split()}) for query, text in pairs]
        return {"score": np.array(scores, np.float32)}


class Breaks:
    """BYTES `text` [1] -> `told` [1], letter by letter, and then an error."""

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Iterator[Mapping[str, Any]]:
        for letter in inputs["text"][0].decode():
            yield {"told": [letter]}
        raise RuntimeError("the pen broke")
