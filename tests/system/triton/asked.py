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
    yield from _bodies()
    yield from _members()
    yield from _several_mistakes()
    yield from _more_generate()


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


def _bodies() -> Iterator[Ask]:
    """Bodies that are no JSON, or no request."""
    path = "/v2/models/echo_INT32/infer"
    for number, body in enumerate(
        (
            b"", b" ", b"{", b"}", b"[]", b"[1]", b"1", b"null", b'"x"', b"{}", b'{"inputs"}', b'{"inputs":}', b'{"inputs":[}',
            b'{"inputs":[{]}', b'{"inputs":[]} x', b"{'inputs':[]}", b'{"inputs":[],}', b'{"inputs":[tru]}', b'{"a":1 "b":2}',
            b'{"a":"\\x"}', b'{"a":"\\ud800"}', b'{"a":"\xff"}', b'{"a":01}', b'{"a":1.}', b'{"a":-}', b'{"a":1e}', b'{"a":.5}',
            b'{"a":"x\n"}', b'{"a":"unclosed', b'{"a":1e999}', b"\xef\xbb\xbf{}", b'{"a":+1}', b'{"a":nan}',
        )
    ):  # fmt: skip
        yield Ask(f"body {number} {body!r}", "POST", path, body)


def _members() -> Iterator[Ask]:
    """Members of every wrong type."""
    good = tensor("IN", "INT32", [2], [1, 2])
    odd: tuple[Any, ...] = (None, True, 1, -1, 1.5, "x", [], {}, [1], {"a": 1}, [None], [[]])
    for value in odd:
        text = json.dumps(value)
        yield Ask(f"id {text}", "POST", "/v2/models/echo_INT32/infer", {"id": value, "inputs": [good]})
        yield Ask(f"parameters {text}", "POST", "/v2/models/echo_INT32/infer", {"parameters": value, "inputs": [good]})
        yield Ask(f"inputs {text}", "POST", "/v2/models/echo_INT32/infer", {"inputs": value})
        yield Ask(f"outputs {text}", "POST", "/v2/models/echo_INT32/infer", {"inputs": [good], "outputs": value})
        yield Ask(
            f"parameter {text}", "POST", "/v2/models/echo_INT32/infer", {"inputs": [good], "parameters": {"p": value}}
        )
        for key in ("name", "shape", "datatype", "data", "parameters"):
            yield Ask(f"input {key} {text}", "POST", "/v2/models/echo_INT32/infer", {"inputs": [good | {key: value}]})
        for key in ("binary_data", "classification", "shared_memory_region"):
            output = {"name": "OUT", "parameters": {key: value}}
            yield Ask(
                f"output {key} {text}", "POST", "/v2/models/echo_INT32/infer", {"inputs": [good], "outputs": [output]}
            )
        for key in ("priority", "timeout", "sequence_id", "sequence_start", "binary_data_output", "headers"):
            yield Ask(
                f"{key} {text}", "POST", "/v2/models/echo_INT32/infer", {"inputs": [good], "parameters": {key: value}}
            )
        for datatype in ("BOOL", "UINT8", "INT64", "FP32", "BYTES"):
            body = {"inputs": [tensor("IN", datatype, [1], [value])]}
            yield Ask(f"leaf {datatype} {text}", "POST", f"/v2/models/echo_{datatype}/infer", body)
    for key in ("name", "shape", "datatype", "data"):
        yield Ask(
            f"input without {key}",
            "POST",
            "/v2/models/echo_INT32/infer",
            {"inputs": [{k: v for k, v in good.items() if k != key}]},
        )
    yield Ask("output without name", "POST", "/v2/models/echo_INT32/infer", {"inputs": [good], "outputs": [{}]})
    for number, (shape, data) in enumerate(
        (
            ([2], [1]),
            ([1], [1, 2]),
            ([2], [[1, 2]]),
            ([2, 1], [1, 2]),
            ([0], [1]),
            ([], [1]),
            ([1, 1], [[1]]),
            ([2], [[1], [2]]),
            ([2], [1, [2]]),
        )
    ):
        yield Ask(f"shape {number}", *infer("echo_INT32", tensor("IN", "INT32", shape, data)))
        yield Ask(
            f"shape of text {number}",
            *infer(
                "echo_BYTES",
                tensor("IN", "BYTES", shape, json.loads(json.dumps(data).replace("1", '"a"').replace("2", '"b"'))),
            ),
        )
    for value in (2**31, -(2**31), 2**63, -(2**63), 2**64 - 1):
        yield Ask(f"INT64 {value}", *infer("echo_INT64", tensor("IN", "INT64", [1], [value])))
        yield Ask(f"UINT64 {value}", *infer("echo_UINT64", tensor("IN", "UINT64", [1], [value])))
    yield Ask(
        "nan",
        "POST",
        "/v2/models/echo_FP32/infer",
        b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[4],"data":[NaN,Infinity,-Infinity,Inf]}]}',
    )


