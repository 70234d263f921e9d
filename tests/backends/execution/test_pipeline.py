"""Rows joined, split and owned; operators fitted to a model; what a model raises."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_backend import PaperBackend

from tensorgate.backends.execution import pipeline
from tensorgate.backends.execution.device import Device
from tensorgate.backends.execution.rows import Rows, join_rows
from tensorgate.backends.ops.cast import KIND as CAST
from tensorgate.backends.ops.fusion import Fused
from tensorgate.backends.ops.scale import KIND as SCALE
from tensorgate.backends.ops.softmax import KIND as SOFTMAX
from tensorgate.gateway.contract.backend import BackendKind, ModelSource, Padding, RequestBackend
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, OutputRequest
from tensorgate.gateway.contract.errors import InvalidArgument, ModelFailed, OutputRows
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec


class Doubler(PaperBackend):
    """y = 2 x, z = x + 1; raises and misbehaves on command of the first number."""

    def __init__(self, source: ModelSource) -> None:
        self.device = Device()
        self.inputs = (TensorSpec("x", DTYPES["FP32"], (-1, 2)),)
        self.outputs = (TensorSpec("y", DTYPES["FP32"], (-1, 2)), TensorSpec("z", DTYPES["FP32"], (-1, 2)))
        self.max_batch_size = 8
        self.asked: list[tuple[str, ...]] = []

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        x = tensors["x"] if tensors else np.arange(3, dtype=np.float32)
        self.asked.append(tuple(outputs))
        if x.flat[0] == -1:
            raise KeyError("no such word")
        if x.flat[0] == -2:
            raise InvalidArgument("not that")
        everything = {"y": x * 2, "z": (x + 1)[:1] if x.flat[0] == -3 else x + 1}
        yield {name: everything[name] for name in outputs}


KIND = BackendKind(Options, Doubler)


def load(before: Sequence[Any] = (), after: Sequence[Any] = (), **changes: Any) -> Computation:
    size = changes.pop("max_batch_size", 8)
    source = ModelSource("m", 1, Path(), "cpu", changes.pop("inputs", ()), changes.pop("outputs", ()), size, None)
    return pipeline.load(KIND, source, 1, before, after)


@pytest.fixture
def ask(make_model: Callable[..., Any]) -> Callable[..., InferRequest]:
    view = make_model("m", {"x": ("FP32", (-1, 2))}, {"y": ("FP32", (-1, 2)), "z": ("FP32", (-1, 2))})

    def request(x: Any, *outputs: str) -> InferRequest:
        return InferRequest(view, {"x": np.array(x, np.float32)}, outputs=tuple(map(OutputRequest, outputs)))

    return request


def run(computation: Computation, *requests: InferRequest) -> list[dict[str, Any]]:
    (responses,) = computation.executors[0].run(requests, lambda timing: None)
    return [{name: array.tolist() for name, array in response.outputs.items()} for response in responses]


def test_everyone_gets_their_own_rows_of_what_they_asked_for(ask: Any) -> None:
    computation = load()
    got = run(computation, ask([[1, 2]], "y"), ask([[3, 4], [5, 6]]), ask(np.zeros((0, 2)), "z", "y"))
    assert got == [
        {"y": [[2, 4]]},
        {"y": [[6, 8], [10, 12]], "z": [[4, 5], [6, 7]]},
        {"y": [], "z": []},
    ]


def test_only_outputs_that_somebody_wants_are_computed(ask: Any) -> None:
    computation = load()
    backend = computation.executors[0]._backend  # type: ignore[attr-defined]
    run(computation, ask([[1, 2]], "z"))
    run(computation, ask([[1, 2]], "z"), ask([[1, 2]], "y"))
    assert backend.asked == [("z",), ("y", "z")]


class Generous(Doubler):
    """Gives all that it has, and in no order of anybody's."""

    def __init__(self, source: ModelSource) -> None:
        super().__init__(source)
        self.inline = not source.parameters.get("decoupled")
        self.decoupled = bool(source.parameters.get("decoupled"))
        self.runs_on = source.parameters.get("runs_on", "thread")

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Any:
        x = tensors["x"]
        everything = {"nobody's": x, "z": x + 1, "y": x * 2}
        return _later(everything) if self.runs_on == "loop" else (everything,)


