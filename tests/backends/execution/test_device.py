"""Models of users and ensembles of them on a GPU: what they get, what they may give, and what crosses to the host.

The GPU is a stand-in on NumPy that does everything late, early or in an odd order, and counts every copy.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from fake_cuda import Cupy, Event, SimpleDevice, orders

from tensorgate.backends.execution.device import Selected
from tensorgate.backends.execution.pipeline import _in_thread
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, OutputRequest

ROW = [-1, 3]
X, Y = ({"name": name, "datatype": "FP32", "shape": ROW} for name in "xy")
MODELS = """
    class Model:
        def __init__(self, context):
            self.xp, self.device = context.xp, context.device
        def infer(self, inputs, request):
            x = inputs["x"]
            assert isinstance(x, self.xp.ndarray)
            return {"y": self.answer(x)}

    class Double(Model):
        def answer(self, x): return self.xp.where(x > 0, x * 2, x)

    class Plus(Model):
        def answer(self, x): return x + 1

    class Host(Model):
        def answer(self, x): return (x.get() if hasattr(x, "get") else x) + 1

    class Listed(Model):
        def answer(self, x): return np.float32([[1, 2, 3]])

    class Two(Model):
        def infer(self, inputs, request): return {"y": inputs["x"] * 3, "z": inputs["x"] - 1}

    class Steps(Model):
        def infer(self, inputs, request):
            for n in range(3): yield {"y": inputs["x"] + n}

    class Network(Model):  # scores that tell how many pixels are dark
        def infer(self, inputs, request):
            digit = self.xp.mod((inputs["image"] > 8).astype("int64").sum(axis=2).sum(axis=1), 10)
            return {"scores": (self.xp.arange(10) == digit.reshape(-1, 1)).astype("float32")}

    class Later(Model):
        async def infer(self, inputs, request): return {"y": inputs["x"] * 5}
