"""Copies of models in doors: when a request is answered there, and when by the engine."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from waiting import until

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config, model_validator
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.canonical import Sequence as SequencePart
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed
from tensorgate.gateway.contract.execution import Computation, Executor, Observe
from tensorgate.gateway.contract.tensor import TensorSpec
from tensorgate.gateway.crossing.engine_link import EngineLink, RemoteModel
from tensorgate.gateway.crossing.messages import ModelProgram, ReplicaOffer
from tensorgate.gateway.engine.admission import INLINE_BELOW_SECONDS, INLINE_UNTIL_SECONDS
from tensorgate.gateway.model_loading import load_program
from tensorgate.gateway.models.model_folder import tree_fingerprint
from tensorgate.gateway.models.model_state import StoredModel
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.replicas import CALLS_BEFORE_LOAD, MAX_NOTED, Replica, Replicas, counted, files_digest

F4 = np.dtype("f4")
SPEC = TensorSpec("x", F4, (-1, 2))
ENGINE = object()
"""What the engine's answers are here."""
QUICK, SLOW = INLINE_BELOW_SECONDS / 10, INLINE_UNTIL_SECONDS * 2


class Double(Executor):
    """Gives twice what it gets; fails for 13."""

    runs_on, inline, decoupled, merges = "thread", True, False, True

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.stages = ["infer"]

    def run(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> Iterable[Sequence[InferResponse | GatewayError]]:
        (request,) = requests
        if request.inputs["x"][0, 0] == 13:
            return ([ModelFailed("13")],)
        for stage in self.stages:
            observe((stage, 1e-6))
        return ([InferResponse({"y": request.inputs["x"] * 2})],)

    def arun(self, requests: Any, observe: Any) -> Any:
        raise AssertionError

    def close(self) -> None:
        self.closed.set()


class Link:
    """The engine's side: it notes what it is asked."""

    is_up = True

    def __init__(self) -> None:
        self.asked: list[InferRequest] = []

    def submit(self, model: RemoteModel, request: InferRequest) -> Any:
        self.asked.append(request)
        return ENGINE


def computation(executor: Executor) -> Computation:
    return Computation((executor,), (SPEC,), (replace(SPEC, name="y"),), (SPEC,), 8, "onnx", "cpu", pure=True)


def remote_model(serial: int = 1, path: Path = Path("/nowhere"), seconds: float = QUICK) -> RemoteModel:
    model = RemoteModel(cast("EngineLink", Link()), serial, "m", 1)
    outputs = {"y": replace(SPEC, name="y")}
    model.view = ModelView("m", 1, (1,), {"x": SPEC}, outputs, {}, 8, "onnx", cast("Any", model), merges=True)
    program = ModelProgram("m", 1, str(path), "cpu", 1, "{}")
    model.offer = ReplicaOffer(program, files_digest(tree_fingerprint(path)), seconds)
    return model


def asked(model: RemoteModel) -> list[InferRequest]:
    found: list[InferRequest] = cast("Any", model)._link.asked
    return found


def request(model: RemoteModel, rows: int = 1, value: float = 1.0, **facts: Any) -> InferRequest:
    return InferRequest(model.view, {"x": np.full((rows, 2), value, F4)}, **facts)


def in_use(model: RemoteModel, executor: Executor | None = None) -> Replica:
    assert model.offer is not None
    replica = Replica(model, model.offer, lambda replica: None)
    replica.allow(allowed=True)
    replica.use(computation(executor or Double()))
    return replica


def is_here(model: RemoteModel, question: InferRequest) -> bool:
    """Whether the door answers itself; if so, rightly."""
    before = len(asked(model))
    answer = model.answer(question)
    if answer is ENGINE:
        assert asked(model)[before:] == [question]
        return False
    assert isinstance(answer, InferResponse)
    assert answer.outputs["y"].tolist() == (question.inputs["x"] * 2).tolist()
    assert len(asked(model)) == before
    return True


def test_a_copy_is_wanted_once_the_model_was_asked_often_enough() -> None:
    wanted: list[Replica] = []
    model = remote_model()
    assert model.offer is not None
    replica = Replica(model, model.offer, wanted.append)
    replica.allow(allowed=True)
    for call in range(1, 2 * CALLS_BEFORE_LOAD):
        assert not is_here(model, request(model))
        assert len(wanted) == (call >= CALLS_BEFORE_LOAD)
    replica.use(computation(Double()))
    assert is_here(model, request(model))


def test_what_was_answered_is_told_once() -> None:
    model = remote_model()
    replica = in_use(model)
    for rows in (1, 3):
        assert is_here(model, request(model, rows))
    told = counted(replica.take())
    assert list(told[::4]) == [1, 3]
    assert told[1] <= told[5]
    assert all(0 < seconds < 60 for seconds in told[2::4])
    assert list(told[3::4]) == [1e-6, 1e-6]
    assert replica.take() == b""


@pytest.mark.parametrize(
    "question",
    [
        lambda model: request(model, sequence=SequencePart(7, True, False)),
        lambda model: request(model, deadline=time.monotonic() - 1),
        lambda model: request(model, rows=9),
        lambda model: request(model, value=13),
        lambda model: InferRequest(model.view, {"z": np.zeros((1, 2), F4)}),
        lambda model: InferRequest(model.view, {"x": np.zeros((1, 3), F4)}),
        lambda model: request(model, rows=8),
    ],
    ids=["sequence", "late", "too many rows", "fails", "unknown input", "shape", "nobody knows how long"],
)
def test_what_the_engine_answers(question: Callable[[RemoteModel], InferRequest]) -> None:
    model = remote_model()
    replica = in_use(model)
    check = cast("Any", replica)._check
    for rows in range(1, 8):
        check.admit(request(model, rows)).seconds = QUICK
    check.seconds = 1.0
    assert is_here(model, request(model))
    replica.take()
    assert not is_here(model, question(model))
    assert replica.take() == b""


def test_a_run_with_more_stages_is_the_engines() -> None:
    executor = Double()
    executor.stages = ["infer", "postprocess"]
    model = remote_model()
    replica = in_use(model, executor)
    assert not is_here(model, request(model))
    assert replica.take() == b""


def test_it_learns_from_the_engine_which_shapes_are_quick() -> None:
    model = remote_model(seconds=1.0)
    in_use(model)
    question = request(model)
    assert not is_here(model, question)
    assert model.learn is not None
    for seconds in (float("nan"), float("inf"), -1.0, 0.0, SLOW):
        model.learn(question, seconds)
        assert not is_here(model, question)
    model.learn(question, QUICK)
    assert is_here(model, question)
    assert not is_here(model, request(model, rows=2))


def test_large_tensors_may_take_longer_for_their_way_is_longer() -> None:
    executor, seconds = Double(), INLINE_UNTIL_SECONDS * 1.1
    model = remote_model()
    check = cast("Any", in_use(model, executor))._check
    small, large = request(model), InferRequest(model.view, {"x": np.zeros((8, 2), F4)})
    check.required = {"x": replace(SPEC, shape=None)}
    large.inputs["x"] = np.zeros((8, 20_000), F4)
    for question in (small, large):
        check.admit(question).seconds = seconds
    assert not is_here(model, small)
    assert is_here(model, large)


def test_the_engine_answers_while_it_counts_nothing() -> None:
    model = remote_model()
    replica = in_use(model)
    cast("Any", replica)._noted.extend([1.0] * 4 * (MAX_NOTED - 1))
    assert is_here(model, request(model))
    assert not is_here(model, request(model))
    assert len(counted(replica.take())) == 4 * MAX_NOTED
    assert is_here(model, request(model))


def test_the_engine_says_when_it_has_to_see_requests() -> None:
    model = remote_model()
    replica = in_use(model)
    replica.allow(allowed=False)
    assert not is_here(model, request(model))
    replica.allow(allowed=True)
    assert is_here(model, request(model))
    executor = replica.leave()
    assert isinstance(executor, Double)
    assert not is_here(model, request(model))
    assert model.learn is None


# ------------------------------------------------------------------------------------------------------- all of a door


async def ask_until_here(model: RemoteModel) -> None:
    await until(lambda: is_here(model, request(model)))


async def settled(replicas: Replicas) -> None:
    while tasks := cast("Any", replicas)._tasks:
        await asyncio.wait(tasks)


def wear_out(model: RemoteModel) -> None:
    for _ in range(CALLS_BEFORE_LOAD):
        assert not is_here(model, request(model))


async def test_copies_follow_what_is_served(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"1")
    made: list[Double] = []

    def load(program: ModelProgram) -> Computation:
        assert program.path == str(file)
        made.append(Double())
        return computation(made[-1])

    replicas = Replicas(load)
    one, two = remote_model(1, file), remote_model(2, file)
    plain = remote_model(3)
    plain.offer = None
    replicas.follow([one, plain], [1])
    await ask_until_here(one)
    ((serial, runs),) = replicas.take()
    assert (serial, len(counted(runs))) == (1, 4)
    assert replicas.take() == ()
    replicas.follow([one, two, plain], [2])
    assert not is_here(one, request(one))
    await ask_until_here(two)
    replicas.follow([two], [2])
    await settled(replicas)
    assert [each.closed.is_set() for each in made] == [True, False]
    await replicas.close()
    assert [each.closed.is_set() for each in made] == [True, True]
    assert not is_here(two, request(two))


async def test_other_files_are_not_loaded(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"1")
    made: list[Double] = []

    def load(program: ModelProgram) -> Computation:
        file.write_bytes(b"while it is loaded")
        made.append(Double())
        return computation(made[-1])

    replicas = Replicas(load)
    model = remote_model(1, file)
    replicas.follow([model], [1])
    wear_out(model)
    await settled(replicas)
    assert not is_here(model, request(model))
    assert made[0].closed.is_set()
    other = remote_model(2, file)
    file.write_bytes(b"before it is loaded")
    replicas.follow([other], [2])
    wear_out(other)
    await settled(replicas)
    assert not is_here(other, request(other))
    assert len(made) == 1


async def test_large_models_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorgate.gateway.replicas.MAX_BYTES", 5)
    (tmp_path / "model").write_bytes(b"123")
    replicas = Replicas(lambda program: computation(Double()))
    models = [remote_model(serial, tmp_path) for serial in (1, 2)]
    replicas.follow(models, [1, 2])
    await ask_until_here(models[0])
    wear_out(models[1])
    await settled(replicas)
    assert not is_here(models[1], request(models[1]))


async def test_a_version_that_leaves_while_it_is_loaded(tmp_path: Path) -> None:
    go, made = threading.Event(), Double()

    def load(program: ModelProgram) -> Computation:
        assert go.wait(30)
        return computation(made)

    replicas = Replicas(load)
    model = remote_model(1, tmp_path)
    replicas.follow([model], [1])
    wear_out(model)
    await asyncio.sleep(0)
    replicas.follow([], [])
    go.set()
    await settled(replicas)
    assert made.closed.is_set()
    assert not is_here(model, request(model))


async def test_what_cannot_be_loaded_is_left_to_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def load(program: ModelProgram) -> Computation:
        raise OSError("no memory")

    replicas = Replicas(load)
    model = remote_model(1, tmp_path)
    replicas.follow([model], [1])
    wear_out(model)
    await settled(replicas)
    assert not is_here(model, request(model))
    assert "no copy of model m version 1 in this door: no memory" in caplog.text


# -------------------------------------------------------------------------------------------------- what a door counts


@pytest.mark.parametrize(
    "data",
    [
        b"1",
        struct.pack("3d", 1, 1, 1),
        struct.pack("4d", 1, float("nan"), 1, 1),
        struct.pack("4d", 1, 1, float("inf"), 1),
        struct.pack("4d", 1, 1, -1, 1),
        struct.pack("4d", 0, 1, 1, 1),
        struct.pack("4d", 1.5, 1, 1, 1),
        struct.pack("8d", 1, 1, 1, 1, 0, 1, 1, 1),
    ],
)
def test_what_no_door_counts(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes of requests|a time that is none|requests without rows"):
        counted(data)


def test_what_a_door_counts() -> None:
    assert counted(b"") == array("d")
    assert counted(struct.pack("4d", 2, 5, 0, 0.5)) == array("d", [2, 5, 0, 0.5])


# ---------------------------------------------------------------------------------------------------- what is offered


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )


def offers(folder: Path, processes: dict[str, Any] | None = None, **options: Any) -> list[ReplicaOffer]:
    """What doors would be told of a model with these options."""
    write_model(folder / "m" / "1")
    file = folder / "gateway.yaml"
    model = {"backend": "onnx", "path": str(folder / "m"), "device": "cpu"} | options
    listen = {"http": [{"bind": "127.0.0.1:0"}]}
    file.write_text(yaml.safe_dump({"listen": listen, "models": {"m": model}, "processes": processes or {}}))

    async def main() -> list[ReplicaOffer]:
        app = App(load_config(file, registries()), registries())
        await app.load(lambda report: None)
        try:
            (served,) = app.repository.serving()
            cast("Any", served)._admission_check.seconds = QUICK
            return [found] if (found := app.replica_offer(served)) is not None else []
        finally:
            await app.drain()

    return asyncio.run(main())


def test_a_plain_model_is_offered_and_loads_elsewhere(tmp_path: Path) -> None:
    (offer,) = offers(tmp_path, class_labels={}, instances=2)
    assert offer.seconds == QUICK
    assert offer.program.path == str(tmp_path / "m" / "1")
    assert offer.files == files_digest(tree_fingerprint(tmp_path / "m" / "1"))
    kinds = registries()
    found = load_program(kinds, model_validator(kinds), offer.program, cast("Any", None), cast("Any", None))
    (executor,) = found.executors
    view = SimpleNamespace(name="m", outputs={"y": SPEC})
    ((answer,),) = executor.run([InferRequest(cast("Any", view), {"x": np.ones((1, 2), F4)})], lambda stage: None)
    assert isinstance(answer, InferResponse)
    assert answer.outputs["y"].tolist() == [[2.0, 2.0]]
    executor.close()


def test_a_model_with_a_process_of_its_own_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Repository.stored

    def stored(self: Repository, name: str) -> StoredModel | None:
        found = known(self, name)
        assert found is not None
        return replace(found, config=found.config.model_copy(update={"process": "own"}))

    monkeypatch.setattr(Repository, "stored", stored)
    assert offers(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [
        {"processes": {"replicas": False}},
        {"max_queue_delay_us": 100},
        {"response_cache": True},
        {"preprocess": [{"op": "cast", "input": "x", "to": "FP32"}]},
        {"postprocess": [{"op": "softmax", "input": "y"}]},
    ],
    ids=lambda options: str(*options),
)
def test_what_is_not_offered(tmp_path: Path, options: dict[str, Any]) -> None:
    assert offers(tmp_path, **options) == []
