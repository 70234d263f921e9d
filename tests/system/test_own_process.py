"""Models with processes of their own: whatever they do, the gateway and its other models go on."""

import os
import signal
import socket
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from serving import DEMO, Answer, Gateway, below, running, wait_until

MODEL = """
import asyncio, ctypes, logging, os, sys, time
import numpy as np
import tensorgate

class Model:
    def __init__(self, context):
        self.name = context.name
        logging.getLogger("mine").warning("loaded\\nin two lines")

    def infer(self, inputs, request):
        kind = inputs["kind"].item().decode()
        return {"said": np.array([self.do(kind, request) or str(os.getpid())], dtype=object)}

    def do(self, kind, request):
        if kind == "exit":
            os._exit(3)
        if kind == "crash":
            ctypes.string_at(0)
        if kind == "kill":
            os.kill(os.getpid(), 9)
        if kind == "loop":
            print("somebody is here")
            while not request.cancelled:
                pass
            print("somebody left")
        if kind == "memory":
            np.ones(1 << 28)
        if kind == "half":
            sys.stdout.write("one ")
            sys.stdout.flush()
            time.sleep(0.1)
            print("line")
        if kind == "raise":
            raise ValueError("no such word")
        if kind == "refuse":
            raise tensorgate.InvalidArgument("not like this")
        if kind == "quit":
            sys.exit(7)
        if kind == "sleep":
            time.sleep(0.5)

class Streamed:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        for number in range(100):
            if number == 50 and inputs["kind"].item() == b"exit":
                os._exit(3)
            yield {"said": np.array([str(number)], dtype=object)}

class Awaited:
    def __init__(self, context):
        pass

    async def infer(self, inputs, request):
        await asyncio.sleep(0)
        return {"said": np.array([inputs["kind"].item()], dtype=object)}
"""
TENSORS = {
    "inputs": [{"name": "kind", "datatype": "BYTES", "shape": [1]}],
    "outputs": [{"name": "said", "datatype": "BYTES", "shape": [1]}],
}
LIMIT = 700 << 20
RESTARTS = "tensorgate_model_process_restarts_total"


def python(member: str = "Model", **options: Any) -> dict[str, Any]:
    return {"backend": "python", "path": f"models.py:{member}", "process": "own", **TENSORS, **options}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "models.py").write_text(textwrap.dedent(MODEL))
    demo = DEMO.parent / "demo" / "models" / "digits"
    config = {
        "listen": {"http": [{"bind": "127.0.0.1:0"}], "grpc": []},
        "models": {
            "one": python(max_memory_bytes=LIMIT),
            "two": python(instances=2),
            "three": python(),  # the pause after one end is short, so each of these has a model of its own
            "four": python(),
            "stream": python("Streamed"),
            "awaited": python("Awaited"),
            "inside": python() | {"process": "engine"},
            "digits": {"backend": "onnx", "path": str(demo), "process": "own"},
            "digits_inside": {"backend": "onnx", "path": str(demo)},
        },
    }
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    with running(file) as gateway:
        yield gateway
        found = below(gateway.process.pid)
        assert found
        gateway.stop()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in found))


def ask(gateway: Gateway, model: str, kind: str = "") -> Answer:
    tensor = {"name": "kind", "datatype": "BYTES", "shape": [1], "data": [kind]}
    return gateway.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


def pid_of(gateway: Gateway, model: str) -> int:
    return int(ask(gateway, model).json["outputs"][0]["data"][0])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_ready(gateway: Gateway, model: str) -> bool:
    return gateway.get(f"/v2/models/{model}/ready").status == 200


ENDS = [("exit", "exit status 3"), ("crash", "SIGSEGV"), ("kill", "SIGKILL")]


@pytest.mark.parametrize(("kind", "reason"), ENDS)
def test_a_process_that_ends_fails_its_request_and_stands_again(gateway: Gateway, kind: str, reason: str) -> None:
    before = gateway.metrics().total(RESTARTS, model="one", version="1", reason=reason)
    others = pid_of(gateway, "two")
    answer = ask(gateway, "one", kind)
    assert answer.status == 503
    assert answer.json == {"error": f"the process of model 'one' version 1 has ended ({reason})"}
    assert answer.headers["Retry-After"] == "1"
    assert ask(gateway, "one").status == 200  # it waits for the next process
    assert others in {pid_of(gateway, "two") for _ in range(4)}
    assert gateway.metrics().total(RESTARTS, model="one", version="1", reason=reason) == before + 1