"""

Start = Callable[..., Awaitable[App]]


@pytest.fixture(params=orders())
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cupy:
    fake = Cupy(request.param)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    started: list[App] = []
    (tmp_path / "models.py").write_text("import numpy as np\n" + dedent(MODELS))

    async def start(models: dict[str, Any]) -> App:
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump({"models": models, "drain_seconds": 2}))
        kinds = registries()
        started.append(App(load_config(file, kinds), kinds))
        failures: list[Any] = []
        await started[0].load(lambda report: failures.append(report.error) if report.error else None)
        assert not failures, failures
        return started[0]

    yield start
    for app in started:
        await app.repository.close()


def model(name: str, device: str = "cuda:0", **options: Any) -> dict[str, Any]:
    outputs = [Y, {**Y, "name": "z"}] if name == "Two" else [Y]
    own = {"backend": "python", "path": f"models.py:{name}", "device": device, "max_batch_size": 8}
    return own | {"inputs": [X], "outputs": outputs} | options


def chain(*models: str, outputs: str = "abc", **options: Any) -> dict[str, Any]:
    """Each model gets what the one before it gave: x -> a -> b -> c; outputs of the ensemble by these letters."""
    tensors = ["x", *"abcdef"]
    steps = [
        {"model": name, "inputs": {"x": tensors[n]}, "outputs": {"y": tensors[n + 1]}} for n, name in enumerate(models)
    ]
    given = [{**Y, "name": name} for name in outputs]
    return {"backend": "ensemble", "inputs": [X], "outputs": given, "steps": steps, "max_batch_size": 8} | options


async def ask(app: App, name: str, x: Any, *outputs: str) -> list[dict[str, Any]]:
    view = app.router.resolve(ModelRef(name))
    request = InferRequest(view, {"x": np.asarray(x, np.float32)}, outputs=tuple(map(OutputRequest, outputs)))
    async with asyncio.timeout(10):
        answers = [dict(answer.outputs) async for answer in view.handle.submit(request)]
    for answer in answers:
        assert all(isinstance(array, np.ndarray) for array in answer.values())
    return answers


async def one(app: App, name: str, x: Any, *outputs: str) -> dict[str, Any]:
    (answer,) = await ask(app, name, x, *outputs)
    return {name: array.tolist() for name, array in answer.items()}


def copies(cupy: Cupy) -> list[str]:
    ways = [way for way, _ in cupy.world.copies]
    cupy.world.copies.clear()
    return ways


ROWS = [[1.0, -2.0, 3.0]]


async def test_three_steps_on_a_gpu_are_one_copy_in_and_one_out(cupy: Cupy, start: Start) -> None:
    app = await start(
        {"double": model("Double"), "plus": model("Plus"), "e": chain("double", "plus", "double", outputs="c")}
    )
    copies(cupy)
    assert await one(app, "e", ROWS) == {"c": [[6.0, -1.0, 14.0]]}
    assert copies(cupy) == ["in", "out"]
    many = await asyncio.gather(*[one(app, "e", [[n, -n, 0.0]] * (1 + n % 3)) for n in range(1, 20)])
    assert many == [{"c": [[4.0 * n + 2, 1.0 - n, 2.0]] * (1 + n % 3)} for n in range(1, 20)]
    seen = copies(cupy)
    assert seen.count("in") <= 19
    assert seen.count("out") <= 19


async def test_what_the_caller_asks_for_comes_back_and_nothing_else(cupy: Cupy, start: Start) -> None:
    app = await start({"double": model("Double"), "plus": model("Plus"), "e": chain("double", "plus", "double")})
    copies(cupy)
    assert await one(app, "e", ROWS, "c") == {"c": [[6.0, -1.0, 14.0]]}
    assert copies(cupy) == ["in", "out"]
    assert await one(app, "e", ROWS, "c", "b") == {"b": [[3.0, -1.0, 7.0]], "c": [[6.0, -1.0, 14.0]]}
    assert sorted(copies(cupy)) == ["in", "out", "out"]
    whole = await one(app, "e", ROWS)
    assert list(whole) == ["a", "b", "c"]
    assert sorted(copies(cupy)) == ["in", "out", "out", "out"]


async def test_an_output_that_nobody_wants_stays_where_it_is(cupy: Cupy, start: Start) -> None:
    steps = [
        {"model": "two", "inputs": {"x": "x"}, "outputs": {"y": "a", "z": "unused"}},
        {"model": "plus", "inputs": {"x": "a"}, "outputs": {"y": "b"}},
    ]
    app = await start({"two": model("Two"), "plus": model("Plus"), "e": chain(outputs="b", steps=steps)})
    copies(cupy)
    assert await one(app, "e", ROWS) == {"b": [[4.0, -5.0, 10.0]]}
    assert copies(cupy) == ["in", "out"]


async def test_a_step_on_the_host_gets_numpy_and_one_on_a_gpu_gets_cupy(cupy: Cupy, start: Start) -> None:
    app = await start(
        {
            "double": model("Double"),
            "host": model("Plus", "cpu"),
            "e": chain("double", "host", "double", outputs="c"),
            "fork": chain(
                outputs="bc",
                steps=[
                    {"model": "double", "inputs": {"x": "x"}, "outputs": {"y": "a"}},
                    {"model": "double", "inputs": {"x": "a"}, "outputs": {"y": "b"}},
                    {"model": "host", "inputs": {"x": "a"}, "outputs": {"y": "c"}},
                ],
            ),
        }
    )
    copies(cupy)
    assert await one(app, "e", ROWS) == {"c": [[6.0, -1.0, 14.0]]}
    assert copies(cupy) == ["in", "out", "in", "out"]
    assert await one(app, "fork", ROWS) == {"b": [[4.0, -2.0, 12.0]], "c": [[3.0, -1.0, 7.0]]}


async def test_answers_of_a_decoupled_step_stay_on_the_gpu(cupy: Cupy, start: Start) -> None:
    models = {"steps": model("Steps", max_batch_size=0), "double": model("Double")}
    app = await start({**models, "e": chain("steps", "double", outputs="b", decoupled=True, max_batch_size=0)})
    copies(cupy)
    answers = await ask(app, "e", ROWS)
    assert [answer["b"].tolist() for answer in answers] == [[[2, -2, 6]], [[4, -1, 8]], [[6, 0, 10]]]
    assert sorted(copies(cupy)) == ["in", "out", "out", "out"]


async def test_the_host_sees_no_difference(start: Start) -> None:
    app = await start(
        {
            "double": model("Double", "cpu"),
            "plus": model("Plus", "cpu"),
            "e": chain("double", "plus", "double", outputs="c"),
        }
    )
    assert await one(app, "e", ROWS) == {"c": [[6.0, -1.0, 14.0]]}


@pytest.mark.parametrize("name", ["Double", "Host", "Listed", "Later"])
async def test_a_class_may_give_arrays_of_either_module(cupy: Cupy, start: Start, name: str) -> None:
    """With an operator after it, too, which runs where the model is."""
    softmax = {"postprocess": [{"op": "softmax", "input": "y"}]}
    app = await start(
        {"host": model(name, "cpu"), "gpu": model(name)}
        | {"host_after": model(name, "cpu", **softmax), "gpu_after": model(name, **softmax)}
    )
    for suffix in ("", "_after"):
        want, got = await one(app, f"host{suffix}", ROWS), await one(app, f"gpu{suffix}", ROWS)
        assert np.allclose(got["y"], want["y"])
    copies(cupy)
    await one(app, "gpu", ROWS)
    assert copies(cupy).count("in") == 1


async def test_a_step_is_enqueued_before_the_one_before_it_is_done(
    cupy: Cupy, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else this would never end: whoever waits for the first step waits until the last has been enqueued."""
    app = await start({"double": model("Double"), "plus": model("Plus")} | {"e": chain("double", "plus", outputs="b")})
    enqueued, synchronize = threading.Event(), Event.synchronize

    def wait(event: Event) -> None:
        assert enqueued.wait(10), "a step waits for the one before it"
        synchronize(event)

    executor: Any = app.repository.snapshot.models["plus"][1].computation.executors[0]
    plus = executor._backend._model
    answer = plus.answer

    def noted(x: Any) -> Any:
        enqueued.set()
        return answer(x)

    plus.answer = noted
    monkeypatch.setattr(Event, "synchronize", wait)
    for number in range(1, 4):
        assert await one(app, "e", ROWS * number) == {"b": [[3.0, -1.0, 7.0]] * number}
        enqueued.clear()


