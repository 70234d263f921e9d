"""Tensors of every datatype, for tables that hold each encoding and each decoding against a judge of its own.

Values are made once and kept: what is random here is the same in every run. Nothing here reads or writes with the code
under test: the judges are NumPy, struct, json, and protobuf's own runtime.
"""

import json
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import pytest

from tensorgate.adapters.grps import number_text as grps_numbers
from tensorgate.adapters.grps import proto_message as grps_proto
from tensorgate.adapters.grps import request as grps_request
from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json import cuts as json_cuts
from tensorgate.adapters.json import texts
from tensorgate.adapters.open_inference import proto_client as v2_proto_client
from tensorgate.adapters.open_inference import proto_message as v2_proto_message
from tensorgate.adapters.open_inference import proto_request as v2_proto_request
from tensorgate.adapters.open_inference import request as v2_request
from tensorgate.adapters.protobuf import varints
from tensorgate.adapters.tf_serving import json_text as tf_numbers
from tensorgate.adapters.tf_serving import predict_request as tf_predict_request
from tensorgate.adapters.tf_serving import proto_client as tf_proto_client
from tensorgate.adapters.tf_serving import proto_request as tf_proto_request
from tensorgate.adapters.tf_serving import proto_response as tf_proto_response
from tensorgate.gateway.contract.call import Reply

