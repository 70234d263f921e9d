"""A step before or after a model. For whoever writes an operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class Op(ABC):
    """A step before or after the model, written once for NumPy and CuPy."""

    tensor: str = ""
    """The one tensor that it gives in place of the one that it takes, mostly itself; "" for other operators."""
    ragged: Literal["", "takes", "makes"] = ""
    """Whether the images of a batch in `tensor` may differ in size: not at all, before this step, or after it."""
    steady: bool = True
    """Whether the shapes of its tensors tell how long it takes."""

    from_inputs: tuple[str, ...] = ()
    """Tensors that a step after the model works on as the model takes them, where the model gives none of that name."""

    @abstractmethod
    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        """The specifications after this step, given those before it. Raises ValueError if it cannot work on them."""

    @abstractmethod
    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        """The tensors after this step; those that it does not name pass through. `xp` is the module of their arrays,
        numpy or cupy. Raises InvalidArgument for values that it cannot work on.
        """

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        """The tensor, and its axis from the front, along which results depend on each other; None if there is none, or
        it is not known. It must not be the batch dimension, whose rows may be different callers'.
        """
        return None


@dataclass(frozen=True, slots=True)
class OpKind:
    """A line of the OPS table, resolved."""

    options: type[Options]
    """What the YAML may say of a step, `op` included."""
    make: Callable[[Any], Op]
    """An object of `options` -> the operator. Raises ValueError."""


LoadOp: TypeAlias = Callable[[str, Path, str], OpKind]
"""(name, file, class in it) -> an operator of the user's own. Raises ValueError."""
