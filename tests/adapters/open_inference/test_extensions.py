"""Statistics, model configuration, trace and log settings of Open Inference V2: bodies as they come, replies to the
byte.
"""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from google.protobuf import json_format
from pydantic import ValidationError

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.model_config import OpenInferenceModelOptions, triton_config
from tensorgate.adapters.open_inference.model_override import translate
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelNotFound
from tensorgate.gateway.contract.questions import (
    Duration,
    LogSettings,
    ModelMetadata,
    ModelStatistics,
    Statistics,
    TraceSettings,
)

DIALECT = KIND.make(OpenInferenceOptions())
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def resolve(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Resolve:
    return make_resolve(make_model("m", {"x": ("FP32", (-1, 2))}, {"y": ("FP32", (-1, 2))}))


def decode(resolve: Resolve, line: str, body: bytes = b"") -> Any:
    """The question of a request, or the reply that refuses it."""
    method, target = line.split(" ", 1)
    match = DIALECT.match(method, target)
    call = Call(body, method, target, {}, "http", match.args)
    try:
        return match.endpoint.decode(call, resolve)
    except GatewayError as error:
        return match.endpoint.encode_error(error, call)


def encode(line: str, answer: Any, question: Any) -> Any:
    reply = DIALECT.match(*line.split(" ", 1)).endpoint.encode(answer, question)
    assert (reply.http_status, dict(reply.headers)) == (200, JSON)
    return reply.body


def refusal(reply: Any) -> tuple[int, str]:
    assert isinstance(reply, Reply), reply
    assert dict(reply.headers) == JSON
    return reply.http_status, orjson.loads(bytes(reply.body))["error"]


def refused(line: str, error: GatewayError) -> tuple[int, str]:
    """What a failure of the gateway itself is at this address."""
    method, target = line.split(" ", 1)
    match = DIALECT.match(method, target)
    return refusal(match.endpoint.encode_error(error, Call(b"", method, target, {}, "http", match.args)))


# ---------------------------------------------------------------------------------------------------------- questions

TRACE = {"trace_level": ("TIMESTAMPS", "TENSORS"), "trace_rate": ("5",), "trace_count": None, "log_frequency": ("0",)}
QUESTIONS: list[tuple[str, bytes, Any]] = [
    ("GET /v2/models/stats", b"", ModelStatistics()),
    ("GET /v2/models/a%20b/stats", b"", ModelStatistics(ModelRef("a b"))),
    ("GET /v2/models/m/versions/3/stats", b"", ModelStatistics(ModelRef("m", 3))),
    ("GET /v2/trace/setting", b"", TraceSettings()),
    ("GET /v2/models/m/trace/setting", b"", TraceSettings("m")),
    ("POST /v2/trace/setting", b"{}", TraceSettings()),
    ("POST /v2/trace/setting", b'{"trace_mode":"opentelemetry","x":[1]}', TraceSettings()),
    (
        "POST /v2/models/m/trace/setting",
        b'{"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":"5","trace_count":null,"log_frequency":"0"}',
        TraceSettings("m", TRACE),
    ),
    ("POST /v2/trace/setting", b'{"trace_level":null}', TraceSettings("", {"trace_level": None})),
    ("GET /v2/logging", b"", LogSettings()),
    ("POST /v2/logging", b'{"log_file":null,"log_info":null,"other":[{}]}', LogSettings()),
    (
        "POST /v2/logging",
        b'{"log_info":false,"log_warning":true,"log_error":true,"log_verbose_level":2,"log_format":"ISO8601"}',
        LogSettings(
            {
                "log_info": False,
                "log_warning": True,
                "log_error": True,
                "log_verbose_level": 2,
                "log_format": "ISO8601",
            }
        ),
    ),
]


@pytest.mark.parametrize(("line", "body", "question"), QUESTIONS)
def test_questions(line: str, body: bytes, question: Any, resolve: Resolve) -> None:
    assert decode(resolve, line, body) == question


NOT_A_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NOT_A_STRING = "attempt to access JSON non-string as string"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
REFUSED: list[tuple[str, bytes, int, str]] = [
    (
        "POST /v2/trace/setting",
        b'{"trace_file":"/etc/passwd"}',
        501,
        "trace file location can not be updated through network protocol",
    ),
    (
        "POST /v2/models/none/trace/setting",
        b'{"trace_file":"/etc/passwd"}',
        400,
        "Request for unknown model : none",
    ),
    ("POST /v2/trace/setting", b"[]", 400, "attempt to get members for non-object"),
    ("POST /v2/trace/setting", b"", 400, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ("POST /v2/trace/setting", b'{"trace_rate":5}', 400, NOT_A_STRING),
    ("POST /v2/trace/setting", b'{"trace_count":["5"]}', 400, NOT_A_STRING),
    ("POST /v2/trace/setting", b'{"trace_level":"OFF"}', 400, "attempt to access JSON non-array as array"),
    ("POST /v2/trace/setting", b'{"trace_level":[null]}', 400, NOT_A_STRING),
    (
        "POST /v2/trace/setting",
        b'{"trace_level":[' + b",".join([b'"OFF"'] * 17) + b"]}",
        400,
        "Unable to parse 'trace_level': more than 16 levels",
    ),
    ("POST /v2/models/m/versions/1/trace/setting", b"{}", 404, "Not Found"),
    ("DELETE /v2/trace/setting", b"{}", 405, "Method Not Allowed"),
    (
        "POST /v2/logging",
        b'{"log_file":"x"}',
        501,
        "log file location can not be updated through network protocol",
    ),
    ("POST /v2/logging", b"", 400, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ("POST /v2/logging", b'"x"', 400, "attempt to get members for non-object"),
    ("POST /v2/logging", b'{"log_info":1}', 400, NOT_A_BOOLEAN),
    ("POST /v2/logging", b'{"log_error":"true"}', 400, NOT_A_BOOLEAN),
    ("POST /v2/logging", b'{"log_verbose_level":-1}', 400, NOT_UNSIGNED),
    ("POST /v2/logging", b'{"log_verbose_level":true}', 400, NOT_UNSIGNED),
    ("POST /v2/logging", b'{"log_verbose_level":1.0}', 400, NOT_UNSIGNED),
    ("POST /v2/logging", b'{"log_verbose_level":123456789012345678901}', 400, NOT_UNSIGNED),
    ("POST /v2/logging", b'{"log_format":0}', 400, NOT_A_STRING),
    ("POST /v2/models/stats", b"", 405, "Method Not Allowed"),
    ("POST /v2/models/m/config", b"", 405, "Method Not Allowed"),
    ("GET /v2/models/n/config", b"", 404, "Request for unknown model: 'n' is not found"),
    ("GET /v2/models/m/versions/2/config", b"", 404, "Request for unknown model: 'm' version 2 is not found"),
]


@pytest.mark.parametrize(("line", "body", "status", "text"), REFUSED)
def test_refusals(line: str, body: bytes, status: int, text: str, resolve: Resolve) -> None:
    assert refusal(decode(resolve, line, body)) == (status, text)


def test_what_is_said_of_models_that_are_not_there() -> None:
    gone, version = ModelNotFound("m", known=True), ModelNotFound("m", 9)
    assert refused("GET /v2/models/m/stats", gone) == (400, "requested model 'm' is not available")
    assert refused("GET /v2/models/m/versions/9/stats", version) == (
        400,
        "requested model version is not available for model 'm'",
    )
    assert refused("GET /v2/models/m/trace/setting", gone) == (400, "Request for unknown model : m")
    assert refused("POST /v2/trace/setting", InvalidArgument("text")) == (400, "text")


def test_what_changes_the_server_is_for_its_administrator() -> None:
    changing = {"POST /v2/trace/setting", "POST /v2/models/m/trace/setting", "POST /v2/logging"}
    for line in {line for line, _, _ in QUESTIONS} | changing:
        assert DIALECT.match(*line.split(" ", 1)).endpoint.admin is (line in changing), line


# ------------------------------------------------------------------------------------------------------------ answers


def test_statistics_to_the_byte() -> None:
    none = Duration()
    stages = {
        "success": Duration(2, 30),
        "fail": Duration(1, 5),
        "queue": Duration(2, 4),
        "compute_input": Duration(2, 6),
        "compute_infer": Duration(2, 2**60),
        "compute_output": none,
        "cache_hit": none,
        "cache_miss": none,
    }
    run = {"compute_input": Duration(1, 3), "compute_infer": Duration(1, 4), "compute_output": none}
    answer = {"success": Duration(3, 9), "fail": none}
    statistics = Statistics("m", 7, 1700000000123, 9, 1, stages, {9: run}, {"0": answer})
    assert encode("GET /v2/models/stats", (statistics,), ModelStatistics()) == (
        b'{"model_stats":[{"name":"m","version":"7","last_inference":1700000000123,"inference_count":9,'
        b'"execution_count":1,"inference_stats":{"success":{"count":2,"ns":30},"fail":{"count":1,"ns":5},'
        b'"queue":{"count":2,"ns":4},"compute_input":{"count":2,"ns":6},'
        b'"compute_infer":{"count":2,"ns":1152921504606846976},"compute_output":{"count":0,"ns":0},'
        b'"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},'
        b'"response_stats":{"0":{"success":{"count":3,"ns":9},"fail":{"count":0,"ns":0}}},'
        b'"batch_stats":[{"batch_size":9,"compute_input":{"count":1,"ns":3},"compute_infer":{"count":1,"ns":4},'
        b'"compute_output":{"count":0,"ns":0}}],"memory_usage":[]}]}'
    )
    assert encode("GET /v2/models/stats", (), ModelStatistics()) == b'{"model_stats":[]}'


def test_statistics_are_the_message_of_grpc_too() -> None:
    statistics = Statistics("m", 7, 1, 2, 3, {"success": Duration(4, 5)}, {6: {"compute_infer": Duration(7, 8)}})
    body = encode("GET /v2/models/stats", (statistics,), ModelStatistics())
    read = json_format.Parse(body, message("inference.ModelStatisticsResponse")())
    assert read.model_stats[0].batch_stats[0].compute_infer.ns == 8


def test_settings_to_the_byte() -> None:
    trace = {
        "trace_level": ("OFF",),
        "trace_rate": ("1000",),
        "trace_count": ("-1",),
        "log_frequency": ("0",),
        "trace_file": ("",),
        "trace_mode": ("triton",),
    }
    assert encode("GET /v2/trace/setting", trace, TraceSettings()) == (
        b'{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"",'
        b'"trace_mode":"triton"}'
    )
    log = {"log_file": "", "log_info": True, "log_verbose_level": 0, "log_format": "default"}
    assert encode("POST /v2/logging", log, LogSettings()) == (
        b'{"log_file":"","log_info":true,"log_verbose_level":0,"log_format":"default"}'
    )


# ------------------------------------------------------------------------------------------------------ configuration

CONFIGURATION: Mapping[str, Any] = MappingProxyType(
    {
        "backend": "onnx",
        "versions": "latest",
        "device": "cpu",
        "instances": 2,
        "max_queue_delay_us": 300,
        "max_queue_size": 512,
        "class_labels": {"y": "deep/below/labels.txt"},
        "parameters": {"free": "text", "number": 3},
    }
)


def of(make_model: Callable[..., ModelView], **changes: Any) -> dict[str, Any]:
    """The configuration of a model, which must be what the message holds."""
    inputs = changes.pop("inputs", {"x": ("FP32", (-1, 2)), "t": ("BYTES", (-1, -1))})
    outputs = changes.pop("outputs", {"y": ("FP16", (-1, 10))})
    configuration = {**CONFIGURATION, **changes.pop("configuration", {})}
    view = make_model("m", inputs, outputs, configuration=configuration, **changes)
    config = triton_config(view)
    read = json_format.ParseDict(config, message("inference.ModelConfig")())
    assert json_format.MessageToDict(read) == json_format.MessageToDict(
        json_format.Parse(encode("GET /v2/models/m/config", view, ModelMetadata(view)), type(read)())
    )
    return config


def test_the_whole_configuration_of_a_model_that_batches(make_model: Callable[..., ModelView]) -> None:
    config = of(make_model, max_batch_size=8)
    tensor = {"is_shape_tensor": False, "is_non_linear_format_io": False}
    optional = {"format": "FORMAT_NONE", "allow_ragged_batch": False, "optional": False}
    assert config == {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [2], **tensor, **optional},
            {"name": "t", "data_type": "TYPE_STRING", "dims": [-1], **tensor, **optional},
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP16", "dims": [10], "label_filename": "labels.txt", **tensor}],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "dynamic_batching": {
            "preferred_batch_size": [8],
            "max_queue_delay_microseconds": 300,
            "preserve_ordering": False,
            "priority_levels": 0,
            "default_priority_level": 0,
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": 0,
                "allow_timeout_override": True,
                "max_queue_size": 512,
            },
            "priority_queue_policy": {},
        },
        "instance_group": [
            {
                "name": "m",
                "kind": "KIND_CPU",
                "count": 2,
                "gpus": [],
                "secondary_devices": [],
                "profile": [],
                "passive": False,
                "host_policy": "",
            }
        ],
        "default_model_filename": "model.onnx",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {"free": {"string_value": "text"}, "number": {"string_value": "3"}},
        "model_warmup": [],
    }


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"platform": "python"}, {"platform": "", "backend": "python", "default_model_filename": "model.py"}),
        ({"platform": "elsewhere", "configuration": {"backend": "remote"}}, {"backend": "remote"}),
        ({"configuration": {"versions": "all"}}, {"version_policy": {"all": {}}}),
        ({"configuration": {"versions": [1, 3]}}, {"version_policy": {"specific": {"versions": [1, 3]}}}),
        ({"configuration": {"versions": {"latest": 2}}}, {"version_policy": {"latest": {"num_versions": 2}}}),
        ({"decoupled": True}, {"model_transaction_policy": {"decoupled": True}}),
    ],
)
def test_parts(changes: dict[str, Any], part: dict[str, Any], make_model: Callable[..., ModelView]) -> None:
    assert part.items() <= of(make_model, **changes).items()


