"""Classify, Regress, MultiInference, and Predict with serialized Examples: messages to tensors, and answers back."""

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving import example_proto
from tensorgate.adapters.tf_serving.example_tensors import model_inputs
from tensorgate.adapters.tf_serving.proto_routes import GRPC_ENDPOINTS
from tensorgate.adapters.tf_serving.routes import match
from tensorgate.gateway.contract.call import Call, MustOffload, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError, InvalidArgument
from tensorgate.gateway.contract.questions import InferTogether
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Signature, TensorSpec

MakeModel = Callable[..., ModelView]
MakeResolve = Callable[..., Resolve]
STATELESS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the fixtures only hand over functions
SERVICE = "/tensorflow.serving.PredictionService/"
PACKAGE = "tensorflow.serving."
METHODS = {"Classify": "Classification", "Regress": "Regression", "MultiInference": "MultiInference"}
CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
Example = message("tensorflow.Example")
WIRE = {"inputs": TensorSpec("input_example_tensor", BYTES, (-1,))}
X = {"x": TensorSpec("x", DTYPES["FP32"], (-1, 2))}
SCORES, CLASSES, VALUE = (
    TensorSpec("s", DTYPES["FP32"], (-1, -1)),
    TensorSpec("c", BYTES, (-1, -1)),
    TensorSpec("v", DTYPES["FP32"], (-1,)),
)
RAW = {"inputs": TensorSpec("tf_example", BYTES, (-1,))}
SIGNATURES = {
    one.name: one
    for one in (
        Signature("serving_default", WIRE, {"scores": SCORES, "classes": CLASSES}, features=X),
        Signature("labelled", WIRE, {"scores": replace(SCORES, labels=("é", "b"))}, features=X),
        Signature("regress", WIRE, {"outputs": VALUE}, features=X),
        Signature("renamed", WIRE, {"outputs": VALUE}, features={"y": X["x"]}),
        Signature("raw", RAW, {"scores": SCORES}),
        Signature("raw_regress", RAW, {"outputs": VALUE}),
        Signature("own", RAW, {"outputs": VALUE}, definition=b"\x1a\x00"),
        Signature("own_classes", RAW, {"scores": SCORES}, definition=b"\x1a\x00"),
        Signature("predict", {"x": X["x"]}, {"y": VALUE, "z": VALUE, "w": VALUE}),
    )
}


@pytest.fixture
def view(make_model: MakeModel) -> ModelView:
    return replace(make_model("m", {}, {}), signatures=SIGNATURES)


def example(**features: Any) -> Any:
    found = Example()
    for name, values in features.items():
        target = found.features.feature[name]
        if values:
            kind = {float: "float_list", int: "int64_list", bytes: "bytes_list"}[type(values[0])]
            getattr(target, kind).value.extend(values)
    return found


def request_of(method: str, *examples: Any, context: Any = None, **spec: Any) -> Any:
    request = message(f"{PACKAGE}{METHODS[method]}Request")()
    for name, value in ({"name": "m"} | spec).items():
        if name == "version":
            request.model_spec.version.value = value
        else:
            setattr(request.model_spec, name, value)
    put(request, *examples, context=context)
    return request


def put(request: Any, *examples: Any, context: Any = None) -> None:
    if context is None:
        request.input.example_list.examples.extend(examples)
    else:
        request.input.example_list_with_context.examples.extend(examples)
        request.input.example_list_with_context.context.CopyFrom(context)


def multi(*tasks: tuple[str, str, str], examples: tuple[Any, ...] = (), context: Any = None) -> Any:
    """Tasks are (model, signature, method_name)."""
    request = message(PACKAGE + "MultiInferenceRequest")()
    for name, signature, method in tasks:
        task = request.tasks.add(method_name=method)
        task.model_spec.name = name
        task.model_spec.signature_name = signature
    put(request, *examples, context=context)
    return request


def call_of(method: str, request: Any, *, in_thread: bool = True) -> Call:
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return Call(body, "", SERVICE + method, {}, "grpc", deadline=5.0, in_thread=in_thread)


def decode(method: str, request: Any, resolve: Resolve) -> Any:
    return GRPC_ENDPOINTS[SERVICE + method].decode(call_of(method, request), resolve)


def refusal(method: str, request: Any, resolve: Resolve) -> tuple[Code, str]:
    with pytest.raises(GatewayError) as caught:
        decode(method, request, resolve)
    reply = GRPC_ENDPOINTS[SERVICE + method].encode_error(caught.value, call_of(method, b""))
    return reply.grpc_code, reply.message


