"""Asks a running server over gRPC what `calls` has, with the messages of tritonclient, and prints its answers as JSON:
how grpc_answers.json came from a real Triton. It runs where tritonclient is, beside neither server.

.venv-clients/bin/python tests/system/triton/ask_grpc.py HOST:PORT [REPOSITORY]   # its folder is not told
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

ANSWERS_WITHIN_S = 20.0
CLOCK = ("ns", "last_inference")
"""What depends on the time, and is left out."""

FINAL = {"triton_enable_empty_final_response": {"bool_param": True}}


class Ask(NamedTuple):
    """One call. `messages` are the fields of what is sent, several of a stream."""

    name: str
    method: str
    messages: tuple[dict[str, Any], ...]
    metadata: tuple[tuple[str, str], ...] = ()


def ask(name: str, method: str, /, **fields: Any) -> Ask:
    return Ask(name, method, (fields,))


def stream(name: str, *messages: dict[str, Any], **metadata: str) -> Ask:
    return Ask(f"stream: {name}", "ModelStreamInfer", messages, tuple(metadata.items()))


# ------------------------------------------------------------------------------------------------------------ messages


def i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def text(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def tensor(name: str, datatype: str, shape: list[int], **contents: Any) -> dict[str, Any]:
    """An input; its contents if any are given, `contents={}` for a present but empty one."""
    made: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if contents:
        made["contents"] = contents.get("contents", contents)
    return made


def request(model: str, *inputs: Any, raw: tuple[bytes, ...] = (), **fields: Any) -> dict[str, Any]:
    return {"model_name": model, "inputs": list(inputs), "raw_input_contents": list(raw), **fields}


def infer(name: str, model: str, *inputs: Any, raw: tuple[bytes, ...] = (), **fields: Any) -> Ask:
    return ask(name, "ModelInfer", **request(model, *inputs, raw=raw, **fields))


def wanted(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


A, B = tensor("INPUT0", "INT32", [1, 4]), tensor("INPUT1", "INT32", [1, 4])
ROW = i32(1, 2, 3, 4)
ROWS = (ROW, ROW)
TYPED_A = tensor("INPUT0", "INT32", [1, 4], int_contents=[1, 2, 3, 4])
TYPED_B = tensor("INPUT1", "INT32", [1, 4], int_contents=[1, 1, 1, 1])


def add(**fields: Any) -> dict[str, Any]:
    return request("add_sub", A, B, raw=ROWS, **fields)


def repeat(number: int, **fields: Any) -> dict[str, Any]:
    return request("repeat", tensor("N", "INT32", [1]), raw=(i32(number),), **fields)


def trouble(code: int, **fields: Any) -> dict[str, Any]:
    return request("trouble", tensor("CODE", "INT32", [1, 1]), raw=(i32(code),), **fields)


def summed(value: int, sequence: Any, rows: int = 1, **flags: bool) -> dict[str, Any]:
    kind = "string_param" if isinstance(sequence, str) else "int64_param"
    parameters = {key: {"bool_param": flag} for key, flag in flags.items()}
    return request(
        "sum",
        tensor("IN", "INT32", [rows, 1]),
        raw=(i32(*[value] * rows),),
        parameters={"sequence_id": {kind: sequence}, **parameters},
    )


# --------------------------------------------------------------------------------------------------------------- calls


def calls() -> Iterator[Ask]:
    yield from _metadata()
    yield from _infer()
    yield from _contents()
    yield from _errors()
    yield from _parameters()
    yield from _classification()
    yield from _models()
    yield from _sequences()
    yield from _streams()
    yield from _settings()
    yield from _memory()
    yield from _repository()
    yield from _statistics()


def _metadata() -> Iterator[Ask]:
    yield ask("live", "ServerLive")
    yield ask("ready", "ServerReady")
    for name, version in (("add_sub", ""), ("add_sub", "1"), ("add_sub", "9"), ("add_sub", "x"), ("nobody", "")):
        yield ask(f"ready {name} {version!r}", "ModelReady", name=name, version=version)
        yield ask(f"metadata {name} {version!r}", "ModelMetadata", name=name, version=version)
    for name, version in (
        ("versions", ""),
        ("versions", "2"),
        ("group", ""),
        ("sum", ""),
        ("auto", ""),
        ("repeat", ""),
    ):
        yield ask(f"metadata {name} {version!r}", "ModelMetadata", name=name, version=version)
    yield ask("metadata of no name", "ModelMetadata")
    for name in ("add_sub", "versions", "group", "sum", "auto", "repeat", "upper", "unbatched", "facts"):
        yield ask(f"config {name}", "ModelConfig", name=name)
    yield ask("config nobody", "ModelConfig", name="nobody")
    yield ask("config add_sub 9", "ModelConfig", name="add_sub", version="9")


def _infer() -> Iterator[Ask]:
    yield ask("add", "ModelInfer", **add())
    yield ask("add, id", "ModelInfer", **add(id="42"))
    yield ask("add, version", "ModelInfer", **add(model_version="1"))
    yield ask("add, one output", "ModelInfer", **add(outputs=[wanted("OUTPUT1")]))
    yield ask("add, outputs turned", "ModelInfer", **add(outputs=[wanted("OUTPUT1"), wanted("OUTPUT0")]))
    yield infer("add, inputs turned", "add_sub", B, A, raw=(i32(1, 1, 1, 1), ROW))
    yield infer("group", "group", tensor("A", "INT32", [1, 4]), tensor("B", "INT32", [1, 4]), raw=ROWS)
    yield infer("upper", "upper", tensor("TEXT", "BYTES", [2, 1]), raw=(text("hällo".encode(), b""),))
    yield infer("unbatched", "unbatched", tensor("IN", "FP32", [2, 3]), raw=(f32(1, 2, 3, 4, 5, 6.5),))
    yield infer("version 2", "versions", tensor("IN", "INT32", [1]), raw=(i32(7),), model_version="2")
    yield infer("zero elements", "echo_INT32", tensor("IN", "INT32", [0]), raw=(b"",))
    yield infer("extra raw", "echo_INT32", tensor("IN", "INT32", [1]), raw=(i32(1), i32(2)))


def _contents() -> Iterator[Ask]:
    fields: dict[str, tuple[str, list[Any]]] = {
        "BOOL": ("bool_contents", [True, False]),
        "INT8": ("int_contents", [-1, 100]),
        "INT16": ("int_contents", [-1, 100]),
        "INT32": ("int_contents", [-1, 100]),
        "INT64": ("int64_contents", [-1, 2**40]),
        "UINT8": ("uint_contents", [1, 200]),
        "UINT16": ("uint_contents", [1, 200]),
        "UINT32": ("uint_contents", [1, 200]),
        "UINT64": ("uint64_contents", [1, 2**63]),
        "FP32": ("fp32_contents", [1.5, -0.0]),
        "FP64": ("fp64_contents", [1.5, -0.0]),
        "BYTES": ("bytes_contents", [b"ab", b""]),
    }
    for datatype, (field, values) in fields.items():
        yield infer(f"contents {datatype}", f"echo_{datatype}", tensor("IN", datatype, [2], **{field: values}))
    yield infer("contents FP16", "echo_FP16", tensor("IN", "FP16", [2], fp32_contents=[1.0, 2.0]))
    yield infer("raw FP16", "echo_FP16", tensor("IN", "FP16", [2]), raw=(b"\0\x3c\0\x40",))
    yield infer("contents, both inputs", "add_sub", TYPED_A, TYPED_B)
    yield infer("contents and raw", "add_sub", TYPED_A, B, raw=(ROW,))
    yield infer("raw and contents", "add_sub", A, TYPED_B, raw=(ROW,))
    yield infer("no data", "add_sub", A, B)
    yield infer("one raw of two", "add_sub", A, B, raw=(ROW,))
    yield infer("contents, too few", "echo_INT32", tensor("IN", "INT32", [3], int_contents=[1, 2]))
    yield infer("contents, too many", "echo_INT32", tensor("IN", "INT32", [1], int_contents=[1, 2]))
    yield infer("contents, none", "echo_INT32", tensor("IN", "INT32", [0], contents={}))
    yield infer("contents, wrong field", "echo_INT32", tensor("IN", "INT32", [2], fp32_contents=[1, 2]))
    yield infer("contents, bytes for numbers", "echo_FP32", tensor("IN", "FP32", [1], bytes_contents=[b"abcd"]))
    yield infer("contents, two fields", "echo_INT32", tensor("IN", "INT32", [1], int_contents=[1], fp32_contents=[1]))
    yield infer("contents, other integers", "echo_UINT32", tensor("IN", "UINT32", [2], int_contents=[1, 2]))
    yield infer("contents, texts too few", "echo_BYTES", tensor("IN", "BYTES", [3], bytes_contents=[b"a", b"b"]))
    yield infer("contents, texts too many", "echo_BYTES", tensor("IN", "BYTES", [1], bytes_contents=[b"a", b"b"]))


def _errors() -> Iterator[Ask]:
    long = tensor("INPUT0", "INT32", [9, 4]), tensor("INPUT1", "INT32", [9, 4])
    yield infer("unknown model", "nobody", A, raw=(ROW,))
    yield infer("no model", "", A, raw=(ROW,))
    yield ask("unknown version", "ModelInfer", **add(model_version="7"))
    yield ask("version is no number", "ModelInfer", **add(model_version="x"))
    yield ask("version -1", "ModelInfer", **add(model_version="-1"))
    yield infer("missing input", "add_sub", A, raw=(ROW,))
    yield infer("missing input, id", "add_sub", A, raw=(ROW,), id="x")
    yield infer("no inputs", "add_sub")
    yield infer("three inputs", "add_sub", A, B, tensor("C", "INT32", [1, 4]), raw=(*ROWS, ROW))
    yield infer("wrong name", "add_sub", A, tensor("INPUT9", "INT32", [1, 4]), raw=ROWS)
    yield infer("input twice", "add_sub", A, A, raw=ROWS)
    yield infer("wrong dtype", "add_sub", A, tensor("INPUT1", "FP32", [1, 4]), raw=ROWS)
    yield infer("unknown datatype", "add_sub", A, tensor("INPUT1", "int32", [1, 4]), raw=ROWS)
    yield infer("wrong shape", "add_sub", A, tensor("INPUT1", "INT32", [1, 3]), raw=(ROW, i32(1, 2, 3)))
    yield infer("wrong shape, unbatched", "unbatched", tensor("IN", "FP32", [3, 1]), raw=(f32(1, 2, 3),))
    yield infer("shape against bytes", "add_sub", A, B, raw=(ROW, ROW[:-1]))
    yield infer("unequal batch", "add_sub", A, tensor("INPUT1", "INT32", [2, 4]), raw=(ROW, ROW * 2))
    yield infer("batch too large", "add_sub", *long, raw=(ROW * 9, ROW * 9))
    yield infer("no shape", "add_sub", A, tensor("INPUT1", "INT32", []), raw=ROWS)
    yield ask("unknown output", "ModelInfer", **add(outputs=[wanted("nothing")]))
    yield ask("decoupled", "ModelInfer", **repeat(1))
    yield infer("text cut", "echo_BYTES", tensor("IN", "BYTES", [1]), raw=(struct.pack("<I", 5) + b"abc",))
    yield infer("length cut", "echo_BYTES", tensor("IN", "BYTES", [1]), raw=(b"\1\0",))
    yield infer("texts too few", "echo_BYTES", tensor("IN", "BYTES", [2]), raw=(text(b"a"),))
    yield infer("texts too many", "echo_BYTES", tensor("IN", "BYTES", [1]), raw=(text(b"a", b"b"),))


def _parameters() -> Iterator[Ask]:
    given: dict[str, dict[str, Any]] = {
        "scheduling": {"priority": {"uint64_param": 1}, "timeout": {"int64_param": 10**9}},
        "own": {"a": {"string_param": "b"}, "n": {"int64_param": 1}, "t": {"bool_param": True}},
        "double": {"f": {"double_param": 1.5}},
        "uint64": {"u": {"uint64_param": 1}},
        "of no type": {"u": {}},
        "reserved": {"triton_x": {"int64_param": 1}},
        "final of a single answer": FINAL,
        "priority as text": {"priority": {"string_param": "1"}},
        "negative priority": {"priority": {"int64_param": -1}},
        "timeout as text": {"timeout": {"string_param": "1"}},
        "sequence_start as number": {"sequence_start": {"int64_param": 1}},
        "sequence_end as text": {"sequence_end": {"string_param": "x"}},
        "sequence_id as bool": {"sequence_id": {"bool_param": True}},
        "long sequence_id": {"sequence_id": {"string_param": "x" * 129}},
    }
    fields = {"outputs": [wanted("PARAMETERS"), wanted("ID")], "id": "i"}
    for name, parameters in given.items():
        one = tensor("IN", "INT32", [1])
        yield infer(f"parameters, {name}", "facts", one, raw=(i32(1),), parameters=parameters, **fields)


def _classification() -> Iterator[Ask]:
    ranked = i32(5, 9, 9, 1)
    for name, parameters in (
        ("2", {"int64_param": 2}),
        ("9", {"int64_param": 9}),
        ("0", {"int64_param": 0}),
        ("-1", {"int64_param": -1}),
        ("text", {"string_param": "2"}),
        ("unsigned", {"uint64_param": 2}),
    ):
        outputs = [wanted("OUTPUT1", classification=parameters)]
        yield infer(f"classes, {name}", "add_sub", A, B, raw=(ranked, i32(0, 0, 0, 0)), outputs=outputs)
    two = [wanted("OUT", classification={"int64_param": 2})]
    values = {"INT8": b"\3\1\7", "FP32": f32(3.3, 1, 1e20), "FP64": struct.pack("<3d", 3.3, -0.0, 1e-10)}
    for datatype, raw in values.items():
        yield infer(f"classes of {datatype}", f"echo_{datatype}", tensor("IN", datatype, [3]), raw=(raw,), outputs=two)
    for datatype, raw in (("BOOL", b"\1\0\1"), ("FP16", b"\0\x3c" * 3)):
        yield infer(f"classes of {datatype}", f"echo_{datatype}", tensor("IN", datatype, [3]), raw=(raw,), outputs=two)


def _models() -> Iterator[Ask]:
    for code in (5, -1, -2, -3, -4, -5, -6, -7, 100, 101, 106):
        yield ask(f"trouble {code}", "ModelInfer", **trouble(code, id="t"))


def _sequences() -> Iterator[Ask]:
    for sequence in (77, "seventy-seven"):
        if sequence == 77:  # the model's control is a number
            yield ask("sequence, first", "ModelInfer", **summed(5, sequence, sequence_start=True))
            yield ask("sequence, next", "ModelInfer", **summed(6, sequence))
            yield ask("sequence, last", "ModelInfer", **summed(7, sequence, sequence_end=True))
        yield ask(f"sequence {sequence}, after its end", "ModelInfer", **summed(8, sequence))
    yield ask("sequence 0", "ModelInfer", **summed(8, 0, sequence_start=True))
    yield ask("sequence ''", "ModelInfer", **summed(8, "", sequence_start=True))
    yield infer("sequence, no id", "sum", tensor("IN", "INT32", [1, 1]), raw=(i32(1),))
    yield ask("sequence, batch", "ModelInfer", **summed(1, 9, rows=2, sequence_start=True))


def _streams() -> Iterator[Ask]:
    yield stream("nothing")
    yield stream("add", add(id="1"))
    yield stream("add, thrice", add(id="1"), add(id="2", outputs=[wanted("OUTPUT0")]), add())
    yield stream("add, final asked for", add(id="1", parameters=FINAL))
    yield stream("classes", add(outputs=[wanted("OUTPUT1", classification={"int64_param": 2})]))
    yield stream("typed", request("add_sub", TYPED_A, TYPED_B, id="1"))
    for number in (0, 1, 3):
        yield stream(f"repeat {number}", repeat(number, id="r"))
        yield stream(f"repeat {number}, final asked for", repeat(number, id="r", parameters=FINAL))
    yield stream("repeat 2, final not wanted", repeat(2, parameters={next(iter(FINAL)): {"bool_param": False}}))
    yield stream("repeat 1 of version 1, final asked for", repeat(1, model_version="1", parameters=FINAL))
    yield stream("repeat, error", repeat(-1, id="r"))
    yield stream("repeat, error, final asked for", repeat(-1, id="r", parameters=FINAL))
    yield stream("repeat, error, status asked for", repeat(-1, id="r"), triton_grpc_error="true")
    yield stream("final of no boolean", repeat(1, parameters={next(iter(FINAL)): {"int64_param": 1}}))
    yield stream("unknown model", request("nobody", A, raw=(ROW,), id="u"))
    yield stream("unknown model, no id", request("nobody", A, raw=(ROW,)))
    yield stream("unknown model, status asked for", request("nobody", A, raw=(ROW,)), triton_grpc_error="true")
    yield stream("missing input", request("add_sub", A, raw=(ROW,), id="m"))
    yield stream("missing input, status asked for", request("add_sub", A, raw=(ROW,), id="m"), triton_grpc_error="true")
    yield stream("no data", request("add_sub", A, B, id="d"))
    yield stream("bad version", add(model_version="x", id="v"))
    yield stream("reserved", add(parameters={"triton_x": {"int64_param": 1}}, id="v"))
    yield stream("trouble", trouble(-4, id="t"))
    yield stream("trouble, raised", trouble(100, id="t"))
    yield stream("trouble, status asked for", trouble(-4, id="t"), triton_grpc_error="true")
    yield stream("trouble between", trouble(1, id="1"), trouble(-4, id="2"), trouble(3, id="3"))
    flags: Any = ({"sequence_start": True}, {}, {"sequence_end": True})
    yield stream("sequence", *(summed(number, 78, **flag) for number, flag in enumerate(flags)))
    yield stream("sequence, no start", summed(1, 79))
    yield stream("sequence, status asked for", summed(1, 79), triton_grpc_error="true")


def _settings() -> Iterator[Ask]:
    def trace(name: str, model_name: str = "", **settings: Any) -> Ask:
        given = {key: {"value": values} for key, values in settings.items()}
        return ask(f"trace, {name}", "TraceSetting", model_name=model_name, settings=given)

    yield trace("all")
    yield trace("of a model", "add_sub")
    yield trace("set", trace_rate=["500"], trace_level=["TIMESTAMPS"])
    yield trace("set of a model", "add_sub", trace_count=["5"])
    yield trace("clear of a model", "add_sub", trace_count=[])
    yield trace("clear", trace_rate=[], trace_level=[])
    yield trace("wrong rate", trace_rate=["x"])
    yield trace("two rates", trace_rate=["1", "2"])
    yield trace("wrong level", trace_level=["LOUD"])
    yield trace("unknown key", trace_colour=["x"])
    yield trace("file", trace_file=["x"])
    yield trace("of nobody", "nobody")
    yield trace("set of nobody", "nobody", trace_rate=["1"])

    def log(name: str, **settings: Any) -> Ask:
        return ask(f"log, {name}", "LogSettings", settings=settings)

    yield log("all")
    yield log("set", log_verbose_level={"uint32_param": 1}, log_info={"bool_param": False})
    yield log("back", log_verbose_level={"uint32_param": 0}, log_info={"bool_param": True})
    yield log("wrong type", log_info={"uint32_param": 1})
    yield log("wrong level", log_verbose_level={"string_param": "1"})
    yield log("wrong format", log_format={"string_param": "x"})
    yield log("format of no text", log_format={"bool_param": True})
    yield log("file", log_file={"string_param": "x"})
    yield log("unknown key", log_colour={"string_param": "x"})


def _memory() -> Iterator[Ask]:
    for kind in ("System", "Cuda"):
        yield ask(f"{kind} status", f"{kind}SharedMemoryStatus")
        yield ask(f"{kind} status of one", f"{kind}SharedMemoryStatus", name="r")
        yield ask(f"{kind} unregister", f"{kind}SharedMemoryUnregister")
        yield ask(f"{kind} unregister one", f"{kind}SharedMemoryUnregister", name="r")
    register = "SystemSharedMemoryRegister"
    yield ask("register, no object", register, name="r", key="/tensorgate_no", byte_size=1)
    yield ask("register, reserved", register, name="r", key="triton_python_backend_shm_region_1", byte_size=1)
    yield ask("register, cuda", "CudaSharedMemoryRegister", name="r", raw_handle=b"\0" * 64, byte_size=1)
    where = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 8}}
    placed = tensor("IN", "FP32", [2])
    for name, parameters in (
        ("unknown region", where),
        ("no size", {"shared_memory_region": {"string_param": "r"}}),
        ("region of no text", where | {"shared_memory_region": {"int64_param": 1}}),
        ("size of no number", where | {"shared_memory_byte_size": {"string_param": "8"}}),
        ("offset of no number", where | {"shared_memory_offset": {"string_param": "8"}}),
    ):
        yield infer(f"memory, {name}", "echo_FP32", placed | {"parameters": parameters})
    yield infer(
        "memory and contents", "echo_FP32", tensor("IN", "FP32", [1], fp32_contents=[1]) | {"parameters": where}
    )
    both = [wanted("OUT", classification={"int64_param": 1}, **where)]
    for name, outputs in (("unknown region", [wanted("OUT", **where)]), ("and classes", both)):
        yield infer(f"memory of an output, {name}", "echo_FP32", placed, raw=(f32(1, 2),), outputs=outputs)


def _repository() -> Iterator[Ask]:
    yield ask("index", "RepositoryIndex")
    yield ask("index, ready", "RepositoryIndex", ready=True)
    yield ask("index of a repository", "RepositoryIndex", repository_name="x")
    for verb in ("Load", "Unload"):
        method = f"RepositoryModel{verb}"
        yield ask(verb, method, model_name="add_sub")
        yield ask(f"{verb} of a repository", method, repository_name="x", model_name="add_sub")
        yield ask(f"{verb}, unknown parameter", method, model_name="add_sub", parameters={"x": {"int64_param": 1}})
    load = "RepositoryModelLoad"
    yield ask("Load, config of no text", load, model_name="add_sub", parameters={"config": {"int64_param": 1}})
    yield ask("Load, file of text", load, model_name="add_sub", parameters={"file:1/m": {"string_param": "x"}})
    flag = {"unload_dependents": {"int64_param": 1}}
    yield ask("Unload, flag of no boolean", "RepositoryModelUnload", model_name="add_sub", parameters=flag)


def _statistics() -> Iterator[Ask]:
    for name, version in (("upper", ""), ("upper", "1"), ("versions", ""), ("group", "")):
        yield ask(f"statistics {name} {version!r}", "ModelStatistics", name=name, version=version)
    yield ask("statistics nobody", "ModelStatistics", name="nobody")
    yield ask("statistics add_sub 9", "ModelStatistics", name="add_sub", version="9")
    yield ask("statistics add_sub x", "ModelStatistics", name="add_sub", version="x")


# ------------------------------------------------------------------------------------------------------------- answers


def answer(stub: Any, one: Ask) -> dict[str, Any]:
    """The status of a call, and its messages as documents."""
    method = getattr(stub, one.method)
    kind = "ModelInfer" if one.method == "ModelStreamInfer" else one.method
    sent = [getattr(service_pb2, f"{kind}Request")(**fields) for fields in one.messages]
    options = {"timeout": ANSWERS_WITHIN_S, "metadata": one.metadata}
    got: list[Any] = []
    try:
        if one.method == "ModelStreamInfer":
            got.extend(method(iter(sent), **options))
        else:
            got.append(method(sent[0], **options))
    except grpc.RpcError as error:
        return _status(error.code().name, error.details(), got)
    return _status("OK", "", got)


def _status(code: str, details: str, messages: list[Any]) -> dict[str, Any]:
    return {"code": code, "details": details, "messages": [_document(message) for message in messages]}


def _document(message: Any) -> Any:
    return without_clock(MessageToDict(message, preserving_proto_field_name=True))


def without_clock(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: without_clock(value) for key, value in document.items() if key not in CLOCK}
    return [without_clock(each) for each in document] if isinstance(document, list) else document


def main(address: str, repository: str = "") -> None:
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = {one.name: answer(stub, one) for one in calls()}
    text = json.dumps(answers, indent=1, ensure_ascii=False) + "\n"
    sys.stdout.write(text.replace(repository, "REPOSITORY") if repository else text)


if __name__ == "__main__":
    main(*sys.argv[1:])
