"""Give tensors other names; what they hold stays where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import one
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class RenameOptions(Options):
    """Tensors under other names, two that change places included.

    Example: {op: rename, names: {"output:0": scores}}
    """

    op: Literal["rename"]
    names: dict[str, str] = Field(min_length=1, description="Name before -> name afterwards.")

    @model_validator(mode="after")
    def _names_differ(self) -> RenameOptions:
        if len({*self.names.values()}) < len(self.names):
            raise ValueError("two tensors would have the same name")
        return self


class Rename(Op):
    """Any tensors -> the same, in the same order."""

    def __init__(self, options: RenameOptions) -> None:
        self._names = options.names

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        for name in self._names:
            one("rename", name, specs)
        for name in self._names.values():
            if name in specs and name not in self._names:
                raise ValueError(f"rename: there is a tensor '{name}' already")
        after = {name: self._names.get(name, name) for name in specs}
        return {after[name]: replace(spec, name=after[name]) for name, spec in specs.items()}

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        return {self._names.get(name, name): array for name, array in tensors.items()}


KIND = OpKind(RenameOptions, Rename)