ONE = example(x=[1.0, 2.0])


# ------------------------------------------------------------------------------------------------------- what is taken


def test_classify(view: ModelView, make_resolve: MakeResolve) -> None:
    request = decode("Classify", request_of("Classify", ONE, example(x=[3.0, 4.0], q=[5])), make_resolve(view))
    assert isinstance(request, InferRequest)
    np.testing.assert_array_equal(request.inputs["x"], np.array([[1, 2], [3, 4]], np.float32), strict=True)
    assert (request.signature, request.deadline) == ("serving_default", 5.0)
    assert [output.name for output in request.outputs] == ["c", "s"]


def test_context(view: ModelView, make_resolve: MakeResolve) -> None:
    several = (example(q=[1]), example(x=[3.0, 4.0]))
    request = request_of("Regress", *several, context=ONE, signature_name="regress", version=1)
    assert decode("Regress", request, make_resolve(view)).inputs["x"].tolist() == [[1, 2], [3, 4]]
    hidden = request_of("Regress", example(x=[]), context=ONE, signature_name="regress")
    assert "Feature: x" in refusal("Regress", hidden, make_resolve(view))[1]


@pytest.mark.parametrize("large", [False, True])
def test_a_model_that_reads_examples_itself(
    large: bool, view: ModelView, make_resolve: MakeResolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(example_proto, "_LARGE_BYTES", 0)
    several = (example(b=[b"q"]), example(a=[2], b=[1.5] * 20))
    request = request_of("Classify", *several, context=example(a=[1.5]), signature_name="raw")
    texts = decode("Classify", request, make_resolve(view)).inputs["tf_example"]
    assert (texts.dtype, texts.shape) == (BYTES, (2,))
    assert [Example.FromString(text) for text in texts] == [
        example(a=[1.5], b=[b"q"]),
        example(a=[2], b=[1.5] * 20),
    ]


def test_tasks_of_a_model_that_sees_signatures_are_runs_of_their_own(
    view: ModelView, make_resolve: MakeResolve
) -> None:
    tasks = multi(("m", "", CLASSIFY), ("m", "labelled", CLASSIFY), ("m", "regress", REGRESS), examples=(ONE,))
    together = decode("MultiInference", tasks, make_resolve(view))
    assert [request.signature for request in together.requests] == ["serving_default"]
    apart = decode("MultiInference", tasks, make_resolve(replace(view, sees_requests=True)))
    assert [request.signature for request in apart.requests] == ["serving_default", "labelled", "regress"]
    assert [task.request for task in apart.wire] == [0, 1, 2]


def test_an_absent_context_is_none(view: ModelView, make_resolve: MakeResolve) -> None:
    request = request_of("Classify", ONE, context=Example(), signature_name="raw")
    assert decode("Classify", request, make_resolve(view)).inputs["tf_example"].tolist() == [ONE.SerializeToString()]


VALUES = st.one_of(
    st.lists(st.floats(width=32), max_size=40),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40),
    st.lists(st.binary(max_size=4), max_size=40),
)
EXAMPLES = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), min_size=1, max_size=5)


def in_json(values: Any) -> Any:
    return [{"b64": base64.b64encode(one).decode()} if isinstance(one, bytes) else one for one in values]


