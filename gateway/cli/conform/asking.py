"""Clients that take bytes and give bytes back: nothing of a reply is lost or put right on the way."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from tensorgate.adapters.conformance.case import WireReply, WireRequest
from tensorgate.gateway.cli.client import ClientError


class WireClient(Protocol):
    """One connection to a server; a broken one is opened again with the next request."""

    def ask(self, request: WireRequest) -> WireReply: ...

    def close(self) -> None: ...


class HttpWireClient:
    """HTTP/1.1 over one connection that is kept open, as the server allows."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(f"{url}: expected http://HOST:PORT")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)
        self._prefix = parts.path.rstrip("/")
        self._is_reused = False

    def ask(self, request: WireRequest) -> WireReply:
        try:
            return self._ask(request)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self._forget()
            if not self._was_reused:
                return WireReply(failure=str(error))
        except (OSError, http.client.HTTPException) as error:
            self._forget()
            return WireReply(failure=str(error) or type(error).__name__)
        # The server closed the connection between two requests, as it may.
        try:
            return self._ask(request)
        except (OSError, http.client.HTTPException) as error:
            self._forget()
            return WireReply(failure=str(error) or type(error).__name__)

    def _ask(self, request: WireRequest) -> WireReply:
        self._was_reused = self._is_reused
        connection = self._connection
        connection.putrequest(request.method, self._prefix + request.target, skip_accept_encoding=True)
        names = {name.lower() for name, _ in request.headers}
        for name, value in request.headers:
            connection.putheader(name, value)
        body = b"".join(request.messages)
        if (request.messages or request.method == "POST") and "content-length" not in names:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        data = answer.read()
        self._is_reused = connection.sock is not None
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return WireReply((data,), answer.status, headers=headers)

    def _forget(self) -> None:
        self._connection.close()
        self._is_reused = False

    def close(self) -> None:
        self._connection.close()


class GrpcWireClient:
    """gRPC by grpcio, messages as bytes. Raises ClientError where grpcio is not installed."""

    def __init__(self, address: str, timeout_s: float) -> None:
        try:
            import grpc
        except ImportError:
            raise ClientError("asking over gRPC needs grpcio: pip install grpcio") from None
        self._grpc = grpc
        self._timeout_s = timeout_s
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(address.removeprefix("grpc://"), unlimited)

    def ask(self, request: WireRequest) -> WireReply:
        kind = f"{'stream' if request.client_streams else 'unary'}_{'stream' if request.server_streams else 'unary'}"
        method = getattr(self._channel, kind)(request.target)
        sent: Any = iter(request.messages) if request.client_streams else b"".join(request.messages)
        options = {"timeout": self._timeout_s, "metadata": request.headers}
        got: list[bytes] = []
        headers: dict[str, str] = {}
        try:
            if request.server_streams:
                call = method(sent, **options)
                got.extend(call)
            else:
                answer, call = method.with_call(sent, **options)
                got.append(answer)
            headers |= _texts(call.initial_metadata()) | _texts(call.trailing_metadata())
            return WireReply(tuple(got), headers=headers)
        except self._grpc.RpcError as error:
            code = error.code()
            late = code is self._grpc.StatusCode.DEADLINE_EXCEEDED
            if late or (code is self._grpc.StatusCode.UNAVAILABLE and "connect" in (error.details() or "").lower()):
                return WireReply(tuple(got), failure=f"{code.name}: {error.details()}")
            return WireReply(tuple(got), code=code.value[0], text=error.details() or "", headers=headers)

    def close(self) -> None:
        self._channel.close()


def _texts(metadata: Any) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value.hex() for name, value in metadata or ()}


def clients(http_url: str | None, grpc_address: str | None, timeout_s: float) -> Mapping[str, WireClient]:
    """By transport, those for which there is an address. Raises ClientError."""
    made: dict[str, WireClient] = {}
    if http_url:
        made["http"] = HttpWireClient(http_url, timeout_s)
    if grpc_address:
        made["grpc"] = GrpcWireClient(grpc_address, timeout_s)
    return made
