"""Keep some tensors and drop the others, which then never leave the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from tensorgate.backends.ops.checks import given, one
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class SelectOptions(Options):
    """Some of the tensors; the others are dropped.

    Example: {op: select, keep: [boxes, scores]}
    """

    op: Literal["select"]
    keep: tuple[str, ...] = Field(min_length=1, description="Names of the tensors that stay, in the order wanted.")


class Select(Op):
    """Any tensors -> those named, in this order."""

    def __init__(self, options: SelectOptions) -> None:
        self._keep = tuple(dict.fromkeys(options.keep))

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        return {name: one("select", name, specs) for name in self._keep}

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        return {name: given("select", name, tensors) for name in self._keep}


KIND = OpKind(SelectOptions, Select)
