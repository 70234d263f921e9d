"""Arrays <-> messages: small ones in the message, large ones in the arena of the process that sends them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.errors import Exhausted
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, Array, Tensors
from tensorgate.gateway.crossing.arena import Arena, ArenaFull, PeerArena
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import Block, Tensor

INLINE_MAX_BYTES: Final = 16 << 10
"""Up to here, copying bytes through the socket costs less than a block of the arena."""

_MAX_DIMENSIONS: Final = 32
_LENGTHS: Final = np.dtype("<u4")


class TensorWriter:
    """Arrays -> messages. It keeps what lies in the arena until the other side releases it."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._tickets = itertools.count(1)
        self._held: dict[int, Array] = {}

    def room(self, size: int) -> memoryview | None:
        """Writable memory for what will be sent from where it lies; None where the arena is full."""
        try:
            return memoryview(self._arena.allocate(size))
        except ArenaFull:
            return None

    def tensors(self, arrays: Tensors) -> tuple[Tensor, ...]:
        """Raises Exhausted where the arena is full."""
        return tuple([self.tensor(name, array) for name, array in arrays.items()])

    def tensor(self, name: str, array: Array) -> Tensor:
        """One array on the host. Raises Exhausted."""
        dtype, shape = array.dtype, array.shape
        if dtype == BYTES:
            elements: list[bytes] = array.reshape(-1).tolist()
            lengths = np.fromiter(map(len, elements), _LENGTHS, len(elements)).tobytes()
            return Tensor(name, "BYTES", shape, self.data(b"".join(elements)), self.data(lengths))
        if array.nbytes <= INLINE_MAX_BYTES:
            return Tensor(name, DATATYPES[dtype], shape, array.tobytes())
        return Tensor(name, DATATYPES[dtype], shape, self._block(array))

    def data(self, data: Any) -> bytes | Block:
        """Bytes of any length. Raises Exhausted."""
        if len(data) <= INLINE_MAX_BYTES:
            return data if type(data) is bytes else bytes(data)
        return self._block(np.frombuffer(data, np.uint8))

    def release(self, tickets: Iterable[int]) -> None:
        """The other side has no array of these any more. Raises CrossingBroken for a ticket that is not out."""
        for ticket in tickets:
            if self._held.pop(ticket, None) is None:
                raise CrossingBroken(f"ticket {ticket} is not out")

    def _block(self, array: Array) -> Block:
        """An array where it lies, if that is the arena; else a copy there."""
        size = array.nbytes
        offset = None
        if array.flags.c_contiguous:
            offset = self._arena.find(array.__array_interface__["data"][0], size)
        if offset is None:
            try:
                root = self._arena.allocate(size)
            except ArenaFull as error:
                raise Exhausted(f"no memory for the tensors of so many requests at once: {error}") from None
            np.copyto(root.view(array.dtype).reshape(array.shape), array)
            array = root
            offset = root.__array_interface__["data"][0] - self._arena.address
        ticket = next(self._tickets)
        self._held[ticket] = array
        return Block(offset, size, ticket)


class TensorReader:
    """Messages -> arrays. What lies in the other side's arena is read there."""

    def __init__(self, arena: PeerArena) -> None:
        self._arena = arena

    def tensors(self, given: Iterable[Tensor]) -> dict[str, Array]:
        """Raises CrossingBroken for what does not fit."""
        return {tensor.name: self.tensor(tensor) for tensor in given}

    def tensor(self, given: Tensor) -> Array:
        """Raises CrossingBroken."""
        shape = given.shape
        dtype = DTYPES.get(given.datatype)
        if dtype is None or len(shape) > _MAX_DIMENSIONS or (shape and min(shape) < 0):
            raise CrossingBroken(f"a tensor of {given.datatype}, shape {list(shape)[:_MAX_DIMENSIONS]}")
        count = math.prod(shape)
        data = given.data
        if dtype == BYTES:
            return self._texts(given, count).reshape(shape)
        if count * dtype.itemsize != (len(data) if isinstance(data, bytes) else data.size):
            raise CrossingBroken(f"a tensor of shape {list(shape)} with other data")
        if isinstance(data, bytes):
            return np.frombuffer(data, dtype).reshape(shape) if count else np.empty(shape, dtype)
        if not count:
            return np.empty(shape, dtype)
        return self._arena.view(data).view(dtype).reshape(shape)

    def data(self, given: bytes | Block) -> Any:
        """Bytes, or a memoryview. Raises CrossingBroken."""
        return given if isinstance(given, bytes) else memoryview(self._arena.view(given))

    def _texts(self, given: Tensor, count: int) -> Array:
        lengths, data = self.data(given.lengths), self.data(given.data)
        if len(lengths) != count * _LENGTHS.itemsize:
            raise CrossingBroken(f"{count} elements with {len(lengths)} bytes of lengths")
        ends = np.cumsum(np.frombuffer(lengths, _LENGTHS), dtype=np.int64).tolist()
        if (ends[-1] if ends else 0) != len(data):
            raise CrossingBroken(f"elements of {ends[-1] if ends else 0} bytes in {len(data)}")
        array = np.empty(count, BYTES)
        begin = 0
        whole = bytes(data)
        for index, end in enumerate(ends):
            array[index] = whole[begin:end]
            begin = end
        return array
