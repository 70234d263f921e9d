"""nginx and HAProxy with the shipped configurations in front of a gateway: TLS on one port, every dialect behind it.

They want the packages nginx-light and haproxy of Debian.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from deployment import DEPLOY, Ports, installed, shipped
from serving import HOST, JSON, Gateway

from tensorgate.adapters.protobuf.messages import message

pytestmark = pytest.mark.heavy

WITHIN_S = 20.0
LARGE = 6_000_000
"""Numbers in a large tensor: 24 MB, more than any buffer on the way."""
PAUSE_S = 0.1
"""Between two answers of the countdown."""
OPEN_INFERENCE = "/inference.GRPCInferenceService/"


class Proxy:
    """A running one: `port` speaks TLS, `health` is for its container's health check."""

    def __init__(self, port: int, health: int, certificate: Path) -> None:
        self.port = port
        self.health = health
        self.certificate = certificate

    def connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.certificate)
        context.set_alpn_protocols(["http/1.1"])
        return http.client.HTTPSConnection("localhost", self.port, timeout=60, context=context)

    def channel(self) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(self.certificate.read_bytes())
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        return grpc.secure_channel(f"localhost:{self.port}", credentials, unlimited)

    def ask(self, method: str, path: str, body: Any = None, headers: Any = JSON) -> tuple[int, bytes]:
        connection = self.connection()
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        told = answer.status, answer.read()
        connection.close()
        return told


def free_ports() -> tuple[int, int]:
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def make_certificate(folder: Path) -> Path:
    """As deploy/README.md says it."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", folder / "tls.key", "-out", folder / "tls.crt"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    shutil.copy(folder / "tls.key", folder / "tls.crt.key")  # where HAProxy looks for it
    return folder / "tls.crt"


def configuration(file: str, folder: Path, ports: Ports, port: int, health: int) -> Path:
    """The shipped one with other addresses and folders."""
    text = (DEPLOY / "proxy" / file).read_text()
    for shipped_port, here in ports.items():
        text = text.replace(f"tensorgate:{shipped_port}", f"{HOST}:{here}")
    text = text.replace("8443", str(port)).replace("8081", str(health))
    text = text.replace(" /tmp/", f" {folder}/").replace("/etc/tls", str(folder))
    (folder / file).write_text(text)
    return folder / file


def listens(port: int) -> bool:
    with socket.socket() as knocking:
        return knocking.connect_ex((HOST, port)) == 0


def command_of(file: Path) -> list[str]:
    if file.name == "haproxy.cfg":
        return [installed("haproxy", "haproxy"), "-f", str(file)]
    user = "user root; " if os.getuid() == 0 else ""  # its workers must reach the folder
    return [installed("nginx", "nginx-light"), "-c", str(file), "-g", f"{user}daemon off;"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Ports]]:
    with shipped(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module", params=["nginx.conf", "haproxy.cfg"])
def proxy(
    request: pytest.FixtureRequest, gateway: tuple[Gateway, Ports], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy")
    certificate = make_certificate(folder)
    port, health = free_ports()
    file = configuration(request.param, folder, gateway[1], port, health)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command_of(file), stdout=output, stderr=subprocess.STDOUT)
    try:
        give_up = time.monotonic() + WITHIN_S
        while not listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            time.sleep(0.05)
        yield Proxy(port, health, certificate)
    finally:
        process.terminate()
        process.wait(10)
    assert not [line for line in log.read_text().splitlines() if "[WARNING]" in line or "[emerg]" in line]


# ---------------------------------------------------------------------------------------------------------------- HTTP


def test_one_connection_serves_every_dialect_call_after_call(proxy: Proxy) -> None:
    connection = proxy.connection()
    connection.connect()
    assert connection.sock is not None
    before = connection.sock.getsockname()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
    for _ in range(50):
        for path, body, wanted in (
            ("/v2/models/half_plus_two/infer", {"inputs": [tensor]}, b'"data":[2.5]'),
            ("/v1/models/half_plus_two:predict", {"instances": [1.0]}, b'"predictions": [2.5'),
            ("/v1/models/half_plus_two/versions/1:predict", {"instances": [1.0]}, b'"predictions": [2.5'),
        ):
            connection.request("POST", path, json.dumps(body), JSON)
            answer = connection.getresponse()
            told = answer.read()
            assert answer.status == 200, told
            assert wanted in told
            assert connection.sock is not None, "the proxy closed the connection"
            assert connection.sock.getsockname() == before
    connection.close()


def test_grps_and_probes_pass_and_the_operator_s_pages_do_not(proxy: Proxy) -> None:
    assert proxy.ask("GET", "/grps/v1/health/ready")[0] == 200
    assert proxy.ask("GET", "/readyz") == (200, b"ok\n")
    for path in ("/", "/metrics", "/monitoring/prometheus/metrics", "/healthz"):
        assert proxy.ask("GET", path)[0] == 404, path
    connection = http.client.HTTPConnection(HOST, proxy.health, timeout=10)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    ("port", "method", "path", "body"),
    [
        (8501, "POST", "/v1/models/no%2Fbody:predict", b'{"instances": [1]}'),
        (8501, "GET", "/v1//models/half_plus_two/../x", None),
        (8501, "POST", "/v1/models/half_plus_two:predict", b"{"),
        (8000, "POST", "/v2/models/nobody/infer", b"{}"),
        (7080, "GET", "/grps/v1/nothing?a=%20b", None),
        (9000, "POST", "/openai/v1/completions", b'{"model": "nobody", "prompt": "x"}'),
    ],
)
def test_errors_keep_the_words_of_their_dialect(
    proxy: Proxy, gateway: tuple[Gateway, Ports], port: int, method: str, path: str, body: bytes | None
) -> None:
    running, ports = gateway
    direct = running.request(method, path, body, port=ports[port])
    assert direct.status >= 400
    assert proxy.ask(method, path, body) == (direct.status, direct.body)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_tensor_comes_back_as_it_went(proxy: Proxy, chunked: bool) -> None:
    data = np.arange(LARGE, dtype="<f4").tobytes()
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [LARGE]}
    tensor["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    pieces = iter([head, *(data[start : start + 65536] for start in range(0, len(data), 65536))])
    status, told = proxy.ask("POST", "/v2/models/echo/infer", pieces if chunked else head + data, headers)
    assert status == 200, told[:200]
    assert told.endswith(data)


def test_a_body_over_the_limit_is_refused_by_the_gateway(proxy: Proxy) -> None:
    """Not by the proxy: the answer is the dialect's JSON."""
    status, told = proxy.ask("POST", "/v1/models/half_plus_two:predict", b" " * (64 * 1024 * 1024 + 1))
    assert status == 413
    assert "error" in json.loads(told)


