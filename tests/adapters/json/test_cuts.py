"""Arrays cut out of documents: nobody can tell, whether a request is right or wrong."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json import cuts as json_cuts
from tensorgate.adapters.open_inference.errors import encode_error
from tensorgate.adapters.open_inference.request import decode_infer
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.errors import GatewayError, MalformedJson

_numbers = pytest.importorskip("tensorgate.adapters._native._numbers", exc_type=ImportError)
pytest.importorskip("tensorgate.adapters._native._texts", exc_type=ImportError)
MakeModel = Callable[..., ModelView]


@pytest.fixture(autouse=True)
def cut_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short."""
    monkeypatch.setattr(json_cuts, "MIN_BODY_BYTES", 0)
    monkeypatch.setattr(json_cuts, "_MIN_BYTES", 9)  # and yet no shape


# ------------------------------------------------------------------------------------------------------ the C++ helper


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[1,2]", ["[1,2]"]),
        ("[1]", []),
        ('{"a":[1.5, -2e3],"b":[[1],[2,3]]}', ["[1.5, -2e3]", "[[1],[2,3]]"]),
        (" [ [ 1 , 2 ] , [ 3 ] ] ", ["[ [ 1 , 2 ] , [ 3 ] ]"]),
        ('"[1,2,3]"', []),
        (r'["\"[1,2,3]", [4,5,6]]', ["[4,5,6]"]),
        (r'["\\", [4,5,6]]', ["[4,5,6]"]),
        ("[[1,2,3],[4,5,true]]", []),
        ("[[4,5,true],[1,2,3]]", ["[1,2,3]"]),
        ("[1,2,3", []),
        ("[1,2,]", []),
        ("[01,2]", []),
        ("[1.,22]", []),
        ("[.5,22]", []),
        ("[1e,22]", []),
        ("[1e400,2]", []),
        ("[1e-99,2]", ["[1e-99,2]"]),
        ("[-,222]", []),
        ("[NaN,22]", []),
        ("[[],[1,2]]", ["[1,2]"]),
        (f"[{'1' * 200}]", [f"[{'1' * 200}]"]),
        (f"[{'1' * 201}]", []),
        ("[" * 64 + "1" + "]" * 64, ["[" * 64 + "1" + "]" * 64]),
        ("[" * 65 + "1" + "]" * 65, []),
        ("", []),
        ('"', []),
        ('"\\', []),
        ("[", []),
        ("[[[[[", []),
    ],
)
def test_what_is_found(text: str, found: list[str]) -> None:
    body = text.encode()
    places = _numbers.long_arrays(body, 5)
    assert [body[begin:end].decode() for begin, end in places] == found
    for begin, end in places:
        json.loads(body[begin:end])


def test_many_brackets_are_looked_at_once() -> None:
    for text in (b"[" * 3_000_000, b"[[1,2,3],x" * 300_000, b"[1,[" * 700_000, b'["' * 1_000_000):
        assert len(_numbers.long_arrays(text, 5)) in (0, 300_000)


def test_more_than_fit_is_never_found() -> None:
    assert len(_numbers.long_arrays(b"[1,2]" * 1000, 5)) == 1000
    with pytest.raises(ValueError, match="shorter than 2"):
        _numbers.long_arrays(b"[1]", 1)
    with pytest.raises(TypeError):
        _numbers.long_arrays(b"[1]")
    with pytest.raises(TypeError):
        _numbers.long_arrays("text", 5)


PIECES = (
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b"\\",
    b",",
    b"1",
    b"-2.5",
    b"1e5",
    b" ",
    b"\n",
    b"true",
    b":",
    b"\\u",
    b"\x1f",
    b"\xff",
    b"[1,2,3]",
)


def test_any_text_is_measured_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)  # noqa: S311
    texts = [b"".join(chance.choices(PIECES, k=chance.randrange(40))) for _ in range(20_000)]
    native = [_numbers.depth(text) for text in texts]
    monkeypatch.setattr(json_body, "_native_depth", None)
    assert native == [json_body._depth(text) for text in texts]
    for text in texts:
        for begin, end in _numbers.long_arrays(text, 5):
            assert isinstance(json.loads(text[begin:end]), list)
    assert _numbers.depth(b"[" * 100_000 + b"]" * 100_000) == 100_000


# ------------------------------------------------------------------------------------------------------------ requests

ROW = [0.5, -1.25, 3.0, 1e-7]
X = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [ROW, ROW]}
N = {"name": "n", "datatype": "INT64", "shape": [3], "data": [2**63 - 1, -(2**63), 12345]}
T = {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["a long text", "[1,2,3,4,5]"]}
INPUTS = [X, N, T]


