"""Scalars of an ONNX model as the vectors that Triton's callers know. Source: Triton's completion of ONNX models."""

from __future__ import annotations

from dataclasses import replace

from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class ScalarVectors:
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