@STATELESS
@given(
    EXAMPLES,
    st.none() | st.dictionaries(st.sampled_from("abc"), VALUES),
    st.sampled_from(["FP32", "FP64", "INT64", "BYTES"]),
)
def test_every_encoding_gives_the_same(
    make_model: MakeModel, make_resolve: MakeResolve, examples: Any, context: Any, datatype: str
) -> None:
    """JSON, a message read by protobuf, one taken apart by hand, and serialized Examples: equal tensors or an equal
    refusal.
    """
    features = {"a": TensorSpec("a", DTYPES[datatype], (-1, -1))}
    shown = Signature("serving_default", WIRE, {"outputs": VALUE}, features=features)
    resolve = make_resolve(replace(make_model("m", {}, {}), signatures={"serving_default": shown}))
    body = {"examples": [{name: in_json(values) for name, values in one.items()} for one in examples]}
    if context is not None:
        body["context"] = {name: in_json(values) for name, values in context.items()}  # type: ignore[assignment]
    found = match("POST", "/v1/models/m:regress")
    call = Call(json.dumps(body).encode(), "POST", "", {}, "http", found.args, in_thread=True)
    messages = [example(**one) for one in examples]
    together = None if context is None else example(**context)
    request = call_of("Regress", request_of("Regress", *messages, context=together))
    shared = b"" if together is None else together.SerializeToString()
    serialized = np.empty(len(messages), np.object_)
    serialized[:] = [shared + one.SerializeToString() for one in messages]

    kind = PACKAGE + "RegressionRequest"

    def by_hand() -> Any:
        spec, lists = example_proto._split(kind, request.body)
        assert message(kind).FromString(spec).model_spec.name == "m"
        return model_inputs(shown, example_proto._listed(kind, lists))

    def at_once() -> Any:
        _, lists = example_proto._split(kind, request.body)
        large = example_proto._plain(lists) or example_proto._listed(kind, lists)
        return model_inputs(shown, large)

    ways: list[Callable[[], Any]] = [
        lambda: found.endpoint.decode(call, resolve).inputs,
        lambda: GRPC_ENDPOINTS[SERVICE + "Regress"].decode(request, resolve).inputs,
        by_hand,
        at_once,
        lambda: example_proto.example_inputs(shown, serialized, in_thread=False),
    ]
    results = [outcome(way) for way in ways]
    for result in results[1:]:
        if isinstance(results[0], str):
            assert result == results[0]
        else:
            np.testing.assert_array_equal(result, results[0], strict=True)


def outcome(way: Callable[[], Any]) -> Any:
    try:
        return way()["a"]
    except InvalidArgument as error:
        return error.text


@STATELESS
@given(st.binary(max_size=200), st.sampled_from(sorted(METHODS)))
def test_garbage(view: ModelView, make_resolve: MakeResolve, body: bytes, method: str) -> None:
    for damaged in (body, request_of("Classify", ONE, context=ONE).SerializeToString() + body):
        for small, large in ((1 << 16, 1 << 22), (0, 1 << 22), (0, 0)):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(example_proto, "SMALL_BYTES", small)
                patched.setattr(example_proto, "_LARGE_BYTES", large)
                with suppress(GatewayError):
                    decode(method, damaged, make_resolve(view))


def pieces(*parts: tuple[str, tuple[Any, ...], Any]) -> bytes:
    """A request whose input comes in pieces: ("list" or "context", examples, context)."""
    body = b""
    for kind, examples, context in parts:
        request = message(PACKAGE + "RegressionRequest")()
        if kind == "list":
            request.input.example_list.examples.extend(examples)
            request.input.example_list.SetInParent()
        else:
            request.input.example_list_with_context.SetInParent()
            request.input.example_list_with_context.examples.extend(examples)
            if context is not None:
                request.input.example_list_with_context.context.CopyFrom(context)
        body += request.SerializeToString()
    return body


A, B = example(x=[1.0]), example(y=[b"q"])


@pytest.mark.parametrize(
    "body",
    [
        pieces(("list", (A,), None), ("list", (B,), None)),
        pieces(("list", (A,), None), ("context", (B,), None)),
        pieces(("context", (A,), A), ("context", (B,), B)),
        pieces(("context", (A,), A), ("list", (B,), None)),
        pieces(("context", (A,), A), ("list", (), None)),
        pieces(("context", (A,), None)),
        pieces(),
        # field 2 of an ExampleList is unknown
        b"\x12\x06\x0a\x04\x0a\x00\x12\x00",
    ],
)
def test_inputs_in_pieces_are_one_message(body: bytes) -> None:
    kind = PACKAGE + "RegressionRequest"
    _, lists = example_proto._split(kind, body)
    _, small = example_proto.read_request(kind, body)
    for large in (example_proto._listed(kind, lists), example_proto._plain(lists)):
        if large is not None:
            assert len(large) == len(small)
            assert [*map(Example.FromString, large.serialized())] == [*map(Example.FromString, small.serialized())]


def test_predict_parses_serialized_examples(view: ModelView, make_resolve: MakeResolve) -> None:
    texts = [ONE.SerializeToString(), example(x=[3.0, 4.0]).SerializeToString()]
    request = message(PACKAGE + "PredictRequest")()
    request.model_spec.name = "m"
    request.inputs["inputs"].dtype = 7
    request.inputs["inputs"].tensor_shape.dim.add(size=2)
    request.inputs["inputs"].string_val.extend(texts)
    assert decode("Predict", request, make_resolve(view)).inputs["x"].tolist() == [[1, 2], [3, 4]]
    request.inputs["inputs"].string_val[1] = b"\x0a\x05a"
    refused = (Code.INVALID_ARGUMENT, "Could not parse example input, Index: 1")
    assert refusal("Predict", request, make_resolve(view)) == refused
    request.inputs["inputs"].tensor_shape.dim.add(size=1)
    refused = (Code.INVALID_ARGUMENT, "Expected serialized to be a vector, got shape: [2,1]")
    assert refusal("Predict", request, make_resolve(view)) == refused


