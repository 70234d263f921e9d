"""grps.protos.v1.GenericTensor, from JSON or protobuf <-> arrays.

A tensor names its dtype and puts its elements, row by row, into the flat field of that dtype. Nothing in the protocol
keeps the two, or the shape, in agreement; the old servers' converters check it, and so does `array_of`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from tensorgate.gateway.contract.errors import EncodingFailed, ErrorReason, InvalidArgument
from tensorgate.gateway.contract.tensor import DATATYPES, DTYPES

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class DataType:
    """A dtype of the protocol: its number and name, the flat field of its elements, the datatype it stands for."""

    number: int
    name: str
    field: str
    datatype: str


_ROWS: Final = (
    DataType(1, "DT_UINT8", "flat_uint8", "UINT8"),
    DataType(2, "DT_INT8", "flat_int8", "INT8"),
    DataType(3, "DT_INT16", "flat_int16", "INT16"),
    DataType(4, "DT_INT32", "flat_int32", "INT32"),
    DataType(5, "DT_INT64", "flat_int64", "INT64"),
    DataType(6, "DT_FLOAT16", "flat_float16", "FP16"),
    DataType(7, "DT_FLOAT32", "flat_float32", "FP32"),
    DataType(8, "DT_FLOAT64", "flat_float64", "FP64"),
    DataType(9, "DT_STRING", "flat_string", "BYTES"),
)
"""Source: grps.protos.v1, DataType and GenericTensor. Half floats travel as 32-bit floats."""

BY_NUMBER: Final[Mapping[int, DataType]] = {row.number: row for row in _ROWS}
BY_DTYPE: Final[Mapping[np.dtype[Any], DataType]] = {DTYPES[row.datatype]: row for row in _ROWS}
BY_FIELD: Final[Mapping[str, DataType]] = {row.field: row for row in _ROWS}
NUMBERS: Final[Mapping[str, int]] = {"DT_INVALID": 0, **{row.name: row.number for row in _ROWS}}

_NAMES: Final = {row.datatype: row.name for row in _ROWS}
MAX_DIMENSIONS: Final = 64  # NumPy's


def dtype_name(datatype: str) -> str:
    """What the protocol calls a datatype; its own name where the protocol has none."""
    return _NAMES.get(datatype, datatype)


@dataclass(frozen=True, slots=True, eq=False)
class GrpsTensor:
    """One tensor as it came. `data` has the flat fields that were sent, each a flat array of its field's datatype."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    data: Mapping[str, Array]

    @property
    def label(self) -> str:
        return f"Tensor {self.name}" if self.name else "Tensor"


def array_of(tensor: GrpsTensor) -> Array:
    """The array that a tensor stands for, on the host: dtype as sent, no shape is a scalar.

    Raises InvalidArgument if the dtype is none of the table's, its field has no elements, or the shape wants another
    number of them.
    """
    row = BY_NUMBER.get(tensor.dtype)
    if row is None:
        raise InvalidArgument(f"{tensor.label} dtype not supported: {tensor.dtype or 'DT_INVALID'}.", ErrorReason.DTYPE)
    data = tensor.data.get(row.field)
    if data is None or not data.size:
        raise InvalidArgument(f"{tensor.label} {row.field} data is empty.")
    want = math.prod(tensor.shape)
    if want != data.size:
        shape = list(tensor.shape)
        sizes = f"expected size: {want}, actual size: {data.size}"
        raise InvalidArgument(f"{tensor.label} size not match, shape: {shape}, {sizes}.", ErrorReason.SHAPE)
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise InvalidArgument(f"{tensor.label} has more than {MAX_DIMENSIONS} dimensions.", ErrorReason.SHAPE)
    return data.reshape(tensor.shape)


def row_of(array: Array) -> DataType | None:
    """How the protocol carries this array, None if it cannot: BOOL, BF16 and the wider unsigned integers."""
    return BY_DTYPE.get(array.dtype)


def output_row(name: str, array: Array) -> DataType:
    """How the protocol carries an output. Raises EncodingFailed."""
    row = row_of(array)
    if row is None:
        raise EncodingFailed(f"Output {name} is {DATATYPES[array.dtype]}, for which grps has no dtype.")
    return row