def test_server_sent_events_arrive_one_by_one(proxy: Proxy) -> None:
    connection = proxy.connection()
    connection.request("POST", "/v2/models/countdown/generate_stream", json.dumps({"start": 5}), JSON)
    answer = connection.getresponse()
    assert answer.status == 200
    counts, times = [], []
    while line := answer.readline():
        if line.startswith(b"data: "):
            counts.append(json.loads(line[6:])["count"])
            times.append(time.monotonic())
    connection.close()
    assert counts == [5, 4, 3, 2, 1, 0]
    assert times[-1] - times[0] > 4 * PAUSE_S


# ---------------------------------------------------------------------------------------------------------------- gRPC


def infer_request(name: str, tensor: str, datatype: str, array: Any) -> Any:
    request = message("inference.ModelInferRequest")(model_name=name, raw_input_contents=[array.tobytes()])
    request.inputs.add(name=tensor, datatype=datatype, shape=array.shape)
    return request


def test_every_dialect_answers_over_grpc(proxy: Proxy) -> None:
    with proxy.channel() as channel:
        for _ in range(20):
            body = infer_request("half_plus_two", "x", "FP32", np.float32([1])).SerializeToString()
            told = channel.unary_unary(OPEN_INFERENCE + "ModelInfer")(body, timeout=WITHIN_S)
            answer = message("inference.ModelInferResponse").FromString(told)
            assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [2.5]

            predict = message("tensorflow.serving.PredictRequest")(model_spec={"name": "half_plus_two"})
            predict.inputs["x"].CopyFrom(
                message("tensorflow.TensorProto")(dtype=1, tensor_shape={"dim": [{"size": 1}]}, float_val=[1.0])
            )
            address = "/tensorflow.serving.PredictionService/Predict"
            told = channel.unary_unary(address)(predict.SerializeToString(), timeout=WITHIN_S)
            answer = message("tensorflow.serving.PredictResponse").FromString(told)
            assert list(answer.outputs["y"].float_val) == [2.5]

            told = channel.unary_unary("/grps.protos.v1.GrpsService/CheckReadiness")(b"", timeout=WITHIN_S)
            assert message("grps.protos.v1.GrpsMessage").FromString(told).status.code == 200
        told = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=WITHIN_S)
        assert told == b"\x08\x01"  # SERVING


def test_errors_over_grpc_keep_code_and_words(proxy: Proxy, gateway: tuple[Gateway, Ports]) -> None:
    body = infer_request("nobody", "x", "FP32", np.float32([1])).SerializeToString()

    def refusal(channel: grpc.Channel) -> tuple[Any, Any]:
        with channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(OPEN_INFERENCE + "ModelInfer")(body, timeout=WITHIN_S)
        return caught.value.code(), caught.value.details()

    code, words = refusal(proxy.channel())
    assert (code, words) == refusal(grpc.insecure_channel(f"{HOST}:{gateway[1][8001]}"))
    assert code is grpc.StatusCode.NOT_FOUND


def test_a_large_message_comes_back_as_it_went(proxy: Proxy) -> None:
    array = np.arange(LARGE, dtype="<f4")
    body = infer_request("echo", "x", "FP32", array).SerializeToString()
    with proxy.channel() as channel:
        told = channel.unary_unary(OPEN_INFERENCE + "ModelInfer")(body, timeout=60)
    answer = message("inference.ModelInferResponse").FromString(told)
    assert answer.raw_output_contents[0] == array.tobytes()


def test_answers_of_a_stream_arrive_one_by_one(proxy: Proxy) -> None:
    body = infer_request("countdown", "start", "INT32", np.int32([5])).SerializeToString()
    counts, times = [], []
    with proxy.channel() as channel:
        for told in channel.stream_stream(OPEN_INFERENCE + "ModelStreamInfer")(iter([body]), timeout=WITHIN_S):
            answer = message("inference.ModelStreamInferResponse").FromString(told)
            assert not answer.error_message
            counts += np.frombuffer(answer.infer_response.raw_output_contents[0], "<i4").tolist()
            times.append(time.monotonic())
    assert counts == [5, 4, 3, 2, 1, 0]
    assert times[-1] - times[0] > 4 * PAUSE_S
