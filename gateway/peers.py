"""The other end of a connection, as transports see it. Nothing is looked up before somebody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote


class HttpPeer:
    """Of an HTTP connection."""

    __slots__ = ("_address", "_names", "_transport")

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self._transport = transport
        self._address: str | None = None
        self._names: Sequence[str] | None = None

    def address(self) -> str:
        """See Peer. The transport is asked once: that is a call to the kernel."""
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
    """Of Python's form of a certificate."""
    alternatives = certificate.get("subjectAltName", ())
    subject = [value for pairs in certificate.get("subject", ()) for key, value in pairs if key == "commonName"]
    return [*(each[1] for kind in ("URI", "DNS") for each in alternatives if each[0] == kind), *subject]


class GrpcPeer:
    """Of an RPC, by its context."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def address(self) -> str:
        """See Peer. grpc has it as ipv4:1.2.3.4:567, or ipv6:[::1]:567."""
        kind, _, rest = unquote(self._context.peer()).partition(":")
        return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""

    def names(self) -> Sequence[str]:
        """See Peer."""
        shown = self._context.auth_context()
        kinds = ("peer_uri", "peer_dns", "x509_common_name")
        return [name.decode("utf-8", "replace") for kind in kinds for name in shown.get(kind, ())]


class Metadata(Mapping[str, str]):
    """An RPC's metadata but for what is binary, read once somebody asks: few do, and it is as much work as a small
    tensor.
    """

    __slots__ = ("_context", "_read")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._read: dict[str, str] | None = None

    def __getitem__(self, key: str) -> str:
        return self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def _values(self) -> dict[str, str]:
        if self._read is None:
            pairs = self._context.invocation_metadata()
            self._read = {key: value for key, value in pairs if isinstance(value, str)}
        return self._read
