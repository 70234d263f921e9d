"""What simple_grpc_custom_repeat does with its decoupled model: as many answers as values, each after its delay."""

from __future__ import annotations

import queue
from typing import Any

import checks
import numpy as np
from triton_grpc import asked, connect, is_sum_and_difference, operands, tensor
from triton_grpc_stream import Answers, is_final, stream
from tritonclient.utils import InferenceServerException

MODEL = "repeat_int32"


def values(*numbers: int, delay_ms: int = 0, wait_ms: int = 0) -> list[Any]:
    count = len(numbers)
    return [
        tensor("IN", np.array(numbers, np.int32), "INT32"),
        tensor("DELAY", np.full(count, delay_ms, np.uint32), "UINT32"),
        tensor("WAIT", np.array([wait_ms], np.uint32), "UINT32"),
    ]


def check_every_value_comes_back(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer(MODEL, values(7, 5, 9, delay_ms=5, wait_ms=5), request_id="0")
        for index, value in enumerate((7, 5, 9)):
            result, error = answer()
            assert error is None, error
            assert result.as_numpy("OUT").tolist() == [value]
            assert result.as_numpy("IDX").tolist() == [index]
            assert result.as_numpy("IDX").dtype == np.uint32
            assert not is_final(result)

    stream(address, work)


def check_only_the_output_that_is_asked_for(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer(MODEL, values(3), outputs=asked("IDX"))
        result, error = answer()
        assert error is None, error
        assert [output.name for output in result.get_response().outputs] == ["IDX"]

    stream(address, work)


def check_nothing_to_repeat(address: str) -> None:
    """No answer at all; who wants to know that it was all gets an empty one, and the stream goes on."""

    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer(MODEL, values(), request_id="silent")
        client.async_stream_infer(MODEL, values(), request_id="told", enable_empty_final_response=True)
        result, error = answer()
        assert error is None, error
        response = result.get_response(as_json=True)
        assert response == {
            "model_name": MODEL,
            "id": "told",
            "parameters": {"triton_final_response": {"bool_param": True}},
        }

    stream(address, work)


def check_answers_come_as_they_are_made(address: str) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with connect(address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer(MODEL, values(*range(100), delay_ms=20))
        assert done.get(timeout=45)[1] is None
        assert done.qsize() < 90, "the first waited for the others"
        for _ in range(99):
            assert done.get(timeout=45)[1] is None
        client.stop_stream()


def check_an_error_in_the_middle(address: str) -> None:
    """It names the request, is its last word, and the stream's next request is answered."""

    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer(MODEL, values(4, -1, 5), request_id="half", enable_empty_final_response=True)
        assert answer()[0].as_numpy("OUT").tolist() == [4]
        result, error = answer()
        assert result is None
        assert "value 1 is below 0" in error.message()
        client.async_stream_infer("add_sub", operands(), request_id="next")
        result, error = answer()
        assert error is None, error
        assert is_sum_and_difference(result)

    stream(address, work)


def check_an_error_in_the_middle_may_end_the_stream(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer(MODEL, values(4, -1, 5))
        assert answer()[0].as_numpy("OUT").tolist() == [4]
        result, error = answer()
        assert result is None
        assert error.status() == "StatusCode.INTERNAL"
        assert "value 1 is below 0" in error.message()

    stream(address, work, headers={"triton_grpc_error": "true"})


def check_two_requests_at_a_time(address: str) -> None:
    """Their answers may mix; each request's own come in their order, under its id."""

    def work(client: Any, answer: Answers) -> None:
        for name in ("a", "b"):
            client.async_stream_infer(MODEL, values(1, 2, 3, delay_ms=10), request_id=name)
        found: dict[str, list[int]] = {"a": [], "b": []}
        for _ in range(6):
            result, error = answer()
            assert error is None, error
            found[result.get_response().id] += result.as_numpy("OUT").tolist()
        assert found == {"a": [1, 2, 3], "b": [1, 2, 3]}

    stream(address, work)


def check_cancelled_in_the_middle(address: str) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with connect(address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer(MODEL, values(*range(6000), delay_ms=20))
        assert done.get(timeout=45)[1] is None
        client.stop_stream(cancel_requests=True)
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer(MODEL, values(42), request_id="after")
        while (answer := done.get(timeout=45))[0] is None or answer[0].get_response().id != "after":
            pass
        client.stop_stream()


def check_a_single_answer_cannot_be_asked_for(address: str) -> None:
    with connect(address) as client:
        error = checks.raised(InferenceServerException, lambda: client.infer(MODEL, values(1)))
        assert error.status() == "StatusCode.UNIMPLEMENTED"
        assert error.message() == "ModelInfer RPC doesn't support models with decoupled transaction policy"
        config = client.get_model_config(MODEL, as_json=True)["config"]
        assert config["model_transaction_policy"] == {"decoupled": True}


if __name__ == "__main__":
    checks.main(globals())
