"""JSON bodies: values, syntax errors in RapidJSON's words, number arrays, rectangles."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.body import (
    ARRAY,
    OBJECT,
    OutOfRange,
    Ragged,
    WrongLeaf,
    length,
    members,
    numbers,
    read,
    rectangle,
)
from tensorgate.gateway.contract.errors import MalformedJson
from tensorgate.gateway.contract.tensor import DTYPES

ERRORS = [
    (b"", "The document is empty.", 0),
    (b"  ", "The document is empty.", 2),
    (b"{", "Missing a name for object member.", 1),
    (b'{"a" 1}', "Missing a colon after a name of object member.", 5),
    (b"[1 2]", "Missing a comma or ']' after an array element.", 3),
    (b'{"a":1', "Missing a comma or '}' after an object member.", 6),
    (b"[1.]", "Miss fraction part in number.", 3),
    (b"[1e]", "Miss exponent in number.", 3),
    (b"[1e400]", "Number too big to be stored in double.", 1),
    (b"[" + b"9" * 5000 + b"]", "Number too big to be stored in double.", None),
    (b'["\\x"]', "Invalid escape character in string.", 2),
    (b'["\\u00zz"]', "Incorrect hex digit after \\u escape in string.", 2),
    (b'["\\ud800"]', "The surrogate pair in string is invalid.", 2),
    (b'"abc', "Missing a closing quotation mark in string.", 4),
    (b"[nan]", "Invalid value.", 2),
    (b"\xef\xbb\xbf[x]", "Invalid value.", 4),
    (b'{"a":1} x', "The document root must not be followed by other values.", 8),
    (b'["\xff"]', "Invalid encoding in string.", 2),
    (b"[" * 2000 + b"]" * 2000, "nesting deeper than 100 levels", None),
    (b'{"a":' * 101 + b"1" + b"}" * 101, "nesting deeper than 100 levels", None),
    (b"[" * 100_000, "nesting deeper than 100 levels", None),
    # What is no JSON has many brackets, too: what is wrong first is told.
    (b"\xff\xd8\xff\xe0", "Invalid value.", 0),
    (b"\xff\xd8\xff\xe0" + b"[" * 5000, "Invalid value.", 0),
    (b"\x89PNG\r\n" + b"{[" * 200_000, "Invalid value.", 0),
    (b"[" * 50 + b"x" + b"[" * 200, "Invalid value.", 50),
    (b"[" * 200 + b"x", "nesting deeper than 100 levels", None),
    (b"[" * 99 + b'"\xff"' + b"[" * 200, "Invalid encoding in string.", 100),
    (b'{"a":1}\xff\xd8' + b"[" * 200, "The document root must not be followed by other values.", 7),
    (b'{"a":\xff}', "Invalid value.", 5),
    (b'["\xff', "Invalid encoding in string.", 2),
    (b"[1" + b",1" * 60_000 + b"x" + b"[" * 200, "nesting deeper than 100 levels", None),  # far from the beginning
]


@pytest.mark.parametrize(("body", "reason", "offset"), ERRORS, ids=[repr(body[:20]) for body, _, _ in ERRORS])
def test_syntax_errors_have_rapidjsons_words_and_offset(body: bytes, reason: str, offset: int | None) -> None:
    with pytest.raises(MalformedJson) as caught:
        read(body, 100)
    assert (caught.value.reason, caught.value.offset) == (reason, offset)


@pytest.mark.parametrize(("body", "reason", "offset"), ERRORS, ids=[repr(body[:20]) for body, _, _ in ERRORS])
@pytest.mark.parametrize("step", [4, 5, 1000])
def test_large_texts_are_read_in_steps_and_say_the_same(
    body: bytes, reason: str, offset: int | None, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_body, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(json_body, "_STEP_BYTES", step)
    test_syntax_errors_have_rapidjsons_words_and_offset(body, reason, offset)
    assert read('{"a": [NaN, "é", {"b": -Infinity}]} x'.encode(), 9, ignore_trailing=True)["a"][1] == "é"


def test_others_have_the_interpreter_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """RapidJSON itself never gives it away."""
    steps: list[int] = []
    step = json_body._Steps.read

    def counted(self: Any, size: int) -> bytes:
        piece = step(self, size)
        steps.append(len(piece))
        return piece

    monkeypatch.setattr(json_body._Steps, "read", counted)
    with pytest.raises(MalformedJson):
        read(b"[" + b"1," * (1 << 20) + b"}", 100)
    assert len(steps) > 30
    assert max(steps) <= 64 << 10


def test_what_follows_the_document_may_be_ignored_however_deep() -> None:
    assert dict(read(b'{"a":1}' + b"[" * 5000, 100, ignore_trailing=True)) == {"a": 1}
    assert dict(read(b'{"a":2}' + b"\xff[" * 5000, 100, ignore_trailing=True)) == {"a": 2}
    with pytest.raises(MalformedJson, match="nesting"):
        read(b"[" * 5000 + b"]" * 5000 + b"x", 100, ignore_trailing=True)


def test_depth_counts_brackets_outside_strings() -> None:
    text = b'{"a": "' + b"[" * 5000 + b'\\"[", "b": ' + b"[" * 99 + b"1" + b"]" * 99 + b"}"
    assert len(read(text, 100)["b"]) == 1
    with pytest.raises(MalformedJson):
        read(text, 99)


@pytest.mark.parametrize("part", [1, 7, 1 << 20])
def test_brackets_are_counted_in_parts(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "_SEARCHED_BYTES", part)
    text = b"[1,{" * 1100 + b"x" * 5000
    assert json_body._opens_more_than(text, 2199, b"[{")
    assert not json_body._opens_more_than(text, 2200, b"[{")
    assert not json_body._opens_more_than(text, 1100, b"[")


def test_text_after_the_document_may_be_ignored() -> None:
    assert read(b'{"a": [NaN]} trailing', 100, ignore_trailing=True)["a"][0] != 0
    assert read(b"[1] ]", 100, ignore_trailing=True)[0] == 1


@pytest.mark.parametrize("body", [b'{"a": 1, "a": 2}', b'{"a": 1, "a": 2, "b": NaN}'])
def test_the_first_of_repeated_keys_wins(body: bytes) -> None:
    assert read(body, 100)["a"] == 1


def test_a_value_kept_alive_does_not_disturb_the_next_body() -> None:
    kept = read(b'{"a": [1, 2]}', 100)
    assert read(b'{"a": [3]}', 100)["a"][0] == 3
    assert kept["a"][1] == 2


NUMBERS: list[tuple[bytes, str, list[Any]]] = [
    (b"[1, 2.5, -3e2]", "FP32", [1, 2.5, -300]),
    (b"[1, NaN, -Infinity, Inf]", "FP32", [1, float("nan"), float("-inf"), float("inf")]),
    (b"[[1, 2], [3, [4]]]", "INT32", [1, 2, 3, 4]),
    (b"[18446744073709551615]", "UINT64", [2**64 - 1]),
    (b"[9223372036854775807, -9223372036854775808]", "INT64", [2**63 - 1, -(2**63)]),
    (b"[18446744073709551616]", "FP64", [2.0**64]),
    (b"[1e39]", "FP32", [float("inf")]),
    (b"[255]", "UINT8", [255]),
    (b"[true, false]", "BOOL", [True, False]),
    (b'["a", "", "\xc3\xa9"]', "BYTES", [b"a", b"", "é".encode()]),
    (b"[]", "FP32", []),
    (b"[[], []]", "BYTES", []),
]


@pytest.mark.parametrize(("body", "datatype", "want"), NUMBERS)
def test_numbers(body: bytes, datatype: str, want: list[Any]) -> None:
    got = numbers(read(body, 100), DTYPES[datatype])
    assert got.dtype == DTYPES[datatype]
    assert got.ndim == 1
    np.testing.assert_array_equal(got, np.array(want, DTYPES[datatype]))


WRONG: list[tuple[bytes, str, type[WrongLeaf], Any]] = [
    (b"[1.0]", "INT32", WrongLeaf, 1.0),
    (b"[1, true]", "FP32", WrongLeaf, True),
    (b"[1, null]", "FP32", WrongLeaf, None),
    (b'["1"]', "INT64", WrongLeaf, "1"),
    (b"[1]", "BOOL", WrongLeaf, 1),
    (b"[1]", "BYTES", WrongLeaf, 1),
    (b"[256]", "UINT8", OutOfRange, 256),
    (b"[-1]", "UINT64", OutOfRange, -1),
    (b"[2147483648]", "INT32", OutOfRange, 2**31),
    (b"[18446744073709551616]", "UINT64", OutOfRange, 2**64),
    (b"[NaN]", "INT32", WrongLeaf, float),
]


@pytest.mark.parametrize(("body", "datatype", "kind", "leaf"), WRONG)
def test_leaves_that_do_not_fit_are_named(body: bytes, datatype: str, kind: type[WrongLeaf], leaf: Any) -> None:
    with pytest.raises(WrongLeaf) as caught:
        numbers(read(body, 100), DTYPES[datatype])
    assert type(caught.value) is kind
    assert caught.value.leaf == leaf or type(caught.value.leaf) is leaf


RAGGED = ["[[1, 2], [3]]", "[[1], 2]", "[1, [2]]", "[[1, 2], [3, [4]]]", "[[], [1]]", "[[[1], [2]], [[3, 4]]]"]


@pytest.mark.parametrize("text", RAGGED)
@pytest.mark.parametrize("pad", [0, 700])
def test_ragged_arrays_are_refused_however_large(text: str, pad: int) -> None:
    ragged = json.loads(text)
    for body in (ragged, [[ragged] * 2] + [[ragged] * 2] * pad, ragged + [1.0] * pad):
        encoded = json.dumps({"instances": body}).encode()
        with pytest.raises(Ragged):
            rectangle(read(encoded, 100)["instances"], DTYPES["FP32"], encoded)


@given(
    st_numpy.arrays(st.sampled_from([np.float32, np.float64, np.int64, np.uint8]), st_numpy.array_shapes(max_dims=4))
)
def test_rectangles_come_back_bit_equal(array: np.ndarray[Any, Any]) -> None:
    body = json.dumps({"inputs": array.tolist()}).encode()
    got = rectangle(read(body, 100)["inputs"], array.dtype, body)
    assert got.shape == array.shape
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("shape", [(1, 30, 30, 3), (5000,), (1, 5000), (700, 2)])
def test_large_rectangles(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape, np.float32)
    body = json.dumps({"inputs": array.tolist(), "note": ["["]}).encode()
    np.testing.assert_array_equal(rectangle(read(body, 100)["inputs"], array.dtype, body), array)


@pytest.mark.parametrize(("datatype", "leaf"), [("FP32", float("nan")), ("BOOL", True), ("BYTES", "a"), ("INT8", 1)])
def test_many_arrays_of_any_leaves_are_a_rectangle(datatype: str, leaf: Any) -> None:
    body = json.dumps({"inputs": [[leaf, leaf]] * 700}).encode()
    assert rectangle(read(body, 100)["inputs"], DTYPES[datatype], body).shape == (700, 2)


BESIDE = ["", ', "y": %s', ', "y": %s, "z": [1]', ', "y": [%s, [[2]]]', ', "note": "%s"']


@pytest.mark.parametrize("shape", [(1, 2000), (2000,), (900, 1), (900, 3), (2, 600)])
@pytest.mark.parametrize("beside", BESIDE)
def test_arrays_beside_others(shape: tuple[int, ...], beside: str) -> None:
    text = json.dumps(np.full(shape, 0.5).tolist())
    body = f'{{"x": {text}{beside.replace("%s", text)}}}'.encode()
    assert rectangle(read(body, 100)["x"], DTYPES["FP32"], body).shape == shape


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize(
    ("shape", "ragged"),
    [
        ((2000,), "[1.5, [2.5]" + ", 0.5" * 1998 + "]"),
        ((1, 2000), "[[1.5, [2.5]" + ", 0.5" * 1998 + "]]"),
        ((900, 1), "[[1.5]" + ", 0.5" * 899 + "]"),
        ((900, 2), "[[1.5, 2.5]" + ", [1.5], [2.5, 3.5, 4.5]" + ", [0.5, 1.5]" * 897 + "]"),
        ((2, 600), "[[" + ", ".join(["0.5"] * 600) + "], [[" + ", ".join(["0.5"] * 600) + "]]]"),
    ],
)
def test_ragged_arrays_beside_regular_ones_of_that_shape(shape: tuple[int, ...], ragged: str, beside: str) -> None:
    regular = json.dumps(np.full(shape, 0.5).tolist())
    body = f'{{"x": {ragged}{beside.replace("%s", regular)}}}'.encode()
    assert numbers(read(body, 100)["x"], DTYPES["FP32"]).size == np.prod(shape)
    with pytest.raises(Ragged):
        rectangle(read(body, 100)["x"], DTYPES["FP32"], body)


def test_a_first_branch_that_claims_too_much_costs_nothing() -> None:
    array: list[Any] = []
    for _ in range(4):
        array = [array] + [[]] * 2000
    body = json.dumps({"inputs": array}).encode()
    tracemalloc.start()
    with pytest.raises(Ragged):
        rectangle(read(body, 100)["inputs"], DTYPES["FP32"], body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_an_array_longer_than_simdjson_counts() -> None:
    body = b"[" + b"1," * 0xFFFFFF + b"1]"
    assert rectangle(read(body, 100), DTYPES["UINT8"], body).shape == (1 << 24,)


@pytest.mark.parametrize("body", [b'{"b": 1, "a": 2, "b": 3}', b'{"b": 1, "a": NaN, "b": 3}'])
def test_members_keep_their_order(body: bytes) -> None:
    value = read(body, 100)
    assert list(dict.fromkeys(value.keys())) == ["b", "a"]
    assert value["b"] == 1


@pytest.mark.parametrize("text", ["[[1.5, 2], []]", "[1, [2], 3]", "[[[1]], [2]]", "[[]]"])
def test_long_rows_beside_known_arrays_are_cleared_by_the_text_and_ragged_ones_are_not(text: str) -> None:
    row = np.arange(2000.0)
    body = json.dumps({"shape": [1, 2000], "data": row.tolist()}).encode()
    np.testing.assert_array_equal(rectangle(read(body, 100)["data"], row.dtype, body), row)
    ragged = json.dumps({"shape": [1, 2000], "data": row.tolist() + json.loads(text)}).encode()
    with pytest.raises(Ragged):
        rectangle(read(ragged, 100)["data"], row.dtype, ragged)


def test_a_first_branch_that_promises_billions_of_empty_arrays_costs_nothing() -> None:
    row = b",".join([b"[]"] * 1000)
    for _ in range(3):
        row = b"[" + row + b"]" + b",[]" * 999
    with pytest.raises(Ragged):
        rectangle(read(b"[" + row + b"]", 100), DTYPES["FP32"], b"[" + row + b"]")


@pytest.mark.parametrize("leaf", [b"1", b"true", b"NaN", b""])
def test_more_dimensions_than_numpy_has_are_refused(leaf: bytes) -> None:
    body = b"[" * 65 + leaf + b"]" * 65
    with pytest.raises(Ragged):
        rectangle(read(body, 100), DTYPES["FP32"], body)


@given(st.binary(max_size=60))
def test_garbage_is_a_value_or_malformed(body: bytes) -> None:
    try:
        value = read(body, 100)
    except MalformedJson:
        return
    assert value is None or isinstance(value, (bool, int, float, str, *OBJECT, *ARRAY))


def test_members_of_arrays_that_simdjson_cannot_count() -> None:
    """Made a list, such an array would be written beyond its end."""
    array = b"[" + b"1," * 0xFFFFFF + b"1]"
    [(_, value)] = members(read(b'{"x":' + array + b"}", 100))
    assert length(value) == 0x1000000
    del value
    for rest in (b',"x":1}', b"," + b",".join([b'"%d":1' % i for i in range(20)]) + b"}"):
        document = read(b'{"x":' + array + rest, 100)
        with pytest.raises(MalformedJson, match="elements"):
            members(document)
        del document
    assert members(read(b'{"a": 1, "a": 2, "b": [1]}', 100)) == [("a", 1), ("a", 2), ("b", [1])]
