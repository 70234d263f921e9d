"""A gRPC connection without a socket and without a loop: bytes go in, frames come out, and every step is counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import h2_wire as h2
from h2_wire import Wire

from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.telemetry.connection_metrics import ListenerCounters
from tensorgate.gateway.transport.grpc_connection import GrpcServerConnection
from tensorgate.gateway.transport.grpc_context import GrpcContext
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits, Handler, Rpc
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire.http2 import new_scratch
from tensorgate.gateway.wire.http2_frames import FRAME_HEADER, FRAME_HEADER_BYTES, FrameBudget

ASK, HOLD, NOBODY = "/core.Core/Ask", "/core.Core/Hold", "/core.Core/Nobody"
BEGUN = h2.MAGIC + h2.settings()
_SCRATCH = new_scratch()


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Pipe:
    """What a connection takes for its transport: what is written is kept, and how often."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.writes = 0
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        assert not self.closed, "written behind the end"
        self.data += data
        self.writes += 1

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *option: None) if name == "socket" else None


class Task:
    """Of a flow: its next step is taken at once, and those behind that by nobody but who cancels it."""

    def __init__(self, flow: Coroutine[Any, Any, None]) -> None:
        self._flow = flow
        self._error: Exception | None = None
        self.is_over = False
        try:
            flow.send(None)
        except StopIteration:
            self.is_over = True
        except Exception as error:
            self._error, self.is_over = error, True

    def done(self) -> bool:
        return self.is_over

    def cancelled(self) -> bool:
        return False

    def exception(self) -> Exception | None:
        return self._error

    def add_done_callback(self, told: Callable[[Any], None]) -> None:
        if self.is_over:
            told(self)

    def cancel(self) -> None:
        self.is_over = True
        self._flow.close()


class _Never:
    def __await__(self) -> Iterator[None]:
        yield None


class Core:
    """One connection of a port that has three methods: one that answers with the call's metadata and the size of its
    message, one that never answers, and one that lets nobody in.
    """

    def __init__(self, clock: Clock | None = None, streams: int = 10, metadata: int = 8190, message: int = 1 << 30):
        self.calls: list[tuple[dict[str, str], int]] = []
        self.steps: deque[Callable[[], None]] = deque()
        """What the connection has put off until others have had their turn."""
        handlers = {
            ASK: Handler("unary", self._ask),
            HOLD: Handler("unary", self._hold),
            NOBODY: Handler("unary", self._refuse, lambda headers: False),
        }
        loop: Any = SimpleNamespace(
            create_task=Task, call_soon=self.steps.append, call_later=lambda *what: SimpleNamespace(cancel=lambda: None)
        )
        clients: Any = SimpleNamespace(open=set(), stopping=False, remove=lambda connection: None)
        limits = GrpcLimits(message, metadata, streams)
        context = GrpcContext(
            handlers, ListenerCounters(), limits, ClientTimeouts(), clients, loop, _SCRATCH, b"", streams
        )
        self.connection = GrpcServerConnection(context, FrameBudget(clock or Clock()))
        self.pipe = Pipe()
        self.connection.connection_made(self.pipe)
        self.wire = Wire(None, None)  # type: ignore[arg-type]
        self.wire.acknowledges = False
        self._seen = 0

    async def _ask(self, rpc: Rpc, body: bytes) -> None:
        self.calls.append((dict(rpc.headers), len(body)))
        rpc.send(Reply(repr((sorted(rpc.headers.items()), len(body))).encode()))

    async def _hold(self, rpc: Rpc, body: bytes) -> None:
        await _Never()

    async def _refuse(self, rpc: Rpc, body: bytes) -> None:
        assert body == b"", "kept what nobody needs"
        await rpc.fail(Reply(b"", grpc_code=Code.UNAUTHENTICATED, message="who are you?"))

    def take(self, data: bytes) -> int:
        """One read of at most these bytes, and no step that was put off -> how many were taken."""
        room = self.connection.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        self.connection.buffer_updated(size)
        return size

    def feed(self, *parts: bytes) -> Core:
        """All of it, and all that is put off; what comes behind the end is not read any more."""
        data = memoryview(b"".join(parts))
        while True:
            while self.steps:
                self.steps.popleft()()
            if not data or self.pipe.closed:
                break
            data = data[self.take(bytes(data[: 1 << 20])) :]
        self.look()
        return self

    def look(self) -> None:
        """Read what was written."""
        data = self.pipe.data
        while len(data) - self._seen >= FRAME_HEADER_BYTES:
            most, least, kind, flags, stream = FRAME_HEADER.unpack_from(data, self._seen)
            size = most << 8 | least
            at = self._seen + FRAME_HEADER_BYTES
            assert len(data) >= at + size, "half a frame"
            self.wire.frames.append((kind, flags, stream, size))
            self.wire._take(kind, flags, stream, bytes(data[at : at + size]))
            self._seen = at + size

    @property
    def open(self) -> int:
        """How many calls there are."""
        return len(self.connection._streams)

    @property
    def broken(self) -> int | None:
        """Why the connection is at its end; None while it goes on."""
        assert (self.wire.goaway is None) == (not self.pipe.closed)
        return None if self.wire.goaway is None else self.wire.goaway[1]

    def leave(self) -> None:
        """The client is gone."""
        self.connection.connection_lost(None)
