"""What users of tritonclient.grpc.aio do, done by tritonclient.grpc.aio itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import checks
import numpy as np
import tritonclient.grpc.aio as triton
from triton_grpc import INPUT0, is_sum_and_difference, operands, tensor
from tritonclient.utils import InferenceServerException


def with_client(address: str, work: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with triton.InferenceServerClient(address) as client:
            await asyncio.wait_for(work(client), 30)

    asyncio.run(run())


def check_health_and_metadata(address: str) -> None:
    async def work(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("add_sub", "1")
        assert not await client.is_model_ready("absent")
        assert (await client.get_server_metadata()).name == "tensorgate"
        assert list((await client.get_model_metadata("add_sub")).inputs[0].shape) == [-1, 16]

    with_client(address, work)


def check_many_at_a_time(address: str) -> None:
    firsts = [np.full((1, 16), number, np.int32) for number in range(40)]

    async def work(client: Any) -> None:
        results = await asyncio.gather(*(client.infer("add_sub", operands(first)) for first in firsts))
        for first, result in zip(firsts, results, strict=True):
            assert is_sum_and_difference(result, first)

    with_client(address, work)


def check_errors(address: str) -> None:
    short = INPUT0[:, :4]

    async def work(client: Any) -> None:
        calls = [client.infer("absent", operands()), client.infer("add_sub", operands(short, short))]
        absent, misshapen = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(absent, InferenceServerException)
        assert absent.status() == "StatusCode.NOT_FOUND"
        assert isinstance(misshapen, InferenceServerException)
        assert "Expected [-1,16], got [1,4]" in misshapen.message()

    with_client(address, work)


def check_stream(address: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "countdown", "inputs": [tensor("start", np.array([3], np.int32), "INT32")]}

    async def work(client: Any) -> None:
        counts = []
        async for result, error in client.stream_infer(requests()):
            assert error is None
            counts.append(int(result.as_numpy("count")[0]))
        assert counts == [3, 2, 1, 0]

    with_client(address, work)


def check_cancelled_stream(address: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "countdown", "inputs": [tensor("start", np.array([100_000], np.int32), "INT32")]}

    async def work(client: Any) -> None:
        answers = client.stream_infer(requests())
        async for _, error in answers:
            assert error is None
            assert answers.cancel()
            break

    with_client(address, work)


if __name__ == "__main__":
    checks.main(globals())
