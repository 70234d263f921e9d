"""The way of a batch onto its device and back, as one executor goes it.

On the host nothing is transferred: rows of several requests are joined, and that is all. To a GPU each batch makes
exactly two copies, whatever the number of its requests, inputs and outputs; but large inputs in registered memory, see
registered.py, are copied from where they lie:

    requests' rows --> pinned memory --(one copy)--> device memory: the inputs are views of it
    what somebody asked for --> device memory --(one copy)--> pinned memory: the answers are views of it

A GPU computes and copies at the same time, if nobody makes it wait. So an instance has one stream where everything is
computed, and each of its executors a stream for its copies. With two executors two batches are on their way:

    thread 1      | rows | wait ................................. | answers |   rows | wait ....
    copies 1             | in |                          | out |               | in |
    compute                   |===== batch 1 =====|===== batch 2 =====|            |===== batch 3
    copies 2                             | in |                       | out |
    thread 2                      | rows | wait .............................. | answers |

Events keep the order: the compute stream waits until a batch is in, its copy out waits until it is computed, and its
thread waits for that copy alone. Who enqueues computation holds the device's lock meanwhile, not while it waits.

Memory is what makes this delicate. CuPy takes memory back as soon as nobody refers to it, and gives it again to the
same *stream*, trusting that work there runs in order. Therefore device memory for a batch's inputs belongs to the
copy stream, which is idle until the batch is over; memory made while computing belongs to the compute stream; and what
a copy under way still reads or writes is held until the batch's last event. Pinned memory has no streams at all: it is
held in the same way, or by the answers that are views of it.

Tensors that share a copy lie one behind another, each where the kernels of any library may begin to read:

    |x: 64 x 3 x 224 x 224 float32      |..|mask: 64 int8|..........|ids: 64 x 16 int64 |
    0                            offset, a multiple of 256        offset              nbytes
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from tensorgate.backends.execution import registered
from tensorgate.backends.execution.device import CudaDevice, Device
from tensorgate.backends.execution.pinned import pinned_pool
from tensorgate.backends.execution.rows import join_rows
from tensorgate.gateway.contract.canonical import ChainedRequest, InferRequest
from tensorgate.gateway.contract.execution import Observe
from tensorgate.gateway.contract.tensor import BYTES, NOTHING, Array, Tensors

ALIGNMENT: Final = 256
"""That of CUDA's own allocations."""


class Transfer(Protocol):
    """One batch at a time, from one thread: `with batch` around all of it; `bring`, then `with computing` around
    `arrived` and whatever computes, `pack` at its end, and `fetch` after it. Of a decoupled model, the second half
    for each answer.
    """

    def batch(self, observe: Observe) -> contextlib.AbstractContextManager[Any]:
        """Everything about one batch. At its end nothing of it is under way any more, whatever has happened."""
        ...

    def bring(self, requests: Sequence[InferRequest]) -> None:
        """Begin to carry the requests' rows over."""
        ...

    def computing(self) -> contextlib.AbstractContextManager[Any]:
        """What runs inside is computed on the device, after what has been brought, and alone."""
        ...

    def arrived(self) -> Tensors:
        """What was brought, joined on axis 0: [rows_i, *rest] -> [sum(rows_i), *rest], on the device; BYTES on the
        host. A batch of one passes what is there already through as it is.
        """
        ...

    def lap(self, stage: str) -> None:
        """A stage ends here, of those that began with `bring` or with `computing`."""
        ...

    def pack(self, arrays: Sequence[Array]) -> Any:
        """Make arrays ready to leave."""
        ...

    def fetch(self, packed: Any) -> list[Array]:
        """What was packed, on the host. When it returns, everything that was computed before is done."""
        ...


