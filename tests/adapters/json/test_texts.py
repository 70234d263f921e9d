"""Arrays of strings in pieces: the compiled helper and Python's way read and write the same."""

import importlib.util
import json
import random
import shutil
import threading
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensorgate.adapters.grps import printing
from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json import texts
from tensorgate.adapters.open_inference.classification import class_texts
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.json_text import quote
from tensorgate.adapters.tf_serving.proto_tensors import tensor_parts
from tensorgate.gateway.contract.canonical import TopK
from tensorgate.gateway.contract.errors import MalformedJson
from tensorgate.gateway.contract.tensor import BYTES

WAYS = ["helper", "python"]
TEXTS = st.lists(
    st.one_of(st.text(max_size=12).map(lambda text: text.encode(errors="replace")), st.binary(max_size=30))
)
CONTROLS = [bytes([code]) for code in range(256)]


def test_the_helper_is_built_where_there_is_a_compiler() -> None:
    built = importlib.util.find_spec("tensorgate.adapters._native._texts") is not None
    assert built or shutil.which("g++") is None, (
        "g++ is here: pip install -e . builds tensorgate.adapters._native._texts"
    )


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    choose(request.param, monkeypatch)
    return str(request.param)


def choose(way: str, patched: pytest.MonkeyPatch) -> None:
    patched.setattr(texts, "PIECE", 3)
    if way == "python":
        for name in ("_native_lengths", "_native_read_lengths", "_native_json", "_native_read_json"):
            patched.setattr(texts, name, None)
    elif texts._native_json is None:
        pytest.skip("no compiler here, so there is no compiled helper")


def array(elements: list[bytes]) -> Any:
    made = np.empty(len(elements), BYTES)
    made[:] = elements
    return made


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 9])
def test_pieces_make_the_whole(count: int) -> None:
    elements = [b"%d" % number for number in range(count)]
    assert [one for piece in texts.pieces(array(elements)) for one in piece] == elements
    made = texts.array_of(elements)
    assert (made.dtype, made.shape, made.tolist()) == (BYTES, (count,), elements)
    square = array([b"a", b"b", b"c", b"d"]).reshape(2, 2)
    assert [*texts.pieces(square.T)] == [[b"a", b"c", b"b"], [b"d"]]


# ------------------------------------------------------------------------------------------------------- with lengths


