"""HTTP and gRPC listeners of several doors, whose connections stay open, and listeners at Unix sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
import pytest
import uvloop
import yaml
from waiting import until

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.config.listeners import Listen, Listener
from tensorgate.gateway.crossing.shared_state import SharedState
from tensorgate.gateway.telemetry.connection_metrics import ListenerCounters
from tensorgate.gateway.transport import acceptor
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits
from tensorgate.gateway.transport.grpc_server import GrpcServer
from tensorgate.gateway.transport.http_server import HttpLimits, HttpListener, probe_page
from tensorgate.gateway.transport.sockets import bound_for_doors
from tensorgate.gateway.transport.spread import Spread

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]
MODEL = """
class Model:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        return {"y": inputs["x"]}
"""


def listeners() -> tuple[HttpListener, GrpcServer]:
    service: Any = SimpleNamespace(authorizer=None)
    limits = HttpLimits(1 << 20, 1 << 20, grace_seconds=1)
    return (
        HttpListener(service, [], {"/healthz": probe_page(lambda: True)}, limits),
        GrpcServer({}, ListenerCounters(), GrpcLimits(1 << 20)),
    )


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("fast_path", [True, False])
def test_connections_that_stay_are_spread_evenly(
    loop: Any, fast_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 of each kind, over two doors; those of HTTP are aiohttp's after their first request."""
    if not fast_path:
        monkeypatch.setattr("tensorgate.gateway.transport.http_server.is_taken", lambda name: False)

    async def body() -> None:
        state = SharedState.create(2, 2)
        addresses = Listen(http=(Listener(bind="127.0.0.1:0"),), grpc=(Listener(bind="127.0.0.1:0"),))
        with bound_for_doors(addresses, 2) as slots:
            doors = []
            for row, sockets in enumerate(slots):
                spread = Spread(state, row, lambda row: tmp_path / f"{row}.sock")
                http, rpc = listeners()
                await http.start(sockets.http[0], spread.share(0))
                await rpc.start(sockets.grpc[0], spread.share(1))
                spread.start()
                doors.append((spread, http, rpc))
            ports = [slots[0].http[0].getsockname()[1], slots[0].grpc[0].getsockname()[1]]
            streams = [
                await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(16))) for port in ports
            ]
            for reader, writer in streams[0]:
                writer.write(b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 405")
            for reader, _ in streams[1]:
                await reader.read(9)  # settings
            assert [state.open(listener)[:2] for listener in (0, 1)] == [[8, 8], [8, 8]]
            assert [(http.traffic().connections, rpc.connections) for _, http, rpc in doors] == [(8, 8), (8, 8)]
            for _, writer in streams[0][::2] + streams[1][1:]:
                writer.close()
            await until(lambda: [sum(state.open(listener)) for listener in (0, 1)] == [8, 1])
            for _, writer in streams[0] + streams[1]:
                writer.close()
            for spread, http, rpc in doors:
                spread.stop()
                await asyncio.gather(http.stop(), rpc.stop(0.1))
            assert [sum(state.open(listener)) for listener in (0, 1)] == [0, 0]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(body())


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    (tmp_path / "model.py").write_text(MODEL)
    tensor = {"datatype": "FP32", "shape": [-1, 1]}
    model = {
        "backend": "python",
        "path": "model.py:Model",
        "max_batch_size": 8,
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }
    listen = {
        "http": [{"bind": f"unix:{tmp_path}/http.sock", "socket_mode": "600"}],
        "grpc": [{"bind": f"unix:{tmp_path}/grpc.sock"}],
    }
    limits = [{"by": "address", "requests_per_second": 100}]
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": listen, "models": {"m": model}, "rate_limits": limits}))
    kinds = registries()
    made = App(load_config(file, kinds), kinds)
    await made.start()
    await made.load(lambda report: None)
    yield made
    await made.drain()


async def test_an_app_at_unix_sockets(app: App, tmp_path: Path) -> None:
    paths = [tmp_path / "http.sock", tmp_path / "grpc.sock"]
    assert app.addresses == [f"http+unix:{paths[0]}", f"grpc+unix:{paths[1]}"]
    assert app.examples() == {}
    request = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [2.5]}]}
    connector = aiohttp.UnixConnector(str(paths[0]))
    async with (
        aiohttp.ClientSession("http://localhost", connector=connector) as http,
        grpc.aio.insecure_channel(f"unix:{paths[1]}") as channel,
    ):
        async with http.post("/v2/models/m/infer", json=request) as answer:
            assert (answer.status, (await answer.json())["outputs"][0]["data"]) == (200, [2.5])
        ready = message("inference.ModelReadyRequest")(name="m").SerializeToString()
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
        assert message("inference.ModelReadyResponse").FromString(await call(ready)).ready
        with pytest.raises(OSError, match=f"cannot listen on unix:{paths[0]}: Address already in use"):
            await App(app.config, registries()).start()
    await app.drain()
    assert not any(path.exists() for path in paths)


async def test_who_connects_while_a_port_closes_is_served_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last connection that is accepted and the end of the socket, a client that begins is not reset."""
    address = Listen(http=(Listener(bind="127.0.0.1:0"),))
    state = SharedState.create(1, 1)
    with bound_for_doors(address, 1) as ((sockets,)):
        spread = Spread(state, 0, lambda row: Path(f"/nowhere/{row}"))
        http, _ = listeners()
        await http.start(sockets.http[0], spread.share(0))
        port = sockets.http[0].getsockname()[1]
        late: list[socket.socket] = []
        shut = acceptor.shut

        def begin_late(sock: socket.socket) -> None:
            late.append(socket.socket())
            late[0].setblocking(False)
            assert late[0].connect_ex(("127.0.0.1", port)) == errno.EINPROGRESS
            shut(sock)

        monkeypatch.setattr(acceptor, "shut", begin_late)
        with socket.create_connection(("127.0.0.1", port)) as waiting:
            waiting.setblocking(False)
            await http.stop()
            loop = asyncio.get_running_loop()
            assert await loop.sock_recv(waiting, 100) == b""  # it was accepted, and ended as idle ones are
        (client,) = late
        with client, pytest.raises(ConnectionRefusedError):
            await loop.sock_sendall(client, b"GET")
