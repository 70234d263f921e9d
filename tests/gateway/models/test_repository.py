"""Versions from folders, their states, what a router makes of names, and what readiness says of it all."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tensorgate.gateway.app import registries
from tensorgate.gateway.config import Config, load_config
from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.errors import LabelNotFound, ModelNotFound, Unavailable
from tensorgate.gateway.contract.execution import Computation, Executor, Observe
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.questions import ServerDescription, ServerReady
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
from tensorgate.gateway.local_engine import LocalEngine
from tensorgate.gateway.models.catalog import YamlCatalog
from tensorgate.gateway.models.loader import LoadReport, RepositoryDeps
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.models.model_folder import wanted_versions
from tensorgate.gateway.models.model_spec import _lines
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.routing.router import Router
from tensorgate.gateway.service import Service


class Folder(Options):
    """Options of a backend that computes nothing."""


class Still(Executor):
    """An executor that is never asked."""

    runs_on: Literal["thread", "loop"] = "thread"
    inline = False
    decoupled = False
    merges = True

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Sequence[InferResponse]]:
        raise AssertionError

    def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        raise AssertionError

    def close(self) -> None:
        pass


def load(config: Any, name: str, version: int, path: Path) -> Computation:
    if (path / "broken").exists():
        raise ValueError("the file is cut short")
    x = TensorSpec("x", DTYPES["FP32"], (-1, 2))
    y = TensorSpec("y", DTYPES["FP32"], (-1, 2))
    return Computation((Still(),), (x,), (y,), (x,), config.max_batch_size, "test", "cpu")


class World:
    """A configuration with its repository and router, loaded."""

    def __init__(self, config: Config) -> None:
        self.config = config
        deps = RepositoryDeps(load, Meters(), versioned=lambda model: True)
        self.repository = Repository(YamlCatalog(config), deps, config.model_control)
        self.router = Router(config, self.repository, "b-2")
        engine = LocalEngine(self.repository, self.router)
        self.metrics = MetricsCollector(engine)
        self.repository.deps.meters.on_forget = self.metrics.forget
        self.service = Service(config, engine, self.metrics, ServerDescription("t", "1"))
        self.reports: list[LoadReport] = []

    @property
    def models(self) -> Any:
        return self.repository.snapshot.models

    def resolved(self, **ref: Any) -> tuple[str, int]:
        view = self.router.resolve(ModelRef(**ref))
        return view.name, view.version

    def is_ready(self) -> bool:
        return bool(self.service._server_ready(ServerReady()))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., World]:
    """make(extra YAML, {"a": "versions: all"}) after the folders of tmp_path/models have been made."""

    def world(extra: str = "", **models: str) -> World:
        text = "models:\n"
        for name, keys in models.items():
            text += f"  {name}: {{backend: still, path: models/{name}, {keys}}}\n"
        (tmp_path / "gateway.yaml").write_text(text + extra)
        kinds = replace(registries(), backends={"still": BackendKind(Folder, Any)})  # type: ignore[arg-type]
        return World(load_config(tmp_path / "gateway.yaml", kinds))

    return world


@pytest.fixture
def folders(tmp_path: Path) -> Callable[..., None]:
    def make_folders(*paths: str) -> None:
        for path in paths:
            (tmp_path / "models" / path).mkdir(parents=True, exist_ok=True)

    return make_folders


CHOICES = [
    ("", [10]),
    ("versions: all", [2, 3, 10]),
    ("versions: [3, 7]", [3]),
    ("versions: {latest: 2}", [3, 10]),
]


@pytest.mark.parametrize(("keys", "want"), CHOICES)
def test_versions_are_folders_whose_name_is_a_number(make: Any, folders: Any, keys: str, want: list[int]) -> None:
    folders("a/3", "a/10", "a/0002", "a/notes", "a/-1", "a/²")
    assert list(wanted_versions(make(a=keys).config.models["a"])) == want


async def test_names_versions_labels_and_routes(make: Any, folders: Any) -> None:
    folders("a/1", "a/2", "b/2", "b-2/7")
    routes = """routes:
  mix: [{model: a, label: old, weight: 0}, {model: b, weight: 5}]
  half: [{model: a, version: 1, weight: 1}, {model: a, version: 2, weight: 1}]
