"""A relay that does nothing but relay: grpc.aio's server and its client, bytes in and bytes out, on uvloop.

    python -m benchmarks.bare_relay PORT UPSTREAM_PORT

What passing a call on costs at least as long as both sides are grpc.aio. Memory is kept as the gateway keeps it.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")  # as the gateway's own

import grpc
import uvloop

from benchmarks.grpc_wires import INFER
from gateway.app import tune_process

SERVING = b"\x08\x01"
SIZES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
FRAMES = ("grpc.http2.max_frame_size", 1 << 20)


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes infer on, and is well."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask

    def service(self, handler_call_details: Any) -> Any:
        handler = self._infer if handler_call_details.method == INFER else self._healthy
        return grpc.unary_unary_rpc_method_handler(handler)

    async def _infer(self, body: bytes, context: Any) -> bytes:
        answer: bytes = await self._ask(body)
        return answer

    async def _healthy(self, body: bytes, context: Any) -> bytes:
        return SERVING


async def serve(port: int, upstream_port: int) -> None:
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{upstream_port}", [*SIZES, FRAMES, ("grpc.enable_http_proxy", 0)])
    server = grpc.aio.server(options=[*SIZES, FRAMES, ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Handlers(channel.unary_unary(INFER)),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    what = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare_relay", description=what)
    parser.add_argument("port", type=int)
    parser.add_argument("upstream_port", type=int)
    options = parser.parse_args()
    tune_process()
    uvloop.run(serve(options.port, options.upstream_port))


if __name__ == "__main__":
    main()