async def test_steps_on_one_gpu_side_by_side_and_behind_each_other(cupy: Cupy, start: Start) -> None:
    """Many callers, whose rows share batches: a tensor that two steps read, one that is read late, one that is left."""
    steps = [
        {"model": "two", "inputs": {"x": "x"}, "outputs": {"y": "a", "z": "b"}},
        {"model": "plus", "inputs": {"x": "a"}, "outputs": {"y": "c"}},
        {"model": "double", "inputs": {"x": "a"}, "outputs": {"y": "d"}},
        {"model": "double", "inputs": {"x": "c"}, "outputs": {"y": "e"}},
        {"model": "plus", "inputs": {"x": "b"}, "outputs": {"y": "f"}},
    ]
    app = await start(
        {"two": model("Two"), "plus": model("Plus"), "double": model("Double", instances=2)}
        | {"e": chain(outputs="def", steps=steps)}
    )
    found = await asyncio.gather(*[one(app, "e", [[n, -n, 0.0]] * (1 + n % 3)) for n in range(1, 30)])
    for n, outputs in enumerate(found, 1):
        rows = 1 + n % 3
        assert outputs == {
            "d": [[6.0 * n, -3.0 * n, 0.0]] * rows,
            "e": [[2 * (3.0 * n + 1), 1 - 3.0 * n, 2.0]] * rows,
            "f": [[float(n), float(-n), 0.0]] * rows,
        }


async def test_who_leaves_between_two_steps_leaves_nothing_behind(cupy: Cupy, start: Start) -> None:
    app = await start(
        {"double": model("Double"), "plus": model("Plus"), "e": chain("double", "plus", "double", outputs="c")}
    )
    for turn in range(20):
        leaving = [asyncio.ensure_future(one(app, "e", [[n, n, n]])) for n in range(1, 4)]
        for _ in range(turn):
            await asyncio.sleep(0)
        for task in leaving[1:]:
            task.cancel()
        assert await leaving[0] == {"c": [[6.0, 6.0, 6.0]]}
        await asyncio.gather(*leaving, return_exceptions=True)
    assert await one(app, "e", ROWS) == {"c": [[6.0, -1.0, 14.0]]}