@pytest.mark.parametrize(
    ("shape", "max_batch_size", "dims", "reshape"),
    [
        ((-1, 16), 0, [-1, 16], None),
        ((-1, 16), 4, [16], None),
        ((-1,), 4, [1], {"shape": []}),
        ((), 0, [1], {"shape": []}),
        (None, 0, [-1], None),
        (None, 4, [-1], None),
        ((-1, 3, -1), 4, [3, -1], None),
    ],
)
def test_dims(
    shape: tuple[int, ...] | None,
    max_batch_size: int,
    dims: list[int],
    reshape: Any,
    make_model: Callable[..., ModelView],
) -> None:
    config = of(make_model, inputs={"x": ("INT64", shape)}, max_batch_size=max_batch_size)
    assert config["input"][0]["dims"] == dims
    assert config["input"][0].get("reshape") == reshape
    assert ("dynamic_batching" in config) is (max_batch_size > 0)


@pytest.mark.parametrize(
    ("device", "kind", "gpus"),
    [("auto", "KIND_CPU", []), ("cuda", "KIND_GPU", [0]), ("cuda:3", "KIND_GPU", [3]), ("cpu", "KIND_CPU", [])],
)
def test_devices(device: str, kind: str, gpus: list[int], make_model: Callable[..., ModelView]) -> None:
    (group,) = of(make_model, configuration={"device": device})["instance_group"]
    assert (group["kind"], group["gpus"]) == (kind, gpus)
    (group,) = of(make_model, configuration={"device": "auto"}, devices=("cuda:0",))["instance_group"]
    assert group["kind"] == "KIND_GPU"


