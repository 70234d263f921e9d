"""A relay that does nothing but relay: grpc.aio's server and its client, bytes in and bytes out, on uvloop.

    python -m benchmarks.bare_relay PORT UPSTREAM_PORT

What passing a call on costs at least as long as both sides are grpc.aio. Memory is kept as the gateway keeps it.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")  # a hop less per message

import grpc
import uvloop

from benchmarks.grpc_bytes import SIZES, serve
from benchmarks.grpc_wires import INFER
from tensorgate.gateway.app import tune_process

FRAMES = ("grpc.http2.max_frame_size", 1 << 20)


async def relay(port: int, upstream_port: int) -> None:
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{upstream_port}", [*SIZES, FRAMES, ("grpc.enable_http_proxy", 0)])
    ask = channel.unary_unary(INFER)

    async def infer(body: bytes, context: Any) -> bytes:
        answer: bytes = await ask(body)
        return answer

    await serve(port, {INFER: infer}, FRAMES)


def main() -> None:
    what = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare_relay", description=what)
    parser.add_argument("port", type=int)
    parser.add_argument("upstream_port", type=int)
    options = parser.parse_args()
    tune_process()
    uvloop.run(relay(options.port, options.upstream_port))


if __name__ == "__main__":
    main()