async def _later(answer: Tensors) -> AsyncIterator[Tensors]:
    yield answer


class AsRequests(RequestBackend, Generous):
    """The same of requests as they are."""

    async def infer_each(self, requests: Sequence[InferRequest]) -> AsyncIterator[Sequence[InferResponse]]:
        yield [await self.infer_alone(request) for request in requests]

    async def infer_alone(self, request: InferRequest) -> InferResponse:
        ((everything,),) = ((Generous.infer(self, request.inputs, (), (request,))),)
        return InferResponse(everything)


def generous(kind: type[Generous] = Generous, sizes: tuple[int, ...] = (), **parameters: Any) -> Any:
    padding = Padding(sizes) if sizes else Padding()
    source = ModelSource("m", 1, Path(), "cpu", (), (), 8, None, parameters, padding=padding)
    return pipeline.load(BackendKind(Options, kind), source, 1, (), ()).executors[0]


def nothing(timing: tuple[str, float]) -> None:
    """Is measured."""


async def by_run(executor: Any, requests: Sequence[InferRequest]) -> Sequence[Any]:
    (outcomes,) = executor.run(requests, nothing)
    return list(outcomes)


async def by_arun(executor: Any, requests: Sequence[InferRequest]) -> Sequence[Any]:
    (outcomes,) = [step async for step in executor.arun(requests, nothing)]
    return list(outcomes)


async def by_arun_alone(executor: Any, requests: Sequence[InferRequest]) -> Sequence[Any]:
    return [await executor.arun_alone(request, nothing) for request in requests]


