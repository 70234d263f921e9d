"""The bare handler over gRPC: grpc.aio on uvloop, upb and NumPy, by hand for this one model. No checks, no model.

    python -m benchmarks.grpc_bare PORT

What a server could save by doing nothing but the work: read the message, make the array, write the answer.
"""

from __future__ import annotations

import argparse
from typing import Any

import grpc
import uvloop

from benchmarks.grpc_wires import INFER, PREDICT, infer_answer, predict_answer

SERVING = b"\x08\x01"


async def infer(body: bytes, context: Any) -> bytes:
    return infer_answer(body)


async def predict(body: bytes, context: Any) -> bytes:
    return predict_answer(body)


async def healthy(body: bytes, context: Any) -> bytes:
    return SERVING


METHODS = {
    INFER: grpc.unary_unary_rpc_method_handler(infer),
    PREDICT: grpc.unary_unary_rpc_method_handler(predict),
    "/grpc.health.v1.Health/Check": grpc.unary_unary_rpc_method_handler(healthy),
}


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Bytes in, bytes out."""

    def service(self, handler_call_details: Any) -> Any:
        return METHODS.get(handler_call_details.method)


async def serve(port: int) -> None:
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((Handlers(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    what = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc_bare", description=what)
    parser.add_argument("port", type=int)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
