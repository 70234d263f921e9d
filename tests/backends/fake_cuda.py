"""A stand-in for the part of CuPy that backends use, on NumPy, and as treacherous as a GPU may be.

Streams are queues of pending work. A copy or a kernel has happened only when somebody has waited for it, and not a
moment earlier than that demands ("lazy"), or as early as anything allows ("eager"), or at random among all streams
whose order no event fixes. Memory that nobody refers to any more is overwritten: pinned memory at once, memory of the
device in the order of the stream that it was made on, which may give it to the next who asks on that stream. So a
missing wait, a buffer that is given back too early and a wrong stream all end in wrong numbers, and `copies` has every
copy between host and device.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

POISON = 0xAB


class Token:
    """One recording of an event."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.time: float | None = None


class World:
    """One GPU. `order` is "lazy", "eager", or the seed of a random order."""

    def __init__(self, order: str | int = "lazy") -> None:
        self.lock = threading.RLock()
        self.order = order
        self.random = random.Random(order if isinstance(order, int) else 0)  # noqa: S311 - guards nothing
        self.streams: list[Stream] = []
        self.host = threading.local()
        self.clock = 0.0
        self.copies: list[tuple[str, int]] = []
        self.blocks: list[Block] = []
        self.registered: dict[int, int] = {}
        self.free: dict[tuple[Any, int], list[Block]] = {}
        self.capturing: set[int] = set()
        """Threads that capture."""
        self.null = Stream(self)

    @property
    def pending(self) -> int:
        """Copies and kernels that have not happened yet."""
        return sum(item[0] == "do" for stream in self.streams for item in stream.queue)

    @property
    def current(self) -> Stream:
        stack = getattr(self.host, "streams", None)
        stream: Stream = stack[-1] if stack else self.null
        return stream

    def enqueue(self, stream: Stream, item: Any) -> None:
        with self.lock:
            if stream.captured is not None:
                stream.captured.append(item)
                return
            stream.queue.append(item)
            self._drift()

    def complete(self, token: Token | None) -> None:
        """Until this recording has been reached."""
        with self.lock:
            while token is not None and token.time is None:
                if isinstance(self.order, int):
                    self._step(self.random.choice(self._runnable()))
                else:
                    self._pull(token.stream)

    def _drift(self) -> None:
        """What happens by itself."""
        if self.order == "lazy":
            return
        while (able := self._runnable()) and (self.order == "eager" or self.random.random() < 0.6):
            self._step(self.random.choice(able))

    def _runnable(self) -> list[Stream]:
        return [stream for stream in self.streams if stream.queue and not _blocked(stream.queue[0])]

    def _pull(self, stream: Stream) -> None:
        """The next of a stream, and of others only what it waits for."""
        head = stream.queue[0]
        if _blocked(head):
            self.complete(head[1])
        self._step(stream)

    def _step(self, stream: Stream) -> None:
        kind, what = stream.queue.popleft()
        self.clock += 1.0
        if kind in ("do", "free"):
            with np.errstate(all="ignore"):
                what()
        elif kind == "record":
            what.time = self.clock


def _blocked(item: Any) -> bool:
    return bool(item[0] == "wait" and item[1].time is None)


class Stream:
    def __init__(self, world: World) -> None:
        self._world = world
        self.queue: deque[Any] = deque()
        world.streams.append(self)
        self.ptr = len(world.streams)
        self.captured: list[Any] | None = None

    def __enter__(self) -> Stream:
        if not hasattr(self._world.host, "streams"):
            self._world.host.streams = []
        self._world.host.streams.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._world.host.streams.pop()

    def wait_event(self, event: Event) -> None:
        if event.token is not None:
            self._world.enqueue(self, ("wait", event.token))

    def record(self, event: Event) -> Event:
        event.record(self)
        return event

    def synchronize(self) -> None:
        if self.captured is not None:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")
        event = Event(self._world)
        event.record(self)
        event.synchronize()

    def begin_capture(self, mode: str) -> None:
        """What other threads do is no affair of a capture in this mode."""
        assert mode == "thread local"
        self._world.capturing.add(threading.get_ident())
        self.captured = []

    def end_capture(self) -> Graph:
        self._world.capturing.remove(threading.get_ident())
        assert self.captured is not None
        items, self.captured = self.captured, None
        return Graph(self._world, items)


