"""The holder of a port's connections, with connections that only count what they are asked."""

import asyncio

import pytest

from tensorgate.gateway.transport.clients import Clients


class Connection:
    """Closes when it is drained, unless it is busy."""

    def __init__(self, clients: Clients["Connection"], *, busy: bool = False) -> None:
        self._clients = clients
        self._busy = busy
        self.sweeps = 0
        self.was_aborted = False
        clients.open.add(self)

    def check_timeouts(self, now: float) -> None:
        self.sweeps += 1

    def drain(self) -> None:
        if not self._busy:
            self._clients.remove(self)

    def abort(self) -> list[asyncio.Task[None]]:
        self.was_aborted = True
        asyncio.get_running_loop().call_soon(self._clients.remove, self)
        return []


@pytest.mark.parametrize("busy", [[], [False], [True], [False, True]])
async def test_all_are_drained_and_the_busy_ones_aborted(busy: list[bool]) -> None:
    clients = Clients[Connection](60.0)
    clients.sweep()
    connections = [Connection(clients, busy=each) for each in busy]
    await clients.stop(0.01)
    assert (clients.stopping, clients.count) == (True, 0)
    assert [each.was_aborted for each in connections] == busy
    assert clients._timer.cancelled()


async def test_one_sweep_looks_at_all() -> None:
    clients = Clients[Connection](60.0)
    swept: list[int] = []
    clients.on_sweep = lambda: swept.append(1)
    connections = [Connection(clients) for _ in range(3)]
    clients.sweep()
    assert ([each.sweeps for each in connections], swept) == ([1, 1, 1], [1])
    await clients.stop(0)


async def test_a_connection_too_many_is_none_of_the_ports() -> None:
    elsewhere = 1
    clients = Clients[Connection](60.0, 2, lambda: elsewhere)
    connect = clients.bounded(asyncio.BaseProtocol)
    assert type(connect()) is asyncio.BaseProtocol
    connection = Connection(clients)
    assert type(connect()) is not asyncio.BaseProtocol
    clients.remove(connection)
    assert type(connect()) is asyncio.BaseProtocol
    assert Clients[Connection](60.0).bounded(asyncio.BaseProtocol) is asyncio.BaseProtocol
