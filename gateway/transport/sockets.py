"""Addresses to listen on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

from tensorgate.gateway.transport.certificates import Certificates
from tensorgate.gateway.transport.timeouts import ClientTimeouts

_BACKLOG: Final = 1024


def bind(host: str, port: int) -> socket.socket:
    """Bind an address of our own: without SO_REUSEPORT, so that two servers never share a port unnoticed.

    Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


async def listen(
    sock: socket.socket,
    connect: Callable[[], asyncio.BaseProtocol],
    certificates: Certificates | None,
    timeouts: ClientTimeouts,
) -> asyncio.Server:
    """Accept connections, over TLS where there are certificates; `connect` makes the protocol of each."""
    secure: dict[str, Any] = {}
    if certificates is not None:
        secure = {
            "ssl": certificates.context(),
            "ssl_handshake_timeout": timeouts.head,
            "ssl_shutdown_timeout": timeouts.linger,
        }
    return await asyncio.get_running_loop().create_server(connect, sock=sock, backlog=_BACKLOG, **secure)