def test_it_is_unready_meanwhile_and_others_are_not(gateway: Gateway) -> None:
    seen = []
    for _ in range(3):  # the pause before the next process doubles
        ask(gateway, "three", "exit")
        seen.append((is_ready(gateway, "three"), is_ready(gateway, "two")))
        wait_until(lambda: is_ready(gateway, "three"))
    assert (False, True) in seen
    assert all(two for _, two in seen)


def test_a_request_elsewhere_is_served_while_a_process_falls(gateway: Gateway) -> None:
    os.kill(pid_of(gateway, "two"), signal.SIGKILL)
    statuses = [ask(gateway, "two").status for _ in range(20)]
    assert statuses.count(200) >= 19  # one may have been on its way there
    wait_until(lambda: gateway.metrics().total(RESTARTS, model="two", reason="SIGKILL") > 0)


def test_an_onnx_model_is_killed_from_outside(gateway: Gateway) -> None:
    pixels = {"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": [0.5] * 64}
    inside = gateway.post("/v2/models/digits_inside/infer", {"inputs": [pixels]}).json
    own = gateway.post("/v2/models/digits/infer", {"inputs": [pixels]}).json
    assert own["outputs"] == inside["outputs"]
    before = gateway.metrics().total(RESTARTS)
    one = pid_of(gateway, "one")
    template, known = parent_of(one), {one, *(pid_of(gateway, "two") for _ in range(6))}
    victims = [pid for pid in below(template) if parent_of(pid) == template and pid not in known]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gateway.metrics().total(RESTARTS) >= before + len(victims))
    wait_until(lambda: is_ready(gateway, "digits"))
    assert gateway.post("/v2/models/digits/infer", {"inputs": [pixels]}).json["outputs"] == inside["outputs"]


def test_memory_has_a_limit(gateway: Gateway) -> None:
    pid = pid_of(gateway, "one")
    answer = ask(gateway, "one", "memory")
    assert (answer.status, answer.json) == (503, {"error": "failed to allocate memory for the request to model 'one'"})
    assert pid_of(gateway, "one") == pid


@pytest.mark.parametrize("kind", ["raise", "refuse", "quit"])
def test_errors_are_those_of_a_model_in_the_engine(gateway: Gateway, kind: str) -> None:
    own, inside = ask(gateway, "one", kind), ask(gateway, "inside", kind)
    assert (own.status, own.json) == (inside.status, inside.json)


def test_whoever_leaves_is_heard_of(gateway: Gateway) -> None:
    def leave() -> None:
        body = b'{"inputs": [{"name": "kind", "datatype": "BYTES", "shape": [1], "data": ["loop"]}]}'
        head = f"POST /v2/models/one/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
            connection.sendall(head + body)
            wait_until(lambda: "one: somebody is here" in gateway.said)

    leave()
    wait_until(lambda: "one: somebody left" in gateway.said)
    assert ask(gateway, "one").status == 200


def test_what_it_writes_is_in_the_log_as_whole_lines(gateway: Gateway) -> None:
    ask(gateway, "one", "half")
    wait_until(lambda: "\none: one line\n" in gateway.said)
    assert "WARNING mine: one: loaded\nin two lines\n" in gateway.said


def test_it_may_be_async(gateway: Gateway) -> None:
    assert ask(gateway, "awaited", "back").json["outputs"][0]["data"] == ["back"]


def generate(gateway: Gateway, kind: str) -> Sequence[str]:
    answer = gateway.post("/v2/models/stream/generate_stream", {"kind": kind})
    return [line for line in answer.body.decode().split("\n\n") if line]


def test_it_may_stream(gateway: Gateway) -> None:
    assert len(generate(gateway, "")) == 100
    broken = generate(gateway, "exit")
    assert 0 < len(broken) <= 51
    assert "has ended (exit status 3)" in broken[-1]
    assert len(generate(gateway, "")) == 100


def test_requests_that_wait_do_so_for_the_next_process(gateway: Gateway) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda kind=kind: answers.append(ask(gateway, "four", kind).status))
        for kind in ("sleep", "exit", "", "", "")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 200, 200, 200, 503]
