"""HAProxy and nginx, as shipped, in front of two gateways: calls are spread, sequences stay, a gateway may leave."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import yaml
from deployment import DEPLOY, installed
from serving import HOST, JSON, ROOT, Gateway, running
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message

pytestmark = pytest.mark.heavy
REQUEST = message("inference.ModelInferRequest")
RESPONSE = message("inference.ModelInferResponse")
INFER = "/inference.GRPCInferenceService/ModelInfer"


class Many(NamedTuple):
    http: int
    grpc: int
    gateways: list[Gateway]


def free_port() -> int:
    with socket.create_server((HOST, 0)) as one:
        port: int = one.getsockname()[1]
        return port


def at_home(text: str, number: int, gateway: Gateway, metrics: int) -> str:
    """A configuration in which this gateway is where it is."""
    for port, here in (8000, gateway.port), (8001, gateway.grpc_port):
        checked = rf"\g<1> port {metrics}" if "backend calls_http" in text else r"\g<1>"
        text = re.sub(rf"(?<= )gateway-{number}:{port}(.*)", rf"{HOST}:{here}{checked}", text)
    return text


@pytest.fixture(params=["haproxy", "nginx"])
def many(request: Any, tmp_path: Path) -> Iterator[Many]:
    """Two gateways with a model that adds up what a sequence sends."""
    kind = request.param
    demo = yaml.safe_load((ROOT / "config/demo.yaml").read_text())["models"]["running_sum"]
    demo["path"] = str(ROOT / "config" / demo["path"])
    shipped = DEPLOY / "proxy" / {"haproxy": "haproxy-many.cfg", "nginx": "nginx-many.conf"}[kind]
    text = shipped.read_text().replace("/tmp/", f"{tmp_path}/")  # noqa: S108 - where the image may write
    with ExitStack() as stack:
        gateways = []
        for number in range(2):
            metrics = free_port()
            bind = [{"bind": f"{HOST}:0"}]
            listen = {"http": bind, "grpc": bind, "metrics": {"bind": f"{HOST}:{metrics}"}}
            file = tmp_path / f"{number}.yaml"
            told = {"listen": listen, "models": {"sum": demo}, "server_name": f"gateway-{number}"}
            file.write_text(yaml.safe_dump(told))
            gateway = stack.enter_context(running(file))
            gateways.append(gateway)
            text = at_home(text, number, gateway, metrics)
        ports = free_port(), free_port()
        for port, own in zip((18000, 18001), ports, strict=True):
            text = re.sub(rf"(bind |listen ):?{port}", rf"\g<1>{HOST}:{own}", text)
        file = tmp_path / shipped.name
        file.write_text(text)
        log = stack.enter_context((tmp_path / "log").open("wb"))
        command = {
            "haproxy": ["-f", file],
            "nginx": ["-c", file, "-g", "daemon off;"],
        }[kind]
        program = installed(kind, {"haproxy": "haproxy", "nginx": "nginx-light"}[kind])
        process = subprocess.Popen([program, *command], stdout=log, stderr=subprocess.STDOUT)
        stack.callback(process.wait, 10)
        stack.callback(process.terminate)
        wait_until(lambda: process.poll() is not None or who(ports[0]) is not None, (tmp_path / "log").read_text)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield Many(*ports, gateways)


def asked(port: int, method: str, path: str, body: Any = None, **headers: str) -> Any:
    with closing(http.client.HTTPConnection(HOST, port, timeout=10)) as connection:
        connection.request(method, path, body and json.dumps(body), JSON | headers)
        return json.load(connection.getresponse())


def who(port: int) -> str | None:
    """The name of the gateway that answers; None where none does."""
    try:
        name: str = asked(port, "GET", "/v2")["name"]
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return None
    return name


def add(many: Many, sequence: int, value: int, **flags: bool) -> int:
    parameters = {"sequence_id": sequence} | {f"sequence_{flag}": on for flag, on in flags.items()}
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    body = {"parameters": parameters, "inputs": [tensor]}
    answer = asked(many.http, "POST", "/v2/models/sum/infer", body, **{"x-sequence-id": str(sequence)})
    total: int = answer["outputs"][0]["data"][0]
    return total


def add_by_grpc(channel: grpc.Channel, sequence: int, value: int, **flags: bool) -> int:
    request = REQUEST(model_name="sum")
    request.parameters["sequence_id"].int64_param = sequence
    for flag, on in flags.items():
        request.parameters[f"sequence_{flag}"].bool_param = on
    request.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1]).contents.int_contents.append(value)
    said = channel.unary_unary(INFER)(request.SerializeToString(), metadata=[("x-sequence-id", str(sequence))])
    answer = RESPONSE.FromString(said)
    raw = b"".join(answer.raw_output_contents)
    total: int = int.from_bytes(raw, "little") if raw else answer.outputs[0].contents.int_contents[0]
    return total


def test_calls_are_spread_sequences_stay_and_a_gateway_may_leave(many: Many) -> None:
    assert len(Counter(who(many.http) for _ in range(20))) == 2
    names = range(1, 9)
    for step in range(1, 4):
        totals = [add(many, name, 1, start=step == 1, end=step == 3) for name in names]
        assert totals == [step] * len(names)
    with grpc.insecure_channel(f"{HOST}:{many.grpc}") as channel:
        for step in range(1, 4):
            for name in names:
                assert add_by_grpc(channel, name, 2, start=step == 1, end=step == 3) == 2 * step
    counted = [
        gateway.metrics().total("tensorgate_requests_total", model="sum", code="OK") for gateway in many.gateways
    ]
    assert all(counted), counted
    assert many.gateways[0].stop() == 0
    wait_until(lambda: {who(many.http) for _ in range(10)} == {"gateway-1"})
    assert [add(many, name, 3, start=True, end=True) for name in names] == [3] * len(names)
