"""The echo: aiohttp on uvloop with the gateway's allocator settings. It sends back the body that it got.

python -m benchmarks.echo PORT
"""

from __future__ import annotations

import argparse

import uvloop
from aiohttp import web

from tensorgate.gateway.app import tune_process

OCTETS = {"Content-Type": "application/octet-stream"}
MAX_BODY_BYTES = 64 << 20


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), headers=OCTETS)


async def ready(request: web.Request) -> web.Response:
    return web.Response()


def make_app() -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/v2/health/ready", ready)
    app.router.add_post("/v2/models/identity/infer", echo)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.echo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    tune_process()
    loop = uvloop.new_event_loop()
    web.run_app(make_app(), host="127.0.0.1", port=options.port, access_log=None, print=None, loop=loop)


if __name__ == "__main__":
    main()
