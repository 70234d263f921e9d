"""Over HTTP and gRPC: the server, models, and the known models."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from tensorgate.adapters.conformance.case import UNIMPLEMENTED, ConformanceCase, Level, Step, WireReply, WireRequest
from tensorgate.adapters.conformance.expectations import (
    HasCode,
    HasHeaderStart,
    HasJson,
    HasMessages,
    HasStatus,
)
from tensorgate.adapters.conformance.http_calls import get, post
from tensorgate.adapters.conformance.patterns import ABSENT, TEXT, Float32, Gap, OneOf
from tensorgate.adapters.protobuf.messages import enum, message

HALF_PLUS_TWO: Final = "conform_half_plus_two"
ADD_SUB: Final = "conform_add_sub"
IDENTITIES: Final[Mapping[str, tuple[str, str, tuple[Any, ...]]]] = {
    "conform_identity_uint8": ("DT_UINT8", "flat_uint8", (0, 1, 127, 255)),
    "conform_identity_int8": ("DT_INT8", "flat_int8", (0, 1, -1, 127, -128)),
    "conform_identity_int16": ("DT_INT16", "flat_int16", (0, 1, -1, 32767, -32768)),
    "conform_identity_int32": ("DT_INT32", "flat_int32", (0, 1, -1, 2**31 - 1, -(2**31))),
    "conform_identity_int64": ("DT_INT64", "flat_int64", (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63))),
    "conform_identity_float": ("DT_FLOAT32", "flat_float32", (0.0, 1.0, -2.5, 0.1, 1e30)),
    "conform_identity_double": ("DT_FLOAT64", "flat_float64", (0.0, 1.0, -2.5, 0.1, 1e300)),
    "conform_identity_string": ("DT_STRING", "flat_string", ("a", "", "späße", '"quoted" \n')),
}
"""Models that give back their one tensor: its dtype, its field, and the dtype's edges."""
NOBODY: Final = "no_such_model_of_conformance"
PREDICT: Final = "/grps/v1/infer/predict"
SERVICE: Final = "/grps.protos.v1.GrpsService/"
SUCCESS: Final = {"code": 200, "msg": "OK", "status": "SUCCESS"}
_JSON: Final = "application/json"


def _case(name: str, clause: str, *steps: Step, level: Level = Level.REQUIRED) -> ConformanceCase:
    return ConformanceCase(name, clause, steps, level)


def _ok(pattern: Mapping[str, Any]) -> tuple[Any, ...]:
    """A success over HTTP."""
    return HasStatus((200,)), HasHeaderStart("content-type", _JSON), HasJson({"status": SUCCESS, **pattern})


def _failed(code: int | tuple[int, ...], text: str = "") -> tuple[Any, ...]:
    """A failure over HTTP: its status is the code's in the envelope, or 200 as the C++ server has it."""
    codes = code if isinstance(code, tuple) else (code,)
    status = {"code": OneOf(codes), "msg": TEXT, "status": "FAILURE"}
    empty = dict.fromkeys(("str_data", "gtensors", "gmap", "ndarray"), ABSENT)
    told = (HasJson({"status": {"msg": Gap((str,), text)}}, Level.RECOMMENDED),) if text else ()
    return HasStatus((*codes, 200)), HasJson({"status": status} | empty), *told


def _grpc(method: str, given: Any, *expected: Any, streams: bool = False) -> Step:
    data = given if isinstance(given, bytes) else given.SerializeToString()
    return WireRequest("grpc", SERVICE + method, (data,), server_streams=streams), expected


def _message(**fields: Any) -> Any:
    return message("grps.protos.v1.GrpsMessage")(**fields)


def _answered(pattern: Mapping[str, Any]) -> tuple[Any, ...]:
    """A success over gRPC with one message."""
    status = {"code": 200, "msg": "OK", "status": 1}
    return HasCode((0,)), HasMessages("grps.protos.v1.GrpsMessage", ({"status": status, **pattern},))


def _refused(*codes: int, text: str = "") -> tuple[Any, ...]:
    """A failure over gRPC: the call itself is OK."""
    told = Gap((str,), text)
    failure = {"code": OneOf(codes), "msg": TEXT, "status": 2}
    weak = (HasMessages("grps.protos.v1.GrpsMessage", ({"status": {"msg": told}},), Level.RECOMMENDED),) if text else ()
    return HasCode((0,)), HasMessages("grps.protos.v1.GrpsMessage", ({"status": failure},)), *weak


