"""A backend of several functions: whose request runs which, and what is checked before it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_backend import PaperBackend

from tensorgate.backends.execution import pipeline
from tensorgate.backends.execution.device import Device
from tensorgate.backends.ops.softmax import KIND as SOFTMAX
from tensorgate.gateway.contract.backend import BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, OutputRequest
from tensorgate.gateway.contract.errors import (
    DtypeMismatch,
    InputCount,
    InvalidArgument,
    ModelFailed,
    ShapeMismatch,
    UnknownInput,
    UnknownOutput,
)
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Signature, Tensors, TensorSpec
from tensorgate.gateway.engine.model import Model, ModelSpec
from tensorgate.gateway.engine.queue import QueuePolicy
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics


def spec(name: str, datatype: str = "FP32", shape: tuple[int, ...] | None = (-1, 1)) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, DTYPES[datatype], shape)}


class Functions(PaperBackend):
    """Doubles x by default; the function `length` takes text of any shape but a scalar."""

    max_batch_size = 8

    def __init__(self, source: ModelSource) -> None:
        self.device = Device()
        self.signatures = {
            "serving_default": Signature("serving_default", spec("x"), spec("y")),
            "length": Signature("length", spec("text", "BYTES"), spec("n", "INT64") | spec("y")),
        }
        default = self.signatures["serving_default"]
        self.inputs, self.outputs = tuple(default.inputs.values()), tuple(default.outputs.values())
        self.calls: list[tuple[str, tuple[str, ...], int]] = []
        self.picky = source.parameters.get("picky")

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        if self.picky and len(requests) == 1:
            raise self.picky("not that")
        name = requests[0].signature if requests[0].signature in self.signatures else "serving_default"
        assert len({request.signature for request in requests}) == 1
        self.calls.append((name, tuple(outputs), len(requests)))
        if name == "serving_default":
            return ({"y": tensors["x"] * 2},)
        n = np.vectorize(len, otypes=[np.int64])(tensors["text"])
        results = {"n": n, "y": n.astype(np.float32)}
        return ({output: results[output] for output in outputs},)


KIND = BackendKind(Options, Functions)


def load(after: Sequence[Any] = (), example: Any = None, **parameters: Any) -> Model:
    source = ModelSource("m", 1, Path(), "cpu", (), (), 8, None, parameters)
    computation = pipeline.load(KIND, source, 1, (), after)
    plan = ModelSpec(QueuePolicy(max_batch_size=8), example=example or {})
    return Model("m", 1, (1,), computation, plan, SchedulerMetrics(lambda stage, seconds: None, lambda rows: None))


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Model]]:
    made: list[Model] = []

    def model(*args: Any, **kwargs: Any) -> Model:
        made.append(load(*args, **kwargs))
        return made[-1]

    yield model
    for each in made:
        await each.close()


def functions(model: Model) -> Any:
    return model.computation.executors[0]._backend  # type: ignore[attr-defined]


async def ask(model: Model, signature: str, outputs: Sequence[str] = (), **inputs: Any) -> dict[str, Any]:
    request = InferRequest(model.view, inputs, outputs=tuple(map(OutputRequest, outputs)), signature=signature)
    response = await anext(model.submit(request))
    return {name: array.tolist() for name, array in response.outputs.items()}


X = np.ones((1, 1), np.float32)
TEXT = np.array([[b"four"]], np.object_)


async def test_the_view_has_the_models_own_signatures(make: Any) -> None:
    model = make()
    assert list(model.view.signatures) == ["serving_default", "length"]
    assert (list(model.view.inputs), list(model.view.outputs)) == (["x"], ["y"])


async def test_the_signature_says_which_function_runs_and_requests_of_two_never_share_a_run(make: Any) -> None:
    model = make()
    defaults = [ask(model, name, x=X * n) for n, name in enumerate(["", "serving_default", "of the configuration"])]
    others = [ask(model, "length", ["n"], text=TEXT) for _ in range(2)]
    answers = await asyncio.gather(
        *(
            each
            for pair in zip(defaults, [*others, ask(model, "length", ["y"], text=TEXT)], strict=True)
            for each in pair
        )
    )
    assert answers == [{"y": [[0]]}, {"n": [[4]]}, {"y": [[2]]}, {"n": [[4]]}, {"y": [[4]]}, {"y": [[4]]}]
    assert {name for name, _, _ in functions(model).calls} == {"serving_default", "length"}
    assert max(size for _, _, size in functions(model).calls) > 1


async def test_names_and_dtypes_of_a_signature_are_checked_and_its_shapes_are_not(make: Any) -> None:
    model = make()
    assert await ask(model, "serving_default", x=np.ones(3, np.float32)) == {"y": [2, 2, 2]}
    with pytest.raises(ShapeMismatch):  # of the model itself
        await ask(model, "", x=np.ones(3, np.float32))
    with pytest.raises(DtypeMismatch):
        await ask(model, "length", text=X)
    with pytest.raises(UnknownInput):
        await ask(model, "length", x=X)
    with pytest.raises(InputCount):
        await ask(model, "length")
    with pytest.raises(UnknownOutput):
        await ask(model, "serving_default", ["n"], x=X)


async def test_operators_make_the_default_function_the_only_one(make: Any) -> None:
    model = make(after=[SOFTMAX.make(SOFTMAX.options(op="softmax", input="y"))])
    assert list(model.view.signatures) == ["serving_default"]
    assert await ask(model, "serving_default", x=X) == {"y": [[1]]}
    assert await ask(model, "length", x=X) == {"y": [[1]]}  # may be one of the configuration


@pytest.mark.parametrize("kind", [InvalidArgument, ModelFailed])
async def test_a_model_may_refuse_what_was_made_up_for_its_warm_up(make: Any, kind: type[Exception]) -> None:
    """The numbers may be wrong for it where the shapes are right, and not every runtime says whose fault that is."""
    assert await make().warm_up() is not None
    assert await make(picky=kind).warm_up() is None
    with pytest.raises(kind, match="not that"):
        await make(picky=kind, example={"x": X}).warm_up()
