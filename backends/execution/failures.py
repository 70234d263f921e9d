"""Whatever a computation raises, in the gateway's terms: out of memory, a lost device, or a failure of the model.

Out of memory is one request's trouble: what the pools of CuPy and PyTorch keep for later is given back before the next
run, and the engine goes on. A lost device is everybody's: after a stray pointer in one kernel, CUDA refuses all work
of this process, for ever. Whoever asked to be told of it (`on_lost_device`) ends the process, so that another begins.

CUDA's own exceptions say by their class and status what happened. Other texts may quote what a caller sent, so that
they only raise a suspicion; then the device is asked.
Source: CUDA runtime API, error handling: "the process must be terminated and relaunched".
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from tensorgate.backends.execution.device import CudaDevice, Selected, in_use
from tensorgate.backends.execution.pinned import pinned_pool
from tensorgate.gateway.contract.errors import DeviceLost, GatewayError, ModelFailed, OutOfMemory, text_of

log = logging.getLogger(__name__)

_LOST: Final = {
    214: "uncorrectable ECC error",
    220: "uncorrectable NVLink error",
    226: "Invalid access of peer GPU memory",
    700: "an illegal memory access",
    702: "the launch timed out",
    709: "context is destroyed",
    710: "device-side assert",
    714: "hardware stack error",
    715: "an illegal instruction",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    810: "the MPS client has been terminated",
    911: "an async error",
    999: "unknown error",
}
"""Errors after which a process gets no more work done on the device: CUDA's number, how its text begins."""
_NO_MEMORY: Final = 2
_CUDA_ERRORS: Final = frozenset({"CUDARuntimeError", "CUDADriverError", "AcceleratorError"})
"""CuPy's two, and PyTorch's."""
_CUDA_TEXT: Final = re.compile(r"^(?:CUDA error|cudaError\w+|CUDA_ERROR_\w+): (.*)")
_SUSPICIOUS: Final = re.compile(
    r"CUDA failure|CUDA error|cudaError|CUDA_ERROR_|(?:CUBLAS|CUDNN|CUFFT)_STATUS_|DEVICE_RESET"
)
_ALLOCATION: Final = re.compile(
    r"Failed to allocate memory|Available memory of \d+ is smaller than requested|"
    r"CUDA out of memory|can't allocate memory|STATUS_ALLOC_FAILED|CUDA failure 2\b|bad_alloc"
)
_WRAPPED: Final = 8

_listener: list[Callable[[str, str], None]] = []
_short_of_memory = False


def on_lost_device(on_lost: Callable[[str, str], None]) -> None:
    """Call on_lost(model, what happened) when a device is lost, in any thread. One listener per process."""
    _listener[:] = [on_lost]


def failure_of(error: BaseException, model: str, text: str = "") -> GatewayError:
    """What a model's exception is to callers; `text` is what it says for itself, if its last line is not to be told."""
    if isinstance(error, GatewayError):
        return error
    return device_failure(error, model) or ModelFailed(text or last_line(error))


def device_failure(error: BaseException, model: str) -> GatewayError | None:
    """Out of memory or a lost device, which can come from anywhere in a run; None for all else."""
    global _short_of_memory
    for each in _chain(error):
        if _is_loss(each):
            log.error("model %s has lost its device", model, exc_info=error)
            for on_lost in _listener:
                on_lost(model, last_line(each))
            return DeviceLost(model)
    if is_shortage(error):
        log.warning("model %s is out of memory: %s", model, last_line(error))
        _short_of_memory = True
        return OutOfMemory(model)
    return None


@contextlib.contextmanager
def device_failures(model: str) -> Iterator[None]:
    """Around a run: its failures that `device_failure` knows are raised as such, others as they are."""
    try:
        yield
    except GatewayError:
        raise
    except Exception as error:
        failure = device_failure(error, model)
        if failure is None:
            raise
        raise failure from error


def relieve() -> None:
    """Before a run: if memory was short, give back what is kept for later. What the failed run held is free by now."""
    global _short_of_memory
    if not _short_of_memory:
        return
    _short_of_memory = False
    free_pools()


def free_pools() -> None:
    """Give the device what CuPy and PyTorch keep of it for later, and the host what is kept pinned."""
    with contextlib.suppress(Exception):  # each raises what the driver or its absence makes it raise
        if (cupy := sys.modules.get("cupy")) is not None:
            pinned_pool(cupy.cuda.runtime).trim()
            cupy.get_default_pinned_memory_pool().free_all_blocks()
            for index in sorted(in_use):  # the pool gives back what is on the GPU that is selected
                with Selected(cupy.cuda.runtime, index):
                    cupy.get_default_memory_pool().free_all_blocks()
    with contextlib.suppress(Exception):
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def last_line(error: BaseException) -> str:
    """What an exception says for itself, without a traceback: "ValueError: no such word"."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that it was raised for: a user's model may wrap what CUDA message."""
    each: BaseException | None = error
    for _ in range(_WRAPPED):
        if each is None:
            return
        yield each
        each = each.__cause__ or each.__context__


def _is_loss(error: BaseException) -> bool:
    status = _cuda_status(error)
    if status is not None:
        return status in _LOST
    return _SUSPICIOUS.search(text_of(error)) is not None and _device_is_dead()


def is_of_a_device(text: str) -> bool:
    """Whether a text may be a device's, or an allocator's."""
    return (_SUSPICIOUS.search(text) or _ALLOCATION.search(text)) is not None


def is_shortage(error: BaseException) -> bool:
    """Host or device. A class by its name, since neither CuPy nor PyTorch need be there."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return _cuda_status(error) == _NO_MEMORY or _ALLOCATION.search(text_of(error)) is not None


def _cuda_status(error: BaseException) -> int | None:
    """CUDA's number of an exception of its own, 0 for one that is not listed here; None for all other exceptions."""
    if type(error).__name__ not in _CUDA_ERRORS:
        return None
    for attribute in ("status", "error_code"):
        status = getattr(error, attribute, None)
        if isinstance(status, int):
            return status
    found = _CUDA_TEXT.match(text_of(error))
    message = found[1] if found else ""
    if message.startswith("out of memory"):
        return _NO_MEMORY
    return next((status for status, text in _LOST.items() if message.startswith(text)), 0)


def _device_is_dead() -> bool:
    """Whether CUDA refuses all work on one of the GPUs, which it does with the number of the first failure there."""
    if sys.modules.get("cupy") is None:
        return False
    runtime: Any = importlib.import_module("cupy").cuda.runtime
    for index in sorted(in_use) or [runtime.getDevice()]:  # a user's class may use one by itself
        try:
            with CudaDevice.capturing, Selected(runtime, index):
                runtime.deviceSynchronize()
        except Exception as error:
            if _cuda_status(error) in _LOST:
                return True
    return False
