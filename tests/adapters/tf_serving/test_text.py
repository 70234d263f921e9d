"""Number text and the rendering of values, against their definitions element by element."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.json.body import read
from tensorgate.adapters.tf_serving import json_text
from tensorgate.adapters.tf_serving.json_text import number_rows, quote, show


@pytest.fixture(params=["compiled, where it can be", "NumPy"], scope="module", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here holds with the compiled helper and without."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "NumPy":
            patch.setattr(json_text, "_format_rows", None)
        yield


FLOAT32 = [
    (1.0, "1.0"),
    (0.1, "0.1"),
    (0.2, "0.2"),
    (1e6, "1e+06"),
    (9e6, "9e+06"),
    (3e-5, "3e-05"),
    (1234567, "1234567.0"),
    (16777216, "16777216.0"),
    (1 / 3, "0.333333343"),
    (123456.78, "123456.781"),
    (3.4028234663852886e38, "3.40282347e+38"),
    (-0.0, "-0.0"),
    (0.0, "0.0"),
    (1e-45, "1.4013e-45"),
    (999999.5, "999999.5"),
    (123456789, "123456792.0"),
    (math.nan, "NaN"),
    (math.inf, "Infinity"),
    (-math.inf, "-Infinity"),
]
FLOAT64 = [
    (0.1, "0.1"),
    (0.1 + 0.2, "0.30000000000000004"),
    (0.12345678901230001, "0.12345678901230001"),
    (1e16, "1e+16"),
    (5e-324, "4.94066e-324"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (2.0**53, "9007199254740992.0"),
    (123456789.0, "123456789.0"),
    (math.nan, "NaN"),
    (-math.inf, "-Infinity"),
]
WHOLE: list[tuple[str, list[Any], list[str]]] = [
    ("bool", [True, False], ["true", "false"]),
    ("uint8", [0, 255], ["0", "255"]),
    ("int64", [-(2**63), 2**63 - 1], ["-9223372036854775808", "9223372036854775807"]),
    ("uint64", [2**64 - 1], ["18446744073709551615"]),
]


@pytest.mark.parametrize(("dtype", "table"), [(np.float32, FLOAT32), (np.float64, FLOAT64)])
@pytest.mark.parametrize("times", [1, 500])
def test_floats(dtype: Any, table: list[tuple[float, str]], times: int) -> None:
    values = [value for value, _ in table] * times
    assert number_rows(np.array(values, dtype), 1) == [text for _, text in table] * times


@pytest.mark.parametrize(("dtype", "values", "texts"), WHOLE)
def test_whole_numbers(dtype: str, values: list[Any], texts: list[str]) -> None:
    assert number_rows(np.array(values, dtype), 1) == texts


def definition(value: Any) -> str:
    """The contract's words, for one element."""
    number = float(value)
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    text = "%g" % number  # noqa: UP031
    if type(value)(text) != value:
        text = ("%.9g" if value.itemsize == 4 else "%.17g") % number
    return text if "." in text or "e" in text else text + ".0"


def assert_texts(array: np.ndarray[Any, Any]) -> None:
    texts = number_rows(array, 1)
    assert texts == [definition(value) for value in array.reshape(-1)]
    np.testing.assert_array_equal(np.array(texts, array.dtype), array.reshape(-1))


@given(st_numpy.arrays(st.sampled_from([np.float32, np.float64]), st_numpy.array_shapes(max_dims=2, max_side=20)))
def test_every_text_is_the_definitions(array: np.ndarray[Any, Any]) -> None:
    assert_texts(array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_texts_of_many(dtype: Any, seed: int) -> None:
    """All bit patterns, short decimals, whole numbers, and neighbours of powers of ten: what random floats miss."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, 4000 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    short = (rng.integers(0, 10**7, 3000) * 10.0 ** rng.integers(-12, 12, 3000)).astype(dtype)
    whole = rng.integers(-(2**31), 2**31, 2000).astype(dtype)
    tens = np.array([10.0**power for power in range(-37, 39)], dtype)
    near = np.concatenate([np.nextafter(tens, np.inf, dtype=dtype), np.nextafter(tens, 0, dtype=dtype), tens, -tens])
    halves = (rng.integers(0, 2**24, 2000) / 2.0 ** rng.integers(0, 40, 2000)).astype(dtype)
    with np.errstate(invalid="ignore"):
        assert_texts(np.concatenate([bits, short, whole, near, halves, rng.random(3000).astype(dtype)]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint64, np.bool_])
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (7, 40), (3, 2)])
@pytest.mark.parametrize("between", [", ", ",\n        "])
def test_rows(dtype: Any, shape: tuple[int, int], between: str) -> None:
    array = (np.random.default_rng(1).normal(0, 50, shape) ** 2).astype(dtype)
    if array.dtype.kind == "f":
        array.flat[::5] = np.resize([math.nan, -math.inf, 1e-45, 0.0, -0.0, 1.5], array.flat[::5].size)
    assert number_rows(array, array.shape[1], between) == [between.join(number_rows(row, 1)) for row in array]


# ---------------------------------------------------------------------------------------------------- values in errors

SHOWN = [
    ("1", "1"),
    ('[1, [2.5, null], true, "a\\n"]', '[1, [2.5, null], true, "a\\n"]'),
    ("[]", "[]"),
    ("{}", "{}"),
    ('{"a": 1, "b": {"c": []}}', '{\n    "a": 1,\n    "b": {\n        "c": []\n    }\n}'),
    ('[{"a": 1}, {"b": 2}]', '[{\n        "a": 1\n    }, {\n        "b": 2\n    }]'),
    ('{"a": 1, "b": {}, "a": "x"}', '{\n    "a": 1,\n    "b": {},\n    "a": "x"\n}'),
    ("1.0", "1.0"),
    ("1e21", "1e21"),
    ("1e20", "100000000000000000000.0"),
    ("123456789012345680000.0", "123456789012345680000.0"),
    ("1.5e300", "1.5e300"),
    ("1e-6", "0.000001"),
    ("1.5e-7", "1.5e-7"),
    ("0.25", "0.25"),
    ("-0.0", "-0.0"),
    ("-12.5", "-12.5"),
    ("18446744073709551615", "18446744073709551615"),
    ("18446744073709551616", "18446744073709552000.0"),
    ("NaN", ""),
    ("[1, NaN, 2]", "[1, "),
    ('"\u00e9\U0001f600/"', '"\u00e9\U0001f600/"'),
    ("[" * 300 + "]" * 300, "[" * 256),
    ('["' + "a" * 300 + '", 1]', '["' + "a" * 300 + '"'),
    ("[" + "1, " * 200 + "1]", "[" + ", ".join("1" * 86)),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN, ids=[text[:30] for text, _ in SHOWN])
def test_values_are_shown(text: str, shown: str) -> None:
    assert show(read(text.encode(), 1000)) == shown
    if not text.startswith("NaN"):  # read by the other parser, the document looks the same
        assert show(read(b"[NaN," + text.encode() + b"]", 1000)[1]) == shown


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_shown_doubles_read_back(value: float) -> None:
    assert float(show(value)) == value


@given(st.text(st.characters(codec="utf-8")))
def test_quoted_strings_read_back(text: str) -> None:
    assert json.loads(quote(text)) == text
    short = quote(text)[1:-1]
    assert quote(text * 40 + "/" * 999) == '"' + short * 40 + "/" * 999 + '"'
