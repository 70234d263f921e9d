"""Where a model's arrays live, and the two transfers between there and the host.

NumPy is the device of a machine without a GPU: the same pipeline runs on it with nothing to copy.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tensorgate.backends.execution.cuda_install import cuda_problem, is_installed
from tensorgate.gateway.contract.execution import Traffic
from tensorgate.gateway.contract.tensor import BYTES, Array

log = logging.getLogger(__name__)

_noted: Final[set[str]] = set()


class TrafficCounter:
    """Counts what is transferred between the host and a device; called in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = Traffic()

    def note_in(self, nbytes: int) -> None:
        """One copy to the device."""
        self._add(Traffic(copies_in=1, bytes_in=nbytes))

    def note_out(self, nbytes: int) -> None:
        """One copy to the host."""
        self._add(Traffic(copies_out=1, bytes_out=nbytes))

    def note_batch(self) -> None:
        """One batch, however it ends."""
        self._add(Traffic(batches=1))

    def read(self) -> Traffic:
        return self._now

    def _add(self, more: Traffic) -> None:
        with self._lock:
            self._now += more


class Device:
    """The host: arrays are NumPy's, copies are none."""

    name = "cpu"
    index = 0
    xp: Any = np
    stream_pointer = 0

    def __init__(self) -> None:
        self.traffic = TrafficCounter()

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Whatever runs inside allocates here and is ordered on this device's stream.

        NaN and infinity are values like others here, as they are on a GPU: no warning is due.
        """
        return np.errstate(all="ignore")

    def selected(self) -> contextlib.AbstractContextManager[Any]:
        """What runs inside means this device where no other is named."""
        return contextlib.nullcontext()

    def put(self, array: Array) -> Array:
        """Host -> device; from another device, too. BYTES stay on the host, always."""
        return array if isinstance(array, np.ndarray) else array.get()

    def finish(self) -> None:
        """Return when everything that was begun here is done."""

    def finish_all(self) -> None:
        """Return when everything on this device is done, whoever began it."""

    def get(self, array: Array) -> Array:
        """Device -> host, finished when it returns. A model's scalar may be no array."""
        return array.get() if hasattr(array, "get") else array

    def get_into(self, array: Array, out: Array) -> None:
        """Device -> a host array of the same dtype and shape, finished when it returns."""
        np.copyto(out, array)

    def join(self, arrays: Sequence[Array]) -> Array:
        """Arrays from anywhere, concatenated on axis 0 on the device (BYTES on the host)."""
        own = [self.put(array) for array in arrays]
        if len(own) == 1:
            return own[0]
        return (np if isinstance(own[0], np.ndarray) else self.xp).concatenate(own)


in_use: Final[set[int]] = set()
"""The GPUs that this process has had instances on."""


class _Selection(threading.local):
    """What a thread has selected, None outside of all that selects."""

    index: int | None = None


_selection: Final = _Selection()


class Selected:
    """What runs inside means one GPU where no other is named. The thread goes on with that GPU afterwards: CuPy's own
    goes back to the first one, and by that CUDA makes a context there, some 500 MB, even where no model uses it.
    Source: CUDA runtime API, cudaSetDevice.
    """

    __slots__ = ("_index", "_outer", "_runtime")

    def __init__(self, runtime: Any, index: int) -> None:
        self._runtime = runtime
        self._index = index
        self._outer: int | None = None

    def __enter__(self) -> None:
        self._outer = _selection.index
        self._runtime.setDevice(self._index)
        _selection.index = self._index

    def __exit__(self, *error: object) -> None:
        _selection.index = self._outer
        if self._outer is not None and self._outer != self._index:
            self._runtime.setDevice(self._outer)


