"""Memory of a GPU that another process shares by a CUDA IPC handle, as arrays on that device.

The process that made the handle keeps the memory alive; it is closed here when the last array on it is gone. Source:
CUDA runtime, cudaIpcOpenMemHandle; Triton's CUDA shared memory extension.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from typing import Any, Final

import numpy as np

from tensorgate.backends.execution.device import Selected, cuda_devices
from tensorgate.gateway.contract.tensor import BYTES, Array

_HANDLE_BYTES: Final = 64


def opener() -> Any:
    """`open_handle`, or None where there is no GPU."""
    return open_handle if cuda_devices() else None


def open_handle(handle: bytes, device: int, byte_size: int) -> CudaRegion:
    """The memory behind a handle. Raises ValueError if the handle is none, or is of another machine or device."""
    if len(handle) != _HANDLE_BYTES or not 0 <= device < cuda_devices() or byte_size <= 0:
        raise ValueError(f"a handle of {len(handle)} bytes, {byte_size} bytes of memory on device {device}")
    cupy = importlib.import_module("cupy")
    try:
        return CudaRegion(cupy, handle, device, byte_size)
    except Exception as error:  # CuPy has an exception class of its own per library
        raise ValueError(str(error)) from None


class CudaRegion:
    """An opened handle: the whole of it, as bytes on its device."""

    def __init__(self, cupy: Any, handle: bytes, device: int, byte_size: int) -> None:
        self._cupy = cupy
        self._index = device
        with Selected(cupy.cuda.runtime, device):
            owner = _Opened(cupy.cuda.runtime, handle)
            if byte_size > _bytes_from(owner.pointer):
                raise ValueError("the region is larger than the allocation behind its handle")
            memory = cupy.cuda.UnownedMemory(owner.pointer, byte_size, owner, device)
            self._bytes = cupy.ndarray(byte_size, np.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def view(self, offset: int, byte_size: int, *, writable: bool) -> CudaView:
        return CudaView(self._cupy, self._index, self._bytes[offset : offset + byte_size])


class _Opened:
    """A handle's pointer; the handle is closed with the last array that holds this."""

    def __init__(self, runtime: Any, handle: bytes) -> None:
        self._runtime = runtime
        self.pointer = runtime.ipcOpenMemHandle(handle)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the driver may be gone by now
            self._runtime.ipcCloseMemHandle(self.pointer)


def _bytes_from(pointer: int) -> int:
    """How much memory an allocation has from this pointer on: beyond it, a kernel would end the whole process's use of
    the GPU. CuPy does not offer the driver's call.
    """
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    failed = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
    if failed:
        raise ValueError(f"the driver does not know the allocation: CUDA error {failed}")
    return base.value + size.value - pointer


class CudaView:
    """A part of a region."""

    def __init__(self, cupy: Any, index: int, data: Array) -> None:
        self._cupy = cupy
        self._index = index
        self._data = data
        self.nbytes: int = data.nbytes

    def tobytes(self) -> bytes:
        """A copy on the host."""
        with Selected(self._cupy.cuda.runtime, self._index):
            data: bytes = self._cupy.asnumpy(self._data).tobytes()
            return data

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], *, copy: bool = False) -> Array:
        """As an array of exactly these bytes: a view on the device where it can be one; BYTES are on the host."""
        if dtype == BYTES:
            return np.frombuffer(self.tobytes(), dtype).reshape(shape)
        with Selected(self._cupy.cuda.runtime, self._index):
            if dtype.kind == "b":
                return self._finished(self._data != 0).reshape(shape)
            in_place = not copy and self._data.data.ptr % dtype.itemsize == 0
            data = self._data if in_place else self._finished(self._data.copy())
            return data.view(dtype).reshape(shape)

    def write(self, array: Array) -> None:
        """Fill the first bytes with an array, of this device, of another one or of the host. Finished when it
        returns.
        """
        with Selected(self._cupy.cuda.runtime, self._index):
            if isinstance(array, np.ndarray):  # CuPy may not know its dtype
                array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            flat = self._cupy.ascontiguousarray(self._cupy.asarray(array)).reshape(-1).view(np.uint8)
            self._data[: flat.nbytes] = flat
            self._finished(flat)

    def _finished(self, array: Array) -> Array:
        """Once the device has it: who uses it next may be on another stream, or another process."""
        self._cupy.cuda.get_current_stream().synchronize()
        return array
