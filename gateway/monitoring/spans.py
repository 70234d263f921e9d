"""OpenTelemetry: a span for each traced call, with one for every stage and for every server that was asked.

Spans are made when a call is over, of times that were kept; only the call's own begins with it, for what it asks of
others must name it. OpenTelemetry's library makes and sends them, in a thread of its own, and is imported only here.
Source: OpenTelemetry's semantic conventions for HTTP and RPC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tensorgate.gateway.config import OpenTelemetryConfig
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import OutgoingSpan
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.call_record import CallRecord, NoOutgoingSpan
from tensorgate.gateway.telemetry.trace_context import Parent, is_sampled, parent_of, untraced

_CLOSES_WITHIN_S: Final = 3.0
_SENDS_WITHIN_S: Final = 5.0
_MAX_TEXT_CHARS: Final = 512
_OUR_FAULT: Final = frozenset(
    (Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS)
)


def exporter(config: OpenTelemetryConfig) -> Any:
    """Makes the exporter that sends spans to the configured collector. Raises ImportError."""
    url = urlsplit(config.endpoint)
    if config.protocol == "http":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        path = url.path if url.path not in ("", "/") else "/v1/traces"
        return OverHttp(endpoint=url._replace(path=path).geturl(), timeout=_SENDS_WITHIN_S)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    return OverGrpc(endpoint=config.endpoint, insecure=url.scheme == "http", timeout=_SENDS_WITHIN_S)


class Spans:
    """Decides which calls are traced, and makes their spans. Raises ImportError where the library is not installed."""

    def __init__(self, config: OpenTelemetryConfig, version: str, sender: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON

            sender = sender or exporter(config)
        except ImportError:
            missing = "opentelemetry: needs packages that are not installed"
            raise ImportError(f"{missing}: {install_command('otel')}") from None
        self._ratio = config.ratio
        self._trace = trace
        resource = Resource.create({"service.name": config.service_name, "service.version": version})
        self._ids = _ids()  # what comes here is sampled
        self._provider = TracerProvider(ALWAYS_ON, resource, False, id_generator=self._ids)
        batch = min(512, config.max_waiting)
        self._provider.add_span_processor(BatchSpanProcessor(sender, config.max_waiting, 1000, batch))
        self._tracer = self._provider.get_tracer("tensorgate", version)

    def begin(self, call_record: CallRecord, endpoint: Endpoint, call: Call, begun: float) -> None:
        """A call begins: decide whether it is traced."""
        parent = parent_of(call.headers)
        if is_sampled(parent, self._ratio):
            call_record.begun = begun
            call_record.stages = []
            tools = self._trace, self._tracer, self._ids
            call_record.span = CallSpan(*tools, parent, call_record, endpoint, call, begun)
            call_record.trace_id = call_record.span.trace_id
            call_record.make_outgoing_span = call_record.span.upstream
        else:
            call_record.make_outgoing_span = lambda target: NoOutgoingSpan((parent or untraced()).headers())

    def end(self, call_record: CallRecord, outcome: CallOutcome) -> None:
        """End the spans of a call that is over."""
        call_record.span.end(outcome.call.request_id, outcome.code, outcome.failure.error)

    def close(self) -> None:
        """Send what waits, as far as that works within moments."""
        last = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        last.start()
        last.join(_CLOSES_WITHIN_S)


def _ids() -> Any:
    """The numbers of spans: chance, but for one that is given just before its span starts."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        given = 0

        def generate_span_id(self) -> int:
            given, self.given = self.given, 0
            return given or super().generate_span_id()

    return Ids()


