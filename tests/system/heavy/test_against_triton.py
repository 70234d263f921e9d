"""A real Triton 2.51 answers today as triton/answers.json says, so that the transcript stays an honest one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from heavy_tools import NUMPY, program, surroundings
from serving import HOST, ROOT

pytestmark = pytest.mark.heavy

RECORD = ROOT / "tests/system/triton/record.py"
ANSWERS = ROOT / "tests/system/triton/answers.json"
STARTS_WITHIN_S = 120.0
STOPS_WITHIN_S = 40.0
RECORDS_WITHIN_S = 120.0


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def record(*arguments: str | Path) -> None:
    """`record.py ARGUMENTS`, which imports what stands beside it."""
    subprocess.run([sys.executable, RECORD, *arguments], check=True, timeout=RECORDS_WITHIN_S)


@contextmanager
def triton(repository: Path, log: Path) -> Iterator[int]:
    """A real Triton that serves the repository: the port of its HTTP server."""
    server = program("pytriton/tritonserver/bin/tritonserver")
    ports = free_ports(3)
    options = {"model-repository": repository, "backend-directory": server.parents[1] / "backends"}
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        options |= {f"{name}-address": HOST, f"{name}-port": port}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [server, *(f"--{name}={value}" for name, value in options.items()), "--exit-on-error=false"],
            cwd=NUMPY,  # where its Python models find a NumPy that they can use
            env=surroundings(PYTHONPATH=str(NUMPY)),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its Python models are processes of their own, and end with it
        )
    try:
        wait_until_ready(process, ports[0], log)
        yield ports[0]
        process.terminate()
        process.wait(STOPS_WITHIN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = time.monotonic() + STARTS_WITHIN_S
    while not is_ready(port):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < give_up, log.read_text(errors="replace")
        time.sleep(0.2)


def is_ready(port: int) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{HOST}:{port}/v2/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of a server just started."""
    folder = tmp_path_factory.mktemp("triton")
    repository, answers = folder / "repository", folder / "answers.json"
    record("build", repository)
    with triton(repository, folder / "log") as port:
        record("ask", str(port), answers, str(repository))
    found: dict[str, Any] = json.loads(answers.read_text())
    return found


COMMITTED: dict[str, Any] = json.loads(ANSWERS.read_text())


def test_the_same_was_asked(recorded: dict[str, Any]) -> None:
    assert list(recorded) == list(COMMITTED)


@pytest.mark.parametrize("name", COMMITTED)
def test_a_real_triton_answers_as_recorded(name: str, recorded: dict[str, Any]) -> None:
    expected, found = COMMITTED[name], recorded[name]
    if name.startswith("config "):  # the order of the keys of a map changes from start to start
        expected, found = ({**answer, "body": json.loads(answer["body"])} for answer in (expected, found))
    assert found == expected
