"""A message that is read by its template says what it says without."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.adapters.open_inference import proto_request
from tensorgate.adapters.open_inference.proto_message import infer_request
from tensorgate.adapters.open_inference.proto_request import ProtoTemplates
from tensorgate.adapters.open_inference.proto_response import encode_stream_error
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract.call import Call, MustRelay
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView
from tensorgate.gateway.contract.errors import GatewayError, ModelNotFound, Unavailable
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

Request = message("inference.ModelInferRequest")


@pytest.fixture
def view(make_model: Callable[..., ModelView]) -> ModelView:
    tensors: Any = {"a": ("INT32", (-1, 2)), "b": ("FP64", (-1, 1))}
    return make_model("m", tensors, tensors, max_batch_size=4)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates of nothing."""
    monkeypatch.setattr(proto_request, "_unary", ProtoTemplates())
    monkeypatch.setattr(proto_request, "_streamed", ProtoTemplates())


def body_of(a: Any, b: Any, **more: Any) -> bytes:
    inputs = [
        {"name": "a", "datatype": "INT32", "shape": np.shape(a)},
        {"name": "b", "datatype": "FP64", "shape": np.shape(b)},
    ]
    raw = [np.int32(a).tobytes(), np.float64(b).tobytes()]
    request = Request(model_name="m", inputs=inputs, raw_input_contents=raw)
    request.MergeFrom(Request(**more))
    body: bytes = request.SerializeToString()
    return body


def call_of(body: bytes) -> Call:
    return Call(body, "POST", "", {}, "grpc", deadline=7.0)


def by_template(body: bytes, view: ModelView, *, stream: bool = False) -> Any:
    templates = proto_request._streamed if stream else proto_request._unary
    return templates.read(call_of(body), lambda ref: view, stream=stream)


def said(request: Any) -> Any:
    """All of a request, comparable."""
    fields = ("view", "id", "outputs", "parameters", "priority", "sequence", "deadline", "queue_timeout_us", "stream")
    arrays = [(name, each.dtype, each.shape, each.tobytes()) for name, each in request.inputs.items()]
    return arrays, request.wire, [getattr(request, field) for field in fields]


FIRST = body_of([[1, 2]], [[0.5]], outputs=[{"name": "b"}], model_version="1")
SECOND = body_of([[3, -4]], [[np.nan]], outputs=[{"name": "b"}], model_version="1")


@pytest.mark.parametrize("stream", [False, True])
def test_the_second_message_is_read_by_the_first_s_template(stream: bool, view: ModelView) -> None:
    decode = proto_request.decode_stream if stream else proto_request.decode_infer
    assert by_template(SECOND, view, stream=stream) is None
    decode(call_of(FIRST), lambda ref: view)
    short = by_template(SECOND, view, stream=stream)
    long = infer_request(call_of(SECOND), lambda ref: view, stream=stream)[0]
    assert said(short) == said(long)
    assert np.shares_memory(short.inputs["a"], np.frombuffer(SECOND, np.uint8)), "a view, not a copy"
    call = call_of(SECOND)
    decode(call, lambda ref: view)
    assert call.notes == {"id": "", "model": "m"}
    assert by_template(SECOND, view, stream=not stream) is None


def test_the_model_is_resolved_each_time(view: ModelView) -> None:
    proto_request.decode_infer(call_of(FIRST), lambda ref: view)
    newer = replace(view, version=2)
    assert by_template(SECOND, newer) is None
    assert proto_request.decode_infer(call_of(SECOND), lambda ref: newer).view is newer
    asked: list[ModelRef] = []

    def gone(ref: ModelRef) -> ModelView:
        asked.append(ref)
        raise ModelNotFound(ref.name)

    with pytest.raises(ModelNotFound):
        proto_request.decode_infer(call_of(SECOND), gone)
    assert asked == [ModelRef("m", 1)]


@pytest.mark.parametrize("learned", [[], [FIRST]])
def test_what_is_answered_elsewhere_fails_under_the_name_that_was_asked(learned: list[bytes], view: ModelView) -> None:
    """A door that does not know the model sends the message on; its engine may fail once it has accepted it."""

    def elsewhere(ref: ModelRef) -> ModelView:
        raise MustRelay

    for body in learned:
        proto_request.decode_stream(call_of(body), lambda ref: view)
    call = call_of(SECOND)
    with pytest.raises(MustRelay):
        proto_request.decode_stream(call, elsewhere)
    call.accepted = True
    said = encode_stream_error(Unavailable("the engine is being started again"), call).body
    answer = message("inference.ModelStreamInferResponse").FromString(said)
    assert answer.error_message == "the engine is being started again"
    assert answer.infer_response.model_name == "m"


