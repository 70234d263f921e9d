"""gRPC by other stacks of HTTP/2 than grpc's own: Node's (@grpc/grpc-js), nghttp2's (nghttp, h2load, curl), Go's.

They want the packages nodejs, npm, nghttp2-client, curl, golang-go and golang-google-grpc-dev of Debian.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from client_scripts import environment
from deployment import installed
from serving import HOST, ROOT, Gateway

from tensorgate.adapters.protobuf.messages import message

pytestmark = pytest.mark.heavy

NODE = ROOT / ".tools-node"
SCRIPT = Path(__file__).parent / "node/calls.js"
WITHIN_S = 120.0
GRPC = ("content-type: application/grpc", "te: trailers")
LARGE = 1_000_000


def run(program: str, package: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = [installed(program, package), *map(str, arguments)]
    done = subprocess.run(command, env=environment() | variables, capture_output=True, timeout=WITHIN_S)
    assert done.returncode == 0, done
    return done


# ----------------------------------------------------------------------------------------------------------------- Node


@pytest.fixture(scope="module")
def outcomes(demo: Gateway) -> Mapping[str, str | None]:
    node = installed("node", "nodejs")
    assert Path(node).exists()
    if not (NODE / "node_modules").is_dir():
        pytest.fail("@grpc/grpc-js is not there: say `make test-system`", pytrace=False)
    done = run(
        "node", "nodejs", SCRIPT, f"{HOST}:{demo.grpc_port}", ROOT / "proto", NODE_PATH=str(NODE / "node_modules")
    )
    found: Mapping[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", re.findall(r"^  async (\w+)\(", SCRIPT.read_text(), re.MULTILINE))
def test_grpc_js(check: str, outcomes: Mapping[str, str | None]) -> None:
    assert outcomes[check] is None, outcomes[check]


# -------------------------------------------------------------------------------------------------------------- nghttp2


def infer(count: int) -> bytes:
    """A message of ModelInfer with its prefix: numbers for half_plus_two."""
    array = np.arange(count, dtype="<f4")
    request: Any = message("inference.ModelInferRequest")(
        model_name="half_plus_two", raw_input_contents=[array.tobytes()]
    )
    request.inputs.add(name="x", datatype="FP32", shape=[count])
    return framed(request.SerializeToString())


def predict(count: int) -> bytes:
    """The same for TensorFlow Serving's Predict."""
    request: Any = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "half_plus_two"
    tensor = request.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=count)
    tensor.tensor_content = np.arange(count, dtype="<f4").tobytes()
    return framed(request.SerializeToString())


def framed(serialized: bytes) -> bytes:
    return b"\0" + len(serialized).to_bytes(4, "big") + serialized


def is_right(answer: bytes, count: int, *, by: str) -> bool:
    """Whether that is the whole answer of one call."""
    assert (answer[:1], int.from_bytes(answer[1:5], "big")) == (b"\0", len(answer) - 5)
    if by == "ModelInfer":
        response: Any = message("inference.ModelInferResponse").FromString(answer[5:])
        (raw,) = response.raw_output_contents
    else:
        response = message("tensorflow.serving.PredictResponse").FromString(answer[5:])
        raw = np.array(response.outputs["y"].float_val, "<f4").tobytes() or response.outputs["y"].tensor_content
    return bool(np.array_equal(np.frombuffer(raw, "<f4"), np.arange(count, dtype="<f4") / 2 + 2))


METHODS = {
    "ModelInfer": ("/inference.GRPCInferenceService/ModelInfer", infer),
    "Predict": ("/tensorflow.serving.PredictionService/Predict", predict),
}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def asked(demo: Gateway, folder: Path, method: str, count: int) -> tuple[Path, list[str], str]:
    """The file with the message, the headers as options, and where it goes."""
    path, make = METHODS[method]
    body = folder / "body"
    body.write_bytes(make(count))
    return body, [option for header in GRPC for option in ("-H", header)], f"http://{HOST}:{demo.grpc_port}{path}"


@pytest.mark.parametrize("count", [3, LARGE])
def test_curl(count: int, method: str, demo: Gateway, tmp_path: Path) -> None:
    body, headers, url = asked(demo, tmp_path, method, count)
    told, answer = tmp_path / "headers", tmp_path / "answer"
    files = ["--data-binary", f"@{body}", "-D", told, "-o", answer]
    run("curl", "curl", "--silent", "--http2-prior-knowledge", *headers, *files, url)
    assert "grpc-status: 0" in told.read_text()
    assert is_right(answer.read_bytes(), count, by=method)


