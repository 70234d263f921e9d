"""Requests of the web, by the standard library: its proxies and certificates are the environment's.

A redirect is where a store could be made to lead this machine to what only this machine reaches: the metadata of a
cloud, a port of its own. So each hop is followed by hand. A host of the internet may not lead to an address that is not
public, judged by the address that the socket is connected to; what an operator has named is reached wherever it is. A
header with a credential goes to the host that it is for, and to no other, nor to plain http.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, TypeVar
from urllib.parse import urljoin, urlsplit

from tensorgate.gateway.contract.locations import is_of_this_machine
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.stores.errors import Changed, NotAllowed, NotThere, Unreachable

Result = TypeVar("Result")

CHUNK_BYTES: Final = 1 << 20
MAX_DOCUMENT_BYTES: Final = 64 << 20
"""The largest answer that is a listing, and no file."""
_MAX_REDIRECTS: Final = 8
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_BUSY: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
_SECRET_HEADERS: Final = frozenset(("authorization", "cookie", "proxy-authorization"))


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient requests are, and where redirects may lead."""

    timeout_seconds: float = 30.0
    retries: int = 5
    allow_private_redirects: bool = False
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """An answer's head: its status, its headers by their names in lower case, and the URL that it came from."""

    status: int
    headers: Mapping[str, str]
    url: str
    body: http.client.HTTPResponse

    def read(self) -> bytes:
        """The whole body. Raises ValueError for one that is too large, Unreachable for one that breaks off."""
        content = self._read(MAX_DOCUMENT_BYTES + 1)
        if len(content) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"{shown(self.url)}: an answer of more than {MAX_DOCUMENT_BYTES >> 20} MiB")
        self._check_end()
        return content

    def chunks(self) -> Iterator[bytes]:
        """The body in pieces. Raises Unreachable where it breaks off."""
        while chunk := self._read(CHUNK_BYTES):
            yield chunk
        self._check_end()

    def _read(self, count: int) -> bytes:
        try:
            return self.body.read(count)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{shown(self.url)}: the answer broke off ({_why(error)})") from None

    def _check_end(self) -> None:
        if self.body.length:  # http.client takes the end of a connection for that of the body
            raise Unreachable(f"{shown(self.url)}: the answer broke off")


class Web:
    """Sends requests."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._tls: ssl.SSLContext | None = None

    def document(self, url: str, headers: Mapping[str, str] = NOTHING) -> tuple[WebAnswer, bytes]:
        """GET an answer whole, with retries. Raises as `check_status` does."""

        def ask() -> tuple[WebAnswer, bytes]:
            with self.request("GET", url, headers) as answer:
                check_status(answer, url)
                return answer, answer.read()

        return patiently(self.policy, ask)

    def head(self, url: str, headers: Mapping[str, str] = NOTHING) -> WebAnswer:
        """HEAD, with retries. Raises as `check_status` does."""

        def ask() -> WebAnswer:
            with self.request("HEAD", url, headers) as answer:
                check_status(answer, url)
                return answer

        return patiently(self.policy, ask)

    @contextmanager
    def ranged(
        self, url: str, offset: int, tag: str, headers: Mapping[str, str] = NOTHING
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """(where it begins, the bytes from there) of a file, from an offset if the server can and the file is still
        the one of this tag, else from its start. Raises as `check_status` does.
        """
        more = dict(headers)
        if offset:
            more["Range"] = f"bytes={offset}-"
            if tag.startswith('"'):
                more["If-Range"] = tag
        with self.request("GET", url, more) as answer:
            check_status(answer, url)
            start = offset if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0
            if start and not answer.headers.get("content-range", "").startswith(f"bytes {offset}-"):
                raise Unreachable(f"{shown(url)}: the server sends another part of the file than was asked for")
            if tag and (found := tag_of(answer)) and found != tag and not tag.startswith("sha256:"):
                raise Changed(f"{shown(url)} has changed since it was listed")
            yield start, answer.chunks()

    @contextmanager
    def request(self, method: str, url: str, headers: Mapping[str, str] = NOTHING) -> Iterator[WebAnswer]:
        """One request, with its redirects. Raises Unreachable, NotAllowed."""
        sent = {"User-Agent": "tensorgate", "Accept-Encoding": "identity", **headers}
        first, public = url, False
        for _ in range(_MAX_REDIRECTS):
            connection, answer, is_public = self._hop(method, url, sent, public, first)
            try:
                target = answer.headers.get("location", "")
                if answer.status not in _REDIRECTS or not target:
                    yield answer
                    return
            finally:
                with suppress(OSError):
                    connection.close()
            public = public or is_public
            target = urljoin(url, target)
            if url.startswith("https:") and not target.startswith("https:"):
                raise NotAllowed(f"{shown(first)} redirects to what is not https")
            url, sent = target, _without_secrets(sent, url, target)
        raise Unreachable(f"{shown(first)}: more than {_MAX_REDIRECTS} redirects")

    def _hop(
        self, method: str, url: str, headers: Mapping[str, str], public: bool, first: str
    ) -> tuple[http.client.HTTPConnection, WebAnswer, bool]:
        """(the connection, its answer, whether it came from an address of the internet); `public`: such a one has led
        here.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise NotAllowed(f"{shown(first)} redirects to what is no URL of the web")
        guarded = public and not self.policy.allow_private_redirects
        proxy = _proxy(parts.scheme, parts.netloc)
        if guarded and proxy and not _may_be_public(parts.hostname):
            raise NotAllowed(_astray(first))
        connection = self._connection(parts.scheme, parts.hostname, parts.port, proxy)
        try:
            connection.connect()
            is_public = bool(proxy) or self.is_public(connection.sock)
            if guarded and not is_public:
                raise NotAllowed(_astray(first))
            target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
            whole = f"http://{parts.netloc}{target}" if proxy and parts.scheme == "http" else target
            connection.request(method, whole, headers=dict(headers))
            body = connection.getresponse()
        except BaseException as error:
            connection.close()
            if isinstance(error, NotAllowed) or not isinstance(error, (OSError, http.client.HTTPException)):
                raise
            raise Unreachable(f"{shown(url)} does not answer ({_why(error)})") from None
        head = {key.lower(): text for key, text in body.getheaders()}
        return connection, WebAnswer(body.status, head, url, body), is_public

    @staticmethod
    def is_public(connected: socket.socket) -> bool:
        """Whether a socket is connected to an address of the internet."""
        peer = connected.getpeername()
        return not isinstance(peer, tuple) or _global(str(peer[0]))

    def _connection(self, scheme: str, host: str, port: int | None, proxy: str) -> http.client.HTTPConnection:
        timeout = self.policy.timeout_seconds
        via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
        name, number = (via.hostname or "", via.port or 80) if via is not None else (host, port)
        if scheme == "http":
            return http.client.HTTPConnection(name, number, timeout=timeout)
        self._tls = self._tls or ssl.create_default_context()
        connection = http.client.HTTPSConnection(name, number, timeout=timeout, context=self._tls)
        if via is not None:
            connection.set_tunnel(host, port or 443)
        return connection


