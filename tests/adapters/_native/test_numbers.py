"""The compiled reader and writer of number arrays, held against json, NumPy, and the ways without it."""

import ctypes
import json
import math
import mmap
import random
import shutil
import threading
from typing import Any

import numpy as np
import orjson
import pytest
from compiled_helpers import is_built, needs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.grps import number_text as grps_text
from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.tf_serving import json_text
from tensorgate.gateway.contract.tensor import DTYPES

needs_helper = needs("_numbers")
KIND_OF: dict[Any, Any] = {np.float32: "f", np.float64: "d"}
KINDS: dict[str, np.dtype[Any]] = {
    "f": np.dtype(np.float32),
    "d": np.dtype(np.float64),
    "i": np.dtype(np.int64),
    "u": np.dtype(np.uint64),
}


def test_the_helper_is_built_where_there_is_a_compiler() -> None:
    assert is_built("_numbers") or shutil.which("g++") is None, (
        "g++ is here: pip install -e . builds tensorgate.adapters._native._numbers"
    )


def scan(text: Any, start: int, kind: Any) -> tuple[np.ndarray[Any, Any], int] | None:
    """The helper itself -> array and end."""
    from tensorgate.adapters._native import _numbers

    found = _numbers.scan(text, start, kind)
    if found is None:
        return None
    flat, shape, end = found
    assert type(flat) is bytearray
    return np.frombuffer(flat, KINDS[kind]).reshape(shape), end


# ---------------------------------------------------------------------------------------------------------- the oracle


class Unfit(Exception):
    """Not a rectangular array of plain numbers that fit."""


class Underflow(Exception):
    """A number that is not 0 but has no other double: either answer is right."""


def _refuse(token: str) -> Any:
    raise Unfit(token)


def _float(token: str) -> float:
    value = float(token)
    if not value and any(digit in token.lower().partition("e")[0] for digit in "123456789"):
        raise Underflow(token)
    return value if math.isfinite(value) else _refuse(token)


def _shape(value: Any, leaves: list[Any]) -> tuple[int, ...]:
    if not isinstance(value, list):
        leaves.append(value if type(value) in (int, float) else _refuse(value))
        return ()
    shapes = {_shape(item, leaves) for item in value}
    if len(shapes) > 1:
        raise Unfit(value)
    return (len(value), *(shapes.pop() if shapes else ()))


def expected(text: bytes, start: int, kind: str) -> tuple[np.ndarray[Any, Any], int] | None:
    """The same by json, in Python's own numbers."""
    decoder = json.JSONDecoder(parse_constant=_refuse, parse_float=_float)
    try:
        if text[start : start + 1] != b"[":
            raise Unfit(text)
        value, end = decoder.raw_decode(text.decode("latin-1"), start)
        leaves: list[Any] = []
        shape = _shape(value, leaves)
        if len(shape) > 64 or (kind in "iu" and float in map(type, leaves)):
            raise Unfit(text)
        with np.errstate(over="ignore"):
            wide = np.array(leaves, np.float64 if kind in "fd" else KINDS[kind])
            return wide.astype(KINDS[kind]).reshape(shape), end
    except (Unfit, ValueError, OverflowError, RecursionError):
        return None


def assert_same(text: bytes, kind: str, start: int = 0, buffer: Any = None) -> bool:
    """Whether it was taken; fails unless helper and json agree bit by bit."""
    got = scan(text if buffer is None else buffer, start, kind)
    try:
        want = expected(text, start, kind)
    except Underflow:
        return False
    assert (got is None) == (want is None), (text, kind)
    if got is None or want is None:
        return False
    assert got[1] == want[1], (text, kind)
    assert got[0].shape == want[0].shape, (text, kind)
    assert got[0].tobytes() == want[0].tobytes(), (text, kind)
    return True


# -------------------------------------------------------------------------------------------------------------- tables

