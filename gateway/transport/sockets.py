"""Addresses to listen on."""

from __future__ import annotations

import socket


def bind(host: str, port: int) -> socket.socket:
    """A listening address of our own: without SO_REUSEPORT, so that two servers never share a port unnoticed.

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
