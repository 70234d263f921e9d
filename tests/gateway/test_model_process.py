"""Models in processes of their own, driven as a scheduler does."""

import asyncio
import contextlib
import gc
import os
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from tensorgate import __version__
from tensorgate.backends.execution import model_process
from tensorgate.backends.execution.own_process import ModelProcesses
from tensorgate.backends.execution.spec_inference import Misfit
from tensorgate.gateway.app import MODEL_PROCESS, registries
from tensorgate.gateway.config import model_validator
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, OutputRequest
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed, OutOfMemory, Unavailable
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.contract.tensor import Tensors
from tensorgate.gateway.engine.worker import Batch
from tensorgate.gateway.model_loading import check_process, loader

DIGITS = Path(__file__).parents[2] / "config/demo/models/digits"
KINDS = registries()
MODELS = """
    import os, time
    import numpy as np

    class Double:
        def __init__(self, context):
            if context.parameters.get("fail"):
                raise KeyError("no weights")
            if context.parameters.get("exit"):
                os._exit(4)
            if context.parameters.get("once"):
                if os.path.exists(context.parameters["once"]):
                    os._exit(5)
                open(context.parameters["once"], "w").close()

        def infer(self, inputs, request):
            x = inputs["x"]
            if x.size and x.flat[0] == 13:
                raise ValueError("unlucky")
            if x.size and x.flat[0] == 666:
                os._exit(6)
            if x.size and x.flat[0] == 99:
                time.sleep(3600)
            return {"y": x * 2, "pid": np.full(x.shape[:1], os.getpid())}

    class Plus:
        def __init__(self, input: str, amount: float = 1.0):
            self.input, self.amount = input, amount

        def specs(self, specs):
            return specs

        def __call__(self, tensors, xp):
            return {**tensors, self.input: tensors[self.input] + xp.float32(self.amount)}
"""
TRITON = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if x.flat[0] == 7:
                asked = pb_utils.InferenceRequest(model_name="other", requested_output_names=["y"], inputs=[])
                return asked.exec()
            return pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)])
