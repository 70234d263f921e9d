"""What each shortcut of the gateway saves: the same request to a gateway with all of them, and to one without one.

The rows are those of gateway/contract/shortcuts.py, each with the kind of request that it was made for. Both gateways
have the same models and one core, in turns; wrk or h2load press from another. `saves` is the processor time that the
server would need more per request without the shortcut, in parts of what it needs with it: the median over rounds.
`slower` is the same of requests per second. Answers are compared first, byte for byte.

A shortcut that saves less than 3 % of the request that it is made for is not worth its lines.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import yaml

from benchmarks import binary_http, h2load, report, wrk
from benchmarks.contest import check_cores
from benchmarks.grpc_infer import ask as ask_grpc
from benchmarks.grpc_wires import INFER, PREDICT, infer_request, predict_request
from benchmarks.servers import HOST, ROOT, Failed, Family, Server, check_port, running
from benchmarks.table import table
from benchmarks.wires import TF_SERVING, V2
from benchmarks.wrk import Load, Round
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract.shortcuts import SHORTCUTS, VARIABLE

PORTS: Final = (18050, 18060)
"""With all shortcuts, and without one: HTTP, and gRPC one above."""
WORTH: Final = 0.03
FEATURES: Final = "abcdefghij"
CLASSIFY: Final = "/tensorflow.serving.PredictionService/Classify"
EPILOG = """
examples:
  python -m benchmarks.shortcuts
  python -m benchmarks.shortcuts --only http_fast_path lone_arrays --rounds 9
"""
MODELS: Final = """
class Same:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        return {name.replace("x", "y"): value for name, value in inputs.items()}


