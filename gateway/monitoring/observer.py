"""Who is told of every call that ends: the access log, OpenTelemetry's spans, and what counts for each caller."""

from __future__ import annotations

from collections.abc import Callable

from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.monitoring.access_log import AccessLog, LogFile
from tensorgate.gateway.monitoring.spans import Spans
from tensorgate.gateway.monitoring.usage import Usage
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.call_record import CallRecord
from tensorgate.gateway.telemetry.request_id import new


def _begin_untraced(endpoint: Endpoint, call: Call, begun: float) -> CallRecord:
    return CallRecord()


class Observer:
    """Tells the access log, spans and `usage`, as far as they are there. All methods are for the event loop but
    `reopen` and `close`.
    """

    on_traced: Callable[[CallOutcome, CallRecord], None] = staticmethod(lambda outcome, record: None)
    """Hears of each call that left a trace, once it is over."""

    def __init__(
        self, access_log: AccessLog | None, file: LogFile | None, spans: Spans | None, usage: Usage | None
    ) -> None:
        self.access_log = access_log
        self.usage = usage
        self._file = file
        self._spans = spans
        if spans is None and usage is None and access_log is not None:  # the same, without what is for spans
            self.begin = _begin_untraced  # type: ignore[method-assign]
            self.end = access_log.end  # type: ignore[method-assign]

    def begin(self, endpoint: Endpoint, call: Call, begun: float) -> CallRecord:
        """A call has begun, at that time in seconds of time.monotonic() -> its record."""
        call_record = CallRecord()
        if self._spans is not None:
            self._spans.begin(call_record, endpoint, call, begun)
        return call_record

    def end(self, outcome: CallOutcome) -> None:
        """A call is over."""
        call = outcome.call
        call_record = outcome.call_record
        if self.usage is not None:
            self.usage.count(outcome)
        if self.access_log is not None:
            call.request_id = call.request_id or new()
            self.access_log.end(outcome)
        outcome.call_record = None  # no cycle: the body is to go at once, and not when Python's collector comes by
        if self._spans is not None and call_record is not None and call_record.span is not None:
            if call_record.view is None:
                call_record.view = getattr(outcome.question, "view", None)
            self._spans.end(call_record, outcome)
            self.on_traced(outcome, call_record)

    def reopen(self) -> None:
        """The log's file was renamed."""
        if self.access_log is not None and self._file is not None:
            self.access_log.flush()
            self._file.reopen()

    def close(self) -> None:
        """Write and send what waits. Takes some seconds at most."""
        if self._file is not None:
            self._file.close()
        if self._spans is not None:
            self._spans.close()
