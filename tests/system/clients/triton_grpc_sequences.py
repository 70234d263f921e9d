"""Sequences over gRPC as Triton's examples run them: one request at a time, over a stream, over asyncio's stream."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Any

import checks
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio
from triton_grpc import connect, tensor
from tritonclient.utils import InferenceServerException

MODEL = "running_sum"
VALUES = (11, 7, 5, 3, 2, 0, 1)
START = "must specify the START flag on the first request of the sequence"


def step(value: int) -> list[triton.InferInput]:
    return [tensor("INPUT", np.full((1, 1), value, np.int32), "INT32")]


def flags(place: int) -> dict[str, bool]:
    return {"sequence_start": place == 0, "sequence_end": place == len(VALUES) - 1}


def total_of(result: Any) -> int:
    total = result.as_numpy("OUTPUT")
    assert (total.dtype, total.shape) == (np.int32, (1, 1))
    return int(total[0, 0])


def check_one_request_at_a_time(address: str) -> None:
    """simple_grpc_sequence_sync_infer_client: two sequences by numbers, two by names, in turn."""
    sums: dict[int | str, list[int]] = {1007: [], 1008: [], "a sequence": [], "1007": []}
    with connect(address) as client:
        for place, value in enumerate(VALUES):
            for sign, sequence in zip((1, -1, 2, -2), sums, strict=True):
                result = client.infer(MODEL, step(sign * value), sequence_id=sequence, **flags(place))
                sums[sequence].append(total_of(result))
    for sign, found in zip((1, -1, 2, -2), sums.values(), strict=True):
        assert found == list(accumulate(sign * value for value in VALUES))


def check_a_stream_of_mixed_sequences(address: str) -> None:
    """simple_grpc_sequence_stream_infer_client: nothing is waited for, and every id comes back in its order."""
    sequences: tuple[int | str, ...] = (1001, 1002, "third", "fourth")
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found: dict[str, list[int]] = {str(sequence): [] for sequence in sequences}
    with connect(address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        for place, value in enumerate(VALUES):
            for sequence in sequences:
                client.async_stream_infer(
                    MODEL, step(value), request_id=f"{sequence}_{place}", sequence_id=sequence, **flags(place)
                )
        for _ in range(len(sequences) * len(VALUES)):
            result, error = done.get(timeout=10)
            assert error is None, error
            sequence, place = result.get_response().id.rsplit("_", 1)
            assert int(place) == len(found[sequence])
            found[sequence].append(total_of(result))
        client.stop_stream()
    assert set(map(tuple, found.values())) == {tuple(accumulate(VALUES))}


def check_controls_over_a_stream(address: str) -> None:
    """What simple_dyna_sequence of the examples answers: START is added to the first, the number to the last."""
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with connect(address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        for place, value in enumerate(VALUES):
            client.async_stream_infer("simple_dyna_sequence", step(value), sequence_id=1009, **flags(place))
        found = [total_of(done.get(timeout=10)[0]) for _ in VALUES]
        client.stop_stream()
    assert found == [VALUES[0] + 1, *VALUES[1:-1], VALUES[-1] + 1009]


def check_over_the_stream_of_asyncio(address: str) -> None:
    """simple_grpc_aio_sequence_stream_infer_client."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for place, value in enumerate(VALUES):
            for sequence in (1011, "aio"):
                yield {
                    "model_name": MODEL,
                    "inputs": step(value),
                    "outputs": [triton.InferRequestedOutput("OUTPUT")],
                    "request_id": f"{sequence}_{place}",
                    "sequence_id": sequence,
                    **flags(place),
                }

    async def run() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"1011": [], "aio": []}
        async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None, error
                found[result.get_response().id.rsplit("_", 1)[0]].append(total_of(result))
        return found

    assert asyncio.run(run()) == {"1011": list(accumulate(VALUES)), "aio": list(accumulate(VALUES))}


def check_what_is_refused(address: str) -> None:
    with connect(address) as client:
        for sequence in (1021, "x y"):
            error = checks.raised(
                InferenceServerException,
                lambda sequence=sequence: client.infer(MODEL, step(1), sequence_id=sequence),
            )
            assert error.status() == "StatusCode.INVALID_ARGUMENT"
            assert error.message() == f"inference request for sequence {sequence} to model '{MODEL}' {START}"
        error = checks.raised(InferenceServerException, lambda: client.infer(MODEL, step(1), sequence_start=True))
        assert "must specify a non-zero or non-empty correlation ID" in error.message()


def check_a_refused_step_leaves_the_stream_and_its_neighbours(address: str) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with connect(address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer(MODEL, step(1), sequence_id=1031, sequence_start=True)
        client.async_stream_infer(MODEL, step(1), request_id="lost", sequence_id=1032)
        client.async_stream_infer(MODEL, step(2), sequence_id=1031, sequence_end=True)
        answers = [done.get(timeout=10) for _ in range(3)]
        client.stop_stream()
    assert [error is None for _, error in answers] == [True, False, True]
    assert START in answers[1][1].message()
    assert total_of(answers[2][0]) == 3


if __name__ == "__main__":
    checks.main(globals())