def other(tensor: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return tensor | changes


BODIES = [
    {"inputs": INPUTS},
    {"id": "7", "inputs": INPUTS, "parameters": {"mine": 1}},
    {"inputs": INPUTS, "other": [[1, 2, 3], {"a": [4, 5, 6, 7]}]},
    {"inputs": [other(X, data=ROW + ROW), N, T]},
    {"inputs": [other(X, data=[*ROW, *ROW, 1.5]), N, T]},
    {"inputs": [other(X, data=[ROW, ROW[:2]]), N, T]},
    {"inputs": [other(X, datatype="INT32"), N, T]},
    {"inputs": [other(X, datatype="FP16"), N, T]},
    {"inputs": [X, other(N, data=[1.5, 2, 33333]), T]},
    {"inputs": [X, other(N, data=[2**63, 2, 3]), T]},
    {"inputs": [X, other(N, datatype="INT8"), T]},
    {"inputs": [X, other(N, datatype="INT8", data=[100, 20, 30]), T]},
    {"inputs": [X, N, other(T, data=[11, 22, 33])]},
    {"inputs": [X, N, other(T, data=["x", [11, 22, 33]])]},
    {"inputs": [X, N, other(T, data=[["a long text"], ["[1,2,3,4,5]"]])]},
    {"inputs": [X, N, other(T, data=[["a long text", "and"], ["another one"]])]},
    {"inputs": [X, N, other(T, data=["a long text", None])]},
    {"inputs": [X, N, other(T, data=["a long text", "\u00e9\U0001f600\ud800\n"])]},
    {"inputs": [X, N, other(T, data=["\u00e9\U0001f600\n\\", '"[1,2,3,4,5]"'])]},
    {"inputs": [X, N, other(T, shape=[3])]},
    {"inputs": [other(X, data=["a long text", "1"]), N, T]},
    {"inputs": [X, other(N, data=["1", "22", "333"]), T]},
    {"inputs": [X, other(N, parameters=["a long text", "1"]), T]},
    {"inputs": INPUTS, "parameters": {"mine": ["a long text"]}},
    {"inputs": INPUTS, "id": ["a long text"], "other": ["a long text"]},
    {"inputs": INPUTS, "outputs": ["a long text"]},
    {"inputs": [other(X, shape=[2, 4, 1, 1, 1, 1]), N, T]},
    {"inputs": [other(X, shape=[[2, 4, 1, 1]]), N, T]},
    {"inputs": [other(X, name=[1, 2, 3, 4]), N, T]},
    {"inputs": [other(X, parameters=[1, 2, 3, 4]), N, T]},
    {"inputs": [1, 2, 3, 4]},
    {"inputs": [X, X]},
    {"inputs": [X, N, T], "outputs": [11, 22, 33]},
    {"inputs": [other(X, data=[[[float("nan"), 1, 2, 3]], [ROW]]), N, T]},
    [1, 2, 3, 4],
]


@pytest.fixture
def decoded(make_model: MakeModel) -> Callable[[bytes], Any]:
    inputs = {"x": ("FP32", (-1, 4)), "n": ("INT64", (3,)), "t": ("BYTES", (-1,))}
    view = make_model("m", inputs, {"y": ("FP32", (-1,))})

    def resolve(ref: ModelRef) -> ModelView:
        return view

    def decode(body: bytes) -> Any:
        call = Call(body, "POST", "/v2/models/m/infer", {}, "http", {"model": "m"}, in_thread=True)
        try:
            request = decode_infer(call, resolve)
        except GatewayError as error:
            return encode_error(error, call).body
        arrays = {name: (array.dtype, array.shape, array.tolist()) for name, array in request.inputs.items()}
        return request.id, dict(request.parameters), arrays

    return decode


@pytest.fixture
def same(decoded: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Any]:
    """Decode with and without cutting; what comes of it."""

    def check(body: bytes) -> Any:
        with_cuts = decoded(body)
        with monkeypatch.context() as patch:
            patch.setattr(json_cuts, "_long_arrays", None)
            assert repr(with_cuts) == repr(decoded(body))
        return with_cuts

    return check


@pytest.mark.parametrize("body", BODIES)
def test_a_request_is_what_it_is_without_cutting(body: Any, same: Callable[[bytes], Any]) -> None:
    same(json.dumps(body).encode())
    same(json.dumps(body, indent=1).encode())
    same(json.dumps(body, ensure_ascii=False).encode(errors="surrogatepass"))


def test_most_are_read_by_their_cuts(decoded: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[bytes] = []
    read = json_body.read

    def note(body: bytes, *args: Any, **more: Any) -> Any:
        texts.append(body)
        return read(body, *args, **more)

    monkeypatch.setattr(json_body, "read", note)
    body = json.dumps(BODIES[1]).encode()
    _, _, arrays = decoded(body)
    assert arrays["x"][2] == np.array([ROW, ROW], np.float32).tolist()
    assert arrays["n"][2] == N["data"]
    [text] = texts
    assert b"-1.25" not in text
    assert arrays["t"][2] == [b"a long text", b"[1,2,3,4,5]"]
    assert b"a long text" not in text


def test_broken_requests_are_refused_at_the_same_place(same: Callable[[bytes], Any]) -> None:
    body = json.dumps(BODIES[1]).encode()
    chance = random.Random(2)  # noqa: S311
    for _ in range(3000):
        at = chance.randrange(len(body))
        broken = (body[:at], body[:at] + chance.choice(PIECES) + body[at + chance.randrange(3) :])[chance.randrange(2)]
        same(broken)
    answer = same(body[:-1] + b",}")
    assert str(len(body)).encode() in answer


def test_depth_counts_inside_of_what_is_cut(same: Callable[[bytes], Any]) -> None:
    for levels in (60, 90, 98, 120):
        data = "[" * levels + "1,2,3" + "]" * levels
        same(json.dumps({"inputs": INPUTS}).encode()[:-1] + f', "other": {data}}}'.encode())


def test_offsets() -> None:
    body = b'{"a":[1,2,3],"b":[4,5,6,7],"c":x}'
    cuts = json_cuts.cut(body, 100)
    assert cuts is not None
    with pytest.raises(MalformedJson) as caught:
        json_body.read(cuts.text, 100)
    assert caught.value.offset is not None
    assert cuts.offset(caught.value.offset) == body.index(b"x")
    assert cuts.offset(3) == 3