@pytest.mark.parametrize(
    ("configuration", "groups"),
    [
        ({"device": "all", "instances": 2}, [("m", 2, "KIND_GPU", [0, 1])]),
        ({"device": "cuda:*", "instances": 1}, [("m", 1, "KIND_GPU", [0, 1])]),
        ({"device": ["cuda:1", "cuda:0"], "instances": 3}, [("m", 3, "KIND_GPU", [1, 0])]),
        (
            {"device": ["cuda:0", "cuda:0", "cuda:1", "cpu"], "instances": 2},
            [("m_0", 4, "KIND_GPU", [0]), ("m_1", 2, "KIND_GPU", [1]), ("m_2", 2, "KIND_CPU", [])],
        ),
    ],
)
def test_several_devices(
    configuration: dict[str, Any], groups: list[Any], make_model: Callable[..., ModelView]
) -> None:
    found = of(make_model, configuration=configuration, devices=("cuda:0", "cuda:1"))["instance_group"]
    assert [(each["name"], each["count"], each["kind"], each["gpus"]) for each in found] == groups
    sent_back = translate(json.dumps({"instance_group": found}), {"device": "auto"})
    if len(groups) == 1:
        wanted = {"device": [f"cuda:{gpu}" for gpu in groups[0][3]], "instances": groups[0][1]}
    else:  # not every group names its GPUs
        wanted = {"device": "auto", "instances": 8}
    assert sent_back == wanted


