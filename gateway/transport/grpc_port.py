"""gRPC ports on one side, Call and Reply on the other.

Messages pass as raw bytes: no generated servicer, so that a dialect reads large tensors as views of what arrived. The
table of methods is the dialects' own; this module knows none of them. Beside them every port has the house's health
and reflection. How gRPC is spoken is the server's to know: see grpc_exchange.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from tensorgate.gateway.config.listeners import TlsFiles
from tensorgate.gateway.contract.call import ArrivingBody, Buffer, Call, Reply
from tensorgate.gateway.contract.dialect import Dialect, Endpoint
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.service import Service
from tensorgate.gateway.telemetry.connection_metrics import ListenerCounters, ListenerTraffic
from tensorgate.gateway.telemetry.request_id import REQUEST_ID, is_valid
from tensorgate.gateway.telemetry.request_id import new as new_id
from tensorgate.gateway.transport.arriving import Arriving, forwarding
from tensorgate.gateway.transport.builtin_services import Health, Reflection
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits, GrpcPort, Handler, Handlers, Rpc, RunArriving
from tensorgate.gateway.transport.grpc_server import GrpcServer
from tensorgate.gateway.transport.grpc_streams import BidiCall, MessageReader
from tensorgate.gateway.transport.spread import Share
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire.http1_body import Body


class GrpcListener:
    """One address that speaks some dialects over gRPC."""

    def __init__(
        self,
        service: Service,
        dialects: Sequence[Dialect],
        limits: GrpcLimits,
        descriptors: Any,
        names: tuple[str, ...] = (),
        *,
        tls: TlsFiles | None = None,
        auth: str = "",
        request_ids: bool = False,
        timeouts: ClientTimeouts | None = None,
        make_port: Callable[..., GrpcPort] = GrpcServer,
    ) -> None:
        """`descriptors` is the protobuf pool with what the dialects, health and reflection speak; `names` are what
        routes call the listener, `auth` is what it wants of callers, "" what all ports do. With `request_ids` every
        call's trailing metadata has an id, and not only those of callers who sent one.
        """
        self._tls = tls
        self._auth = auth
        self._service = service
        self._names = names
        self._request_ids = request_ids
        self._timeouts = timeouts
        self._counters = ListenerCounters()
        self._limits = limits
        self._methods = {
            name: self._handler(dialect.name, name, endpoint)
            for dialect in dialects
            for name, endpoint in dialect.grpc.items()
        }
        self._descriptors = descriptors
        self._reader = MessageReader()
        self._make_port = make_port
        self._port: GrpcPort | None = None

    async def start(self, sock: socket.socket, share: Share | None = None) -> None:
        """See GrpcPort."""
        self._port = self._make_port(self._handlers(), self._counters, self._limits, self._tls, self._timeouts)
        await self._port.start(sock, share)

    async def stop(self, grace: float, *, hand_on: bool = False) -> None:
        """See GrpcPort."""
        self._reader.stop()
        if self._port is not None:
            await self._port.stop(grace, hand_on=hand_on)

    def _handlers(self) -> Handlers:
        services = {name.split("/")[1] for name in self._methods}
        return {
            **Health(self._service, self._descriptors, self._reader, self._auth).handlers(),
            **Reflection(services, self._descriptors, self._reader, self._service, self._auth).handlers(),
            **self._methods,
        }

    def traffic(self) -> ListenerTraffic:
        """What passes here, for metrics. May be called in any thread."""
        connections = 0 if self._port is None else self._port.connections
        return ListenerTraffic(connections, self._counters.running, self._counters.received, self._counters.sent)

    # -------------------------------------------------------------------------------------------------------- one call

    def _handler(self, dialect: str, name: str, endpoint: Endpoint) -> Handler:
        counters, service = self._counters, self._service

        async def unary(rpc: Rpc, body: Buffer) -> None:
            counters.running += 1
            try:
                await service.handle(dialect, endpoint, self._call(name, rpc, self._request_id(rpc), body), rpc.send)
            finally:
                counters.running -= 1

        async def server_stream(rpc: Rpc, body: Buffer) -> None:
            async def send(reply: Reply) -> None:
                if reply.grpc_code is not Code.OK:
                    await rpc.fail(reply)
                await rpc.write(reply)

            counters.running += 1
            try:
                await service.handle(dialect, endpoint, self._call(name, rpc, self._request_id(rpc), body), send)
            finally:
                counters.running -= 1

        async def bidi(rpc: Rpc, body: Buffer) -> None:
            request_id = self._request_id(rpc)

            def call_of(body: Buffer) -> Call:
                return self._call(name, rpc, request_id, body)

            counters.running += 1
            try:
                await BidiCall(service, dialect, endpoint, rpc).run(self._reader, call_of)
            finally:
                counters.running -= 1

        def admits(headers: Mapping[str, str]) -> bool:
            authorizer = service.authorizer
            return authorizer is None or authorizer.may_enter(endpoint, headers, self._auth)

        if endpoint.stream in ("unary", "single"):
            return Handler("unary", unary, admits, self._run_arriving(dialect, name, endpoint))
        return (
            Handler("server", server_stream, admits) if endpoint.stream == "server" else Handler("bidi", bidi, admits)
        )

    def _run_arriving(self, dialect: str, name: str, endpoint: Endpoint) -> RunArriving | None:
        """The flow of calls that are sent on to another server while they come; None where none are."""
        counters, service = self._counters, self._service

        async def forward(rpc: Rpc, call: Call, endpoint: Endpoint) -> None:
            counters.running += 1
            try:
                await service.handle(dialect, endpoint, call, rpc.send)
            finally:
                counters.running -= 1

        def run_arriving(rpc: Rpc, body: Body, size: int) -> Coroutine[Any, Any, None] | None:
            room = body.place()
            ref = None if room is None else service.forwarded((dialect, "grpc"), endpoint, NOTHING, body.begun)
            if room is None or ref is None:
                return None
            arriving = Arriving(body, size, lambda: service.confirm_forward(endpoint, call, ref))
            call = self._call(name, rpc, self._request_id(rpc), room, arriving)
            return forward(rpc, call, forwarding(endpoint, ref))

        return None if endpoint.model_of is None else run_arriving

    def _call(self, method: str, rpc: Rpc, request_id: str, body: Buffer, arriving: ArrivingBody | None = None) -> Call:
        """The call of one message of an RPC, all of which have the RPC's name, metadata and deadline."""
        self._counters.received += len(body)
        return Call(
            body,
            "POST",
            method,
            rpc.headers,
            "grpc",
            NOTHING,
            rpc.deadline,
            self._limits.max_message_bytes,
            listener=self._names,
            peer=rpc.peer,
            auth=self._auth,
            request_id=request_id,
            arriving=arriving,
        )

    def _request_id(self, rpc: Rpc) -> str:
        """The request id for the answer's metadata, "" for none."""
        given = rpc.headers.get(REQUEST_ID)
        if given is None and not self._request_ids:
            return ""
        request_id = given if given is not None and is_valid(given) else new_id()
        rpc.set_request_id(request_id)
        return request_id
