"""Clients of all dialects over HTTP and gRPC that ask without a pause, and check every answer.

A client has one connection at a time, and several gateways that it may ask. Where a connection ends before the first
byte of an answer, or cannot be made, it asks the same of the next one, as proxies and client libraries do; so it does
if gRPC says UNAVAILABLE. Everything else that is no right answer is a failure.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from serving import HOST, Gateway

from tensorgate.adapters.protobuf.messages import message

MODEL = '''
class Times:
    """y is x times a number."""

    def __init__(self, context):
        self.factor = context.parameters["factor"]

    def infer(self, inputs, request):
        return {"y": inputs["x"] * self.factor}
'''
CLIENTS_OF_EACH = 2
PATIENCE_S = 10.0
MAX_TRIES = 20


def times(path: str, factor: float) -> dict[str, Any]:
    """A model's entry in YAML."""
    tensor = {"datatype": "FP32", "shape": [-1]}
    return {
        "backend": "python",
        "path": f"{path}:Times",
        "parameters": {"factor": factor},
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }


class Gone(Exception):
    """The connection ended before anything came back."""


@dataclass
class Load:
    """What all clients share: the model that they ask for, the factors that an answer may show now, and what they have
    seen: answers by way, failures in words, how often somebody had to ask again, and how long the slowest answer took.
    """

    model: str
    allowed: set[float]
    gateways: Sequence[Gateway]
    answers: Counter[str] = field(default_factory=Counter)
    factors: Counter[float] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.cycle(range(1, 1 << 16)))
    over: bool = False

    async def run(self, way: Way) -> None:
        """One client, until it is over."""
        client = way.client(self)
        try:
            while not self.over:
                await self._ask(way, client)
                await asyncio.sleep(0.001)  # real time: the pace of a caller
        finally:
            await client.close()

    async def _ask(self, way: Way, client: Any) -> None:
        x = float(next(self.numbers))
        target, body = way.encode(self.model, x)
        before, begun = set(self.allowed), time.monotonic()
        answer = b""
        try:
            for _ in range(MAX_TRIES):
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        answer = await client.ask(target, body)
                    break
                except Gone:
                    self.retries[way.name] += 1
                    client.turn()
                    await asyncio.sleep(client.pause_s)  # real time: the library's own, until it connects again
            else:
                raise ValueError("nobody answers")
            factor = way.decode(answer) / x
        except Exception as error:
            self.failures.append(f"{way.name}: {error!r} {answer[:200]!r}")
            await asyncio.sleep(0.05)  # real time: the pace of a caller
            return
        self.answers[way.name] += 1
        self.factors[factor] += 1
        self.slowest = max(self.slowest, time.monotonic() - begun)
        if factor not in before | self.allowed:
            self.failures.append(f"{way.name}: {x} times {factor}, which is none of {before | self.allowed}")

    def since(self) -> Counter[float]:
        """The factors of the answers since this was last asked."""
        seen, self.factors = self.factors, Counter()
        return seen

    def told(self) -> str:
        """For people."""
        return (
            f"{sum(self.answers.values())} answers {dict(self.answers)}, {len(self.failures)} failures, "
            f"asked again {dict(self.retries)}, slowest {self.slowest * 1e3:.0f} ms"
        )


@asynccontextmanager
async def loaded(model: str, allowed: set[float], gateways: Sequence[Gateway]) -> AsyncIterator[Load]:
    """All clients at work; nothing may have failed at the end."""
    load = Load(model, allowed, gateways)
    clients = [asyncio.create_task(load.run(way)) for way in WAYS for _ in range(CLIENTS_OF_EACH)]
    try:
        yield load
    finally:
        load.over = True
        await asyncio.gather(*clients)
    assert load.failures == [], (load.told(), load.failures[:5])
    assert set(load.answers) == {way.name for way in WAYS}
    logging.getLogger(__name__).info("%s", load.told())


# ------------------------------------------------------------------------------------------------------------- clients


