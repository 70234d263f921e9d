"""What is asked of a real Triton and of the gateway: (name, method, path, body, headers), bodies as clients write them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple


class Ask(NamedTuple):
    """One HTTP request. `body` is bytes, or anything that is sent as JSON."""

    name: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's default is never changed


LENGTH = "Inference-Header-Content-Length"


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        document["data"] = data
    if parameters:
        document["parameters"] = parameters
    return document


def infer(model: str, *inputs: dict[str, Any], outputs: Any = None, **members: Any) -> tuple[str, str, Any]:
    document: dict[str, Any] = {"inputs": list(inputs), **members}
    if outputs is not None:
        document["outputs"] = outputs
    return "POST", f"/v2/models/{model}/infer", document


def binary(head: Any, data: bytes, **headers: str) -> tuple[bytes, dict[str, str]]:
    text = json.dumps(head).encode()
    return text + data, {LENGTH: str(len(text)), **headers}


ROW = [1, 2, 3, 4]
A, B = tensor("INPUT0", "INT32", [1, 4], ROW), tensor("INPUT1", "INT32", [1, 4], ROW)
LABELLED = [{"name": "OUTPUT1", "parameters": {"classification": 2}}]


def everything() -> Iterator[Ask]:
    yield from _metadata()
    yield from _infer()
    yield from _errors()
    yield from _datatypes()
    yield from _classification()
    yield from _binary()
    yield from _models()
    yield from _generate()
    yield from _others()


def _metadata() -> Iterator[Ask]:
    for path in (
        "/v2/health/live",
        "/v2/models/add_sub",
        "/v2/models/versions",
        "/v2/models/versions/versions/2",
        "/v2/models/group",
        "/v2/models/sum",
        "/v2/models/auto",
        "/v2/models/nobody",
        "/v2/models/add_sub/versions/9",
        "/v2/models/add_sub/versions/99999999999999999999",
        "/v2/models/add_sub/versions/x",
        "/v2/models/add_sub/",
        "/v2/nothing",
        "/v2/models/add_sub/infer",
        "/v2/models/add_sub/trace/setting",
        "/v2/models/nobody/config",
        "/v2/models/nobody/stats",
        "/v2/models/add_sub/versions/9/stats",
    ):
        yield Ask(f"GET {path}", "GET", path)
    yield Ask("HEAD", "HEAD", "/v2/models/add_sub")
    yield Ask("POST metadata", "POST", "/v2/models/add_sub", {})


def _infer() -> Iterator[Ask]:
    yield Ask("add", *infer("add_sub", A, B))
    yield Ask("add, id", *infer("add_sub", A, B, id="42"))
    yield Ask("add, one output", *infer("add_sub", A, B, outputs=[{"name": "OUTPUT1"}]))
    yield Ask("add, empty outputs", *infer("add_sub", A, B, outputs=[]))
    yield Ask("add, nested", *infer("add_sub", tensor("INPUT0", "INT32", [2, 4], [ROW, ROW]), tensor("INPUT1", "INT32", [2, 4], ROW + ROW)))  # fmt: skip
    yield Ask(
        "add, parameters", *infer("add_sub", A, B, parameters={"a": 1, "b": "x", "priority": 1, "timeout": 10**9})
    )
    yield Ask("group", *infer("group", tensor("A", "INT32", [1, 4], ROW), tensor("B", "INT32", [1, 4], ROW)))
    yield Ask("upper", *infer("upper", tensor("TEXT", "BYTES", [2, 1], ["hällo", ""])))
    yield Ask("unbatched", *infer("unbatched", tensor("IN", "FP32", [2, 3], [1, 2, 3, 4, 5, 6.5])))
    yield Ask("auto", *infer("auto", tensor("IN", "FP32", [1, 2], [1, 2])))
    yield Ask(
        "version 2", "POST", "/v2/models/versions/versions/2/infer", {"inputs": [tensor("IN", "INT32", [1], [7])]}
    )
    yield Ask("latest", *infer("versions", tensor("IN", "INT32", [1], [7])))
    yield Ask("zero elements", *infer("echo_INT32", tensor("IN", "INT32", [0], [])))
    yield Ask("numbers", *infer("echo_FP32", tensor("IN", "FP32", [4], [1.5, -2, 1e-3, 100000])))


def _errors() -> Iterator[Ask]:
    yield Ask("unknown model", *infer("nobody", A))
    yield Ask("unknown version", "POST", "/v2/models/add_sub/versions/7/infer", {"inputs": [A, B]})
    yield Ask("missing input", *infer("add_sub", A))
    yield Ask("missing input, id", *infer("add_sub", A, id="x"))
    yield Ask("wrong name", *infer("add_sub", A, tensor("INPUT9", "INT32", [1, 4], ROW)))
    yield Ask("wrong dtype", *infer("add_sub", A, tensor("INPUT1", "FP32", [1, 4], ROW)))
    yield Ask("wrong shape", *infer("add_sub", A, tensor("INPUT1", "INT32", [1, 3], [1, 2, 3])))
    yield Ask("wrong shape, unbatched", *infer("unbatched", tensor("IN", "FP32", [3, 1], [1, 2, 3])))
    yield Ask("unequal batch", *infer("add_sub", A, tensor("INPUT1", "INT32", [2, 4], ROW + ROW)))
    yield Ask("batch too large", *infer("add_sub", tensor("INPUT0", "INT32", [9, 4], ROW * 9), tensor("INPUT1", "INT32", [9, 4], ROW * 9)))  # fmt: skip
    yield Ask("unknown output", *infer("add_sub", A, B, outputs=[{"name": "nothing"}]))
    yield Ask("invalid datatype", *infer("add_sub", tensor("INPUT0", "int32", [1, 4], ROW), B))
    yield Ask("decoupled", *infer("repeat", tensor("N", "INT32", [1], [2])))
    yield Ask("reserved", *infer("add_sub", A, B, parameters={"triton_x": 1}))
    yield Ask("parameter type", *infer("add_sub", A, B, parameters={"p": [1]}))
    yield Ask("compression", "POST", "/v2/models/add_sub/infer", b"{}", {"Content-Encoding": "br"})


def _datatypes() -> Iterator[Ask]:
    values: dict[str, Any] = {"BOOL": [True, False], "BYTES": ["a", ""], "FP32": [1.5, 0], "FP64": [1.5, 0]}
    for datatype in ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64", "BYTES"):  # fmt: skip
        yield Ask(f"echo {datatype}", *infer(f"echo_{datatype}", tensor("IN", datatype, [2], values.get(datatype, [1, 100]))))  # fmt: skip
    yield Ask("echo FP16", *infer("echo_FP16", tensor("IN", "FP16", [1], [1])))


def _classification() -> Iterator[Ask]:
    yield Ask("classes", *infer("add_sub", tensor("INPUT0", "INT32", [1, 4], [5, 9, 9, 1]), tensor("INPUT1", "INT32", [1, 4], [0, 0, 0, 0]), outputs=LABELLED))  # fmt: skip
    yield Ask("classes, too many", *infer("add_sub", A, B, outputs=[{"name": "OUTPUT0", "parameters": {"classification": 9}}]))  # fmt: skip
    yield Ask("classes, 0", *infer("add_sub", A, B, outputs=[{"name": "OUTPUT0", "parameters": {"classification": 0}}]))
    for datatype in ("INT8", "UINT16", "INT64", "UINT64", "FP32", "FP64"):
        yield Ask(f"classes of {datatype}", *infer(f"echo_{datatype}", tensor("IN", datatype, [4], [3, 1, 7, 3]), outputs=[{"name": "OUT", "parameters": {"classification": 3}}]))  # fmt: skip
    yield Ask("classes of BOOL", *infer("echo_BOOL", tensor("IN", "BOOL", [2], [True, False]), outputs=[{"name": "OUT", "parameters": {"classification": 1}}]))  # fmt: skip


def _binary() -> Iterator[Ask]:
    data = struct.pack("<2f", 1, 2)
    head = {"inputs": [tensor("IN", "FP32", [2], binary_data_size=8)]}
    both = {**head, "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}
    path = "/v2/models/echo_FP32/infer"
    for name, document, payload in (
        ("binary in", head, data),
        ("binary both", both, data),
        ("binary by default", {**head, "parameters": {"binary_data_output": True}}, data),
        ("binary, short", head, data[:-1]),
        ("binary, long", head, data + b"x"),
        ("binary, wrong size", {"inputs": [tensor("IN", "FP32", [3], binary_data_size=8)]}, data),
        ("two sources", {"inputs": [tensor("IN", "FP32", [2], [1, 2], binary_data_size=8)]}, data),
        ("no source", {"inputs": [tensor("IN", "FP32", [2])]}, b""),
    ):
        body, headers = binary(document, payload)
        yield Ask(name, "POST", path, body, headers)
    yield Ask("raw", "POST", path, data, {LENGTH: "0"})
    yield Ask("raw, several inputs", "POST", "/v2/models/add_sub/infer", data, {LENGTH: "0"})
    yield Ask("header beyond", "POST", path, data, {LENGTH: "99"})
    text = struct.pack("<I", 5) + b"abc"
    body, headers = binary({"inputs": [tensor("IN", "BYTES", [1], binary_data_size=len(text))]}, text)
    yield Ask("string cut", "POST", "/v2/models/echo_BYTES/infer", body, headers)


def _models() -> Iterator[Ask]:
    for code in (5, -1, -2, -3, -4, -5, -6, -7, 100, 101, 102, 103, 104, 105, 106):
        yield Ask(f"trouble {code}", *infer("trouble", tensor("CODE", "INT32", [1, 1], [code])))
    yield Ask("facts", *infer("facts", tensor("IN", "INT32", [1], [1]), id="i", parameters={"z": 1, "a": "b", "t": True, "f": 1.5}))  # fmt: skip
    yield Ask("facts, one", *infer("facts", tensor("IN", "INT32", [1], [1]), outputs=[{"name": "WANTED"}]))
    pair = tensor("IN", "FP32", [2, 1], [1, 2])
    yield Ask("call", *infer("caller", pair, tensor("WHOM", "BYTES", [1], ["unbatched"])))
    yield Ask("call nobody", *infer("caller", pair, tensor("WHOM", "BYTES", [1], ["nobody"])))
    for name, value, flags in (
        ("first", 5, {"sequence_start": True}),
        ("next", 6, {}),
        ("last", 7, {"sequence_end": True}),
        ("after the end", 8, {}),
    ):
        parameters = {"sequence_id": 77, **flags}
        yield Ask(f"sequence, {name}", *infer("sum", tensor("IN", "INT32", [1, 1], [value]), parameters=parameters))
    yield Ask("sequence, no id", *infer("sum", tensor("IN", "INT32", [1, 1], [1])))
    yield Ask("sequence, batch", *infer("sum", tensor("IN", "INT32", [2, 1], [1, 2]), parameters={"sequence_id": 9, "sequence_start": True}))  # fmt: skip


def _generate() -> Iterator[Ask]:
    for model, body in (
        ("upper", {"TEXT": "hello", "id": "7"}),
        ("upper", {"TEXT": ["a", "b"], "x": 1}),
        ("unbatched", {"IN": [1, 2, 3, 4]}),
        ("unbatched", {"IN": [1, 2, 3]}),
        ("repeat", {"N": 1}),
        ("repeat", {"N": 0}),
        ("repeat", {"N": 3}),
        ("repeat", {"N": -1}),
        ("repeat", {"N": "x"}),
        ("repeat", {"N": 1, "parameters": 3}),
        ("repeat", {"N": 1, "p": {}}),
        ("repeat", {}),
        ("repeat", [1]),
        ("trouble", {"CODE": -4}),
        ("nobody", {}),
    ):
        for verb in ("generate", "generate_stream"):
            yield Ask(f"{verb} {model} {json.dumps(body)}", "POST", f"/v2/models/{model}/{verb}", body)


def _others() -> Iterator[Ask]:
    yield Ask("trace", "GET", "/v2/trace/setting")
    yield Ask("trace of a model", "GET", "/v2/models/add_sub/trace/setting")
    yield Ask("trace, set", "POST", "/v2/trace/setting", {"trace_rate": "500", "trace_level": ["TIMESTAMPS"]})
    yield Ask("trace, clear", "POST", "/v2/trace/setting", {"trace_rate": None, "trace_level": None})
    yield Ask("trace, wrong", "POST", "/v2/trace/setting", {"trace_rate": "x"})
    yield Ask("trace, unknown key", "POST", "/v2/trace/setting", {"trace_colour": "x"})
    yield Ask("trace, file", "POST", "/v2/trace/setting", {"trace_file": "x"})
    yield Ask("trace, nobody", "GET", "/v2/models/nobody/trace/setting")
    yield Ask("logging", "GET", "/v2/logging")
    yield Ask("logging, set", "POST", "/v2/logging", {"log_verbose_level": 1, "log_info": False})
    yield Ask("logging, back", "POST", "/v2/logging", {"log_verbose_level": 0, "log_info": True})
    yield Ask("logging, wrong", "POST", "/v2/logging", {"log_info": 3})
    yield Ask("logging, file", "POST", "/v2/logging", {"log_file": "x"})
    yield Ask("index", "POST", "/v2/repository/index", {})
    yield Ask("load", "POST", "/v2/repository/models/add_sub/load", {})
    yield Ask("unload", "POST", "/v2/repository/models/add_sub/unload", {})
    yield Ask("shm status", "GET", "/v2/systemsharedmemory/status")
    yield Ask("shm unknown", "GET", "/v2/systemsharedmemory/region/r/status")
    yield Ask("shm unregister", "POST", "/v2/systemsharedmemory/unregister", {})
    yield Ask("shm unregister one", "POST", "/v2/systemsharedmemory/region/r/unregister", {})
    yield Ask("shm no key", "POST", "/v2/systemsharedmemory/region/r/register", {"byte_size": 1})
    yield Ask("shm no object", "POST", "/v2/systemsharedmemory/region/r/register", {"key": "/tensorgate_no", "offset": 0, "byte_size": 1})  # fmt: skip
    yield Ask("cuda status", "GET", "/v2/cudasharedmemory/status")
    yield Ask("cuda unregister", "POST", "/v2/cudasharedmemory/unregister", {})
    yield Ask("cuda register", "POST", "/v2/cudasharedmemory/region/r/register", {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 1})  # fmt: skip
    yield Ask("shm input", *infer("echo_FP32", tensor("IN", "FP32", [2], shared_memory_region="r", shared_memory_byte_size=8)))  # fmt: skip
    for model in ("add_sub", "auto", "sum", "group", "repeat", "versions", "unbatched"):
        yield Ask(f"config {model}", "GET", f"/v2/models/{model}/config")
