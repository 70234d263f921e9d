"""Models that come and go while requests run: load, load anew, unload, poll, and what each leaves behind."""

import asyncio
import gc
import json
import re
import shutil
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from waiting import stays, steps, until

from tensorgate.adapters.open_inference.routes import match
from tensorgate.gateway import service as services
from tensorgate.gateway.app import registries
from tensorgate.gateway.config import ModelConfig, load_config, model_validator
from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.errors import LoadFailed, LoadRefused, ModelControlOff, ModelNotFound, ModelNotStored
from tensorgate.gateway.contract.execution import Computation, Executor, Observe
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.questions import IndexEntry, ModelReady, ServerDescription
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
from tensorgate.gateway.local_engine import LocalEngine
from tensorgate.gateway.models.catalog import Catalogs, FolderCatalog, YamlCatalog
from tensorgate.gateway.models.loader import LoadReport, RepositoryDeps
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.routing.router import Router
from tensorgate.gateway.service import Service

X = np.ones((1, 2), np.float32)
LOCAL = "listen: {http: [{bind: '127.0.0.1:0'}]}\n"
EXPLICIT = LOCAL + "model_control: {mode: explicit, load: ['*'], allow_uploads: true}\n"
TRUSTED = EXPLICIT.replace("true", "true, trusted: true")
POLL = "model_control: {mode: poll, poll_seconds: 0.01}\n"


class Still(Options):
    """Options of a backend that multiplies; `uses` names the models that it would call."""

    uses: tuple[str, ...] = ()


class Scale(Executor):
    """y = x * factor, as soon as the gate is open."""

    runs_on: Literal["thread", "loop"] = "thread"
    inline = False
    decoupled = False
    merges = True

    def __init__(self, factor: float, gate: threading.Event, closed: list[float]) -> None:
        self.factor = factor
        self._gate = gate
        self._closed = closed

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Sequence[InferResponse]]:
        assert self._gate.wait(10)
        yield [InferResponse({"y": request.inputs["x"] * np.float32(self.factor)}) for request in requests]

    def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        raise AssertionError

    def close(self) -> None:
        self._closed.append(self.factor)


BACKENDS: dict[str, Any] = {"still": BackendKind(Still, Any, parts=lambda model: model.uses)}  # type: ignore[arg-type]


