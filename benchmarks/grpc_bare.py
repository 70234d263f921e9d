"""The bare handler over gRPC: grpc.aio on uvloop, upb and NumPy, by hand for this one model. No checks, no model.

    python -m benchmarks.grpc_bare PORT

What a server could save by doing nothing but the work: read the message, make the array, write the answer.
"""

from __future__ import annotations

import argparse
from typing import Any

import uvloop

from benchmarks.grpc_bytes import serve
from benchmarks.grpc_wires import INFER, PREDICT, infer_answer, predict_answer


async def infer(body: bytes, context: Any) -> bytes:
    return infer_answer(body)


async def predict(body: bytes, context: Any) -> bytes:
    return predict_answer(body)


METHODS = {INFER: infer, PREDICT: predict}


def main() -> None:
    what = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc_bare", description=what)
    parser.add_argument("port", type=int)
    uvloop.run(serve(parser.parse_args().port, METHODS))


if __name__ == "__main__":
    main()
