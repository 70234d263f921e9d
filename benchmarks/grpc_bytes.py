"""A server that is nothing but grpc.aio: bytes in, bytes out. Contenders that are no gateway are made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc

Handler = Callable[[bytes, Any], Awaitable[bytes]]

HEALTH: Final = "/grpc.health.v1.Health/Check"
SERVING: Final = b"\x08\x01"
SIZES: Final = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Unary methods by their paths, and one that says that all is well."""

    def __init__(self, methods: Mapping[str, Handler]) -> None:
        self._methods = {
            path: grpc.unary_unary_rpc_method_handler(handler)
            for path, handler in {HEALTH: _healthy, **methods}.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)


async def _healthy(body: bytes, context: Any) -> bytes:
    return SERVING


async def serve(port: int, methods: Mapping[str, Handler], *options: tuple[str, int]) -> None:
    """Until the process ends."""
    server = grpc.aio.server(options=[*SIZES, ("grpc.so_reuseport", 0), *options])
    server.add_generic_rpc_handlers((Handlers(methods),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()
