"""Datatypes as a model.py names them: Triton's numbers, its TYPE_ names, and NumPy's types.

Source: Triton's model configuration (DataType) and the documentation of its Python backend.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, Array

_IN_ORDER: Final = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BYTES BF16"
"""Triton's numbers are 1 for the first, and so on."""
_NUMBERS: Final[Mapping[str, int]] = {name: number for number, name in enumerate(_IN_ORDER.split(), 1)}
_LENGTH: Final = struct.Struct("<I")


TRITON_TO_NUMPY_TYPE: Final = {number: DTYPES[name].type for name, number in _NUMBERS.items()}
NUMPY_TO_TRITON_TYPE: Final = {kind: number for number, kind in TRITON_TO_NUMPY_TYPE.items()}


def config_name(datatype: str) -> str:
    """FP32 -> TYPE_FP32. What the protocol calls BYTES is TYPE_STRING in a configuration."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def dtype_of_config(name: str) -> np.dtype[Any]:
    """TYPE_FP32 -> its dtype. Raises ValueError for what is no datatype."""
    datatype = "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")
    if datatype not in DTYPES or (name != "TYPE_STRING" and datatype == "BYTES"):
        raise ValueError(f"'{name}' is no data_type of a model configuration")
    return DTYPES[datatype]


TRITON_STRING_TO_NUMPY: Final = {config_name(name): dtype.type for name, dtype in DTYPES.items()}


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """ "TYPE_FP32" -> np.float32; TYPE_BF16 is the type of the package ml_dtypes."""
    return dtype_of_config(triton_type_string).type


def numpy_to_triton_type(data_type: Any) -> int:
    """np.float32, or a dtype -> 11. Any kind of text is BYTES."""
    dtype = np.dtype(data_type)
    name = "BYTES" if dtype.kind in "OSU" else DATATYPES[dtype]
    if name not in _NUMBERS:
        raise ValueError(f"no tensor can be of dtype {dtype}")
    return _NUMBERS[name]


def triton_to_numpy_type(data_type: int) -> Any:
    """11 -> np.float32"""
    kind = TRITON_TO_NUMPY_TYPE.get(int(data_type))
    if kind is None:
        raise ValueError(f"{data_type} is no datatype")
    return kind


def serialize_byte_tensor(input_tensor: Array) -> Array:
    """Elements of bytes or text, in C order, each behind its length -> one object that is bytes, in an array without
    dimensions; of an empty tensor, an empty array.
    """
    if input_tensor.size == 0:
        return np.empty([0], np.object_)
    parts: list[bytes] = []
    for element in as_bytes(input_tensor).ravel().tolist():
        parts += (_LENGTH.pack(len(element)), element)
    whole = np.empty((), np.object_)
    whole[()] = b"".join(parts)
    return whole


def deserialize_bytes_tensor(encoded_tensor: Any) -> Array:
    """The reverse: bytes -> array [n] of bytes. Raises ValueError if they end within an element."""
    data = bytes(encoded_tensor)
    elements: list[bytes] = []
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ValueError("the data ends within a length")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + size > len(data):
            raise ValueError("the data ends within an element")
        elements.append(data[at : at + size])
        at += size
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def as_bytes(array: Array) -> Array:
    """An array of objects, bytes or text -> an object array of bytes. Text is UTF-8; anything else is written as str()
    writes it, as Triton does.
    """
    flat = np.empty(array.size, np.object_)
    for index, element in enumerate(array.ravel().tolist()):
        flat[index] = element if isinstance(element, bytes) else str(element).encode()
    return flat.reshape(array.shape)


def is_text(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype become BYTES."""
    return dtype == BYTES or dtype.kind in "SU"
