"""Documents as TensorFlow Serving's parser takes them: what is JSON, what is not and where, strings without UTF-8."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorgate.adapters.tf_serving.json_text import utf8
from tensorgate.adapters.tf_serving.routes import match
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError

MakeModel = Callable[..., ModelView]
MakeResolve = Callable[..., Resolve]
PREDICT = "/v1/models/m:predict"


def answer(body: bytes, view: ModelView, make_resolve: MakeResolve) -> tuple[int, bytes]:
    """What the client gets of a model that gives back its input."""
    call = Call(body, "POST", PREDICT, {}, "http", match("POST", PREDICT).args, in_thread=True)
    endpoint = match("POST", PREDICT).endpoint
    try:
        request = endpoint.decode(call, make_resolve(view))
        assert isinstance(request, InferRequest)
        reply = endpoint.encode(InferResponse(request.inputs), request)
    except GatewayError as error:
        reply = endpoint.encode_error(error, call)
    assert reply.headers["Content-Type"] == "application/json"
    return reply.http_status, bytes(reply.body)  # type: ignore[arg-type]


def refused(text: str) -> tuple[int, bytes]:
    return 400, b'{\n    "error": "%s"\n}' % text.encode()


NINES = b"9" * 309
SYNTAX = [
    (b"", "The document is empty"),
    (b" \t\r\n", "The document is empty. at offset: 4"),
    (b"\xef\xbb\xbf", "The document is empty. at offset: 3"),
    (b"\0", "The document is empty. at offset: 0"),
    (b" ]", "The document is empty. at offset: 1"),
    (b"}", "The document is empty. at offset: 0"),
    (b"\xef\xbb\xbf,", "The document is empty. at offset: 3"),
    (b":", "The document is empty. at offset: 0"),
    (b"{", "Missing a name for object member. at offset: 1"),
    (b"{'a': 1}", "Missing a name for object member. at offset: 1"),
    (b'{"a": 1,}', "Missing a name for object member. at offset: 8"),
    (b'\xef\xbb\xbf{"a" 1}', "Missing a colon after a name of object member. at offset: 8"),
    (b'{"a": 1 "b"', "Missing a comma or '}' after an object member. at offset: 8"),
    (b'{"a": 1', "Missing a comma or '}' after an object member. at offset: 7"),
    (b'{"a": [1 2]}', "Missing a comma or ']' after an array element. at offset: 9"),
    (b'{"a": [01]}', "Missing a comma or ']' after an array element. at offset: 8"),
    (b'{"a": [Infx]}', "Missing a comma or ']' after an array element. at offset: 10"),
    (b'{"a": [1,]}', "Invalid value. at offset: 9"),
    (b'{"a": }', "Invalid value. at offset: 6"),
    (b'{"a": .5}', "Invalid value. at offset: 6"),
    (b'{"a": +1}', "Invalid value. at offset: 6"),
    (b'{"a": -}', "Invalid value. at offset: 7"),
    (b'{"a": nan}', "Invalid value. at offset: 7"),
    (b'{"a": Nan}', "Invalid value. at offset: 8"),
    (b'{"a": inf}', "Invalid value. at offset: 6"),
    (b'{"a": INF}', "Invalid value. at offset: 7"),
    (b'{"a": infinity}', "Invalid value. at offset: 6"),
    (b'{"a": Infinit}', "Invalid value. at offset: 13"),
    (b'{"a": True}', "Invalid value. at offset: 6"),
    (b'{"a": tru}', "Invalid value. at offset: 9"),
    (b"/* no */ {}", "Invalid value. at offset: 0"),
    (b'{"a": 1.}', "Miss fraction part in number. at offset: 8"),
    (b'{"a": 1e}', "Miss exponent in number. at offset: 8"),
    (b'{"a": -1e400}', "Number too big to be stored in double. at offset: 6"),
    (b'{"a": -' + NINES + b"}", "Number too big to be stored in double. at offset: 6"),
    (b'{"' + NINES + b'": ' + NINES + b"1", "Number too big to be stored in double. at offset: 314"),
    (b'{"a": ' + b"9" * 5000 + b"}", "Number too big to be stored in double. at offset: 6"),
    (b'{"a\xff": ' + NINES + b"}", "Number too big to be stored in double. at offset: 7"),
    (b'{"a\\x": 1}', "Invalid escape character in string. at offset: 3"),
    (b'{"a\t": 1}', "Invalid escape character in string. at offset: 3"),
    (b'{"\xff\x01": 1}', "Invalid escape character in string. at offset: 3"),
    (b'{"a\0": 1}', "Missing a closing quotation mark in string. at offset: 3"),
    (b'{"a', "Missing a closing quotation mark in string. at offset: 3"),
    (b'{"\\u00zz": 1}', "Incorrect hex digit after \\\\u escape in string. at offset: 2"),
    (b'{"\\ud800": 1}', "The surrogate pair in string is invalid. at offset: 2"),
    (b'{"\\udc00": 1}', "The surrogate pair in string is invalid. at offset: 2"),
    (b"\xff", "Invalid value. at offset: 0"),
    (b'{"\xff" \xff', "Missing a colon after a name of object member. at offset: 5"),
]


@pytest.mark.parametrize(("body", "reason"), SYNTAX, ids=[repr(body[:30]) for body, _ in SYNTAX])
def test_syntax_errors(body: bytes, reason: str, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    """They win over an unknown model."""
    view = make_model("other", {"x": ("FP32", None)}, {"x": ("FP32", None)})
    assert answer(body, view, make_resolve) == refused(f"JSON Parse error: {reason}")


DIALECT = [
    (
        "FP64",
        b'\xef\xbb\xbf{"inputs": [1e-400, 0.1, -0, -0.0]}',
        "[\n        0.0,\n        0.1,\n        0.0,\n        -0.0\n    ]",
    ),
    ("FP32", b'{"inputs": 1} {"inputs": ]', "1.0"),
    ("FP32", b'{"inputs": NaN}\xff', "NaN"),
    ("FP32", b'{"inputs": -Inf, "inputs": 2, "instances ": 3, "Instances": 4}', "-Infinity"),
    ("FP32", b'{"inputs": {"x": -NaN, "x": 3, "y": {}}}', "NaN"),
    ("FP64", b'{"inputs": 1' + b"0" * 308 + b"}", "1e+308"),
    ("INT64", b'{"z": {"a": [[]], "a": NaN}, "inputs": 9007199254740993}', "9007199254740993"),
    ("UINT64", b'{"z": -Inf, "inputs": 18446744073709551615}', "18446744073709551615"),
    ("BYTES", b'{"inputs": "\\u00e9\\ud83d\\ude00\\/\\b\\u0001"}', '"\u00e9\U0001f600/\\b\\u0001"'),
]


@pytest.mark.parametrize(("datatype", "body", "text"), DIALECT, ids=[repr(body[:40]) for _, body, _ in DIALECT])
def test_the_dialect(datatype: str, body: bytes, text: str, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": (datatype, None)}, {"x": (datatype, None)})
    assert answer(body, view, make_resolve) == (200, f'{{\n    "outputs": {text}\n}}'.encode())


# ------------------------------------------------------------------------------------------- strings that are no UTF-8

NO_UTF8 = [
    (b'{"instances": ["\xff", "a"]}', b'{\n    "predictions": ["\xff", "a"\n    ]\n}'),
    (b'\xef\xbb\xbf {"inputs": "\xc3\xa9\xc3"} \xff', b'{\n    "outputs": "\xc3\xa9\xc3"\n}'),
    (b'{"\xff": NaN, "inputs": {"x": "\xed\xa0\x80", "x": "b"}}', b'{\n    "outputs": "\xed\xa0\x80"\n}'),
    (b'{"inputs": "a"}\xff', b'{\n    "outputs": "a"\n}'),
]


@pytest.mark.parametrize(("body", "want"), NO_UTF8, ids=[repr(body) for body, _ in NO_UTF8])
def test_strings_that_are_no_utf8_pass(
    body: bytes, want: bytes, make_model: MakeModel, make_resolve: MakeResolve
) -> None:
    view = make_model("m", {"x": ("BYTES", None)}, {"x": ("BYTES", None)})
    assert answer(body, view, make_resolve) == (200, want)


def test_they_pass_in_errors_too(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": ("FP32", None)}, {})
    text = b'JSON Value: \\"\xe9\\" Type: String is not of expected type: float'
    assert answer(b'{"inputs": "\xe9"}', view, make_resolve) == (400, b'{\n    "error": "%s"\n}' % text)
    text = b'Serving signature name: \\"\xe9\\" not found in signature def'
    assert answer(b'{"signature_name": "\xe9"}', view, make_resolve) == (400, b'{\n    "error": "%s"\n}' % text)


def test_tokens_that_they_cannot_stand_beside(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": ("BYTES", None)}, {})
    body = b'{"inputs": ["\xff", -Inf]}'
    assert answer(body, view, make_resolve) == refused("JSON Parse error: Invalid encoding in string.")
    body = b'{"\xff": ' + b"[" * 995 + b"]" * 995 + b"}"
    assert answer(body, view, make_resolve)[0] == 400


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixtures only hand over functions
@given(st.lists(st.binary(max_size=8), min_size=1, max_size=5))
def test_every_byte_passes(make_model: MakeModel, make_resolve: MakeResolve, values: list[bytes]) -> None:
    """All but quotes, backslashes and what must be escaped; in, and out again."""
    view = make_model("m", {"x": ("BYTES", None)}, {"x": ("BYTES", None)})
    kept = [bytes(byte for byte in value if byte >= 0x20 and byte not in b'"\\') for value in values]
    body = b'{"instances": [' + b", ".join(b'"%s"' % value for value in kept) + b"]}"
    want = b'{\n    "predictions": [' + b", ".join(b'"%s"' % value for value in kept) + b"\n    ]\n}"
    assert answer(body, view, make_resolve) == (200, want)


def test_any_text_has_bytes() -> None:
    assert (utf8("\udcff"), utf8("\ud800a"), utf8("é")) == (b"\xff", b"?a", "é".encode())


# ------------------------------------------------------------------------------------------------------ deep documents

DEEP = [
    (901, b"[", b"]"),
    (1000, b"[", b"]"),
    (1801, b'{"a\\"]": ', b"}"),
    (2000, b'[NaN, [], {}, "[", ', b", [[1]]]"),
    (60_000, b'[{"]": 1, "b": [', b"]}, 2]"),
]


@pytest.mark.parametrize(("times", "before", "after"), DEEP)
@pytest.mark.parametrize("inner", [b"1", b'"\\"]"', b"[[], {}]"])
def test_ignored_keys_may_be_deep(
    times: int, before: bytes, after: bytes, inner: bytes, make_model: MakeModel, make_resolve: MakeResolve
) -> None:
    view = make_model("m", {"x": ("FP32", None)}, {"x": ("FP32", None)})
    deep = b'{"z": [1, ' + before * times + inner + after * times + b"]"
    assert answer(deep + b', "inputs": 1} [[[[', view, make_resolve) == (200, b'{\n    "outputs": 1.0\n}')
    offset = len(deep + b', "inputs": ')
    assert answer(deep + b', "inputs": x}', view, make_resolve) == refused(
        f"JSON Parse error: Invalid value. at offset: {offset}"
    )
    offset = len(deep + b', "inputs": 1 ')
    assert answer(deep + b', "inputs": 1 "a"}', view, make_resolve) == refused(
        f"JSON Parse error: Missing a comma or '}}' after an object member. at offset: {offset}"
    )


BROKEN = [b"[" * 2000 + b"1 2" + b"]" * 2000, b"[" * 2000 + b"1}" + b"]" * 1999, b"[" * 1500, b"[" * 950 + b'{"a"}']


@pytest.mark.parametrize("deep", BROKEN, ids=len)
def test_what_is_deep_must_be_json(deep: bytes, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": ("FP32", None)}, {"x": ("FP32", None)})
    status, text = answer(b'{"inputs": 1, "z": [' + b"[" * 900 + deep, view, make_resolve)
    assert (status, b"nesting deeper than 1000 levels" in text) == (400, True)


def test_no_tensor_is_deep(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": ("FP32", None)}, {"x": ("FP32", None)})
    for body in (b'{"inputs": %s}', b'{"instances": %s}', b'{"instances": [{"x": %s}]}'):
        deep = body % (b"[" * 5000 + b"1" + b"]" * 5000)
        assert answer(deep, view, make_resolve) == refused("tensor parsing error: x")
    large = b'{"z": ' + b"[" * 2000 + b" " * (8 << 20) + b"]" * 2000 + b', "inputs": 1}'
    assert answer(large, view, make_resolve) == refused("JSON Parse error: nesting deeper than 1000 levels")
