"""What another server answers to several requests at once is what it would have answered to each."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorgate.backends.execution.device import Device
from tensorgate.backends.remote.backend import RemoteBackend
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, OutputRequest
from tensorgate.gateway.contract.errors import ModelFailed
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec


async def test_a_joint_answer_is_everybodys_rows_outputs_and_parameters() -> None:
    backend: Any = RemoteBackend.__new__(RemoteBackend)
    backend.device = Device()
    backend._specs = {name: TensorSpec(name, DTYPES["FP32"], (-1, 1)) for name in "ab"}
    backend._fitting = set()

    async def call(tensors: Any, outputs: Any, request: Any, requests: Any) -> InferResponse:
        return InferResponse({"b": -tensors["x"], "a": tensors["x"]}, {"seen": True})

    backend._call = call
    backend.decoupled = False
    view: Any = SimpleNamespace(name="m")

    def asked(number: int, *names: str) -> InferRequest:
        x = np.full((1, 1), number, np.float32)
        return InferRequest(view, {"x": x}, outputs=tuple(map(OutputRequest, names)))

    requests = [asked(1), asked(2, "b"), asked(3, "b", "a")]
    alone = [await backend.infer_alone(request) for request in requests]
    (together,) = [outcomes async for outcomes in backend.infer_each(requests)]

    def told(answer: Any) -> Any:
        return {name: array.tolist() for name, array in answer.outputs.items()}, answer.parameters

    assert [*map(told, together)] == [*map(told, alone)]
    assert told(together[1]) == ({"b": [[-2]]}, {"seen": True})


@pytest.mark.parametrize(
    ("declared", "shape", "here"),
    [
        ((-1,), (2, 1), (2,)),
        ((-1,), (2, 1, 1), (2,)),
        ((-1, 3), (2, 3, 1), (2, 3)),
        ((-1, 1), (2, 1), (2, 1)),
        (None, (2, 1), (2, 1)),
        ((-1,), (2, 2), None),
        ((3,), (2, 1), None),
        ((-1, 1), (2,), None),
    ],
)
def test_dimensions_of_one_behind_what_is_declared_are_left_out(
    declared: Any, shape: tuple[int, ...], here: Any
) -> None:
    backend: Any = RemoteBackend.__new__(RemoteBackend)
    backend._specs = {"y": TensorSpec("y", DTYPES["FP32"], declared)}
    backend._fitting = set()
    for _ in range(2):  # what has been seen is known again
        if here is None:
            with pytest.raises(ModelFailed, match="declared is"):
                backend._part({"y": np.zeros(shape, np.float32)})
        else:
            assert backend._part({"y": np.zeros(shape, np.float32)})["y"].shape == here
