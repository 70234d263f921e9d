"""What becomes of one call, gathered while it is answered: for the access log, and for OpenTelemetry.

A trail is kept only where one of the two wants it; the rest of the house then pays for one look at None.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from gateway.canonical import NOTHING, InferRequest, Leg
from gateway.errors import Code
from gateway.ports import Call, Endpoint, ModelView, Observe, Reply

Send = Callable[[Reply], Awaitable[None]]
Stage = tuple[str, float, float]
"""(name, begun, ended), in seconds of time.monotonic()"""


class NoLeg:
    """Of a call that nobody traces; another server may still be told so by `headers`."""

    __slots__ = ("headers",)

    def __init__(self, headers: Mapping[str, str] = NOTHING) -> None:
        self.headers = headers

    def end(self, *, failed: bool) -> None:
        """See Leg."""


NO_LEG: Final = NoLeg()


class Trail:
    """One call. `begun` is when it was read, in seconds of time.monotonic(). `view` is the model version that was
    asked last; `rows` are its own, `batch_rows` those of the batch that it ran in; `sent` are bytes of bodies;
    `status` and `told` are those of the last reply, over HTTP and over gRPC. `span` is None unless the call is
    traced; `stages` are then what it went through.
    """

    __slots__ = (
        "batch_rows",
        "begun",
        "call",
        "compute_s",
        "endpoint",
        "make_leg",
        "queue_s",
        "received",
        "rows",
        "sent",
        "span",
        "stages",
        "status",
        "told",
        "view",
    )

    def __init__(self, endpoint: Endpoint, call: Call, begun: float) -> None:
        self.begun = begun
        self.call = call
        self.endpoint = endpoint
        self.received = len(call.body)
        self.view: ModelView | None = None
        self.rows = 0
        self.batch_rows = 0
        self.queue_s = 0.0
        self.compute_s = 0.0
        self.sent = 0
        self.status = 0
        self.told = Code.CANCELLED
        self.span: Any = None
        self.stages: list[Stage] = []
        self.make_leg: Callable[[str], Leg] | None = None

    def follow(self, request: InferRequest) -> None:
        """Note what becomes of a request, which is about to be submitted."""
        self.view = request.view
        request.lifeline.trail = self

    def ran(self, rows: int, batch_rows: int, submitted: float, started: float, ended: float) -> None:
        """See Traced. Of several requests in a call, rows add up, and the longest times count."""
        self.rows += rows
        self.batch_rows = max(self.batch_rows, batch_rows)
        self.queue_s = max(self.queue_s, started - submitted)
        self.compute_s = max(self.compute_s, ended - started)
        if self.span is not None:
            self.stages += (("queue", submitted, started), ("infer", started, ended))

    def left(self, rows: int, submitted: float, ended: float) -> None:
        """See Traced."""
        self.rows += rows
        self.queue_s = max(self.queue_s, ended - submitted)
        if self.span is not None:
            self.stages.append(("queue", submitted, ended))

    def upstream(self, target: str) -> Leg:
        """See Traced."""
        return NO_LEG if self.make_leg is None else self.make_leg(target)

    def sending(self, send: Send) -> Send:
        """The same as `send`, but seen."""

        async def seen(reply: Reply) -> None:
            body = reply.body
            self.status = reply.http_status
            self.told = reply.grpc_code
            self.sent += len(body) if isinstance(body, (bytes, bytearray, memoryview)) else sum(map(len, body))
            await send(reply)

        return seen

    def observing(self, observe: Observe) -> Observe:
        """The same as `observe`, but kept if the call is traced."""
        if self.span is None:
            return observe

        def seen(stage: str, seconds: float) -> None:
            now = time.monotonic()
            self.stages.append((stage, now - seconds, now))
            observe(stage, seconds)

        return seen
