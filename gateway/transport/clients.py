"""The open connections of one port: how many there may be, what looks after them, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class ClientConnection(Protocol):
    """One open connection."""

    def check_timeouts(self, now: float) -> None:
        """End what has waited for too long; `now` is the loop's time."""
        ...

    def drain(self) -> None:
        """Take nothing new, and close once all is answered that has been asked."""
        ...

    def abort(self) -> list[asyncio.Task[None]]:
        """Close at once. -> the tasks that end with it."""
        ...


C = TypeVar("C", bound=ClientConnection)


class Clients(Generic[C]):
    """All connections of a port. `elsewhere` counts those that are no longer in `open`, but count for the bound."""

    def __init__(
        self, sweep_s: float, max_connections: int | None = None, elsewhere: Callable[[], int] = lambda: 0
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sweep_s = sweep_s
        self._max_connections = max_connections
        self._elsewhere = elsewhere
        self._all_gone = asyncio.Event()
        self.open: set[C] = set()
        self.stopping = False
        """Nothing new is taken."""
        self.on_sweep: Callable[[], None] = lambda: None
        """Called before each sweep."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a connection has gone from `open`, or has come or gone elsewhere."""

    @property
    def count(self) -> int:
        """How many connections there are, in `open` and elsewhere. May be asked in any thread."""
        return len(self.open) + self._elsewhere()

    def bounded(
        self, connect: Callable[[], asyncio.BaseProtocol], others: Callable[[], int] = lambda: 0
    ) -> Callable[[], asyncio.BaseProtocol]:
        """The same as `connect`, which makes a protocol, but that a connection too many is closed at once. `others`
        counts those that other processes have of the same port.
        """
        max_connections = self._max_connections
        if max_connections is None:
            return connect
        return lambda: connect() if self.count + others() < max_connections else _Excess()

    def remove(self, client: C) -> None:
        """A connection is closed, or belongs to somebody else now."""
        self.open.discard(client)
        self.on_change()
        if not self.open:
            self._all_gone.set()

    def sweep(self) -> None:
        """Check all timeouts, now and every `sweep_s`. One timer for all, since one for each call would cost more."""
        self.on_sweep()
        now = self._loop.time()
        for client in list(self.open):
            client.check_timeouts(now)
        self._timer = self._loop.call_later(self._sweep_s, self.sweep)

    async def stop(self, grace: float) -> None:
        """Drain all connections for `grace` seconds, then abort them. The port accepts no more already."""
        await asyncio.sleep(0)  # those that have connected are known then, and what has arrived is read
        self.stopping = True
        for client in list(self.open):
            client.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._gone()
        tasks = [task for client in list(self.open) for task in client.abort()]
        await self._gone()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self._timer.cancel()

    async def _gone(self) -> None:
        if self.open:
            self._all_gone.clear()
            await self._all_gone.wait()


class _Excess(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
