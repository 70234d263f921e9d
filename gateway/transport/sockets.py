"""Addresses to listen on: all of a server's, bound before anything else starts.

One process has an address for itself. Doors share a TCP address by SO_REUSEPORT, each with a socket of its own between
which the kernel divides connections; whether another program has the address is tried without that first. They share
one socket of a Unix address.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorgate.gateway.config.listeners import Listen, MetricsListener

BACKLOG: Final = 1024
_CONNECT_S: Final = 1.0
"""How long whoever listens at a Unix address may take before it is taken for alive."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """One bound socket for each listener, in the order of the configuration."""

    http: Sequence[socket.socket]
    metrics: socket.socket | None
    grpc: Sequence[socket.socket]

    @classmethod
    def inherited(cls, http: Sequence[int], metrics: int | None, grpc: Sequence[int]) -> Sockets:
        """The sockets of file descriptors that the parent process has bound."""
        return cls(
            [_adopted(number) for number in http],
            None if metrics is None else _adopted(metrics),
            [_adopted(number) for number in grpc],
        )

    def all(self) -> Iterator[socket.socket]:
        """Every one, first HTTP, then gRPC, then metrics: the order in which listeners are numbered."""
        yield from self.http
        yield from self.grpc
        if self.metrics is not None:
            yield self.metrics


@contextlib.contextmanager
def bound(listen: Listen) -> Iterator[Sockets]:
    """The sockets of one process. They are closed in the end, and files of Unix sockets removed.

    Raises OSError naming an address that is taken.
    """
    with contextlib.ExitStack() as undo:
        yield _each(listen, lambda listener: undo.enter_context(_bound(listener)))


@contextlib.contextmanager
def bound_for_doors(listen: Listen, doors: int) -> Iterator[list[Sockets]]:
    """The sockets of so many doors. They listen already, so that no other program gets the address meanwhile: who
    connects before a door is there waits for it. They are closed in the end, and files of Unix sockets removed.

    Raises OSError naming an address that is taken.
    """
    with contextlib.ExitStack() as undo:
        groups: dict[int, list[socket.socket]] = {}

        def first_of(listener: MetricsListener) -> socket.socket:
            first = undo.enter_context(_bound(listener))
            if listener.path is not None:
                groups[id(first)] = [first] * doors
                return first
            host, port = first.getsockname()[:2]
            with _named(listener), contextlib.ExitStack() as failed:
                # Sockets that only are bound do not refuse each other, both of which may reuse the address: so nobody
                # else takes the port before the group has it.
                group = [failed.enter_context(_new(host, port, shared=True)) for _ in range(doors)]
                first.close()
                for sock in group:
                    sock.listen(BACKLOG)
                undo.push(failed.pop_all())
            groups[id(first)] = group
            return first

        firsts = _each(listen, first_of)
        for first in firsts.all():
            if first.fileno() >= 0:
                first.listen(BACKLOG)
        yield [
            Sockets(
                [groups[id(sock)][slot] for sock in firsts.http],
                None if firsts.metrics is None else groups[id(firsts.metrics)][slot],
                [groups[id(sock)][slot] for sock in firsts.grpc],
            )
            for slot in range(doors)
        ]


def addresses(listen: Listen, sockets: Sockets) -> list[str]:
    """What `serve` says it listens on: first HTTP, then metrics, then gRPC."""
    found = [_address("http", each, sock) for each, sock in zip(listen.http, sockets.http, strict=True)]
    if listen.metrics is not None and sockets.metrics is not None:
        found.append(_address("metrics", listen.metrics, sockets.metrics))
    return found + [_address("grpc", each, sock) for each, sock in zip(listen.grpc, sockets.grpc, strict=True)]


def bind(host: str, port: int) -> socket.socket:
    """Bind an address of our own: without SO_REUSEPORT, so that two servers never share a port unnoticed.

    Raises OSError.
    """
    return _new(host, port, shared=False)


@contextlib.contextmanager
def bound_path(path: Path, mode: int | None = None) -> Iterator[socket.socket]:
    """A Unix socket, whose file is removed in the end unless it is another's by then; so is one that a process has left
    behind which nobody answers at. `mode` is the file's, None what the umask leaves.

    Raises OSError.
    """
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(path))
        own = path.stat()
        try:
            if mode is not None:
                path.chmod(mode)
            sock.setblocking(False)
            yield sock
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(own, path.stat()):
                    path.unlink()


def _each(listen: Listen, make: Callable[[MetricsListener], socket.socket]) -> Sockets:
    return Sockets(
        [make(listener) for listener in listen.http],
        None if listen.metrics is None else make(listen.metrics),
        [make(listener) for listener in listen.grpc],
    )


@contextlib.contextmanager
def _bound(listener: MetricsListener) -> Iterator[socket.socket]:
    with contextlib.ExitStack() as undo:
        with _named(listener):
            if listener.path is not None:
                sock = undo.enter_context(bound_path(listener.path, listener.file_mode))
            else:
                sock = undo.enter_context(bind(listener.host, listener.port))
        yield sock


@contextlib.contextmanager
def _named(listener: MetricsListener) -> Iterator[None]:
    """Errors tell which address it was."""
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot listen on {listener.bind}: {error.strerror}") from None


def _new(host: str, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _adopted(number: int) -> socket.socket:
    sock = socket.socket(fileno=number)
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _remove_stale(path: Path) -> None:
    """Remove the file of a socket at which nobody listens."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_CONNECT_S)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:  # somebody does, and is busy, or is not for us: binding fails
            return


def _address(scheme: str, listener: MetricsListener, sock: socket.socket) -> str:
    secure = "s" if listener.tls and scheme != "metrics" else ""
    if listener.path is not None:
        return f"{scheme}{secure}+unix:{listener.path}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}{secure}://{_reachable(host)}:{port}"


def _reachable(host: str) -> str:
    """The name under which a wildcard address can be called from here."""
    if host in ("0.0.0.0", "::"):  # noqa: S104
        return "localhost"
    return f"[{host}]" if ":" in host else host
