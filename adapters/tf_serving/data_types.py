"""tensorflow.DataType: the number and name of each dtype, and the field of TensorProto that has its elements.

Source: TensorFlow's tensor.proto and types.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from tensorgate.adapters.protobuf.messages import enum, message
from tensorgate.gateway.contract.tensor import DTYPES

DATA_TYPES: Final = enum("tensorflow.DataType")
_NO_NUMBERS: Final = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_MESSAGE)
_FIELDS: Final = message("tensorflow.TensorProto").DESCRIPTOR.fields_by_name


class WireType(NamedTuple):
    """A dtype that arrays can have: its name, DT_FLOAT, its number, and the typed field, by number and name."""

    name: str
    number: int
    dtype: np.dtype[Any]
    field: int
    field_name: str


def _wire_type(name: str, datatype: str, field: str) -> WireType:
    return WireType(name, DATA_TYPES.values_by_name[name].number, DTYPES[datatype], _FIELDS[field].number, field)


_ALL: Final = (
    _wire_type("DT_FLOAT", "FP32", "float_val"),
    _wire_type("DT_DOUBLE", "FP64", "double_val"),
    _wire_type("DT_INT32", "INT32", "int_val"),
    _wire_type("DT_UINT8", "UINT8", "int_val"),
    _wire_type("DT_INT16", "INT16", "int_val"),
    _wire_type("DT_INT8", "INT8", "int_val"),
    _wire_type("DT_UINT16", "UINT16", "int_val"),
    _wire_type("DT_STRING", "BYTES", "string_val"),
    _wire_type("DT_INT64", "INT64", "int64_val"),
    _wire_type("DT_BOOL", "BOOL", "bool_val"),
    _wire_type("DT_HALF", "FP16", "half_val"),
    _wire_type("DT_BFLOAT16", "BF16", "half_val"),
    _wire_type("DT_UINT32", "UINT32", "uint32_val"),
    _wire_type("DT_UINT64", "UINT64", "uint64_val"),
)
BY_NUMBER: Final[Mapping[int, WireType]] = {each.number: each for each in _ALL}
BY_DTYPE: Final[Mapping[np.dtype[Any], WireType]] = {each.dtype: each for each in _ALL}

FIELD_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    **{each.field_name: each.dtype for each in reversed(_ALL)},
    "half_val": DTYPES["INT32"],
}
"""A typed field -> the dtype of its values, which narrower ones share."""
CONTENT: Final = _FIELDS["tensor_content"].number
STRINGS: Final = _FIELDS["string_val"].number
WIDTHS: Final[Mapping[int, int]] = {
    field.number: {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}.get(field.type, 0)
    for field in _FIELDS.values()
    if field.name.endswith("_val") and field.cpp_type not in _NO_NUMBERS
}
"""A field of numbers -> bytes of each, 0 where they are varints."""

FOREIGN_BYTES: Final[Mapping[int, int]] = {
    DATA_TYPES.values_by_name[name].number: size
    for name, size in (
        ("DT_COMPLEX64", 8),
        ("DT_COMPLEX128", 16),
        ("DT_QINT8", 1),
        ("DT_QUINT8", 1),
        ("DT_QINT16", 2),
        ("DT_QUINT16", 2),
        ("DT_QINT32", 4),
        ("DT_FLOAT8_E5M2", 1),
        ("DT_FLOAT8_E4M3FN", 1),
        ("DT_INT4", 1),
        ("DT_UINT4", 1),
        ("DT_RESOURCE", 0),
        ("DT_VARIANT", 0),
    )
}
"""Dtypes that a tensor may have and no model here takes -> bytes of an element, 0 where they differ."""


def type_name(number: int) -> str:
    """A dtype's name in error texts: 1 -> float."""
    return str(DATA_TYPES.values_by_number[number].name).removeprefix("DT_").lower()


TYPE_NAMES: Final = {each.dtype: type_name(each.number) for each in _ALL}
"""Dtype -> its name in error texts."""
