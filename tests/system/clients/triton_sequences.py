"""Sequences with tritonclient.http: two or three of them, by numbers and by names, their requests interleaved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import checks
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

MODEL = "running_sum"
VALUES = (0, 11, 7, 5, 3, 2, 0, 1)


def send(
    client: triton.InferenceServerClient, sequence: int | str, value: int, model: str = MODEL, **flags: Any
) -> int:
    """One request of a sequence -> the number that it answers."""
    step = triton.InferInput("INPUT", [1, 1], "INT32")
    step.set_data_from_numpy(np.full((1, 1), value, np.int32))
    asked = [triton.InferRequestedOutput("OUTPUT")]
    result = client.infer(model, [step], outputs=asked, sequence_id=sequence, **flags)
    total = result.as_numpy("OUTPUT")
    assert (total.dtype, total.shape) == (np.int32, (1, 1))
    return int(total[0, 0])


def flags(place: int, values: tuple[int, ...]) -> dict[str, bool]:
    return {"sequence_start": place == 0, "sequence_end": place == len(values) - 1}


def refusal(client: triton.InferenceServerClient, sequence: int | str, **flags: Any) -> str:
    error = checks.raised(InferenceServerException, lambda: send(client, sequence, 1, **flags))
    assert error.status() == "400"
    return str(error.message())


def check_interleaved_sequences(address: str) -> None:
    """Numbers and names in turn, on one connection."""
    sequences = {1000: VALUES, 1001: tuple(-value for value in VALUES), "1000": tuple(10 * value for value in VALUES)}
    sums: dict[int | str, list[int]] = {sequence: [] for sequence in sequences}
    with triton.InferenceServerClient(address) as client:
        for place in range(len(VALUES)):
            for sequence, values in sequences.items():
                sums[sequence].append(send(client, sequence, values[place], **flags(place, values)))
    assert sums == {sequence: list(accumulate(values)) for sequence, values in sequences.items()}


def check_one_sequence_after_the_other(address: str) -> None:
    with triton.InferenceServerClient(address) as client:
        for sequence in (2000, "two thousand", 2000):
            sums = [send(client, sequence, value, **flags(place, VALUES)) for place, value in enumerate(VALUES)]
            assert sums == list(accumulate(VALUES))


def check_many_sequences_at_once(address: str) -> None:
    """More than the model keeps at a time: the others wait for one that ends."""

    def run(sequence: int | str) -> None:
        with triton.InferenceServerClient(address) as client:
            sums = [send(client, sequence, value, **flags(place, VALUES)) for place, value in enumerate(VALUES)]
            assert sums == list(accumulate(VALUES)), (sequence, sums)

    sequences: list[int | str] = [*range(3000, 3010), *(f"name {number}" for number in range(10))]
    with ThreadPoolExecutor(len(sequences)) as pool:
        list(pool.map(run, sequences))


def check_a_start_restarts(address: str) -> None:
    with triton.InferenceServerClient(address) as client:
        assert send(client, 4000, 5, sequence_start=True) == 5
        assert send(client, 4000, 6) == 11
        assert send(client, 4000, 7, sequence_start=True) == 7
        assert send(client, 4000, 1, sequence_end=True) == 8


def check_what_is_refused(address: str) -> None:
    start = "must specify the START flag on the first request of the sequence"
    with triton.InferenceServerClient(address) as client:
        none = f"inference request to model '{MODEL}' must specify a non-zero or non-empty correlation ID"
        assert refusal(client, 0) == none
        assert refusal(client, 0, sequence_start=True) == none
        assert refusal(client, "") == none
        assert refusal(client, 5000) == f"inference request for sequence 5000 to model '{MODEL}' {start}"
        assert refusal(client, "x y") == f"inference request for sequence x y to model '{MODEL}' {start}"
        assert send(client, 5000, 1, sequence_start=True, sequence_end=True) == 1
        assert refusal(client, 5000).endswith(start)
        assert send(client, 5001, 1, sequence_start=True) == 1
        assert refusal(client, "5001").endswith(start)
        assert send(client, 5001, 1, sequence_end=True) == 2


def check_two_rows_are_refused(address: str) -> None:
    rows = triton.InferInput("INPUT", [2, 1], "INT32")
    rows.set_data_from_numpy(np.ones((2, 1), np.int32))
    with triton.InferenceServerClient(address) as client:
        error = checks.raised(
            InferenceServerException, lambda: client.infer(MODEL, [rows], sequence_id=6000, sequence_start=True)
        )
        assert error.message() == (
            f"inference request to model '{MODEL}' must specify batch-size 1 due to requirements of sequence batcher"
        )


def check_controls_reach_the_model(address: str) -> None:
    """What the models of Triton's own sequence examples answer: INPUT + START, and with END's sequence its number."""
    with triton.InferenceServerClient(address) as client:
        for sequence in (7000, "seven thousand"):
            told = [
                send(client, sequence, value, "simple_sequence", **flags(place, VALUES))
                for place, value in enumerate(VALUES)
            ]
            assert told == [VALUES[0] + 1, *VALUES[1:]]
        told = [
            send(client, 7001, value, "simple_dyna_sequence", **flags(place, VALUES))
            for place, value in enumerate(VALUES)
        ]
        assert told == [VALUES[0] + 1, *VALUES[1:-1], VALUES[-1] + 7001]


def check_states_are_not_shown(address: str) -> None:
    with triton.InferenceServerClient(address) as client:
        assert "sequence" in client.get_server_metadata()["extensions"]
        metadata = client.get_model_metadata(MODEL)
        assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT"]
        assert [tensor["name"] for tensor in metadata["outputs"]] == ["OUTPUT"]


if __name__ == "__main__":
    checks.main(globals())
