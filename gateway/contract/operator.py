"""A step before or after a model. For whoever writes an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class Op(Protocol):
    """A step before or after the model, written once against `xp` (numpy or cupy).

    One whose results along an axis depend on each other may have `along(specs)`, which names (tensor, axis from the
    front), None if that is not known: where there is a batch dimension, it must not be that.
    """

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        """The specifications after this step, given those before it. Raises ValueError if it cannot work on them."""
        ...

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        """The tensors after this step; those that it does not name pass through."""
        ...


LoadOp: TypeAlias = Callable[[str, Path, str], "OpKind"]
"""(name, file, class in it) -> an operator of the user's own. Raises ValueError."""

OpFactory: TypeAlias = Callable[[Any], Op]


@dataclass(frozen=True, slots=True)
class OpKind:
    """A line of the OPS table, resolved: the YAML options of the op and how to make one."""

    options: type[Options]
    make: OpFactory
