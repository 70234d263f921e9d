"""Models of `benchmarks.mix` that do nearly nothing: what is sent comes back, or its size."""

from __future__ import annotations

from typing import Any

import numpy as np


class Echo:
    """y = x, of any type."""

    def __init__(self, context: Any) -> None:
        pass

    def infer(self, inputs: Any, request: Any) -> Any:
        return {"y": inputs["x"]}


class Sum:
    """value = the sum of each row."""

    def __init__(self, context: Any) -> None:
        pass

    def infer(self, inputs: Any, request: Any) -> Any:
        return {"value": inputs["x"].sum(1, dtype=np.float32)}