WAYS: dict[str, tuple[Any, Any]] = {
    "bare, and joined": (by_run, generous),
    "padded": (by_run, lambda: generous(sizes=(8,))),
    "on the loop": (by_arun, lambda: generous(runs_on="loop")),
    "requests as they are": (by_arun, lambda: generous(AsRequests)),
    "in the caller's own steps": (by_arun_alone, lambda: generous(AsRequests)),
}
ASKED: list[list[tuple[str, ...]]] = [
    [()],
    [("z",)],
    [("z", "y")],
    [(), ()],
    [("z",), ("z",)],
    [("z",), ("z", "y"), ()],
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("way", WAYS)
async def test_what_was_asked_for_and_nothing_else_whichever_way_a_batch_takes(way: str, asked: Any, ask: Any) -> None:
    runs, make = WAYS[way]
    outcomes = await runs(make(), [ask([[number, 2]], *names) for number, names in enumerate(asked)])
    everything = [{"y": [[2 * number, 4]], "z": [[number + 1, 3]]} for number in range(len(asked))]
    for names, whole, outcome in zip(asked, everything, outcomes, strict=True):
        wanted = [(name, value) for name, value in whole.items() if not names or name in names]
        assert [(name, array.tolist()) for name, array in outcome.outputs.items()] == wanted, "in the model's order"


def test_each_answer_of_a_stream_has_what_was_asked_for(ask: Any) -> None:
    steps = generous(decoupled=True).run([ask([[1, 2]], "z")], nothing)
    assert [[*answer.outputs] for (answer,) in steps] == [["z"]]


def test_classes_of_one_output_do_not_bring_the_others(ask: Any) -> None:
    request = replace(ask([[1, 2]]), outputs=(OutputRequest("y", 1),))
    ((answer,),) = generous().run([request], nothing)
    assert ([*answer.outputs], [*answer.classes]) == ([], ["y"])


def test_an_output_that_a_model_does_not_give_is_named(ask: Any) -> None:
    executor = generous()
    executor._backend.infer = lambda tensors, outputs, requests: ({"y": tensors["x"]},)
    for requests in ([ask([[1, 2]])], [ask([[1, 2]]), ask([[1, 2]])], [ask([[1, 2]], "z"), ask([[1, 2]])]):
        with pytest.raises(ModelFailed, match="the model gave no output 'z'"):
            list(executor.run(requests, nothing))


def test_a_model_of_streams_never_gets_two_requests_at_once() -> None:
    assert not generous(decoupled=True).merges


def test_a_batch_of_one_is_not_copied(ask: Any) -> None:
    request = ask([[1, 2]])
    assert join_rows([request])["x"] is request.inputs["x"]


_GRID = np.arange(24.0).reshape(4, 6)
JOINED: dict[str, list[Any]] = {
    "rows": [_GRID[:1], _GRID[1:3], _GRID[3:]],
    "columns": [_GRID[:, :2].T, _GRID[:, 2:].T],
    "every other": [_GRID[::2], _GRID[1::2]],
    "backwards": [_GRID[::-1], _GRID],
    "vectors": [np.float32([1]), np.float32([2, 3])],
    "no rows": [_GRID[:0], _GRID[:2], _GRID[:0]],
    "no columns": [_GRID[:1, :0], _GRID[:3, :0]],
    "nothing": [_GRID[:0, :0], _GRID[:0, :0]],
    "half": [_GRID.astype(np.float16), _GRID.astype(np.float16)],
    "BF16": [_GRID.astype(DTYPES["BF16"]), _GRID[:1].astype(DTYPES["BF16"])],
    "bool": [_GRID > 3, _GRID < 5],
    "bytes": [np.array([[b"a"], [b""]], object), np.array([[b"\0b"]], object)],
    "from the wire": [np.frombuffer(b"\1\2\3\4", np.uint8).reshape(2, 2), np.zeros((1, 2), np.uint8)],
}


@pytest.mark.parametrize("arrays", JOINED.values(), ids=JOINED)
def test_rows_are_joined_whatever_they_lie_in(arrays: list[Any], ask: Any) -> None:
    view = ask([[0, 0]]).view
    joined = join_rows([InferRequest(view, {"x": array}) for array in arrays])["x"]
    expected = np.concatenate(arrays)
    assert (joined.dtype, joined.shape, joined.tolist()) == (expected.dtype, expected.shape, expected.tolist())
    assert joined.flags.writeable, "a model may compute in place"
    assert joined.flags.aligned
    joined[...] = 0
    assert np.array_equal(np.concatenate(arrays), expected), "what callers sent is left alone"


def test_rows_are_split_when_somebody_looks(ask: Any) -> None:
    (responses,) = load().executors[0].run([ask([[1, 2]]), ask([[3, 4], [5, 6]])], lambda timing: None)
    assert isinstance(responses, Rows)
    assert len(responses) == 2
    last = responses[-1]
    assert isinstance(last, InferResponse)
    assert {name: array.tolist() for name, array in last.outputs.items()} == {
        "y": [[6, 8], [10, 12]],
        "z": [[4, 5], [6, 7]],
    }
    assert [len(each.outputs["y"]) for each in responses if isinstance(each, InferResponse)] == [1, 2]


def test_what_a_model_raises_is_told_by_its_last_line(ask: Any) -> None:
    computation = load()
    with pytest.raises(ModelFailed) as caught:
        run(computation, ask([[-1, 0]]))
    assert caught.value.text == "KeyError: 'no such word'"
    with pytest.raises(InvalidArgument) as refused:
        run(computation, ask([[-2, 0]]))
    assert refused.value.text == "not that"


def test_an_output_that_is_not_the_batch_is_named(ask: Any) -> None:
    with pytest.raises(OutputRows, match=r"output 'z' has shape \[1, 2\], .* the 2 rows"):
        run(load(), ask([[-3, 0], [1, 1]]))


def test_a_request_without_inputs_runs_alone(ask: Any) -> None:
    assert run(load(), InferRequest(ask([[0, 0]]).view, {}, outputs=(OutputRequest("y"),))) == [{"y": [0, 2, 4]}]
    classified = InferRequest(ask([[0, 0]]).view, {}, outputs=(OutputRequest("y"), OutputRequest("z", 1)))
    assert run(load(), classified) == [{"y": [0, 2, 4]}]


def test_operators_change_what_callers_see(ask: Any) -> None:
    cast = CAST.make(CAST.options(op="cast", input="x", to="FP32"))  # type: ignore[call-arg]
    softmax = SOFTMAX.make(SOFTMAX.options(op="softmax", input="y", output="p"))  # type: ignore[call-arg]
    computation = load([cast], [softmax], inputs=(TensorSpec("x", DTYPES["UINT8"], (-1, 2)),))
    assert [(s.name, s.datatype) for s in computation.inputs] == [("x", "UINT8")]
    assert [(s.name, s.datatype) for s in computation.outputs] == [("p", "FP32"), ("z", "FP32")]
    request = InferRequest(ask([[0, 0]]).view, {"x": np.array([[7, 7]], np.uint8)})
    (got,) = run(computation, request)
    assert got == {"p": [[0.5, 0.5]], "z": [[8, 8]]}


MISFITS = [
    ({"inputs": (TensorSpec("x", DTYPES["FP64"], (-1, 2)),)}, "input 'x' is FP64 at one end and FP32 at the other"),
    ({"inputs": (TensorSpec("x", DTYPES["FP32"], (-1, 3)),)}, r"has shape \[-1, 3\] at one end"),
    ({"inputs": (TensorSpec("w", DTYPES["FP32"], (-1, 2)),)}, "the model takes an input 'x', but got 'w'"),
    ({"outputs": (TensorSpec("q", DTYPES["FP32"]),)}, "outputs declares 'q', but the model gives 'y', 'z'"),
]


@pytest.mark.parametrize(("changes", "words"), MISFITS)
def test_declarations_that_do_not_fit_the_model_fail_at_load(changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(**changes)


def test_declared_shapes_are_shown_while_the_models_own_are_required() -> None:
    computation = load(inputs=(TensorSpec("x", DTYPES["FP32"], (4, 2)),), outputs=(TensorSpec("z", DTYPES["FP32"]),))
    assert computation.inputs[0].shape == (4, 2)
    assert computation.required[0].shape == (-1, 2)
    assert [(s.name, s.shape) for s in computation.outputs] == [("z", (-1, 2))]


def test_what_is_declared_for_auto_gets_the_batch_dimension_that_was_found() -> None:
    x, y = TensorSpec("x", DTYPES["FP32"], (2,)), TensorSpec("y", DTYPES["FP32"], None)
    computation = load(inputs=(x,), outputs=(y,), max_batch_size="auto")
    assert computation.max_batch_size == 8
    assert [spec.shape for spec in (*computation.inputs, *computation.outputs)] == [(-1, 2), (-1, 2)]
    with pytest.raises(ValueError, match="shape"):
        load(inputs=(x,))


def test_steps_become_one_when_a_model_is_loaded(ask: Any) -> None:
    steps = [
        CAST.make(CAST.options(op="cast", input="x", to="FP32")),
        SCALE.make(SCALE.options(op="scale", input="x", factor=2.0)),
    ]
    computation = load(steps, inputs=(TensorSpec("x", DTYPES["UINT8"], (-1, 2)),))
    executor: Any = computation.executors[0]
    assert [type(op) for op in executor._preprocess] == [Fused]
    assert executor.inline
    assert run(computation, InferRequest(ask([]).view, {"x": np.array([[1, 2]], np.uint8)})) == [
        {"y": [[4, 8]], "z": [[3, 5]]}
    ]


def test_what_takes_as_long_as_it_likes_does_not_run_on_the_event_loop() -> None:
    class Unsteady(Op):
        steady = False

        def specs(self, specs: Any) -> Any:
            return specs

        def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
            return tensors

    executor = load([Unsteady()]).executors[0]
    assert not executor.inline


class Weighed(Op):
    """y times x, which is the model's input as it takes it, after the steps before it."""

    from_inputs = ("x",)

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        if "x" not in specs:
            raise ValueError("there is no x")
        return {"y": specs["y"], "x": specs["x"]}

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        return {"y": tensors["y"] * tensors["x"], "x": tensors["x"]}


def test_a_step_behind_the_model_may_work_on_its_inputs_too(ask: Callable[..., InferRequest]) -> None:
    """Those after preprocess, every request's own rows; callers do not get them."""
    computation = load(
        [SCALE.make(SCALE.options.model_validate({"op": "scale", "input": "x", "divide": 2}))], [Weighed()]
    )
    assert [spec.name for spec in computation.outputs] == ["y"]
    assert run(computation, ask([[2, 4]])) == [{"y": [[2, 8]]}]
    assert run(computation, ask([[2, 4]]), ask([[6, 0], [4, 2]])) == [{"y": [[2, 8]]}, {"y": [[18, 0], [8, 2]]}]
    assert run(computation, ask([[2, 4]], "y")) == [{"y": [[2, 8]]}]