class Scores(Same):
    def infer(self, inputs, request):
        return {"scores": sum(inputs.values())}
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, sent over and over; over gRPC `body` is a message, and `path` a method."""

    what: str
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    connections: int = 0
    """0: as many as the command says."""
    doors: int = 1

    @property
    def is_grpc(self) -> bool:
        return not self.headers


def configuration(port: int) -> dict[str, Any]:
    """The models, and where they are served. `relayed` asks the gateway itself, over gRPC."""
    identity = {"backend": "onnx", "path": str(ROOT / "benchmarks/models/identity"), "device": "cpu"}
    batched = {**identity, "max_batch_size": 32}

    def python(name: str, datatype: str, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
        def specs(names: Sequence[str]) -> list[dict[str, Any]]:
            return [{"name": each, "datatype": datatype, "shape": [-1, -1]} for each in names]

        path = f"models.py:{name}"
        return {"backend": "python", "path": path, "inputs": specs(inputs), "outputs": specs(outputs)}

    flat = python("Same", "FP32", ["x", "xx"], ["y", "yy"])
    for each in (*flat["inputs"], *flat["outputs"]):
        each["shape"] = [-1]
    scores = python("Scores", "FP32", FEATURES, ["scores"])
    upstream = {"dialect": "open_inference", "transport": "grpc", "address": f"{HOST}:{port + 1}", "model": "identity"}
    return {
        "listen": {"http": [{"bind": f"{HOST}:{port}"}], "grpc": [{"bind": f"{HOST}:{port + 1}"}]},
        "models": {
            "identity": batched,
            "cached": {**batched, "response_cache": True},
            "relayed": {"backend": "remote", "upstream": upstream},
            "same": {**python("Same", "FP32", ["x"], ["y"]), "max_batch_size": 32},
            "pair": python("Same", "FP32", ["x", "xx"], ["y", "yy"]),
            "flat": flat,
            "texts": python("Same", "BYTES", ["x"], ["y"]),
            "counts": python("Same", "INT64", ["x"], ["y"]),
            "scores": {
                **scores,
                "max_batch_size": 1024,
                "signatures": {
                    "classes": {"method": "classify", "inputs": {name: name for name in FEATURES}, "scores": "scores"}
                },
            },
        },
    }


def v2(model: str, datatype: str, **inputs: Any) -> Request:
    tensors = [
        {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.reshape(-1).tolist()}
        for name, array in inputs.items()
    ]
    sizes = " and ".join(f"{array.size:,}" for array in inputs.values())
    body = json.dumps({"inputs": tensors}).encode()
    return Request(f"V2 JSON, {sizes} of {datatype}", f"/v2/models/{model}/infer", body)


def grpc(what: str, method: str, body: bytes) -> Request:
    return Request(what, method, body, {})


def cases() -> Mapping[str, Request]:
    """Shortcut -> the request that it was made for."""
    rng = np.random.default_rng(1)
    few, some, many = [rng.standard_normal((1, size), np.float32) for size in (16, 1_000, 150_528)]
    json_few = Request("V2 JSON, 16 floats", V2.path, V2.request(few))
    raw_few = grpc("V2 gRPC, 16 floats", INFER, infer_request(few))
    binary = binary_http.Case(16)
    rows = [{"x": float(x), "xx": float(xx)} for x, xx in rng.standard_normal((256, 2), np.float32)]
    texts = np.array([[f"text {number} of many" for number in range(1_000)]], object)
    named = message("tensorflow.serving.PredictRequest")()
    named.model_spec.name = "counts"
    named.inputs["x"].dtype = 9
    named.inputs["x"].tensor_shape.dim.add(size=1)
    named.inputs["x"].tensor_shape.dim.add(size=1_000)
    named.inputs["x"].int64_val.extend(rng.integers(0, 2**40, 1_000).tolist())
    classify = message("tensorflow.serving.ClassificationRequest")()
    classify.model_spec.name, classify.model_spec.signature_name = "scores", "classes"
    for number in range(1_000):
        example = classify.input.example_list.examples.add()
        for name in FEATURES:
            example.features.feature[name].float_list.value.extend([number / 8] * 4)
    relayed = message("inference.ModelInferRequest").FromString(infer_request(few))
    relayed.model_name = "relayed"
    same = Request("V2 JSON, 16 floats, a model in a thread", "/v2/models/same/infer", V2.request(few))
    predict = "TensorFlow Serving gRPC, "
    return {
        "http_fast_path": json_few,
        "eager_start": json_few,
        "known_call_heads": raw_few,
        "whole_frames": raw_few,
        "direct_reads": grpc("V2 gRPC, 600 KB", INFER, infer_request(many)),
        # Without a slow link both ways take the same; tests/equivalence/test_arriving.py has one.
        "cut_through": grpc("V2 gRPC, 600 KB, over no link", INFER, infer_request(many)),
        # A stream takes a server that says it piece by piece: `python -m benchmarks.text relay` has one.
        "passed_pieces": replace(json_few, what="V2 JSON, 16 floats, no stream"),
        "v2_json_templates": json_few,
        "v2_binary_heads": Request("V2 binary, 16 floats", binary.path, binary.body(), binary.headers),
        "v2_grpc_templates": raw_few,
        "lone_arrays": Request("TensorFlow Serving JSON, 16 floats", TF_SERVING.path, TF_SERVING.request(few)),
        "array_cuts": v2("pair", "FP32", x=many[:, :50_000], xx=many[:, 50_000:100_000]),
        "stacked_columns": Request(
            "TensorFlow Serving JSON, 256 rows of two numbers",
            "/v1/models/flat:predict",
            json.dumps({"instances": rows}).encode(),
        ),
        "message_cuts": grpc(f"{predict}600 KB of float_val", PREDICT, predict_request(many, content=False)),
        "predict_frames": grpc(f"{predict}16 floats", PREDICT, predict_request(few, content=False)),
        "native_numbers": Request("TensorFlow Serving JSON, 1,000 floats", TF_SERVING.path, TF_SERVING.request(some)),
        "native_texts": v2("texts", "BYTES", x=texts),
        "native_varints": grpc(f"{predict}1,000 of int64_val", PREDICT, named.SerializeToString()),
        "native_examples": grpc(f"{predict}1,000 Examples of ten features", CLASSIFY, classify.SerializeToString()),
        "response_cache": Request("V2 JSON, 16 floats, answered before", "/v2/models/cached/infer", V2.request(few)),
        "door_replicas": replace(json_few, what="V2 JSON, 16 floats, two doors", doors=2),
        "inline_runs": replace(json_few, what="V2 JSON, 16 floats, one caller", connections=1),
        "inline_dispatch": grpc("V2 gRPC, 16 floats, relayed to itself", INFER, relayed.SerializeToString()),
        "bare_runs": raw_few,
        "joined_runs": same,
        "bound_outputs": raw_few,
    }


def commands(shortcut: str, folder: Path, doors: int = 1) -> list[list[str]]:
    """How to start a gateway of so many doors with all shortcuts, and one without this."""
    (folder / "models.py").write_text(MODELS)
    started = []
    for port, plain in zip(PORTS, ("", shortcut), strict=True):
        file = folder / f"{port}.yaml"
        file.write_text(yaml.safe_dump(configuration(port)))
        environment = ["env", f"{VARIABLE}={plain}"]
        serve = [sys.executable, "-m", "tensorgate", "serve", str(file), "--doors", str(doors)]
        started.append([*environment, *serve, "--log-level", "warning"])
    return started


def answers(request: Request, server: Server) -> bytes:
    if request.is_grpc:
        return ask_grpc(server.port + 1, request.path, request.body)
    return server.post(request.path, request.body, request.headers)


def compare(shortcut: str, request: Request, options: argparse.Namespace) -> list[tuple[Round, Round]]:
    """Rounds of (with it, without it). Raises Failed where the two answer differently."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = zip(("with", "without"), commands(shortcut, folder, request.doors), PORTS, strict=True)
        running_servers = [
            stack.enter_context(running(name, command, port, options.server_core)) for name, command, port in started
        ]
        servers = [Family(each.name, each.port, each.pid) for each in running_servers]
        found = [answers(request, server) for server in servers]
        if found[0] != found[1]:
            raise Failed(f"{shortcut}: {found[0][:200]!r} with it, {found[1][:200]!r} without")
        file = folder / "body"
        file.write_bytes(
            b"\0" + len(request.body).to_bytes(4, "big") + request.body if request.is_grpc else request.body
        )

        def turn(server: Server, seconds: int) -> Round:
            load = Load(seconds, request.connections or options.connections, options.load_core)
            if request.is_grpc:
                there = Family(server.name, server.port + 1, server.pid)
                return h2load.press(there, request.path, file, 5 + len(found[0]), load)
            return wrk.press(server, request.path, file, load, request.headers)

        for server in servers:
            turn(server, 1)
        rounds = []
        for number in range(options.rounds):
            order = servers if number % 2 == 0 else servers[::-1]
            seen = {server.name: turn(server, options.seconds) for server in order}
            rounds.append((seen["with"], seen["without"]))
        return rounds


