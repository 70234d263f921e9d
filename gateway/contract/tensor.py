"""Tensors and what a model says of them: datatypes, specifications, signatures, and whether inputs fit.

An array is the only bearer of its dtype and shape: NumPy on the host, CuPy on the device. BYTES tensors are object
arrays of `bytes` and never leave the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from tensorgate.gateway.contract.errors import (
    BatchMismatch,
    BatchMissing,
    BatchTooLarge,
    DtypeMismatch,
    InputCount,
    ModelFailed,
    ShapeMismatch,
    UnknownInput,
)

Array: TypeAlias = Any
"""A NumPy array on the host, a CuPy array on the device. The two share an interface but no base class."""

Tensors: TypeAlias = Mapping[str, Array]
"""Tensors by name; rows on axis 0 where the model batches."""

ParameterValue: TypeAlias = bool | int | float | str


class _Nothing(dict[str, Any]):
    """An empty mapping that stays empty, hashable so that it may be a dataclass default."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("NOTHING stays empty")


NOTHING: Mapping[str, Any] = _Nothing()

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "UINT8": np.dtype(np.uint8),
        "UINT16": np.dtype(np.uint16),
        "UINT32": np.dtype(np.uint32),
        "UINT64": np.dtype(np.uint64),
        "INT8": np.dtype(np.int8),
        "INT16": np.dtype(np.int16),
        "INT32": np.dtype(np.int32),
        "INT64": np.dtype(np.int64),
        "FP16": np.dtype(np.float16),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "FP32": np.dtype(np.float32),
        "FP64": np.dtype(np.float64),
        "BYTES": np.dtype(np.object_),
    }
)
"""Datatype (the Open Inference name, also used in YAML) -> dtype of the array that carries it."""

BYTES = DTYPES["BYTES"]

_ELEMENT_BYTES: Final = 64
"""What Python keeps around an element of BYTES, about."""

_MAX_COUNTED: Final = 10_000
"""Elements of BYTES: to look at each takes time that all other requests wait for."""


class _Datatypes(dict[np.dtype[Any], str]):
    def __missing__(self, dtype: np.dtype[Any]) -> str:
        return "<invalid>"


DATATYPES: Final[Mapping[np.dtype[Any], str]] = _Datatypes({dtype: name for name, dtype in DTYPES.items()})
"""dtype -> datatype, `<invalid>` for a dtype that no dialect can carry."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a model declares of one input or output."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None
    """The whole shape, batch dimension included, -1 where a dimension varies; None: any rank."""
    optional: bool = False
    """Whether requests may leave the input out."""
    labels: tuple[str, ...] = ()
    """The classes along the last axis of an output, for classification."""

    @property
    def datatype(self) -> str:
        return DATATYPES[self.dtype]

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape fits: same rank, and equal wherever the specification is not -1."""
        want = self.shape
        if want is None or want == shape:
            return True
        return len(shape) == len(want) and all(w in (-1, g) for g, w in zip(shape, want, strict=True))


def of_any_rows(spec: TensorSpec, max_batch_size: int) -> TensorSpec:
    """An output's specification, whose axis 0 varies if there is a batch dimension: the batch decides its rows."""
    return replace(spec, shape=(-1, *spec.shape[1:])) if max_batch_size and spec.shape else spec


def hold_to(spec: TensorSpec, shape: tuple[int, ...], model: str) -> None:
    """Raises ModelFailed where an output of a model has another shape than is declared."""
    if shape != spec.shape and not spec.accepts(shape):
        raise ModelFailed(
            f"output '{spec.name}' of model '{model}' has shape {list(shape)}, but {list(spec.shape or ())} is declared"
        )


def check_inputs(model: str, inputs: Tensors, specs: Mapping[str, TensorSpec], max_batch_size: int) -> None:
    """Refuse inputs that do not fit the specifications: their number, their names, the batch, then each one's dtype
    and shape.

    Dialects call it with what a model declares, the engine with what its computation needs; `max_batch_size` 0 leaves
    the batch dimension alone. Raises InputCount, UnknownInput, BatchMissing, BatchMismatch, BatchTooLarge,
    DtypeMismatch, ShapeMismatch. Source: Triton's order of checks.
    """
    if inputs.keys() != specs.keys():
        _check_names(model, inputs, specs)
    if max_batch_size:
        _check_batch(model, inputs, max_batch_size)
    for name in reversed([*inputs]):  # the last one first, as Triton looks at them
        spec, array = specs[name], inputs[name]
        if array.dtype != spec.dtype:
            raise DtypeMismatch(name, DATATYPES[array.dtype], spec.datatype, model)
        if spec.shape is not None and not spec.accepts(array.shape):
            raise ShapeMismatch(name, array.shape, spec.shape, model, batched=max_batch_size > 0)


def _check_names(model: str, inputs: Tensors, specs: Mapping[str, TensorSpec]) -> None:
    missing = tuple(spec.name for spec in specs.values() if spec.name not in inputs and not spec.optional)
    min_count = sum(not spec.optional for spec in specs.values())
    if not min_count <= len(inputs) <= len(specs):
        raise InputCount(model, tuple(inputs), missing, min_count, len(specs))
    for name in reversed([*inputs]):
        if name not in specs:
            raise UnknownInput(name, model)
    if missing:
        raise InputCount(model, tuple(inputs), missing, min_count, len(specs))


def bytes_of(tensors: Tensors) -> int | None:
    """What tensors take on the host; None if that takes long to find out."""
    total = 0
    for array in tensors.values():
        if array.dtype != BYTES:
            total += array.nbytes
        elif array.size > _MAX_COUNTED:
            return None
        else:
            total += sum([len(element) for element in array.reshape(-1)]) + _ELEMENT_BYTES * array.size
    return total


def common_rows(inputs: Tensors) -> int | None:
    """Dimension 0, if every input has one and it is the same. None otherwise, and without inputs: such a request runs
    alone.
    """
    if len(inputs) == 1:  # the usual case, in half the time
        (array,) = inputs.values()
        return array.shape[0] if array.shape else None
    sizes = {array.shape[:1] for array in inputs.values()}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    return size[0] if size else None


def _check_batch(model: str, inputs: Tensors, max_batch_size: int) -> None:
    rows = None
    for name in reversed([*inputs]):
        array = inputs[name]
        if not array.shape:
            raise BatchMissing(name, model)
        if rows is None:
            rows = array.shape[0]
        if array.shape[0] != rows:
            raise BatchMismatch(name, model)
    if rows is not None and rows > max_batch_size:
        raise BatchTooLarge(rows, max_batch_size, model)


DEFAULT_SIGNATURE: Final = "serving_default"
"""What a caller gets who names no signature."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A named view of a model: which of its tensors a caller sees and under which names. Source: TensorFlow's
    SignatureDef.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    """The caller's name -> the model's own tensor. So are `outputs`."""
    outputs: Mapping[str, TensorSpec]
    method: str = "tensorflow/serving/predict"
    """A SignatureDef's method_name; "tensorflow/serving/classify" for example."""
    features: Mapping[str, TensorSpec] | None = None
    """Where callers send tf.Examples, feature -> input of the model; `inputs` is a tensor of serialized Examples then.
    None: the model itself reads what `inputs` names."""
    defaults: Tensors = NOTHING
    """Inputs, by the caller's names, that a request may leave out. With `features`, these that an Example may lack, as
    flat values of one row."""
    definition: bytes = b""
    """The serialized SignatureDef, of a model that brought one."""
