"""The client sides of the dialects: what they send is read by the dialects themselves, and so is what these answer."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.app import registries
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, Sequence
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.contract.errors import Code, EncodingFailed, GatewayError, ModelFailed
from tensorgate.gateway.contract.questions import IndexEntry
from tensorgate.gateway.contract.tensor import DTYPES, NOTHING, TensorSpec
from tensorgate.gateway.contract.upstream import Ask, Client, Description, UpstreamModel

REGISTRIES = registries()
WAYS = [(name, way) for name, kind in REGISTRIES.dialects.items() for way in kind.client_transports if name != "openai"]
"""Of the dialects that are of tensors."""
VALUES: dict[str, Any] = {
    "BOOL": np.array([[True, False], [False, True]]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], np.int16),
    "INT32": np.array([[-(2**31)], [2**31 - 1]], np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "FP16": np.array([0.1, -65504], np.float16),
    "BF16": np.array([0.1, -3e38], ml_dtypes.bfloat16),
    "FP32": np.array([0.1, np.float32(3.4e38), -0.0], np.float32),
    "FP64": np.array([0.1, 1e308, -0.0], np.float64),
    "BYTES": np.array([["größe".encode(), b""], [b'\n"\\', b"x" * 200]], object),
}
MISSING = {
    ("tf_serving", "http"): {"UINT16", "FP16", "BF16"},
    ("grps", "grpc"): {"BOOL", "UINT16", "UINT32", "UINT64", "BF16"},
    ("grps", "http"): {"BOOL", "UINT16", "UINT32", "UINT64", "BF16"},
}
"""What a protocol has no word for."""
LARGE = np.random.default_rng(1).standard_normal((40, 100)).astype(np.float32)


def dialect_of(name: str) -> Dialect:
    kind = REGISTRIES.dialects[name]
    dialect: Dialect = kind.make(kind.options())
    return dialect


def client_of(way: tuple[str, str], **model: Any) -> Client:
    if way[0] == "grps":
        model.setdefault("version", 1)
    make = REGISTRIES.client(*way)
    assert make
    return make(UpstreamModel("m", **model))


def described(view: ModelView) -> Description:
    return Description(tuple(view.inputs.values()), tuple(view.outputs.values()))


def received(ask: Ask, way: tuple[str, str]) -> tuple[Call, Any]:
    """What an upstream of that dialect sees: the call, and its endpoint."""
    dialect = dialect_of(way[0])
    body = b"".join(ask.body)
    headers = {name.lower(): value for name, value in ask.headers.items()}
    if way[1] == "grpc":
        endpoint, args = dialect.grpc[ask.target], NOTHING
    else:
        match = dialect.match(ask.method, ask.target)
        endpoint, args = match.endpoint, match.args
    call = Call(body, ask.method, ask.target, headers, way[1], args, in_thread=True)  # type: ignore[arg-type]
    return call, endpoint


def on_the_wire(reply: Reply) -> Reply:
    """As it arrives: in one piece, headers in lower case."""
    body = reply.body if isinstance(reply.body, (bytes, bytearray, memoryview)) else b"".join(reply.body)
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return Reply(body, reply.http_status, headers, reply.grpc_code, reply.message)


def there_and_back(way: tuple[str, str], view: ModelView, resolve: Any, inputs: Any, **request: Any) -> Any:
    """Through the client, the dialect, an identity, and back: the upstream's request, and the answer."""
    client = client_of(way)
    ask = client.encode(inputs, (), InferRequest(view, inputs, **request), described(view), stream=False)
    call, endpoint = received(ask, way)
    asked = endpoint.decode(call, resolve)
    outputs = {name: asked.inputs[f"in_{name}"] for name in view.outputs}
    reply = endpoint.encode(InferResponse(outputs), asked)
    return asked, client.decode(on_the_wire(reply), described(view))