def _several_mistakes() -> Iterator[Ask]:
    """Which of several mistakes is told."""
    wrong = tensor("INPUT0", "INT32", [1, 3], [1, 2, 3]), tensor("INPUT1", "INT32", [1, 3], [1, 2, 3])
    yield Ask("both shapes", *infer("add_sub", *wrong))
    yield Ask("both shapes, turned", *infer("add_sub", *wrong[::-1]))
    yield Ask(
        "both datatypes",
        *infer("add_sub", tensor("INPUT0", "FP32", [1, 4], ROW), tensor("INPUT1", "FP32", [1, 4], ROW)),
    )
    yield Ask("both names", *infer("add_sub", tensor("X", "INT32", [1, 4], ROW), tensor("Y", "INT32", [1, 4], ROW)))
    yield Ask("three inputs", *infer("add_sub", A, B, tensor("INPUT2", "INT32", [1, 4], ROW)))
    yield Ask("twice", *infer("add_sub", A, A))
    yield Ask("no inputs", *infer("add_sub"))
    yield Ask("output and input", *infer("add_sub", A, outputs=[{"name": "nothing"}]))
    yield Ask(
        "shape and batch",
        *infer("add_sub", tensor("INPUT0", "INT32", [9, 3], [1] * 27), tensor("INPUT1", "INT32", [9, 3], [1] * 27)),
    )
    yield Ask(
        "datatype and shape",
        *infer("add_sub", tensor("INPUT0", "FP32", [1, 3], [1] * 3), tensor("INPUT1", "INT32", [1, 3], [1] * 3)),
    )
    yield Ask("output twice", *infer("add_sub", A, B, outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]))
    yield Ask("rank", *infer("add_sub", tensor("INPUT0", "INT32", [4], ROW), tensor("INPUT1", "INT32", [4], ROW)))
    yield Ask(
        "batch of none", *infer("add_sub", tensor("INPUT0", "INT32", [0, 4], []), tensor("INPUT1", "INT32", [0, 4], []))
    )
    yield Ask("empty name", *infer("add_sub", tensor("", "INT32", [1, 4], ROW), B))
    yield Ask("query", "GET", "/v2/models/add_sub?x=1")
    yield Ask("version 0", "GET", "/v2/models/add_sub/versions/0")
    yield Ask("version 01", "GET", "/v2/models/add_sub/versions/01")
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        yield Ask(f"{method} infer", method, "/v2/models/add_sub/infer", {})
        yield Ask(f"{method} nowhere", method, "/v2/nowhere", {})
    for path in (
        "/",
        "/v2/models/add_sub/infer/",
        "/v2/models//infer",
        "/V2",
        "/v2/health",
        "/v2/models/add_sub/versions",
        "/v2/models/add_sub/versions/1/ready",
    ):
        yield Ask(f"GET {path}", "GET", path)


def _more_generate() -> Iterator[Ask]:
    for model, body in (
        ("upper", {}),
        ("upper", {"TEXT": None}),
        ("upper", {"TEXT": 1}),
        ("upper", {"TEXT": []}),
        ("upper", {"TEXT": ["a", "b", "c", "d", "e"]}),
        ("upper", {"TEXT": [["a"]]}),
        ("upper", {"TEXT": "a", "parameters": {"x": 1, "y": [1]}}),
        ("upper", {"parameters": {"TEXT": "a"}}),
        ("upper", {"TEXT": "a", "parameters": {"TEXT": "b"}}),
        ("upper", {"TEXT": "a", "id": 3}),
        ("upper", {"TEXT": "a", "p": 1.5, "q": True, "r": "x"}),
        ("upper", {"TEXT": "a", "p": None}),
        ("unbatched", {"IN": 1}),
        ("unbatched", {"IN": [1, 2], "parameters": None}),
        ("facts", {"IN": [1, 2], "z": 1, "a": "b", "id": "q"}),
        ("add_sub", {"INPUT0": ROW, "INPUT1": ROW}),
        ("add_sub", {"INPUT0": ROW + ROW, "INPUT1": ROW}),
        ("add_sub", {"INPUT0": [1], "INPUT1": ROW}),
        ("echo_FP16", {"IN": 1}),
        ("echo_BOOL", {"IN": [True, False]}),
        ("group", {"A": ROW, "B": ROW}),
    ):
        yield Ask(f"generate {model} {json.dumps(body)}", "POST", f"/v2/models/{model}/generate", body)
    for number, text in enumerate((b"", b"{", b"1", b'"x"', b'{"TEXT":"a","TEXT":"b"}')):
        yield Ask(f"generate body {number}", "POST", "/v2/models/upper/generate", text)
    yield Ask("generate version", "POST", "/v2/models/versions/versions/2/generate", {"IN": 5})
    yield Ask("generate wrong version", "POST", "/v2/models/versions/versions/9/generate", {"IN": 5})
    yield Ask("GET generate", "GET", "/v2/models/upper/generate")