class Graph:
    """cupy.cuda.Graph."""

    graph = 0

    def __init__(self, world: World, items: list[Any]) -> None:
        self._world = world
        self._items = items

    def launch(self, stream: Stream) -> None:
        for item in self._items:
            self._world.enqueue(stream, item)


class Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self.token: Token | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._world.current
        self.token = Token(stream)
        self._world.enqueue(stream, ("record", self.token))

    def synchronize(self) -> None:
        self._world.complete(self.token)


class Block:
    """A piece of memory, of the host (no stream) or of the device."""

    def __init__(self, nbytes: int, stream: Stream | None) -> None:
        self.stream = stream
        raw = np.full(nbytes + 256, POISON, np.uint8)
        start = -raw.ctypes.data % 256
        self.bytes = raw[start : start + nbytes]

    def has(self, address: int, nbytes: int) -> bool:
        return 0 <= address - self.bytes.ctypes.data <= self.bytes.nbytes - nbytes


class Memory:
    """Who holds a block."""

    def __init__(self, world: World, nbytes: int, stream: Stream | None) -> None:
        self._world = world
        self._key = (stream, nbytes)
        with world.lock:
            free = world.free.get(self._key)
            if free:
                self.block = free.pop()
            else:
                if threading.get_ident() in world.capturing:
                    raise RuntimeError("cudaErrorStreamCaptureUnsupported: cudaMalloc during a capture")
                self.block = Block(nbytes, stream)
                world.blocks.append(self.block)

    def __del__(self) -> None:
        world, block = self._world, self.block
        with world.lock:
            world.free.setdefault(self._key, []).append(block)
            if block.stream is None:
                block.bytes.fill(POISON)
            else:
                # Nothing may run here: Python's collector comes by in the middle of other steps, setting a context
                # variable for example, which then works on what a second np.errstate has freed.
                block.stream.queue.append(("free", lambda: block.bytes.fill(POISON)))


