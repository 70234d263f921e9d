"""Calls are recorded and played again: to the same server without a difference, to another one with just that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from relays import address
from serving import Gateway, command, demo_config, running
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.recording.record import read_files

IMAGE = [[float(n % 17) for n in range(8)]] * 8
OVER_HTTP: list[tuple[str, str, Any]] = [
    (
        "POST",
        "/v2/models/half_plus_two/infer",
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]},
    ),
    ("POST", "/v2/models/digits/infer", {"inputs": []}),
    ("GET", "/v2/models/digits", None),
    ("GET", "/v2/models/none", None),
    ("POST", "/v1/models/half_plus_two:predict", {"instances": [1.0, 2.0]}),
    ("POST", "/v1/models/digits/labels/canary:predict", {"instances": [IMAGE]}),
    ("POST", "/v2/models/writer/generate_stream", {"text_input": "Once", "max_tokens": 5, "stream": True, "seed": 3}),
]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("calls.jsonl*"))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("record")
    (folder / "gateway.yaml").write_text(demo_config({}, record={"file": str(folder / "calls.jsonl")}))
    with running(folder / "gateway.yaml") as gateway:
        yield gateway


def ask(gateway: Gateway) -> int:
    """A call of each kind -> how many."""
    for method, path, body in OVER_HTTP:
        gateway.request(method, path, body)
    tensors = [{"name": "x", "datatype": "FP32", "shape": [2]}]
    infer = message("inference.ModelInferRequest")(
        model_name="half_plus_two", inputs=tensors, raw_input_contents=[np.float32([1, 2]).tobytes()]
    )
    count = message("inference.ModelInferRequest")(
        model_name="countdown",
        inputs=[{"name": "start", "datatype": "INT32", "shape": [1]}],
        raw_input_contents=[np.int32(2).tobytes()],
    )
    service = "/inference.GRPCInferenceService/"
    with grpc.insecure_channel(address(gateway, "grpc")) as channel:
        channel.unary_unary(service + "ModelInfer")(infer.SerializeToString(), timeout=20)
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(service + "ModelInfer")(b"", timeout=20)
        list(channel.stream_stream(service + "ModelStreamInfer")(iter([count.SerializeToString()]), timeout=20))
    return len(OVER_HTTP) + 3


def replay(gateway: Gateway, files: list[Path], *options: str) -> tuple[int, str]:
    done = command(
        "replay", *files, "--to", gateway.url, "--grpc", address(gateway, "grpc"), "--speed", "max", "--diff", *options
    )
    return done.returncode, done.stdout + done.stderr


def test_recorded_calls_are_answered_alike_and_a_changed_answer_is_found(gateway: Gateway, tmp_path: Path) -> None:
    folder = Path(str(gateway.log)).parent
    count = ask(gateway)
    wait_until(lambda: sum(1 for _ in read_files(files_of(folder))) >= count)
    for number, file in enumerate(files_of(folder)):
        (tmp_path / f"{number}").write_bytes(file.read_bytes())
    kept = sorted(tmp_path.iterdir())
    calls = [call for call in read_files(kept) if "/v2/health" not in call.target and call.target != "/readyz"]
    assert {(call.dialect, call.transport) for call in calls} >= {
        ("open_inference", "http"),
        ("open_inference", "grpc"),
        ("tf_serving", "http"),
    }
    status, said = replay(gateway, kept)
    assert (status, "nothing differs" in said) == (0, True), said
    lines = kept[-1].read_text().replace('\\"data\\":[2.5,', '\\"data\\":[2.75,')
    wrong = tmp_path / "wrong"
    wrong.write_text("".join(each.read_text() for each in kept[:-1]).replace("[2.5,", "[2.75,") + lines)
    report = tmp_path / "report.json"
    status, said = replay(gateway, [wrong], "--json", str(report))
    assert status == 1
    assert "body.outputs[0].data[0]: 2.75, now 2.5" in said
    assert [each["target"] for each in json.loads(report.read_text())["differing"]] == [
        "/v2/models/half_plus_two/infer"
    ]
    status, said = replay(gateway, [wrong], "--rtol", "0.1")
    assert (status, "nothing differs" in said) == (0, True), said
    status, said = replay(gateway, kept, "--model", "digits")
    assert (status, "nothing differs" in said) == (0, True), said
    series = gateway.metrics()
    assert series.total("tensorgate_recorded_calls_total") >= count
    assert series.total("tensorgate_recorded_dropped_total") == 0


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["none.jsonl", "--to", "http://localhost:1"], 1, "No such file"),
        (["/dev/null", "--to", "http://localhost:1"], 1, "no recorded call"),
        (["/dev/null"], 1, "say where to"),
        (["/dev/null", "--to", "http://localhost:1", "--header", "x"], 1, "expected 'NAME: VALUE'"),
        (["/dev/null", "--to", "http://localhost:1", "--rtol", "1e-3"], 1, "add --diff"),
        (["/dev/null", "--to", "http://localhost:1", "--diff", "--atol", "-1"], 2, "--atol"),
        (["/dev/null", "--to", "http://localhost:1", "--connections", "0"], 2, "0 is less than 1"),
        (["/dev/null", "--to", "http://localhost:1", "--repeat", "0"], 2, "0 is less than 1"),
    ],
)
def test_what_cannot_be_replayed_says_why(arguments: list[str], status: int, said: str) -> None:
    done = command("replay", *arguments)
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    line = {"v": 1, "time": 1.0, "dialect": "v2", "transport": "http", "stream": "unary", "method": "GET"}
    line |= {"target": "/v2", "headers": {}, "seconds": 0.1, "ended": "OK", "replies": [{"after_s": 0.1}]}
    file = tmp_path / "calls"
    file.write_text(json.dumps(line) + "\n")
    done = command("replay", file, "--to", "http://127.0.0.1:1", "--diff")
    assert (done.returncode, "1 no answer" in done.stdout) == (1, True), done.stdout
    done = command("replay", file, "--to", "http://127.0.0.1:1", "--json", tmp_path / "none" / "report.json")
    assert (done.returncode, "Traceback" in done.stderr, "No such file" in done.stderr) == (1, False, True)
