"""Queues and sequences from YAML to a loaded model: what fits, what callers see, what real models are handed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView, OutputRequest, Sequence
from tensorgate.gateway.contract.errors import InputCount, ModelNotFound, SequenceNotStarted, UnknownOutput
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.model_loading import loader
from tensorgate.gateway.models.catalog import YamlCatalog
from tensorgate.gateway.models.loader import LoadReport, RepositoryDeps
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.models.model_spec import queue_policy
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.routing.router import Router

MODELS = '''
class OwnState:
    """Sums by id, from the control inputs alone."""
    def __init__(self, context):
        self.sums = {}
    def infer(self, inputs, request):
        ((name,),), ((start,),) = inputs["ID"].tolist(), inputs["START"].tolist()
        assert inputs["READY"].tolist() == [[True]]
        assert (name, bool(start)) == (request.sequence.id, request.sequence.start)
        self.sums[name] = inputs["x"] + (0 if start else self.sums[name])
        return {"y": self.sums[name]}

class Words:
    """Joins text: a state of BYTES without a batch dimension."""
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        joined = inputs["before"] + inputs["x"]
        return {"y": joined, "after": joined}

class Stream:
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        yield {"y": inputs["x"], "after": inputs["x"]}

class Pair:
    """Tells whether this and the one before it are given, by sequence or none."""
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        told = request.sequence
        return {"y": inputs["x"] * 0 + (0 if told is None else 1 + told.start + 2 * told.end)}
'''


def write_onnx(path: Path) -> None:
    """OUT = x + IN, y = OUT + START; all FP32 [-1, 1]."""
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in ("x", "START", "IN")}
    results = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in ("y", "OUT")}
    nodes = [
        helper.make_node("Add", ["x", "IN"], ["sum"]),
        helper.make_node("Identity", ["sum"], ["OUT"]),
        helper.make_node("Add", ["sum", "START"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "sum", list(tensors.values()), list(results.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.mkdir(parents=True)
    onnx.save(model, path / "model.onnx")


class World:
    """Models of a YAML file, loaded by real backends."""

    def __init__(self, file: Path) -> None:
        kinds = registries()
        self.config = load_config(file, kinds)
        self.reports: list[LoadReport] = []
        deps = RepositoryDeps(
            loader(kinds, lambda ref: self.router.resolve(ref)),
            Meters(),
            versioned=lambda model: kinds.backends[model.backend].versioned,
        )
        self.repository = Repository(YamlCatalog(self.config), deps)
        self.router = Router(self.config, self.repository)

    def view(self, name: str = "m") -> ModelView:
        return self.router.resolve(ModelRef(name))

    async def ask(self, x: Any, sequence: Sequence | None = None, name: str = "m", **changes: Any) -> Any:
        view = self.view(name)
        inputs = {"x": np.array(x, view.inputs["x"].dtype)}
        job = view.handle.submit(InferRequest(view, inputs, sequence=sequence, **changes))
        (response,) = [response async for response in job]
        assert list(response.outputs) == ["y"]
        return response.outputs["y"].tolist()


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "ten.bin").write_bytes(np.array([10], "<f4").tobytes())
    write_onnx(tmp_path / "onnx/1")
    made: list[World] = []

    async def world(**models: str) -> World:
        text = "models:\n" + "".join(f"  {name}:\n{_indented(keys)}" for name, keys in models.items())
        (tmp_path / "gateway.yaml").write_text(text)
        made.append(World(tmp_path / "gateway.yaml"))
        await made[-1].repository.load_all(made[-1].reports.append)
        return made[-1]

    yield world
    for each in made:
        await asyncio.wait_for(each.repository.close(), 5)


def _indented(keys: str) -> str:
    return "".join(f"    {line}\n" for line in dedent(keys).strip().splitlines())


def python_model(name: str, datatype: str = "FP32", shape: str = "[-1, 1]", more: str = "") -> str:
    tensor = f"datatype: {datatype}, shape: {shape}"
    return (
        f"backend: python\npath: models.py:{name}\ninputs: [{{name: x, {tensor}}}]\noutputs: [{{name: y, {tensor}}}]\n"
        + dedent(more)
    )


OWN = """\
    max_batch_size: 4
    sequences:
      controls:
        - {input: START, kind: start}
        - {input: READY, kind: ready, datatype: BOOL}
        - {input: ID, kind: correlation_id, datatype: UINT64}
