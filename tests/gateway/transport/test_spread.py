"""Doors on one event loop: sockets of one address, and connections in equal numbers."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from waiting import until

from tensorgate.gateway.config.listeners import HTTP1, Listen, Listener, TlsFiles
from tensorgate.gateway.crossing.shared_state import SharedState
from tensorgate.gateway.transport.acceptor import Listening, listen
from tensorgate.gateway.transport.certificates import Certificates
from tensorgate.gateway.transport.clients import Clients
from tensorgate.gateway.transport.sockets import Sockets, bound, bound_for_doors, bound_path
from tensorgate.gateway.transport.spread import Spread
from tensorgate.gateway.transport.timeouts import ClientTimeouts

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Greeter(asyncio.Protocol):
    """Says which door it belongs to."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.door.clients.open.add(self)
        transport.write(f"{self.door.row}\n".encode())

    def connection_lost(self, error: Exception | None) -> None:
        self.door.clients.remove(self)

    def check_timeouts(self, now: float) -> None: ...

    def drain(self) -> None:
        self.transport.close()

    def abort(self) -> list[asyncio.Task[None]]:
        self.transport.abort()
        return []


class Door:
    def __init__(self, state: SharedState, row: int, folder: Path, most: int | None = None) -> None:
        self.row = row
        self.clients = Clients[Greeter](1, most)
        self.spread = Spread(state, row, lambda row: folder / f"door-{row}.sock")
        self.listening: Listening

    async def start(self, sock: socket.socket, certificates: Certificates | None = None) -> None:
        share = self.spread.share(0)
        self.listening = await listen(sock, lambda: Greeter(self), self.clients, certificates, ClientTimeouts(), share)
        self.spread.start()

    def stop(self, *, hand_on: bool = False) -> None:
        self.spread.stop()
        self.listening.close(hand_on=hand_on)
        for client in list(self.clients.open):
            client.abort()