@pytest.mark.parametrize("way", WAYS)
@given(elements=TEXTS)
@example(elements=[])
@example(elements=[b""])
@example(elements=[b"x" * 70_000, b"", b"y"])
def test_lengths_are_written_and_read(way: str, elements: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        choose(way, patched)
        data = bytes(texts.with_lengths(array(elements)))
        assert data == b"".join(len(one).to_bytes(4, "little") + one for one in elements)
        assert texts.read_lengths(memoryview(data), len(elements)) == (elements, len(data))
        assert texts.read_lengths(memoryview(data), len(elements) + 5) == (elements, len(data))


def test_as_many_are_read_as_are_wanted_and_whole() -> None:
    data = b"".join(len(one).to_bytes(4, "little") + one for one in (b"ab", b"", b"cde", b"f", b"g"))
    assert texts.read_lengths(memoryview(data), 0) == ([], 0)
    assert texts.read_lengths(memoryview(data), 2) == ([b"ab", b""], 10)
    assert texts.read_lengths(memoryview(data), 4) == ([b"ab", b"", b"cde", b"f"], 22)
    for end in range(len(data)):
        found, at = texts.read_lengths(memoryview(data)[:end], 9)
        assert at <= end
        assert data[:at] == b"".join(len(one).to_bytes(4, "little") + one for one in found)
        assert end - at < 4 + int.from_bytes(data[at : at + 4], "little")
    assert texts.read_lengths(memoryview(b"\xff\xff\xff\xffabc"), 9) == ([], 0)


# ---------------------------------------------------------------------------------------------------------------- JSON


@given(elements=TEXTS)
@example(elements=[b"a", b"\xff", b"b"])
@example(elements=[b"\xed\xa0\x80"])
@example(elements=[b"12345678\xf4\x8f\xbf\xbf"])
@example(elements=[b"\xf4\x90\x80\x80"])
@example(elements=[b"\xc0\x80"])
@example(elements=[b"1234567\xe2\x82"])
@example(elements=CONTROLS[:128])
def test_strings_are_written_as_orjson_and_rapidjson_write_them(elements: list[bytes]) -> None:
    helper = pytest.importorskip("tensorgate.adapters._native._texts", exc_type=ImportError)
    try:
        expected = b"".join(b"," + orjson.dumps(one.decode()) for one in elements)
    except UnicodeDecodeError:
        expected = None
    assert helper.write_json(elements, b",", False, True) == expected
    quoted = "".join("; " + quote(one.decode(errors="surrogateescape")) for one in elements)
    assert helper.write_json(elements, b"; ", True, False) == quoted.encode(errors="surrogateescape")


def test_parts_have_what_is_between_between_them(way: str) -> None:
    parts = texts.json_strings(array([b"a", b"b", b"c", b"d"]), b", ", upper=False, utf8=True)
    assert parts is None if way == "python" else (parts and b"".join(parts) == b'"a", "b", "c", "d"')
    if way == "helper":
        assert texts.json_strings(array([]), b",", upper=False, utf8=True) == []
        assert texts.json_strings(array([b"a"] * 5 + [b"\xff"]), b",", upper=False, utf8=True) is None


STRINGS = [
    b'["a"]',
    b'["a","b","c","d"]',
    b' ["a"]',
    b'[ "a" ,\n"b"\t, "c"\r]x',
    b"[]",
    b"[ ]",
    b'["a",]',
    b'[,"a"]',
    b'["a" "b"]',
    b'["a","b"',
    b'["a","b',
    b'["a',
    b'["a\\',
    b'["a\\"',
    b"[",
    b"",
    b'{"a":"b"}',
    b'["a",1]',
    b'["a",["b"]]',
    b'["a",null]',
    b'["\\"\\\\\\/\\b\\f\\n\\r\\t"]',
    b'["\\u0041\\u00e9\\u20ac\\ud83d\\ude00\\u0000"]',
    b'["\\u00E9\\u00g0"]',
    b'["\\u00"]',
    b'["\\ud83d"]',
    b'["\\ud83dabcdef"]',
    b'["\\ud83d\\n"]',
    b'["\\ud83d\\u0041"]',
    b'["\\ude00"]',
    b'["\\x41"]',
    b'["\x1f"]',
    b'["12345678\x00"]',
    b'["\x7f\xc3\xa9"]',
    b'["\xc3"]',
    b'["1234567890\xc3"]',
    b'["\xed\xa0\x80"]',
    b'["\xf0\x9f\x98\x80"]',
    b'["\xf5\x80\x80\x80"]',
    b'["\xe0\x80\x80"]',
    b'["1234567","12345678","123456789012345678901234567890"]',
]


def as_a_document(text: bytes) -> tuple[list[bytes], int] | None:
    """What json_body makes of an array of strings, one at least, and where it ends."""
    for end in range(len(text), 0, -1):
        try:
            value = json_body.read(text[:end], 100)
            found = None if not isinstance(value, json_body.ARRAY) else [one.encode() for one in value]
        except (MalformedJson, AttributeError):
            continue
        return (found, end) if found and text[:1] == b"[" and text[end - 1 : end] == b"]" else None
    return None


@pytest.mark.parametrize("text", STRINGS)
def test_strings_are_read_as_in_a_document(text: bytes, way: str) -> None:
    found = texts.read_json(text, 0)
    if way == "python":
        assert found is None
        return
    if found is not None:
        read, end = found
        assert (read.tolist(), end) == as_a_document(text)
        for cut in range(end):
            assert texts.read_json(text[:cut], 0) is None
    else:
        assert as_a_document(text) is None or not text.startswith(b'["')


def test_whatever_is_read_is_right() -> None:
    helper = pytest.importorskip("tensorgate.adapters._native._texts", exc_type=ImportError)
    chance = random.Random(3)  # noqa: S311
    parts = [
        b'"',
        b'"',
        b'","',
        b",",
        b"]",
        b"[",
        b"\\",
        b"\\u",
        b"00e9",
        b"d83d",
        b"\\ude00",
        b"\xc3\xa9",
        b"\xff",
        b" ",
    ]
    read = 0
    for _ in range(30_000):
        text = b'["' + b"".join(chance.choices(parts, k=chance.randrange(12))) + b'"]'
        found = texts.read_json(text, 0)
        if found is not None:
            read += 1
            assert [one.decode() for one in found[0]] == json.loads(text[: found[1]])
            assert found[0].tolist() == as_a_document(text[: found[1]])[0]  # type: ignore[index]
        for begin, end in helper.long_arrays(text, 5):
            assert all(isinstance(one, str) for one in json.loads(text[begin:end]))
    assert read > 1000 or texts._native_read_json is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('["abc"]', ['["abc"]']),
        ('["a"]', ['["a"]']),
        ('[""]', []),
        ('{"a":["abc" , "d"],"b":["e", 1],"c":["f","g"]}', ['["abc" , "d"]', '["f","g"]']),
        ('[["abc"],["d","e"]]', ['["abc"]', '["d","e"]']),
        ('"[\\"abc\\"]"', []),
        ('["[\\"abc\\"]"]', ['["[\\"abc\\"]"]']),
        ('["abc"', []),
        ('["abc', []),
        ('["abc",]', []),
        ("[1,2,3]", []),
        ("", []),
        ("[", []),
        ('"\\', []),
    ],
)
def test_long_arrays(text: str, found: list[str]) -> None:
    helper = pytest.importorskip("tensorgate.adapters._native._texts", exc_type=ImportError)
    body = text.encode()
    assert [body[begin:end].decode() for begin, end in helper.long_arrays(body, 5)] == found


