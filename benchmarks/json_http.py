"""Infer over HTTP with JSON: the gateway against a bare aiohttp handler that does the same work by hand.

Each contender is a server on one core; wrk presses it from another. The model is the identity, so the figures are the
cost of HTTP, JSON, batching and the rest of the way. Contenders take turns within each round, and the table has medians
over rounds. A ratio above 1 means more requests per second than the bare handler.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contest import GATEWAY, PORT, Contest
from benchmarks.servers import Failed, Server
from benchmarks.wires import WIRES, Wire

SIZES = (16, 1_000, 150_528)  # a row of features, an embedding, an image of 3 x 224 x 224
EPILOG = """
contenders:
  gateway      python -m tensorgate serve benchmarks/identity.yaml
  bare         aiohttp + uvloop + orjson + NumPy: parses, makes the array, writes the answer; no checks, no model
  precomputed  the same, but the answer's text was made beforehand
  control      a second bare: how far its ratio is from 1 is how far to trust the others

examples:
  python -m benchmarks.json_http
  python -m benchmarks.json_http --cases v2/16 tf_serving/16 --rounds 9
  python -m benchmarks.json_http --contenders bare control --seconds 2
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One request, sent over and over: `array` is FP32 [1, n]."""

    wire: Wire
    array: Any

    @property
    def name(self) -> str:
        return f"{self.wire.name}/{self.array.size}"

    @property
    def path(self) -> str:
        return self.wire.path

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Content-Type": "application/json"}

    def body(self) -> bytes:
        return self.wire.request(self.array)

    def check(self, server: Server) -> None:
        """Raise Failed unless the server sends back the very numbers."""
        answer = server.post(self.path, self.body(), self.headers)
        try:
            same = np.array_equal(self.wire.read(answer), self.array)
        except (KeyError, TypeError, ValueError) as error:
            raise Failed(f"{server.name}, {self.name}: {error!r} in {answer[:300]!r}") from None
        if not same:
            raise Failed(f"{server.name}, {self.name}: the answer has other numbers or another shape: {answer[:300]!r}")


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((1, size), np.float32) for size in SIZES]
    return {case.name: case for case in (Case(wire, array) for wire in WIRES for array in arrays)}


def commands() -> dict[str, tuple[int, list[str]]]:
    """contender -> its port, how to start it"""
    bare = [sys.executable, "-m", "benchmarks.bare"]
    return {
        "gateway": (PORT, GATEWAY),
        "bare": (PORT + 10, [*bare, str(PORT + 10)]),
        "precomputed": (PORT + 11, [*bare, str(PORT + 11), "--precomputed"]),
        "control": (PORT + 12, [*bare, str(PORT + 12)]),
    }


CONTEST = Contest("json_http", __doc__ or "", EPILOG, commands(), cases(), usual=3)


if __name__ == "__main__":
    CONTEST.main()
