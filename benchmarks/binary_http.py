"""Infer over HTTP with binary tensors: the gateway against an aiohttp handler that sends back the bytes that it got.

Both on uvloop with the same allocator settings and no access log. The echo reads the body and writes it, no more: it
does not look at the JSON in front of the tensor, builds no array, runs no model. A ratio of 1 would mean that all of
that costs nothing.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import orjson

from benchmarks.contest import GATEWAY, PORT, Contest
from benchmarks.servers import Failed, Server

SIZES = (16, 150_528, 1_505_280)  # 64 bytes, 600 KB (an image of 3 x 224 x 224), 6 MB
LENGTH = "Inference-Header-Content-Length"
EPILOG = """
contenders:
  gateway  python -m tensorgate serve benchmarks/identity.yaml
  echo     aiohttp + uvloop + mallopt: reads the body, writes the body
  control  a second echo: how far its ratio is from 1 is how far to trust the other

examples:
  python -m benchmarks.binary_http
  python -m benchmarks.binary_http --cases binary/150528 --rounds 9
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One request with a FP32 tensor [1, floats], which asks for its answer in binary, too."""

    floats: int

    @property
    def name(self) -> str:
        return f"binary/{self.floats}"

    @property
    def path(self) -> str:
        return "/v2/models/identity/infer"

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Content-Type": "application/octet-stream", LENGTH: str(len(self._head()))}

    def body(self) -> bytes:
        return self._head() + self._data()

    def check(self, server: Server) -> None:
        """Raise Failed unless the answer ends with the tensor's bytes and describes them, as the gateway must."""
        answer = server.post(self.path, self.body(), self.headers)
        data = self._data()
        if not answer.endswith(data):
            raise Failed(f"{server.name}, {self.name}: the answer has other bytes: {answer[:300]!r}")
        if server.name == "gateway":
            (output,) = orjson.loads(answer[: -len(data)])["outputs"]
            if (output.get("shape"), output.get("datatype")) != ([1, self.floats], "FP32"):
                raise Failed(f"{server.name}, {self.name}: the answer is no such tensor: {output}")

    def _head(self) -> bytes:
        size = struct.calcsize(f"<{self.floats}f")
        shape, parameters = [1, self.floats], {"binary_data_size": size}
        tensor = {"name": "x", "shape": shape, "datatype": "FP32", "parameters": parameters}
        outputs = [{"name": "y", "parameters": {"binary_data": True}}]
        return orjson.dumps({"inputs": [tensor], "outputs": outputs})

    def _data(self) -> bytes:
        return np.random.default_rng(1).standard_normal(self.floats, np.float32).tobytes()


def cases() -> dict[str, Case]:
    return {case.name: case for case in map(Case, SIZES)}


def commands() -> dict[str, tuple[int, list[str]]]:
    """contender -> its port, how to start it"""
    echo = [sys.executable, "-m", "benchmarks.echo"]
    return {
        "gateway": (PORT, GATEWAY),
        "echo": (PORT + 20, [*echo, str(PORT + 20)]),
        "control": (PORT + 21, [*echo, str(PORT + 21)]),
    }


CONTEST = Contest("binary_http", __doc__ or "", EPILOG, commands(), cases())


if __name__ == "__main__":
    CONTEST.main()
