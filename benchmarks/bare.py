"""The bare handler: aiohttp on uvloop, orjson and NumPy, written by hand for this one model. No checks, no model.

    python -m benchmarks.bare PORT [--precomputed]

What a server could save by doing nothing but the work. `--precomputed` still reads every request, but answers with the
text that it made for the first request of that size.
"""

from __future__ import annotations

import argparse
from typing import Any

import uvloop
from aiohttp import web
from aiohttp.typedefs import Handler

from benchmarks.wires import WIRES, Wire

JSON = {"Content-Type": "application/json"}
MAX_BODY_BYTES = 64 << 20


def computed(wire: Wire) -> Handler:
    decode, encode = wire.decode, wire.encode

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=encode(decode(await request.read())), headers=JSON)

    return handle


def precomputed(wire: Wire) -> Handler:
    decode, encode = wire.decode, wire.encode
    answers: dict[int, bytes] = {}

    async def handle(request: web.Request) -> web.Response:
        array: Any = decode(await request.read())
        answer = answers.get(array.size)
        if answer is None:
            answer = answers[array.size] = encode(array)
        return web.Response(body=answer, headers=JSON)

    return handle


async def ready(request: web.Request) -> web.Response:
    return web.Response()


def make_app(*, keep_answers: bool = False) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/v2/health/ready", ready)
    handlers = {wire.path: (precomputed if keep_answers else computed)(wire) for wire in WIRES}

    async def by_target(request: web.Request) -> web.StreamResponse:
        return await handlers[request.path_qs](request)

    for path in {target.partition("?")[0] for target in handlers}:
        app.router.add_post(path, by_target)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--precomputed", action="store_true", help="answer with the first answer of the same size")
    options = parser.parse_args()
    app = make_app(keep_answers=options.precomputed)
    loop = uvloop.new_event_loop()
    web.run_app(app, host="127.0.0.1", port=options.port, access_log=None, print=None, loop=loop)


if __name__ == "__main__":
    main()