def patiently(policy: Policy, ask: Callable[[], Result]) -> Result:
    """Ask again, with longer and longer pauses, while a store cannot be reached."""
    for attempt in range(policy.retries):
        try:
            return ask()
        except Changed:
            raise
        except Unreachable:
            policy.sleep(pause(attempt))
    return ask()


def pause(attempt: int) -> float:
    """Seconds to wait after so many attempts."""
    return min(_FIRST_PAUSE_S * 2.0**attempt, _MAX_PAUSE_S)


def check_status(answer: WebAnswer, url: str) -> None:
    """Raises NotThere, NotAllowed, Changed or Unreachable for an answer that is none."""
    status = answer.status
    if status in (200, 206):
        return
    if status in (404, 410):
        raise NotThere(f"{shown(url)}: there is no such thing ({status})")
    if status in (401, 403, 407):
        raise NotAllowed(f"{shown(url)}: the store refuses this server, or its credentials ({status})")
    if status in (412, 416):
        raise Changed(f"{shown(url)} has changed since it was listed ({status})")
    if status in _BUSY:
        raise Unreachable(f"{shown(url)}: the store answers {status}")
    raise ValueError(f"{shown(url)}: the store answers {status}")


def tag_of(answer: WebAnswer) -> str:
    """What changes with the content of a file: the ETag, or the time of its last change."""
    tag = answer.headers.get("etag", "")
    return tag or answer.headers.get("last-modified", "")


def shown(url: str) -> str:
    """A URL without its query, in which stores that redirect put signatures."""
    return url.partition("?")[0]


def _proxy(scheme: str, netloc: str) -> str:
    """The environment's proxy for a host; "" for none, as for this machine."""
    if is_of_this_machine(urlsplit(f"//{netloc}").hostname or ""):
        return ""
    found = urllib.request.getproxies().get(scheme, "")
    return "" if not found or urllib.request.proxy_bypass(netloc) else found


def _may_be_public(host: str) -> bool:
    """Of a host that a proxy looks up: whether its name is no address that is not public."""
    try:
        return _global(host)
    except ValueError:
        return host != "localhost"


def _global(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_global)


def _astray(url: str) -> str:
    return (
        f"{shown(url)} redirects to an address of this machine or of a private network, which may not be "
        "(see stores.allow_private_redirects)"
    )


def _without_secrets(headers: Mapping[str, str], url: str, target: str) -> dict[str, str]:
    before, after = urlsplit(url), urlsplit(target)
    if (before.scheme, before.netloc) == (after.scheme, after.netloc):
        return dict(headers)
    return {key: text for key, text in headers.items() if key.lower() not in _SECRET_HEADERS}


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


Opened = AbstractContextManager[tuple[int, Iterator[bytes]]]
"""(where it begins, the bytes from there) of a file."""