def test_schedulers(make_model: Callable[..., ModelView]) -> None:
    def schedulers(**changes: Any) -> dict[str, Any]:
        config = of(make_model, **changes)
        return {key: value for key, value in config.items() if key.endswith(("_batching", "_scheduling"))}

    assert schedulers() == schedulers(max_batch_size=8, decoupled=True) == {}
    assert schedulers(max_batch_size=8, merges=False) == {}
    steps = [{"model": "a", "version": None, "inputs": {"x": "t"}, "outputs": {"y": "u"}}, {"model": "b", "version": 3}]
    assert schedulers(platform="ensemble", max_batch_size=8, configuration={"steps": steps}) == {
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": "a",
                    "model_version": -1,
                    "input_map": {"x": "t"},
                    "output_map": {"y": "u"},
                    "model_namespace": "",
                },
                {"model_name": "b", "model_version": 3, "input_map": {}, "output_map": {}, "model_namespace": ""},
            ],
            "max_inflight_requests": 0,
        }
    }
    controls = [
        {"input": "START", "kind": "start", "datatype": "FP32", "values": [0, 1]},
        {"input": "ID", "kind": "correlation_id", "datatype": "UINT64", "values": [0, 1]},
        {"input": "END", "kind": "end", "datatype": "BOOL", "values": [0, 1]},
        {"input": "READY", "kind": "ready", "datatype": "INT32", "values": [-1, 1]},
    ]
    states = [{"input": "s", "output": "t", "datatype": "BYTES", "shape": [-1, 4]}]
    sequences = {"max_idle_us": 5, "controls": controls, "states": states}
    (batching,) = schedulers(max_batch_size=8, configuration={"sequences": sequences}).values()
    assert batching["max_sequence_idle_microseconds"] == 5
    assert [(each["name"], each["control"][0]["kind"][17:]) for each in batching["control_input"]] == [
        ("START", "START"),
        ("ID", "CORRID"),
        ("END", "END"),
        ("READY", "READY"),
    ]
    told = [each["control"][0] for each in batching["control_input"]]
    assert told[0]["fp32_false_true"] == [0.0, 1.0]
    assert told[1]["data_type"] == "TYPE_UINT64"
    assert told[2]["bool_false_true"] == [False, True]
    assert told[3]["int32_false_true"] == [-1, 1]
    assert (batching["state"][0]["data_type"], batching["state"][0]["dims"]) == ("TYPE_STRING", [4])


