"""Templates: a request read by one is what it would be read the long way, whatever stands between and around its
brackets.
"""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorgate.adapters.open_inference import document as v2_document
from tensorgate.adapters.open_inference import proto_message, request
from tensorgate.adapters.open_inference.document import infer_request
from tensorgate.adapters.open_inference.request import BinaryHeads, JsonTemplates
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.errors import GatewayError, UnknownOutput

LAYOUTS = [
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":%s}]}',
    '{"inputs": [{"data": %s, "name": "x", "shape": [2, 2], "datatype": "FP32"}], "outputs": [{"name": "y"}]}',
    ' { "inputs" : [ { "name":"x","datatype":"FP32" , "shape":[2,2] ,"data":\n%s\n } ] } ',
    '{"note":"\\"data\\":[7]","inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":%s}]}',
    '{"more":{"data":[7]},"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":%s}]}',
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":%s,"parameters":{"data":[1]}}]}',
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":%s},{"name":"z","datatype":"FP32","shape":[0],"data":[]}]}',
]
DATA = [
    "[1,2,3,4]",
    "[[1.5,2],[3,-4e2]]",
    " [ 1 , 2 , 3 , 4 ] ",
    "[1,2,3]",
    "[1,2,3,4,5]",
    "[1,2,3,[4]]",
    "[]",
    "[1,2,3,true]",
    '["]",1,2,3]',
    "[1,2,3,NaN]",
    '[1,2,3,4],"data":[5,6,7,8]',
    '[1,2,3,4],"shape":[4,1]',
    '[1,2,3,4]}],"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[9,9,9,9]',
    "7",
    "[1,2,3,4",
    "[1,2,3,4]]",
    '[{"a":1},2,3,4]',
]


def model(make: Callable[..., ModelView]) -> ModelView:
    return make("m", {"x": ("FP32", (-1, 2)), "z": ("FP32", (-1,))}, {"y": ("FP32", (-1, 2))})


def long_way(view: ModelView, body: bytes) -> Any:
    call = Call(body, "POST", "/v2/models/m/infer", {}, "http", {"model": "m"})
    try:
        return infer_request(call, view, body, memoryview(b""), 100)
    except GatewayError as error:
        return error


def only_x(make: Callable[..., ModelView]) -> ModelView:
    return make("m", {"x": ("FP32", (-1, 2))}, {"y": ("FP32", (-1, 2))})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_template_reads_what_the_long_way_reads_or_nothing(make_model: Callable[..., ModelView], layout: str) -> None:
    for view in (only_x(make_model), model(make_model)):
        templates = JsonTemplates()
        for learned in DATA:
            body = (layout % learned).encode()
            request = long_way(view, body)
            if not isinstance(request, GatewayError):
                templates.learn(request, None, 100, body)
            for data in DATA:
                other = (layout % data).encode()
                found = templates.read(view, None, 100, other)
                if found is not None:
                    want = long_way(view, other)
                    assert not isinstance(want, GatewayError), (learned, data)
                    np.testing.assert_array_equal(found[1]["x"], want.inputs["x"])
                    assert (found[0].outputs, found[0].wire) == (want.outputs, want.wire)


def test_the_usual_request_is_learned_at_once(make_model: Callable[..., ModelView]) -> None:
    view = only_x(make_model)
    templates = JsonTemplates()
    first, second = (LAYOUTS[0] % "[1,2,3,4]").encode(), (LAYOUTS[0] % "[[5,6],[7,8]]").encode()
    assert templates.read(view, None, 100, first) is None
    templates.learn(long_way(view, first), None, 100, first)
    found = templates.read(view, None, 100, second)
    assert found is not None
    assert found[1]["x"].tolist() == [[5, 6], [7, 8]]
    assert found[1]["x"].dtype == np.float32
    assert templates.read(view, "gzip", 100, second) is None
    assert templates.read(view, None, 99, second) is None
    assert templates.read(only_x(make_model), None, 100, second) is None


