"""What users of tritonclient.http.aio do, done by tritonclient.http.aio itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import checks
import numpy as np
import tritonclient.http.aio as triton
from triton_http import INPUT0, asked, is_sum_and_difference, operands, tensor
from tritonclient.utils import InferenceServerException


def with_client(address: str, work: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with triton.InferenceServerClient(address, **options) as client:
            await work(client)

    asyncio.run(run())


def check_health_and_metadata(address: str) -> None:
    async def work(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("add_sub", "1")
        assert not await client.is_model_ready("absent")
        assert (await client.get_server_metadata())["name"] == "tensorgate"
        assert (await client.get_model_metadata("add_sub"))["inputs"][0]["shape"] == [-1, 16]

    with_client(address, work)


def check_many_at_a_time(address: str) -> None:
    firsts = [np.full((1, 16), number, np.int32) for number in range(40)]

    async def work(client: Any) -> None:
        results = await asyncio.gather(*(client.infer("add_sub", operands(first)) for first in firsts))
        for first, result in zip(firsts, results, strict=True):
            assert is_sum_and_difference(result, first)

    with_client(address, work, conn_limit=4)


def check_json_and_text(address: str) -> None:
    text = np.array(["straße", ""], np.object_)

    async def work(client: Any) -> None:
        outputs = asked("OUTPUT0", "OUTPUT1", binary=False)
        assert is_sum_and_difference(await client.infer("add_sub", operands(binary=False), outputs=outputs))
        shout = await client.infer("upper", [tensor("text", text, "BYTES")])
        assert shout.as_numpy("shout").tolist() == [b"STRASSE", b""]

    with_client(address, work)


def check_compression(address: str) -> None:
    async def work(client: Any) -> None:
        for sent in (None, "gzip", "deflate"):
            for wanted in (None, "gzip", "deflate"):
                result = await client.infer(
                    "add_sub",
                    operands(),
                    request_compression_algorithm=sent,
                    response_compression_algorithm=wanted,
                )
                assert is_sum_and_difference(result), (sent, wanted)

    with_client(address, work)


def check_errors(address: str) -> None:
    short = INPUT0[:, :4]

    async def work(client: Any) -> None:
        calls = [client.infer("absent", operands()), client.infer("add_sub", operands(short, short))]
        absent, misshapen = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(absent, InferenceServerException)
        assert (absent.status(), absent.message()) == ("404", "Request for unknown model: 'absent' is not found")
        assert isinstance(misshapen, InferenceServerException)
        assert misshapen.status() == "400"
        assert "Expected [-1,16], got [1,4]" in misshapen.message()

    with_client(address, work)


if __name__ == "__main__":
    checks.main(globals())