def saved(rounds: Sequence[tuple[Round, Round]], figure: Callable[[Round, Round], float]) -> float:
    return median(figure(short, plain) for short, plain in rounds) - 1


def line(shortcut: str, request: Request, rounds: Sequence[tuple[Round, Round]]) -> list[str]:
    processor = saved(rounds, lambda short, plain: plain.cpu_us_per_request / short.cpu_us_per_request)
    rate = saved(rounds, lambda short, plain: short.requests_per_s / plain.requests_per_s)
    short = median(short.cpu_us_per_request for short, _ in rounds)
    plain = median(plain.cpu_us_per_request for _, plain in rounds)
    mark = "" if processor >= WORTH else "less than 3 %"
    return [shortcut, request.what, f"{short:,.0f}", f"{plain:,.0f}", f"{processor:.0%}", f"{rate:.0%}", mark]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shortcuts",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(SHORTCUTS), default=list(SHORTCUTS), metavar="NAME", help="default: all")
    add("--rounds", type=int, default=5, help="turns of each, of which the median counts; default: 5")
    add("--seconds", type=int, default=2, help="length of one turn; default: 2")
    add("--connections", type=int, default=8, help="kept busy by the load's one thread; default: 8")
    add("--server-core", type=int, default=0, help="the servers' core; default: 0")
    add("--load-core", type=int, default=1, help="the load's core; default: 1")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    requests = cases()
    lines, facts = [], {}
    try:
        wrk.find_wrk()
        h2load.find_h2load()
        check_cores(options)
        for port in PORTS:
            check_port(port)
            check_port(port + 1)
        os.environ.pop(VARIABLE, None)
        for name in options.only:
            print(f"{name}: {requests[name].what}", file=sys.stderr)
            rounds = compare(name, requests[name], options)
            lines.append(line(name, requests[name], rounds))
            facts[name] = [{"with": asdict(short), "without": asdict(plain)} for short, plain in rounds]
    except Failed as failure:
        raise SystemExit(f"failed: {failure}") from None
    head = ("shortcut", "request", "CPU us/request", "without it", "saves", "slower", "")
    print(table(head, lines, left=2))
    print(f"all rounds: {report.keep('shortcuts', {'rounds': facts}, vars(options))}")


if __name__ == "__main__":
    main()
