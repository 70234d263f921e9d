"""Outputs in their callers' memory: everybody's own rows, in the right place, and nobody else's business."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_backend import PaperBackend

from tensorgate.backends.execution import pipeline
from tensorgate.backends.execution.device import Device
from tensorgate.gateway.contract.backend import BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import Destination, InferRequest, InferResponse, OutputRequest
from tensorgate.gateway.contract.errors import OutputTooLarge
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec

FENCE = 7


class Echo(PaperBackend):
    """y = x, s = x as text; where its outputs are made counts."""

    def __init__(self, source: ModelSource) -> None:
        self.device = Device()
        self.max_batch_size = int(source.max_batch_size)
        self.inputs = (TensorSpec("x", DTYPES["FP32"], (-1, 2)),)
        self.outputs = (TensorSpec("y", DTYPES["FP32"], (-1, 2)), TensorSpec("s", DTYPES["BYTES"], (-1, 2)))

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        x = tensors["x"]
        assert isinstance(x, np.ndarray)
        texts = np.array([b"%d" % each for each in x.ravel().tolist()], object).reshape(x.shape)
        return ({name: {"y": x, "s": texts}[name] for name in outputs},)


def serialize(array: Any) -> bytes:
    return b"|".join(array.ravel().tolist())


def run(requests: list[InferRequest], max_batch_size: int = 64) -> list[Any]:
    source = ModelSource("m", 1, Path(), "cpu", (), (), max_batch_size, None)
    executor = pipeline.load(BackendKind(Options, Echo), source, 1, (), ()).executors[0]
    (outcomes,) = executor.run(requests, lambda timing: None)
    return list(outcomes)


class View:
    name, version, outputs = "m", 1, dict.fromkeys("ys")


def ask(x: Any, wish: dict[str, Any], spare: int = 0) -> tuple[InferRequest, dict[str, bytearray]]:
    """A request, and the memory of those outputs that go there; `spare` bytes more than are needed, and a fence."""
    array = np.array(x, np.float32)
    sizes = {
        "y": array.nbytes,
        "s": len(serialize(np.array([b"%d" % each for each in array.ravel().tolist()], object))),
    }
    memory = {name: bytearray(sizes[name] + spare + FENCE) for name, place in wish.items() if place == "memory"}
    into = {
        name: Destination(memoryview(content)[: sizes[name] + spare], serialize) for name, content in memory.items()
    }
    outputs = tuple(OutputRequest(name, 1 if place == "classes" else 0) for name, place in wish.items())
    view: Any = View()
    return InferRequest(view, {"x": array}, outputs=outputs, into=into or None), memory


PLACES = st.dictionaries(st.sampled_from("ys"), st.sampled_from(["memory", "answer"]), max_size=2) | st.just(
    {"y": "classes", "s": "memory"}
)


@given(st.lists(st.tuples(st.integers(0, 3), PLACES, st.integers(0, 5)), min_size=1, max_size=5), st.booleans())
def test_callers_in_one_batch(callers: list[Any], batching: bool) -> None:
    made, start = [], 0
    for rows, wish, spare in callers[: None if batching else 1]:
        made.append((*ask(np.arange(start, start + 2 * rows).reshape(rows, 2), wish, spare), wish))
        start += 2 * rows
    outcomes = run([request for request, _, _ in made], 64 if batching else 0)
    for outcome, (request, memory, wish) in zip(outcomes, made, strict=True):
        assert isinstance(outcome, InferResponse)
        x = request.inputs["x"]
        texts = [b"%d" % each for each in x.ravel().tolist()]
        asked = wish or {"y": "answer", "s": "answer"}
        assert set(outcome.outputs) == {name for name, place in asked.items() if place != "classes"}
        assert list(outcome.outputs) == [name for name in "ys" if name in outcome.outputs]
        for name, array in outcome.outputs.items():
            assert (array.shape, array.dtype) == (x.shape, DTYPES["FP32" if name == "y" else "BYTES"])
            if asked[name] == "answer":
                assert array.tobytes() == x.tobytes() if name == "y" else array.ravel().tolist() == texts
        for name, content in memory.items():
            expected = x.tobytes() if name == "y" else b"|".join(texts)
            assert content == expected + bytes(len(content) - len(expected))


def test_too_little_memory_is_its_owners_problem() -> None:
    small, memory = ask([[1, 2]], {"y": "memory"})
    small = InferRequest(
        small.view, small.inputs, outputs=small.outputs, into={"y": Destination(memoryview(memory["y"])[:7], serialize)}
    )
    good, place = ask([[3, 4]], {"y": "memory"})
    refused, answered = run([small, good])
    assert isinstance(refused, OutputTooLarge)
    assert (refused.output, refused.given, refused.needed) == ("y", 7, 8)
    assert memory["y"] == bytes(8 + FENCE)
    assert isinstance(answered, InferResponse)
    assert place["y"][:8] == np.array([3, 4], np.float32).tobytes()
    (alone,) = run([small])
    assert isinstance(alone, OutputTooLarge)


def test_nothing_is_written_for_who_has_left() -> None:
    request, memory = ask([[1, 2]], {"y": "memory"})
    request.cancellation.cut = True
    run([request])
    assert memory["y"] == bytes(8 + FENCE)


def test_output_over_its_own_input() -> None:
    content = bytearray(np.arange(8, dtype=np.float32).tobytes())
    x = np.frombuffer(memoryview(content)[:24], np.float32).reshape(3, 2)
    view: Any = View()
    into = {"y": Destination(memoryview(content)[4:28], serialize)}
    run([InferRequest(view, {"x": x}, outputs=(OutputRequest("y"),), into=into)])
    assert np.frombuffer(content, np.float32).tolist() == [0, 0, 1, 2, 3, 4, 5, 7]


# ------------------------------------------------------------------------------------------------------ a GPU's memory


class OnCard:
    """An array that is not NumPy's, as a caller's on a GPU is."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.dtype, self.shape, self.nbytes = array.dtype, array.shape, array.nbytes

    def get(self) -> Any:
        return self._array.copy()


class CardMemory:
    """Where an output goes that is wanted on a GPU."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.written: list[Any] = []

    def array(self, dtype: Any, shape: Any, *, copy: bool = False) -> Any:
        raise AssertionError("an output is not read")

    def tobytes(self) -> bytes:
        raise AssertionError("an output is not read")

    def write(self, array: Any) -> None:
        self.written.append(array.copy())


@pytest.mark.parametrize("company", [False, True])
def test_a_host_model_takes_and_gives_what_is_on_a_gpu(company: bool) -> None:
    x = np.array([[1, 2]], np.float32)
    memory = CardMemory(100)
    view: Any = View()
    into = {"y": Destination(memory, serialize), "s": Destination(CardMemory(2), serialize)}
    request = InferRequest(view, {"x": OnCard(x)}, outputs=(OutputRequest("y"),), into={"y": into["y"]})
    other, _ = ask([[5, 6]], {"y": "answer"})
    outcomes = run([other, request] if company else [request])
    assert isinstance(outcomes[-1], InferResponse)
    assert [array.tolist() for array in memory.written] == [[[1, 2]]]
    if company:
        assert outcomes[0].outputs["y"].tolist() == [[5, 6]]
    text = InferRequest(view, {"x": OnCard(x)}, outputs=(OutputRequest("s"),), into={"s": into["s"]})
    (refused,) = run([text])
    assert isinstance(refused, OutputTooLarge)
    assert (refused.given, refused.needed) == (2, 3)