Array: TypeAlias = Any
Shape: TypeAlias = tuple[int, ...]
Family: TypeAlias = Literal["text", "odd", "bits", "small", "usual"]

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("u2"),
    "UINT32": np.dtype("u4"),
    "UINT64": np.dtype("u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("i2"),
    "INT32": np.dtype("i4"),
    "INT64": np.dtype("i8"),
    "FP16": np.dtype("f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("f4"),
    "FP64": np.dtype("f8"),
    "BYTES": np.dtype("O"),
}
FLOATS = ("FP16", "BF16", "FP32", "FP64")
INTEGERS = tuple(name for name, dtype in DTYPES.items() if dtype.kind in "iu")

SHAPES: dict[int, tuple[Shape, ...]] = {
    0: ((0,), (2, 0), (0, 3), (1, 0, 2)),
    1: ((), (1,), (1, 1), (1, 1, 1)),
    1023: ((1023,), (33, 31), (3, 11, 31)),
    1024: ((1024,), (32, 32), (4, 16, 16)),
    20_000: ((20_000,), (100, 200)),
}
"""Numbers of elements -> shapes. Shortcuts begin and end between them."""
SHAPED = [(count, shape) for count, shapes in SHAPES.items() for shape in shapes]
EDGES_OF_SHORTCUTS = (2, 99, 100, 255, 256, 511, 512, 513, 2047, 2048, 4096, 4097)
"""More numbers of elements, one dimension each: where the code counts, it counts to one of these."""
_ONCE = ((0, (0, 3)), (1, ()), (1023, (33, 31)), (1024, (1024,)), (20_000, (100, 200)))


class Key(NamedTuple):
    """Which values: `text` is what JSON carries, `odd` has NaN and infinities besides, `bits` is whatever the memory of
    an array may hold, `small` is what one byte of a varint holds, `usual` has no edges. Values differ from `turn` to
    `turn`.
    """

    datatype: str
    elements: int
    family: Family = "text"
    turn: int = 0


_TEXTS = [
    *(b"", b"a", b"\0", b"\0\0x\0", b'"', b"\\", b'say "\\n" \\', b"\n\t\r\b\f", bytes(range(32)), b"\x7f", b"/"),
    *("größe".encode(), "漢字".encode(), "😀\U0010ffff".encode(), "\u2028\u2029\ufeff".encode(), "e\u0301".encode()),
    *(b"[1,2]", b'{"b64": "AA=="}', b"],[", b"null", b"NaN", b"true", b"0", b" ", b"%s%d", b"<&>"),
    *(b"x" * 127, b"y" * 128, b"z" * 300, "ü".encode() * 8000, b'"' * 600, b"\x01" * 700),
]
_NOT_UTF8 = [b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"ok\x80", bytes(range(256))]
_WHOLE = [0, 1, -1, 2, 7, 10, 99, 100, 1000, 123456, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 10**18, 10**19]
_WHOLE += [
    sign * (1 << bit) + more for bit in (7, 8, 14, 15, 16, 21, 28, 31, 32, 63) for more in (-1, 0) for sign in (1, -1)
]
_BROKEN = [
    0.1,
    1 / 3,
    2.5,
    1e-4,
    9.9999e-5,
    1e-5,
    3e-5,
    1e5,
    123456.0,
    123456.781,
    999999.5,
    1e6,
    1234567.0,
    16777216.0,
]
_BROKEN += [1e9, 1e10, 1e13, 1e15, 1e16, 1e17, 1e20, 1e21, 1e22, 1e23, 1e-7, 5e-324, 1e300, 2.2250738585072014e-308]
_BROKEN += [0.30000000000000004, 0.12345678901230001, 9007199254740993.0, 65504.0, 65519.9, 3.3895314e38, 1e-45]


@cache
def edges(datatype: str, family: Family = "text") -> Array:
    """The values at which encodings go wrong."""
    dtype = DTYPES[datatype]
    if datatype == "BYTES":
        return _strings(_TEXTS + (_NOT_UTF8 if family == "bits" else []))
    if datatype == "BOOL":
        return np.array([True, False])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        ends = [limits.min, limits.min + 1, limits.max - 1, limits.max]
        return np.array(ends + [each for each in _WHOLE if limits.min <= each <= limits.max], dtype)
    known: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    own = [known.max, known.min, known.tiny, -known.tiny, known.smallest_subnormal, -known.smallest_subnormal]
    own += [known.eps, np.nextafter(known.tiny, dtype.type(0)), np.nextafter(dtype.type(1), dtype.type(2))]
    with np.errstate(over="ignore", under="ignore"):
        more = np.array([0.0, -0.0, 1.0, -1.0, *_BROKEN, *[-each for each in _BROKEN], *map(float, _WHOLE)]).astype(
            dtype
        )
    found = np.concatenate((np.array(own, dtype), more[np.isfinite(more)]))
    if family in ("odd", "bits"):
        found = np.concatenate((found, np.array([np.nan, np.inf, -np.inf], dtype)))
    return found


@cache
def flat(key: Key) -> Array:
    """The values, [count], read-only: some edges first and last, and what is random between them."""
    rng = np.random.default_rng([key.elements, key.turn, *key.datatype.encode(), *key.family.encode()])
    dtype, count = DTYPES[key.datatype], key.elements
    if key.family == "small":
        array = _small(rng, key.datatype, count)
    else:
        some = edges(key.datatype, key.family)
        array = _random(rng, key, dtype)
        places = np.arange(0 if key.family == "usual" else count)
        places = np.concatenate((places[: some.size], places[some.size :][-some.size :]))
        array[places] = np.resize(np.roll(some, -7 * key.turn), places.size)
    array.setflags(write=False)
    return array


def _random(rng: Any, key: Key, dtype: np.dtype[Any]) -> Array:
    """Mostly such numbers as tensors have, some of any bits."""
    count = key.elements
    if dtype.kind == "O":
        return _strings(
            [b"%d" % number if number % 5 else f"é{number}".encode() for number in rng.integers(0, 10**6, count)]
        )
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    anything = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    if key.family == "bits" or dtype.kind in "iu":
        return anything
    usual = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 5, count)).astype(dtype)
    with np.errstate(invalid="ignore"):
        wild = (rng.random(count) < (0 if key.family == "usual" else 0.1)) & np.isfinite(anything)
    usual[wild] = anything[wild]
    return usual


def _small(rng: Any, datatype: str, count: int) -> Array:
    numbers = rng.integers(0, 2 if datatype == "BOOL" else 128, count)
    return _strings([b"%d" % each for each in numbers]) if datatype == "BYTES" else numbers.astype(DTYPES[datatype])


def _strings(elements: list[bytes]) -> Array:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def shaped(key: Key, shape: Shape) -> Array:
    return flat(key).reshape(shape)


