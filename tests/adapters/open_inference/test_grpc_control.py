"""Open Inference V2 over gRPC, every other method: messages -> questions, answers -> messages."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.model_config import triton_config
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.adapters.protobuf.messages import message, pool
from tensorgate.adapters.protobuf.wire_format import MAX_HEAD_BYTES
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.questions import (
    Duration,
    IndexEntry,
    LoadModel,
    LogSettings,
    ModelReady,
    ModelStatistics,
    Region,
    RegionStatus,
    RegisterRegion,
    RepositoryIndex,
    ServerDescription,
    ServerLive,
    ServerMetadata,
    ServerReady,
    Statistics,
    TraceSettings,
    UnloadModel,
    UnregisterRegion,
)

DIALECT = KIND.make(OpenInferenceOptions())
SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture
def resolve(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Resolve:
    written = {
        "backend": "onnx",
        "versions": {"latest": 2},
        "device": "cuda:1",
        "instances": 3,
        "max_queue_delay_us": 200,
        "max_queue_size": 99,
        "class_labels": {"scores": "some/where/labels.txt"},
        "parameters": {"text": "t", "number": 3},
    }
    inputs: Any = {"image": ("FP32", (-1, 8, 8)), "note": ("BYTES", (-1, 1))}
    return make_resolve(
        make_model("m", inputs, {"scores": ("FP32", (-1, 10))}, max_batch_size=4, configuration=written, version=3),
        make_model("any", {"x": ("BF16", None)}, {"y": ("BOOL", ())}, versions=(1, 2), decoupled=True),
        make_model("all", {}, {}, configuration={"backend": "python", "versions": "all", "device": "cpu"}),
        make_model("some", {}, {}, configuration={"backend": "own", "versions": [1, 3]}),
    )


def kind_of(method: str, ending: str) -> Any:
    return message(f"inference.{method}{ending}")


def ask(resolve: Resolve, method: str, body: bytes | None = None, **fields: Any) -> Any:
    """The question that a method asks, or the reply that refuses it."""
    endpoint = DIALECT.grpc[SERVICE + method]
    whole = kind_of(method, "Request")(**fields).SerializeToString() if body is None else body
    call = Call(whole, "POST", SERVICE + method, {}, "grpc")
    try:
        return endpoint.decode(call, resolve)
    except GatewayError as error:
        return endpoint.encode_error(error, call)


def answer(method: str, value: Any, question: Any = None) -> Any:
    reply = DIALECT.grpc[SERVICE + method].encode(value, question)
    assert reply.grpc_code is Code.OK
    return kind_of(method, "Response").FromString(reply.body)


def refused(method: str, error: GatewayError) -> tuple[Code, str]:
    reply = DIALECT.grpc[SERVICE + method].encode_error(error, Call(b"", "POST", method, {}, "grpc"))
    return reply.grpc_code, reply.message


def test_every_method_of_the_service_is_there() -> None:
    service = pool().FindServiceByName("inference.GRPCInferenceService")
    assert DIALECT.grpc.keys() == {SERVICE + method.name for method in service.methods}
    assert len(DIALECT.grpc) == 20
    streams = {name for name, endpoint in DIALECT.grpc.items() if endpoint.stream != "unary"}
    assert streams == {SERVICE + "ModelStreamInfer"}
    admin = {name.removeprefix(SERVICE) for name, endpoint in DIALECT.grpc.items() if endpoint.admin}
    memory = {f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Register", "Unregister")}
    assert admin == {"RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings", *memory}


@pytest.mark.parametrize("method", [name.removeprefix(SERVICE) for name in DIALECT.grpc])
def test_bytes_that_are_no_message_are_refused(method: str, resolve: Resolve) -> None:
    reply = ask(resolve, method, b"\xff\xff\xff")
    if method == "ModelStreamInfer":
        assert message("inference.ModelStreamInferResponse").FromString(reply.body).error_message
        return
    assert isinstance(reply, Reply)
    text = f"failed to parse the request: it is no valid inference.{method}Request"
    assert (reply.grpc_code, reply.message) == (Code.INVALID_ARGUMENT, text)


def test_a_question_is_short_unless_it_brings_a_model(resolve: Resolve) -> None:
    config = {"string_param": "x" * MAX_HEAD_BYTES}
    assert ask(resolve, "RepositoryModelLoad", parameters={"config": config}).configuration == "x" * MAX_HEAD_BYTES
    reply = ask(resolve, "LogSettings", settings={"log_format": config})
    assert reply.grpc_code is Code.INVALID_ARGUMENT
    assert reply.message == f"failed to parse the request: more than {MAX_HEAD_BYTES} bytes of it are no tensor data"


# ----------------------------------------------------------------------------------------------------------- questions

QUESTIONS: list[tuple[str, dict[str, Any], Any]] = [
    ("ServerLive", {}, ServerLive()),
    ("ServerReady", {}, ServerReady()),
    ("ServerMetadata", {}, ServerMetadata()),
    ("ModelReady", {"name": "m"}, ModelReady(ModelRef("m"))),
    ("ModelReady", {"name": "nobody", "version": "2"}, ModelReady(ModelRef("nobody", 2))),
    ("ModelReady", {"name": "m", "version": "-1"}, ModelReady(ModelRef("m"))),
    ("ModelStatistics", {}, ModelStatistics()),
    ("ModelStatistics", {"name": "m"}, ModelStatistics(ModelRef("m"))),
    ("ModelStatistics", {"name": "m", "version": "1"}, ModelStatistics(ModelRef("m", 1))),
    ("RepositoryIndex", {}, RepositoryIndex()),
    ("RepositoryIndex", {"ready": True}, RepositoryIndex(ready_only=True)),
    ("RepositoryModelLoad", {"model_name": "m"}, LoadModel("m")),
    (
        "RepositoryModelLoad",
        {
            "model_name": "m",
            "parameters": {"config": {"string_param": "{}"}, "file:1/model.onnx": {"bytes_param": b"\xff"}},
        },
        LoadModel("m", "{}", {"1/model.onnx": b"\xff"}),
    ),
    ("RepositoryModelUnload", {"model_name": "m"}, UnloadModel("m")),
    (
        "RepositoryModelUnload",
        {"model_name": "m", "parameters": {"unload_dependents": {"bool_param": True}}},
        UnloadModel("m", dependents=True),
    ),
    ("TraceSetting", {}, TraceSettings()),
    (
        "TraceSetting",
        {"model_name": "m", "settings": {"trace_level": {"value": ["TENSORS", "OFF"]}, "trace_rate": {}}},
        TraceSettings("m", {"trace_level": ("TENSORS", "OFF"), "trace_rate": None}),
    ),
    ("LogSettings", {}, LogSettings()),
    (
        "LogSettings",
        {
            "settings": {
                "log_info": {"bool_param": False},
                "log_verbose_level": {"uint32_param": 1},
                "log_format": {"string_param": "ISO8601"},
                "unknown": {},
            }
        },
        LogSettings({"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601"}),
    ),
    ("SystemSharedMemoryStatus", {}, RegionStatus("system")),
    ("CudaSharedMemoryStatus", {"name": "r"}, RegionStatus("cuda", "r")),
    (
        "SystemSharedMemoryRegister",
        {"name": "r", "key": "/k", "offset": 8, "byte_size": 64},
        RegisterRegion("system", Region("r", 64, "/k", 8)),
    ),
    (
        "CudaSharedMemoryRegister",
        {"name": "r", "raw_handle": b"h", "device_id": 1, "byte_size": 64},
        RegisterRegion("cuda", Region("r", 64, device_id=1), b"h"),
    ),
    ("SystemSharedMemoryUnregister", {"name": "r"}, UnregisterRegion("system", "r")),
    ("CudaSharedMemoryUnregister", {}, UnregisterRegion("cuda")),
]


@pytest.mark.parametrize(("method", "fields", "question"), QUESTIONS)
def test_questions(method: str, fields: dict[str, Any], question: Any, resolve: Resolve) -> None:
    assert ask(resolve, method, **fields) == question


STOL = (
    "failed to get model version from specified version string 'x' (details: stol), "
    "version should be an integral value > 0"
)
NO_REPOSITORY = "'repository_name' specification is not supported"
REFUSED: list[tuple[str, dict[str, Any], Code, str]] = [
    ("ModelReady", {"name": "m", "version": "x"}, Code.INVALID_ARGUMENT, STOL),
    ("ModelStatistics", {"name": "m", "version": "x"}, Code.INVALID_ARGUMENT, STOL),
    ("ModelMetadata", {"name": "absent"}, Code.NOT_FOUND, "Request for unknown model: 'absent' is not found"),
    (
        "ModelConfig",
        {"name": "m", "version": "9"},
        Code.NOT_FOUND,
        "Request for unknown model: 'm' version 9 is not found",
    ),
    ("RepositoryIndex", {"repository_name": "r"}, Code.UNIMPLEMENTED, NO_REPOSITORY),
    ("RepositoryModelLoad", {"repository_name": "r", "model_name": "m"}, Code.UNIMPLEMENTED, NO_REPOSITORY),
    ("RepositoryModelUnload", {"repository_name": "r", "model_name": "m"}, Code.UNIMPLEMENTED, NO_REPOSITORY),
    ("RepositoryModelLoad", {"parameters": {"x": {}}}, Code.INVALID_ARGUMENT, "unrecognized load parameter 'x'."),
    (
        "RepositoryModelLoad",
        {"parameters": {"config": {"bytes_param": b"{}"}}},
        Code.INVALID_ARGUMENT,
        "invalid value type for load parameter 'config', expected string_param.",
    ),
    (
        "RepositoryModelLoad",
        {"parameters": {"file:1/m": {"string_param": ""}}},
        Code.INVALID_ARGUMENT,
        "invalid value type for load parameter 'file:1/m', expected bytes_param.",
    ),
    (
        "RepositoryModelUnload",
        {"parameters": {"unload_dependents": {"int64_param": 1}}},
        Code.INVALID_ARGUMENT,
        "invalid value type for 'unload_dependents' parameter, expected bool_param.",
    ),
    (
        "TraceSetting",
        {"settings": {"trace_file": {"value": ["x"]}}},
        Code.UNIMPLEMENTED,
        "trace file location can not be updated through network protocol",
    ),
    (
        "TraceSetting",
        {"model_name": "none", "settings": {"trace_file": {"value": ["x"]}}},
        Code.INVALID_ARGUMENT,
        "Request for unknown model : none",
    ),
    (
        "TraceSetting",
        {"settings": {"trace_rate": {"value": ["1", "2"]}}},
        Code.INVALID_ARGUMENT,
        "expect only 1 value for 'trace_rate'",
    ),
    (
        "LogSettings",
        {"settings": {"log_file": {"string_param": "x"}}},
        Code.UNIMPLEMENTED,
        "log file location can not be updated through network protocol",
    ),
    (
        "LogSettings",
        {"settings": {"log_info": {"string_param": "x"}}},
        Code.INVALID_ARGUMENT,
        "expect boolean for 'log_info'",
    ),
    (
        "LogSettings",
        {"settings": {"log_verbose_level": {"bool_param": True}}},
        Code.INVALID_ARGUMENT,
        "expect int32 for 'log_verbose_level'",
    ),
]


@pytest.mark.parametrize(("method", "fields", "code", "text"), REFUSED)
def test_refusals(method: str, fields: dict[str, Any], code: Code, text: str, resolve: Resolve) -> None:
    reply = ask(resolve, method, **fields)
    assert (reply.grpc_code, reply.message) == (code, text)


def test_methods_with_words_of_their_own_for_an_unknown_model() -> None:
    unknown, version = errors.ModelNotFound("m"), errors.ModelNotFound("m", 2, known=True)
    assert refused("ModelStatistics", unknown) == (Code.INVALID_ARGUMENT, "requested model 'm' is not available")
    assert refused("ModelStatistics", version) == (
        Code.INVALID_ARGUMENT,
        "requested model version is not available for model 'm'",
    )
    assert refused("TraceSetting", unknown) == (Code.INVALID_ARGUMENT, "Request for unknown model : m")
    assert refused("RepositoryModelLoad", errors.ModelNotStored("m")) == (
        Code.INTERNAL,
        "failed to load 'm', failed to poll from model repository",
    )
    for method in ("ModelStatistics", "TraceSetting", "RepositoryModelLoad"):
        assert refused(method, errors.InvalidArgument("so")) == (Code.INVALID_ARGUMENT, "so")


# ------------------------------------------------------------------------------------------------------------- answers


def test_health() -> None:
    for value in (True, False):
        assert answer("ServerLive", value).live is value
        assert answer("ServerReady", value).ready is value
        assert answer("ModelReady", value).ready is value


def test_metadata(resolve: Resolve) -> None:
    server = answer("ServerMetadata", ServerDescription("tensorgate", "1.2"))
    assert (server.name, server.version) == ("tensorgate", "1.2")
    assert "binary_tensor_data" in server.extensions

    question = ask(resolve, "ModelMetadata", name="m")
    model = answer("ModelMetadata", question.view, question)
    assert (model.name, list(model.versions), model.platform) == ("m", ["1"], "onnxruntime_onnx")
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
        ("image", "FP32", [-1, 8, 8]),
        ("note", "BYTES", [-1, 1]),
    ]
    assert [(each.name, each.datatype, list(each.shape)) for each in model.outputs] == [("scores", "FP32", [-1, 10])]


def test_metadata_of_every_rank_and_of_one_version(resolve: Resolve) -> None:
    for version, told in (("", ["1", "2"]), ("-1", ["1", "2"]), ("1", ["1"])):
        question = ask(resolve, "ModelMetadata", name="any", version=version)
        model = answer("ModelMetadata", question.view, question)
        assert list(model.versions) == told
        assert [list(each.shape) for each in (*model.inputs, *model.outputs)] == [[-1], []]


def config(resolve: Resolve, name: str) -> Any:
    question = ask(resolve, "ModelConfig", name=name)
    return answer("ModelConfig", question.view, question).config


def test_configuration(resolve: Resolve) -> None:
    """The same over both transports: what HTTP tells as JSON is here as a message."""
    for name in ("m", "any", "all", "some"):
        found = config(resolve, name)
        assert MessageToDict(found, preserving_proto_field_name=True) == MessageToDict(
            ParseDict(triton_config(resolve(ModelRef(name))), message("inference.ModelConfig")()),
            preserving_proto_field_name=True,
        )
        assert found.name == name
    assert found.version_policy.specific.versions[:] == [1, 3]
    assert config(resolve, "any").model_transaction_policy.decoupled


def test_statistics() -> None:
    stages = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    statistics = Statistics(
        "m",
        3,
        1_700_000_000_000,
        5,
        4,
        {stage: Duration(number, 2**40 + number) for number, stage in enumerate(stages)},
        {2: {"compute_infer": Duration(1, 7)}},
        {"0": {"empty_response": Duration(2, 9)}},
    )
    (found,) = answer("ModelStatistics", (statistics,)).model_stats
    assert (found.name, found.version, found.last_inference) == ("m", "3", 1_700_000_000_000)
    assert (found.inference_count, found.execution_count) == (5, 4)
    for number, stage in enumerate(stages):
        told = getattr(found.inference_stats, stage)
        assert (told.count, told.ns) == (number, 2**40 + number)
    (batch,) = found.batch_stats
    assert (batch.batch_size, batch.compute_infer.count, batch.compute_infer.ns) == (2, 1, 7)
    assert found.response_stats["0"].empty_response.ns == 9
    assert not answer("ModelStatistics", ()).model_stats


def test_the_repository() -> None:
    entries = (IndexEntry("m", 3, "READY"), IndexEntry("n", 1, "UNAVAILABLE", "unloaded"), IndexEntry("o"))
    found = answer("RepositoryIndex", entries).models
    assert [(each.name, each.version, each.state, each.reason) for each in found] == [
        ("m", "3", "READY", ""),
        ("n", "1", "UNAVAILABLE", "unloaded"),
        ("o", "", "", ""),
    ]


def test_settings() -> None:
    trace = answer("TraceSetting", {"trace_level": ("OFF",), "trace_rate": ("1000",), "none": ()}).settings
    assert {key: list(each.value) for key, each in trace.items()} == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "none": [],
    }
    log = answer("LogSettings", {"log_info": False, "log_verbose_level": 0, "log_file": ""}).settings
    chosen = {key: each.WhichOneof("parameter_choice") for key, each in log.items()}
    assert chosen == {"log_info": "bool_param", "log_verbose_level": "uint32_param", "log_file": "string_param"}


def test_regions() -> None:
    system = answer("SystemSharedMemoryStatus", (Region("r", 64, "/k", 8),), RegionStatus("system")).regions
    assert list(system) == ["r"]
    assert (system["r"].name, system["r"].key, system["r"].offset, system["r"].byte_size) == ("r", "/k", 8, 64)
    cuda = answer("CudaSharedMemoryStatus", (Region("r", 64, device_id=1),), RegionStatus("cuda")).regions
    assert (cuda["r"].name, cuda["r"].device_id, cuda["r"].byte_size) == ("r", 1, 64)


EMPTY = [
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    *(f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Register", "Unregister")),
]


@pytest.mark.parametrize("method", EMPTY)
def test_what_is_done_is_said_by_an_empty_message(method: str) -> None:
    assert DIALECT.grpc[SERVICE + method].encode(None, None).body == b""
