"""The Python models of `benchmarks.walls`, FP32 x [rows, columns] -> y, the same."""

from __future__ import annotations

import time
from typing import Any


class Copy:
    """Answers at once."""

    def __init__(self, context: Any) -> None:
        self._work_s = float(context.parameters.get("work_s", 0.0))

    def infer(self, inputs: Any, request: Any) -> Any:
        return {"y": inputs["x"]}


class Busy(Copy):
    """Has the interpreter for itself: `parameters: {work_s: 0.05}` is processor time of its thread."""

    def infer(self, inputs: Any, request: Any) -> Any:
        ends = time.thread_time() + self._work_s
        while time.thread_time() < ends:
            sum(range(100))
        return {"y": inputs["x"]}
