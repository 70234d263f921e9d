"""Models on servers that are not ours: a real Triton, and gateways behind nginx and HAProxy, over HTTP/2, no TLS."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from deployment import installed
from heavy_tools import free_ports, triton
from relays import front, remote
from serving import HOST, Gateway, running

pytestmark = pytest.mark.heavy

WITHIN_S = 30
SIZES = (1, 16, 5_000, 150_528, 1_500_000)  # to 6 MB; the third is more than a first window
NEGATIVE = "a negative number"
CONFIG = """
    backend: "python"
    max_batch_size: 8
    input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
CODE = f"""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(pb_utils.get_input_tensor_by_name(each, "x").as_numpy()) for each in requests]

        def answer(self, x):
            if (x < 0).any():
                return pb_utils.InferenceResponse([], pb_utils.TritonError("{NEGATIVE}"))
            return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
"""
OURS = f"""
import numpy as np
from tensorgate.gateway.contract.errors import InvalidArgument

class Same:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        if (inputs["x"] < 0).any():
            raise InvalidArgument("{NEGATIVE}")
        return {{"y": inputs["x"]}}
"""
NGINX = """
user root; pid {folder}/pid; error_log {folder}/log; daemon off;
events {{ worker_connections 64; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    client_max_body_size 0; grpc_buffer_size 64k;
    server {{ listen {here} http2; location / {{ grpc_pass grpc://{there}; }} }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend front
    bind {here} proto h2
    default_backend back
backend back
    server one {there} proto h2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def addresses(folder: Path) -> Iterator[dict[str, str]]:
    """Where the same model is, by who is there."""
    model = folder / "repository/same/1"
    model.mkdir(parents=True)
    (model.parent / "config.pbtxt").write_text(dedent(CONFIG))
    (model / "model.py").write_text(dedent(CODE))
    (folder / "models.py").write_text(OURS)
    tensors = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}],
    }
    same = {"backend": "python", "path": "models.py:Same", "max_batch_size": 8, **tensors}
    (folder / "ours.yaml").write_text(front({"same": same}))
    with triton(folder / "repository", folder / "triton.log") as (_, port), running(folder / "ours.yaml") as ours:
        there = f"{HOST}:{ours.grpc_port}"
        with (
            proxy([installed("nginx", "nginx-light"), "-c"], NGINX, folder / "nginx", there) as nginx,
            proxy([installed("haproxy", "haproxy"), "-f"], HAPROXY, folder / "haproxy", there) as haproxy,
        ):
            yield {"Triton": f"{HOST}:{port}", "nginx": nginx, "HAProxy": haproxy}


@contextmanager
def proxy(command: Sequence[str], text: str, folder: Path, there: str) -> Iterator[str]:
    """A proxy for HTTP/2 without TLS in front of an address: its own."""
    folder.mkdir()
    (port,) = free_ports(1)
    file = folder / "configuration"
    file.write_text(text.format(folder=folder, here=f"{HOST}:{port}", there=there).lstrip())
    process = subprocess.Popen([*command, str(file)])
    try:
        give_up = time.monotonic() + WITHIN_S
        while not listens(port):
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.05)
        yield f"{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(WITHIN_S)


def listens(port: int) -> bool:
    with socket.socket() as knocking:
        return knocking.connect_ex((HOST, port)) == 0


@pytest.fixture(scope="module", params=["Triton", "nginx", "HAProxy"])
def relay(request: pytest.FixtureRequest, addresses: dict[str, str], folder: Path) -> Iterator[Gateway]:
    file = folder / f"{request.param}.yaml"
    there = remote("open_inference", "grpc", addresses[request.param], "same", max_batch_size=8)
    file.write_text(front({"m": there}))
    with running(file) as gateway:
        yield gateway


def ask(relay: Gateway, x: Any) -> tuple[int, Any]:
    """FP32 both ways as bytes -> the status, and the answer's numbers, or what was wrong."""
    described = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    answer = relay.request("POST", "/v2/models/m/infer", head + x.tobytes(), headers)
    if answer.status != 200:
        return answer.status, answer.json["error"]
    begin = int(answer.headers["Inference-Header-Content-Length"])
    shape = json.loads(answer.body[:begin])["outputs"][0]["shape"]
    return 200, np.frombuffer(answer.body[begin:], np.float32).reshape(shape)


@pytest.mark.parametrize("size", SIZES)
def test_numbers_come_back_as_they_went(relay: Gateway, size: int) -> None:
    for turn in range(3):  # from the second on, answers are read by what was learned of the first
        x = np.random.default_rng(turn).random((1, size), np.float32)
        status, y = ask(relay, x)
        assert status == 200, y
        np.testing.assert_array_equal(y, x)


def test_many_at_once_get_their_own(relay: Gateway) -> None:
    def ask_with(number: int) -> None:
        x = np.full((1 + number % 3, 1 + number % 7_000), number, np.float32)
        status, y = ask(relay, x)
        assert status == 200, y
        np.testing.assert_array_equal(y, x)

    with ThreadPoolExecutor(24) as callers:
        list(callers.map(ask_with, range(600)))


def test_the_model_s_own_words(relay: Gateway) -> None:
    status, said = ask(relay, np.float32([[-1]]))
    assert status in (400, 500)
    assert NEGATIVE in said
    assert ask(relay, np.float32([[1]]))[0] == 200