def test_priorities_and_queues(make_model: Callable[..., ModelView]) -> None:
    queue = {"timeout_us": 7, "timeout_action": "delay", "allow_timeout_override": False}
    policies = {"2": {"timeout_us": 1, "timeout_action": "reject", "max_queue_size": None}}
    priorities = {"levels": 3, "default": 2, "queue_policies": policies}
    said = {"queue": queue, "priorities": priorities, "preferred_batch_sizes": [2, 4]}
    batching = of(make_model, max_batch_size=8, configuration=said)["dynamic_batching"]
    assert (batching["priority_levels"], batching["default_priority_level"]) == (3, 2)
    assert batching["preferred_batch_size"] == [2, 4]
    assert batching["default_queue_policy"] == {
        "timeout_action": "DELAY",
        "default_timeout_microseconds": 7,
        "allow_timeout_override": False,
        "max_queue_size": 512,
    }
    assert batching["priority_queue_policy"]["2"]["default_timeout_microseconds"] == 1


# ------------------------------------------------------------------------------------- a configuration of Triton's own


def test_a_models_own_configuration_goes_first(make_model: Callable[..., ModelView]) -> None:
    own = OpenInferenceModelOptions.model_validate(
        {
            "model_config": {
                "name": "an older name",
                "platform": "tensorflow_savedmodel",
                "max_batch_size": "16",
                "input": [{"name": "x"}, {"name": "t", "data_type": "TYPE_STRING", "dims": ["7"]}],
                "sequence_batching": {"oldest": {"max_candidate_sequences": 4}},
                "response_cache": {},
                "parameters": {"a": {"string_value": "b"}},
                "optimization": {"cuda": {"graphs": True}},
            }
        }
    )
    config = of(make_model, max_batch_size=8, mappings={"open_inference": own})
    assert (config["name"], config["platform"], config["max_batch_size"]) == ("m", "tensorflow_savedmodel", 16)
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
        ("x", "TYPE_FP32", [2]),
        ("t", "TYPE_STRING", [7]),
    ]
    assert config["sequence_batching"]["oldest"]["max_candidate_sequences"] == 4
    assert "dynamic_batching" not in config, "a model has one scheduler"
    assert config["response_cache"] == {"enable": False}, "perf_analyzer reads it unasked"
    assert config["parameters"] == {"a": {"string_value": "b"}}
    assert config["optimization"]["cuda"]["graphs"] is True
    assert config["backend"] == "onnxruntime", "what it does not say is derived"
    assert config["output"][0]["label_filename"] == "labels.txt"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"max_batch_sise": 3}, 'a ModelConfig has no key "max_batch_sise"'),
        ({"input": [{"name": "x", "dimensions": [3]}]}, 'a ModelConfig has no key "dimensions" in input[0]'),
        ({"max_batch_size": "many"}, "max_batch_size"),
        ({"input": [{"data_type": "TYPE_FLOAT"}]}, "TYPE_FLOAT"),
        ({"dynamic_batching": {}, "sequence_batching": {}}, "scheduling_choice"),
    ],
)
def test_a_wrong_configuration_is_named(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as error:
        OpenInferenceModelOptions.model_validate({"model_config": config})
    (only,) = error.value.errors()
    assert text in only["msg"]
    assert "Available Fields" not in only["msg"]


def test_the_section_is_written_as_it_is_read() -> None:
    written = {"model_config": {"max_batch_size": 3}}
    assert OpenInferenceModelOptions.model_validate(written).model_dump(mode="json") == written