NUMBERS = [
    *(
        "0",
        "-0",
        "0.0",
        "-0.0",
        "0e5",
        "-0e5",
        "0e400",
        "0e99999999999999999999",
        "0.000e-9999999999",
        "1",
        "-1",
        "7.5",
    ),
    *("1e5", "1E5", "1e+5", "1e-5", "1.5e00000000000000000000001", "123456789012345678901234567890", "1e22", "1e23"),
    *("9007199254740993", "9007199254740992.5", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("-9223372036854775809", "18446744073709551615", "18446744073709551616", "19446744073709551616", "-5", "300"),
    *("99999999999999999999", "10000000000000000000", "1e308", "1.7976931348623157e308", "1.7976931348623158e308"),
    *("1.7976931348623159e308", "1e309", "1e400", "1e99999999999999999999", "2.2250738585072014e-308", "5e-324"),
    *("2.2250738585072011e-308", "3e-324", "2e-324", "1e-400", "1e-99999999999999999999", "3.4028235677973366e38"),
    *("3.4028235e38", "1e39", "-1e39", "1.17549435e-38", "1e-45", "7.006492321624085e-46", "7.006492321624086e-46"),
    *("0." + "0" * 400 + "1e400", "1" + "0" * 400 + "e-400", "1" * 400, "0." + "3" * 800, "1." + "0" * 30 + "1"),
    *("0.00012345678901234567", "12345678901234567.123", "1.0000000000000002220446049250313080847263336181640625"),
    *("00", "01", "-01", "1.", ".5", "-.5", "+1", "-", "--1", "1e", "1e+", "1.e5", "1.5.5", "1e5.5", "0x10", "1_0"),
    *("NaN", "Infinity", "-Infinity", "Inf", "nan", "true", "null", '"1"', "{}", "1 2", "1;", "\u0661", ""),
]
ARRAYS = [
    *(
        "[]",
        "[[]]",
        "[[],[]]",
        "[[[]],[[]]]",
        "[[],[[]]]",
        "[[[]],[]]",
        "[[],[1]]",
        "[[1],[]]",
        "[1,2,3]",
        "[[1,2],[3,4]]",
    ),
    *(
        "[[1,2],[3]]",
        "[[1],[2,3]]",
        "[1,[2]]",
        "[[1],2]",
        "[[[1]],[2]]",
        "[[1],[[2]]]",
        "[[[1,2]],[[3,4]]]",
        "[[1],[2],[3]]",
    ),
    *(
        " [1]",
        "[ 1 , 2 ]",
        "[\n1,\r2,\t3 ]",
        "[[ 1 ] , [ 2 ] ]",
        "[1,]",
        "[,1]",
        "[1,,2]",
        "[1 2]",
        "[1],",
        "[1]]",
        "[1] x",
    ),
    *("[", "[[", "[1", "[1,", "[1, ", "[[1]", "[[1],", "]", "[1}", "[1)", "[1\x00]", "[1\x0b]", "[\xa01]", "[1,\x0c2]"),
    *("[" * depth + "1" + "]" * depth for depth in (63, 64, 65, 100, 5000)),
    *("[" * depth + "]" * depth for depth in (64, 65)),
]


@needs_helper
@pytest.mark.parametrize("kind", KINDS)
def test_numbers(kind: str) -> None:
    taken = sum(assert_same(f"[{number}]".encode(), kind) for number in NUMBERS)
    assert taken > 8
    for number in NUMBERS:
        assert_same(f"[1, {number},{number}, {number} ]".encode(), kind)


@needs_helper
@pytest.mark.parametrize("kind", KINDS)
def test_arrays(kind: str) -> None:
    for array in ARRAYS:
        text = array.encode("latin-1")
        assert_same(text, kind)
        assert_same(b'{"a":' + text + b"}", kind, 5)


@needs_helper
def test_start_and_buffers() -> None:
    text = b'{"a": [1, 2], "b": [3]}'
    for buffer in (
        text,
        bytearray(text),
        memoryview(text),
        memoryview(b"__" + text)[2:],
        np.frombuffer(text, np.uint8),
    ):
        for start in range(-3, len(text) + 3):
            found = scan(buffer, start, "d")
            want = {6: ([1.0, 2.0], 12), 19: ([3.0], 22)}.get(start)
            assert (found and (found[0].tolist(), found[1])) == want
    with pytest.raises(TypeError):
        scan("[1]", 0, "d")
    with pytest.raises(ValueError, match="no such kind: x"):
        scan(b"[1]", 0, "x")
    with pytest.raises(BufferError):
        scan(memoryview(b"[ 1 ]")[::2], 0, "d")


@needs_helper
def test_the_output_grows_from_the_densest_to_the_sparsest_text() -> None:
    for count in (0, 1, 2, 510, 511, 512, 513, 1023, 5000, 70_000):
        for item in ("7", "7.25", "0.12345678901234567e-10", " \n" * 20 + "7"):
            assert assert_same(f"[{','.join([item] * count)}]".encode(), "f")
        assert assert_same(f"[{','.join(['[1]'] * count)}]".encode() if count else b"[]", "u")


# ---------------------------------------------------------------------------------------------------------- properties


@needs_helper
@given(st_numpy.arrays(np.uint64, st_numpy.array_shapes(min_dims=1, max_dims=4, max_side=4)))
def test_random_bit_patterns_come_back(bits: Any) -> None:
    doubles = np.where(np.isfinite(bits.view(np.float64)), bits.view(np.float64), 1.5)
    assert assert_same(json.dumps(doubles.tolist()).encode(), "d")
    assert assert_same(json.dumps(doubles.tolist(), indent=1).encode(), "f")
    assert assert_same(json.dumps(bits.tolist()).encode(), "u")
    assert assert_same(json.dumps(bits.view(np.int64).tolist(), separators=(",", ":")).encode(), "i")


@needs_helper
@given(
    st.lists(st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True), min_size=1)
)
def test_any_number_of_the_grammar(tokens: list[str]) -> None:
    for kind in KINDS:
        assert_same(f"[{','.join(tokens)}]".encode(), kind)


