"""What image_client does over HTTP: ask the model how its pictures lie, send them alone and in batches, at once and
without waiting, and read classes with labels. And the loop of memory_growth_test.
"""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import tritonclient.http as triton

MODEL = "colours"
LABELS = ("RED", "GREEN", "BLUE")
SHARES = ("0.750000", "0.500000", "0.250000")


def parsed(metadata: Any, config: Any) -> tuple[Any, ...]:
    """The checks of the client's parse_model, and what it finds: largest batch, names, sizes, form, datatype."""
    assert len(metadata["inputs"]) == len(metadata["outputs"]) == len(config["input"]) == 1
    (source,), (target,) = metadata["inputs"], metadata["outputs"]
    assert target["datatype"] == "FP32"
    batched = config["max_batch_size"] > 0
    assert sum(size > 1 for size in target["shape"][batched:]) == 1
    assert len(source["shape"]) == 3 + batched
    form = config["input"][0]["format"]
    return (config["max_batch_size"], source["name"], target["name"], *source["shape"][batched:], form)


def pictures(count: int) -> list[triton.InferInput]:
    """Picture n is mostly of colour n modulo 3, then of the next one."""
    shades = np.array([np.roll([0.75, 0.5, 0.25], number % 3) for number in range(count)], np.float32)
    made = triton.InferInput("picture", [count, 6, 8, 3], "FP32")
    made.set_data_from_numpy(np.broadcast_to(shades[:, None, None, :], (count, 6, 8, 3)).copy())
    return [made]


def expected(number: int, count: int) -> list[bytes]:
    order = [(number + place) % 3 for place in range(count)]
    return [f"{value}:{index}:{LABELS[index]}".encode() for value, index in zip(SHARES, order, strict=False)]


def check_the_model_is_described(address: str) -> None:
    with triton.InferenceServerClient(address) as client:
        found = parsed(client.get_model_metadata(MODEL), client.get_model_config(MODEL))
        assert found == (4, "picture", "colours", 6, 8, 3, "FORMAT_NHWC")


def check_alone_and_in_batches(address: str) -> None:
    with triton.InferenceServerClient(address) as client:
        for batch in (1, 2, 4):
            for count in (1, 2, 3):
                outputs = [triton.InferRequestedOutput("colours", class_count=count)]
                result = client.infer(MODEL, pictures(batch), request_id=str(batch), outputs=outputs)
                assert result.get_response()["id"] == str(batch)
                assert result.as_numpy("colours").tolist() == [expected(number, count) for number in range(batch)]


def check_without_waiting(address: str) -> None:
    outputs = [triton.InferRequestedOutput("colours", class_count=2)]
    with triton.InferenceServerClient(address, concurrency=4) as client:
        waiting = [client.async_infer(MODEL, pictures(batch), outputs=outputs) for batch in (1, 2, 3, 4) * 3]
        for batch, request in zip((1, 2, 3, 4) * 3, waiting, strict=True):
            found = request.get_result().as_numpy("colours").tolist()
            assert found == [expected(number, 2) for number in range(batch)]


def check_hundreds_of_requests(address: str) -> None:
    """memory_growth_test: the same request over and over, with inputs that are made anew and with the same ones."""
    same = pictures(2)
    with triton.InferenceServerClient(address) as client:
        first = client.infer(MODEL, same).as_numpy("colours")
        for _ in range(300):
            for inputs in (same, pictures(2)):
                assert np.array_equal(client.infer(MODEL, inputs).as_numpy("colours"), first)


if __name__ == "__main__":
    checks.main(globals())