def assert_same(got: Any, want: Any) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype == object:
        assert got.tolist() == want.tolist()
    else:
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("datatype", VALUES)
def test_every_datatype_goes_there_and_comes_back_bit_by_bit(
    way: tuple[str, str], datatype: str, make_model: Callable[..., ModelView], make_resolve: Any
) -> None:
    view = make_model("m", {"in_y": (datatype, None)}, {"y": (datatype, None)})
    value = VALUES[datatype]
    if datatype in MISSING.get(way, ()):
        with pytest.raises(EncodingFailed):
            there_and_back(way, view, make_resolve(view), {"in_y": value})
        return
    asked, answer = there_and_back(way, view, make_resolve(view), {"in_y": value})
    assert_same(asked.inputs["in_y"], value)
    assert_same(answer.outputs["y"], value)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_shapes_of_all_kinds(way: tuple[str, str], make_model: Callable[..., ModelView], make_resolve: Any) -> None:
    view = make_model(
        "m", {"in_y": ("FP32", None), "in_z": ("BYTES", None)}, {"y": ("FP32", None), "z": ("BYTES", None)}
    )
    texts = np.array([[f"row {n}".encode() * 20] for n in range(40)], object)
    for numbers, strings in (
        (LARGE, texts),
        (LARGE[:, ::2], texts),
        (LARGE.T, texts),
        (np.float32(2.5).reshape(()), texts),
    ):
        asked, answer = there_and_back(way, view, make_resolve(view), {"in_y": numbers, "in_z": strings})
        assert_same(asked.inputs["in_y"], np.ascontiguousarray(numbers).reshape(numbers.shape))
        assert_same(answer.outputs["y"], np.ascontiguousarray(numbers).reshape(numbers.shape))
        assert_same(answer.outputs["z"], texts)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_what_is_no_number_is_carried_too(
    way: tuple[str, str], make_model: Callable[..., ModelView], make_resolve: Any
) -> None:
    view = make_model("m", {"in_y": ("FP32", None)}, {"y": ("FP32", None)})
    value = np.array([[np.nan, np.inf], [-np.inf, 1.5]], np.float32)
    asked, answer = there_and_back(way, view, make_resolve(view), {"in_y": value})
    np.testing.assert_array_equal(asked.inputs["in_y"], value)
    np.testing.assert_array_equal(answer.outputs["y"], value)


@pytest.mark.parametrize("way", WAYS[:2], ids="-".join)
def test_v2_carries_on_what_goes_along_with_tensors(
    way: tuple[str, str], make_model: Callable[..., ModelView], make_resolve: Any
) -> None:
    view = make_model("m", {"in_y": ("FP32", None)}, {"y": ("FP32", None)})
    sequence = Sequence(2**64 - 1, start=True)
    along = {
        "id": "größe",
        "parameters": {"a": True, "b": -5, "c": "text", "d": 0.5},
        "priority": 3,
        "queue_timeout_us": 7,
        "sequence": sequence,
    }
    if way[1] == "http":
        along["sequence"] = sequence = Sequence("abc", end=True)
    asked, _ = there_and_back(way, view, make_resolve(view), {"in_y": LARGE}, **along)
    assert (asked.id, dict(asked.parameters), asked.priority) == ("größe", along["parameters"], 3)
    assert (asked.queue_timeout_us, asked.sequence) == (7, sequence)


@pytest.mark.parametrize("way", [way for way in WAYS if way[0] != "grps"], ids="-".join)
def test_specifications_are_read_from_metadata(
    way: tuple[str, str], make_model: Callable[..., ModelView], make_resolve: Any
) -> None:
    view = make_model("m", {"b": ("FP32", (-1, 3)), "a": ("INT64", (-1,))}, {"y": ("BYTES", (-1, 2))})
    client = client_of(way)
    replies = []
    for ask in client.questions():
        call, endpoint = received(ask, way)
        if endpoint.method in ("config", "model_config", "server_metadata"):  # servers of the bare protocol have none
            replies.append(Reply(b"", 404, grpc_code=Code.UNIMPLEMENTED))
        else:
            replies.append(on_the_wire(endpoint.encode(view, endpoint.decode(call, make_resolve(view)))))
    said = client.description(replies)
    assert {spec.name: spec for spec in said.inputs} == dict(view.inputs)
    assert said.outputs == tuple(view.outputs.values())
    assert not said.decoupled