class World:
    """A gateway without listeners, over models whose version folders hold a file `factor`."""

    runs_code = False

    def __init__(self, folder: Path, sections: str, models: str) -> None:
        (folder / "gateway.yaml").write_text(f"{sections}{models}")
        kinds = replace(registries(), backends=BACKENDS)
        self.config = config = load_config(folder / "gateway.yaml", kinds)
        self.folder = folder
        self.gate = threading.Event()
        self.gate.set()
        self.hold = threading.Event()
        self.closed: list[float] = []
        self.loads: list[tuple[str, int]] = []
        self.reports: list[LoadReport] = []
        deps = RepositoryDeps(self.load, Meters(), lambda model: True, lambda model: kinds_parts(model))
        validate = model_validator(kinds)
        stored = FolderCatalog([each.path for each in config.repositories], read_folder, validate)
        catalog = Catalogs(YamlCatalog(config, translate, validate), stored)
        deps = replace(deps, runs_code=lambda model: self.runs_code)
        self.repository = Repository(catalog, deps, config.model_control)
        self.router = Router(config, self.repository)
        description = ServerDescription("t", "1", config.plain())
        engine = LocalEngine(self.repository, self.router)
        self.metrics = MetricsCollector(engine)
        self.repository.deps.meters.on_forget = self.metrics.forget
        self.service = Service(config, engine, self.metrics, description)

    def load(self, config: ModelConfig, name: str, version: int, path: Path) -> Computation:
        text = (path / "factor").read_text()
        if text == "held":
            assert self.hold.wait(10)
            text = "1"
        self.loads.append((name, version))
        x, y = (TensorSpec(name, DTYPES["FP32"], (-1, 2)) for name in "xy")
        scale = Scale(float(text), self.gate, self.closed)
        return Computation((scale,), (x,), (y,), (x,), int(config.max_batch_size), "test", "cpu")

    async def start(self) -> None:
        await self.repository.load_all(self.reports.append)
        self.service.started = True

    async def ask(self, name: str, x: Any = X, after_decode: Callable[[], object] = lambda: None) -> Any:
        """What a V2 client gets: y, or the error's text."""
        body = {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}]}
        target = f"/v2/models/{name}/infer"
        found = match("POST", target)
        replies: list[Reply] = []

        async def send(reply: Reply) -> None:
            replies.append(reply)

        def decode(call: Call, resolve: Any) -> Any:
            question = found.endpoint.decode(call, resolve)
            after_decode()
            return question

        call = Call(json.dumps(body).encode(), "POST", target, {}, "http", found.args)
        await self.service.handle("open_inference", replace(found.endpoint, decode=decode), call, send)
        answer = json.loads(b"".join([bytes(part) for part in parts_of(replies[0])]))
        return answer["outputs"][0]["data"] if "outputs" in answer else answer["error"]

    def states(self, name: str) -> dict[int, str]:
        """None as long as nothing is known of it."""
        try:
            return {status.version: status.state for status in self.repository.statuses(name)}
        except ModelNotFound:
            return {}

    def put(self, path: str, factor: Any) -> None:
        file = self.folder / path / "factor"
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        fresh.write_text(str(factor))
        fresh.replace(file)

    async def poll(self) -> list[str]:
        reports: list[LoadReport] = []
        await self.repository.poll(reports.append)
        return [report.error for report in reports]

    async def until(self, what: Callable[[], bool]) -> None:
        await until(what)


def kinds_parts(model: Any) -> Iterable[str]:
    uses: Iterable[str] = model.uses
    return uses


def parts_of(reply: Reply) -> Sequence[Any]:
    return [reply.body] if isinstance(reply.body, (bytes, bytearray, memoryview)) else reply.body


def translate(text: str, plain: Any) -> Any:
    return {**plain, **json.loads(text)}


def read_folder(folder: Path, configuration: str | None, name: str) -> Any:
    """The fake of a repository's own format: JSON in `config`."""
    file = folder / "config"
    own = json.loads(file.read_text()) if file.exists() else {}
    return {"backend": "still", "path": ".", **(json.loads(configuration) if configuration else own)}


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., World]]:
    """make(sections, YAML of models): a world over tmp_path, whose versions are put there before or later."""
    worlds: list[World] = []

    def world(sections: str, models: str = "models: {a: {backend: still, path: a, versions: all}}\n") -> World:
        worlds.append(World(tmp_path, sections, models))
        return worlds[-1]

    yield world
    for each in worlds:
        each.gate.set()
        each.hold.set()
        await each.repository.close()


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, Any], None]:
    def put_factor(path: str, factor: Any) -> None:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / "factor").write_text(str(factor))

    return put_factor


# ---------------------------------------------------------------------------------------------------------------- load


@pytest.mark.parametrize("in_threads", [False, True])
async def test_requests_never_notice_a_reload(
    make: Any, put: Any, monkeypatch: pytest.MonkeyPatch, in_threads: bool
) -> None:
    """Two hundred requests while the model is exchanged twenty times, decoded on the loop or beside it."""
    if in_threads:
        monkeypatch.setattr(services, "LARGE_BODY_BYTES", 0)
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    reloads = asyncio.ensure_future(reload_often(world, 20))
    answers: list[Any] = []
    while not reloads.done() or len(answers) < 200:
        answers += await asyncio.gather(*(world.ask("a") for _ in range(10)))
        await asyncio.sleep(0)
    await reloads
    assert len(world.loads) == 21
    assert [answer for answer in answers if answer != [3.0, 3.0]] == []
    await world.until(lambda: len(world.closed) == 20)
    assert world.states("a") == {1: "AVAILABLE"}