class HttpClient:
    """Keep-alive until the server says otherwise."""

    pause_s = 0.0

    def __init__(self, load: Load) -> None:
        self._ports = itertools.cycle([gateway.port for gateway in load.gateways])
        self._writer: asyncio.StreamWriter | None = None
        self.turn()

    def turn(self) -> None:
        self._port = next(self._ports)

    async def ask(self, target: str, body: bytes) -> bytes:
        if self._writer is None:
            try:
                self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
            except OSError:
                raise Gone from None
        head = f"POST {target} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        try:
            self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            first = await self._reader.read(1)
        except ConnectionError:
            first = b""
        if not first:
            await self.close()
            raise Gone
        lines = (first + await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        answer = await self._reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            if await self._reader.read(1):
                raise ValueError("bytes after the last answer")
            await self.close()
        if not lines[0].startswith("http/1.1 200"):
            raise ValueError(lines[0])
        return answer

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


class GrpcClient:
    """A channel for each gateway, with connections of its own, that gRPC makes anew by itself: where that has failed
    once, it refuses all calls until it tries again, which is after a second unless one says otherwise.
    """

    pause_s = 0.02

    def __init__(self, load: Load) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        options += [(f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max")]
        addresses = [f"{HOST}:{gateway.grpc_port}" for gateway in load.gateways]
        self._all = [grpc.aio.insecure_channel(address, options=options) for address in addresses]
        self._channels = itertools.cycle(self._all)
        self.turn()

    def turn(self) -> None:
        self._channel = next(self._channels)

    async def ask(self, target: str, body: bytes) -> bytes:
        try:
            answer: bytes = await self._channel.unary_unary(target)(body)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise Gone from None
            raise
        return answer

    async def close(self) -> None:
        for channel in self._all:
            await channel.close()


# ---------------------------------------------------------------------------------------------------------------- ways


@dataclass(frozen=True)
class Way:
    """One dialect over one transport: (model, x) -> (target, body), and what an answer says."""

    name: str
    client: Callable[[Load], Any]
    encode: Callable[[str, float], tuple[str, bytes]]
    decode: Callable[[bytes], float]


def _as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _v2_http(model: str, x: float) -> tuple[str, bytes]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}
    return f"/v2/models/{model}/infer", _as_json({"inputs": [tensor]})


def _v2_grpc(model: str, x: float) -> tuple[str, bytes]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [x]}}
    request = message("inference.ModelInferRequest")(model_name=model, inputs=[tensor])
    return "/inference.GRPCInferenceService/ModelInfer", request.SerializeToString()


def _v2_grpc_answer(body: bytes) -> float:
    answer = message("inference.ModelInferResponse").FromString(body)
    return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])


def _tf_http(model: str, x: float) -> tuple[str, bytes]:
    return f"/v1/models/{model}:predict", _as_json({"inputs": [x]})


def _tf_grpc(model: str, x: float) -> tuple[str, bytes]:
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = model
    tensor = {"dtype": 1, "tensor_shape": {"dim": [{"size": 1}]}, "float_val": [x]}
    request.inputs["x"].CopyFrom(message("tensorflow.TensorProto")(**tensor))
    return "/tensorflow.serving.PredictionService/Predict", request.SerializeToString()


def _tf_grpc_answer(body: bytes) -> float:
    return float(message("tensorflow.serving.PredictResponse").FromString(body).outputs["y"].float_val[0])


def _grps_http(model: str, x: float) -> tuple[str, bytes]:
    return "/grps/v1/infer/predict?return-ndarray=true", _as_json({"model": model, "ndarray": [x]})


def _grps_grpc(model: str, x: float) -> tuple[str, bytes]:
    tensor = {"name": "x", "dtype": 7, "shape": [1], "flat_float32": [x]}
    request = message("grps.protos.v1.GrpsMessage")(model=model, gtensors={"tensors": [tensor]})
    return "/grps.protos.v1.GrpsService/Predict", request.SerializeToString()


def _grps_grpc_answer(body: bytes) -> float:
    answer = message("grps.protos.v1.GrpsMessage").FromString(body)
    return float(answer.gtensors.tensors[0].flat_float32[0])


WAYS = (
    Way("V2 HTTP", HttpClient, _v2_http, lambda body: float(json.loads(body)["outputs"][0]["data"][0])),
    Way("V2 gRPC", GrpcClient, _v2_grpc, _v2_grpc_answer),
    Way("TFS REST", HttpClient, _tf_http, lambda body: float(json.loads(body)["outputs"][0])),
    Way("TFS gRPC", GrpcClient, _tf_grpc, _tf_grpc_answer),
    Way("grps HTTP", HttpClient, _grps_http, lambda body: float(json.loads(body)["ndarray"][0])),
    Way("grps gRPC", GrpcClient, _grps_grpc, _grps_grpc_answer),
)