"""
    world = make(routes, a="versions: all, labels: {old: 1, gone: 9}", b="", **{"b-2": ""})
    for name in ({"name": "a"}, {"qualified": "a-1"}, {"name": "half"}):
        with pytest.raises(Unavailable, match="being loaded"):
            world.resolved(**name)
    await world.repository.load_all(world.reports.append)
    assert [report.error for report in world.reports] == [""] * 4
    assert world.resolved(name="a") == ("a", 2)
    assert world.resolved(name="a", version=1) == ("a", 1)
    assert world.resolved(name="a", label="old") == ("a", 1)
    assert {world.resolved(name="mix") for _ in range(50)} == {("mix", 2)}
    assert world.resolved(name="mix", version=1) == ("mix", 1)
    assert world.resolved(name="mix", label="old") == ("mix", 1)
    assert {world.resolved(name="half") for _ in range(200)} == {("half", 1), ("half", 2)}
    assert world.router.resolve(ModelRef("mix")) is world.router.resolve(ModelRef("mix"))
    assert world.resolved(qualified="a-1") == ("a", 1)
    assert world.resolved(qualified="b-2-7") == ("b-2", 7)
    assert world.resolved(qualified="") == ("b", 2)  # the default is "b-2": as a whole, b in version 2
    assert world.router.names() == ("a", "b", "b-2", "mix", "half")
    await world.repository.close()


REFUSED: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"name": "c"}, ModelNotFound),
    ({"name": "a", "version": 3}, ModelNotFound),
    ({"name": "a", "label": "gone"}, ModelNotFound),
    ({"name": "a", "label": "never"}, LabelNotFound),
    ({"name": "c", "label": "old"}, LabelNotFound),
    ({"qualified": "a"}, ModelNotFound),
    ({"qualified": "A-1"}, ModelNotFound),
    ({"qualified": "a-1.0"}, ModelNotFound),
]


async def test_names_that_models_have_besides(make: Any, folders: Any) -> None:
    """They stand before what is put together of name and number, and lead to the highest version."""
    folders("a/1", "a/2", "b/2", "c/1")
    world = make(a="versions: all", b="", c="")
    await world.repository.load_all(world.reports.append)
    names = {"a": "your_model-1.0.0", "b": "a-1", "c": "your_model-1.0.0"}
    router = Router(world.config, world.repository, "your_model-1.0.0", lambda view: names.get(view.name))

    def found(qualified: str) -> tuple[str, int]:
        view = router.resolve(ModelRef(qualified=qualified))
        return view.name, view.version

    assert found("your_model-1.0.0") == found("") == found("a-2") == ("a", 2)
    assert found("a-1") == found("b-2") == ("b", 2)
    with pytest.raises(ModelNotFound):
        found("your_model")
    await world.repository.close()


async def test_what_is_not_there_is_not_found(make: Any, folders: Any) -> None:
    folders("a/1", "b/2")
    world = make(a="labels: {old: 1, gone: 9}", b="")
    await world.repository.load_all(world.reports.append)
    for ref, kind in REFUSED:
        with pytest.raises(kind):
            world.resolved(**ref)
    await world.repository.close()


async def test_states_and_readiness(make: Any, folders: Any) -> None:
    folders("a/1", "a/2/broken", "empty")
    for readiness, ready in (("strict", False), ("lenient", True)):
        world = make(f"readiness: {readiness}\n", a="versions: all", empty="")
        assert not world.is_ready()
        await world.repository.load_all(world.reports.append)
        world.service.started = True
        assert [(status.version, status.state, status.error) for status in world.repository.statuses("a")] == [
            (2, "END", "the file is cut short"),
            (1, "AVAILABLE", ""),
        ]
        assert world.resolved(name="a") == ("a", 1)
        assert [report.error for report in world.reports][:2] == ["", "the file is cut short"]
        assert "no version to load in /" in world.reports[2].error
        assert "the folder is empty, expected folders with whole numbers" in world.reports[2].error
        with pytest.raises(ModelNotFound) as caught:
            world.repository.statuses("empty")
        assert caught.value.known
        assert world.is_ready() is ready
        world.service.draining = True
        assert not world.is_ready()
        await world.repository.close()
        assert world.repository.statuses("a", 1)[0].state == "END"


async def test_of_a_model_that_was_never_asked_there_is_what_alerts_ask_for(make: Any, folders: Any) -> None:
    folders("a/1")
    world = make(a="")
    await world.repository.load_all(world.reports.append)
    text = world.metrics.render().decode()
    found = {line.partition("{")[0] for line in text.splitlines() if 'model="a"' in line}
    assert found == {"tensorgate_queued_requests", "tensorgate_model_load_seconds"}
    assert 'tensorgate_queued_requests{model="a",version="1"} 0.0' in text
    await world.repository.close()


async def test_examples_are_read_with_or_without_a_batch_dimension(make: Any, folders: Any, tmp_path: Path) -> None:
    folders("a/1", "b/1")
    (tmp_path / "row.json").write_text("[1, 2]")
    (tmp_path / "rows.json").write_text('{"x": [[1, 2], [3, 4]]}')
    world = make(a="example: row.json, max_batch_size: 4", b="example: rows.json, max_batch_size: 4")
    await world.repository.load_all(world.reports.append)
    shapes = [world.router.resolve(ModelRef(name)).example_inputs["x"].shape for name in ("a", "b")]
    assert shapes == [(1, 2), (2, 2)]
    assert world.router.resolve(ModelRef("a")).example_inputs["x"].dtype == np.float32
    await world.repository.close()


def test_labels_are_lines_and_nothing_else(tmp_path: Path) -> None:
    """A carriage return is part of its label, an empty line is one, and only \\n ends one."""
    file = tmp_path / "labels.txt"
    for content, labels in [
        (b"cat\r\ndog\n", ("cat\r", "dog")),
        ("a\n\nc\u2028d\x0be".encode(), ("a", "", "c\u2028d\x0be")),
        (b"one", ("one",)),
    ]:
        file.write_bytes(content)
        assert _lines(file) == labels