class Doors:
    """Some doors of one address, and their clients."""

    def __init__(
        self, folder: Path, bind: str, certificates: Certificates | None, count: int, most: int | None = None
    ) -> None:
        self.state = SharedState.create(1, count)
        self.listen = Listen(http=(Listener(bind=bind),))
        self.certificates = certificates
        self.folder = folder
        self.doors = [Door(self.state, row, folder, most) for row in range(count)]
        self.clients: list[asyncio.StreamWriter] = []
        self.sockets: list[Sockets]

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Doors]:
        with bound_for_doors(self.listen, len(self.doors)) as self.sockets:
            for door, sockets in zip(self.doors, self.sockets, strict=True):
                await door.start(sockets.http[0].dup(), self.certificates)
            try:
                yield self
            finally:
                for writer in self.clients:
                    writer.close()
                for door in self.doors:
                    door.stop()
                await until(lambda: not any(self.open()))

    async def connect(self, **options: Any) -> int:
        """A new client -> the row of its door."""
        address = self.sockets[0].http[0].getsockname()
        if isinstance(address, str):
            reader, writer = await asyncio.open_unix_connection(address, **options)
        else:
            reader, writer = await asyncio.open_connection(*address, **options)
        self.clients.append(writer)
        return int(await reader.readline())

    def open(self) -> list[int]:
        return [len(door.clients.open) for door in self.doors]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield runner.run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "a.key")
    command = ["openssl", "req", "-x509", *key, "-out", "a.crt", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return TlsFiles(folder / "a.crt", folder / "a.key")


@pytest.mark.parametrize("kind", ["tcp", "tls", "unix"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_connections_are_spread_evenly(
    run: Any, tmp_path: Path, files: TlsFiles, kind: str, count: int, at_once: bool
) -> None:
    async def body() -> None:
        bind = f"unix:{tmp_path}/http.sock" if kind == "unix" else "127.0.0.1:0"
        certificates = Certificates(files, HTTP1) if kind == "tls" else None
        options: dict[str, Any] = {}
        if kind == "tls":
            options["ssl"] = context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with Doors(tmp_path, bind, certificates, count).run() as doors:
            clients = 8 * count
            if at_once:
                found = await asyncio.gather(*(doors.connect(**options) for _ in range(clients)))
            else:
                found = [await doors.connect(**options) for _ in range(clients)]
            assert sorted(found) == sorted(list(range(count)) * 8)
            assert doors.open() == [8] * count
            assert doors.state.open(0)[:count] == [8] * count
            for writer in doors.clients[: clients // 2]:
                writer.close()
            await until(lambda: sum(doors.state.open(0)) == clients // 2)
            for _ in range(clients // 2):
                await doors.connect(**options)
            assert doors.open() == [8] * count

    run(body())


def test_the_most_connections_are_those_of_all_doors(run: Any, tmp_path: Path) -> None:
    async def body() -> None:
        doors = Doors(tmp_path, "127.0.0.1:0", None, 2, most=3)
        async with doors.run():
            assert sorted([await doors.connect() for _ in range(3)]) in ([0, 0, 1], [0, 1, 1])
            reader, writer = await asyncio.open_connection(*doors.sockets[0].http[0].getsockname())
            assert await reader.read() == b""
            writer.close()
            doors.clients.pop().close()
            await until(lambda: sum(doors.state.open(0)) == 2)
            await doors.connect()

    run(body())


def test_a_door_that_is_gone_or_stops_gets_nothing(run: Any, tmp_path: Path) -> None:
    async def body() -> None:
        async with Doors(tmp_path, f"unix:{tmp_path}/http.sock", None, 2).run() as doors:
            assert {await doors.connect() for _ in range(4)} == {0, 1}
            stopped = doors.doors[1]
            stopped.stop(hand_on=True)
            assert [await doors.connect() for _ in range(4)] == [0] * 4
            doors.state.set_alive(1, alive=True)  # as after kill -9: nobody is there
            assert [await doors.connect() for _ in range(4)] == [0] * 4
            doors.doors[1] = Door(doors.state, 1, tmp_path)
            await doors.doors[1].start(doors.sockets[1].http[0].dup())
            assert [await doors.connect() for _ in range(8)] == [1] * 8

    run(body())


def test_what_is_on_its_way_when_a_door_stops_is_served(run: Any, tmp_path: Path) -> None:
    async def body() -> None:
        async with Doors(tmp_path, f"unix:{tmp_path}/http.sock", None, 2).run() as doors:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            first, second = doors.doors
            assert first.spread.send(1, 0, theirs)
            theirs.close()
            second.spread.stop()
            ours.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(ours, 10) == b"1\n"
            again = socket.socket()
            assert not first.spread.send(1, 0, again)
            again.close()
            ours.close()
            await until(lambda: not second.clients.open)

    run(body())


def test_a_failed_handshake_counts_no_more(run: Any, tmp_path: Path, files: TlsFiles) -> None:
    async def body() -> None:
        async with Doors(tmp_path, "127.0.0.1:0", Certificates(files, HTTP1), 2).run() as doors:
            address = doors.sockets[0].http[0].getsockname()
            reader, writer = await asyncio.open_connection(*address)
            await until(lambda: sum(doors.state.open(0)) == 1)
            writer.write(b"this is no TLS")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            await until(lambda: sum(doors.state.open(0)) == 0)
            writer.close()

    run(body())


# ------------------------------------------------------------------------------------------------------------- sockets


def test_doors_have_one_port_that_nobody_else_gets() -> None:
    listeners = Listen(http=(Listener(bind="127.0.0.1:0"),), grpc=(Listener(bind="[::1]:0"),))
    with bound_for_doors(listeners, 3) as slots:
        ports = {sock.getsockname()[1] for slot in slots for sock in slot.http}
        assert len(ports) == 1
        assert len({sock.fileno() for slot in slots for sock in slot.all()}) == 6
        bind = f"127.0.0.1:{ports.pop()}"
        taken = Listen(http=(Listener(bind=bind),))
        for binds in (bound(taken), bound_for_doors(taken, 2)):
            with pytest.raises(OSError, match=f"cannot listen on {bind}: Address already in use"), binds:
                pass
    with bound_for_doors(taken, 2):
        pass


def test_an_address_with_one_process_is_not_shared() -> None:
    with bound(Listen(http=(Listener(bind="127.0.0.1:0"),))) as sockets:
        sock = sockets.http[0]
        assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
        sock.listen()
        taken = Listen(http=(Listener(bind=f"127.0.0.1:{sock.getsockname()[1]}"),))
        with pytest.raises(OSError, match="Address already in use"), bound_for_doors(taken, 2):
            pass


def test_a_slots_socket_listens_again_after_its_door_shut_it() -> None:
    with bound_for_doors(Listen(http=(Listener(bind="127.0.0.1:0"),)), 2) as slots:
        sock = slots[0].http[0]
        address = sock.getsockname()
        sock.shutdown(socket.SHUT_RDWR)
        sock.listen()
        assert sock.getsockname() == address


def test_the_file_of_a_unix_socket_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with bound_path(path, 0o660) as sock:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        sock.listen()
        with pytest.raises(OSError, match="in use"), bound_path(path):
            pass
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced_and_another_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with bound_path(path):
        replaced = tmp_path / "b.sock"
        with socket.socket(socket.AF_UNIX) as another:
            another.bind(str(replaced))
        replaced.replace(path)
    assert path.exists()  # it is another's now
    path.unlink()
    path.write_text("precious")
    with pytest.raises(OSError, match="in use"), bound_path(path):
        pass
    assert path.read_text() == "precious"