@pytest.mark.parametrize("mark", request._MARKS)
def test_numbers_that_look_like_a_mark_are_numbers(make_model: Callable[..., ModelView], mark: float) -> None:
    view = only_x(make_model)
    layout = '{"more":{"data":[%s]},"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[[%s,%s]]}]}'
    narrow = '{"more":{"data":[%s]},"inputs":[{"name":"z","datatype":"FP32","shape":[1],"data":[%s]}]}'
    only_z = make_model("m", {"z": ("FP32", (-1,))}, {"y": ("FP32", (-1,))})
    for model, bodies in (
        (view, [layout % (n, mark, mark) for n in (1, 2)]),
        (only_z, [narrow % (n, mark) for n in (1, 2)]),
    ):
        templates = JsonTemplates()
        first, second = [body.encode() for body in bodies]
        templates.learn(long_way(model, first), None, 100, first)
        assert templates.read(model, None, 100, second) is None


KEPT_APART = [
    {"id": "7"},
    {"parameters": {"a": 1}},
    {"parameters": {"priority": 1}},
    {"parameters": {"timeout": 5}},
    {"parameters": {"sequence_id": 5}},
]


@pytest.mark.parametrize("more", KEPT_APART)
def test_what_is_the_callers_own_is_never_kept(make_model: Callable[..., ModelView], more: dict[str, Any]) -> None:
    view = only_x(make_model)
    templates = JsonTemplates()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    body = json.dumps({**more, "inputs": [tensor]}).encode()
    templates.learn(long_way(view, body), None, 100, body)
    assert templates.read(view, None, 100, body) is None


def test_templates_are_bounded(make_model: Callable[..., ModelView]) -> None:
    view = only_x(make_model)
    templates = JsonTemplates()
    for number in range(600):
        body = f'{{"n":{number},"inputs":[{{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}}]}}'.encode()
        templates.learn(long_way(view, body), None, 100, body)
    assert 0 < sum(map(len, templates._by_text.values())) <= 256


def test_nothing_of_a_callers_own_names_is_kept(make_model: Callable[..., ModelView]) -> None:
    remembered = (request._remembered_ref, proto_message._remembered_ref, v2_document._output_request)
    before = [cache.cache_info().currsize for cache in remembered]
    for length in (300, 100_000):
        name = "n" * length
        assert request.model_ref(name, None) == proto_message.version_ref(name, "") == ModelRef(name)
        assert request.model_ref(name, "2") == proto_message.version_ref(name, "2") == ModelRef(name, 2)
        assert request.model_ref("m", "0" * length + "2") == ModelRef("m", 2)
        body = LAYOUTS[1].replace('"y"', f'"{name}"') % "[1,2,3,4]"
        assert isinstance(long_way(only_x(make_model), body.encode()), UnknownOutput)
    assert [cache.cache_info().currsize for cache in remembered] == before


