"""Calls from pages of other sites, as browsers ask for them: only from those origins that a port allows.

What changes the server's state is refused to all other sites, for a browser sends simple requests without asking, and
does not need to show the answer. Only browsers send the headers that tell it.

Source: the Fetch standard, section 3.2 (CORS protocol); Fetch Metadata Request Headers, section 2.3 (Sec-Fetch-Site).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Container, Mapping
from dataclasses import replace
from typing import Final

from tensorgate.gateway.config import Cors
from tensorgate.gateway.contract.call import Buffer, Peer, Reply
from tensorgate.gateway.transport.http_exchange import HttpExchange

_ALLOW: Final = "Access-Control-Allow-Origin"
_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Of a page of ours, and of what a person has typed."""
_SITE: Final = re.compile(r"[a-z][a-z0-9+.-]{0,20}://([A-Za-z0-9.:\[\]_-]{1,255})", re.ASCII)
_EXPOSED: Final = ", ".join(
    (
        "Inference-Header-Content-Length",
        "Retry-After",
        "WWW-Authenticate",
        "Allow",
        "X-Request-Id",
        "Traceparent",
        "Tracestate",
    )
)
"""What dialects say in headers, request ids, and what a server that calls are passed on to says of its trace. Browsers
show pages some others, such as Content-Type, in any case.
"""


class CrossOrigin:
    """A port's answers to browsers."""

    def __init__(self, config: Cors) -> None:
        self._origins = frozenset(config.origins)
        self._preflight = {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": ", ".join(config.headers),
            "Access-Control-Max-Age": str(config.max_age_seconds),
        }

    def preflight(self, exchange: HttpExchange) -> Reply | None:
        """The answer to a browser that asks whether it may ask; None to any other request."""
        if exchange.method != "OPTIONS" or "access-control-request-method" not in exchange.headers:
            return None
        allowed = self._allowed(exchange.headers)
        return Reply(b"", 204 if allowed else 403, {"Vary": "Origin", **(self._preflight | allowed if allowed else {})})

    def wrapped(self, exchange: HttpExchange) -> HttpExchange:
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


def foreign_origin(headers: Mapping[str, str], named: Container[str]) -> str | None:
    """The other site whose page has a browser send this request; None if it is a page of this server or of an origin
    that is `named`, or no browser's request.

    Browsers send Sec-Fetch-Site where they trust the address (https, localhost). Else the Origin of a POST counts, or
    the Referer, whose host must be the one that is asked.
    """
    site, origin, page = headers.get("sec-fetch-site"), headers.get("origin"), headers.get("referer")
    if site in _OWN_SITES or (site is None and origin is None and page is None):
        return None
    if origin in named:
        return None
    match = _SITE.match(page or "") if origin is None else _SITE.match(origin)
    if match is None:  # "null", or nothing
        return "another site"
    is_own = site is None and match[1].lower() == headers.get("host", "").lower()
    return None if is_own else match[0]


class _Readable:
    """An exchange that adds headers to its replies, unless the dialect has its own."""

    def __init__(self, exchange: HttpExchange, headers: Mapping[str, str]) -> None:
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
    def has_begun(self) -> bool:
        return self._exchange.has_begun

    @property
    def request_id(self) -> str:
        return self._exchange.request_id

    @request_id.setter
    def request_id(self, request_id: str) -> None:
        self._exchange.request_id = request_id

    def take_body(self) -> Buffer | None:
        return self._exchange.take_body()

    async def read(self, limit: int) -> Buffer:
        return await self._exchange.read(limit)

    def send(self, reply: Reply) -> Awaitable[None] | None:
        return self._exchange.send(self._with_headers(reply))

    async def start(self, reply: Reply) -> None:
        await self._exchange.start(self._with_headers(reply))

    async def chunk(self, reply: Reply) -> None:
        await self._exchange.chunk(reply)

    async def end(self) -> None:
        await self._exchange.end()

    def _with_headers(self, reply: Reply) -> Reply:
        return reply if _ALLOW in reply.headers else replace(reply, headers={**reply.headers, **self._headers})
