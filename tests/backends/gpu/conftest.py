"""What these tests have in common: where they compute, models made on the spot, and a gateway without doors for them.

Each check runs on the host everywhere, and on cuda:0 where there is a GPU: `place` is where. Tests of what only a GPU
has are marked `gpu` as a whole, and those that measure the whole GPU `alone`: nothing else may run there meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import yaml
from runtimes import CUDA, can_run, missing

from benchmarks import networks
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, OutputRequest
from tensorgate.gateway.contract.execution import Traffic
from tensorgate.gateway.models.loaded_models import Snapshot

PLACES = ["cpu", pytest.param(CUDA, marks=pytest.mark.gpu)]
ONNX_PLACES = PLACES if can_run("onnx") else PLACES[:1]
LIBRARIES = ("torch", "tensorflow")
"""Fixtures of these names are the modules: tests that ask for one that is not installed are not there."""
WITHIN_S = 50.0
FIRST_KERNELS_S = 180
"""A process compiles each kernel once, loads cuDNN's and cuBLAS', and shares the GPU with seven others meanwhile."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was not there and left its tests out, so that nobody takes them for passed."""
    for each in missing():
        terminalreporter.write_line(f"GPU tests left out: {each}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = {name for name in LIBRARIES if importlib.util.find_spec(name) is None}
    out = [item for item in items if absent.intersection(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
    for item in items:
        if item.get_closest_marker("gpu") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FIRST_KERNELS_S))


@pytest.fixture
def torch() -> Any:
    return importlib.import_module("torch")


@pytest.fixture
def tensorflow() -> Any:
    return importlib.import_module("tensorflow")


@pytest.fixture(params=ONNX_PLACES)
def onnx_place(request: pytest.FixtureRequest) -> Any:
    """cpu or cuda:0, where ONNX Runtime can compute."""
    return request.param


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Any:
    """cpu or cuda:0."""
    return request.param


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For models that tests share; each makes them under a name of its own."""
    return tmp_path_factory.mktemp("models")


WIDTHS = (64, 512, 512, 16)


@pytest.fixture(scope="session")
def mlp(folder: Path) -> Path:
    """A model's folder, its version 1 in ONNX: FP32 x [N, 64] -> y [N, 16]."""
    networks.mlp(folder / "mlp/1", WIDTHS)
    return folder / "mlp"


@pytest.fixture(scope="session")
def script(folder: Path) -> Path:
    """The same shapes as TorchScript; other weights."""
    torch_networks = importlib.import_module("benchmarks.torch_networks")
    torch_networks.save(torch_networks.mlp(WIDTHS), folder / "script/1", np.zeros((2, WIDTHS[0]), np.float32))
    return folder / "script"


class Models:
    """Models by the real composition root, asked as a dialect would ask."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app: App

    def write(self, name: str, text: str) -> str:
        """A file with classes; its name for a `path`."""
        (self.folder / name).write_text("import numpy as np\n\n" + dedent(text))
        return name

    async def load(self, models: Mapping[str, Mapping[str, Any]], **sections: Any) -> None:
        """All of them; raises AssertionError with what went wrong."""
        file = self.folder / "gateway.yaml"
        file.write_text(yaml.safe_dump({"models": dict(models), "drain_seconds": 2, **sections}))
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)
        errors: dict[str, str] = {}
        await self.app.load(lambda report: errors.update({report.name: report.error} if report.error else {}))
        assert errors == {}

    async def ask(self, name: str, *outputs: str | OutputRequest, **inputs: Any) -> InferResponse:
        """The one answer."""
        view = self.app.router.resolve(ModelRef(name))
        wanted = tuple(each if isinstance(each, OutputRequest) else OutputRequest(each) for each in outputs)
        async with asyncio.timeout(WITHIN_S):
            (answer,) = [each async for each in view.handle.submit(InferRequest(view, inputs, outputs=wanted))]
        return answer

    def traffic(self, *names: str) -> Traffic:
        """What these models have copied so far."""
        total = Traffic()
        for name in names:
            total += self.app.repository.snapshot.models[name][1].computation.traffic()
        return total

    async def close(self) -> None:
        await self.app.repository.close()
        self.app.repository.snapshot = Snapshot()


@pytest.fixture
async def models(tmp_path: Path) -> AsyncIterator[Models]:
    made = Models(tmp_path)
    yield made
    if hasattr(made, "app"):
        await made.close()