def test_what_the_helper_does_not_take() -> None:
    helper = pytest.importorskip("tensorgate.adapters._native._texts", exc_type=ImportError)
    for wrong in ([b"a", "b"], [b"a", None], (b"a",), None):
        with pytest.raises((TypeError, SystemError)):
            helper.write_lengths(wrong)
        with pytest.raises((TypeError, SystemError)):
            helper.write_json(wrong, b",", False, True)
    with pytest.raises(TypeError):
        helper.write_json([b"a"], ",", False, True)
    for at, most in ((-1, 1), (3, 1), (0, 0)):
        with pytest.raises(ValueError):
            helper.read_json(b"[]", at, most)
    with pytest.raises(ValueError):
        helper.read_lengths(b"", 1, 1)
    with pytest.raises(TypeError):
        helper.read_json(b"[]", 1)
    with pytest.raises(TypeError):
        helper.long_arrays("text", 5)


def test_others_run_while_much_is_written_and_read() -> None:
    helper = pytest.importorskip("tensorgate.adapters._native._texts", exc_type=ImportError)
    text = b"x" * (64 << 20)
    turns = 0
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = turns
        quoted = helper.write_json([text], b"[", False, True) + b"]"
        between = turns
        assert helper.read_json(quoted, 1, 9)[0] == [text]
        assert turns > between > before
    finally:
        done.set()
        thread.join()


# ------------------------------------------------------------------------------------------------- what dialects write

SEVEN = [b"a", b"", b"bc", b"\xff", b"d", b"e" * 200, b"f"]


@pytest.mark.parametrize("content", [False, True])
def test_tensors_of_strings_are_messages(content: bool) -> None:
    parts = tensor_parts(array(SEVEN).reshape(7, 1), content=content)
    tensor = message("tensorflow.TensorProto").FromString(b"".join(parts))
    if content:
        lengths = b"\1\0\2\1\1\xc8\1\1"
        assert tensor.tensor_content == lengths + b"".join(SEVEN)
    else:
        assert tensor.string_val == SEVEN


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_lists_of_strings_are_printed(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "PIECE", 3)
    values = ["é", '"', "c", "d", "e", "f", "g"][:count]
    printed = b"".join(printing.strings(values, 0, 1))
    assert printed.decode() == json.dumps(values, indent=1)


@pytest.mark.parametrize("labels", [(), ("no", "", "yes")])
def test_class_texts_in_pieces(labels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(8, dtype=np.float32).reshape(2, 4) / 3
    best = TopK(values, np.arange(8).reshape(2, 4))
    whole = class_texts(best, labels)
    monkeypatch.setattr("tensorgate.adapters.open_inference.classification.PIECE", 3)
    found = class_texts(best, labels)
    assert (found.shape, found.tolist()) == (whole.shape, whole.tolist())
    assert found[0, 2] == (b"0.666667:2:yes" if labels else b"0.666667:2")
