"""Tensors flow through the steps of an ensemble as its configuration connects them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from waiting import steps

from tensorgate.backends.ensemble.backend import KIND, EnsembleBackend
from tensorgate.backends.ensemble.options import EnsembleOptions
from tensorgate.gateway.config.values import VersionPolicy
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import InvalidArgument, ModelFailed, ModelUnavailable, QueueFull, Unavailable
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec

ROW = (-1, 2)


class Part:
    """A model on paper that computes at once, or after others had a chance to start."""

    def __init__(self, compute: Callable[[Tensors], Tensors] | Callable[[Tensors], list[Tensors]]) -> None:
        self.compute = compute
        self.running = self.max_running = self.abandoned = 0
        self.asked: list[InferRequest] = []
        self.ready = True

    def is_ready(self) -> bool:
        return self.ready

    def submit(self, request: InferRequest) -> Any:
        self.asked.append(request)
        return _Answers(self, request)


class _Answers:
    def __init__(self, part: Part, request: InferRequest) -> None:
        self._part = part
        self._answers = self._run(request)
        self._ended = False

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self._answers

    async def _run(self, request: InferRequest) -> AsyncIterator[InferResponse]:
        part = self._part
        part.running += 1
        part.max_running = max(part.max_running, part.running)
        await steps()
        part.running -= 1
        results: Any = part.compute(request.inputs)
        for result in results if isinstance(results, list) else [results]:
            yield InferResponse(result)
        self._ended = True

    def abandon(self) -> None:
        self._part.abandoned += not self._ended


@pytest.fixture
def build(make_model: Callable[..., Any], make_resolve: Callable[..., Any]) -> Callable[..., Any]:
    def ensemble(
        steps: list[dict[str, Any]],
        parts: Mapping[str, Part],
        inputs: tuple[str, ...] = ("x",),
        outputs: tuple[str, ...] = ("y",),
        streaming: frozenset[str] = frozenset(),
        **options: Any,
    ) -> EnsembleBackend:
        views = [
            make_model(
                name,
                {"a": ("FP32", ROW)} if name != "two" else {"a": ("FP32", ROW), "b": ("FP32", ROW)},
                {"c": ("FP32", ROW)} if name != "split" else {"c": ("FP32", ROW), "d": ("FP32", ROW)},
                handle=part,
                decoupled=name in streaming,
                max_batch_size=4,
            )
            for name, part in parts.items()
        ]
        chosen = EnsembleOptions.model_validate({"steps": tuple(steps), **options})
        source = ModelSource(
            "e",
            1,
            Path(),
            "auto",
            tuple(TensorSpec(name, DTYPES["FP32"], ROW, optional=name == "maybe") for name in inputs),
            tuple(TensorSpec(name, DTYPES["FP32"], ROW) for name in outputs),
            4,
            chosen,
            resolve=make_resolve(*views),
        )
        return EnsembleBackend(source)

    return ensemble


@pytest.fixture
def run(make_model: Callable[..., Any]) -> Callable[..., Any]:
    async def answers(ensemble: EnsembleBackend, *outputs: str, **inputs: Any) -> list[dict[str, Any]]:
        view = make_model("e", {"x": ("FP32", ROW)}, {"y": ("FP32", ROW)})
        arrays = {name: np.array(value, np.float32) for name, value in inputs.items()}
        request = InferRequest(view, arrays, "7", parameters={"p": 1}, deadline=9e9, queue_timeout_us=5)
        request.cancellation.share = "team-a"
        wanted = outputs or tuple(spec.name for spec in ensemble.outputs)
        steps = ensemble.infer(arrays, wanted, [request])
        return [{name: array.tolist() for name, array in answer.items()} async for answer in steps]

    return answers


def step(model: str, inputs: dict[str, str], outputs: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"model": model, "inputs": inputs, "outputs": outputs, **more}


def double(inputs: Tensors) -> Tensors:
    return {"c": inputs["a"] * 2}


def plus_one(inputs: Tensors) -> Tensors:
    return {"c": inputs["a"] + 1}


@pytest.mark.parametrize(("said", "numbers"), [("latest", (1,)), ([3, 1], (1, 3)), ("none", (1,))])
def test_its_versions_are_those_that_are_named(said: Any, numbers: tuple[int, ...]) -> None:
    assert KIND.numbers(SimpleNamespace(versions=VersionPolicy.parse(said))) == numbers


async def test_a_chain_runs_in_the_order_of_its_tensors_not_of_its_steps(build: Any, run: Any) -> None:
    steps = [step("plus", {"a": "t"}, {"c": "y"}), step("double", {"a": "x"}, {"c": "t"})]
    parts = {"double": Part(double), "plus": Part(plus_one)}
    assert await run(build(steps, parts), x=[[1, 2]]) == [{"y": [[3, 5]]}]
    (asked,) = parts["plus"].asked
    assert (asked.id, asked.parameters, asked.deadline, [o.name for o in asked.outputs]) == ("7", {"p": 1}, 9e9, ["c"])
    assert asked.queue_timeout_us == 5
    assert asked.cancellation.share == "team-a", "the caller pays for the steps"


async def test_steps_that_do_not_wait_for_each_other_run_side_by_side(build: Any, run: Any) -> None:
    part = Part(double)
    both = Part(lambda inputs: {"c": inputs["a"] + inputs["b"]})
    steps = [
        step("double", {"a": "x"}, {"c": "l"}),
        step("double", {"a": "z"}, {"c": "r"}),
        step("two", {"a": "l", "b": "r"}, {"c": "y"}),
    ]
    ensemble = build(steps, {"double": part, "two": both}, inputs=("x", "z"))
    assert await run(ensemble, x=[[1, 2]], z=[[10, 20]]) == [{"y": [[22, 44]]}]
    assert part.max_running == 2


async def test_only_what_was_asked_for_leaves_and_a_tensor_may_go_to_several_steps(build: Any, run: Any) -> None:
    steps = [
        step("split", {"a": "x"}, {"c": "low", "d": "high"}),
        step("plus", {"a": "low"}, {"c": "y"}),
        step("double", {"a": "low"}, {"c": "z"}),
    ]
    split = Part(lambda inputs: {"c": inputs["a"], "d": -inputs["a"]})
    parts = {"split": split, "plus": Part(plus_one), "double": Part(double)}
    ensemble = build(steps, parts, outputs=("y", "z", "high"))
    assert await run(ensemble, x=[[1, 2]]) == [{"y": [[2, 3]], "z": [[2, 4]], "high": [[-1, -2]]}]
    assert await run(ensemble, "z", x=[[1, 2]]) == [{"z": [[2, 4]]}]


async def test_a_decoupled_step_makes_what_follows_run_once_per_answer(build: Any, run: Any) -> None:
    repeat = Part(lambda inputs: [{"c": inputs["a"] + n} for n in range(3)])
    steps = [step("repeat", {"a": "x"}, {"c": "t"}), step("double", {"a": "t"}, {"c": "y"})]
    parts = {"repeat": repeat, "double": Part(double)}
    ensemble = build(steps, parts, streaming=frozenset({"repeat"}), decoupled=True)
    assert [answer["y"] for answer in await run(ensemble, x=[[1, 2]])] == [[[2, 4]], [[4, 6]], [[6, 8]]]


async def test_a_decoupled_step_in_an_ensemble_that_is_not_is_told(build: Any, run: Any) -> None:
    steps = [step("repeat", {"a": "x"}, {"c": "y"})]
    ensemble = build(steps, {"repeat": Part(lambda inputs: [])}, streaming=frozenset({"repeat"}))
    with pytest.raises(ModelFailed, match="model 'repeat' is decoupled, but the ensemble is not"):
        await run(ensemble, x=[[1, 2]])


async def test_who_leaves_takes_the_remaining_steps_along(build: Any, make_model: Any) -> None:
    parts = {"double": Part(double), "plus": Part(plus_one)}
    steps = [step("plus", {"a": "t"}, {"c": "y"}), step("double", {"a": "x"}, {"c": "t"})]
    ensemble = build(steps, parts)
    array = np.ones((1, 2), np.float32)
    request = InferRequest(make_model("e", {}, {}), {"x": array})
    answers = asyncio.ensure_future(anext(aiter(ensemble.infer({"x": array}, ("y",), [request]))))
    await asyncio.sleep(0)
    request.cancellation.cut = True
    with pytest.raises(StopAsyncIteration):
        await answers
    assert (len(parts["double"].asked), parts["plus"].asked) == (1, [])


def failing(error: Exception) -> Part:
    def compute(inputs: Tensors) -> Tensors:
        raise error

    return Part(compute)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (InvalidArgument("no such word"), InvalidArgument, "in ensemble 'e', no such word"),
        (ModelFailed("ValueError: odd"), ModelFailed, "in ensemble 'e', ValueError: odd"),
        (QueueFull("double", 3), QueueFull, "3 requests wait for model 'double'"),
    ],
)
async def test_a_failing_step_fails_its_ensemble_and_its_neighbours_are_given_up(
    build: Any, run: Any, error: Exception, kind: type[Exception], text: str
) -> None:
    slow = Part(double)
    steps = [step("double", {"a": "x"}, {"c": "y"}), step("slow", {"a": "x"}, {"c": "z"})]
    ensemble = build(steps, {"double": failing(error), "slow": slow}, outputs=("y", "z"))
    with pytest.raises(kind) as told:
        await run(ensemble, x=[[1, 2]])
    assert str(told.value) == text
    assert slow.running in (0, 1)


@pytest.mark.parametrize(
    ("model", "inputs", "outputs", "x", "text"),
    [
        ("nobody", {"a": "x"}, {"c": "y"}, [[1, 2]], "in ensemble 'e', model 'nobody' is not loaded"),
        ("double", {"a": "x"}, {"q": "y"}, [[1, 2]], "in ensemble 'e', model 'double' has no output 'q'"),
        ("double", {"q": "x"}, {"c": "y"}, [[1, 2]], "in ensemble 'e', model 'double' has no input 'q'"),
        ("double", {"a": "x"}, {"c": "y"}, [[1, 2, 3]], "in ensemble 'e', input 'a' of model 'double' has shape"),
        ("wide", {"a": "x"}, {"c": "y"}, [[1, 2]], "in ensemble 'e', output 'y' is float32 [1, 4], but FP32 [-1, 2]"),
        ("half", {"a": "x"}, {"c": "y"}, [[1, 2]], "in ensemble 'e', output 'y' is float16 [1, 2], but FP32 [-1, 2]"),
        ("mute", {"a": "x"}, {"c": "y"}, [[1, 2]], "in ensemble 'e', no model gave the output 'y'"),
        ("gone", {"a": "x"}, {"c": "y"}, [[1, 2]], "in ensemble 'e', model 'gone' gave no answer"),
    ],
)
async def test_models_that_do_not_fit_are_named(
    build: Any, run: Any, model: str, inputs: dict[str, str], outputs: dict[str, str], x: Any, text: str
) -> None:
    parts = {
        "double": Part(double),
        "wide": Part(lambda tensors: {"c": np.ones((1, 4), np.float32)}),
        "half": Part(lambda tensors: {"c": np.ones((1, 2), np.float16)}),
        "mute": Part(lambda tensors: {}),
        "gone": Part(lambda tensors: []),
    }
    with pytest.raises(Unavailable if model == "nobody" else (ModelFailed, InvalidArgument)) as told:
        await run(build([step(model, inputs, outputs)], parts), x=x)
    assert str(told.value).startswith(text)


async def test_a_part_that_is_exchanged_as_it_is_asked_is_asked_again(build: Any, run: Any) -> None:
    part = Part(double)
    submit = part.submit
    refused: list[Any] = []

    def closed_once(request: InferRequest) -> Any:
        if not refused:
            refused.append(request)
            raise ModelUnavailable("double")
        return submit(request)

    part.submit = closed_once  # type: ignore[method-assign]
    ensemble = build([step("double", {"a": "x"}, {"c": "y"})], {"double": part})
    assert await run(ensemble, x=[[1, 2]]) == [{"y": [[2, 4]]}]


def test_an_ensemble_is_ready_when_all_its_parts_are(build: Any) -> None:
    parts = {"double": Part(double), "plus": Part(plus_one)}
    steps = [step("plus", {"a": "t"}, {"c": "y"}), step("double", {"a": "x"}, {"c": "t"})]
    ensemble = build(steps, parts)
    assert ensemble.is_ready()
    parts["plus"].ready = False
    assert not ensemble.is_ready()
    assert not build([step("nobody", {"a": "x"}, {"c": "y"})], parts).is_ready()
    parts["plus"].is_ready = ensemble.is_ready  # type: ignore[method-assign]
    assert ensemble.is_ready(), "a ring comes to an end; its requests are told"


async def test_an_optional_input_that_is_absent_stays_absent(build: Any, run: Any) -> None:
    part = Part(lambda inputs: {"c": inputs["a"] + inputs.get("b", 0)})
    ensemble = build([step("two", {"a": "x", "b": "maybe"}, {"c": "y"})], {"two": part}, inputs=("x", "maybe"))
    assert await run(ensemble, x=[[1, 2]], maybe=[[1, 1]]) == [{"y": [[2, 3]]}]
    with pytest.raises(InvalidArgument, match=r"in ensemble 'e'.*missing"):
        await run(ensemble, x=[[1, 2]])  # the ensemble can do without, this model cannot


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([step("m", {"a": "x"}, {"c": "x"})], "tensor 'x' is made twice"),
        ([step("m", {"a": "x"}, {"c": "y"}), step("n", {"a": "x"}, {"c": "y"})], "tensor 'y' is made twice"),
        ([step("m", {"a": "q"}, {"c": "y"})], "step 'm' needs the tensor 'q', which nothing makes"),
        ([step("m", {"a": "x"}, {"c": "z"})], "no step makes the output 'y'"),
        (
            [step("m", {"a": "x", "b": "t"}, {"c": "u"}), step("n", {"a": "u"}, {"c": "t", "d": "y"})],
            "these steps wait for each other: m, n",
        ),
    ],
)
def test_what_cannot_flow_is_refused_at_load(build: Any, steps: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build(steps, {})


def view_of(make_model: Callable[..., Any], handle: object, platform: str = "ensemble") -> ModelView:
    view: ModelView = make_model("e", {"x": ("FP32", ROW)}, {"y": ("FP32", ROW)}, handle=handle, platform=platform)
    return view


def request_in(make_model: Callable[..., Any], *callers: ModelView) -> InferRequest:
    return InferRequest(view_of(make_model, object()), {"x": np.float32([[1, 2]])}, callers=callers)


async def test_a_step_tells_who_waits_for_it(build: Any, make_model: Any) -> None:
    part, other = Part(double), view_of(make_model, object())
    ensemble = build([step("one", {"a": "x"}, {"c": "y"})], {"one": part})
    request = request_in(make_model, other)
    [_] = [answer async for answer in ensemble.infer(request.inputs, ("y",), [request])]
    assert part.asked[0].callers == (other, request.view)
    assert part.asked[0].wire is None


@pytest.mark.parametrize(
    ("between", "text"),
    [
        ("ensemble", "in ensemble 'e', ensemble 'one' is a step of itself"),
        ("python", "model 'one' is asked by itself"),
    ],
)
async def test_a_step_that_would_wait_for_itself_is_refused(
    build: Any, make_model: Any, between: str, text: str
) -> None:
    part = Part(double)
    ensemble = build([step("one", {"a": "x"}, {"c": "y"})], {"one": part})
    request = request_in(make_model, view_of(make_model, part), view_of(make_model, object(), between))
    with pytest.raises(ModelFailed, match=text):
        [answer async for answer in ensemble.infer(request.inputs, ("y",), [request])]
    assert not part.asked


SPLIT = (
    step("double", {"a": "x"}, {"c": "half"}),
    step("add", {"a": "half"}, {"c": "sum"}),
    step("report", {"a": "half"}, {"c": "seen"}),
    step("triple", {"a": "x"}, {"c": "other"}),
)
"""Two outputs; `report` gives what nobody takes."""


@pytest.mark.parametrize(
    ("wanted", "ran"),
    [
        (("sum", "other"), {"double", "add", "report", "triple"}),
        (("sum",), {"double", "add", "report"}),
        (("other",), {"double", "report", "triple"}),
    ],
)
async def test_steps_of_outputs_that_nobody_wants_do_not_run(
    build: Any, run: Any, wanted: tuple[str, ...], ran: set[str]
) -> None:
    """Triton: L0_simple_ensemble, test_ensemble_add_sub_one_output. Two steps in a row are left out, too."""
    parts = {name: Part(double) for name in ("double", "add", "report", "triple")}
    ensemble = build(list(SPLIT), parts, outputs=("sum", "other"))
    (answer,) = await run(ensemble, *wanted, x=[[1, 2]])
    assert answer.keys() == set(wanted)
    assert {name for name, part in parts.items() if part.asked} == ran
    chain = {name: Part(double) for name in ("double", "add", "triple")}
    await run(build([SPLIT[0], SPLIT[1], SPLIT[3]], chain, outputs=("sum", "other")), "other", x=[[1, 2]])
    assert [len(part.asked) for part in chain.values()] == [0, 0, 1]