@cache
def leaves(key: Key) -> list[Any]:
    """bool, int, float or bytes each; floats as the doubles that equal them."""
    array = flat(key)
    return array.astype(np.float64).tolist() if key.datatype in FLOATS else array.tolist()  # type: ignore[no-any-return]


@cache
def raw(key: Key) -> bytes:
    """Little-endian elements one behind the other; texts behind their lengths, of four bytes."""
    if key.datatype == "BYTES":
        return b"".join([struct.pack("<I", len(each)) + each for each in flat(key)])
    return _packed(flat(key))


def _packed(array: Array) -> bytes:
    assert np.little_endian
    return bytes(array.tobytes())


@cache
def json_text(key: Key, shape: Shape = (-1,)) -> str:
    """Nested lists, with the tokens NaN, Infinity and -Infinity. The shortest digits of floats every second turn, else
    those of the doubles.
    """
    return json.dumps(nested(json_leaves(key), flat(key).reshape(shape).shape), ensure_ascii=key.turn % 2 == 0)


@cache
def json_leaves(key: Key) -> list[Any]:
    """bool, int, float or str each."""
    if key.datatype == "BYTES":
        return [each.decode() for each in leaves(key)]
    if key.datatype == "FP32" and key.turn % 2:
        return [float(str(each)) for each in flat(key)]
    return leaves(key)


def nested(values: list[Any], shape: Shape) -> Any:
    """Values in row-major order -> lists in lists; of rank 0 the value alone."""
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape).tolist()


def layouts(array: Array) -> Iterator[tuple[str, Array]]:
    """The same values in other memory: what a model may give."""
    yield "read-only", array
    yield "writable", array.copy()
    if not array.ndim:
        return
    wrong = b"WRONG" if array.dtype == object else 1
    for name, size, place in (
        ("every second", (array.shape[0] * 2, *array.shape[1:]), np.s_[::2]),
        ("some rows", (array.shape[0] + 5, *array.shape[1:]), np.s_[2 : 2 + array.shape[0]]),
        ("some columns", (*array.shape[:-1], array.shape[-1] + 3), np.s_[..., 1 : 1 + array.shape[-1]]),
    ):
        whole = np.empty(size, array.dtype)
        whole[...] = wrong
        whole[place] = array
        yield name, whole[place]
    yield "backwards", array[::-1].copy()[::-1]
    if array.ndim > 1:
        yield "Fortran", np.asfortranarray(array)
        yield "transposed", array.T.copy().T


def few_layouts(array: Array, way: str) -> Iterator[tuple[str, Array]]:
    """All of small matrices as it runs, else those that matter most."""
    wanted = ("read-only", "every second", "Fortran")
    for name, other in layouts(array):
        if (way == "as it runs" and array.ndim > 1 and array.size < 2000) or name in wanted:
            yield name, other


def cases(way: str) -> list[tuple[int, Shape]]:
    """Numbers of elements and shapes: all of them as it runs, else one shape of each number. What is cut by hand is so
    anyway where it is large, and what has no helper is plain there.
    """
    if way == "as it runs":
        return SHAPED + [(count, (count,)) for count in EDGES_OF_SHORTCUTS]
    return [*(_ONCE if way == "plain" else _ONCE[:-1])]


def turns(datatype: str, count: int, family: Family = "text") -> list[Key]:
    """Messages of one form: the second and third may be read by what the first has taught."""
    return [Key(datatype, count, family, turn) for turn in range(3 if count < 2000 else 2)]


def assert_same(got: Array, key: Key, shape: Shape, *, exact: bool = True) -> None:
    """Bit by bit; without `exact`, all NaN are one."""
    want = shaped(key, shape)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype == object:
        assert got.tolist() == want.tolist()
        assert {type(each) for each in got.reshape(-1)} <= {bytes}
        return
    if not exact and want.dtype.kind != "b":
        with np.errstate(invalid="ignore"):
            missing = np.isnan(want)
            assert (np.isnan(got) == missing).all()
        got, want = (np.where(missing, want.dtype.type(0), each) for each in (got, want))
    assert got.tobytes() == want.tobytes()


