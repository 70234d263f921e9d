"""Turn scores into probabilities: exp(x - max) / sum of these, along one axis.

Floating tensors; shape and dtype kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from backends.ops.base import one, renamed
from gateway.canonical import Tensors, TensorSpec
from gateway.ports import OpKind, Options


class SoftmaxOptions(Options):
    op: Literal["softmax"]
    input: str = Field(description="Name of the tensor.")
    output: str | None = Field(None, description="Its name afterwards; the same if not given.")
    axis: int = Field(-1, description="The axis that sums to 1.")


class Softmax:
    """FP16, FP32 or FP64 [..., n, ...] -> the same, on the same device. NaN and rows of only -inf give NaN."""

    def __init__(self, options: SoftmaxOptions) -> None:
        self._input = options.input
        self._output = options.output or options.input
        self._axis = options.axis

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("softmax", self._input, specs)
        if spec.dtype.kind != "f":
            raise ValueError(f"softmax: '{self._input}' is {spec.datatype}; cast it to FP32 first")
        if spec.shape is not None and not -len(spec.shape) <= self._axis < len(spec.shape):
            raise ValueError(f"softmax: '{self._input}' of shape {list(spec.shape)} has no axis {self._axis}")
        return renamed("softmax", specs, self._input, replace(spec, name=self._output))

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        scores = tensors[self._input]
        weights = xp.exp(scores - scores.max(axis=self._axis, keepdims=True, initial=-xp.inf))
        weights /= weights.sum(axis=self._axis, keepdims=True)
        rest = {name: array for name, array in tensors.items() if name != self._input}
        return {**rest, self._output: weights}


KIND = OpKind(SoftmaxOptions, Softmax)