OPTIONS: dict[str, list[str]] = {
    "plain": [],
    "small windows": ["--window-bits=10", "--connection-window-bits=12"],
    "padding": ["--padding=255"],
    "no tables": ["--header-table-size=0", "--encoder-header-table-size=0"],
    "a small table": ["--header-table-size=100", "--encoder-header-table-size=100"],
    "trailers": ["--trailer", "x-end: 1"],
    "a weight": ["--weight=256", "--no-dep"],
    "long headers": [option for n in range(20) for option in ("-H", f"x-{n}: {'v' * 200}")],
}


@pytest.mark.parametrize("way", OPTIONS)
@pytest.mark.parametrize("count", [3, LARGE // 10])
def test_nghttp(way: str, count: int, demo: Gateway, tmp_path: Path) -> None:
    body, headers, url = asked(demo, tmp_path, "ModelInfer", count)
    done = run("nghttp", "nghttp2-client", "--no-content-length", "--data", body, *headers, *OPTIONS[way], url)
    assert is_right(done.stdout, count, by="ModelInfer")
    status = run("nghttp", "nghttp2-client", "--verbose", "--data", body, *headers, *OPTIONS[way], url).stdout
    assert b"grpc-status: 0" in status


@pytest.mark.parametrize("windows", [["-w", "30", "-W", "30"], ["-w", "12", "-W", "14"]])
@pytest.mark.parametrize("count", [3, 100_000])
def test_h2load(windows: list[str], count: int, method: str, demo: Gateway, tmp_path: Path) -> None:
    body, headers, url = asked(demo, tmp_path, method, count)
    calls = 2000 if count == 3 else 100
    load = ["-n", str(calls), "-c", "10", "-m", "20", "-d", body]
    told = run("h2load", "nghttp2-client", *load, *windows, *headers, url).stdout.decode()
    assert f"{calls} succeeded, 0 failed, 0 errored, 0 timeout" in told, told
    assert f"status codes: {calls} 2xx" in told, told
    size = re.search(r"\((\d+)\) data", told)
    assert size is not None
    assert int(size[1]) >= calls * count * 4, "no answer is cut"


# ------------------------------------------------------------------------------------------------------------------- Go


GO = Path(__file__).parent / "go/calls.go"
GO_PACKAGES = Path("/usr/share/gocode")
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def write_messages(demo: Gateway, folder: Path) -> None:
    """What Go's client asks, and what grpc's own client gets for it."""
    countdown: Any = message("inference.ModelInferRequest")(model_name="countdown")
    countdown.inputs.add(name="start", datatype="INT32", shape=[1]).contents.int_contents.append(1000)
    nobody: Any = message("inference.ModelInferRequest").FromString(infer(3)[5:])
    nobody.model_name = "nobody \u2603 100%"
    asked = {
        "small": infer(3)[5:],
        "large": infer(LARGE)[5:],
        "predict": predict(3)[5:],
        "countdown": countdown.SerializeToString(),
        "nobody": nobody.SerializeToString(),
    }
    for name, body in asked.items():
        (folder / f"{name}.in").write_bytes(body)
    with grpc.insecure_channel(f"{HOST}:{demo.grpc_port}", [("grpc.max_receive_message_length", -1)]) as channel:
        for name, by in (("small", "ModelInfer"), ("large", "ModelInfer"), ("predict", "Predict")):
            method, _ = METHODS[by]
            (folder / f"{name}.out").write_bytes(channel.unary_unary(method)(asked[name], timeout=60))
        (told,) = channel.stream_stream(STREAM)(iter([asked["small"]]), timeout=60)
        (folder / "streamed.out").write_bytes(told)


@pytest.fixture(scope="module")
def go_outcomes(demo: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str | None]:
    folder = tmp_path_factory.mktemp("go")
    go = installed("go", "golang-go")
    if not (GO_PACKAGES / "src/google.golang.org/grpc").is_dir():
        pytest.skip("there is no grpc-go: say `apt-get install golang-google-grpc-dev`")
    write_messages(demo, folder)
    places = {"GO111MODULE": "off", "GOPATH": str(GO_PACKAGES), "GOCACHE": str(folder / "cache"), "GOFLAGS": ""}
    built = subprocess.run(
        [go, "build", "-o", folder / "calls", GO], env=environment() | places, capture_output=True, timeout=WITHIN_S
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [folder / "calls", f"{HOST}:{demo.grpc_port}", folder],
        env=environment(),
        capture_output=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    found: Mapping[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", re.findall(r'^\t"(\w+)": func', GO.read_text(), re.MULTILINE))
def test_grpc_go(check: str, go_outcomes: Mapping[str, str | None]) -> None:
    assert go_outcomes[check] is None, go_outcomes[check]
