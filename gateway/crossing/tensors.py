"""Arrays <-> messages: small ones in the message, large ones in the arena of the process that sends them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.errors import EncodingFailed, Exhausted
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Array, Tensors
from tensorgate.gateway.crossing.arena import Arena, ArenaFull, PeerArena
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import Block, Tensor

INLINE_MAX_BYTES: Final = 16 << 10
"""Up to here, copying bytes through the socket costs less than a block of the arena."""

_NUMBERS: Final = {dtype: datatype for datatype, dtype in DTYPES.items() if dtype != BYTES}
_MAX_DIMENSIONS: Final = 32
_LENGTHS: Final = np.dtype("<u4")
_MAX_KNOWN_FORMS: Final = 1024
_MAX_SIZE: Final = 1 << 56
"""Elements; eight bytes each, they are still addresses."""


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
        """Raises Exhausted where the arena is full, EncodingFailed."""
        found = []
        for name, array in arrays.items():
            if array.nbytes <= INLINE_MAX_BYTES and (datatype := _NUMBERS.get(array.dtype)) is not None:
                found.append(Tensor(name, datatype, array.shape, array.tobytes()))
            else:
                found.append(self.tensor(name, array))
        return tuple(found)

    def tensor(self, name: str, array: Array) -> Tensor:
        """One array on the host. Raises Exhausted, EncodingFailed."""
        shape = array.shape
        if array.dtype == BYTES:
            elements: list[bytes] = array.reshape(-1).tolist()
            lengths = np.fromiter(map(len, elements), _LENGTHS, len(elements)).tobytes()
            return Tensor(name, "BYTES", shape, self.data(b"".join(elements)), self.data(lengths))
        datatype = _NUMBERS.get(array.dtype)
        if datatype is None:
            raise EncodingFailed(f"tensor {name} is {array.dtype}, which has no datatype")
        return Tensor(
            name, datatype, shape, array.tobytes() if array.nbytes <= INLINE_MAX_BYTES else self._block(array)
        )

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

    def forget(self) -> None:
        """The other side has gone, and all that it had."""
        self._held.clear()

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
        self._forms: dict[tuple[str, tuple[int, ...]], tuple[np.dtype[Any], int]] = {}
        """(dtype, size in bytes) by datatype and shape, of numbers that have come. Bounded: then it begins anew."""

    def tensors(self, given: Iterable[Tensor]) -> dict[str, Array]:
        """Raises CrossingBroken for what does not fit."""
        return {tensor.name: self.tensor(tensor) for tensor in given}

    def tensor(self, given: Tensor) -> Array:
        """Raises CrossingBroken."""
        datatype, shape, data = given.datatype, given.shape, given.data
        if datatype == "BYTES":
            return self._texts(given, math.prod(_checked(datatype, shape))).reshape(shape)
        dtype, size = self._forms.get((datatype, shape)) or self._learn(datatype, shape)
        if type(data) is bytes:
            if len(data) == size:
                return np.ndarray(shape, dtype, data)
        elif type(data) is Block and data.size == size:
            return np.ndarray(shape, dtype, self._arena.view(data))
        raise CrossingBroken(f"a tensor of {datatype}, shape {list(shape)}, with other data")

    def _learn(self, datatype: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any], int]:
        """The form of numbers that come for the first time."""
        dtype = DTYPES.get(datatype)
        if dtype is None:
            raise CrossingBroken(f"a tensor of {datatype[:80]}")
        if len(self._forms) >= _MAX_KNOWN_FORMS:
            self._forms.clear()
        form = self._forms[datatype, shape] = dtype, math.prod(_checked(datatype, shape)) * dtype.itemsize
        return form

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


def _checked(datatype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that arrays may have. Raises CrossingBroken for any other, also where its product is none of NumPy's."""
    if len(shape) > _MAX_DIMENSIONS or any(size < 0 or size > _MAX_SIZE for size in shape):
        raise CrossingBroken(f"a tensor of {datatype}, shape {list(shape)[:_MAX_DIMENSIONS]}")
    if math.prod([size for size in shape if size]) > _MAX_SIZE:  # NumPy counts an empty array's bytes like this
        raise CrossingBroken(f"a tensor of {datatype}, shape {list(shape)}")
    return shape
