"""Tensors to and from other frameworks without a copy.

NumPy speaks DLPack, but has no BF16: there the bits travel as UINT16, and the capsule's type code is set to what they
are. Memory of a GPU is CuPy's matter, which is imported only then.

    DLTensor: data pointer (8 bytes), device type and number (4 + 4), dimensions (4), type code (1), bits (1), lanes (2)

Source: DLPack's header, dlpack.h.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.tensor import DTYPES, Array

CPU: Final = (1, 0)
_ON_HOST: Final = (1, 3)  # kDLCPU, kDLCUDAHost
_DEVICE_AT: Final = 8
_CODE_AT: Final = 20
_UINT: Final = 1
_BFLOAT: Final = 4
_BF16: Final = DTYPES["BF16"]

_pointer_of: Final = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Offered:
    """A bare capsule, as consumers want it today."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **wishes: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def to_capsule(array: Array) -> Any:
    """An array -> capsule named "dltensor", over a copy if the array may not be written to. TypeError for BYTES."""
    if array.dtype.kind in "OSU":
        raise TypeError("DLPack does not have support for string tensors.")
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype != _BF16:
        return array.__dlpack__()
    capsule = array.view(np.uint16).__dlpack__()
    _type_code(capsule).value = _BFLOAT
    return capsule


def from_anything(source: Any) -> Array:
    """A capsule, or an object that can make one -> array, on the host (NumPy) or on a GPU (CuPy)."""
    if hasattr(source, "__dlpack__"):
        device = source.__dlpack_device__()
        if int(device[0]) not in _ON_HOST:
            return _on_gpu(source)
        source = source.__dlpack__()
    base = _address(source)
    kind, number = (ctypes.c_int32 * 2).from_address(base + _DEVICE_AT)
    if kind not in _ON_HOST:
        return _on_gpu(_Offered(source, (kind, number)))
    code = _type_code(source)
    if code.value != _BFLOAT:
        return np.from_dlpack(_Offered(source, CPU))
    code.value = _UINT
    return np.from_dlpack(_Offered(source, CPU)).view(_BF16)


def _on_gpu(source: Any) -> Array:
    return importlib.import_module("cupy").from_dlpack(source)


def _address(capsule: Any) -> int:
    """Raises ValueError for what is no unused capsule."""
    address: int = _pointer_of(capsule, b"dltensor")
    return address


def _type_code(capsule: Any) -> ctypes.c_uint8:
    return ctypes.c_uint8.from_address(_address(capsule) + _CODE_AT)
