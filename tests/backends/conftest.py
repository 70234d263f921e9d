"""A world of Triton's Python models: from their texts to what their callers hear; and what operators compute with."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import numpy as np
import pytest
import yaml
from fake_cuda import POISON

from tensorgate.backends.execution.device import cuda_devices
from tensorgate.backends.execution.pinned import PinnedPool
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, OutputRequest
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.models.loaded_models import Snapshot

WITHIN_S = 10.0
X = {"name": "x", "datatype": "FP32", "shape": [-1]}
Y = {"name": "y", "datatype": "FP32", "shape": [-1]}


class World:
    """Models from texts, loaded by the real composition root, and asked as a dialect would ask."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: dict[str, Any] = {}
        self.app: App
        self.errors: dict[str, str] = {}

    def model(self, name: str, text: str, helper: str = "", **options: Any) -> None:
        """`text` is the class's body, or a whole file if it defines the class itself."""
        version = self.folder / name / "1"
        version.mkdir(parents=True)
        text = dedent(text)
        if "class TritonPythonModel" not in text:
            text = (
                "import json, threading, time, asyncio\nimport numpy as np\n"
                "import triton_python_backend_utils as pb_utils\n\n\n"
                "def x_of(request):\n    return pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()\n\n\n"
                "def y(array, **more):\n"
                "    return pb_utils.InferenceResponse([pb_utils.Tensor('y', np.asarray(array, np.float32))], **more)\n"
                "\n\nclass TritonPythonModel:\n" + indent(text, "    ")
            )
        (version / "model.py").write_text(text)
        if helper:
            (version / "helper.py").write_text(dedent(helper))
        defaults = {"backend": "triton_python", "path": name, "inputs": [X], "outputs": [Y]}
        self.models[name] = {key: value for key, value in (defaults | options).items() if value is not None}

    async def start(self) -> World:
        file = self.folder / "gateway.yaml"
        file.write_text(yaml.safe_dump({"models": self.models, "readiness": "lenient", "drain_seconds": 2}))
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)
        await self.app.load(lambda report: self.errors.update({report.name: report.error} if report.error else {}))
        return self

    def view(self, name: str) -> Any:
        return self.app.router.resolve(ModelRef(name))

    def submit(self, name: str, x: Any = (), *outputs: str, **facts: Any) -> PendingRequest:
        inputs = facts.pop("inputs", None) or {"x": np.asarray(x, np.float32)}
        view = self.view(name)
        job: PendingRequest = view.handle.submit(
            InferRequest(view, inputs, outputs=tuple(map(OutputRequest, outputs)), **facts)
        )
        return job

    async def all(self, name: str, x: Any = (), *outputs: str, **facts: Any) -> list[InferResponse]:
        async with asyncio.timeout(WITHIN_S):
            return [answer async for answer in self.submit(name, x, *outputs, **facts)]

    async def one(self, name: str, x: Any = (), *outputs: str, **facts: Any) -> InferResponse:
        (answer,) = await self.all(name, x, *outputs, **facts)
        return answer

    async def y(self, name: str, x: Any = (), **facts: Any) -> Any:
        return (await self.one(name, x, **facts)).outputs["y"].tolist()

    async def ys(self, name: str, x: Any = (), **facts: Any) -> list[Any]:
        return [answer.outputs["y"].tolist() for answer in await self.all(name, x, **facts)]

    async def error(self, name: str, x: Any = (), **facts: Any) -> GatewayError:
        with pytest.raises(GatewayError) as caught:
            await self.all(name, x, **facts)
        return caught.value

    async def close(self) -> None:
        """Unload everything that still is loaded."""
        async with asyncio.timeout(WITHIN_S):
            await self.app.repository.close()
        self.app.repository.snapshot = Snapshot()

    def executor(self, name: str, number: int = 0) -> Any:
        return self.app.repository.snapshot.models[name][1].computation.executors[number]

    def python(self, name: str) -> Any:
        """The user's object."""
        return self.executor(name)._backend._instance._model


HAS_GPU = cuda_devices() > 0
WITH = ["numpy", pytest.param("cupy", marks=pytest.mark.gpu)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where there is no GPU, its tests are not there: a test that skips itself looks like one that passed."""
    if not HAS_GPU:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("gpu")])
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(scope="session", params=WITH)
def xp(request: pytest.FixtureRequest) -> Any:
    """What operators compute with: NumPy, and CuPy where there is a GPU."""
    return importlib.import_module(request.param)


@pytest.fixture(autouse=True)
def _pinned_memory_that_is_given_back_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what still reads it, or copies there, gives wrong numbers."""
    give_back = PinnedPool.give_back

    def overwrite(pool: PinnedPool, size: int, address: int) -> None:
        ctypes.memset(address, POISON, size)
        give_back(pool, size, address)

    monkeypatch.setattr(PinnedPool, "give_back", overwrite)


Make = Callable[..., Awaitable[World]]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    if hasattr(made, "app"):
        await made.close()