class Unowned:
    """cupy.cuda.UnownedMemory on what another library allocated, which is one of our blocks."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self.block: Block = owner.memory.block


class Pointer:
    """cupy.cuda.MemoryPointer."""

    def __init__(self, mem: Memory | Unowned, offset: int) -> None:
        self.mem = mem
        self.device_id = 0
        self.offset = offset
        self.ptr = mem.block.bytes.ctypes.data + offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.mem, self.offset + offset)


def _pinned(world: World, nbytes: int) -> Any:
    """cupy.cuda.PinnedMemoryPointer: a buffer, whose memory goes back to the pool with the last view of it."""
    memory = Memory(world, nbytes, None)
    pinned: Any = (ctypes.c_uint8 * nbytes).from_address(memory.block.bytes.ctypes.data)
    pinned.memory = memory
    return pinned


def _raw(value: Any) -> Any:
    if isinstance(value, Array):
        return value._v
    if isinstance(value, (tuple, list)):
        return tuple([_raw(each) for each in value])
    return value


def _zeros(raw: Any) -> Any:
    if isinstance(raw, tuple):
        return tuple([_zeros(each) for each in raw])
    return np.zeros_like(raw) if isinstance(raw, np.ndarray) else raw


class Array:
    """cupy.ndarray: `_v` is what the device sees."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]
    world: World

    def __init__(self, shape: Any, dtype: Any = float, memptr: Pointer | None = None) -> None:
        dtype = np.dtype(dtype)
        assert dtype.kind != "O", "no device holds objects"
        if memptr is None:
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            memptr = Pointer(Memory(self.world, max(1, nbytes), self.world.current), 0)
        self.data = memptr
        self._mem = memptr.mem
        self._v: Any = np.ndarray(shape, dtype, memptr.mem.block.bytes, memptr.offset)

    def __array__(self, *wanted: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def _seen(self, view: Any) -> Any:
        """Another view of the same memory."""
        other = object.__new__(type(self))
        other._mem, other._v = self._mem, view
        other.data = Pointer(self._mem, view.ctypes.data - self._mem.block.bytes.ctypes.data if view.size else 0)
        return other

    shape = property(lambda self: self._v.shape)
    dtype = property(lambda self: self._v.dtype)
    ndim = property(lambda self: self._v.ndim)
    size = property(lambda self: self._v.size)
    nbytes = property(lambda self: self._v.nbytes)
    strides = property(lambda self: self._v.strides)
    flags = property(lambda self: self._v.flags)
    T = property(lambda self: self._seen(self._v.T))

    def __len__(self) -> int:
        return len(self._v)

    def __getitem__(self, key: Any) -> Any:
        key = _raw(key)
        view = self._v[key]
        if isinstance(view, np.ndarray) and np.may_share_memory(view, self._v):
            return self._seen(view)
        return self._lifted(lambda own: own[key], self)

    def __setitem__(self, key: Any, value: Any) -> None:
        own, value = self._v, _raw(value)
        self.world.enqueue(self.world.current, ("do", lambda: own.__setitem__(key, value)))

    def reshape(self, *shape: Any) -> Any:
        view = self._v.reshape(*shape)
        if np.may_share_memory(view, self._v) or not view.size:
            return self._seen(view)
        return self._lifted(lambda own: own.reshape(*shape), self)

    def view(self, dtype: Any) -> Any:
        return self._seen(self._v.view(dtype))

    def get(self) -> Any:
        self.world.current.synchronize()
        self.world.copies.append(("out", self.nbytes))
        return self._v.copy()

    def __float__(self) -> float:
        return float(self.get())

    @classmethod
    def _lifted(cls, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A kernel: shape and dtype are known at once, by what is there now, and values later."""
        raws = [_raw(arg) for arg in args]
        with cls.world.lock, np.errstate(all="ignore"):
            template = np.asarray(function(*[_zeros(raw) for raw in raws], **kwargs))
            made = cls(template.shape, template.dtype)
            target = made._v
            cls.world.enqueue(
                cls.world.current, ("do", lambda: np.copyto(target, np.asarray(function(*raws, **kwargs))))
            )
        return made


def _binary(name: str) -> None:
    function = getattr(operator, name)
    setattr(Array, f"__{name.strip('_')}__", lambda own, other: own._lifted(function, own, other))
    setattr(Array, f"__r{name.strip('_')}__", lambda own, other: own._lifted(function, other, own))

    def in_place(own: Any, other: Any) -> Any:
        own[...] = own._lifted(function, own, other)
        return own

    setattr(Array, f"__i{name.strip('_')}__", in_place)


for _name in ("add", "sub", "mul", "truediv", "and_", "or_", "xor", "rshift", "lshift"):
    _binary(_name)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _function = getattr(operator, _name)
    setattr(Array, f"__{_name}__", lambda own, other, f=_function: own._lifted(f, own, other))
for _name in ("neg", "invert"):
    _function = getattr(operator, _name)
    setattr(Array, f"__{_name}__", lambda own, f=_function: own._lifted(f, own))
for _name in ("astype", "sum", "max", "min", "copy", "clip", "argsort"):
    setattr(
        Array,
        _name,
        lambda own, *args, name=_name, **kwargs: own._lifted(lambda raw: getattr(raw, name)(*args, **kwargs), own),
    )


class Cupy(ModuleType):
    """The module."""

    def __init__(self, order: str | int = "lazy") -> None:
        super().__init__("cupy")
        self.world = world = World(order)
        self.pinned: dict[int, Memory] = {}
        self.ndarray = type("ndarray", (Array,), {"world": world})
        self.cuda = SimpleNamespace(
            Device=lambda index: SimpleDevice(world, index),
            Stream=_streams(world),
            Event=lambda **flags: Event(world),
            alloc=lambda nbytes: Pointer(Memory(world, nbytes, world.current), 0),
            MemoryPointer=Pointer,
            UnownedMemory=lambda address, nbytes, owner, index: Unowned(owner),
            alloc_pinned_memory=functools.partial(_pinned, world),
            get_elapsed_time=_elapsed,
            runtime=SimpleNamespace(
                memcpyAsync=self._memcpy,
                memcpyHostToDevice=1,
                memcpyDeviceToHost=2,
                memcpyDeviceToDevice=3,
                getDeviceCount=lambda: 1,
                getDevice=lambda: 0,
                setDevice=lambda index: None,
                hostAlloc=self._host_alloc,
                hostAllocPortable=1,
                hostRegister=self._host_register,
                hostUnregister=lambda address: self.world.registered.pop(address),
                freeHost=lambda address: self.pinned.pop(address),
                deviceSynchronize=SimpleDevice(world, 0).synchronize,
                streamCaptureModeThreadLocal="thread local",
            ),
            get_current_stream=lambda: world.current,
        )

    def __getattr__(self, name: str) -> Any:
        """NumPy's functions, as kernels."""
        if name.startswith("__"):
            raise AttributeError(name)
        own = getattr(np, name)
        array: Any = self.ndarray
        return functools.partial(array._lifted, own) if callable(own) and not isinstance(own, type) else own

    def asarray(self, array: Any) -> Any:
        if isinstance(array, Array):
            return array
        now = np.array(array)
        made = self.ndarray(now.shape, now.dtype)
        self.world.copies.append(("in", now.nbytes))
        self.world.enqueue(self.world.current, ("do", lambda: np.copyto(made._v, now)))
        return made

    def ElementwiseKernel(self, inputs: str, outputs: str, operation: str, name: str) -> Any:  # noqa: N802 - its name
        """The kernel of `affine_cuda`, in Python."""
        assert operation == "y = (Y)((F)x * scale + shift)"

        def run(x: Any, scale: Any, shift: Any, y: Any) -> None:
            def work() -> None:
                np.copyto(y._v, x._v.astype(scale.dtype) * scale._v + shift._v, casting="unsafe")

            self.world.enqueue(self.world.current, ("do", work))

        return run

    def asnumpy(self, array: Any, out: Any = None) -> Any:
        got = array.get()
        if out is None:
            return got
        out[...] = got
        return out

    def ascontiguousarray(self, array: Any) -> Any:
        """As CuPy has it: never without a dimension."""
        return array.reshape(1) if not array.ndim else array if array.flags.c_contiguous else array.copy()

    def _host_register(self, address: int, nbytes: int, flags: int) -> None:
        if address in self.world.registered:
            raise RuntimeError("cudaErrorHostMemoryAlreadyRegistered")
        self.world.registered[address] = nbytes

    def _host_alloc(self, nbytes: int, flags: int) -> int:
        memory = Memory(self.world, nbytes, None)
        address = memory.block.bytes.ctypes.data
        self.pinned[address] = memory
        return address

    def _memcpy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        """Host memory has to be pinned: else the copy would be none that the GPU makes by itself."""
        world = self.world
        with world.lock:
            on_device = [_device_has(world, address, nbytes) for address in (target, source)]
            assert on_device == {1: [True, False], 2: [False, True], 3: [True, True]}[kind], (kind, on_device)
            if kind != 3:
                world.copies.append(("in" if kind == 1 else "out", nbytes))
            world.enqueue(world.streams[stream - 1], ("do", lambda: ctypes.memmove(target, source, nbytes)))


def _device_has(world: World, address: int, nbytes: int) -> bool:
    for block in world.blocks:
        if block.has(address, nbytes):
            return block.stream is not None
    for start, size in world.registered.items():
        if start <= address and address + nbytes <= start + size:
            return False
    raise AssertionError("an address that is neither the device's nor pinned")


def _streams(world: World) -> Any:
    """cupy.cuda.Stream, the class."""

    def stream(**flags: Any) -> Stream:
        return Stream(world)

    made: Any = stream
    made.null = world.null
    return made


def _elapsed(begin: Event, end: Event) -> float:
    assert begin.token is not None
    assert end.token is not None
    if begin.token.time is None or end.token.time is None:
        raise RuntimeError("cudaErrorNotReady")
    return end.token.time - begin.token.time


class SimpleDevice:
    """cupy.cuda.Device."""

    def __init__(self, world: World, index: int) -> None:
        self._world = world
        self.id = index

    def __enter__(self) -> SimpleDevice:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        for stream in self._world.streams:
            stream.synchronize()


def orders() -> Iterator[str | int]:
    """Ways in which a GPU may go about its work."""
    yield from ("lazy", "eager", 1, 2, 3)