NO_TEMPLATES = [
    {"id": "7"},
    {"parameters": {"p": {"bool_param": True}}},
    {"outputs": [{"name": "b", "parameters": {"classification": {"int64_param": 2}}}]},
]


@pytest.mark.parametrize("more", NO_TEMPLATES)
def test_unusual_messages_are_no_templates(more: dict[str, Any], view: ModelView) -> None:
    body = body_of([[1, 2]], [[0.5]], **more)
    assert isinstance(proto_request.decode_infer(call_of(body), lambda ref: view), InferRequest)
    assert by_template(body, view) is None


def test_texts_and_booleans_are_no_templates(make_model: Callable[..., ModelView]) -> None:
    for datatype, raw in (("BYTES", b"\1\0\0\0a"), ("BOOL", b"\2")):
        view = make_model("m", {"x": (datatype, None)}, {})
        item = {"name": "x", "datatype": datatype, "shape": [1]}
        body = Request(model_name="m", inputs=[item], raw_input_contents=[raw]).SerializeToString()
        proto_request.decode_infer(call_of(body), lambda ref, view=view: view)  # type: ignore[misc]
        assert by_template(body, view) is None


@pytest.mark.parametrize(
    "body",
    [
        SECOND.replace(b"\x3a\x08", b"\xba\x00\x08", 1),  # a longer tag
        b"\x3a\x08" + SECOND[-18:-10] + SECOND[:-20] + SECOND[-10:],  # one tensor before the rest
        SECOND + b"\x40\x01",
    ],
)
def test_messages_that_protobuf_writes_otherwise_are_no_templates(body: bytes, view: ModelView) -> None:
    proto_request.decode_infer(call_of(body), lambda ref: view)
    assert by_template(body, view) is None


def test_the_shortest_names_leave_room_for_the_beginning(make_model: Callable[..., ModelView]) -> None:
    """What a template is looked up by has no numbers in it, however little stands before them."""
    view = make_model("m", {"x": ("INT8", (-1,))}, {"y": ("INT8", (-1,))})

    def body(*numbers: int) -> bytes:
        raw = [np.int8(numbers).tobytes()]
        tensor = {"name": "x", "datatype": "INT8", "shape": [len(numbers)]}
        return bytes(Request(model_name="m", inputs=[tensor], raw_input_contents=raw).SerializeToString())

    proto_request.decode_infer(call_of(body(1)), lambda ref: view)
    for numbers in ((2,), (-128,), (127,)):
        assert by_template(body(*numbers), view).inputs["x"].tolist() == [*numbers]
    assert len(proto_request._unary) == 1


def test_models_whose_names_begin_alike_have_templates_of_their_own(make_model: Callable[..., ModelView]) -> None:
    names = [f"a_long_name_of_model_{number}" for number in range(5)]
    views = {name: make_model(name, {"x": ("INT8", (1,))}, {}) for name in names}

    def body(model: str, number: int) -> bytes:
        tensor = {"name": "x", "datatype": "INT8", "shape": [1]}
        request = Request(model_name=model, inputs=[tensor], raw_input_contents=[bytes([number])])
        return bytes(request.SerializeToString())

    for number in range(2):
        for name, view in views.items():
            found = proto_request._unary.read(call_of(body(name, number)), lambda ref: views[ref.name], stream=False)
            assert (found is not None) is (number > 0)
            assert proto_request.decode_infer(call_of(body(name, number)), lambda ref: views[ref.name]).view is view


def test_there_are_not_ever_more_of_them(view: ModelView) -> None:
    for number in range(600):
        name = {"model_version": "0" * number + "1"}
        proto_request.decode_infer(call_of(body_of([[1, 2]], [[0.5]], **name)), lambda ref: view)
    assert 0 < len(proto_request._unary) <= 256 * 8


@given(st.data())
def test_whatever_is_damaged_is_read_as_if_there_were_no_templates(data: st.DataObject) -> None:
    dtypes = {"a": TensorSpec("a", DTYPES["INT32"], (-1, 2)), "b": TensorSpec("b", DTYPES["FP64"], (-1, 1))}
    view: Any = type("View", (), {"name": "m", "inputs": dtypes, "outputs": dtypes})
    view.max_batch_size, view.decoupled = 4, False
    proto_request.decode_infer(call_of(FIRST), lambda ref: view)
    body = bytearray(SECOND)
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    def outcome(decode: Callable[[Call, Any], Any]) -> Any:
        try:
            return said(decode(call_of(bytes(body)), lambda ref: view))
        except GatewayError as error:
            return type(error), str(error)

    short = outcome(proto_request.decode_infer)
    assert short == outcome(lambda call, resolve: infer_request(call, resolve, stream=False)[0])