class CallSpan:
    """The spans of one call."""

    __slots__ = (
        "_call",
        "_call_record",
        "_context",
        "_endpoint",
        "_ids",
        "_offset_ns",
        "_span",
        "_state",
        "_trace",
        "_tracer",
        "trace_id",
    )

    def __init__(
        self,
        trace: Any,
        tracer: Any,
        ids: Any,
        parent: Parent | None,
        call_record: CallRecord,
        endpoint: Endpoint,
        call: Call,
        begun: float,
    ) -> None:
        self._call = call
        self._endpoint = endpoint
        self._trace = trace
        self._tracer = tracer
        self._ids = ids
        self._call_record = call_record
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._state = parent.state if parent is not None else ""
        self._span = tracer.start_span(
            _name(endpoint, call), _context(trace, parent), trace.SpanKind.SERVER, start_time=self._ns(begun)
        )
        self._context = trace.set_span_in_context(self._span)
        self.trace_id = format(self._span.get_span_context().trace_id, "032x")

    def upstream(self, target: str) -> OutgoingSpan:
        """A call to another server begins."""
        return UpstreamSpan(
            self._tracer.start_span(target, self._context, self._trace.SpanKind.CLIENT), self._trace, self._state
        )

    def asked(self, target: str, span_id: str, begun: float, ended: float, *, failed: bool) -> None:
        """Another process has asked another server, which knows this span already."""
        self._ids.given = int(span_id, 16)
        span = self._tracer.start_span(target, self._context, self._trace.SpanKind.CLIENT, start_time=self._ns(begun))
        if failed:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(self._ns(ended))

    def headers(self) -> Mapping[str, str]:
        """What another process sends along that asks other servers for this call: the call itself is their parent."""
        context = self._span.get_span_context()
        return Parent(self.trace_id, format(context.span_id, "016x"), sampled=True, state=self._state).headers()

    def end(self, request_id: str, code: Code, kind: str) -> None:
        call_record, call = self._call_record, self._call
        for name, begun, ended in call_record.stages:
            stage = self._tracer.start_span(name, self._context, start_time=self._ns(begun))
            stage.end(self._ns(ended))
        self._span.set_attributes(_attributes(self._endpoint, call, call_record, request_id, code, kind))
        failed = call_record.status >= 500 if call.transport == "http" else call_record.grpc_code in _OUR_FAULT
        if failed:
            self._span.set_status(self._trace.StatusCode.ERROR)
        self._span.end(time.monotonic_ns() + self._offset_ns)

    def _ns(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._offset_ns


class UpstreamSpan:
    """The span of one call to another server: an OutgoingSpan."""

    def __init__(self, span: Any, trace: Any, state: str) -> None:
        self._span = span
        self._trace = trace
        context = span.get_span_context()
        trace_id, span_id = format(context.trace_id, "032x"), format(context.span_id, "016x")
        self.headers: Mapping[str, str] = Parent(trace_id, span_id, sampled=True, state=state).headers()

    def end(self, *, failed: bool) -> None:
        if failed:
            self._span.set_status(self._trace.StatusCode.ERROR)
        self._span.end()


def _context(trace: Any, parent: Parent | None) -> Any:
    from opentelemetry.context import Context

    if parent is None:
        return Context()
    state = trace.TraceState.from_header([parent.state]) if parent.state else None
    context = trace.SpanContext(
        int(parent.trace_id, 16), int(parent.span_id, 16), True, trace.TraceFlags(trace.TraceFlags.SAMPLED), state
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())


def _name(endpoint: Endpoint, call: Call) -> str:
    return call.raw_target.lstrip("/") if call.transport == "grpc" else endpoint.address or call.method


def _attributes(
    endpoint: Endpoint, call: Call, call_record: CallRecord, request_id: str, code: Code, kind: str
) -> dict[str, Any]:
    view = call_record.view
    found: dict[str, Any] = {
        "tensorgate.dialect": call.dialect,
        "tensorgate.method": endpoint.method,
        "tensorgate.code": code.name,
        "client.address": call.peer.address(),
    }
    if request_id:
        found["tensorgate.request_id"] = request_id
    if kind:
        found["error.type"] = kind
    if view is not None:
        found["tensorgate.model"] = view.name
        found["tensorgate.version"] = view.version
        found["tensorgate.rows"] = call_record.rows
        found["tensorgate.batch_size"] = call_record.batch_rows
    if call.transport == "grpc":
        service, _, method = call.raw_target.lstrip("/").rpartition("/")
        return found | {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": method,
            "rpc.grpc.status_code": int(call_record.grpc_code),
        }
    path = call.raw_target.partition("?")[0][:_MAX_TEXT_CHARS].encode("utf-8", "replace").decode()
    return found | {
        "http.request.method": call.method,
        "http.route": endpoint.address.rpartition(" ")[2],
        "http.response.status_code": call_record.status,
        "http.request.body.size": len(call.body),
        "http.response.body.size": call_record.sent,
        "url.path": path,
        "url.scheme": "http",
    }
