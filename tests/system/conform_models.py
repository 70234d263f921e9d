"""Known models of conformance cases, as classes: what the models that `conform --repository` writes compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorgate import ModelContext, ModelRequest


class Identity:
    """`x` as `y`."""

    def __init__(self, context: ModelContext) -> None:
        self.name = context.name

    def infer(self, inputs: Mapping[str, Any], request: ModelRequest) -> Mapping[str, Any]:
        return {"y": inputs["x"]}


class AddSub(Identity):
    """a + b and a - b."""

    def infer(self, inputs: Mapping[str, Any], request: ModelRequest) -> Mapping[str, Any]:
        return {"sum": inputs["a"] + inputs["b"], "difference": inputs["a"] - inputs["b"]}
