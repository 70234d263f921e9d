"""What becomes of one call, gathered while it is answered: for the access log, and for OpenTelemetry.

A trail is kept only where one of the two wants it; the rest of the house then pays for one look at None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.canonical import ModelView, OutgoingSpan
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.tensor import NOTHING

Stage = tuple[str, float, float]
"""(name, begun, ended), in seconds of time.monotonic()"""


class NoOutgoingSpan:
    """Of a call that nobody traces; another server may still be told so by `headers`."""

    __slots__ = ("headers",)

    def __init__(self, headers: Mapping[str, str] = NOTHING) -> None:
        self.headers = headers

    def end(self, *, failed: bool) -> None:
        """See Leg."""


NO_OUTGOING_SPAN: Final = NoOutgoingSpan()


_NOT_REPLIED: Final = Code.CANCELLED


class CallRecord:
    """One call. `view` is the model version that was asked last; `rows` are its own, `batch_rows` those of the batch
    that it ran in; `sent` are bytes of bodies; `status` and `grpc_code` are those of the last reply, over HTTP and over
    gRPC. `span` is None unless the call is traced, `trace_id`, too; `stages` are then what it went through since it had
    `begun`, in seconds of time.monotonic().
    """

    __slots__ = (
        "batch_rows",
        "begun",
        "compute_s",
        "grpc_code",
        "make_outgoing_span",
        "queue_s",
        "rows",
        "sent",
        "span",
        "stages",
        "status",
        "trace_id",
        "view",
    )
    begun: float
    stages: list[Stage]

    def __init__(self) -> None:
        self.view: ModelView | None = None
        self.rows = self.batch_rows = self.sent = self.status = 0
        self.queue_s = self.compute_s = 0.0
        self.grpc_code = _NOT_REPLIED
        self.span: Any = None
        self.trace_id: str | None = None
        self.make_outgoing_span: Callable[[str], OutgoingSpan] | None = None

    def submitted(self, view: ModelView) -> None:
        """A request is about to be, to that model."""
        self.view = view
        if self.span is not None and not self.stages:
            self.stages.append(("decode", self.begun, time.monotonic()))

    def replied(self, reply: Reply, begun: float = 0.0) -> None:
        """A reply is about to be sent; it was begun to be encoded at that time."""
        if begun and self.span is not None:
            self.stages.append(("encode", begun, time.monotonic()))
        body = reply.body
        self.status = reply.http_status
        self.grpc_code = reply.grpc_code
        self.sent += len(body) if type(body) is bytes else _size(body)

    def passed(self, piece: Buffer) -> None:
        """A piece was sent behind the last reply."""
        self.sent += len(piece)

    def ran(self, rows: int, batch_rows: int, submitted: float, started: float, ended: float) -> None:
        """See Traced. Of several requests in a call, rows add up, and the longest times count."""
        if self.rows:
            batch_rows = max(self.batch_rows, batch_rows)
            submitted = min(submitted, started - self.queue_s)
            ended = max(ended, started + self.compute_s)
        self.rows += rows
        self.batch_rows = batch_rows
        self.queue_s = started - submitted
        self.compute_s = ended - started
        if self.span is not None:
            self.stages += (("queue", submitted, started), ("infer", started, ended))

    def left(self, rows: int, submitted: float, ended: float) -> None:
        """See Traced."""
        self.rows += rows
        self.queue_s = max(self.queue_s, ended - submitted)
        if self.span is not None:
            self.stages.append(("queue", submitted, ended))

    def upstream(self, target: str) -> OutgoingSpan:
        """See Traced."""
        return NO_OUTGOING_SPAN if self.make_outgoing_span is None else self.make_outgoing_span(target)

    def asked(self, target: str, span_id: str, begun: float, ended: float, *, failed: bool) -> None:
        """See Traced."""
        if self.span is not None:
            self.span.asked(target, span_id, begun, ended, failed=failed)

    def carried(self) -> Mapping[str, str]:
        """See Traced."""
        if self.span is not None:
            headers: Mapping[str, str] = self.span.headers()
            return headers
        return self.upstream("").headers


def _size(body: Buffer | Sequence[Buffer]) -> int:
    return len(body) if isinstance(body, (bytes, bytearray, memoryview)) else sum([len(part) for part in body])