def metadata_call(transport: str, name: str) -> Step:
    """A model's metadata."""
    if transport == "grpc":
        return _grpc("ModelMetadata", _message(str_data=name))
    return post("/grps/v1/metadata/model", {"str_data": name}, Content_Type=_JSON)


def succeeded(reply: WireReply) -> bool:
    """Whether a reply of either transport is a success."""
    try:
        if reply.status:
            return bool(json.loads(reply.body)["status"]["code"] == 200)
        return bool(message("grps.protos.v1.GrpsMessage").FromString(reply.body).status.code == 200)
    except (ValueError, KeyError, TypeError, DecodeError):
        return False


def server_cases() -> Iterator[ConformanceCase]:
    """What holds of every server, whatever it serves."""
    for method in ("GET", "POST"):
        live = get("/grps/v1/health/live", *_ok({}), method=method)
        yield _case(f"the server lives, {method}", "health", live)
    ready = {"status": OneOf((SUCCESS, {"code": 503, "status": "FAILURE"}))}
    yield _case("whether it is ready", "health", get("/grps/v1/health/ready", HasStatus((200, 503)), HasJson(ready)))
    yield _case("the server's configuration", "metadata", get("/grps/v1/metadata/server", *_ok({"str_data": TEXT})))
    for path in ("/grps/v1/nothing", "/grps/v1/health/live/", "/grps/v1/metrics"):
        yield _case(f"unknown path {path}", "endpoints", get(path, HasStatus((404,))))
    yield _case("GET of predict", "endpoints", get(PREDICT, HasStatus((405,))), level=Level.RECOMMENDED)
    body = {"str_data": "hello"}
    yield _case(
        "no content type",
        "content types",
        post(PREDICT, json.dumps(body).encode(), *_failed(400, "No content type in headers.")),
    )
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"):
        step = post(PREDICT, body, *_failed(400, "Unsupported content type."), Content_Type=kind)
        yield _case(f"content type {kind}", "content types", step)
    for kind in (_JSON, "application/octet-stream"):
        step = post(PREDICT, b"", *_failed(400, "body is empty"), Content_Type=kind)
        yield _case(f"an empty body of {kind}", "errors", step)
    for name, spoilt in (
        ("half a document", b'{"str_data": "a'),
        ("single quotes", b"{'str_data': 'a'}"),
        ("a list", b"[1]"),
        ("a number", b"5"),
        ("no data", b"{}"),
        ("unknown keys only", b'{"data": "a"}'),
        ("bin_data", b'{"bin_data": "YQ=="}'),
        ("a number as str_data", b'{"str_data": 5}'),
        ("a ragged ndarray", b'{"ndarray": [[1, 2], [3]]}'),
        ("texts in an ndarray", b'{"ndarray": ["a"]}'),
    ):
        yield _case(f"JSON: {name}", "errors", post(PREDICT, spoilt, *_failed((500, 400)), Content_Type=_JSON))
    unknown = post(f"{PREDICT}?model={NOBODY}-1", {"ndarray": [1.0]}, *_failed(500, NOBODY), Content_Type=_JSON)
    yield _case("predict of an unknown model", "errors", unknown)
    both = post(f"{PREDICT}?streaming=true&return-ndarray=true", {"ndarray": [1.0]}, *_failed(400), Content_Type=_JSON)
    yield _case("streaming and return-ndarray at once", "errors", both)
    model = "/grps/v1/metadata/model"
    step = post(model, {"str_data": NOBODY}, *_failed(404, "ot "), Content_Type=_JSON)
    yield _case("metadata of an unknown model", "metadata", step)
    yield _case("metadata without a name", "metadata", post(model, {}, *_failed(400), Content_Type=_JSON))
    yield _case("GET of a model's metadata", "endpoints", get(model, HasStatus((405,))), level=Level.RECOMMENDED)
    yield from _grpc_server_cases()