def test_predict_parses_serialized_examples_in_json(view: ModelView, make_resolve: MakeResolve) -> None:
    [text] = in_json([ONE.SerializeToString()])
    found = match("POST", "/v1/models/m:predict")
    for body in ({"instances": [text]}, {"inputs": {"inputs": [text]}}, {"instances": [{"inputs": text}]}):
        call = Call(json.dumps(body).encode(), "POST", "", {}, "http", found.args)
        assert found.endpoint.decode(call, make_resolve(view)).inputs["x"].tolist() == [[1, 2]]
    empty = Call(b'{"inputs": []}', "POST", "", {}, "http", found.args)
    with pytest.raises(GatewayError):  # a list of nothing is no list of strings
        found.endpoint.decode(replace(empty, body=b'{"inputs": "a"}'), make_resolve(view))
    assert found.endpoint.decode(empty, make_resolve(view)).inputs["x"].shape == (0, 2)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_many_features_are_read_in_a_thread(method: str, view: ModelView, make_resolve: MakeResolve) -> None:
    body = call_of(method, request_of("Classify", *[ONE] * 4000), in_thread=False)
    with pytest.raises(MustOffload):
        GRPC_ENDPOINTS[SERVICE + method].decode(body, make_resolve(view))


def test_many_serialized_examples_are_read_in_a_thread() -> None:
    texts = np.full(4000, ONE.SerializeToString(), np.object_)
    with pytest.raises(MustOffload):
        example_proto.example_inputs(SIGNATURES["serving_default"], texts, in_thread=False)


# ----------------------------------------------------------------------------------------------------- what is refused

INVALID = Code.INVALID_ARGUMENT
REFUSED: list[tuple[str, Any, Code, str]] = [
    ("Classify", b"", INVALID, "Missing ModelSpec"),
    ("Regress", b"", INVALID, "Missing ModelSpec"),
    ("Classify", b"\x0a\x00", INVALID, "ModelSpec has no name specified."),
    (
        "Classify",
        request_of("Classify", ONE, name="other"),
        Code.NOT_FOUND,
        "Servable not found for request: Latest(other)",
    ),
    (
        "Regress",
        request_of("Regress", version=0),
        Code.NOT_FOUND,
        "Servable not found for request: Specific(m, 0)",
    ),
    ("Regress", request_of("Regress", name="q", version_label=""), INVALID, "Unrecognized servable version label: "),
    ("Regress", request_of("Regress", name="q", version_label="a"), INVALID, "Unrecognized servable version label: a"),
    (
        "Classify",
        request_of("Classify", signature_name="q"),
        INVALID,
        "No signature was found with the name: q",
    ),
    ("Regress", request_of("Regress", signature_name="q"), INVALID, "No signature was found with the name: q"),
    ("Regress", request_of("Regress"), INVALID, "Expected one output Tensor."),
    (
        "Classify",
        request_of("Classify", signature_name="predict"),
        INVALID,
        "Expected one or two output Tensors, found 3",
    ),
    ("Classify", request_of("Classify"), INVALID, "Input is empty."),
    ("Classify", request_of("Classify", context=ONE), INVALID, "Input is empty."),
    ("Regress", request_of("Regress", signature_name="regress"), INVALID, "Input is empty."),
    (
        "Classify",
        request_of("Classify", example(x=[1, 2])),
        INVALID,
        "Name: <unknown>, Key: x, Index: 0.  Data types don't match. Data type: int64 but expected type: float",
    ),
    ("MultiInference", b"", INVALID, "ModelSpec has no name specified."),
    ("MultiInference", multi(("", "", CLASSIFY)), INVALID, "ModelSpec has no name specified."),
    (
        "MultiInference",
        multi(("other", "", CLASSIFY)),
        Code.NOT_FOUND,
        "Servable not found for request: Latest(other)",
    ),
    (
        "MultiInference",
        multi(("m", "", CLASSIFY), ("", "regress", REGRESS)),
        INVALID,
        "Found ModelSpec with an empty model name.",
    ),
    (
        "MultiInference",
        multi(("m", "", CLASSIFY), ("n", "regress", REGRESS)),
        INVALID,
        "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
    ),
    (
        "MultiInference",
        multi(("m", "", CLASSIFY), ("m", "serving_default", REGRESS)),
        INVALID,
        "Duplicate evaluation of signature: serving_default",
    ),
    (
        "MultiInference",
        multi(("m", "q", "nonsense"), ("", "", "")),
        INVALID,
        "Requested signature not found in model graph: q",
    ),
    (
        "MultiInference",
        multi(("m", "regress", "tensorflow/serving/predict"), ("", "", "")),
        Code.UNIMPLEMENTED,
        "Unsupported signature method_name: tensorflow/serving/predict",
    ),
    (
        "MultiInference",
        multi(("m", "regress", "")),
        Code.UNIMPLEMENTED,
        "Unsupported signature method_name: ",
    ),
    ("MultiInference", multi(("m", "", REGRESS), ("", "", "")), INVALID, "Expected one output Tensor."),
    ("MultiInference", multi(("m", "", CLASSIFY)), INVALID, "Input is empty."),
]


