"""Tensors cross with equal bytes, from where they lie where that can be; what does not fit is CrossingBroken."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.gateway.contract.errors import EncodingFailed, Exhausted
from tensorgate.gateway.contract.tensor import DTYPES
from tensorgate.gateway.crossing.arena import Arena, PeerArena
from tensorgate.gateway.crossing.frames import CrossingBroken, FrameReader, add_frame
from tensorgate.gateway.crossing.messages import Block, Submit, Tensor
from tensorgate.gateway.crossing.tensors import INLINE_MAX_BYTES, TensorReader, TensorWriter

BYTES = DTYPES["BYTES"]
NUMBERS = sorted(set(DTYPES) - {"BYTES"})


class Sides:
    """Two sides of a crossing without a socket."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self.arena = Arena(max_bytes)
        self.peer = PeerArena(os.dup(self.arena.fd))
        self.writer, self.reader = TensorWriter(self.arena), TensorReader(self.peer)

    def cross(self, array: Any) -> Any:
        return self.reader.tensor(self.through(self.writer.tensor("x", array)))

    def through(self, tensor: Tensor) -> Tensor:
        """The tensor as the other side's decoder makes it."""
        buffer = bytearray()
        add_frame(Submit(1, 1, (tensor,)), buffer)
        [message] = FrameReader[Submit](Submit).receive(memoryview(buffer))
        return message.inputs[0]

    def settle(self) -> None:
        self.writer.release(self.peer.take_released())


@pytest.fixture
def sides() -> Iterator[Sides]:
    sides = Sides()
    yield sides
    sides.arena.close()


def same(found: Any, given: Any) -> None:
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    assert found.tolist() == given.tolist() if given.dtype == BYTES else found.tobytes() == given.tobytes()


SHAPES = [(), (0,), (1,), (3, 0, 2), (7,), (2, 3, 4), (1, 40_000), (128, 129), (1,) * 32]


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_datatype(sides: Sides, datatype: str, shape: tuple[int, ...]) -> None:
    dtype = DTYPES[datatype]
    count = int(np.prod(shape))
    noise = np.random.default_rng(1).integers(0, 2 if datatype == "BOOL" else 256, count * dtype.itemsize, np.uint8)
    array = noise.view(dtype).reshape(shape)
    found = sides.cross(array)
    same(found, array)
    assert not (found.size and found.flags.writeable)
    assert (array.nbytes > INLINE_MAX_BYTES) == (sides.arena.used > 0)
    del found
    sides.settle()
    assert sides.arena.used == 0


@pytest.mark.parametrize("size", [INLINE_MAX_BYTES - 1, INLINE_MAX_BYTES, INLINE_MAX_BYTES + 1])
def test_sizes_around_the_bound(sides: Sides, size: int) -> None:
    array = np.arange(size) % 251
    array = array.astype(np.uint8)
    tensor = sides.writer.tensor("x", array)
    assert isinstance(tensor.data, Block) == (size > INLINE_MAX_BYTES)
    same(sides.reader.tensor(tensor), array)


@pytest.mark.parametrize("size", [12, 30_000])
@pytest.mark.parametrize("form", ["fortran", "strides", "negative", "broadcast"])
def test_other_layouts(sides: Sides, size: int, form: str) -> None:
    base = np.arange(2 * size, dtype=np.float32).reshape(2, -1)
    array = {
        "fortran": np.asfortranarray(base),
        "strides": base[:, ::3],
        "negative": base[::-1, ::-1],
        "broadcast": np.broadcast_to(base[0], (3, size)),
    }[form]
    assert not array.flags.c_contiguous
    same(sides.cross(array), np.ascontiguousarray(array))


@pytest.mark.parametrize("dtype", [">f4", ">i8", "c16", "M8[s]", "U3", "S2", "V4"])
@pytest.mark.parametrize("size", [1, 30_000])
def test_what_has_no_datatype_fails_alone(sides: Sides, dtype: str, size: int) -> None:
    with pytest.raises(EncodingFailed):
        sides.writer.tensors({"y": np.zeros(size, dtype)})
    assert sides.arena.used == 0


@pytest.mark.parametrize(
    "elements",
    [
        [],
        [b""],
        [b"", b"\0", b""],
        [b"a" * INLINE_MAX_BYTES],
        [b"x" * 3_000_000, b""],
        [b"ab"] * 9000,
        [bytes([9])] * 5,
    ],
    ids=range(7),
)
def test_texts(sides: Sides, elements: list[bytes]) -> None:
    array = np.empty(len(elements), BYTES)
    array[:] = elements
    same(sides.cross(array), array)
    sides.settle()
    assert sides.arena.used == 0


def test_texts_of_any_shape(sides: Sides) -> None:
    for shape in ((), (1, 1), (2, 3), (0, 4)):
        array = np.empty(shape, BYTES)
        array[...] = b"abc"
        same(sides.cross(array), array)