def _grpc_server_cases() -> Iterator[ConformanceCase]:
    yield _case("the server lives", "gRPC", _grpc("CheckLiveness", b"", *_answered({})))
    ready = HasMessages("grps.protos.v1.GrpsMessage", ({"status": {"code": OneOf((200, 403, 503))}},))
    yield _case("whether it is ready", "gRPC", _grpc("CheckReadiness", b"", HasCode((0,)), ready))
    yield _case("an unknown method", "gRPC", _grpc("NoSuchMethod", b"", HasCode((UNIMPLEMENTED,))))
    yield _case("a request that is no message", "gRPC", _grpc("Predict", b"\xff\xff", HasCode((13,))))
    given = _message(model=f"{NOBODY}-1", str_data="a")
    yield _case("Predict of an unknown model", "gRPC", _grpc("Predict", given, *_refused(500, text=NOBODY)))
    yield _case(
        "PredictStreaming of an unknown model",
        "gRPC",
        _grpc("PredictStreaming", given, *_refused(500, text=NOBODY), streams=True),
    )
    unknown = _message(str_data=NOBODY)
    yield _case("metadata of an unknown model", "gRPC", _grpc("ModelMetadata", unknown, *_refused(404)))
    yield _case("metadata without a name", "gRPC", _grpc("ModelMetadata", b"", *_refused(400, text="No model name.")))
    configured = _answered({"str_data": TEXT})
    yield _case(
        "the server's configuration", "gRPC", _grpc("ServerMetadata", b"", *configured), level=Level.RECOMMENDED
    )


def model_cases(name: str) -> Iterator[ConformanceCase]:
    """What holds of any model that is there."""
    described = {"str_data": Gap((str,), name)}
    step = post("/grps/v1/metadata/model", {"str_data": name}, *_ok(described), Content_Type=_JSON)
    yield _case(f"{name}: metadata", "metadata", step)
    yield _case(f"{name}: metadata", "gRPC", _grpc("ModelMetadata", _message(str_data=name), *_answered(described)))
    for wrong in (name, f"{name}-987654"):
        target = f"{PREDICT}?model={wrong}"
        step = post(target, {"ndarray": [1.0]}, *_failed(500, wrong), Content_Type=_JSON)
        yield _case(f"{name}: predict of {wrong}", "model selection", step)


def known_cases(known: Collection[str]) -> Iterator[ConformanceCase]:
    """What the known models answer, version 1 of each."""
    for name, (dtype, field, values) in IDENTITIES.items():
        if name in known:
            yield from _identity(name, dtype, field, values)
    if HALF_PLUS_TWO in known:
        yield from _half_plus_two()
    if ADD_SUB in known:
        yield from _add_sub()


def _identity(name: str, dtype: str, field: str, values: tuple[Any, ...]) -> Iterator[ConformanceCase]:
    def case(what: str, clause: str, step: Step) -> ConformanceCase:
        return _case(f"{dtype}: {what}", clause, step)

    target, given = f"{PREDICT}?model={name}-1", list(values)
    texts = [str(each) for each in given] if dtype == "DT_INT64" else given
    shown = [Float32(each) for each in given] if dtype == "DT_FLOAT32" else texts
    tensor = {"dtype": dtype, "shape": [len(given)], field: given}
    pattern = {"dtype": dtype, "shape": [len(given)], field: shown}
    same = _ok({"gtensors": {"tensors": [pattern]}})

    def ask(tensor: Any, *expected: Any, **more: Any) -> Step:
        return post(target, {"gtensors": {"tensors": [tensor]}} | more, *expected, Content_Type=_JSON)

    yield case("a tensor", "gtensors", ask(tensor, *same))
    in_body = {"gtensors": {"tensors": [tensor]}, "model": f"{name}-1"}
    yield case("its model in the body", "model selection", post(PREDICT, in_body, *same, Content_Type=_JSON))
    other = post(f"{PREDICT}?model={NOBODY}-1", in_body, *same, Content_Type=_JSON)
    yield case("the body's model wins", "model selection", other)
    yield case("unknown keys are ignored", "gtensors", ask(tensor | {"strange": 1}, *same))
    yield case("values fewer than the shape's", "gtensors", ask(tensor | {"shape": [len(given) + 1]}, *_failed(500)))
    yield case("an unknown dtype", "gtensors", ask(tensor | {"dtype": "DT_NOTHING"}, *_failed((500, 400))))
    yield case("a list as its name", "gtensors", ask(tensor | {"name": [1]}, *_failed((500, 400))))
    message_tensor = {**tensor, "dtype": enum("grps.protos.v1.DataType").values_by_name[dtype].number}
    request = _message(model=f"{name}-1", gtensors={"tensors": [message_tensor]})
    float_shown = shown if dtype == "DT_FLOAT32" else given
    expected = {**message_tensor, field: float_shown}
    answer = _answered({"gtensors": {"tensors": [expected]}})
    yield case("a tensor", "gRPC", _grpc("Predict", request, *answer))
    yield case("a tensor, streamed", "gRPC", _grpc("PredictStreaming", request, *answer, streams=True))
    short = {**message_tensor, "shape": [len(given) + 1]}
    request = _message(model=f"{name}-1", gtensors={"tensors": [short]})
    yield case("values fewer than the shape's", "gRPC", _grpc("Predict", request, *_refused(500)))


