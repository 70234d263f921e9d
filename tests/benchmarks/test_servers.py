"""Ports, cores and processes, with real sockets and a real server."""

import os
import socket
import sys
import time

import pytest

from benchmarks.servers import HOST, Failed, Server, check_port, pinned, running


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("host", [HOST, "0.0.0.0"])
def test_a_port_that_another_would_share_is_not_free(port: int, host: str) -> None:
    check_port(port)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen()
        with pytest.raises(Failed, match=f"port {port} is not free"):
            check_port(port)
    check_port(port)


def test_pinned_lasts_as_long_as_its_block() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    with pinned(core):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before


def test_a_server_runs_on_its_core_and_is_gone_afterwards(port: int) -> None:
    core = max(os.sched_getaffinity(0))
    with running("bare", [sys.executable, "-m", "benchmarks.bare", str(port)], port, core) as server:
        assert os.sched_getaffinity(server.pid) == {core}
        assert server.post("/v1/models/identity:predict", b'{"instances": [[1.0]]}', {}) == b'{"predictions":[[1.0]]}'
        assert server.cpu_us() > 0
        with pytest.raises(Failed, match="404"):
            server.post("/v1/models/other:predict", b"{}", {})
    check_port(port)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_server_that_ends_is_quoted(port: int) -> None:
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(Failed, match="gateway ended; it said:\nno such model"), running("gateway", command, port, core):
        pass


def test_cpu_time_is_that_of_the_process() -> None:
    here = Server("tests", 0, os.getpid())
    before, user = here.cpu_us(), time.process_time()
    while time.process_time() - user < 0.1:
        pass
    assert 80_000 <= here.cpu_us() - before <= 400_000