def test_what_lies_in_the_arena_is_not_copied(sides: Sides) -> None:
    """A body is received there, and the tensors are its parts, wherever they begin."""
    room = sides.writer.room(1_000_000)
    assert room is not None
    room[:] = bytes(range(250)) * 4000
    body = room.toreadonly()
    del room
    used = sides.arena.used
    sent = sides.writer.tensors(
        {"a": np.frombuffer(body, "<f4", 20_000, 13), "b": np.ndarray((100, 300), "<i2", body, 200_001)}
    )
    assert sides.arena.used == used
    found = sides.reader.tensors(map(sides.through, sent))
    assert found["a"].tobytes() == bytes(body[13:80_013])
    assert found["b"].tobytes() == bytes(body[200_001:260_001])
    assert sides.writer.data(body).ticket == 3
    del body, sent
    assert sides.arena.used == used
    del found
    sides.settle()
    assert sides.arena.used == used, "one ticket is out"
    sides.writer.forget()
    assert sides.arena.used == 0


def test_room_in_a_full_arena_is_none() -> None:
    sides = Sides(1 << 20)
    assert sides.writer.room(2 << 20) is None
    with pytest.raises(Exhausted):
        sides.writer.tensor("x", np.zeros(1 << 20))
    sides.arena.close()


def test_tickets_come_back_once(sides: Sides) -> None:
    tensor = sides.writer.tensor("x", np.zeros(10_000))
    assert isinstance(tensor.data, Block)
    sides.writer.release([tensor.data.ticket])
    assert sides.arena.used == 0
    for ticket in (tensor.data.ticket, 0, -1, 2**63):
        with pytest.raises(CrossingBroken):
            sides.writer.release([ticket])


HOSTILE = [
    Tensor("x", "FP32", (2,), b"1234"),
    Tensor("x", "FP32", (1,), b""),
    Tensor("x", "FP32", (), b""),
    Tensor("x", "FP32", (0,), b"1"),
    Tensor("x", "FP32", (-1,), b"1234"),
    Tensor("x", "FP32", (-1, -1), b"1234"),
    Tensor("x", "FP32", (2**63,), b""),
    Tensor("x", "FP32", (2**32, 2**32), b""),
    Tensor("x", "FP64", (2**31, 2**30), b""),
    Tensor("x", "UINT8", (2**64 - 1, 0), b""),
    Tensor("x", "UINT8", (2**40, 2**40, 0), b""),
    Tensor("x", "FP32", (1,) * 33, b"1234"),
    Tensor("x", "FP32", (1,) * 70, b"1234"),
    Tensor("x", "<invalid>", (1,), b"1234"),
    Tensor("x", "", (1,), b""),
    Tensor("x", "FP32", (10_000,), Block(0, 39_999, 1)),
    Tensor("x", "FP32", (10_000,), Block(-4, 40_000, 1)),
    Tensor("x", "FP32", (10_000,), Block(64 << 20, 40_000, 1)),
    Tensor("x", "FP32", (2**56,), Block(0, 2**58, 1)),
    Tensor("x", "BYTES", (1,), b"abc", b""),
    Tensor("x", "BYTES", (1,), b"abc", b"\2\0\0\0"),
    Tensor("x", "BYTES", (1,), b"abc", b"\4\0\0\0"),
    Tensor("x", "BYTES", (2,), b"abc", b"\xff\xff\xff\xff\4\0\0\0"),
    Tensor("x", "BYTES", (2**60,), b"", b""),
    Tensor("x", "BYTES", (0, 2**62, 2**62), b"", b""),
    Tensor("x", "BYTES", (1,), Block(-1, 5, 1), b"\5\0\0\0"),
    Tensor("x", "BYTES", (1,), b"abc", Block(0, 8, 1)),
]


@pytest.mark.parametrize("tensor", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_tensors(sides: Sides, tensor: Tensor) -> None:
    for _ in range(2):  # what is remembered of a form changes nothing
        with pytest.raises(CrossingBroken):
            sides.reader.tensor(tensor)


sizes = st.one_of(st.integers(-3, 9), st.sampled_from([2**31, 2**32, 2**63, 2**64 - 1, -(2**63)]))
datas = st.binary(max_size=40) | st.builds(Block, sizes, sizes, sizes)
SIDES = Sides()


@given(
    st.builds(
        Tensor,
        st.text(max_size=3),
        st.sampled_from(sorted(DTYPES)),
        st.lists(sizes, max_size=4).map(tuple),
        datas,
        datas,
    )
)
def test_any_tensor(tensor: Tensor) -> None:
    try:
        found = SIDES.reader.tensor(SIDES.through(tensor))
    except CrossingBroken:
        return
    assert found.shape == tensor.shape
    assert found.tobytes() is not None


def test_many_forms(sides: Sides) -> None:
    for size in range(3000):
        assert sides.reader.tensor(Tensor("x", "UINT8", (size,), bytes(size))).shape == (size,)