def _agree_in_bulk(tokens: list[str]) -> None:
    """Too many to go through json one by one."""
    want = np.array([*map(float, tokens)])
    assert np.isfinite(want).all()
    text = f"[{', '.join(tokens)}]".encode()
    doubles, singles = scan(text, 0, "d"), scan(text, 0, "f")
    assert doubles is not None
    assert singles is not None
    np.testing.assert_array_equal(doubles[0].view(np.uint64), want.view(np.uint64))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(singles[0].view(np.uint32), want.astype(np.float32).view(np.uint32))


@needs_helper
def test_many_doubles_of_any_digits() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**64, 100_000, np.uint64).view(np.float64)
    usual = rng.standard_normal(50_000) * 10.0 ** rng.integers(-30, 31, 50_000)
    subnormal = rng.integers(1, 2**52, 2_000, np.uint64).view(np.float64)
    for values in (bits[np.isfinite(bits)], usual, subnormal):
        _agree_in_bulk([*map(repr, values.tolist())])
    for digits in (6, 9, 16, 17, 18, 19, 20, 25):
        _agree_in_bulk([f"{value:.{digits}g}" for value in usual[:10_000].tolist()])
        _agree_in_bulk([f"{value:.{digits}f}" for value in rng.standard_normal(10_000).tolist()])


@needs_helper
def test_middles_between_neighbours_and_just_beside() -> None:
    """Where rounding is hardest: exact halves, and the same with one more digit."""
    rng = np.random.default_rng(2)
    singles = np.abs(rng.integers(0, 0x7F000000, 3000, np.uint32).view(np.float32))
    middles = (singles.astype(np.float64) + np.nextafter(singles, np.float32(np.inf)).astype(np.float64)) / 2
    _agree_in_bulk([repr(value) for value in middles.tolist()])
    tokens = []
    for low in (rng.random(1000) * 10.0 ** rng.integers(-15, 16, 1000)).tolist():
        exact = f"{_middle(low):f}" if low >= 1 else f"{_middle(low)}"
        tokens += [exact, f"{exact}0000000001" if "." in exact and "E" not in exact else exact]
    _agree_in_bulk(tokens)


def _middle(low: float) -> Any:
    """Halfway between a double and the next, to the last digit."""
    from decimal import Context, Decimal

    context = Context(prec=1200)
    return context.divide(context.add(Decimal(low), Decimal(math.nextafter(low, math.inf))), Decimal(2))


# ---------------------------------------------------------------------------------------------------------------- fuzz

SEEDS = [
    (b"[[1.5,-2.25e3],[0.125, 7]]", "f"),
    (b"[0.1234567890123456, -98765.4321, 1e-7]", "d"),
    (b"[[[1],[23]],[[456],[-7890]]]", "i"),
    (b"[18446744073709551615, 0,\n12]", "u"),
    (b"[12345678.12345678,123456789012345678901234]", "d"),
]
LIKELY = b'0123456789.eE+-[], \n\r\t"{}:nNIt\x00\xff/'