# -------------------------------------------------------------------------------------------------------------- errors

KINDS = {
    Code.CANCELLED: errors.Cancelled,
    Code.UNKNOWN: errors.Unknown,
    Code.INVALID_ARGUMENT: errors.InvalidArgument,
    Code.DEADLINE_EXCEEDED: errors.TimedOut,
    Code.NOT_FOUND: errors.NotFound,
    Code.ALREADY_EXISTS: errors.AlreadyExists,
    Code.PERMISSION_DENIED: errors.ModelFailed,
    Code.RESOURCE_EXHAUSTED: errors.Exhausted,
    Code.FAILED_PRECONDITION: errors.PreconditionFailed,
    Code.ABORTED: errors.ModelFailed,
    Code.OUT_OF_RANGE: errors.InvalidArgument,
    Code.UNIMPLEMENTED: errors.Unsupported,
    Code.INTERNAL: errors.ModelFailed,
    Code.UNAVAILABLE: errors.Unavailable,
    Code.DATA_LOSS: errors.ModelFailed,
    Code.UNAUTHENTICATED: errors.ModelFailed,
}
STATUSES = {
    400: errors.InvalidArgument,
    401: errors.ModelFailed,
    404: errors.NotFound,
    409: errors.AlreadyExists,
    412: errors.PreconditionFailed,
    413: errors.Exhausted,
    429: errors.Exhausted,
    499: errors.Cancelled,
    500: errors.ModelFailed,
    501: errors.Unsupported,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.TimedOut,
}


def decoded(way: tuple[str, str], reply: Reply) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        client_of(way).decode(reply, Description(outputs=(TensorSpec("y", DTYPES["FP32"]),)))
    return caught.value


@pytest.mark.parametrize("way", [way for way in WAYS if way[1] == "grpc"], ids="-".join)
@pytest.mark.parametrize("code", [code for code in Code if code], ids=lambda code: code.name)
def test_a_grpc_status_keeps_its_kind_and_text(way: tuple[str, str], code: Code) -> None:
    error: Any = decoded(way, Reply(b"", grpc_code=code, message="so it is"))
    assert (type(error), error.text) == (KINDS[code], "so it is")


@pytest.mark.parametrize("way", [way for way in WAYS if way[1] == "http" and way[0] != "grps"], ids="-".join)
@pytest.mark.parametrize("status", STATUSES)
def test_an_http_status_keeps_its_kind_and_text(way: tuple[str, str], status: int) -> None:
    for body, text in ((b'{"error": "so it is"}', "so it is"), (b"<h1>", "<h1>"), (b"", f"HTTP status {status}")):
        error: Any = decoded(way, Reply(body, status))
        assert (type(error), error.text) == (STATUSES[status], text)


@pytest.mark.parametrize(
    ("code", "kind"), [(400, errors.InvalidArgument), (500, ModelFailed), (503, errors.Unavailable)]
)
def test_a_grps_status_keeps_its_kind_and_text(code: int, kind: type[GatewayError]) -> None:
    body = message("grps.protos.v1.GrpsMessage")(status={"code": code, "msg": "so it is", "status": 2})
    over_http = b'{"status": {"code": %d, "msg": "so it is", "status": "FAILURE"}}' % code
    for way, reply in (
        (("grps", "grpc"), Reply(body.SerializeToString())),
        (("grps", "http"), Reply(over_http, code)),
        (("grps", "http"), Reply(over_http, 200)),  # grps' C++ server says 200 of everything
    ):
        error: Any = decoded(way, reply)
        assert (type(error), error.text) == (kind, "so it is")


