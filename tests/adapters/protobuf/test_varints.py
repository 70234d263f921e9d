"""Arrays of varints: the compiled helper and NumPy's way write what protobuf writes, and read what it reads."""

import shutil
from typing import Any

import numpy as np
import pytest
from compiled_helpers import is_built
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from tensorgate.adapters.protobuf import varints
from tensorgate.adapters.protobuf.messages import message

TensorProto = message("tensorflow.TensorProto")
WAYS = ["helper", "numpy"]
KINDS = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]


def test_the_helper_is_built_where_there_is_a_compiler() -> None:
    assert is_built("_varints") or shutil.which("g++") is None, (
        "g++ is here: pip install -e . builds tensorgate.adapters._native._varints"
    )


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    choose(request.param, monkeypatch)
    return str(request.param)


def choose(way: str, patched: pytest.MonkeyPatch) -> None:
    if way == "numpy":
        patched.setattr(varints, "_native_encode", None)
        patched.setattr(varints, "_native_decode", None)
        patched.setattr(varints, "_CHUNK", 3)
    elif varints._native_encode is None:
        pytest.skip("no compiler here, so there is no compiled helper")


def numbers_of(kind: str) -> st.SearchStrategy[Any]:
    dtype = np.dtype(kind)
    bounds = np.iinfo(dtype)
    every = st.integers(int(bounds.min), int(bounds.max))
    edges = st.builds(
        lambda bit, more: min(max((1 << bit) + more, bounds.min), bounds.max), st.integers(0, 64), st.integers(-1, 1)
    )
    return st.lists(st.one_of(every, edges, st.integers(0, 100)), max_size=20).map(lambda each: np.array(each, dtype))


@pytest.mark.parametrize("way", WAYS)
@given(array=st.sampled_from(KINDS).flatmap(numbers_of))
@example(array=np.array([0, 127, 128, 2**64 - 1], np.uint64))
@example(array=np.array([-(2**63), -1, 2**63 - 1], np.int64))
@example(array=np.array([], np.int16))
@example(array=np.arange(300, dtype=np.uint16)[::3])
def test_they_are_written_as_protobuf_writes_them(way: str, array: Any) -> None:
    field, tag = ("uint64_val", 2) if array.dtype.kind == "u" else ("int64_val", 1)
    expected = TensorProto(**{field: array.tolist()}).SerializeToString()
    with pytest.MonkeyPatch.context() as patched:
        choose(way, patched)
        data = bytes(varints.encode(array))
        assert expected[tag + (1 if len(data) < 128 else 2) :] == data
        found = varints.decode(data)
    assert found is not None
    assert found.astype(array.dtype).tolist() == array.tolist()


def by_protobuf(data: bytes) -> Any:
    size = bytes([len(data)])
    try:
        return TensorProto.FromString(b"\x8a\x01" + size + data).uint64_val[:]
    except DecodeError:
        return None


@pytest.mark.parametrize("way", WAYS)
@given(data=st.one_of(st.binary(max_size=40), st.lists(st.sampled_from([0, 1, 127, 128, 255]), max_size=30).map(bytes)))
@example(data=b"\x80" * 9 + b"\x01")
@example(data=b"\xff" * 9 + b"\x7f")
@example(data=b"\x80" * 10 + b"\x01")
@example(data=b"\x01\x80")
@example(data=b"\x80\x00\x01")
def test_they_are_read_as_protobuf_reads_them(way: str, data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patched:
        choose(way, patched)
        found = varints.decode(data)
    assert (None if found is None else found.tolist()) == by_protobuf(data)


def test_many(way: str) -> None:
    """So many that the interpreter is given away meanwhile."""
    array = np.random.default_rng(0).integers(-(2**63), 2**63, 20_000, np.int64) >> np.arange(20_000) % 64
    found = varints.decode(varints.encode(array))
    assert found is not None
    assert np.array_equal(found.view(np.int64), array)
    assert varints.decode(bytes(varints.encode(array))[:-1] + b"\x80") is None
    assert varints.decode(b"\x80" * 100_000 + b"\x01") is None


def test_truth_values_are_bytes(way: str) -> None:
    assert bytes(varints.encode(np.array([True, False, True]))) == b"\1\0\1"


def test_the_helper_refuses_what_is_no_array() -> None:
    native = pytest.importorskip("tensorgate.adapters._native._varints")
    for arguments, error in (
        ((b"abc", "u2"), ValueError),
        ((b"", "f4"), ValueError),
        ((b"",), TypeError),
        ((1, "u1"), TypeError),
    ):
        with pytest.raises(error):
            native.encode(*arguments)
    with pytest.raises(TypeError):
        native.decode("text")
