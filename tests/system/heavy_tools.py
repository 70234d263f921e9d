"""The genuine programs in .tools-heavy, which unpack.py puts there, and how they start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from client_scripts import environment
from serving import HOST, ROOT

TOOLS = ROOT / ".tools-heavy"
NUMPY = TOOLS / "numpy"
STARTS_WITHIN_S = 120.0
STOPS_WITHIN_S = 40.0


def program(path: str) -> Path:
    """A program below the folder; the test fails where it is missing."""
    found: Path = TOOLS / path
    if not found.exists():
        pytest.fail(f"{path} is not there: say `make test-system`", pytrace=False)
    return found


def surroundings(**more: str) -> dict[str, str]:
    """The environment variables of such a program: it finds its libraries, and no proxy."""
    libraries = os.pathsep.join((str(TOOLS / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")))
    return environment() | {"LD_LIBRARY_PATH": libraries} | more


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def triton(repository: Path, log: Path) -> Iterator[tuple[int, int]]:
    """A real Triton that serves the repository: the ports of its servers for HTTP and gRPC."""
    server = program("pytriton/tritonserver/bin/tritonserver")
    ports = free_ports(3)
    options: dict[str, Any] = {"model-repository": repository, "backend-directory": server.parents[1] / "backends"}
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
        yield ports[0], ports[1]
        process.terminate()
        process.wait(STOPS_WITHIN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path, path: str = "/v2/health/ready") -> None:
    give_up = time.monotonic() + STARTS_WITHIN_S
    while not is_ready(port, path):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < give_up, log.read_text(errors="replace")  # real time: another's server
        time.sleep(0.2)  # real time: another's server


def is_ready(port: int, path: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{HOST}:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