def test_every_kind_of_a_model_goes_through_two_gateways() -> None:
    """What a dialect makes of an error over gRPC, its client makes the same error of."""
    for kind in (
        errors.InvalidArgument,
        errors.NotFound,
        errors.Unavailable,
        errors.TimedOut,
        errors.Exhausted,
        errors.PreconditionFailed,
        errors.AlreadyExists,
        errors.Unsupported,
        errors.Cancelled,
        errors.Unknown,
        errors.ModelFailed,
    ):
        for name, target in (
            ("open_inference", "/inference.GRPCInferenceService/ModelInfer"),
            ("tf_serving", "/tensorflow.serving.PredictionService/Predict"),
        ):
            call = Call(b"", "POST", target, {}, "grpc")
            reply = dialect_of(name).grpc[target].encode_error(kind("so it is"), call)
            error: Any = decoded((name, "grpc"), on_the_wire(reply))
            assert (type(error), error.text) == (kind, "so it is"), name


# ------------------------------------------------------------------------------------------------------ odd answers


def test_v2_answers_in_typed_fields_are_read() -> None:
    response = message("inference.ModelInferResponse")()
    response.outputs.add(name="y", datatype="FP32", shape=[2, 1], contents={"fp32_contents": [1.5, -2]})
    response.outputs.add(name="t", datatype="BYTES", shape=[1], contents={"bytes_contents": [b"a"]})
    answer = client_of(("open_inference", "grpc")).decode(Reply(response.SerializeToString()), Description())
    assert_same(answer.outputs["y"], np.array([[1.5], [-2]], np.float32))
    assert answer.outputs["t"].tolist() == [b"a"]
    body = b'{"outputs": [{"name": "y", "datatype": "INT64", "shape": [1, 2], "data": [[1, 2]]}]}'
    answer = client_of(("open_inference", "http")).decode(Reply(body), Description())
    assert_same(answer.outputs["y"], np.array([[1, 2]]))


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize(
    "body",
    [b"", b"\xff" * 9, b"\x0a\xff\xff", b"[]", b"{}", b'{"outputs": 5}', b'{"outputs": [{"name": 1}]}', b"\x00" * 5000,
     b'{"gtensors": {"tensors": [{"dtype": "DT_NONE"}]}}', b"{" * 5000, b"[" * 200000],
    ids=range(11),
)  # fmt: skip
def test_garbage_is_the_models_failure_or_lacks_the_output(way: tuple[str, str], body: bytes) -> None:
    try:
        answer = client_of(way).decode(Reply(body), Description(outputs=(TensorSpec("y", DTYPES["FP32"]),)))
    except ModelFailed:
        return
    assert answer.outputs.keys() <= {"y", "t"}


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_every_way_of_cutting_an_answer_short_is_noticed_or_harmless(
    way: tuple[str, str], make_model: Callable[..., ModelView], make_resolve: Any
) -> None:
    view = make_model("m", {"in_y": ("FP32", None)}, {"y": ("FP32", None)})
    client = client_of(way)
    inputs = {"in_y": LARGE[:20]}
    call, endpoint = received(client.encode(inputs, (), InferRequest(view, inputs), described(view), stream=False), way)
    asked = endpoint.decode(call, make_resolve(view))
    reply = on_the_wire(endpoint.encode(InferResponse({"y": asked.inputs["in_y"]}), asked))
    whole: Any = reply.body
    for end in [*range(0, len(whole), max(1, len(whole) // 150)), len(whole) - 1]:
        cut = Reply(whole[:end], reply.http_status, reply.headers)
        try:
            answer = client.decode(cut, described(view))
        except ModelFailed:
            continue
        for array in answer.outputs.values():  # protobuf may end anywhere between two fields
            assert array.size == 0 or array.shape == LARGE[:20].shape


def test_the_dialects_that_an_upstream_may_speak_are_those_with_clients() -> None:
    options = REGISTRIES.backends["remote"].options.model_json_schema()
    named = options["$defs"]["UpstreamOptions"]["properties"]
    assert named["dialect"]["enum"] == [name for name, kind in REGISTRIES.dialects.items() if kind.client_transports]
    assert named["transport"]["enum"] == ["grpc", "http"]


ANSWER = message("inference.ModelInferResponse")
TENSOR = {"name": "y", "datatype": "FP32", "shape": [2]}


def v2_answer(*numbers: float, **fields: Any) -> bytes:
    said = {"model_name": "m", "model_version": "1", "outputs": [TENSOR], **fields}
    raw = np.array(numbers, np.float32).tobytes()
    serialized: bytes = ANSWER(raw_output_contents=[raw], **said).SerializeToString()
    return serialized


def test_v2_answers_that_are_like_earlier_ones_are_read_alike_and_others_anew() -> None:
    client = client_of(("open_inference", "grpc"))
    description = Description((), (TensorSpec("y", DTYPES["FP32"], (-1,)),))

    def read(body: bytes) -> InferResponse:
        return client.decode(Reply(body), description)

    for numbers in ((1.0, 2.0), (3.0, 4.0), (0.0, -0.0)):
        assert read(v2_answer(*numbers)).outputs["y"].tolist() == list(numbers)
    assert read(bytearray(v2_answer(5, 6))).outputs["y"].tolist() == [5, 6]  # type: ignore[arg-type]
    other = TENSOR | {"datatype": "INT32"}
    assert read(v2_answer(1, 2, outputs=[other | {"name": "yy"}])).outputs["yy"].dtype == np.int32
    reshaped = TENSOR | {"shape": [1, 2]}
    assert read(v2_answer(7, 8, outputs=[reshaped])).outputs["y"].shape == (1, 2)
    assert read(v2_answer(7, 8)).outputs["y"].shape == (2,)
    renamed = v2_answer(1, 2).replace(b"\x0a\x01y", b"\x0a\x01z")
    assert [*read(renamed).outputs] == ["z"]
    for _ in range(2):
        told = read(v2_answer(1, 2, parameters={"p": {"int64_param": 7}}))
        assert told.parameters == {"p": 7}
        assert read(v2_answer(1, 2, id="7")).outputs["y"].tolist() == [1, 2]
        with pytest.raises(ModelFailed):
            read(v2_answer(1, 2)[:-1])
        with pytest.raises(ModelFailed):
            read(v2_answer(1, 2, 3))


def test_v2_answers_of_several_outputs_are_told_apart() -> None:
    client = client_of(("open_inference", "grpc"))
    outputs = [TENSOR, {"name": "n", "datatype": "INT64", "shape": [1]}]
    for first in (b"abcdefgh", b"ABCDEFGH"):
        for second in (1, 2):
            raw = [first, np.int64(second).tobytes()]
            body = ANSWER(outputs=outputs, raw_output_contents=raw).SerializeToString()
            answer = client.decode(Reply(body), Description())
            assert answer.outputs["y"].tobytes() == first
            assert answer.outputs["n"].tolist() == [second]


def v2_index(*models: tuple[str, str]) -> Any:
    told = [{"name": name, "version": version, "state": "READY"} for name, version in models]
    return {
        "http": Reply(orjson.dumps(told)),
        "grpc": Reply(message("inference.RepositoryIndexResponse")(models=told).SerializeToString()),
    }


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_index_of_a_repository_tells_models_and_versions(transport: str) -> None:
    client = client_of(("open_inference", transport))
    index = v2_index(("a", "2"), ("b", ""), ("a", "10"), ("c", "latest"))[transport]
    entries = [("a", 2), ("b", None), ("a", 10), ("c", None)]
    assert client.listed(index) == tuple(IndexEntry(name, number, "READY") for name, number in entries)
    assert client.available(Reply(b"")) == ()


MLSERVER_STATE = message("inference.RepositoryIndexResponse")(models=[{"name": "a", "state": "State.READY"}])
LISTINGS = [
    ("http", Reply(b'{"models": ["a"]}')),  # KServe
    ("grpc", Reply(MLSERVER_STATE.SerializeToString())),
]


@pytest.mark.parametrize(("transport", "reply"), LISTINGS)
def test_what_other_servers_make_of_the_index_is_read(transport: str, reply: Reply) -> None:
    client = client_of(("open_inference", transport))
    assert client.listed(reply) == (IndexEntry("a", None, "READY"),)
    assert client.listed(Reply(b"", 404, grpc_code=Code.UNIMPLEMENTED)) is None


def test_empty_contents_beside_raw_ones_are_none() -> None:
    """MLServer sends both."""
    said = ANSWER(outputs=[{**TENSOR, "contents": {}}], raw_output_contents=[b"abcdefgh"])
    answer = client_of(("open_inference", "grpc")).decode(Reply(said.SerializeToString()), Description())
    assert answer.outputs["y"].tobytes() == b"abcdefgh"


def test_a_server_without_extensions_is_asked_in_json(make_model: Callable[..., ModelView]) -> None:
    client = client_of(("open_inference", "http"))
    metadata = Reply(b'{"inputs": [], "outputs": []}')
    replies = [metadata, Reply(b"", 404), Reply(b'{"name": "mlserver", "extensions": []}')]
    description = client.description(replies)
    assert not description.binary
    assert client.description([*replies[:2], Reply(b'{"extensions": ["model_repository_extension"]}')]).binary
    view = make_model("m", {"x": ("FP32", (-1,))}, {"y": ("FP32", (-1,))})
    tensors = {"x": np.array([1.5, 2], np.float32), "s": np.array(["é".encode()], object)}
    ask = client.encode(tensors, ("y",), InferRequest(view, {}, "7"), description, stream=False)
    assert ask.headers == {"Content-Type": "application/json"}
    inputs = [
        {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, 2.0]},
        {"name": "s", "shape": [1], "datatype": "BYTES", "data": ["é"]},
    ]
    assert orjson.loads(b"".join(ask.body)) == {"inputs": inputs, "id": "7", "outputs": [{"name": "y"}]}
    for array in (np.array([1], np.float16), np.array([b"\xff"], object)):
        with pytest.raises(EncodingFailed, match="takes JSON alone"):
            client.encode({"x": array}, (), InferRequest(view, {}), description, stream=False)


def tfs_status(*versions: tuple[int, str]) -> Any:
    kind = message("tensorflow.serving.GetModelStatusResponse")
    states = {"AVAILABLE": 30, "UNLOADING": 40}
    told = [{"version": version, "state": states[state]} for version, state in versions]
    shown = [{"version": str(version), "state": state} for version, state in versions]
    return {
        "http": Reply(orjson.dumps({"model_version_status": shown})),
        "grpc": Reply(kind(model_version_status=told).SerializeToString()),
    }


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_models_status_tells_its_versions(transport: str) -> None:
    client = client_of(("tf_serving", transport))
    status = tfs_status((3, "AVAILABLE"), (2, "UNLOADING"), (1, "AVAILABLE"))[transport]
    assert client.is_ready(status)
    assert client.available(status) == (3, 1)
    assert not client.is_ready(tfs_status((2, "UNLOADING"))[transport])


def test_a_status_that_is_none_is_an_error() -> None:
    client = client_of(("tf_serving", "http"))
    for body in (b'{"model_version_status": [7]}', b'{"model_version_status": [{"state": "AVAILABLE"}]}', b"{}["):
        with pytest.raises(ModelFailed):
            client.available(Reply(body))