async def test_the_loop_never_waits_for_a_gpu(cupy: Cupy, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class that is on the loop: its inputs, what it computes, and the way back are waited for in threads."""
    app = await start({"later": model("Later")})
    waited: list[int] = []
    synchronize = Event.synchronize

    def noted(event: Event) -> None:
        waited.append(threading.get_ident())
        synchronize(event)

    monkeypatch.setattr(Event, "synchronize", noted)
    monkeypatch.setattr(SimpleDevice, "synchronize", None)  # nobody waits for all of it
    assert await one(app, "later", ROWS) == {"y": [[5.0, -10.0, 15.0]]}
    assert len(waited) >= 3
    assert threading.get_ident() not in waited


async def test_who_leaves_while_a_thread_waits_leaves_when_it_is_over() -> None:
    """The thread works with what a batch gives back at its end."""
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go.wait(10)

    task = asyncio.ensure_future(_in_thread(wait))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_class_that_gives_cupy_on_the_host_is_understood(
    cupy: Any, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy.ndarray, "__cuda_array_interface__", {}, raising=False)  # what tells a GPU's array
    text = """
    import cupy
    class Own:
        def __init__(self, context): pass
        def infer(self, inputs, request): return {"y": cupy.asarray(inputs["x"]) * 2}
    """
    (tmp_path / "own.py").write_text(dedent(text))
    app = await start({"own": model("Own", "cpu", path="own.py:Own")})
    assert await one(app, "own", ROWS) == {"y": [[2.0, -4.0, 6.0]]}


# ----------------------------------------------------------------------------------------------- the example on both


PHOTO = Path(__file__).parents[3] / "config/photo.yaml"
SHOWN = (0, 2, 3, 5, 7, 9)


def photos() -> Any:
    """The demo's digits as a camera sees them: 27 x 25 pixels, dark on light, UINT8 [n, 27, 25, 3]."""
    ink = np.array([json.loads((PHOTO.parent / f"demo/images/{digit}.json").read_bytes()) for digit in SHOWN])
    grey = 255 - ink.repeat(3, 1).repeat(3, 2) * 255 // 16
    framed = np.pad(grey, ((0, 0), (0, 3), (0, 1)), constant_values=255)
    return np.repeat(framed[..., None], 3, -1).astype(np.uint8)


async def read(app: App, photo: Any) -> tuple[list[int], Any]:
    view = app.router.resolve(ModelRef("read_photo"))
    (answer,) = [answer async for answer in view.handle.submit(InferRequest(view, {"photo": photo}))]
    return answer.outputs["digit"].ravel().tolist(), answer.outputs["margin"]


async def test_the_example_reads_photographs(start: Start) -> None:
    """As it is, where there is no GPU."""
    kinds = registries()
    app = App(load_config(PHOTO, kinds), kinds)
    await app.load(lambda report: None)
    try:
        digits, margins = await read(app, photos())
        assert tuple(digits) == SHOWN
        assert (margins > 0.5).all()
    finally:
        await app.repository.close()


async def test_the_examples_classes_run_on_a_gpu(cupy: Cupy, start: Start) -> None:
    """With a class in the network's place, which there needs CuPy alone: all three steps are one copy in, one out."""
    models = yaml.safe_load(PHOTO.read_text())["models"]
    for name in ("prepare", "decide"):
        models[name] |= {"path": str(PHOTO.parent / models[name]["path"]), "device": "cuda:0"}
    ten = {"name": "scores", "datatype": "FP32", "shape": [-1, 10]}
    image = {"name": "image", "datatype": "FP32", "shape": [-1, 8, 8]}
    models["digits"] = model("Network", inputs=[image], outputs=[ten], max_batch_size=16)
    app = await start(models)
    copies(cupy)
    want = (photos()[..., 0].astype(np.float64)[:, :24, :24].reshape(6, 8, 3, 8, 3).mean((2, 4)) < 128).sum((1, 2)) % 10
    digits, _ = await read(app, photos())
    assert digits == want.tolist()
    assert copies(cupy) == ["in", "out"]


# ------------------------------------------------------------------------------------------------- several GPUs


def test_a_thread_touches_no_gpu_but_those_it_uses() -> None:
    """CUDA makes a context on each GPU that is ever selected."""
    selected: list[int] = []
    runtime = SimpleNamespace(setDevice=selected.append)
    with Selected(runtime, 2):
        with Selected(runtime, 3):
            pass
        with Selected(runtime, 2):
            pass
    with Selected(runtime, 2):
        pass
    assert selected == [2, 3, 2, 2, 2]