def _half_plus_two() -> Iterator[ConformanceCase]:
    model = f"{HALF_PLUS_TWO}-1"
    target = f"{PREDICT}?model={model}"
    tensor = {"dtype": "DT_FLOAT32", "shape": [2], "flat_float32": [2.5, 3.0]}
    tensors = _ok({"gtensors": {"tensors": [tensor]}, "ndarray": ABSENT})
    body = {"ndarray": [1.0, 2.0]}
    yield _case("an ndarray in, tensors out", "ndarray", post(target, body, *tensors, Content_Type=_JSON))
    table = {"dtype": "DT_FLOAT32", "shape": [2, 1], "flat_float32": [2.5, 3.0]}
    answer = _ok({"gtensors": {"tensors": [table]}})
    yield _case("an ndarray of rows", "ndarray", post(target, {"ndarray": [[1], [2]]}, *answer, Content_Type=_JSON))
    for flag in ("true", "True", "TRUE"):
        arrays = _ok({"ndarray": [2.5, 3.0], "gtensors": ABSENT})
        step = post(f"{target}&return-ndarray={flag}", body, *arrays, Content_Type=_JSON)
        yield _case(f"return-ndarray={flag}", "ndarray", step)
    for flag in ("1", "yes", "", "false"):
        step = post(f"{target}&return-ndarray={flag}", body, *tensors, Content_Type=_JSON)
        yield _case(f"return-ndarray={flag or 'nothing'}", "ndarray", step)
    step = post(f"{target}&return_ndarray=true", body, *tensors, Content_Type=_JSON)
    yield _case("return_ndarray is no such key", "ndarray", step)
    for number in ("NaN", "Infinity", "-Infinity"):
        given = {"gtensors": {"tensors": [{"dtype": "DT_FLOAT32", "shape": [1], "flat_float32": [number]}]}}
        answer = _ok({"gtensors": {"tensors": [{"flat_float32": [number]}]}})
        yield _case(f"the number {number}", "JSON mapping", post(target, given, *answer, Content_Type=_JSON))
    camel = {"gtensors": {"tensors": [{"dtype": 7, "shape": [2], "flat_float32": [1, 2]}]}}
    yield _case("dtype by number", "JSON mapping", post(target, camel, *tensors, Content_Type=_JSON))


def _add_sub() -> Iterator[ConformanceCase]:
    target = f"{PREDICT}?model={ADD_SUB}-1"

    def tensor(name: str, *values: float) -> dict[str, Any]:
        return {"name": name, "dtype": "DT_FLOAT32", "shape": [len(values)], "flat_float32": list(values)}

    def ask(name: str, tensors: list[Any], *expected: Any) -> ConformanceCase:
        step = post(target, {"gtensors": {"tensors": tensors}}, *expected, Content_Type=_JSON)
        return _case(name, "gtensors: names", step)

    totals = {"shape": [2], "flat_float32": [7.0, 1.0]}
    differences = {"shape": [2], "flat_float32": [3.0, -1.0]}
    answer = _ok({"gtensors": {"tensors": [totals, differences]}})
    a, b = tensor("a", 5.0, 0.0), tensor("b", 2.0, 1.0)
    yield ask("two tensors by name", [a, b], *answer)
    yield ask("two tensors by name, in another order", [b, a], *answer)
    yield ask("two tensors by position", [a | {"name": ""}, b | {"name": ""}], *answer)
    yield ask("names of some only", [a, b | {"name": ""}], *_failed(500))
    yield ask("a name twice", [a, b | {"name": "a"}], *_failed(500))
    yield ask("a tensor is missing", [a], *_failed(500))
    yield ask("a tensor too many", [a, b, tensor("c", 1.0, 2.0)], *_failed(500))
