"""What users of tritonclient.grpc do over a stream, as Triton's own examples do it: ordinary models, decoupled ones,
sequences, errors on the way, and cancellation.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import checks
import numpy as np
from triton_grpc import connect, is_sum_and_difference, operands, tensor

Answers = Callable[[], tuple[Any, Any]]


def stream(address: str, work: Callable[[Any, Answers], None], **options: Any) -> None:
    """Run `work` with a client whose stream is open, and what waits for the stream's next answer."""
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with connect(address) as client:
        client.start_stream(lambda result, error: done.put((result, error)), **options)
        work(client, lambda: done.get(timeout=10))
    assert done.empty(), done.get()


def start(number: int) -> list[Any]:
    return [tensor("start", np.array([number], np.int32), "INT32")]


def is_final(result: Any) -> bool:
    parameter = result.get_response().parameters["triton_final_response"]
    assert parameter.WhichOneof("parameter_choice") == "bool_param"
    return bool(parameter.bool_param)


def check_an_ordinary_model_answers_in_order(address: str) -> None:
    firsts = [np.full((1, 16), number, np.int32) for number in range(100)]

    def work(client: Any, answer: Answers) -> None:
        for number, first in enumerate(firsts):
            client.async_stream_infer("add_sub", operands(first), request_id=str(number))
        for number, first in enumerate(firsts):
            result, error = answer()
            assert error is None
            assert result.get_response().id == str(number)
            assert is_sum_and_difference(result, first)
            assert is_final(result)

    stream(address, work)


def check_a_decoupled_model_answers_many_times(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer("countdown", start(3), request_id="a")
        for number in (3, 2, 1, 0):
            result, error = answer()
            assert error is None
            assert result.as_numpy("count").tolist() == [number]
            assert not is_final(result)

    stream(address, work)


def check_the_end_of_a_decoupled_model_is_told(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        for number in (2, -1):
            client.async_stream_infer("countdown", start(number), request_id="b", enable_empty_final_response=True)
            for _ in range(number + 1):
                assert not is_final(answer()[0])
            result, error = answer()
            assert error is None
            assert is_final(result)
            response = result.get_response()
            assert (response.id, response.model_name, len(response.outputs)) == ("b", "countdown", 0)

    stream(address, work)


def check_decoupled_and_ordinary_ones_share_a_stream(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer("countdown", start(5), request_id="slow")
        client.async_stream_infer("add_sub", operands(), request_id="quick")
        results = [answer()[0] for _ in range(7)]
        names = [result.get_response().id for result in results]
        assert sorted(names) == ["quick"] + ["slow"] * 6
        assert names.index("quick") < 6, "an ordinary model need not wait for a decoupled one"

    stream(address, work)


def check_an_error_leaves_the_stream_open(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer("absent", operands(), request_id="1")
        client.async_stream_infer("add_sub", operands(), request_id="2")
        result, error = answer()
        assert result is None
        assert "Request for unknown model: 'absent' is not found" in error.message()
        result, error = answer()
        assert error is None
        assert is_sum_and_difference(result)

    stream(address, work)


def check_only_a_models_error_ends_the_stream_if_asked_to(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer("absent", operands())
        result, error = answer()
        assert result is None
        assert "Request for unknown model: 'absent' is not found" in error.message()
        client.async_stream_infer("add_sub", operands())
        result, error = answer()
        assert error is None, error
        assert is_sum_and_difference(result)

    stream(address, work, headers={"triton_grpc_error": "true"})


def check_sequence_parameters(address: str) -> None:
    """Of an ordinary model they mean nothing, and are no parameters of its own."""

    def work(client: Any, answer: Answers) -> None:
        for number in range(3):
            client.async_stream_infer(
                "add_sub", operands(), sequence_id=7, sequence_start=number == 0, sequence_end=number == 2
            )
        assert all(is_sum_and_difference(answer()[0]) for _ in range(3))

    stream(address, work)


def check_cancellation(address: str) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with connect(address) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer("countdown", start(100_000))
        assert done.get(timeout=10)[1] is None
        client.stop_stream(cancel_requests=True)
        seen: list[Any] = []
        while not done.empty():
            seen.append(done.get()[1])
        assert seen[-1].status() == "StatusCode.CANCELLED"
        assert client.is_model_ready("countdown")
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer("countdown", start(0))
        result, error = done.get(timeout=10)
        assert error is None, "the model is free again"
        assert result.as_numpy("count").tolist() == [0]


def check_stream_timeout(address: str) -> None:
    def work(client: Any, answer: Answers) -> None:
        client.async_stream_infer("countdown", start(100_000))
        while (error := answer()[1]) is None:
            pass
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED"

    stream(address, work, stream_timeout=0.5)


if __name__ == "__main__":
    checks.main(globals())