class CudaDevice(Device):
    """One GPU, and a stream of its own for one instance of a model, on which all of it is computed.

    Whoever enqueues computation holds `lock` meanwhile: executors of one instance take turns. Copies have streams of
    their own, in transfer.py; `put`, `get` and the like are for what has no place there, and copy on the stream that is
    current.
    """

    capturing: Final = threading.Lock()
    """Held while a stream of any GPU is captured, and by who waits for a whole GPU: one would end the other. See
    graphs.py."""

    def __init__(self, index: int) -> None:
        super().__init__()
        cupy = importlib.import_module("cupy")
        self.name = f"cuda:{index}"
        self.index = index
        self.xp = cupy
        self.lock = threading.Lock()
        in_use.add(index)
        with self.selected():
            self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream_pointer = int(self.stream.ptr)

    def selected(self) -> contextlib.AbstractContextManager[Any]:
        return Selected(self.xp.cuda.runtime, self.index)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with self.selected(), self.stream:
            yield

    def put(self, array: Array) -> Array:
        if array.dtype == BYTES or (isinstance(array, self.xp.ndarray) and array.data.device_id == self.index):
            return array
        if isinstance(array, np.ndarray):
            self.traffic.note_in(array.nbytes)
        return self.xp.asarray(array)

    def finish(self) -> None:
        self.stream.synchronize()

    def mark(self) -> Callable[[], None]:
        """A wait, in any thread, for what this one has enqueued until now on its current stream, and for the default
        stream, behind which CUDA puts all work of streams that are not made "non-blocking".
        """
        cuda = self.xp.cuda
        events = [cuda.Event(block=True, disable_timing=True) for _ in range(2)]
        with self.selected():
            for event, stream in zip(events, (cuda.get_current_stream(), cuda.Stream.null), strict=True):
                event.record(stream)

        def wait() -> None:
            for event in events:
                event.synchronize()

        return wait

    def computed(self) -> Any:
        """A new event after all that has been enqueued on the stream, with the device selected."""
        event = self.xp.cuda.Event(block=True, disable_timing=True)
        event.record(self.stream)
        return event

    def finish_all(self) -> None:
        with self.capturing, self.selected():
            self.xp.cuda.runtime.deviceSynchronize()

    def get(self, array: Array) -> Array:
        if isinstance(array, np.ndarray):
            return array
        self.traffic.note_out(array.nbytes)
        return self.xp.asnumpy(array)

    def get_into(self, array: Array, out: Array) -> None:
        if isinstance(array, np.ndarray):
            np.copyto(out, array)
        else:
            self.traffic.note_out(array.nbytes)
            self.xp.asnumpy(self.contiguous(array), out=out)

    def contiguous(self, array: Array) -> Array:
        """In C order, on the device. CuPy's own function makes a vector of a scalar."""
        return array if array.flags.c_contiguous else self.xp.ascontiguousarray(array)


def cuda_devices() -> int:
    """How many GPUs can be used from here: 0 without CuPy or without a driver, whatever the reason."""
    try:
        cupy = importlib.import_module("cupy")
        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # CuPy raises what CUDA, its loader or its wheels raise; each of them means no
        return 0


def open_device(wanted: str, gpu_problem: Callable[[], str] = cuda_problem) -> Device:
    """`auto`, `cpu`, `cuda` or `cuda:N` -> a device, with a new stream where there are streams. `gpu_problem` tells why
    whoever asks cannot use a GPU here, empty where it can.

    Raises ValueError naming what is missing; `auto` is the CPU then, and the log says so once.
    """
    if wanted == "cpu":
        return Device()
    problem = gpu_problem()
    if wanted == "auto":
        if problem:
            _note_fallback(problem)
        return Device() if problem else CudaDevice(0)
    index = int(wanted.partition(":")[2] or 0)
    if not problem and index >= (available := cuda_devices()):
        problem = f"only {available} CUDA devices can be used here"
    if problem:
        raise ValueError(f"device {wanted} was asked for, but {problem}; say device: auto to use what is there")
    return CudaDevice(index)


def _note_fallback(problem: str) -> None:
    """Where CuPy is, GPUs were meant; elsewhere there is nothing to tell."""
    if problem not in _noted and (is_installed("cupy-cuda12x") or is_installed("cupy-cuda13x")):
        _noted.add(problem)
        log.warning("models with device auto run on the CPU: %s", problem)
