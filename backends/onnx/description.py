"""What an ONNX model takes and gives, for a check of its configuration without ONNX Runtime.

It is what the session would report, as far as the file says it: shapes that the runtime infers stay open here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tensorgate.backends.execution.spec_inference import max_batch_size
from tensorgate.backends.onnx.file import GraphTensor, TooLong, model_file, read_graph
from tensorgate.gateway.contract.backend import Described, ModelSource
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec

_ELEMENTS: Final[Mapping[int, str]] = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
    16: "BF16",
}
"""TensorProto.DataType of those that a tensor of ours can have."""


PLATFORM: Final = "onnxruntime_onnx"


def describe(source: ModelSource) -> Described | None:
    """None where reading the file would take too long. Raises ValueError as loading would."""
    options: Any = source.options
    try:
        graph = read_graph(model_file(source.path, options.file))
    except TooLong:
        return None
    inputs, outputs = _specs(graph.inputs), _specs(graph.outputs)
    batch = max_batch_size(source, inputs, outputs)
    declared = {spec.name for spec in source.inputs}
    inputs += tuple(replace(spec, optional=True) for spec in _specs(graph.defaults) if spec.name in declared)
    if options.scalars_as_vectors:
        vectors = ScalarVectors(batch)
        inputs = inputs if source.inputs else vectors.shown(inputs)
        outputs = outputs if source.outputs else vectors.shown(outputs)
    return Described(inputs, outputs, batch, platform=PLATFORM)


def _specs(tensors: Iterable[GraphTensor]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tensor.name, _dtype(tensor), tensor.shape) for tensor in tensors)


def _dtype(tensor: GraphTensor) -> np.dtype[Any]:
    if tensor.element not in _ELEMENTS:
        kind = f"of ONNX's type {tensor.element}" if tensor.element else "no tensor"
        raise ValueError(f"'{tensor.name}' is {kind}, which no dialect can carry")
    return DTYPES[_ELEMENTS[tensor.element]]


class ScalarVectors:
    """Scalars, one per row where the model batches, that callers see as vectors of one: [] as [1], [-1] as [-1, 1].

    Source: Triton's completion of ONNX models.
    """

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