@given(garbage=st.binary(max_size=40), layout=st.sampled_from(LAYOUTS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture is a function without state
def test_garbage_between_the_brackets_is_left_to_the_long_way(
    make_model: Callable[..., ModelView], garbage: bytes, layout: str
) -> None:
    view = only_x(make_model)
    templates = JsonTemplates()
    body = (layout % "[1,2,3,4]").encode()
    request = long_way(view, body)
    if isinstance(request, GatewayError):
        return
    templates.learn(request, None, 100, body)
    before, after = layout.encode().split(b"%s")
    other = before + b"[" + garbage + b"]" + after
    found = templates.read(view, None, 100, other)
    if found is not None:
        want = long_way(view, other)
        assert not isinstance(want, GatewayError)
        np.testing.assert_array_equal(found[1]["x"], want.inputs["x"])


# ------------------------------------------------------------------------------------------------ heads of binary data

X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
Z = {"name": "z", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}
TAIL = struct.pack("<3f", 1, 2, 3)
REMEMBERED: list[dict[str, Any]] = [
    {"inputs": [X, Z]},
    {"inputs": [Z, X]},
    {"inputs": [X, Z], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
    {"inputs": [X, Z], "parameters": {"binary_data_output": True}, "id": ""},
]
FORGOTTEN: list[dict[str, Any]] = [
    {"inputs": [X, Z], "id": "1"},
    {"inputs": [X, Z], "parameters": {"custom": 1}},
    {"inputs": [X, Z], "parameters": {"sequence_id": 1}},
    {"inputs": [X, Z], "parameters": {"priority": 1}},
    {"inputs": [X, Z], "parameters": {"timeout": 1}},
    {"inputs": [X, Z], "note": "a\\b"},
    {"inputs": [X, Z], "data": 1},
    {"inputs": [X, Z], "note": "x" * 1024},
]


def by_head(heads: BinaryHeads, view: ModelView, document: Any, tail: bytes) -> Any:
    """Read the long way and learned, then what the head alone makes of the same."""
    head = json.dumps(document).encode()
    call = Call(head + tail, "POST", "/v2/models/m/infer", {}, "http", {"model": "m"})
    request = infer_request(call, view, head, memoryview(tail), 100)
    heads.learn(request, None, 100, head, memoryview(tail))
    return request, heads.read(view, None, 100, head, memoryview(tail))


@pytest.mark.parametrize("document", REMEMBERED)
def test_a_head_says_again_what_it_said(document: Any, make_model: Callable[..., ModelView]) -> None:
    heads, view = BinaryHeads(), model(make_model)
    request, known = by_head(heads, view, document, TAIL)
    assert known is not None
    said, arrays = known
    assert (said.outputs, said.wire) == (request.outputs, request.wire)
    assert [*arrays] == [*request.inputs]
    for name, array in request.inputs.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)
    other = struct.pack("<3f", 7, 8, 9)
    known = heads.read(view, None, 100, json.dumps(document).encode(), memoryview(other))
    assert known is not None
    assert b"".join(array.tobytes() for array in known[1].values()) == other


@pytest.mark.parametrize("document", FORGOTTEN)
def test_a_head_of_one_request_alone_is_not_kept(document: Any, make_model: Callable[..., ModelView]) -> None:
    assert by_head(BinaryHeads(), model(make_model), document, TAIL)[1] is None


def test_a_head_is_another_behind_which_other_bytes_come(make_model: Callable[..., ModelView]) -> None:
    heads, view = BinaryHeads(), model(make_model)
    by_head(heads, view, REMEMBERED[0], TAIL)
    head = json.dumps(REMEMBERED[0]).encode()
    for tail in (TAIL[:-1], TAIL + b"x", b""):
        assert heads.read(view, None, 100, head, memoryview(tail)) is None
    assert heads.read(view, "gzip", 100, head, memoryview(TAIL)) is None
    assert heads.read(view, None, 99, head, memoryview(TAIL)) is None
    assert heads.read(model(make_model), None, 100, head, memoryview(TAIL)) is None


def test_heads_are_bounded(make_model: Callable[..., ModelView]) -> None:
    heads, view = BinaryHeads(), model(make_model)
    for number in range(600):
        assert by_head(heads, view, {"inputs": [X, Z], "n": number}, TAIL)[1] is not None
    assert len(heads._by_text) <= 256


def test_what_is_no_template_is_not_read_as_one_document(
    make_model: Callable[..., ModelView], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of two inputs can begin and end like one of one input that was learned."""
    pytest.importorskip("tensorgate.adapters._native._numbers", exc_type=ImportError)
    view = only_x(make_model)
    layout = '{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":%s}]}'
    templates = JsonTemplates()
    learned = (layout % "[1,2,3,4]").encode()
    templates.learn(long_way(view, learned), None, 100, learned)
    assert templates.read(view, None, 100, learned) is not None
    monkeypatch.setattr(request, "_numbers_of_document", None)
    two = '[1,2,3,4]},{"name":"z","datatype":"FP32","shape":[1],"data":[5]'
    assert templates.read(view, None, 100, (layout % two).encode()) is None