@pytest.mark.parametrize(("method", "request_", "code", "text"), REFUSED, ids=[f"{one[0]} {one[3]}" for one in REFUSED])
def test_refusals(
    method: str, request_: Any, code: Code, text: str, view: ModelView, make_resolve: MakeResolve
) -> None:
    assert refusal(method, request_, make_resolve(view)) == (code, text)


# -------------------------------------------------------------------------------------------------------------- answers

F = np.float32


def answer(method: str, request: Any, outputs: dict[str, Any], resolve: Resolve) -> Any:
    endpoint = GRPC_ENDPOINTS[SERVICE + method]
    reply = endpoint.encode(InferResponse(outputs), endpoint.decode(call_of(method, request), resolve))
    return read(method, reply)


def read(method: str, reply: Reply) -> Any:
    assert reply.grpc_code == Code.OK
    return message(f"{PACKAGE}{METHODS[method]}Response").FromString(reply.body)


def classes_of(result: Any) -> list[list[tuple[str, float]]]:
    return [[(one.label, one.score) for one in each.classes] for each in result.classifications]


def test_classes(view: ModelView, make_resolve: MakeResolve) -> None:
    outputs = {
        "s": np.array([[0.5, 1], [0, -2]], F),
        "c": np.array([["é".encode(), b"\xff"], [b"", b"d"]], np.object_),
    }
    found = answer("Classify", request_of("Classify", ONE, ONE), outputs, make_resolve(view))
    assert classes_of(found.result) == [[("é", 0.5), ("\ufffd", 1)], [("", 0), ("d", -2)]]
    spec = found.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 1, "serving_default")
    assert spec.WhichOneof("version_choice") == "version"


def test_labels_of_scores(view: ModelView, make_resolve: MakeResolve) -> None:
    request = request_of("Classify", ONE, ONE, signature_name="labelled")
    found = answer("Classify", request, {"s": np.array([[1, 2, 3], [4, 5, 6]], F)}, make_resolve(view))
    assert classes_of(found.result) == [[("é", 1), ("b", 2), ("", 3)], [("é", 4), ("b", 5), ("", 6)]]
    found = answer("Classify", request, {"s": np.array([[1], [4]], F)}, make_resolve(view))
    assert classes_of(found.result) == [[("é", 1)], [("é", 4)]]


def test_values(view: ModelView, make_resolve: MakeResolve) -> None:
    request = request_of("Regress", ONE, ONE, signature_name="regress")
    for shape in ((2,), (2, 1)):
        found = answer("Regress", request, {"v": np.array([0, 2.5], F).reshape(shape)}, make_resolve(view))
        assert [one.value for one in found.result.regressions] == [0, 2.5]
        assert found.model_spec.signature_name == "regress"


def test_what_is_no_answer(view: ModelView, make_resolve: MakeResolve) -> None:
    request = request_of("Regress", ONE, ONE, signature_name="regress")
    with pytest.raises(GatewayError) as caught:
        answer("Regress", request, {"v": np.zeros((2, 2), F)}, make_resolve(view))
    reply = GRPC_ENDPOINTS[SERVICE + "Regress"].encode_error(caught.value, call_of("Regress", b""))
    assert (reply.grpc_code, reply.message) == (
        INVALID,
        "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got [2,2]",
    )