@needs_helper
def test_mutations_are_refused_or_mean_the_same_to_json() -> None:
    dice = random.Random(3)  # noqa: S311
    taken = 0
    for _ in range(200_000 // len(SEEDS)):
        for seed, kind in SEEDS:
            text = bytearray(seed)
            at = dice.randrange(len(text))
            byte = dice.choice(LIKELY) if dice.random() < 0.9 else dice.randrange(256)
            action = dice.randrange(3)
            text[at : at + (action != 0)] = b"" if action == 1 else bytes([byte])
            taken += assert_same(bytes(text), kind)
    assert taken > 20_000


class Guarded:
    """A page between two that may not be touched: a read before its begin or behind its end kills the process."""

    def __init__(self) -> None:
        size = mmap.PAGESIZE
        self._pages = mmap.mmap(-1, 3 * size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        protect = ctypes.CDLL(None).mprotect
        for page in (0, 2):
            assert protect(ctypes.c_void_p(address + page * size), ctypes.c_size_t(size), 0) == 0

    def at_begin(self, text: bytes) -> memoryview:
        return self._holding(text, mmap.PAGESIZE)

    def at_end(self, text: bytes) -> memoryview:
        return self._holding(text, 2 * mmap.PAGESIZE - len(text))

    def _holding(self, text: bytes, at: int) -> memoryview:
        self._pages[at : at + len(text)] = text
        return memoryview(self._pages)[at : at + len(text)]


@needs_helper
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_outside_the_text(kind: str) -> None:
    guarded = Guarded()
    whole = [f"[{number}]" for number in NUMBERS] + ["[[1.5e-7, -2],\n[12345678, 1234567890123456]]", *ARRAYS]
    for text in (text.encode("utf-8") for text in whole if len(text) < 1000):
        for end in range(1, len(text) + 1):
            for start in {0, 1, end - 1}:
                assert_same(text[:end], kind, start, guarded.at_end(text[:end]))
        assert_same(text, kind, 0, guarded.at_begin(text))


@needs_helper
def test_threads_read_side_by_side() -> None:
    texts = [(json.dumps([[part, part + 0.5]] * 5000)).encode() for part in range(4)]
    wrong = []

    def read(part: int) -> None:
        for _ in range(20):
            found = scan(texts[part], 0, "f")
            if found is None or not (found[0] == [part, part + 0.5]).all():
                wrong.append(part)

    threads = [threading.Thread(target=read, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---------------------------------------------------------------------------------------------------------------- text


def _without_helper(array: Any, columns: int, between: str) -> list[str]:
    with pytest.MonkeyPatch.context() as without:
        without.setattr(json_text, "_format_rows", None)
        return json_text.number_rows(array, columns, between)


def _floats(rng: np.random.Generator, dtype: Any) -> list[np.ndarray[Any, Any]]:
    """Numbers of every kind, and those next to which digits change."""
    bits = np.uint32 if dtype is np.float32 else np.uint64
    most = 38 if dtype is np.float32 else 308
    powers = np.array([float(f"1e{exponent}") for exponent in range(-most, most + 1)]).astype(dtype)
    exponents = np.arange(np.iinfo(bits).max >> np.finfo(dtype).nmant, dtype=bits) << bits(np.finfo(dtype).nmant)
    edges = (exponents[:, None] + np.arange(-8, 8).astype(bits)).reshape(-1).view(dtype)
    six = (rng.integers(1, 10**6, 20_000) * 10.0 ** rng.integers(-most, most - 6, 20_000)).astype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        return [
            rng.integers(0, np.iinfo(bits).max, 40_000, bits, endpoint=True).view(dtype),
            (rng.standard_normal(20_000) * 10.0 ** rng.integers(-30, 31, 20_000)).astype(dtype),
            rng.integers(-(10**8), 10**8, 10_000).astype(dtype),
            (rng.integers(0, 10**7, 20_000) / 10.0 ** rng.integers(0, 8, 20_000)).astype(dtype),
            (rng.integers(0, 2**24, 20_000) * 2.0 ** rng.integers(-40, 10, 20_000)).astype(dtype),
            (rng.integers(0, 10**6, 10_000) * 10 + 5).astype(dtype) / dtype(2),
            (rng.integers(0, 10**9, 10_000) + 0.5).astype(dtype),
            np.arange(1, 2000, dtype=bits).view(dtype),
            *(powers, np.nextafter(powers, dtype(0)), np.nextafter(powers, dtype(np.inf))),
            *(six, np.nextafter(six, dtype(0)), np.nextafter(six, dtype(np.inf))),
            edges,
            np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf], dtype),
        ]


@needs_helper
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_text_is_that_of_the_way_without_the_helper(dtype: Any) -> None:
    from tensorgate.adapters._native import _numbers

    for array in _floats(np.random.default_rng(4), dtype):
        got = _numbers.format_rows(array, KIND_OF[dtype], array.size, "\n").pop().split("\n")
        assert got == _without_helper(array, 1, "")


@needs_helper
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_text_is_that_of_printf(dtype: Any) -> None:
    """Six digits if they read back, else as many as always do."""
    from tensorgate.adapters._native import _numbers

    for array in _floats(np.random.default_rng(5), dtype):
        some = np.ascontiguousarray(array[np.isfinite(array)][:10_000])
        short = [f"{value:g}" for value in some.tolist()]
        digits = 9 if dtype is np.float32 else 17
        fits = np.array([*map(float, short)], dtype) == some if some.size else []
        want = [
            text if fit else f"{value:.{digits}g}" for text, fit, value in zip(short, fits, some.tolist(), strict=True)
        ]
        want = [text if "." in text or "e" in text else text + ".0" for text in want]
        got = _numbers.format_rows(some, KIND_OF[dtype], 1, "")
        assert got == want


@needs_helper
@given(
    st_numpy.arrays(st.sampled_from([np.float32, np.float64]), st_numpy.array_shapes(min_dims=2, max_dims=2)),
    st.sampled_from(["", ", ", ",\n    ", "é"]),
)
def test_rows_are_joined(array: Any, between: str) -> None:
    from tensorgate.adapters._native import _numbers

    got = _numbers.format_rows(array, KIND_OF[array.dtype.type], array.shape[1], between)
    assert got == [between.join(row) for row in (_without_helper(line, 1, "") for line in array)]
    assert json_text.number_rows(array[:, ::-1], array.shape[1], ", ") == _without_helper(
        array[:, ::-1], array.shape[1], ", "
    )


@needs_helper
@pytest.mark.parametrize(
    ("kind", "columns", "between"), [("f", 0, ""), ("f", -1, ""), ("f", 2, ""), ("i", 1, ""), ("f", 1, " " * 5000)]
)
def test_what_are_no_rows(kind: Any, columns: int, between: str) -> None:
    from tensorgate.adapters._native import _numbers

    with pytest.raises(ValueError, match=r"not rows|too much"):
        _numbers.format_rows(np.ones(3, np.float32), kind, columns, between)
    assert _numbers.format_rows(np.ones(0, np.float32), "f", 3, ", ") == []


# ------------------------------------------------------------------------------------------------------- Python's text

PYTHONS: list[tuple[Any, str]] = [
    (1.0, "1.0"),
    (-0.0, "-0.0"),
    (0.1, "0.1"),
    (-123456.75, "-123456.75"),
    (1e-4, "0.0001"),
    (1.5e-4, "0.00015"),
    (9.999e-5, "9.999e-05"),
    (1e-5, "1e-05"),
    (5e-324, "5e-324"),
    (2.2250738585072014e-308, "2.2250738585072014e-308"),
    (1e-100, "1e-100"),
    (9007199254740993.0, "9007199254740992.0"),
    (1234567890123456.7, "1234567890123456.8"),
    (9999999999999998.0, "9999999999999998.0"),
    (1e15, "1000000000000000.0"),
    (1e16, "1e+16"),
    (1.5e22, "1.5e+22"),
    (-1.7976931348623157e308, "-1.7976931348623157e+308"),
    (math.nan, '"NaN"'),
    (-math.nan, '"NaN"'),
    (math.inf, '"Infinity"'),
    (-math.inf, '"-Infinity"'),
]
PYTHONS_OF_FLOAT32: list[tuple[Any, str]] = [
    (0.1, "0.1"),
    (1 / 3, "0.33333334"),
    (16777216.0, "16777216.0"),
    (1e10, "10000000000.0"),
    (123456789.0, "123456790.0"),
    (1.25e14, "125000000000000.0"),
    (1e15, "1000000000000000.0"),
    (1e16, "1e+16"),
    (1.00390625, "1.0039062"),  # the even one of two as near
    (1.01171875, "1.0117188"),
    (3.4028234663852886e38, "3.4028235e+38"),
    (1.1754943508222875e-38, "1.1754944e-38"),
    (1.401298464324817e-45, "1e-45"),
    (-math.inf, '"-Infinity"'),
]
NUMBER_TYPES = [np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64]


def python_texts(array: np.ndarray[Any, Any], kind: Any) -> list[str]:
    from tensorgate.adapters._native import _numbers

    text = _numbers.format_nested(array, kind, array.shape, (b" ",))
    assert type(text) is bytearray
    return text.decode().split(" ")


@needs_helper
def test_pythons_text_to_the_byte() -> None:
    for table, dtype, kind in ((PYTHONS, np.float64, "d"), (PYTHONS_OF_FLOAT32, np.float32, "f")):
        values, want = zip(*table, strict=True)
        assert python_texts(np.array(values, dtype), kind) == [*want]
    assert python_texts(np.array([0.1, 1e-5, 0.5], np.float32), "w") == [
        "0.10000000149011612",
        "9.999999747378752e-06",
        "0.5",
    ]


@needs_helper
@pytest.mark.parametrize("seed", [6, 7])
def test_text_of_doubles_is_pythons(seed: int) -> None:
    for array in _floats(np.random.default_rng(seed), np.float64):
        finite = np.ascontiguousarray(array[np.isfinite(array)])
        assert python_texts(finite, "d") == [*map(repr, finite.tolist())]


@needs_helper
@pytest.mark.parametrize("seed", [6, 7])
def test_text_of_widened_floats_is_pythons(seed: int) -> None:
    for array in _floats(np.random.default_rng(seed), np.float32):
        finite = np.ascontiguousarray(array[np.isfinite(array)])
        assert python_texts(finite, "w") == [*map(repr, finite.tolist())]


@needs_helper
def test_text_of_floats_has_numpys_digits() -> None:
    """The shortest of 32 bits, set as Python sets those of 64."""
    for array in _floats(np.random.default_rng(6), np.float32):
        finite = np.ascontiguousarray(array[np.isfinite(array)])
        assert python_texts(finite, "f") == [repr(float(text)) for text in finite.astype(np.str_).tolist()]


@needs_helper
def test_decimals_next_to_where_digits_are_chosen() -> None:
    """Halves between two decimals, decimals at the ends of what reads back, and powers of two."""
    rng = np.random.default_rng(8)
    halves = (rng.integers(0, 2**20, 20_000) * 2 + 1) / 2.0 ** rng.integers(1, 60, 20_000)
    even = rng.integers(0, 2**53, 20_000).astype(np.float64) * 2.0 ** rng.integers(-300, 300, 20_000)
    large = np.array([float(number << shift) for number in (3, 5**9, 5**22, 5**22 + 1) for shift in range(900)])
    powers = 2.0 ** np.arange(-1074, 1024)
    for array in (halves, even, large, powers):
        assert python_texts(array, "d") == [*map(repr, array.tolist())]
        with np.errstate(over="ignore"):
            singles = array.astype(np.float32)
        singles = np.ascontiguousarray(singles[np.isfinite(singles)])
        assert python_texts(singles, "f") == [repr(float(text)) for text in singles.astype(np.str_).tolist()]


def _joined_without_helper(array: Any, seams: tuple[bytes, ...], *, widened: bool) -> bytes:
    with pytest.MonkeyPatch.context() as without:
        without.setattr(grps_text, "_format_nested", None)
        return bytes(grps_text.joined(array, seams, widened=widened))


@needs_helper
@given(
    st.sampled_from(NUMBER_TYPES).flatmap(
        lambda dtype: st_numpy.arrays(dtype, st_numpy.array_shapes(max_dims=5, max_side=4))
    ),
    st.sampled_from([b",", b",\n     ", b'",\n     "', b",\n" + b" " * 50]),
    st.booleans(),
)
def test_seams_stand_where_they_do_without_the_helper(array: Any, first: bytes, widened: bool) -> None:
    seams = (first, *(b"]" * count + b"\n" * (5 * count) + b"[" * count for count in range(1, array.ndim)))
    widened = widened and array.dtype == np.float32
    for values in (array, array.T):
        got = grps_text.joined(values, seams, widened=widened)
        assert got == _joined_without_helper(values, seams, widened=widened)


@needs_helper
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("widened", [False, True])
def test_pythons_text_is_that_of_the_way_without_the_helper(dtype: Any, widened: bool) -> None:
    for array in _floats(np.random.default_rng(9), dtype):
        for part in np.array_split(array, array.size // 4000 + 1):  # more are written otherwise without it
            widen = widened and dtype is np.float32
            assert grps_text.joined(part, (b",",), widened=widen) == _joined_without_helper(
                part, (b",",), widened=widen
            )


@needs_helper
def test_integers_are_pythons() -> None:
    for dtype in NUMBER_TYPES[2:]:
        limits = np.iinfo(dtype)
        values = np.array([limits.min, limits.min + 1, 0, 1, 9, 10, 99, 100, limits.max - 1, limits.max], dtype)
        assert grps_text.joined(values, (b" ",)) == " ".join(map(str, values.tolist())).encode()


@needs_helper
@pytest.mark.parametrize(
    ("kind", "shape", "seams", "want"),
    [
        ("x", (4,), (b",",), "no such kind: x"),
        ("ff", (4,), (b",",), "no such kind: ff"),
        ("d", (4,), (b",",), "not the shape"),
        ("f", (3,), (b",",), "not the shape"),
        ("f", (5,), (b",",), "not the shape"),
        ("f", (0, 4), (b",", b""), "not the shape"),
        ("f", (-1, -4), (b",", b""), "not the shape"),
        ("f", (2**40, 2**40), (b",", b""), "not the shape"),
        ("f", (2, 2), (b",",), "not as many seams"),
        ("f", (4,), (b",", b""), "not as many seams"),
        ("f", (), (), "not as many seams"),
        ("f", (1,) * 64 + (4,), (b",",) * 65, "not as many seams"),
        ("f", (4,), (b"," * 5000,), "too much between"),
    ],
)
def test_what_is_no_nesting(kind: Any, shape: Any, seams: Any, want: str) -> None:
    from tensorgate.adapters._native import _numbers

    with pytest.raises(ValueError, match=want):
        _numbers.format_nested(np.ones(4, np.float32), kind, shape, seams)


@needs_helper
def test_what_are_no_arguments_of_a_nesting() -> None:
    from tensorgate.adapters._native import _numbers

    four: Any = np.ones(4, np.float32)
    wrong: list[tuple[Any, ...]] = [
        (four, "f", (4,)),
        (four, 1, (4,), (b",",)),
        (four, "f", [4], (b",",)),
        (four, "f", (4.0,), (b",",)),
        (four, "f", (4,), [b","]),
        (four, "f", (4,), (",",)),
        ("text", "f", (4,), (b",",)),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError):
            _numbers.format_nested(*arguments)
    with pytest.raises(ValueError, match="not numbers of this kind"):
        _numbers.format_nested(np.ones(3, np.uint8), "f", (3,), (b",",))
    with pytest.raises(ValueError, match="not the shape"):
        _numbers.format_nested(np.ones(0, np.float32), "f", (0,), (b",",))


@needs_helper
def test_threads_write_side_by_side() -> None:
    arrays = [np.full((100, 200), part + 0.1, np.float32) for part in range(4)]
    want = [_joined_without_helper(array, (b",", b";"), widened=True) for array in arrays]
    wrong = []

    def write(part: int) -> None:
        wrong.extend([part] * (grps_text.joined(arrays[part], (b",", b";"), widened=True) != want[part]))

    threads = [threading.Thread(target=write, args=(part,)) for part in [*range(4)] * 10]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ------------------------------------------------------------------------------------------------------------ the twin

TWIN: list[tuple[bytes, str, Any]] = [
    (b"[[1, 2.5]]", "FP32", [[1, 2.5]]),
    (b"[[1, 2.5]]", "FP64", [[1, 2.5]]),
    (b"[255, 0]", "UINT8", [255, 0]),
    (b"[256]", "UINT8", None),
    (b"[-1]", "UINT8", None),
    (b"[-128, 127]", "INT8", [-128, 127]),
    (b"[-129]", "INT8", None),
    (b"[]", "INT16", []),
    (b"[1e39]", "FP32", [math.inf]),
    (b"[1]", "FP16", None),
    (b"[1]", "BF16", None),
    (b"[true]", "BOOL", None),
    (b"[1]", "BYTES", None),
]


@pytest.mark.parametrize(("text", "datatype", "want"), TWIN)
def test_dtypes_of_the_twin(text: bytes, datatype: str, want: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json_body.scan(text, 0, DTYPES[datatype])
    if want is None or not is_built("_numbers"):
        assert found is None
    else:
        assert found is not None
        array, end = found
        assert (array.dtype, array.tolist(), end) == (DTYPES[datatype], want, len(text))
        array[...] = 0  # it is the caller's own
    monkeypatch.setattr(json_body, "_native_scan", None)
    assert json_body.scan(text, 0, DTYPES[datatype]) is None


# ---------------------------------------------------------------------------------- float32 text that reads back equal


def read_back(text: bytes) -> np.ndarray[Any, Any]:
    return np.array(json.loads(text), np.float64).astype(np.float32)


def brief(array: np.ndarray[Any, Any]) -> bytes:
    text = json_body.float32_text(array)
    assert text is not None
    return text


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 100.0, 123456.0, 99999992.0, 1e8, 1e9, 3.4028235e38, 1e-5, 9.999999e-6, 1e-45]
SPECIAL += [0.1, 0.30000001, 9.9999998e-5, 0.99999994, 1.0000001, 9.999999, 99.99999, 1e-38, 16777216.0, 0.00012345]


@needs_helper
def test_float32_text_of_special_numbers() -> None:
    array = np.array(SPECIAL, np.float32)
    text = brief(array)
    np.testing.assert_array_equal(read_back(text).view(np.uint32), array.view(np.uint32))
    assert text.startswith(b"[0.0,-0.0,1.0,-1.0,0.5,100.0,123456.0,99999992.0,1e+08,")
    odd = np.array([np.nan, np.inf, -np.inf, 2], np.float32)
    assert brief(odd) == b"[NaN,Infinity,-Infinity,2.0]"
    assert brief(np.zeros(0, np.float32)) == b"[]"
    with pytest.raises(ValueError, match="not float32"):
        brief(np.zeros(3, np.uint8))


@needs_helper
@pytest.mark.parametrize("seed", range(4))
def test_float32_text_reads_back_bit_equal(seed: int) -> None:
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2**32, 300_000, np.uint32).view(np.float32)
    usual = (random.normal(0, 1, 300_000) * 10.0 ** random.integers(-7, 10, 300_000)).astype(np.float32)
    powers = np.nextafter(
        (10.0 ** random.integers(-6, 10, 50_000)).astype(np.float32),
        random.choice(np.array([-np.inf, np.inf], np.float32), 50_000),
    )
    array = np.concatenate([bits[np.isfinite(bits)], usual, powers, usual.round(2).astype(np.float32)])
    np.testing.assert_array_equal(read_back(brief(array)).view(np.uint32), array.view(np.uint32))


# ------------------------------------------------------------------------------------------- between two known texts

BEFORE, AFTER = b'{"inputs":[{"data":', b"}]}"


@needs_helper
@given(st.data())
def test_an_array_between_known_texts_is_what_scan_reads_or_nothing(data: st.DataObject) -> None:
    from tensorgate.adapters._native import _numbers

    kind: Any = data.draw(st.sampled_from(["f", "d", "i", "u"]))
    numbers = data.draw(st.lists(st.integers(0, 2**40) if kind in "iu" else st.floats(-1e20, 1e20), min_size=1))
    text = bytearray(BEFORE + json.dumps([numbers]).encode() + AFTER)
    for place in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=2)):
        text[place] = data.draw(st.sampled_from(b'0,.-e[] ]"x'))
    body = bytes(text[: data.draw(st.sampled_from([len(text), len(text) // 2, 3, 0]))])
    for count, most in ((len(numbers), 2), (len(numbers) + 1, 2), (len(numbers), 1)):
        found = _numbers.read_between(body, BEFORE, AFTER, kind, count, most)
        whole = body.startswith(BEFORE) and body.endswith(AFTER) and len(body) > len(BEFORE) + len(AFTER)
        read = scan(body, len(BEFORE), kind) if whole else None
        fits = read is not None and read[1] == len(body) - len(AFTER) and read[0].size == count
        if read is not None and fits and read[0].ndim <= most:
            assert found == read[0].tobytes()
        else:
            assert found is None


@needs_helper
@given(st.sampled_from([np.float32, np.float64]), st.data())
def test_floats_between_two_texts_are_written_as_orjson_does_or_not(dtype: Any, data: st.DataObject) -> None:
    from tensorgate.adapters._native import _numbers

    width = 32 if dtype is np.float32 else 64
    every = st.floats(width=width)
    usual = st.integers(-(10**7), 10**7).map(lambda n: n / 1000)
    array = np.array(data.draw(st.lists(every | usual)), dtype)
    text = _numbers.write_between(b"<", array, b">", KIND_OF[dtype])
    most = 1e13 if dtype is np.float32 else 1e16
    if not np.isfinite(array).all() or (np.abs(array) >= np.array(most, dtype)).any():
        assert text is None
    else:
        assert text == b"<" + orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY) + b">"


@needs_helper
def test_what_is_long_is_not_read_or_written_between_texts() -> None:
    from tensorgate.adapters._native import _numbers

    text = BEFORE + json.dumps([0] * 20000).encode() + AFTER
    assert _numbers.read_between(text, BEFORE, AFTER, "f", 20000, 1) is None
    assert _numbers.write_between(b"", np.zeros(20000, np.float32), b"", "f") is None


@needs_helper
def test_misuse_of_the_pair_raises() -> None:
    from tensorgate.adapters._native import _numbers

    misused: Any = _numbers
    with pytest.raises(TypeError):
        misused.read_between(b"[1]", b"", b"", "f", 1)
    with pytest.raises(TypeError):
        misused.write_between(b"", np.zeros(1), b"")
    with pytest.raises(ValueError, match="no such kind"):
        misused.read_between(b"[1]", b"", b"", "x", 1, 1)
    with pytest.raises(ValueError, match="no such kind"):
        misused.write_between(b"", np.zeros(1), b"", "x")
