"""A server made wrong on purpose: it passes calls on to a gateway, and changes one thing of the answers."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import grpc
from serving import HOST, Gateway

from tensorgate.adapters.conformance.case import WireReply

Change = Callable[[str, WireReply], WireReply]
"""(path or gRPC method, the right answer) -> the wrong one."""


@dataclass
class SpoiltServer:
    """The proxy's addresses, and what it does to answers now."""

    url: str = ""
    grpc_address: str = ""
    change: Change = field(default=lambda target, reply: reply)
    changed: int = 0
    """Answers that were changed so far."""

    def spoil(self, target: str, reply: WireReply) -> WireReply:
        wrong = self.change(target, reply)
        self.changed += wrong != reply
        return wrong


@contextmanager
def spoilt(gateway: Gateway) -> Iterator[SpoiltServer]:
    """The proxy before a gateway, over both transports."""
    server = SpoiltServer()
    web = ThreadingHTTPServer((HOST, 0), _handler(gateway.port, server))
    web.daemon_threads = True
    Thread(target=web.serve_forever, daemon=True).start()
    with (
        ThreadPoolExecutor(4) as threads,
        grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel,
    ):
        rpc = grpc.server(threads, [_Forwarder(channel, server)])
        server.url = f"http://{HOST}:{web.server_port}"
        server.grpc_address = f"{HOST}:{rpc.add_insecure_port(f'{HOST}:0')}"
        rpc.start()
        try:
            yield server
        finally:
            rpc.stop(None).wait()
            web.shutdown()
            web.server_close()


def _handler(port: int, server: SpoiltServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            upstream = http.client.HTTPConnection(HOST, port)
            try:
                upstream.putrequest(self.command, self.path, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("host", "connection"):
                        upstream.putheader(name, value)
                upstream.endheaders(body or None)
                answer = upstream.getresponse()
                got = WireReply(
                    (answer.read(),), answer.status, headers={name.lower(): v for name, v in answer.getheaders()}
                )
            finally:
                upstream.close()
            wrong = server.spoil(self.path, got)
            lines = [f"HTTP/1.1 {wrong.status} X"]
            dropped = ("content-length", "transfer-encoding", "connection")
            lines += [f"{name}: {value}" for name, value in wrong.headers.items() if name not in dropped]
            lines += [f"content-length: {len(wrong.body)}", "", ""]
            self.wfile.write("\r\n".join(lines).encode("latin-1") + wrong.body)

    return Handler


class _Forwarder(grpc.GenericRpcHandler):
    """Every method, as a stream of messages in both directions: on the wire a unary call is one."""

    def __init__(self, channel: grpc.Channel, server: SpoiltServer) -> None:
        self._channel = channel
        self._server = server

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        def forward(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            call = self._channel.stream_stream(details.method)(requests)
            messages, code, text = [], 0, ""
            try:
                messages.extend(call)
            except grpc.RpcError as error:
                code, text = error.code().value[0], error.details()
            wrong = self._server.spoil(details.method, WireReply(tuple(messages), code=code, text=text))
            yield from wrong.messages
            if wrong.code:
                (status,) = [each for each in grpc.StatusCode if each.value[0] == wrong.code]
                context.abort(status, wrong.text)

        return grpc.stream_stream_rpc_method_handler(forward)