class HostTransfer:
    """Between the host and the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._observe: Observe = _ignore
        self._begun = 0.0
        self._seconds_in = 0.0
        self._tensors: Tensors = NOTHING

    @contextlib.contextmanager
    def batch(self, observe: Observe) -> Iterator[None]:
        self._observe = observe
        try:
            yield
        finally:
            self._tensors, self._observe = NOTHING, _ignore

    def bring(self, requests: Sequence[InferRequest]) -> None:
        begun = time.perf_counter()
        device = self._device
        if all(request.into is None for request in requests):
            self._tensors = join_rows(requests)
        else:
            for event in ready_events(requests):
                event.synchronize()
            self._tensors = {
                name: device.join([request.inputs[name] for request in requests]) for name in requests[0].inputs
            }
        self._seconds_in = time.perf_counter() - begun

    def computing(self) -> contextlib.AbstractContextManager[Any]:
        self._begun = time.perf_counter()
        return self._device.active()

    def arrived(self) -> Tensors:
        return self._tensors

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._observe((stage, now - self._begun + (self._seconds_in if stage == "preprocess" else 0.0)))
        self._begun = now

    def pack(self, arrays: Sequence[Array]) -> Any:
        return arrays

    def fetch(self, packed: Any) -> list[Array]:
        return [self._device.get(array) for array in packed]


class Piece(NamedTuple):
    """One tensor's place: its elements lie in C order."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class Layout:
    """Tensors one behind another."""

    def __init__(self, tensors: Iterable[tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self.pieces: list[Piece] = []
        self.nbytes = 0
        for dtype, shape in tensors:
            piece = Piece(-(-self.nbytes // ALIGNMENT) * ALIGNMENT, dtype, shape)
            self.pieces.append(piece)
            self.nbytes = piece.offset + piece.nbytes

    def views(self, memory: Array) -> list[Array]:
        """The tensors in host memory, an array of bytes; each keeps all of it alive."""
        return [np.ndarray(shape, dtype, memory, offset) for offset, dtype, shape in self.pieces]


class Packed:
    """What leaves together: arrays of the host as they are, and of the others where in `source` their bytes are."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = list(arrays)
        host = (np.ndarray, np.generic)
        self.away = [number for number, array in enumerate(arrays) if not isinstance(array, host)]
        self.layout = Layout((arrays[number].dtype, arrays[number].shape) for number in self.away)
        self.source: Any = None


class CudaTransfer:
    """Between the host and a GPU. Raises what CuPy raises."""

    def __init__(self, device: CudaDevice) -> None:
        cuda = device.xp.cuda
        self._device = device
        self._cuda = cuda
        self._runtime = cuda.runtime
        self._pool = pinned_pool(cuda.runtime)
        with device.selected():
            self._stream = cuda.Stream(non_blocking=True)
            self._begun, self._arrived = cuda.Event(), cuda.Event()
            # The thread that waits for one of these sleeps, and leaves its core to the front door.
            self._computed, self._left = cuda.Event(block=True), cuda.Event(block=True)
            self._laps = [cuda.Event() for _ in range(4)]
        self._stages: list[str] = []
        self._observe: Observe = _ignore
        self._seconds_in = 0.0
        self._incoming: dict[str, list[Array]] = {}
        self._coming: list[Any] = []
        self._leaving: list[Any] = []
        self._ready: list[Any] = []
        self._copied = self._under_way = False

    @contextlib.contextmanager
    def batch(self, observe: Observe) -> Iterator[None]:
        self._observe = observe
        self._device.traffic.note_batch()
        try:
            yield
        finally:
            self._settle()

    def bring(self, requests: Sequence[InferRequest]) -> None:
        begun = time.perf_counter()
        inputs = list(_inputs(requests))
        copied = [arrays for _, arrays, is_copied in inputs if is_copied]
        arrived = iter(self._copy_in(copied) if copied else ())
        self._incoming = {}
        for name, arrays, is_copied in inputs:
            self._incoming.setdefault(name, []).extend([next(arrived)] if is_copied else arrays)
        if len(copied) < len(inputs):
            self._ready = ready_events(requests)
        self._seconds_in = time.perf_counter() - begun

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        with self._device.lock, self._device.active():
            stream = self._device.stream
            self._under_way = True
            stream.wait_event(self._arrived)
            for event in self._ready:
                stream.wait_event(event)
            self._stages.clear()
            self._laps[0].record(stream)
            try:
                yield
            finally:
                self._computed.record(stream)

    def arrived(self) -> Tensors:
        join = self._device.join
        return {name: join(arrays) for name, arrays in self._incoming.items()}

    def lap(self, stage: str) -> None:
        self._stages.append(stage)
        self._laps[len(self._stages)].record(self._device.stream)

    def finish(self) -> None:
        """When it returns, everything that was computed is done."""
        self._computed.synchronize()
        self._report_times(self._computed)
        self._stages.clear()

    def pack(self, arrays: Sequence[Array]) -> Packed:
        """Several are put side by side by copies within the device, which cost next to nothing."""
        packed = Packed(arrays)
        leaving = [self._device.contiguous(arrays[number]) for number in packed.away]
        if len(leaving) == 1:
            packed.source = leaving[0].data
        elif packed.layout.nbytes:
            packed.source = self._cuda.alloc(packed.layout.nbytes)
            kind, stream = self._runtime.memcpyDeviceToDevice, self._device.stream.ptr
            for piece, array in zip(packed.layout.pieces, leaving, strict=True):
                if piece.nbytes:
                    self._runtime.memcpyAsync(
                        packed.source.ptr + piece.offset, array.data.ptr, piece.nbytes, kind, stream
                    )
        self._leaving = [packed.source, *leaving]
        return packed

    def fetch(self, packed: Packed) -> list[Array]:
        nbytes = packed.layout.nbytes
        memory = self._pinned(nbytes)
        with self._device.selected():
            self._stream.wait_event(self._computed)
            if nbytes:
                self._leaving.append(memory)
                self._copy(memory.ctypes.data, packed.source.ptr, nbytes, self._runtime.memcpyDeviceToHost)
                self._device.traffic.note_out(nbytes)
            self._left.record(self._stream)
        self._left.synchronize()
        self._under_way = False
        self._leaving = []
        self._report_times(self._left)
        arrays = packed.arrays
        for number, view in zip(packed.away, packed.layout.views(memory), strict=True):
            arrays[number] = view
        return arrays

    def _copy_in(self, rows: Sequence[Sequence[Array]]) -> list[Array]:
        """Host arrays, for each tensor its rows -> the tensors on the device, which are there after `_arrived`."""
        layout = Layout((group[0].dtype, _joined_shape(group)) for group in rows)
        if registered.ranges and any(_is_direct(group) for group in rows):
            memory, sources = self._gather(layout, rows)
        else:
            memory = self._pinned(layout.nbytes)
            for view, group in zip(layout.views(memory), rows, strict=True):
                _fill(view, group)
            sources = [(0, memory.ctypes.data, layout.nbytes)]
        with self._device.selected(), self._stream:  # memory that is made here is the copy stream's
            target = self._cuda.alloc(max(1, layout.nbytes))
            self._coming = [memory, target, rows]
            self._copied = self._under_way = True
            self._begun.record(self._stream)
            for offset, source, nbytes in sources:
                if nbytes:
                    self._copy(target.ptr + offset, source, nbytes, self._runtime.memcpyHostToDevice)
                    self._device.traffic.note_in(nbytes)
            self._arrived.record(self._stream)
        ndarray = self._device.xp.ndarray
        return [ndarray(shape, dtype, target + offset) for offset, dtype, shape in layout.pieces]

    def _gather(self, layout: Layout, rows: Sequence[Sequence[Array]]) -> tuple[Array, list[tuple[int, int, int]]]:
        """Pinned memory with what a GPU cannot copy from where it lies, and for each tensor its offset on the device,
        its address on the host and its size.
        """
        memory = self._pinned(layout.nbytes)
        sources = []
        for piece, view, group in zip(layout.pieces, layout.views(memory), rows, strict=True):
            if _is_direct(group):
                sources.append((piece.offset, group[0].ctypes.data, piece.nbytes))
            else:
                _fill(view, group)
                sources.append((piece.offset, view.ctypes.data, piece.nbytes))
        return memory, sources

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        self._runtime.memcpyAsync(target, source, nbytes, kind, self._stream.ptr)

    def _pinned(self, nbytes: int) -> Array:
        """Bytes of the host that a GPU reaches by itself; they go back to their pool with the last view of them."""
        if not nbytes:
            return np.empty(0, np.uint8)
        with self._device.selected():
            return self._pool.take(nbytes)

    def _settle(self) -> None:
        """Let nothing outlive the batch: where it failed, its work may still read what is given back now."""
        if self._under_way:
            with contextlib.suppress(Exception):  # of a device that is lost, the batch itself has told
                self._stream.synchronize()
                self._computed.synchronize()
        self._copied = self._under_way = False
        self._coming, self._leaving, self._ready, self._incoming = [], [], [], {}
        self._observe = _ignore  # it knows its batch

    def _report_times(self, end: Any) -> None:
        """The stages by the device's clock. To the first belongs the way in, to the last all until `end`."""
        elapsed, stages = self._cuda.get_elapsed_time, self._stages
        laps = [*self._laps[: len(stages)], end]
        for number, stage in enumerate(stages):
            seconds = elapsed(laps[number], laps[number + 1]) / 1e3
            if stage == "preprocess":
                seconds += self._seconds_in + (elapsed(self._begun, self._arrived) / 1e3 if self._copied else 0.0)
            self._observe((stage, seconds))


def ready_events(requests: Sequence[InferRequest]) -> list[Any]:
    """Events after which inputs that are on a GPU already are what they say."""
    return [event for request in requests if isinstance(request, ChainedRequest) for event in request.ready]


def _inputs(requests: Sequence[InferRequest]) -> Iterator[tuple[str, list[Array], bool]]:
    """Every input's arrays, and whether they are copied: what can be is joined on the way. Where an input is partly on
    a device already, its arrays come one by one; what is BYTES stays on the host.
    """
    for name in requests[0].inputs:
        arrays = [request.inputs[name] for request in requests]
        if arrays[0].dtype == BYTES:
            yield name, [arrays[0] if len(arrays) == 1 else np.concatenate(arrays)], False
        elif all(isinstance(array, np.ndarray) for array in arrays):
            yield name, arrays, True
        else:
            for array in arrays:
                yield name, [array], isinstance(array, np.ndarray)


def _is_direct(rows: Sequence[Array]) -> bool:
    return len(rows) == 1 and registered.is_registered(rows[0])


def _joined_shape(arrays: Sequence[Array]) -> tuple[int, ...]:
    first: tuple[int, ...] = arrays[0].shape
    return first if len(arrays) == 1 else (sum(array.shape[0] for array in arrays), *first[1:])


def _fill(view: Array, arrays: Sequence[Array]) -> None:
    if len(arrays) == 1:
        view[...] = arrays[0]
        return
    start = 0
    for array in arrays:
        view[start : start + array.shape[0]] = array
        start += array.shape[0]


def _ignore(timing: tuple[str, float]) -> None:
    """No batch is under way: there is nobody to report to."""


def transfer_of(device: Device) -> Transfer:
    """A way to a device and back, for one executor."""
    return CudaTransfer(device) if isinstance(device, CudaDevice) else HostTransfer(device)