TASKS: list[tuple[list[str], list[list[str]], list[int]]] = [
    (["serving_default", "regress"], [["c", "s", "v"]], [0, 0]),
    (["regress", "labelled", "serving_default"], [["v", "s", "c"]], [0, 0, 0]),
    (["regress", "renamed"], [["v"], ["v"]], [0, 1]),
    (["raw", "regress", "raw_regress"], [["s", "v"], ["v"]], [0, 1, 0]),
    (["own", "own_classes"], [["v"], ["s"]], [0, 1]),
    (["raw", "own"], [["s"], ["v"]], [0, 1]),
]


@pytest.mark.parametrize(("names", "runs", "chosen"), TASKS, ids=["+".join(names) for names, *_ in TASKS])
def test_tasks_that_feed_alike_run_once(
    names: list[str], runs: list[list[str]], chosen: list[int], view: ModelView, make_resolve: MakeResolve
) -> None:
    both = example(x=[1.0, 2.0], y=[3.0, 4.0])
    verbs = [REGRESS if "outputs" in SIGNATURES[name].outputs else CLASSIFY for name in names]
    request = multi(*[("m", name, verb) for name, verb in zip(names, verbs, strict=True)], examples=(both,))
    question = decode("MultiInference", request, make_resolve(view))
    assert isinstance(question, InferTogether)
    assert [[output.name for output in one.outputs] for one in question.requests] == runs
    answers = tuple(
        InferResponse({"s": np.array([[run]], F), "c": np.array([[b"a"]], np.object_), "v": np.array([run], F)})
        for run, _ in enumerate(runs)
    )
    reply = read("MultiInference", GRPC_ENDPOINTS[SERVICE + "MultiInference"].encode(answers, question))
    assert [result.model_spec.signature_name for result in reply.results] == names
    assert {(result.model_spec.name, result.model_spec.version.value) for result in reply.results} == {("m", 1)}
    values = [
        result.regression_result.regressions[0].value
        if result.WhichOneof("result") == "regression_result"
        else result.classification_result.classifications[0].classes[0].score
        for result in reply.results
    ]
    assert values == chosen
    assert [result.WhichOneof("result") for result in reply.results] == [
        "regression_result" if verb == REGRESS else "classification_result" for verb in verbs
    ]


# -------------------------------------------------------------------------------------------------------------- attacks


@pytest.mark.parametrize("large", [False, True])
def test_a_context_of_many_examples_is_read_once(
    large: bool, view: ModelView, make_resolve: MakeResolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read for each of them it would be 40 GB."""
    if large:
        monkeypatch.setattr(example_proto, "_LARGE_BYTES", 0)
    request = request_of("Regress", *[Example()] * 100_000, context=example(x=[1.0] * 100_000))
    request.model_spec.signature_name = "regress"
    assert "Values size: 100000" in refusal("Regress", request, make_resolve(view))[1]
    request.model_spec.signature_name = "raw_regress"
    refused = INVALID, "The context has more than 268435456 bytes in all Examples"
    assert refusal("Regress", request, make_resolve(view)) == refused


def test_what_a_context_makes_is_bounded(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    features = {"x": TensorSpec("x", DTYPES["FP32"], (-1, -1))}
    shown = Signature("serving_default", WIRE, {"outputs": VALUE}, features=features)
    resolve = make_resolve(replace(make_model("m", {}, {}), signatures={"serving_default": shown}))
    request = request_of("Regress", *[Example()] * 10_000, context=example(x=[1.0] * 100_000))
    refused = INVALID, "Feature: x has more than 268435456 values in all Examples"
    assert refusal("Regress", request, resolve) == refused


def field(tag: int, content: bytes) -> bytes:
    size = len(content)
    text = bytes([tag])
    while size > 127:
        text += bytes([size & 127 | 128])
        size >>= 7
    return text + bytes([size]) + content


@pytest.mark.parametrize(
    "examples",
    [
        b"\x0a\x00" * 3_000_000,
        field(10, field(10, b"".join(field(10, field(10, b"%d" % index)) for index in range(600_000)))),
        field(10, field(10, field(10, field(10, b"x") + field(18, field(10, b"\x0a\x00" * 3_000_000))))),
    ],
    ids=["Examples", "features", "strings"],
)
def test_messages_of_mere_structure(examples: bytes, view: ModelView, make_resolve: MakeResolve) -> None:
    body = field(10, field(10, b"m")) + field(18, field(10, examples))
    code, text = refusal("Classify", body, make_resolve(view))
    assert code == INVALID
    assert "fields" in text
