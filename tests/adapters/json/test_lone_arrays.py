"""Envelopes: what begins and ends like one; and that every dialect answers alike without the compiled helper."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_helpers import is_built, needs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorgate.adapters import grps, open_inference, tf_serving
from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.cuts import Envelope, Opened, lone_array
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError, ModelNotFound
from tensorgate.gateway.contract.tensor import DTYPES

BUILT = is_built("_numbers")
ROWS = Envelope("name", "rows", "columns")
OPENED: list[tuple[bytes, Opened | None]] = [
    (b'{"rows":[1]}', Opened("", "rows", 8)),
    (b'{"columns": [1]}', Opened("", "columns", 12)),
    (b' {\n"rows"\t:\r[', Opened("", "rows", 12)),
    (b'{"name": "a b~!", "rows": [[1]]}', Opened("a b~!", "rows", 26)),
    (b'{ "name" : "" , "rows" : [', Opened("", "rows", 25)),
    (b'{"rows": 1}', None),
    (b'{"rows": {"a": [1]}}', None),
    (b'{"name": "\\u0061", "rows": [1]}', None),
    (b'{"name": "\xc3\xa9", "rows": [1]}', None),
    (b'{"name": "a\nb", "rows": [1]}', None),
    (b'{"name": "a"b", "rows": [1]}', None),
    (b'{"name": 1, "rows": [1]}', None),
    (b'{"name": "a" "rows": [1]}', None),
    (b'{"name": "a", "name": "b", "rows": [1]}', None),
    (b'{"other": "a", "rows": [1]}', None),
    (b'{"row": [1]}', None),
    (b'{"rowsx": [1]}', None),
    (b'\xef\xbb\xbf{"rows": [1]}', None),
    (b'{"rows"\x0c: [1]}', None),
    (b'["rows", [1]]', None),
    (b"", None),
]


@pytest.mark.parametrize(("body", "want"), OPENED)
def test_how_an_envelope_begins(body: bytes, want: Opened | None) -> None:
    for buffer in (body, bytearray(body), memoryview(body)):
        assert ROWS.open(buffer) == want
    if want is not None:
        assert body[want.start : want.start + 1] == b"["


CLOSED: list[tuple[bytes, int, Any]] = [
    (b'{"rows": [[1, 2]]}', 100, [[1, 2]]),
    (b'{"rows": [[1, 2]]\r\n}\t ', 3, [[1, 2]]),
    (b'{"rows": [[1, 2]]}', 2, None),
    (b'{"rows": []}', 100, None),
    (b'{"rows": [[], []]}', 100, None),
    (b'{"rows": [[1], [2, 3]]}', 100, None),
    (b'{"rows": [1, NaN]}', 100, None),
    (b'{"rows": [1, "a"]}', 100, None),
    (b'{"rows": [1]', 100, None),
    (b'{"rows": [1]}}', 100, None),
    (b'{"rows": [1]} x', 100, None),
    (b'{"rows": [1], "more": 1}', 100, None),
    (b'{"rows": [1],}', 100, None),
    (b'{"rows": [1]]}', 100, None),
]


@pytest.mark.parametrize(("body", "depth", "want"), CLOSED)
def test_how_an_envelope_ends(body: bytes, depth: int, want: Any) -> None:
    opened = ROWS.open(body)
    assert opened is not None
    array = lone_array(memoryview(body), opened, DTYPES["FP32"], depth)
    assert (None if array is None else array.tolist()) == (want if BUILT else None)


# -------------------------------------------------------------------------------------- with and without, side by side

Outcome = tuple[Any, ...]
DATATYPES = ("FP32", "FP64", "INT64", "INT32", "UINT8")
ARRAYS = [
    *("[[1, 2], [3, 4]]", "[[1.5,-2e-3],[1e39,0.1]]", "[1, 2]", "[-0, -0.0]", "[[[1]], [[2]]]", "[[1, 2], [3]]"),
    *("[1, [2]]", "[]", "[[], []]", "[300, -129]", "[255, 0]", "[1.0]", "[9007199254740993]", "[18446744073709551615]"),
    *("[123456789012345678901234567890, 0.30000001192092896]", "[1e-400]", "[NaN, 1]", "[1, Infinity]", "[true]"),
    *("[null]", '["a"]', '[{"x": 1}]', '[{"b64": "Yg"}]', "[1e400]", "[01]", "[1,]", "[1", "[[1]", "[1]]", "[1] "),
    *("[" * depth + "1" + "]" * depth for depth in (7, 12, 64, 65)),
    *('[1], "more": 1', "[1], ", "[1]} x", "1", "{}", '"text"'),
]
V2 = '{"inputs": [{"name": "x", "shape": [%s], "datatype": "%s", "data": %s}]}'
LAYOUTS = [
    ("tf_serving", '{"instances": %s}'),
    ("tf_serving", ' {"inputs":%s}'),
    ("tf_serving", '{"signature_name": "serving_default", "instances": %s}\n'),
    ("tf_serving", '{"signature_name": "", "inputs": %s}'),
    ("tf_serving", '{"signature_name": "none such", "inputs": %s}'),
    ("tf_serving", '{"signature_name": "two", "inputs": %s}'),
    ("tf_serving", '{"signature_name": "other", "instances": %s}'),
    ("tf_serving", '{"instances": %s, "signature_name": "other"}'),
    ("grps", '{"ndarray": %s}'),
    ("grps", '{"model": "m-1", "ndarray": %s}'),
    ("grps", '{"model": "other", "ndarray": %s}'),
    ("grps", '{"ndarray": %s, "model": "m-1"}'),
    *(("open_inference", V2 % (shape, datatype, "%s")) for shape in ("2,2", "1,2", "2") for datatype in DATATYPES),
]
DIALECTS = {
    "tf_serving": (tf_serving.KIND, "/v1/models/m:predict", "m"),
    "grps": (grps.KIND, "/grps/v1/infer/predict", ""),
    "open_inference": (open_inference.KIND, "/v2/models/m/infer", "m"),
}
SIGNATURES = {
    "serving_default": ({"x": "x"}, {"y": "y"}),
    "other": ({"a": "x"}, {"b": "y"}),
    "two": ({"a": "x", "b": "x"}, {"b": "y"}),
}


def outcome(dialect: str, body: Any, resolve: Resolve, depth: int | None = None) -> Outcome:
    """All of a request that shows, or the reply that refuses it."""
    kind, target, _ = DIALECTS[dialect]
    match = kind.make(kind.options()).match("POST", target)
    headers = {"content-type": "application/json"}
    call = Call(body, "POST", target, headers, "http", match.args, deadline=5.0, max_json_depth=depth)
    try:
        request = match.endpoint.decode(call, resolve)
    except GatewayError as error:
        reply = match.endpoint.encode_error(error, call)
        return (reply.http_status, reply.body)
    arrays = {name: (array.dtype, array.shape, array.tobytes()) for name, array in request.inputs.items()}
    shown = ("id", "outputs", "parameters", "signature", "priority", "deadline", "queue_timeout_us", "stream", "wire")
    return (request.view, arrays, *(getattr(request, name) for name in shown))


def assert_alike(
    monkeypatch: pytest.MonkeyPatch, dialect: str, body: bytes, resolve: Resolve, depth: int | None = None
) -> Outcome:
    first = outcome(dialect, body, resolve, depth)
    assert outcome(dialect, memoryview(body), resolve, depth) == first  # by its template, perhaps
    with monkeypatch.context() as without:
        without.setattr(json_body, "_native_scan", None)
        assert outcome(dialect, body, resolve, depth) == first, (dialect, body)
    return first


@pytest.mark.parametrize(("dialect", "layout"), LAYOUTS)
def test_every_dialect_answers_alike_without_the_helper(
    dialect: str,
    layout: str,
    make_model: Callable[..., ModelView],
    make_resolve: Callable[..., Resolve],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = 0
    for datatype in DATATYPES:
        view = make_model("m", {"x": (datatype, None)}, {"y": ("FP32", None)}, signatures=SIGNATURES)
        for array in ARRAYS:
            for depth in (None, 10):
                found = assert_alike(monkeypatch, dialect, (layout % array).encode(), make_resolve(view), depth)
                taken += isinstance(found[0], ModelView)
        wrong = assert_alike(monkeypatch, dialect, (layout % "[1, 2}").encode(), _nobody)
        right = assert_alike(monkeypatch, dialect, (layout % "[1, 2]").encode(), _nobody)
        assert wrong[0] >= 400
        assert right[0] >= 400
        assert wrong != right or dialect == "open_inference"  # there the model comes first, elsewhere the syntax
    assert taken or "none such" in layout or "two" in layout or '"other", "nd' in layout


def _nobody(ref: Any) -> ModelView:
    raise ModelNotFound(ref.name or ref.qualified)


@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_garbled_body_is_answered_alike(
    data: st.DataObject,
    make_model: Callable[..., ModelView],
    make_resolve: Callable[..., Resolve],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialect, layout = data.draw(st.sampled_from(LAYOUTS))
    body = bytearray((layout % data.draw(st.sampled_from(ARRAYS[:4]))).encode())
    at = data.draw(st.integers(0, len(body) - 1))
    body[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.binary(max_size=2) | st.sampled_from([b"[", b"]", b"1", b",", b" "])
    )
    view = make_model("m", {"x": ("FP32", (-1, 2))}, {"y": ("FP32", None)}, signatures=SIGNATURES)
    assert_alike(monkeypatch, dialect, bytes(body), make_resolve(view))


PLAIN = [
    ("tf_serving", "FP32", '{"instances": %s}'),
    ("tf_serving", "INT64", '{"signature_name": "other", "inputs": %s}'),
    ("grps", "FP32", '{"model": "m-1", "ndarray": %s}'),
    ("open_inference", "FP64", V2 % ("2,2", "FP64", "%s")),
    ("open_inference", "UINT8", V2 % ("2,2", "UINT8", "%s")),
]


@needs("_numbers")
@pytest.mark.parametrize(("dialect", "datatype", "layout"), PLAIN)
def test_plain_bodies_become_no_document(
    dialect: str,
    datatype: str,
    layout: str,
    make_model: Callable[..., ModelView],
    make_resolve: Callable[..., Resolve],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve = make_resolve(make_model("m", {"x": (datatype, (-1, 2))}, {"y": ("FP32", None)}, signatures=SIGNATURES))
    first = json.dumps([[1, 2], [3, 4]])
    outcome(dialect, (layout % first).encode(), resolve)  # Open Inference learns its template from this

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a document was read")

    monkeypatch.setattr(json_body, "read", refuse)
    monkeypatch.setattr("tensorgate.adapters.tf_serving.json_document.read", refuse)
    monkeypatch.setattr("tensorgate.adapters.grps.request.read", refuse)
    found = outcome(dialect, memoryview((layout % "[[5, 6], [7, 8]]").encode()), resolve)
    assert found[1]["x"] == (DTYPES[datatype], (2, 2), np.array([[5, 6], [7, 8]], DTYPES[datatype]).tobytes())