async def reload_often(world: World, times: int) -> None:
    for _ in range(times):
        await world.repository.load("a")
        await steps()


async def test_a_model_is_exchanged_while_a_body_is_read(make: Any, put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decoded for the old one is decoded once more for the new one, or refused if there is none."""
    monkeypatch.setattr(services, "LARGE_BODY_BYTES", 0)
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    for change, want in (
        (world.repository.load, [4.0, 4.0]),
        (world.repository.unload, "Request for unknown model: 'a' has no available versions"),
    ):
        read, go = threading.Event(), threading.Event()
        asked = asyncio.ensure_future(world.ask("a", after_decode=lambda read=read, go=go: (read.set(), go.wait(10))))
        await world.until(read.is_set)
        world.put("a/1", 4)
        left = len(world.closed)
        await change("a")
        await world.until(lambda left=left: len(world.closed) > left)
        go.set()
        assert await asked == want


async def test_what_is_loaded_anew_is_new(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    world.put("a/1", 4)
    world.put("a/2", 5)
    assert await world.ask("a") == [3.0, 3.0]
    await world.repository.load("a")
    assert await world.ask("a") == [5.0, 5.0]
    assert await world.ask("a/versions/1") == [4.0, 4.0]
    assert world.router.resolve(ModelRef("a", 1)).versions == (1, 2)
    await world.repository.load("a", '{"versions": "latest"}')
    await world.until(lambda: world.states("a") == {1: "END", 2: "AVAILABLE"})
    assert await world.ask("a/versions/1") == "Request for unknown model: 'a' version 1 is not found"
    assert world.router.resolve(ModelRef("a")).versions == (2,)


async def test_a_reload_that_fails_leaves_what_serves(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    world.put("a/1", "rubbish")
    with pytest.raises(LoadFailed) as caught:
        await world.repository.load("a")
    assert "could not convert" in caught.value.reasons[1]
    assert await world.ask("a") == [3.0, 3.0]
    assert (world.states("a"), world.service.ready, world.closed) == ({1: "AVAILABLE"}, True, [])


async def test_another_configuration_takes_over_whole_or_not_at_all(make: Any, put: Any) -> None:
    put("a/1", 3)
    put("a/2", 4)
    world = make(EXPLICIT)
    await world.start()
    world.put("a/2", "rubbish")
    with pytest.raises(LoadFailed):
        await world.repository.load("a", '{"max_batch_size": 7}')
    assert {world.router.resolve(ModelRef("a", v)).max_batch_size for v in (1, 2)} == {0}
    assert world.repository.configuration("a")["max_batch_size"] == 0
    await world.until(lambda: world.closed == [3.0])
    world.put("a/2", 6)
    await world.repository.load("a", '{"max_batch_size": 7}')
    assert {world.router.resolve(ModelRef("a", v)).max_batch_size for v in (1, 2)} == {7}
    assert await world.ask("a") == [6.0, 6.0]


@pytest.mark.parametrize("end", ["a file changes", "files come", "unloaded"])
async def test_a_callers_configuration_stands_until(make: Any, put: Any, end: str) -> None:
    """Triton: L0_lifecycle, test_config_override and test_model_config_overwite."""
    put("a/1", 3)
    world = make(TRUSTED)
    await world.start()
    await world.repository.load("a", '{"max_batch_size": 7}')
    await world.repository.load("a")
    assert world.router.resolve(ModelRef("a")).max_batch_size == 7
    if end == "a file changes":
        world.put("a/1", 44)
    elif end == "unloaded":
        await world.repository.unload("a")
    else:
        await world.repository.load("a", '{"max_batch_size": 5}', {"1/factor": b"2"})
        assert world.router.resolve(ModelRef("a")).max_batch_size == 5
    await world.repository.load("a")
    assert world.router.resolve(ModelRef("a")).max_batch_size == 0


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": "nope"}, ModelNotStored, "nope"),
    ({"name": "a", "configuration": '{"instances": 0}'}, LoadRefused, "instances: found 0, expected at least 1"),
    ({"name": "a", "configuration": "{"}, LoadRefused, "Expecting"),
    ({"name": "a", "files": {"1/factor": b"1"}}, LoadRefused, "files need a configuration"),
    ({"name": "a", "configuration": "{}", "files": {"../factor": b"1"}}, LoadRefused, "does not lie below"),
    ({"name": "a", "configuration": '{"versions": [9]}'}, LoadRefused, "at least one version"),
]


@pytest.mark.parametrize(("wish", "kind", "text"), REFUSED)
async def test_loads_that_are_refused_change_nothing(
    make: Any, put: Any, wish: dict[str, Any], kind: type[Exception], text: str
) -> None:
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    with pytest.raises(kind, match=text) as caught:
        await world.repository.load(**wish)
    assert str(world.folder) not in str(caught.value)
    assert await world.ask("a") == [3.0, 3.0]
    assert world.service.ready
    assert await world.repository.index() == (IndexEntry("a", 1, "READY"),)


@pytest.mark.parametrize("sections", ["", POLL])
async def test_only_explicit_control_lets_callers_load(make: Any, put: Any, sections: str) -> None:
    put("a/1", 3)
    world = make(sections)
    await world.start()
    for refused in (world.repository.load("a"), world.repository.unload("a")):
        with pytest.raises(ModelControlOff):
            await refused
    assert await world.ask("a") == [3.0, 3.0]


async def test_one_model_at_a_time_and_different_ones_side_by_side(make: Any, put: Any) -> None:
    put("a/1", "held")
    put("b/1", 2)
    explicit = "model_control: {mode: explicit}\n"
    world = make(explicit, "models: {a: {backend: still, path: a}, b: {backend: still, path: b}}\n")
    await world.start()
    assert world.service.ready
    loading = asyncio.ensure_future(world.repository.load("a"))
    await world.until(lambda: bool(world.repository._states.get("a")) and world.states("a") == {1: "LOADING"})
    unloading = asyncio.ensure_future(world.repository.unload("a"))
    await world.repository.load("b")
    assert await world.ask("b") == [2.0, 2.0]
    assert await world.repository.index() == (IndexEntry("a", 1, "LOADING"), IndexEntry("b", 1, "READY"))
    assert [loading.done(), unloading.done()] == [False, False]
    world.hold.set()
    await asyncio.gather(loading, unloading)
    await world.until(lambda: world.states("a") == {1: "END"})
    assert world.closed == [1.0]


async def test_a_caller_who_leaves_does_not_stop_a_load(make: Any, put: Any) -> None:
    put("a/1", "held")
    world = make("model_control: {mode: explicit}\n")
    await world.start()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(world.repository.load("a"), 0.05)
    world.hold.set()
    await world.until(lambda: world.service._model_ready(ready_question("a")))
    assert await world.ask("a") == [1.0, 1.0]


def ready_question(name: str) -> Any:
    return ModelReady(ModelRef(name))


async def test_the_end_does_not_wait_for_a_load(make: Any, put: Any) -> None:
    put("a/1", "held")
    world = make(EXPLICIT)
    starting = asyncio.ensure_future(world.start())
    await until(lambda: world.repository._work)
    await world.repository.close()  # while the model is held
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_model_comes_with_its_parts_and_may_leave_with_them(make: Any, put: Any) -> None:
    for name in "abc":
        put(f"{name}/1", 1)
    models = "models: {a: {backend: still, path: a, uses: [b]}, b: {backend: still, path: b, uses: [a, c]}, "
    world = make("model_control: {mode: explicit}\n", models + "c: {backend: still, path: c}}\n")
    await world.start()
    await world.repository.load("a")
    assert world.loads == [("c", 1), ("b", 1), ("a", 1)]
    await world.repository.unload("a")
    assert list(world.repository.snapshot.models) == ["b", "c"]
    await world.repository.load("a")
    await world.repository.unload("a", dependents=True)
    assert list(world.repository.snapshot.models) == []
    chosen = make("model_control: {mode: explicit, load: [a]}\n", models + "c: {backend: still, path: c}}\n")
    await chosen.start()
    assert sorted(chosen.repository.snapshot.models) == ["a", "b", "c"]


# -------------------------------------------------------------------------------------------------------------- unload


async def test_an_unloaded_model_answers_what_it_accepted(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    world.gate.clear()
    accepted = [asyncio.ensure_future(world.ask("a")) for _ in range(5)]
    await steps()
    await asyncio.wait_for(world.repository.unload("a"), 1)
    assert world.states("a") == {1: "UNLOADING"}
    assert await world.repository.index() == (IndexEntry("a", 1, "UNLOADING"),)
    assert await world.ask("a") == "Request for unknown model: 'a' has no available versions"
    assert not world.service._model_ready(ready_question("a"))
    assert world.service.ready  # on purpose: it does not count
    assert not any(each.done() for each in accepted)
    world.gate.set()
    assert await asyncio.gather(*accepted) == [[3.0, 3.0]] * 5
    await world.until(lambda: world.states("a") == {1: "END"})
    assert await world.repository.index() == (IndexEntry("a", 1, "UNAVAILABLE", "unloaded"),)
    assert await world.repository.index(ready_only=True) == ()
    assert world.closed == [3.0]
    assert world.router.names() == ()
    await world.repository.unload("a")
    await world.repository.unload("never heard of")


async def test_whoever_waits_for_a_leaving_model_learns_of_the_end(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    world.gate.clear()
    accepted = asyncio.ensure_future(world.ask("a"))
    await steps()
    await world.repository.unload("a")
    world.repository.give_up()
    assert await accepted == "model 'a' has stopped accepting requests"


async def test_what_was_half_loaded_is_given_back(make: Any, put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose configuration does not fit it, and one that fails when it is warmed up."""
    put("a/1", 3)
    put("b/1", 4)
    monkeypatch.setattr(Scale, "inline", True)
    world = make(
        "", "models: {a: {backend: still, path: a, signatures: {s: {inputs: {q: q}}}}, b: {backend: still, path: b}}\n"
    )
    monkeypatch.setattr(Scale, "run", None)
    await world.start()
    assert sorted(world.closed) == [3.0, 4.0]
    assert [report.error for report in world.reports] == [
        "signature s names an input that the model does not have: q",
        "TypeError: 'NoneType' object is not callable",
    ]
    assert not world.service.ready


async def test_a_model_that_comes_back_while_it_leaves_is_available(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    world.gate.clear()
    accepted = asyncio.ensure_future(world.ask("a"))
    await steps()
    await world.repository.unload("a")
    world.put("a/1", 4)
    await world.repository.load("a")
    world.gate.set()
    assert await accepted == [3.0, 3.0]
    await world.until(lambda: world.closed == [3.0])
    await stays(lambda: world.states("a") == {1: "AVAILABLE"})
    assert await world.ask("a") == [4.0, 4.0]
    assert 'model="a"' in world.metrics.render().decode()


async def test_nothing_keeps_an_unloaded_model_alive(make: Any, put: Any) -> None:
    """Neither the tables of names nor those of metrics; the next request throws the old tables away."""
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    assert await world.ask("a") == [3.0, 3.0]
    computation = weakref.ref(world.repository.snapshot.models["a"][1].computation.executors[0])
    assert 'model="a"' in world.metrics.render().decode()
    await world.repository.unload("a")
    await world.until(lambda: world.states("a") == {1: "END"})
    await world.ask("a")
    gc.collect()
    assert computation() is None
    assert 'model="a"' not in world.metrics.render().decode()


async def test_labels_and_names_follow_the_models(make: Any, put: Any) -> None:
    put("a/1", 3)
    put("a/2", 4)
    labelled = "models: {a: {backend: still, path: a, versions: all, labels: {old: 1}}}\n"
    world = make(EXPLICIT, labelled + "routes: {public: [{model: a, label: old}]}\n")
    await world.start()
    assert world.router.names() == ("a", "public")
    assert await world.ask("public") == [3.0, 3.0]
    await world.repository.load("a", '{"labels": {"old": 2}}')
    assert await world.ask("public") == [4.0, 4.0]
    assert world.router.resolve(ModelRef(qualified="a-2")).version == 2
    assert world.router.resolve(ModelRef(qualified="")).version == 2
    await world.repository.unload("a")
    assert world.router.names() == ("public",)
    with pytest.raises(ModelNotFound):
        world.router.resolve(ModelRef(qualified="a-2"))


# ---------------------------------------------------------------------------------------------------------------- poll


async def test_polling_follows_versions(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make(POLL)
    await world.start()
    assert (await world.poll(), world.loads) == ([], [("a", 1)])
    world.put("a/2", 4)
    assert await world.poll() == [""]
    assert world.loads == [("a", 1), ("a", 2)]  # the first goes on as it is
    assert await world.ask("a") == [4.0, 4.0]
    assert world.router.resolve(ModelRef("a", 1)).versions == (1, 2)
    world.put("a/3", "rubbish")
    assert "could not convert" in (await world.poll())[0]
    assert await world.poll() == []  # not tried again before it changes
    assert await world.ask("a") == [4.0, 4.0]
    assert world.service.ready
    assert world.states("a") == {1: "AVAILABLE", 2: "AVAILABLE", 3: "END"}
    world.put("a/3", 5)
    shutil.rmtree(world.folder / "a/1")
    assert await world.poll() == [""]
    await world.until(lambda: world.states("a") == {1: "END", 2: "AVAILABLE", 3: "AVAILABLE"})
    assert world.closed == [3.0]
    world.put("a/2", 7)
    assert await world.poll() == [""]
    assert await world.ask("a/versions/2") == [7.0, 7.0]
    shutil.rmtree(world.folder / "a")
    assert "no such file" in (await world.poll())[0].lower()
    assert await world.ask("a") == [5.0, 5.0]  # the configuration still wants it: what serves goes on


async def test_requests_never_notice_versions_that_come_and_go(make: Any, put: Any) -> None:
    """The latest version is another forty times, of which every tenth fails; the folders of old ones vanish."""
    put("a/1", 1)
    world = make(POLL, "models: {a: {backend: still, path: a, versions: latest}}\n")
    await world.start()
    polling = asyncio.ensure_future(world.repository.keep_polling(world.reports.append))
    answers: list[Any] = []
    newest = 1

    async def ask() -> None:
        while newest < 40:
            least = newest
            answers.append((least, await world.ask("a")))
            await asyncio.sleep(0)

    asking = [asyncio.ensure_future(ask()) for _ in range(6)]
    for version in range(2, 41):
        fails = version % 10 == 0 and version < 40
        world.put(f"a/{version:08}", "rubbish" if fails else version)
        if fails:
            await world.until(lambda version=version: world.states("a").get(version) == "END")
        else:
            await world.until(lambda version=version: max(world.repository.snapshot.models["a"]) == version)
            newest = version
            for folder in (world.folder / "a").iterdir():
                if int(folder.name) < version:
                    shutil.rmtree(folder)
    await asyncio.gather(*asking)
    polling.cancel()
    assert len(answers) > 100
    assert [answer for least, answer in answers if not isinstance(answer, list) or answer[0] < least] == []
    await world.until(lambda: set(world.states("a").values()) == {"END", "AVAILABLE"})
    assert world.states("a")[10] == world.states("a")[39] == "END"
    assert world.service.ready


async def test_polling_follows_models(make: Any, tmp_path: Path, put: Any) -> None:
    put("repo/b/1", 2)
    world = make(POLL + "repositories: [repo]\n", "")
    await world.start()
    assert await world.ask("b") == [2.0, 2.0]
    world.put("repo/c/1", 3)
    world.put("repo/d/1", "rubbish")
    (tmp_path / "repo/e/1").mkdir(parents=True)
    (tmp_path / "repo/e/config").write_text('{"instances": 0}')
    assert len(await world.poll()) == 3
    assert await world.ask("c") == [3.0, 3.0]
    assert not world.service.ready  # d and e are wanted, and have never served
    entries = {entry.name: (entry.version, entry.state, entry.reason) for entry in await world.repository.index()}
    assert entries["d"] == (1, "UNAVAILABLE", "could not convert string to float: 'rubbish'")
    assert entries["e"] == (None, "UNAVAILABLE", "instances: found 0, expected at least 1")
    assert world.router.names() == ("b", "c", "d", "e")
    for name in "bde":
        shutil.rmtree(tmp_path / "repo" / name)
    assert await world.poll() == []
    assert await world.ask("b") == "Request for unknown model: 'b' has no available versions"
    assert (world.router.names(), world.service.ready) == (("c",), True)
    (tmp_path / "repo/c/config").write_text('{"max_batch_size": 3}')
    assert await world.poll() == [""]
    assert world.router.resolve(ModelRef("c")).max_batch_size == 3
    (tmp_path / "repo/c/config").write_text("{")
    assert len(await world.poll()) == 1
    assert (await world.ask("c"), world.service.ready) == ([3.0, 3.0], True)


async def test_a_repository_that_cannot_be_read_costs_no_model(make: Any, put: Any, tmp_path: Path) -> None:
    put("repo/b/1", 2)
    world = make(POLL + "repositories: [repo]\n", "")
    await world.start()
    polling = asyncio.ensure_future(world.repository.keep_polling(world.reports.append))
    (tmp_path / "repo").rename(tmp_path / "gone")
    await until(lambda: world.reports)
    assert await world.ask("b") == [2.0, 2.0]
    (tmp_path / "gone").rename(tmp_path / "repo")
    world.put("repo/b/2", 5)
    await world.until(lambda: world.router.resolve(ModelRef("b")).version == 2)
    polling.cancel()


async def test_a_slow_load_holds_up_no_other_model(make: Any, put: Any) -> None:
    put("repo/b/1", 2)
    world = make(POLL + "repositories: [repo]\n", "")
    await world.start()
    polling = asyncio.ensure_future(world.repository.keep_polling(world.reports.append))
    world.put("repo/slow/1", "held")
    await world.until(lambda: "slow" in world.repository._states and world.states("slow") == {1: "LOADING"})
    world.put("repo/quick/1", 6)
    await world.until(lambda: "quick" in world.repository.snapshot.models)
    assert await world.ask("quick") == [6.0, 6.0]
    world.hold.set()
    await world.until(lambda: "slow" in world.repository.snapshot.models)
    await stays(lambda: world.loads == [("b", 1), ("quick", 1), ("slow", 1)])
    polling.cancel()


# ------------------------------------------------------------------------------------------------- what is there at all


@pytest.mark.parametrize(
    ("control", "loaded", "ready"),
    [
        ("{mode: none}", ["a", "b"], True),
        ("{mode: explicit}", [], True),
        ("{mode: explicit, load: [b]}", ["b"], True),
        ("{mode: explicit, load: ['*']}", ["a", "b"], True),
        ("{mode: explicit, load: [b, late]}", ["b"], False),
    ],
)
async def test_what_is_loaded_at_start(make: Any, put: Any, control: str, loaded: list[str], ready: bool) -> None:
    put("a/1", 1)
    put("repo/b/1", 2)
    world = make(f"model_control: {control}\nrepositories: [repo]\n")
    await world.start()
    assert list(world.repository.snapshot.models) == loaded
    assert world.service.ready is ready
    index = [entry for entry in await world.repository.index() if entry.name != "late"]
    assert index == [IndexEntry(name, *((1, "READY") if name in loaded else ())) for name in ("a", "b")]


async def test_the_configurations_that_operators_see_follow(make: Any, put: Any) -> None:
    put("a/1", 1)
    world = make(EXPLICIT)
    await world.start()
    await world.repository.load("a", '{"instances": 3}')
    assert world.service._server_metadata(None).configuration["models"]["a"]["instances"] == 3
    await world.repository.unload("a")
    assert world.service._server_metadata(None).configuration["models"] == {}
    with pytest.raises(ModelNotFound):
        world.repository.configuration("a")


# ------------------------------------------------------------------------------------------------------------- uploads


def uploads() -> set[str]:
    import tempfile

    return {path.name for path in Path(tempfile.gettempdir()).glob("tensorgate-upload-*")}


async def test_files_may_come_with_a_load(make: Any, put: Any) -> None:
    put("a/1", 3)
    put("repo/b/1", 4)
    before = uploads()
    world = make(EXPLICIT + "repositories: [repo]\n")
    await world.start()
    await world.repository.load("a", '{"versions": "all"}', {"1/factor": b"10", "7/factor": b"11"})
    assert await world.ask("a") == [11.0, 11.0]
    assert len(uploads() - before) == 1
    await world.repository.load("a", "{}", {"2/factor": b"12"})
    await world.until(lambda: len(uploads() - before) == 1)
    assert await world.ask("a") == [12.0, 12.0]
    with pytest.raises(LoadFailed):
        await world.repository.load("a", "{}", {"2/factor": b"rubbish"})
    assert await world.ask("a") == [12.0, 12.0]
    assert len(uploads() - before) == 1
    await world.repository.load("new", "{}", {"1/factor": b"13"})  # no repository holds it
    assert await world.ask("new") == [13.0, 13.0]
    await world.repository.load("a")
    await world.repository.unload("new")
    await world.until(lambda: uploads() == before)
    assert await world.ask("a") == [3.0, 3.0]


async def test_files_are_refused_unless_they_are_allowed(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make("model_control: {mode: explicit, load: [a]}\n")
    await world.start()
    before = uploads()
    with pytest.raises(LoadRefused, match="takes no files"):
        await world.repository.load("a", "{}", {"1/factor": b"10"})
    assert (uploads(), await world.ask("a")) == (before, [3.0, 3.0])


@pytest.mark.parametrize(
    "name", ["1/model.py", "deep/er/MODEL.PYC", "libop.so", "1/libop.so.1.2", "op.pyd", "op.dll", "x.pth"]
)
async def test_programs_among_the_files_need_trust(make: Any, put: Any, name: str) -> None:
    put("a/1", 3)
    world = make(EXPLICIT)
    await world.start()
    before = uploads()
    files = {"1/factor": b"10", name: b"raise SystemExit"}
    with pytest.raises(LoadRefused, match=rf"file '{re.escape(name)}' is a program.*model_control\.trusted"):
        await world.repository.load("a", "{}", files)
    with pytest.raises(LoadRefused, match="is a program"):
        await world.repository.load("new", "{}", files)
    assert (uploads(), await world.ask("a")) == (before, [3.0, 3.0])
    assert [entry.name for entry in await world.repository.index()] == ["a"]


async def test_files_of_a_backend_that_runs_code_need_trust(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make(EXPLICIT)
    world.runs_code = True
    await world.start()
    before = uploads()
    with pytest.raises(LoadRefused, match=r"files of the backend still are programs.*model_control\.trusted"):
        await world.repository.load("a", "{}", {"1/factor": b"10"})
    assert (uploads(), await world.ask("a")) == (before, [3.0, 3.0])
    await world.repository.load("a", "{}")  # its own files, which nobody sent


async def test_who_is_trusted_may_send_programs(make: Any, put: Any) -> None:
    put("a/1", 3)
    world = make(TRUSTED)
    world.runs_code = True
    await world.start()
    await world.repository.load("a", "{}", {"1/factor": b"10", "1/model.py": b""})
    assert await world.ask("a") == [10.0, 10.0]


def test_which_backends_run_what_their_files_say() -> None:
    runs = {name for name, kind in registries().backends.items() if kind.runs_code}
    assert runs == {"classic", "python", "tensorflow", "torch", "triton_python"}
