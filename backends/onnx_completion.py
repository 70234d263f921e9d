"""What an ONNX file says of a model that its configuration leaves open: whether it batches, and what callers see of it.

A model can batch if the first dimension of every input and output varies. A tensor of unknown rank shows nothing: it
does not forbid a batch size that is asked for, and does not suggest one. Source: Triton's completion of ONNX models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.canonical import Tensors, TensorSpec
from gateway.ports import ModelSource

DEFAULT_MAX_BATCH_SIZE: Final = 4


def max_batch_size(source: ModelSource, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """The wanted size, or what "auto" is for this file. Raises ValueError where the file cannot have the wanted one."""
    specs = (*inputs, *outputs)
    if source.max_batch_size == "auto":
        return DEFAULT_MAX_BATCH_SIZE if all(spec.shape and spec.shape[0] < 0 for spec in specs) else 0
    fixed = [spec for spec in specs if spec.shape is not None and spec.shape[:1] != (-1,)]
    if source.max_batch_size and fixed:
        if not (source.inputs and source.outputs):
            raise ValueError(
                f"autofill failed for model '{source.name}': model does not support batching while non-zero "
                f"max_batch_size is specified (tensor '{fixed[0].name}' has shape {_text(fixed[0])} in its file)"
            )
        raise ValueError(
            f"model '{source.name}', tensor '{fixed[0].name}': for the model to support batching the shape should have "
            f"at least 1 dimension and the first dimension must be -1; but shape expected by the model is "
            f"{_text(fixed[0])}"
        )
    return source.max_batch_size


def _text(spec: TensorSpec) -> str:
    return str(list(spec.shape or ())).replace(" ", "")


class Vectors:
    """Scalars, one per row where the model batches, that callers see as vectors of one: [] as [1], [-1] as [-1, 1]."""

    def __init__(self, max_batch_size: int) -> None:
        self._rank = 1 if max_batch_size else 0
        self._names: set[str] = set()

    def shown(self, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """The specifications as callers see them; those that differ are remembered."""
        self._names |= {spec.name for spec in specs if self._is_scalar(spec)}
        return tuple(replace(spec, shape=(*(spec.shape or ()), 1)) if self._is_scalar(spec) else spec for spec in specs)

    def __bool__(self) -> bool:
        return bool(self._names)

    def to_model(self, tensors: Tensors) -> Tensors:
        """The callers' tensors in the model's shapes."""
        return {
            name: array.reshape(array.shape[: self._rank]) if name in self._names else array
            for name, array in tensors.items()
        }

    def from_model(self, tensors: Tensors) -> Tensors:
        """The model's tensors in the callers' shapes."""
        return {
            name: array.reshape((*array.shape, 1)) if name in self._names else array for name, array in tensors.items()
        }

    def _is_scalar(self, spec: TensorSpec) -> bool:
        return spec.shape is not None and len(spec.shape) == self._rank