"""
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
    "outputs": [
        {"name": "y", "datatype": "FP32", "shape": [-1, -1]},
        {"name": "pid", "datatype": "INT64", "shape": [-1]},
    ],
}
Load = Callable[..., Any]
Outcomes = list[InferResponse | GatewayError]


def open_files() -> dict[str, str]:
    gc.collect()  # a mapping is open until nobody knows it, a trace of an error among them
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[each.name] = str(each.readlink())
    return found


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            found |= {int(each) for each in (task / "children").read_text().split()}
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(textwrap.dedent(MODELS))
    (tmp_path / "triton" / "1").mkdir(parents=True)
    (tmp_path / "triton" / "1" / "model.py").write_text(textwrap.dedent(TRITON))
    return tmp_path


@pytest.fixture
async def processes(nothing_left: None) -> AsyncIterator[ModelProcesses]:
    """All processes end, and leave nothing open."""
    before, files = children(), open_files()
    yield ModelProcesses(MODEL_PROCESS, __version__)
    await until(lambda: children() == before, lambda: children() - before)
    await until(lambda: open_files().keys() <= files.keys(), lambda: open_files().items() - files.items())


@pytest.fixture
async def load(folder: Path, processes: ModelProcesses) -> AsyncIterator[Load]:
    loop = asyncio.get_running_loop()
    loaded: list[Computation] = []

    async def load(process: str = "own", ops: dict[str, str] | None = None, **options: Any) -> Computation:
        kinds = KINDS
        files = {name: FileRef("", folder / "models.py", member) for name, member in (ops or {}).items()}
        if files:
            own = {name: KINDS.load_op(name, file.path, file.member) for name, file in files.items() if KINDS.load_op}
            kinds = type(KINDS)(KINDS.dialects, KINDS.backends, {**KINDS.ops, **own}, KINDS.load_op)
        plain = {"backend": "python", "path": "models.py:Double", "process": process, **TENSORS} | options
        config = model_validator(kinds)({key: value for key, value in plain.items() if value is not None}, folder)
        assert config.path
        path = config.path.path / "1" if kinds.backends[config.backend].versioned else config.path.path
        make = loader(
            kinds,
            lambda ref: pytest.fail("asks for another model"),
            lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(),
            1,
            processes,
            files,
        )
        computation = await asyncio.to_thread(make, config, "m", 1, path)
        loaded.append(computation)
        return computation

    yield load
    for computation in loaded:
        for executor in computation.executors:
            await asyncio.to_thread(executor.close)


def request_for(computation: Computation, inputs: Tensors, **facts: Any) -> InferRequest:
    specs = {spec.name: spec for spec in computation.inputs}
    outputs = {spec.name: spec for spec in computation.outputs}
    view = ModelView("m", 1, (1,), specs, outputs, {}, computation.max_batch_size, "", handle=None)  # type: ignore[arg-type]
    return InferRequest(view, inputs, **facts)


async def run(
    computation: Computation, *requests: InferRequest, executor: int = 0
) -> list[InferResponse | GatewayError]:
    chosen = computation.executors[executor]
    batch = Batch([])
    if chosen.runs_on == "thread":
        (outcomes,) = await asyncio.to_thread(lambda: [*chosen.run(requests, batch.observe)])
        return list(outcomes)
    found: Outcomes = []
    async for outcomes in chosen.arun(requests, batch.observe):
        found += outcomes
    return found


def rows(value: float, count: int = 1, width: int = 3) -> Tensors:
    return {"x": np.full((count, width), value, np.float32)}


ALIKE = [{}, {"max_batch_size": 8}, {"backend": "triton_python", "path": "triton", "outputs": TENSORS["outputs"][:1]}]


@pytest.mark.parametrize("width", [3, 1 << 18], ids=["in the message", "beside it"])
@pytest.mark.parametrize("options", ALIKE, ids=["alone", "batched", "triton"])
async def test_answers_are_those_of_the_engine(load: Load, options: dict[str, Any], width: int) -> None:
    own, engine = await load(**options), await load("engine", **options)
    told = [[each.inputs, each.outputs, each.max_batch_size, each.platform, each.device] for each in (own, engine)]
    assert told[0] == told[1]
    asked = [rows(number, number + 1, width) for number in range(2 if options.get("max_batch_size") else 1)]
    answers = [await run(each, *[request_for(each, inputs) for inputs in asked]) for each in (own, engine)]
    for mine, theirs in zip(*answers, strict=True):
        assert isinstance(mine, InferResponse)
        assert isinstance(theirs, InferResponse)
        assert mine.outputs["y"].dtype == np.float32
        np.testing.assert_array_equal(mine.outputs["y"], theirs.outputs["y"])


async def test_an_onnx_model_and_its_best_classes(load: Load) -> None:
    options = {"backend": "onnx", "path": str(DIGITS), "inputs": None, "outputs": None}
    answers = []
    for computation in (await load(**options), await load("engine", **options)):
        (output,) = (spec.name for spec in computation.outputs if spec.datatype == "FP32")
        image = {"image": np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 8, 8)}
        (answer,) = await run(computation, request_for(computation, image, outputs=(OutputRequest(output, 3),)))
        assert isinstance(answer, InferResponse)
        answers.append(answer.classes[output])
    np.testing.assert_array_equal(answers[0].values, answers[1].values)
    np.testing.assert_array_equal(answers[0].indices, answers[1].indices)


async def test_operators_of_the_users_own_compute_there(load: Load) -> None:
    computation = await load(ops={"plus": "Plus"}, preprocess=[{"op": "plus", "input": "x", "amount": 0.5}])
    (answer,) = await run(computation, request_for(computation, rows(1.0)))
    assert isinstance(answer, InferResponse)
    assert answer.outputs["y"].tolist() == [[3.0, 3.0, 3.0]]


async def test_one_bad_request_of_a_batch_raises_for_all(load: Load) -> None:
    """So that the engine runs each again alone, as it does with every model."""
    computation = await load(max_batch_size=8)
    with pytest.raises(ModelFailed, match="unlucky") as caught:
        await run(computation, request_for(computation, rows(13.0)), request_for(computation, rows(1.0)))
    assert caught.value.is_logged  # there, with its traceback


async def test_the_end_of_a_process_is_the_end_of_each_request(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process, "FIRST_DELAY_S", 0.01)
    computation = await load(max_batch_size=8)
    outcomes = await run(computation, request_for(computation, rows(666.0)), request_for(computation, rows(1.0)))
    assert [str(each) for each in outcomes] == ["the process of model 'm' version 1 has ended (exit status 6)"] * 2
    assert [type(each) for each in outcomes] == [Unavailable, Unavailable]
    assert not computation.is_ready()
    (answer,) = await run(computation, request_for(computation, rows(1.0)))
    assert isinstance(answer, InferResponse)
    assert computation.is_ready()


async def test_a_batch_waits_for_a_short_time(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process, "FIRST_DELAY_S", 3600.0)
    monkeypatch.setattr(model_process, "WAIT_S", 0.01)
    computation = await load()
    await run(computation, request_for(computation, rows(666.0)))
    with pytest.raises(Unavailable, match="the process of model 'm' version 1 is being started again"):
        await run(computation, request_for(computation, rows(1.0)))


async def test_another_instance_takes_its_place(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process, "FIRST_DELAY_S", 3600.0)
    computation = await load(instances=2)
    assert computation.instances == 2
    await run(computation, request_for(computation, rows(666.0)), executor=0)
    assert computation.is_ready()
    pids = set()
    for executor in (0, 1):
        (answer,) = await run(computation, request_for(computation, rows(1.0)), executor=executor)
        assert isinstance(answer, InferResponse)
        pids.add(int(answer.outputs["pid"][0]))
    assert len(pids) == 1


async def test_sequences_stay_with_their_instance(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process, "FIRST_DELAY_S", 3600.0)
    monkeypatch.setattr(model_process, "WAIT_S", 0.01)
    computation = await load(instances=2, sequences={})
    await run(computation, request_for(computation, rows(666.0)), executor=0)
    with pytest.raises(Unavailable):
        await run(computation, request_for(computation, rows(1.0)), executor=0)


async def test_pauses_double_until_it_can_be_loaded(
    load: Load, processes: ModelProcesses, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_process, "FIRST_DELAY_S", 0.01)
    mark = folder / "mark"
    computation = await load(parameters={"once": str(mark)})
    await run(computation, request_for(computation, rows(666.0)))

    def restarts() -> dict[str, float]:
        (family,) = processes.collect()
        return {sample.labels["reason"]: sample.value for sample in family.samples if sample.name.endswith("_total")}

    await until(lambda: restarts().get("load", 0) >= 2)
    assert restarts()["exit status 6"] == 1
    mark.unlink()
    await until(computation.is_ready)


async def test_a_run_that_nobody_waits_for_is_ended(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process, "HUNG_S", 0.01)
    computation = await load()
    request = request_for(computation, rows(99.0))
    running = asyncio.ensure_future(run(computation, request))
    await until(lambda: request.cancellation.on_cut is not None)
    request.cancellation.end()
    (outcome,) = await running
    assert str(outcome) == "the process of model 'm' version 1 has ended (hung)"


async def test_memory_is_bounded(load: Load) -> None:
    computation = await load(max_memory_bytes=256 << 20)
    with pytest.raises(OutOfMemory):
        await run(computation, request_for(computation, rows(1.0, 1 << 14, 1 << 12)))
    (answer,) = await run(computation, request_for(computation, rows(1.0)))
    assert isinstance(answer, InferResponse)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"parameters": {"fail": True}}, GatewayError, "KeyError: 'no weights' .*models.py, line"),
        ({"parameters": {"exit": True}}, Unavailable, r"has ended \(exit status 4\)"),
        ({"path": "models.py:Nobody"}, ValueError, "has no class Nobody"),
        ({"max_memory_bytes": 1 << 20}, (MemoryError, GatewayError), "memory|has ended"),
    ],
)
async def test_what_keeps_it_from_loading_is_told(load: Load, options: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        await load(**options)


async def test_asking_other_models_is_refused(load: Load) -> None:
    computation = await load(backend="triton_python", path="triton", outputs=TENSORS["outputs"][:1])
    (outcome,) = await run(computation, request_for(computation, rows(7.0)))
    assert isinstance(outcome, GatewayError)
    assert "take out 'process: own'" in str(outcome)


def test_what_computes_nothing_has_no_process() -> None:
    config = model_validator(KINDS)(
        {"backend": "ensemble", "process": "own", "inputs": TENSORS["inputs"], "outputs": TENSORS["inputs"]}
        | {"steps": [{"model": "other", "inputs": {"x": "x"}, "outputs": {"x": "x"}}]},
        Path(),
    )
    with pytest.raises(Misfit, match="process: a model of the backend ensemble computes nothing by itself"):
        check_process(config, KINDS.backends["ensemble"])


async def test_the_template_may_be_killed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process, "FIRST_DELAY_S", 0.01)
    before = children()
    computation = await load()
    (template,) = children() - before
    os.kill(template, 9)
    await until(lambda: not computation.is_ready())
    await until(computation.is_ready)
    (answer,) = await run(computation, request_for(computation, rows(1.0)))
    assert isinstance(answer, InferResponse)


def begun_in(folder: Path) -> list[Path]:
    """A file for each process that began to load."""
    return [*folder.glob("begun-*")]


@pytest.mark.parametrize("who", ["the model's process", "the template"])
async def test_who_kills_a_process_that_loads_keeps_no_model_from_loading(folder: Path, load: Load, who: str) -> None:
    slow = """
        import os, pathlib, time
        HERE = pathlib.Path(__file__).parent
        (HERE / f"begun-{os.getpid()}").touch()
        while not (HERE / "go").exists():
            time.sleep(0.001)
    """
    source = (folder / "models.py").read_text()
    (folder / "slow.py").write_text(textwrap.dedent(slow) + source)
    before = children()
    loading = asyncio.ensure_future(load(path="slow.py:Double"))
    await until(lambda: begun_in(folder))
    (file,) = begun_in(folder)
    (template,) = children() - before
    os.kill(template if who == "the template" else int(file.name.partition("-")[2]), 9)
    await until(lambda: len(begun_in(folder)) > 1)
    (folder / "go").touch()
    (answer,) = await run(await loading, request_for(await loading, rows(1.0)))
    assert isinstance(answer, InferResponse)


async def test_a_process_that_is_killed_each_time_it_loads_is_not_begun_for_ever(folder: Path, load: Load) -> None:
    begun = "pathlib.Path(__file__).with_name(f'begun-{os.getpid()}').touch()"
    (folder / "fatal.py").write_text(f"import os, pathlib\n{begun}\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(Unavailable, match="has ended \\(SIGKILL\\)"):
        await load(path="fatal.py:Double")
    assert len(begun_in(folder)) == model_process.STARTS
