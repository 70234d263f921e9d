"""Over HTTP: the server, any model that is found, and the known models."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tensorgate.adapters.conformance.case import ConformanceCase, Expectation, Level, Step, WireRequest
from tensorgate.adapters.conformance.expectations import (
    HasEvents,
    HasHeader,
    HasHeaderStart,
    HasJson,
    HasJsonAndTail,
    HasStatus,
)
from tensorgate.adapters.conformance.http_calls import get, json_ok, post
from tensorgate.adapters.conformance.patterns import (
    ABSENT,
    ANY,
    INTEGER,
    LIST,
    OBJECT,
    TEXT,
    Including,
    Unordered,
)
from tensorgate.adapters.open_inference.conformance.calls import (
    LENGTH_HEADER,
    GivenTensor,
    binary_infer,
    cut_infer,
    error,
    infer_document,
    infer_path,
    malformed,
    output,
)
from tensorgate.adapters.open_inference.conformance.facts import V2ModelFacts
from tensorgate.adapters.open_inference.conformance.known_models import (
    ADD_SUB,
    FAILING,
    PARAMETERS,
    REPEAT,
    SUM,
    UPPER,
    identity_name,
)

NOBODY: Final = "no_such_model_of_conformance"
_A: Final = GivenTensor("INPUT0", "INT32", (1, 4), (1, 2, 3, 40))
_B: Final = GivenTensor("INPUT1", "INT32", (1, 4), (10, 20, 30, 4))
_SUM: Final = output("OUTPUT0", "INT32", (1, 4), [11, 22, 33, 44])
_DIFFERENCE: Final = output("OUTPUT1", "INT32", (1, 4), [-9, -18, -27, 36])
_DURATION: Final = {"count": INTEGER, "ns": INTEGER}


def _case(name: str, clause: str, *steps: Step, level: Level = Level.REQUIRED, extension: str = "") -> ConformanceCase:
    return ConformanceCase(name, clause, steps, Level.EXTENSION if extension else level, extension)


def server_cases() -> Iterator[ConformanceCase]:
    """What holds of every server, whatever it serves."""
    yield _case("the server lives", "health/live", get("/v2/health/live", HasStatus((200,))))
    yield _case("the server is ready", "health/ready", get("/v2/health/ready", HasStatus((200,))))
    metadata = json_ok({"name": TEXT, "version": TEXT, "extensions": LIST})
    yield _case("server metadata", "server metadata", get("/v2", *metadata))
    for path in ("/v2/nothing", "/v2/models/a/b", "/v2/health", "/v2/health/live/"):
        yield _case(f"unknown path {path}", "paths", get(path, HasStatus((404,))))
    for path, method in (("/v2/health/live", "POST"), ("/v2", "DELETE"), (f"/v2/models/{NOBODY}/infer", "GET")):
        yield _case(f"{method} {path}", "methods", get(path, HasStatus((405,)), method=method), level=Level.RECOMMENDED)
    unknown = f"'{NOBODY}'"
    anything = infer_document([_A])
    yield _case(
        "infer of an unknown model", "errors: not found", post(infer_path(NOBODY), anything, *error(404, unknown))
    )
    yield _case(
        "infer of an unknown model's version",
        "errors: not found",
        post(infer_path(NOBODY, "7"), anything, *error(404, unknown)),
    )
    yield _case("metadata of an unknown model", "errors: not found", get(f"/v2/models/{NOBODY}", *error(404, unknown)))
    yield _case(
        "an unknown model is not ready", "model ready", get(f"/v2/models/{NOBODY}/ready", HasStatus((400, 404, 503)))
    )
    index = HasJson(Including(({"name": TEXT},)))
    yield _case(
        "repository index",
        "model repository: index",
        post("/v2/repository/index", b"", HasStatus((200,)), HasHeaderStart("content-type", "application/json"), index),
        extension="model_repository",
    )
    yield _case(
        "repository index of those ready",
        "model repository: index",
        post("/v2/repository/index", {"ready": True}, *json_ok(Including(({"name": TEXT, "state": "READY"},)))),
        extension="model_repository",
    )
    for kind in ("system", "cuda"):
        yield _case(
            f"regions of {kind} shared memory",
            "shared memory: status",
            get(f"/v2/{kind}sharedmemory/status", *json_ok(LIST)),
            extension=f"{kind}_shared_memory",
        )
    yield _case(
        "statistics of all models",
        "statistics",
        get("/v2/models/stats", *json_ok({"model_stats": LIST})),
        extension="statistics",
    )
    yield _case(
        "trace settings",
        "trace",
        get("/v2/trace/setting", *json_ok({"trace_level": LIST, "trace_rate": TEXT})),
        extension="trace",
    )
    yield _case(
        "log settings",
        "logging",
        get("/v2/logging", *json_ok({"log_info": ANY, "log_verbose_level": INTEGER})),
        extension="logging",
    )


def model_cases(model: V2ModelFacts) -> Iterator[ConformanceCase]:
    """What holds of any model, by its metadata."""
    described = {
        "name": model.name,
        "versions": Including((TEXT,)) if model.versions else LIST,
        "platform": TEXT,
        "inputs": Unordered(tuple(dict(each) for each in model.inputs)) if model.inputs else LIST,
        "outputs": Unordered(tuple(dict(each) for each in model.outputs)) if model.outputs else LIST,
    }
    yield _case(f"{model.name}: metadata", "model metadata", get(model.path, *json_ok(described)))
    yield _case(f"{model.name}: ready", "model ready", get(f"{model.path}/ready", HasStatus((200,))))
    for version in model.versions[:2]:
        path = f"{model.path}/versions/{version}"
        one = described | {"versions": [version]}
        yield _case(f"{model.name}: metadata of version {version}", "model metadata", get(path, *json_ok(one)))
        yield _case(f"{model.name}: version {version} is ready", "model ready", get(f"{path}/ready", HasStatus((200,))))
    unserved = f"{model.path}/versions/987654"
    yield _case(f"{model.name}: metadata of an unknown version", "errors: not found", get(unserved, *error(404)))
    yield _case(
        f"{model.name}: configuration",
        "model configuration",
        get(f"{model.path}/config", *json_ok({"name": model.name, "max_batch_size": INTEGER, "input": LIST})),
        extension="model_configuration",
    )
    durations = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    counted = {
        "name": model.name,
        "version": TEXT,
        "last_inference": INTEGER,
        "inference_count": INTEGER,
        "execution_count": INTEGER,
        "inference_stats": dict.fromkeys(durations, _DURATION),
        "batch_stats": LIST,
    }
    yield _case(
        f"{model.name}: statistics",
        "statistics",
        get(f"{model.path}/stats", *json_ok({"model_stats": Including((counted,))})),
        extension="statistics",
    )
    if model.zeros:
        yield from _infer_cases(model, model.zeros)


def _infer_cases(model: V2ModelFacts, zeros: tuple[GivenTensor, ...]) -> Iterator[ConformanceCase]:
    """Of a model that was seen to take zeros."""
    path = f"{model.path}/infer"

    def case(name: str, clause: str, *steps: Step) -> ConformanceCase:
        return _case(f"{model.name}: {name}", clause, *steps)

    outputs = tuple({"name": each["name"], "datatype": each["datatype"], "shape": LIST} for each in model.outputs)
    if any(each.datatype == "FP16" for each in zeros) or any(each["datatype"] == "FP16" for each in model.outputs):
        return
    document = infer_document(zeros)
    answer = {"model_name": model.name, "model_version": TEXT}
    whole = json_ok(answer | {"outputs": Unordered(tuple({**each, "data": LIST} for each in outputs))})
    yield case("zeros", "infer", post(path, document, *whole))
    yield case("the id is echoed", "infer: id", post(path, document | {"id": "a-1"}, *json_ok({"id": "a-1"})))
    yield case("no id, none in the answer", "infer: id", post(path, document, *json_ok({"id": ABSENT})))
    for each in outputs:
        one = document | {"outputs": [{"name": each["name"]}]}
        yield case(f"only output {each['name']}", "infer: outputs", post(path, one, *json_ok({"outputs": [each]})))
    yield case(
        "an output that is not there",
        "errors",
        post(path, document | {"outputs": [{"name": "no_such_output"}]}, *error(400, "no_such_output")),
    )
    renamed = {"inputs": [{**document["inputs"][0], "name": "no_such_input"}, *document["inputs"][1:]]}
    yield case("an input that is not there", "errors", post(path, renamed, *error(400, "no_such_input")))
    fewer = {"inputs": document["inputs"][1:]}
    yield case("an input is missing", "errors", post(path, fewer, *error(400)))
    twice = {"inputs": [*document["inputs"], document["inputs"][0]]}
    yield case("an input twice", "errors", post(path, twice, *error(400)))
    first = document["inputs"][0]
    other = "INT64" if first["datatype"] != "INT64" else "INT32"
    data = first["data"] if first["datatype"] not in ("BYTES", "BOOL") else [0] * len(first["data"])
    retyped = {"inputs": [{**first, "datatype": other, "data": [int(x) for x in data]}, *document["inputs"][1:]]}
    yield case("another datatype", "errors", post(path, retyped, *error(400, other)))
    deeper = {"inputs": [{**first, "shape": [*first["shape"], 1, 1]}, *document["inputs"][1:]]}
    yield case("two dimensions too many", "errors", post(path, deeper, *error(400, "shape")))
    nonsense = {"inputs": [{**first, "datatype": "FLOAT33"}, *document["inputs"][1:]]}
    yield case("a datatype that is none", "datatypes", post(path, nonsense, *error(400)))
    for version in model.versions[:2]:
        of_version = json_ok({"model_version": version})
        yield case(
            f"version {version} answers",
            "versions",
            post(f"{model.path}/versions/{version}/infer", document, *of_version),
        )
    unserved = f"{model.path}/versions/987654/infer"
    yield case("an unknown version", "errors: not found", post(unserved, document, *error(404, "987654")))


def body_cases(model: V2ModelFacts) -> Iterator[ConformanceCase]:
    """Bodies that no server understands, sent to a model that was seen to take zeros."""
    document = infer_document(model.zeros or ())
    path, first = f"{model.path}/infer", document["inputs"][0]
    for key in ("name", "shape", "datatype", "data"):
        without = {"inputs": [{k: v for k, v in first.items() if k != key}, *document["inputs"][1:]]}
        yield _case(f"an input without {key}", "infer: required keys", post(path, without, *malformed()))
    for name, body in _broken_bodies(json.dumps(document).encode()):
        yield _case(f"body {name}", "infer: JSON", post(path, body, *malformed()))
    empty = post(path, b"", *malformed())  # Triton takes it for raw data where a model has one input
    yield _case("body empty", "infer: JSON", empty, level=Level.RECOMMENDED)


def _broken_bodies(whole: bytes) -> Iterator[tuple[str, bytes]]:
    yield "of half its JSON", whole[: len(whole) // 2]
    yield "of JSON but for its last byte", whole[:-1]
    yield "that is a list", b"[" + whole + b"]"
    yield "that is a number", b"12"
    yield "with single quotes", whole.replace(b'"', b"'")
    yield "with a comma too many", whole[:-1] + b",}"
    yield "without inputs", b"{}"
    yield "whose inputs are an object", b'{"inputs": {}}'
    yield "whose inputs are numbers", b'{"inputs": [1]}'
    yield "nested 100,000 deep", b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield "whose id is a number", whole[:-1] + b', "id": 5}'
    yield "whose parameters are a list", whole[:-1] + b', "parameters": []}'
    yield "whose outputs are an object", whole[:-1] + b', "outputs": {}}'


def known_cases(known: Collection[str]) -> Iterator[ConformanceCase]:
    """What the known models answer."""
    made: Mapping[str, Any] = {
        ADD_SUB: _add_sub,
        UPPER: _upper,
        REPEAT: _repeat,
        SUM: _sequence,
        FAILING: _failing,
        PARAMETERS: _parameters,
        identity_name("FP32"): _not_finite,
        identity_name("BYTES"): _raw_text,
    }
    for model, cases in made.items():
        if model in known:
            yield from cases()


def _add_sub() -> Iterator[ConformanceCase]:
    described = {
        "inputs": [{"name": name, "datatype": "INT32", "shape": [-1, 4]} for name in ("INPUT0", "INPUT1")],
        "outputs": [{"name": name, "datatype": "INT32", "shape": [-1, 4]} for name in ("OUTPUT0", "OUTPUT1")],
    }
    metadata = get(f"/v2/models/{ADD_SUB}", *json_ok(described))
    yield _case("metadata of a model that is known", "model metadata", metadata)
    path, document = infer_path(ADD_SUB), infer_document([_A, _B])
    both = Unordered((_SUM, _DIFFERENCE))
    yield _case("sums and differences", "infer", post(path, document, *json_ok({"outputs": both})))
    turned = infer_document([_B, _A])
    yield _case("inputs in another order", "infer: inputs by name", post(path, turned, *json_ok({"outputs": both})))
    chosen = {"outputs": [{"name": "OUTPUT1"}]}
    yield _case(
        "one output chosen", "infer: outputs", post(path, document | chosen, *json_ok({"outputs": [_DIFFERENCE]}))
    )
    none = json_ok({"outputs": both})
    yield _case("an empty list of outputs means all", "infer: outputs", post(path, document | {"outputs": []}, *none))
    strange = document | {"strange": {"a": [1]}}
    yield _case("unknown keys are ignored", "infer: other keys", post(path, strange, *json_ok({"outputs": both})))
    for name in ("späße", "a" * 200, '"', "0"):
        yield _case(
            f"id {name[:10]!r} is echoed", "infer: id", post(path, document | {"id": name}, *json_ok({"id": name}))
        )
    rows = [GivenTensor(each.name, "INT32", (3, 4), (*each.values, *(0,) * 4, *each.values)) for each in (_A, _B)]
    total = output("OUTPUT0", "INT32", (3, 4), [11, 22, 33, 44, 0, 0, 0, 0, 11, 22, 33, 44])
    yield _case(
        "three rows", "infer: batches", post(path, infer_document(rows), *json_ok({"outputs": Including((total,))}))
    )
    nine = [GivenTensor(each.name, "INT32", (9, 4), (1,) * 36) for each in (_A, _B)]
    yield _case(
        "more rows than max_batch_size", "errors: batches", post(path, infer_document(nine), *error(400, "batch"))
    )
    uneven = infer_document([_A, rows[1]])
    yield _case("inputs of different batches", "errors: batches", post(path, uneven, *error(400, "batch")))
    short = [GivenTensor(each.name, "INT32", (1, 3), (1, 2, 3)) for each in (_A, _B)]
    yield _case("a dimension too short", "errors: shapes", post(path, infer_document(short), *error(400, "shape")))
    mixed = {"outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}]}
    tail = b"".join(int.to_bytes(x, 4, "little") for x in (11, 22, 33, 44))
    in_both = HasJsonAndTail(
        LENGTH_HEADER, {"outputs": Unordered((output("OUTPUT0", "INT32", (1, 4)), _DIFFERENCE))}, tail
    )
    yield _case(
        "one output binary, one JSON",
        "binary tensor data",
        post(path, document | mixed, HasStatus((200,)), in_both),
        extension="binary_tensor_data",
    )
    yield _case(
        "binary inputs, JSON outputs",
        "binary tensor data",
        binary_infer(ADD_SUB, [_A, _B], {}, *json_ok({"outputs": both})),
        extension="binary_tensor_data",
    )
    for name, header in (("negative", "-1"), ("beyond the body", "100000")):
        request = WireRequest("http", path, (json.dumps(document).encode(),), headers=((LENGTH_HEADER, header),))
        yield _case(
            f"a JSON length {name}", "binary tensor data", (request, error(400)), extension="binary_tensor_data"
        )
    two = cut_infer(
        ADD_SUB,
        {"inputs": [{**document["inputs"][0], "parameters": {"binary_data_size": 16}}, document["inputs"][1]]},
        b"\0" * 16,
        *error(400),
    )
    yield _case("data in JSON and in the tail", "binary tensor data", two, extension="binary_tensor_data")
    yield from _compressed(path, json.dumps(document).encode(), both)
    yield from _classified(path, document)
    yield _case(
        "a body with an unknown content type is read all the same",
        "Content-Type is not examined",
        post(path, document, *json_ok({"outputs": both}), Content_Type="text/plain"),
        level=Level.RECOMMENDED,
    )
    reserved = document | {"parameters": {"triton_something": 1}}
    yield _case(
        "reserved parameters are refused", "parameters", post(path, reserved, *error(400)), extension="parameters"
    )


def _compressed(path: str, body: bytes, outputs: Any) -> Iterator[ConformanceCase]:
    for coding, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        step = post(path, pack(body), *json_ok({"outputs": outputs}), Content_Encoding=coding)
        yield _case(f"a request in {coding}", "compression", step, extension="compression")
        step = post(path, body, HasStatus((200,)), HasHeader("content-encoding", coding), Accept_Encoding=coding)
        yield _case(f"an answer in {coding}", "compression", step, extension="compression")
    step = post(path, b"\x1f\x8bno such data", *error(400, "", Level.RECOMMENDED), Content_Encoding="gzip")
    yield _case("spoilt gzip", "compression", step, extension="compression")
    step = post(path, body, *error(501, "", Level.RECOMMENDED), Content_Encoding="br")
    yield _case("an unknown coding is refused", "compression", step, level=Level.RECOMMENDED)


def _classified(path: str, document: Mapping[str, Any]) -> Iterator[ConformanceCase]:
    def asked(count: Any, *expected: Expectation) -> ConformanceCase:
        outputs = {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": count}}]}
        step = post(path, {**document, **outputs}, *expected)
        return _case(f"the {count} best classes", "classification", step, extension="classification")

    labelled = ["44:3", "33:2", "22:1:one", "11:0:zero"]
    yield asked(2, *json_ok({"outputs": [output("OUTPUT0", "BYTES", (1, 2), labelled[:2])]}))
    yield asked(4, *json_ok({"outputs": [output("OUTPUT0", "BYTES", (1, 4), labelled)]}))
    yield asked(99, *json_ok({"outputs": [output("OUTPUT0", "BYTES", (1, 4), labelled)]}))
    yield asked(-1, *malformed())
    yield asked("two", *malformed())


def _upper() -> Iterator[ConformanceCase]:
    def texts(*values: str) -> dict[str, Any]:
        return infer_document([GivenTensor("TEXT", "BYTES", (len(values), 1), tuple(v.encode() for v in values))])

    for values in (("hello",), ("a", "", "straße"), ("x" * 10_000,), ('\0\n\t"\\',)):
        shout = [value.upper() for value in values]
        shouted = json_ok({"outputs": [output("SHOUT", "BYTES", (len(values), 1), shout)]})
        yield _case(f"texts {str(values)[:24]}", "datatypes: BYTES", post(infer_path(UPPER), texts(*values), *shouted))
    path = f"/v2/models/{UPPER}"
    answer = {"model_name": UPPER, "model_version": "1", "SHOUT": "HI"}

    def generate(name: str, body: Any, *expected: Expectation, verb: str = "generate") -> ConformanceCase:
        return _case(
            f"{verb}: {name}", "generate extension", post(f"{path}/{verb}", body, *expected), extension="generate"
        )

    yield generate("a text", {"TEXT": "hi"}, *json_ok(answer))
    yield generate("with an id", {"TEXT": "hi", "id": "7"}, *json_ok(answer | {"id": "7"}))
    yield generate("other keys are parameters", {"TEXT": "hi", "max_tokens": 5}, *json_ok(answer))
    yield generate("inputs inside parameters", {"parameters": {"TEXT": "hi"}}, *json_ok(answer))
    yield generate("without its input", {"other": "hi"}, *error(400))
    yield generate("of a number for a text", {"TEXT": 5}, *malformed())
    yield generate("a list as a parameter", {"TEXT": "hi", "other": [1]}, *error(400))
    yield generate("half a body", b'{"TEXT": ', *malformed())
    events = HasStatus((200,)), HasHeaderStart("content-type", "text/event-stream"), HasEvents((answer,))
    yield generate("one event", {"TEXT": "hi"}, *events, verb="generate_stream")


def _repeat() -> Iterator[ConformanceCase]:
    three = infer_document([GivenTensor("COUNT", "INT32", (1,), (3,))])
    yield _case(
        "a decoupled model refuses infer",
        "decoupled models",
        post(infer_path(REPEAT), three, *error(501)),
        level=Level.RECOMMENDED,
    )
    path = f"/v2/models/{REPEAT}"
    for count in (0, 1, 3):
        events = tuple({"model_name": REPEAT, "INDEX": index} for index in range(count))
        expected = HasStatus((200,)), HasHeaderStart("content-type", "text/event-stream"), HasEvents(events)
        step = post(f"{path}/generate_stream", {"COUNT": count}, *expected)
        yield _case(f"generate_stream: {count} events", "generate extension", step, extension="generate")
    single = json_ok({"INDEX": 0})
    step = post(f"{path}/generate", {"COUNT": 1}, *single)
    yield _case("generate: a decoupled model's only answer", "generate extension", step, extension="generate")
    configured = json_ok({"model_transaction_policy": {"decoupled": True}})
    step = get(f"{path}/config", *configured)
    yield _case("its configuration says decoupled", "model configuration", step, extension="model_configuration")


def _sequence() -> Iterator[ConformanceCase]:
    def add(value: int, total: int | None, **parameters: Any) -> Step:
        document = infer_document([GivenTensor("VALUE", "INT32", (1, 1), (value,))], parameters=parameters)
        expected = json_ok({"outputs": [output("SUM", "INT32", (1, 1), [total])]}) if total is not None else error(400)
        return post(infer_path(SUM), document, *expected)

    def case(name: str, *steps: Step) -> ConformanceCase:
        return _case(name, "sequence extension", *steps, extension="sequence")

    yield case(
        "a sequence adds up",
        add(5, 5, sequence_id=4201, sequence_start=True),
        add(7, 12, sequence_id=4201),
        add(1, 13, sequence_id=4201, sequence_end=True),
    )
    yield case(
        "a sequence by text",
        add(5, 5, sequence_id="conform-a", sequence_start=True),
        add(-7, -2, sequence_id="conform-a", sequence_end=True),
    )
    yield case("no sequence id", add(1, None))
    yield case("no start", add(1, None, sequence_id=4299))
    yield case(
        "one that has ended",
        add(5, 5, sequence_id=4203, sequence_start=True, sequence_end=True),
        add(7, None, sequence_id=4203),
    )


def _failing() -> Iterator[ConformanceCase]:
    for code, (status, name) in enumerate(
        [(500, "internal"), (400, "invalid argument"), (404, "not found"), (503, "unavailable"), (501, "unsupported")]
    ):
        document = infer_document([GivenTensor("CODE", "INT32", (1,), (code,))])
        expected = error(status, f"told to fail with {code}")
        yield _case(f"a model fails: {name}", "errors: of models", post(infer_path(FAILING), document, *expected))


def _parameters() -> Iterator[ConformanceCase]:
    given: dict[str, Any] = {"a text": "words", "an integer": 5, "a flag": True}
    document = infer_document([GivenTensor("IN", "INT32", (1,), (1,))], parameters=given)
    seen = json.dumps(given, sort_keys=True)
    step = post(infer_path(PARAMETERS), document, *json_ok({"outputs": [output("PARAMETERS", "BYTES", (1,), [seen])]}))
    yield _case("parameters reach the model", "parameters extension", step, extension="parameters")
    for name, wrong in (("a list", [1]), ("an object", {"a": 1}), ("null", None)):
        document = infer_document([GivenTensor("IN", "INT32", (1,), (1,))], parameters={"p": wrong})
        step = post(infer_path(PARAMETERS), document, *error(400))
        yield _case(f"{name} is no parameter", "parameters extension", step, extension="parameters")


def _not_finite() -> Iterator[ConformanceCase]:
    model = identity_name("FP32")
    body = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [3], "data": [NaN, Infinity, -Infinity]}]}'
    values = [float("nan"), float("inf"), float("-inf")]
    step = post(infer_path(model), body, *json_ok({"outputs": [output("OUT", "FP32", (3,), values)]}))
    yield _case("numbers that are not finite", "tensor data", step, level=Level.RECOMMENDED)


def _raw_text() -> Iterator[ConformanceCase]:
    model = identity_name("BYTES")
    tensor = GivenTensor("IN", "BYTES", (2,), (b"\xff\xfe\0", b"\x80"))
    asked = {"outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}
    tail = b"\x03\0\0\0\xff\xfe\0\x01\0\0\0\x80"
    described = output("OUT", "BYTES", (2,)) | {"parameters": OBJECT}
    expected = HasStatus((200,)), HasJsonAndTail(LENGTH_HEADER, {"outputs": [described]}, tail)
    yield _case(
        "bytes that are no text",
        "binary tensor data",
        binary_infer(model, [tensor], asked, *expected),
        extension="binary_tensor_data",
    )
    cut = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}}]}
    step = cut_infer(model, cut, b"\x10\0\0\0abc", *error(400))
    yield _case("a text shorter than it says", "binary tensor data", step, extension="binary_tensor_data")
