"""The other end of a connection, looked up once somebody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any


class SocketPeer:
    """The peer of one of our connections."""

    __slots__ = ("_address", "_names", "_transport")

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self._transport = transport
        self._address: str | None = None
        self._names: Sequence[str] | None = None

    def address(self) -> str:
        """See Peer. The transport is asked once, since that is a call to the kernel."""
        if self._address is None:
            name = self._transport.get_extra_info("peername") if self._transport is not None else None
            self._address = str(name[0]) if isinstance(name, tuple) else ""
        return self._address

    def names(self) -> Sequence[str]:
        """See Peer."""
        if self._names is None:
            shown = self._transport.get_extra_info("peercert") if self._transport is not None else None
            self._names = _names(shown or {})
        return self._names


def _names(certificate: Any) -> Sequence[str]:
    """The names in Python's form of a certificate."""
    alternatives = certificate.get("subjectAltName", ())
    subject = [value for pairs in certificate.get("subject", ()) for key, value in pairs if key == "commonName"]
    return [*(each[1] for kind in ("URI", "DNS") for each in alternatives if each[0] == kind), *subject]
