"""Memory of the host that others allocated and CUDA has been told of: a GPU copies from and to it by itself, as with
pinned memory, and nothing has to be copied into such first. It is what callers share as system shared memory.

Source: CUDA runtime API, cudaHostRegister.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable
from typing import Any, Final

from tensorgate.backends.execution.device import Selected, cuda_devices, in_use
from tensorgate.gateway.contract.errors import text_of
from tensorgate.gateway.contract.tensor import Array

log = logging.getLogger(__name__)

_PORTABLE: Final = 1
"""cudaHostRegisterPortable: for the contexts of all GPUs."""
_MIN_BYTES: Final = 1 << 18
"""Of a tensor: smaller ones are copied together sooner than one by one."""
ranges: Final[dict[int, int]] = {}
"""Where the registered memory begins -> where it ends."""


def registrar() -> Callable[[int, int], Callable[[], None]] | None:
    """`register`, or None where there is no GPU."""
    return register if cuda_devices() else None


def register(address: int, nbytes: int) -> Callable[[], None]:
    """Tell CUDA of memory; what is returned takes that back, and is to be called before the memory goes. Where CUDA
    refuses, or no model is on a GPU yet, the memory stays as it is.
    """
    if not in_use:
        return _nothing
    runtime: Any = importlib.import_module("cupy").cuda.runtime
    device = min(in_use)
    try:
        with Selected(runtime, device):
            runtime.hostRegister(address, nbytes, _PORTABLE)
    except Exception as error:  # CuPy's CUDARuntimeError: no more memory may be locked, or this kind may not
        log.info("shared memory of %d bytes is not registered with CUDA: %s", nbytes, text_of(error))
        return _nothing
    ranges[address] = address + nbytes

    def unregister() -> None:
        del ranges[address]
        with contextlib.suppress(Exception), Selected(runtime, device):  # of a lost device, others have told
            runtime.hostUnregister(address)

    return unregister


def is_registered(array: Array) -> bool:
    """Whether a GPU can copy all of an array, in C order, from where it lies, and it is large enough for that."""
    if array.nbytes < _MIN_BYTES or not array.flags.c_contiguous:
        return False
    begin = array.ctypes.data
    return any(start <= begin and begin + array.nbytes <= end for start, end in list(ranges.items()))


def _nothing() -> None:
    """There is nothing to take back."""
