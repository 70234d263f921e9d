"""All listeners of a process: made of the configuration, started, drained and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorgate.gateway.config import Config, Listener, MetricsListener
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.service import Service
from tensorgate.gateway.telemetry.connection_metrics import Listeners
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits
from tensorgate.gateway.transport.grpc_port import GrpcListener
from tensorgate.gateway.transport.http_server import HttpLimits, HttpListener, Page
from tensorgate.gateway.transport.sockets import Sockets
from tensorgate.gateway.transport.spread import Spread
from tensorgate.gateway.transport.timeouts import ClientTimeouts

PagesOf = Callable[[Sequence[Dialect]], Mapping[str, Page]]
"""The house's own pages on a port that speaks these dialects; on the metrics port, none."""


class Ports:
    """`guarded` says which pages need whose rights; `traffic` learns what passes through each listener."""

    def __init__(
        self,
        service: Service,
        dialects: Mapping[str, Dialect],
        descriptors: Any,
        traffic: Listeners,
        guarded: Callable[[Mapping[str, Page]], Mapping[str, str]],
        house: Sequence[Dialect] = (),
    ) -> None:
        """`descriptors` is the protobuf pool with what the dialects, health and reflection speak. `house` are dialects
        of exact paths, for every HTTP port that speaks another one.
        """
        self._service = service
        self._dialects = dialects
        self._descriptors = descriptors
        self._traffic = traffic
        self._guarded = guarded
        self._house = house
        self._http: list[HttpListener] = []
        self._grpc: list[GrpcListener] = []

    def spoken(self, listener: Listener) -> tuple[Dialect, ...]:
        """The dialects of a port."""
        return tuple(self._dialects[name] for name in listener.dialects or self._dialects)

    async def start(self, config: Config, sockets: Sockets, pages: PagesOf, spread: Spread | None = None) -> None:
        """Listen at all sockets; `spread` is that of one of several doors."""
        number = 0
        for http, sock in zip(config.listen.http, sockets.http, strict=True):
            await self._start_http(config, http, sock, pages, spread, number)
            number += 1
        for grpc, sock in zip(config.listen.grpc, sockets.grpc, strict=True):
            await self._start_grpc(config, grpc, sock, spread, number)
            number += 1
        if sockets.metrics is not None and config.listen.metrics is not None:
            await self._start_http(config, config.listen.metrics, sockets.metrics, pages, spread, number)

    def limit(self, config: Config) -> None:
        """Hold requests to the limits of another configuration, from now on."""
        for http in self._http:
            http.limits = _limits(config)

    def drain(self) -> None:
        """End each connection with its next answer."""
        for http in self._http:
            http.drain()

    async def stop(self, grace: float, *, hand_on: bool = False) -> None:
        """Accept nothing more, and finish what was asked for so many seconds. With `hand_on` another process goes on at
        the addresses.
        """
        await asyncio.gather(
            *(http.stop(hand_on=hand_on) for http in self._http),
            *(grpc.stop(grace, hand_on=hand_on) for grpc in self._grpc),
        )

    async def _start_http(
        self,
        config: Config,
        wanted: Listener | MetricsListener,
        sock: Any,
        pages_of: PagesOf,
        spread: Spread | None,
        number: int,
    ) -> None:
        dialects = self.spoken(wanted) if isinstance(wanted, Listener) else ()
        pages = pages_of(dialects)
        server = HttpListener(
            self._service,
            dialects,
            pages,
            _limits(config),
            timeouts=_timeouts(config),
            names=(wanted.title, wanted.bind) if isinstance(wanted, Listener) else (),
            tls=wanted.tls.files() if wanted.tls else None,
            auth=wanted.auth or "",
            guarded=self._guarded(pages),
            cors=wanted.cors if isinstance(wanted, Listener) else None,
            request_ids=config.request_ids,
            house=self._house if dialects else (),
        )
        await server.start(sock, None if spread is None else spread.share(number))
        self._traffic.add(wanted.title if isinstance(wanted, Listener) else "metrics", "http", server.traffic)
        self._http.append(server)

    async def _start_grpc(
        self, config: Config, wanted: Listener, sock: Any, spread: Spread | None, number: int
    ) -> None:
        limits = config.limits
        server = GrpcListener(
            self._service,
            self.spoken(wanted),
            GrpcLimits(
                limits.max_binary_bytes, limits.max_header_bytes, limits.max_concurrent_streams, limits.max_connections
            ),
            self._descriptors,
            (wanted.title, wanted.bind),
            tls=wanted.tls.files() if wanted.tls else None,
            auth=wanted.auth or "",
            request_ids=config.request_ids,
            timeouts=_timeouts(config),
        )
        await server.start(sock, None if spread is None else spread.share(number))
        self._traffic.add(wanted.title, "grpc", server.traffic)
        self._grpc.append(server)


def _limits(config: Config) -> HttpLimits:
    limits = config.limits
    return HttpLimits(
        limits.max_body_bytes,
        limits.max_binary_bytes,
        limits.max_json_depth,
        config.drain_seconds + 0.5,
        limits.max_header_bytes,
        limits.max_headers,
        limits.max_connections,
    )


def _timeouts(config: Config) -> ClientTimeouts:
    times = config.limits.timeouts
    return ClientTimeouts(times.idle_seconds, times.head_seconds, times.body_seconds, times.answer_seconds)
