"""A decoupled model: one request, many answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from tensorgate import ModelContext, ModelRequest


class Countdown:
    """INT32 `start` [1] -> INT32 `count` [1], answered once for each number from `start` down to 0.

    `parameters: {pause_ms: …}` of the YAML file is the time between two answers.
    """

    def __init__(self, context: ModelContext) -> None:
        """`context.xp` is NumPy, or CuPy if the model's device is a GPU: written against it, a class runs on both."""
        self.xp = context.xp
        self.pause_s = context.parameters.get("pause_ms", 0) / 1000

    def infer(self, inputs: Mapping[str, Any], request: ModelRequest) -> Iterator[Mapping[str, Any]]:
        """A generator makes the model decoupled: each `yield` is sent at once. A start below 0 gives no answer.

        When the caller leaves, the generator is closed at its `yield`, and counts no further.
        """
        start = int(inputs["start"][0])
        for number in range(start, -1, -1):
            if number < start:
                time.sleep(self.pause_s)
            yield {"count": self.xp.asarray([number], dtype=self.xp.int32)}