"""
ONNX = """
    backend: onnx
    path: onnx
    max_batch_size: 4
    sequences:
      controls: [{input: START, kind: start, datatype: FP32, values: [0, 0.5]}]
      states: [{input: IN, output: OUT, datatype: FP32, shape: [-1, 1], initial: ten.bin}]
"""


# ----------------------------------------------------------------------------------------------------------- sequences


async def test_a_python_model_is_handed_its_controls(serve: Any) -> None:
    w = await serve(m=python_model("OwnState", more=OWN))
    assert [report.error for report in w.reports] == [""]
    assert (list(w.view().inputs), list(w.view().outputs)) == (["x"], ["y"])
    for step, (numbers, sums) in enumerate([((1, 10), (1, 10)), ((2, 20), (3, 30)), ((3, 30), (6, 60))]):
        flags = {"start": step == 0, "end": step == 2}
        answers = [w.ask([[number]], Sequence(name, **flags)) for name, number in zip((7, 8), numbers, strict=True)]
        assert await asyncio.gather(*answers) == [[[float(total)]] for total in sums]


async def test_an_onnx_model_keeps_states_and_shares_runs(serve: Any) -> None:
    w = await serve(m=ONNX)
    assert [report.error for report in w.reports] == [""]
    assert w.reports[0].warm_up is not None  # warmed up with controls and states in place
    assert (list(w.view().inputs), list(w.view().outputs)) == (["x"], ["y"])
    assert list(w.view().example_inputs) == ["x"]

    async def caller(name: int | str) -> None:
        assert await w.ask([[1]], Sequence(name, start=True)) == [[11.5]]
        assert await w.ask([[2]], Sequence(name), outputs=(OutputRequest("y"),)) == [[13.0]]
        assert await w.ask([[3]], Sequence(name, end=True)) == [[16.0]]

    await asyncio.gather(*(caller(name) for name in (*range(1, 10), *"123")))
    with pytest.raises(SequenceNotStarted):
        await w.ask([[1]], Sequence(1))


async def test_what_is_hidden_can_neither_be_sent_nor_asked_for(serve: Any) -> None:
    w = await serve(m=ONNX)
    view = w.view()
    x = np.ones((1, 1), np.float32)
    with pytest.raises(InputCount):
        view.handle.submit(InferRequest(view, {"x": x, "START": x}, sequence=Sequence(1, start=True)))
    with pytest.raises(UnknownOutput):
        await w.ask([[1]], Sequence(1, start=True), outputs=(OutputRequest("OUT"),))
    assert await w.ask([[1]], Sequence(1, start=True, end=True)) == [[11.5]]


async def test_a_state_of_text_without_a_batch_dimension(serve: Any) -> None:
    state = "sequences: {states: [{input: before, output: after, datatype: BYTES, shape: [1]}]}"
    w = await serve(m=python_model("Words", "BYTES", "[1]", state))
    assert await w.ask([b"a"], Sequence("s", start=True)) == [b"a"]
    assert await w.ask([b"b"], Sequence("s")) == [b"ab"]
    assert await w.ask([b"c"], Sequence("s", end=True)) == [b"abc"]


async def test_without_sequences_a_class_is_told_and_nothing_is_kept(serve: Any) -> None:
    w = await serve(m=python_model("Pair"))
    asked = [None, Sequence(1), Sequence(1, end=True), Sequence("a", start=True), Sequence(2, start=True, end=True)]
    assert [await w.ask([[1]], sequence) for sequence in asked] == [[[float(n)]] for n in (0, 1, 3, 2, 4)]


UNFIT: list[tuple[str, str, str]] = [
    ("an input that is not there", ONNX.replace("input: START", "input: BEGIN"), "the model has no input 'BEGIN'"),
    ("another datatype", ONNX.replace("FP32, values", "INT32, values"), "input 'START' is FP32, not INT32"),
    (
        "a state's output that is not there",
        ONNX.replace("output: OUT", "output: NEXT"),
        "the model has no output 'NEXT'",
    ),
    (
        "a state of another shape",
        ONNX.replace("shape: [-1, 1]", "shape: [1]"),
        "'IN' has shape [-1, 1], but starts as [1]",
    ),
    (
        "two rows",
        ONNX.replace("[-1, 1], initial: ten.bin", "[2, 1]"),
        "'IN' starts as [2, 1], and a sequence has one row",
    ),
    ("a file that is too short", ONNX.replace("shape: [-1, 1]", "shape: [2, 1]"), "ten.bin has 4 bytes, expected 8"),
    (
        "states of a model that streams",
        python_model(
            "Stream", more="sequences: {states: [{input: before, output: after, datatype: FP32, shape: [1]}]}"
        ),
        "states need a model that gives one answer per request",
    ),
]


@pytest.mark.parametrize(("keys", "remark"), [row[1:] for row in UNFIT], ids=[row[0] for row in UNFIT])
async def test_what_does_not_fit_the_model_is_said_at_load(serve: Any, keys: str, remark: str) -> None:
    w = await serve(m=keys)
    assert remark in w.reports[0].error
    with pytest.raises(ModelNotFound):
        w.view()


async def test_no_example_asks_a_model_of_sequences(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    file = tmp_path / "gateway.yaml"
    models = {"sums": python_model("OwnState", more=OWN), "pair": python_model("Pair")}
    file.write_text("models:\n" + "".join(f"  {name}:\n{_indented(keys)}" for name, keys in models.items()))
    app = App(load_config(file, registries()), registries())
    await app.load(lambda report: None)
    app.addresses.append("http://localhost:8000")
    lines = app.examples().values()
    assert lines
    assert all("pair" in line and "sums" not in line for line in lines)
    await app.drain()


async def test_unloading_ends_live_sequences(serve: Any) -> None:
    w = await serve(m=python_model("OwnState", more=OWN))
    assert await w.ask([[1]], Sequence(1, start=True)) == [[1.0]]
    await asyncio.wait_for(w.repository.close(), 2)


# -------------------------------------------------------------------------------------------------------------- queues


QUEUES: list[tuple[str, QueuePolicy]] = [
    ("", QueuePolicy()),
    ("max_queue_size: 3", QueuePolicy(level=LevelPolicy(3))),
    (
        "queue: {timeout_us: 5, timeout_action: delay, allow_timeout_override: true}",
        QueuePolicy(level=LevelPolicy(512, 5, "delay", True)),
    ),
    (
        "max_queue_size: 9\nqueue: {timeout_us: 7}\n"
        'priorities: {levels: 3, default: 2, queue_policies: {"1": {max_queue_size: 2}, "3": {timeout_us: 1}}}',
        QueuePolicy(
            level=LevelPolicy(9, 7), own_levels={1: LevelPolicy(2), 3: LevelPolicy(9, 1)}, levels=3, default_level=2
        ),
    ),
    (
        "max_batch_size: 8\nmax_queue_delay_us: 100\npreferred_batch_sizes: [4, 8]\nbatching: false",
        QueuePolicy(8, 100, preferred_batch_sizes=(4, 8), batching=False),
    ),
    ("send_on_mismatch: true", QueuePolicy(send_on_mismatch=True)),
    (f"priorities: {{levels: {2**64 - 1}, default: {2**32}}}", QueuePolicy(levels=2**64 - 1, default_level=2**32)),
]


@pytest.mark.parametrize(("keys", "policy"), QUEUES)
def test_queue_policies(tmp_path: Path, keys: str, policy: QueuePolicy) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    file = tmp_path / "gateway.yaml"
    file.write_text("models:\n  m:\n" + _indented(python_model("Pair") + keys))
    config = load_config(file, registries()).models["m"]
    assert isinstance(config.max_batch_size, int)
    assert queue_policy(config, config.max_batch_size) == policy


@pytest.mark.parametrize("batching", ["true", "false"])
async def test_without_batching_every_request_runs_alone(serve: Any, batching: str) -> None:
    w = await serve(m=python_model("Pair", more=f"max_batch_size: 8\nmax_queue_delay_us: 900000\nbatching: {batching}"))
    rows: list[int] = []
    w.repository.snapshot.models["m"][1]._scheduler._metrics = SchedulerMetrics(
        lambda stage, seconds: None, rows.append
    )
    assert await asyncio.gather(*(w.ask([[1], [2]]) for _ in range(4))) == [[[0.0], [0.0]]] * 4
    assert rows == ([8] if batching == "true" else [2, 2, 2, 2])
