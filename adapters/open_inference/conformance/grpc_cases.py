"""Over gRPC: the server, any model that is found, and the known models."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tensorgate.adapters.conformance.case import UNIMPLEMENTED, ConformanceCase, Level, Step, WireRequest
from tensorgate.adapters.conformance.expectations import HasCode, HasMessages, HasText
from tensorgate.adapters.conformance.patterns import (
    ABSENT,
    BOOLEAN,
    INTEGER,
    LIST,
    OBJECT,
    TEXT,
    Gap,
    Including,
    Unordered,
)
from tensorgate.adapters.open_inference.conformance.calls import (
    GivenTensor,
    answered,
    by_output_name,
    call,
    failed,
    infer_message,
    packed,
    proto_output,
    response,
    stream,
)
from tensorgate.adapters.open_inference.conformance.facts import V2ModelFacts
from tensorgate.adapters.open_inference.conformance.known_models import ADD_SUB, FAILING, PARAMETERS, REPEAT, SUM, UPPER
from tensorgate.adapters.protobuf.messages import message

NOBODY: Final = "no_such_model_of_conformance"
INVALID: Final = 3
NOT_FOUND: Final = 5
_A: Final = GivenTensor("INPUT0", "INT32", (1, 4), (1, 2, 3, 40))
_B: Final = GivenTensor("INPUT1", "INT32", (1, 4), (10, 20, 30, 4))
_SUMS: Final = packed("INT32", (11, 22, 33, 44))
_DIFFERENCES: Final = packed("INT32", (-9, -18, -27, 36))


def _case(name: str, clause: str, *steps: Step, level: Level = Level.REQUIRED, extension: str = "") -> ConformanceCase:
    return ConformanceCase(name, clause, steps, Level.EXTENSION if extension else level, extension)


def _asked(method: str, **fields: Any) -> Any:
    return message(f"inference.{method}Request")(**fields)


def server_cases() -> Iterator[ConformanceCase]:
    """What holds of every server, whatever it serves."""
    yield _case(
        "the server lives", "ServerLive", call("ServerLive", b"", *answered("ServerLiveResponse", {"live": True}))
    )
    ready = answered("ServerReadyResponse", {"ready": True})
    yield _case("the server is ready", "ServerReady", call("ServerReady", b"", *ready))
    metadata = answered("ServerMetadataResponse", {"name": Gap((str,)), "version": TEXT, "extensions": LIST})
    yield _case("server metadata", "ServerMetadata", call("ServerMetadata", b"", *metadata))
    yield _case("an unknown method", "gRPC", call("NoSuchMethod", b"", HasCode((UNIMPLEMENTED,))))
    spoilt = HasCode((13, INVALID)), HasText("", Level.RECOMMENDED)
    yield _case("a request that is no message", "gRPC", call("ModelInfer", b"\xff\xff\xff", *spoilt))
    infer = infer_message(NOBODY, [_A])
    yield _case("infer of an unknown model", "errors: not found", call("ModelInfer", infer, *failed(NOT_FOUND, NOBODY)))
    unknown = _asked("ModelMetadata", name=NOBODY)
    yield _case(
        "metadata of an unknown model", "errors: not found", call("ModelMetadata", unknown, *failed(NOT_FOUND, NOBODY))
    )
    yield _case(
        "infer without a model's name",
        "errors",
        call("ModelInfer", infer_message("", [_A]), HasCode((INVALID, NOT_FOUND))),
    )
    index = answered("RepositoryIndexResponse", {"models": Including(({"name": TEXT, "state": TEXT},))})
    yield _case(
        "repository index", "RepositoryIndex", call("RepositoryIndex", b"", *index), extension="model_repository"
    )
    only_ready = answered("RepositoryIndexResponse", {"models": Including(({"name": TEXT, "state": "READY"},))})
    asked = _asked("RepositoryIndex", ready=True)
    yield _case(
        "repository index of those ready",
        "RepositoryIndex",
        call("RepositoryIndex", asked, *only_ready),
        extension="model_repository",
    )
    for method, field in (("SystemSharedMemoryStatus", "regions"), ("CudaSharedMemoryStatus", "regions")):
        regions = answered(f"{method}Response", {field: OBJECT})
        yield _case(method, "shared memory: status", call(method, b"", *regions), extension=method)
    settings = answered("TraceSettingResponse", {"settings": {"trace_level": {"value": LIST}}})
    yield _case("trace settings", "TraceSetting", call("TraceSetting", b"", *settings), extension="trace")
    logs = answered("LogSettingsResponse", {"settings": {"log_info": {"bool_param": BOOLEAN}}})
    yield _case("log settings", "LogSettings", call("LogSettings", b"", *logs), extension="logging")
    health = WireRequest("grpc", "/grpc.health.v1.Health/Check", (b"",))
    serving = HasCode((0,)), HasMessages("grpc.health.v1.HealthCheckResponse", ({"status": 1},))
    yield _case("health of gRPC itself", "grpc.health.v1", (health, serving), extension="grpc health")


def model_cases(model: V2ModelFacts) -> Iterator[ConformanceCase]:
    """What holds of any model, by its metadata."""

    def case(name: str, clause: str, *steps: Step, extension: str = "") -> ConformanceCase:
        return _case(f"{model.name}: {name}", clause, *steps, extension=extension)

    described = {
        "name": model.name,
        "versions": list(model.versions) if model.versions else LIST,
        "platform": TEXT,
        "inputs": Unordered(tuple(dict(each) for each in model.inputs)) if model.inputs else LIST,
        "outputs": Unordered(tuple(dict(each) for each in model.outputs)) if model.outputs else LIST,
    }
    versions = "", *model.versions[:2]
    for version in versions:
        which = f" of version {version}" if version else ""
        asked = _asked("ModelMetadata", name=model.name, version=version)
        fits = described | ({"versions": [version]} if version else {})
        yield case(
            f"metadata{which}", "ModelMetadata", call("ModelMetadata", asked, *answered("ModelMetadataResponse", fits))
        )
        asked = _asked("ModelReady", name=model.name, version=version)
        ready = answered("ModelReadyResponse", {"ready": True})
        yield case(f"ready{which}", "ModelReady", call("ModelReady", asked, *ready))
    asked = _asked("ModelMetadata", name=model.name, version="987654")
    yield case("metadata of an unknown version", "errors: not found", call("ModelMetadata", asked, *failed(NOT_FOUND)))
    asked = _asked("ModelConfig", name=model.name)
    configured = {"config": {"name": model.name, "max_batch_size": INTEGER, "input": LIST, "output": LIST}}
    expected = answered("ModelConfigResponse", configured)
    yield case("configuration", "ModelConfig", call("ModelConfig", asked, *expected), extension="model_configuration")
    counted = {"name": model.name, "version": TEXT, "inference_count": INTEGER, "execution_count": INTEGER}
    expected = answered("ModelStatisticsResponse", {"model_stats": Including((counted,))})
    asked = _asked("ModelStatistics", name=model.name)
    yield case("statistics", "ModelStatistics", call("ModelStatistics", asked, *expected), extension="statistics")
    if model.zeros:
        yield from _infer_cases(model, model.zeros)


def _infer_cases(model: V2ModelFacts, zeros: tuple[GivenTensor, ...]) -> Iterator[ConformanceCase]:
    """Of a model that was seen to take zeros."""

    def case(name: str, clause: str, request: Any, *expected: Any) -> ConformanceCase:
        return _case(f"{model.name}: {name}", clause, call("ModelInfer", request, *expected))

    outputs = tuple(
        {"name": each["name"], "datatype": each["datatype"], "shape": LIST, "contents": ABSENT}
        for each in model.outputs
    )
    raws = [Gap((bytes,)) for _ in outputs]
    whole = {
        "model_name": model.name,
        "model_version": TEXT,
        "outputs": Unordered(outputs),
        "raw_output_contents": raws,
    }
    one = infer_message(model.name, zeros, id="a-1")
    yield case("zeros, and the id is echoed", "ModelInfer", one, *answered("ModelInferResponse", whole | {"id": "a-1"}))
    for each in outputs:
        chosen = infer_message(model.name, zeros)
        chosen.outputs.add(name=each["name"])
        only = answered("ModelInferResponse", {"outputs": [each], "raw_output_contents": raws[:1]})
        yield case(f"only output {each['name']}", "ModelInfer: outputs", chosen, *only)
    chosen = infer_message(model.name, zeros)
    chosen.outputs.add(name="no_such_output")
    yield case("an output that is not there", "errors", chosen, *failed(INVALID, "no_such_output"))
    renamed = infer_message(model.name, zeros)
    renamed.inputs[0].name = "no_such_input"
    yield case("an input that is not there", "errors", renamed, *failed(INVALID, "no_such_input"))
    yield case("an input is missing", "errors", infer_message(model.name, zeros[1:]), *failed(INVALID))
    yield case("an input twice", "errors", infer_message(model.name, (*zeros, zeros[0])), *failed(INVALID))
    retyped = infer_message(model.name, zeros)
    retyped.inputs[0].datatype = "INT64" if zeros[0].datatype != "INT64" else "INT32"
    yield case("another datatype", "errors", retyped, *failed(INVALID))
    deeper = infer_message(model.name, zeros)
    deeper.inputs[0].shape.extend([1, 1])
    yield case("two dimensions too many", "errors", deeper, *failed(INVALID, "shape"))
    nonsense = infer_message(model.name, zeros)
    nonsense.inputs[0].datatype = "FLOAT33"
    yield case("a datatype that is none", "datatypes", nonsense, *failed(INVALID))
    for version in model.versions[:2]:
        asked = infer_message(model.name, zeros, model_version=version)
        yield case(
            f"version {version} answers", "versions", asked, *answered("ModelInferResponse", {"model_version": version})
        )
    unserved = infer_message(model.name, zeros, model_version="987654")
    yield case("an unknown version", "errors: not found", unserved, *failed(NOT_FOUND, "987654"))


def known_cases(known: Collection[str]) -> Iterator[ConformanceCase]:
    """What the known models answer."""
    made: Mapping[str, Any] = {
        ADD_SUB: _add_sub,
        UPPER: _upper,
        REPEAT: _repeat,
        SUM: _sequence,
        FAILING: _failing,
        PARAMETERS: _parameters,
    }
    for model, cases in made.items():
        if model in known:
            yield from cases()


def _both(pattern: Any) -> tuple[Any, ...]:
    """A ModelInferResponse whose outputs may come in any order."""
    return HasCode((0,)), HasMessages("inference.ModelInferResponse", (pattern,), transform=by_output_name)


def _add_sub() -> Iterator[ConformanceCase]:
    described = {
        "inputs": [{"name": name, "datatype": "INT32", "shape": [-1, 4]} for name in ("INPUT0", "INPUT1")],
        "outputs": [{"name": name, "datatype": "INT32", "shape": [-1, 4]} for name in ("OUTPUT0", "OUTPUT1")],
    }
    metadata = call(
        "ModelMetadata", _asked("ModelMetadata", name=ADD_SUB), *answered("ModelMetadataResponse", described)
    )
    yield _case("metadata of a model that is known", "ModelMetadata", metadata)
    outputs = [proto_output("OUTPUT0", "INT32", (1, 4)), proto_output("OUTPUT1", "INT32", (1, 4))]
    whole = response(ADD_SUB, outputs, _SUMS, _DIFFERENCES)
    for raw in (True, False):
        form = "raw" if raw else "typed"
        asked = infer_message(ADD_SUB, [_A, _B], raw=raw, id=form)
        yield _case(
            f"sums and differences, {form}", "ModelInfer", call("ModelInfer", asked, *_both(whole | {"id": form}))
        )
    turned = infer_message(ADD_SUB, [_B, _A])
    yield _case("inputs in another order", "ModelInfer: inputs by name", call("ModelInfer", turned, *_both(whole)))
    chosen = infer_message(ADD_SUB, [_A, _B])
    chosen.outputs.add(name="OUTPUT1")
    only = answered("ModelInferResponse", response(ADD_SUB, outputs[1:], _DIFFERENCES))
    yield _case("one output chosen", "ModelInfer: outputs", call("ModelInfer", chosen, *only))
    nine = [GivenTensor(each.name, "INT32", (9, 4), (1,) * 36) for each in (_A, _B)]
    many = infer_message(ADD_SUB, nine)
    yield _case("more rows than max_batch_size", "errors: batches", call("ModelInfer", many, *failed(INVALID, "batch")))
    short = infer_message(ADD_SUB, [GivenTensor(each.name, "INT32", (1, 3), (1, 2, 3)) for each in (_A, _B)])
    yield _case("a dimension too short", "errors: shapes", call("ModelInfer", short, *failed(INVALID, "shape")))
    few = infer_message(ADD_SUB, [_A, _B])
    del few.raw_input_contents[1]
    yield _case("one raw content for two inputs", "raw_input_contents", call("ModelInfer", few, *failed(INVALID)))
    for count, size in ((2, 2), (99, 4)):
        asked = infer_message(ADD_SUB, [_A, _B])
        asked.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = count
        texts = (b"44:3", b"33:2", b"22:1:one", b"11:0:zero")[:size]
        best = response(ADD_SUB, [proto_output("OUTPUT0", "BYTES", (1, size))], packed("BYTES", texts))
        step = call("ModelInfer", asked, *answered("ModelInferResponse", best))
        yield _case(f"the {count} best classes", "classification", step, extension="classification")
    asked = infer_message(ADD_SUB, [_A, _B])
    asked.outputs.add(name="OUTPUT0").parameters["classification"].string_param = "2"
    step = call("ModelInfer", asked, *failed(INVALID))
    yield _case("classification by a text", "classification", step, extension="classification")
    reserved = infer_message(ADD_SUB, [_A, _B])
    reserved.parameters["triton_something"].int64_param = 1
    step = call("ModelInfer", reserved, *failed(INVALID))
    yield _case("reserved parameters are refused", "parameters", step, extension="parameters")
    yield from _streamed(outputs)


def _streamed(outputs: Any) -> Iterator[ConformanceCase]:
    def case(name: str, *steps: Step) -> ConformanceCase:
        return _case(name, "ModelStreamInfer", *steps, extension="streams")

    def told(*patterns: Any) -> tuple[Any, ...]:
        return HasCode((0,)), HasMessages("inference.ModelStreamInferResponse", patterns)

    def good(name: str) -> dict[str, Any]:
        final = {"triton_final_response": {"bool_param": True}}
        whole = {"model_name": ADD_SUB, "id": name, "parameters": final, "outputs": Unordered(tuple(outputs))}
        return {
            "error_message": "",
            "infer_response": whole | {"raw_output_contents": Unordered((_SUMS, _DIFFERENCES))},
        }

    asked = [infer_message(ADD_SUB, [_A, _B], id=str(number)) for number in range(3)]
    yield case("a stream of one", stream(asked[:1], *told(good("0"))))
    yield case("a stream of three, in order", stream(asked, *told(*(good(str(number)) for number in range(3)))))
    yield case("a stream of none", stream([], *told()))
    unknown = infer_message(NOBODY, [_A], id="x")
    bad = {"error_message": Gap((str,), NOBODY), "infer_response": {"id": "x"}}
    yield case("an error does not end the stream", stream([unknown, asked[0]], *told(bad, good("0"))))


def _upper() -> Iterator[ConformanceCase]:
    for values in ((b"hello",), (b"a", b"", b"\0z"), (b"x" * 10_000,)):
        tensor = GivenTensor("TEXT", "BYTES", (len(values), 1), values)
        shout = packed("BYTES", [value.upper() for value in values])
        outputs = [proto_output("SHOUT", "BYTES", (len(values), 1))]
        for raw in (True, False):
            step = call(
                "ModelInfer",
                infer_message(UPPER, [tensor], raw=raw),
                *answered("ModelInferResponse", response(UPPER, outputs, shout)),
            )
            form = "raw" if raw else "typed"
            yield _case(f"texts {str(values)[:24]}, {form}", "datatypes: BYTES", step)


def _repeat() -> Iterator[ConformanceCase]:
    def case(name: str, *steps: Step) -> ConformanceCase:
        return _case(name, "ModelStreamInfer: decoupled models", *steps, extension="streams")

    def asked(count: int, **more: Any) -> Any:
        return infer_message(REPEAT, [GivenTensor("COUNT", "INT32", (1,), (count,))], id="r", **more)

    step = call("ModelInfer", asked(1), *failed(UNIMPLEMENTED, "decoupled"))
    yield _case("a decoupled model refuses ModelInfer", "decoupled models", step, level=Level.RECOMMENDED)
    outputs = [proto_output("INDEX", "INT32", (1,))]
    for count in (0, 1, 4):
        answers = tuple(
            {
                "error_message": "",
                "infer_response": response(REPEAT, outputs, struct.pack("<i", index), id="r"),
            }
            for index in range(count)
        )
        expected = HasCode((0,)), HasMessages("inference.ModelStreamInferResponse", answers)
        yield case(f"{count} answers to one request", stream([asked(count)], *expected))
        final = asked(count)
        final.parameters["triton_enable_empty_final_response"].bool_param = True
        last = {
            "infer_response": {
                "id": "r",
                "model_name": REPEAT,
                "outputs": [],
                "parameters": {"triton_final_response": {"bool_param": True}},
            }
        }
        expected = HasCode((0,)), HasMessages("inference.ModelStreamInferResponse", (*answers, last))
        yield case(f"{count} answers and an empty last one", stream([final], *expected))


def _sequence() -> Iterator[ConformanceCase]:
    def asked(value: int, sequence: int | str, **flags: bool) -> Any:
        request = infer_message(SUM, [GivenTensor("VALUE", "INT32", (1, 1), (value,))])
        if isinstance(sequence, str):
            request.parameters["sequence_id"].string_param = sequence
        elif sequence:
            request.parameters["sequence_id"].int64_param = sequence
        for name, flag in flags.items():
            request.parameters[f"sequence_{name}"].bool_param = flag
        return request

    def total(number: int) -> dict[str, Any]:
        return response(SUM, [proto_output("SUM", "INT32", (1, 1))], struct.pack("<i", number))

    def add(number: int, request: Any) -> Step:
        return call("ModelInfer", request, *answered("ModelInferResponse", total(number)))

    def case(name: str, *steps: Step) -> ConformanceCase:
        return _case(name, "sequence extension", *steps, extension="sequence")

    for sequence in (5201, "conform-g"):
        yield case(
            f"sequence {sequence!r} adds up",
            add(5, asked(5, sequence, start=True)),
            add(12, asked(7, sequence)),
            add(13, asked(1, sequence, end=True)),
        )
    yield case("no sequence id", call("ModelInfer", asked(1, 0), *failed(INVALID)))
    yield case("no start", call("ModelInfer", asked(1, 5299), *failed(INVALID)))
    in_stream = [asked(5, 5203, start=True), asked(7, 5203, end=True)]
    answers = tuple({"error_message": "", "infer_response": total(number)} for number in (5, 12))
    expected = HasCode((0,)), HasMessages("inference.ModelStreamInferResponse", answers)
    yield case("a sequence in a stream", stream(in_stream, *expected))


def _failing() -> Iterator[ConformanceCase]:
    for code, (number, name) in enumerate(
        [(13, "internal"), (3, "invalid argument"), (5, "not found"), (14, "unavailable"), (12, "unsupported")]
    ):
        request = infer_message(FAILING, [GivenTensor("CODE", "INT32", (1,), (code,))])
        step = call("ModelInfer", request, *failed(number, f"told to fail with {code}"))
        yield _case(f"a model fails: {name}", "errors: of models", step)


def _parameters() -> Iterator[ConformanceCase]:
    request = infer_message(PARAMETERS, [GivenTensor("IN", "INT32", (1,), (1,))])
    request.parameters["a text"].string_param = "words"
    request.parameters["an integer"].int64_param = -5
    request.parameters["a flag"].bool_param = True
    seen = json.dumps({"a flag": True, "a text": "words", "an integer": -5}, sort_keys=True).encode()
    expected = response(PARAMETERS, [proto_output("PARAMETERS", "BYTES", (1,))], packed("BYTES", [seen]))
    step = call("ModelInfer", request, *answered("ModelInferResponse", expected))
    yield _case("parameters reach the model", "parameters extension", step, extension="parameters")
