"""Runs recorded as CUDA graphs: one launch for all kernels of a model, which small batches spend their time on.

A recording is made of a stream by *capture*: what is enqueued there is noted instead of run. It knows addresses, not
arrays. Three things can go wrong with that, and none of them shows:

- Another thread disturbs a capture, or is disturbed by it. Captures here are thread-local: what other threads allocate
  and enqueue is their own affair, and so are their errors. A wait for the whole device would still end one, so such
  waits and captures take turns by `capturing`.
- A replay writes where somebody else's results are. Temporary memory of a recorded run goes back to its library's pool,
  which gives it again. Work of one stream is in order; but results are read later, from other streams. So while a
  session has recordings, no result of a run stays in memory of its pool: it is copied on the stream of the run.
- A recording holds what is true only once: bytes of host memory, a call of the host. `check_replayable` looks at all of
  its nodes, and lets pass what computes on the device and moves within it.

Captures are made when a model is loaded, for the sizes of its `pad_batches_to`; of other shapes, when they come often.
Source: CUDA programming guide, CUDA graphs, prohibited and unhandled operations; CUDA driver API, graph management.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from tensorgate.backends.execution.cuda_install import DRIVER
from tensorgate.backends.execution.device import CudaDevice
from tensorgate.gateway.contract.backend import Padding
from tensorgate.gateway.contract.errors import text_of
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec

log = logging.getLogger(__name__)

MAX_GRAPHS: Final = 32
"""Recordings that a model keeps for each of its instances: those used last."""
RUNS_BEFORE: Final = 3
"""Runs of a shape before it is recorded: in these, libraries choose their kernels and take their memory."""
_MAX_COUNTED: Final = 256
_REPLAYABLE: Final = frozenset({0, 2, 4, 5, 10, 11})
"""CUgraphNodeType: kernel, memset, child graph (looked into), empty, allocation, release."""
_MEMCPY: Final = 1
_CHILD: Final = 4
_ON_DEVICE: Final = 2
"""CU_MEMORYTYPE_DEVICE."""

R = TypeVar("R")


class Graphs(Generic[R]):
    """The recordings of one instance by what they are for. Under the device's lock, on its stream.

    What cannot be recorded is told once, and nothing is recorded from then on.
    """

    def __init__(self, model: str, device: CudaDevice) -> None:
        self._model = model
        self._device = device
        self._recordings: OrderedDict[Hashable, R] = OrderedDict()
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._possible = True

    def find(self, key: Hashable, record: Callable[[], R]) -> R | None:
        """The recording; made now if this key has come often. None where the run has to go without."""
        found = self._recordings.get(key)
        if found is not None:
            self._recordings.move_to_end(key)
            return found
        if not (self._possible and self._is_due(key)):
            return None
        try:
            with self._device.capturing:
                found = record()
        except Exception as error:  # of CuPy, of PyTorch, of ONNX Runtime, each of its own
            self._possible = False
            text = text_of(error).partition("\n")[0]
            log.warning("model %s runs without CUDA graphs, since it cannot be recorded: %s", self._model, text)
            return None
        if len(self._recordings) == MAX_GRAPHS:
            self._device.finish()  # the one that goes may be running
            self._recordings.popitem(last=False)
        self._recordings[key] = found
        del self._seen[key]  # once it has gone, it has to come often again
        return found

    def __bool__(self) -> bool:
        """Whether there are recordings, which may write into memory that their library gives for results."""
        return bool(self._recordings)

    def record_at_load(self, run: Callable[[Tensors], object], specs: Sequence[TensorSpec], padding: Padding) -> None:
        """Run often enough, on zeros, what batches will look like, as far as that is known: in each padded size, where
        nothing else varies.
        """
        specs = [spec for spec in specs if not spec.optional]
        try:
            with self._device.lock, self._device.active():
                for shapes in itertools.islice(_shapes(specs, padding.sizes), MAX_GRAPHS):
                    tensors = {
                        spec.name: _zeros(self._device, shape, spec) for spec, shape in zip(specs, shapes, strict=True)
                    }
                    for _ in range(RUNS_BEFORE + 1):
                        run(tensors)
                self._device.finish()
        except Exception as error:  # a model may refuse zeros
            log.warning("model %s was not recorded at load: %s", self._model, text_of(error).partition("\n")[0])

    def _is_due(self, key: Hashable) -> bool:
        count = self._seen.pop(key, 0)
        self._seen[key] = count + 1
        if len(self._seen) > _MAX_COUNTED:
            self._seen.popitem(last=False)
        return count >= RUNS_BEFORE


def capture(device: CudaDevice, run: Callable[[], object]) -> Any:
    """What `run` enqueues on the device's stream, as a cupy.cuda.Graph. Raises what `run` raises, what CUDA raises of a
    capture that came to nothing, and ValueError where a replay would be wrong.
    """
    stream = device.stream
    with _no_collection():
        stream.begin_capture(device.xp.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            run()
        except BaseException:
            with contextlib.suppress(Exception):  # it is void
                stream.end_capture()
            raise
        graph = stream.end_capture()
    check_replayable(graph.graph)
    return graph


def check_replayable(graph: int) -> None:
    """`graph` is a cudaGraph_t. Raises ValueError naming the first node that is more than work within the device."""
    driver = ctypes.CDLL(DRIVER)
    count = ctypes.c_size_t()
    _ask(driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _ask(driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)))
    for node in nodes:
        kind = ctypes.c_int()
        _ask(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        if kind.value == _CHILD:
            child = ctypes.c_void_p()
            _ask(driver.cuGraphChildGraphNodeGetGraph(ctypes.c_void_p(node), ctypes.byref(child)))
            check_replayable(child.value or 0)
        elif kind.value == _MEMCPY:
            copy = Memcpy3D()
            _ask(driver.cuGraphMemcpyNodeGetParams(ctypes.c_void_p(node), ctypes.byref(copy)))
            if (copy.source_type, copy.target_type) != (_ON_DEVICE, _ON_DEVICE):
                raise ValueError("a run copies between host and device")
        elif kind.value not in _REPLAYABLE:
            raise ValueError(f"a run holds a node of CUgraphNodeType {kind.value}")


class Memcpy3D(ctypes.Structure):
    """CUDA_MEMCPY3D, of which the types of memory are read."""

    _fields_ = (
        ("source_place", ctypes.c_size_t * 4),
        ("source_type", ctypes.c_int),
        ("source", ctypes.c_void_p * 4),
        ("source_pitch", ctypes.c_size_t * 2),
        ("target_place", ctypes.c_size_t * 4),
        ("target_type", ctypes.c_int),
        ("target", ctypes.c_void_p * 4),
        ("target_pitch", ctypes.c_size_t * 2),
        ("extent", ctypes.c_size_t * 3),
    )


def _ask(error: int) -> None:
    if error:
        raise ValueError(f"the driver does not describe the recording: CUDA error {error}")


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector may free what CUDA then waits for, in the middle of a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _shapes(specs: Sequence[TensorSpec], sizes: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of all inputs, in each size; none where anything but axis 0 varies."""
    shapes = [spec.shape for spec in specs if spec.shape is not None]
    if len(shapes) < len(specs) or any(-1 in shape[1:] for shape in shapes):
        return
    if not any(shape[:1] == (-1,) for shape in shapes):
        yield shapes
        return
    for size in sizes:
        yield [(size if shape[:1] == (-1,) else shape[0], *shape[1:]) if shape else shape for shape in shapes]


def _zeros(device: CudaDevice, shape: tuple[int, ...], spec: TensorSpec) -> Any:
    data = device.xp.zeros(max(1, spec.dtype.itemsize * math.prod(shape)), "uint8")
    return device.xp.ndarray(shape, spec.dtype, data.data)
