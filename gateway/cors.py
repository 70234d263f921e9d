"""Calls from pages of other sites, as browsers ask for them: only from those origins that a port allows.

Source: the Fetch standard, section 3.2 (CORS protocol).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gateway.config import Cors
from gateway.http_exchange import Exchange
from gateway.ports import Buffer, Peer, Reply

_ALLOW: Final = "Access-Control-Allow-Origin"
_EXPOSED: Final = "Inference-Header-Content-Length, Retry-After, WWW-Authenticate"


class CrossOrigin:
    """What a port says to browsers."""

    def __init__(self, config: Cors) -> None:
        self._origins = frozenset(config.origins)
        self._preflight = {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": ", ".join(config.headers),
            "Access-Control-Max-Age": str(config.max_age_seconds),
        }

    def preflight(self, exchange: Exchange) -> Reply | None:
        """The answer to a browser that asks whether it may ask; None to any other request."""
        if exchange.method != "OPTIONS" or "access-control-request-method" not in exchange.headers:
            return None
        allowed = self._allowed(exchange.headers)
        return Reply(b"", 204 if allowed else 403, {"Vary": "Origin", **(self._preflight | allowed if allowed else {})})

    def wrapped(self, exchange: Exchange) -> Exchange:
        """The request, whose replies a page of an allowed origin may read."""
        allowed = self._allowed(exchange.headers)
        return (
            _Readable(exchange, {**allowed, "Vary": "Origin", "Access-Control-Expose-Headers": _EXPOSED})
            if allowed
            else exchange
        )

    def _allowed(self, headers: Mapping[str, str]) -> dict[str, str]:
        origin = headers.get("origin")
        if origin is None:
            return {}
        if origin in self._origins:
            return {_ALLOW: origin}
        return {_ALLOW: "*"} if "*" in self._origins else {}


class _Readable:
    """An exchange that adds headers to its replies, unless the dialect has its own."""

    def __init__(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        self._exchange = exchange
        self._headers = headers
        self.method = exchange.method
        self.target = exchange.target
        self.headers = exchange.headers
        self.begun = exchange.begun

    @property
    def peer(self) -> Peer:
        return self._exchange.peer

    @property
    def request_id(self) -> str:
        return self._exchange.request_id

    @request_id.setter
    def request_id(self, request_id: str) -> None:
        self._exchange.request_id = request_id

    async def read(self, limit: int) -> Buffer:
        return await self._exchange.read(limit)

    async def send(self, reply: Reply) -> None:
        await self._exchange.send(self._with_headers(reply))

    async def start(self, reply: Reply) -> None:
        await self._exchange.start(self._with_headers(reply))

    async def chunk(self, reply: Reply) -> None:
        await self._exchange.chunk(reply)

    async def end(self) -> None:
        await self._exchange.end()

    def _with_headers(self, reply: Reply) -> Reply:
        return reply if _ALLOW in reply.headers else replace(reply, headers={**reply.headers, **self._headers})