def assert_json(got: Any, key: Key, shape: Shape = (-1,)) -> None:
    """Values that json has read, nested as the shape is: of the right types, and equal as the datatype's numbers."""
    flat_got, shape = [], flat(key).reshape(shape).shape

    def walk(value: Any, level: int) -> None:
        if level == len(shape):
            flat_got.append(value)
            return
        assert isinstance(value, list)
        assert len(value) == shape[level]
        for item in value if level + 1 < len(shape) else ():
            walk(item, level + 1)
        if level + 1 == len(shape):
            flat_got.extend(value)

    walk(got, 0)
    kind = {"b": bool, "i": int, "u": int, "f": float, "V": float, "O": str}[DTYPES[key.datatype].kind]
    assert {type(each) for each in flat_got} <= {kind}
    if key.datatype in FLOATS:
        with np.errstate(over="ignore"):
            assert_same(np.array(flat_got, np.float64).astype(DTYPES[key.datatype]), key, (-1,), exact=False)
    elif key.datatype == "BYTES":
        assert [each.encode() for each in flat_got] == leaves(key)
    else:
        assert flat_got == leaves(key)


def joined(reply: Any) -> bytes:
    """The body of a Reply or an Ask, in one piece."""
    body = reply.body
    return bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)


def received(body: bytes, status: int = 200, **headers: str) -> Reply:
    """An answer as a client gets it."""
    return Reply(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


# --------------------------------------------------------------------------------------------------------------- ways

WAYS = ("as it runs", "no helpers", "plain", "by hand")
"""`plain`: without any of the shortcuts. `by hand`: what is cut by hand where it is large, is cut where it is small."""
WAYS_OUT = ("as it runs", "plain")
"""Those that differ where something is written."""
NEVER = 1 << 62
PLAIN: dict[str, list[tuple[Any, str, Any]]] = {
    "v2_json_templates": [(v2_request, "_json_templates", None)],
    "v2_binary_heads": [(v2_request, "_binary_heads", None)],
    "v2_grpc_templates": [(v2_proto_request, "_unary", None), (v2_proto_request, "_streamed", None)],
    "lone_arrays": [(json_cuts, "_IS_TAKEN", False)],
    "array_cuts": [(json_cuts, "_long_arrays", None), (json_cuts, "_long_texts", None)],
    "stacked_columns": [(tf_predict_request, "_STACKS", False)],
    "message_cuts": [
        (v2_proto_message, "WALKED_BYTES", NEVER),
        (v2_proto_client, "_LARGE_BYTES", NEVER),
        (tf_proto_request, "_WALKED_BYTES", NEVER),
        (tf_proto_client, "_SMALL_BYTES", NEVER),
        (grps_proto, "_WALKED_BYTES", NEVER),
        (grps_request, "MIN_BYTES", NEVER),
    ],
    "predict_frames": [(tf_proto_response, "_around_lone", lambda *_, content: None)],
    "native_numbers": [
        (json_body, "_native_scan", None),
        (json_body, "_native_text", None),
        (json_body, "_native_depth", None),
        (tf_numbers, "_format_rows", None),
        (grps_numbers, "_format_nested", None),
    ],
    "native_texts": [
        (texts, "_native_lengths", None),
        (texts, "_native_read_lengths", None),
        (texts, "_native_json", None),
        (texts, "_native_read_json", None),
    ],
    "native_varints": [(varints, "_native_encode", None), (varints, "_native_decode", None)],
    "native_examples": [],
}
"""The dialects' shortcuts by name, and what turns each off where it was imported; tf.Examples are no tensors."""
_BY_HAND = [
    *((owner, name, 0) for owner, name, _ in PLAIN["message_cuts"]),
    (json_cuts, "MIN_BODY_BYTES", 0),
    (json_cuts, "_MIN_BYTES", 64),
]


def take(way: str, patched: pytest.MonkeyPatch) -> None:
    """From here on, everything goes that way."""
    helpers = [name for name in PLAIN if name.startswith("native_")]
    off = {"no helpers": helpers, "plain": [*PLAIN]}.get(way, [])
    changes = [change for name in off for change in PLAIN[name]]
    for owner, name, value in changes + (_BY_HAND if way == "by hand" else []):
        patched.setattr(owner, name, value)
