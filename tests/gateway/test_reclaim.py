"""What unloaded models have left is given back: once for several, off the loop, and never in the way of an end."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from waiting import Clock, until

from tensorgate.backends.execution import failures
from tensorgate.gateway import app
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.models import loaded_models

MODEL = """
TABLE = {}

class Model:
    def __init__(self, context):
        self.table = TABLE

    def infer(self, inputs, request):
        return {"y": inputs["x"]}

class Broken:
    def __init__(self, context):
        raise ValueError("no weights")

    def infer(self, inputs, request):
        return {}
"""
MODULE = "tensorgate_model_"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., App]:
    (tmp_path / "model.py").write_text(MODEL)
    tensor = {"datatype": "FP32", "shape": [-1]}
    monkeypatch.setattr(loaded_models, "RECLAIM_AFTER_S", 0.05)

    def make(*models: str) -> App:
        entry = {
            "backend": "python",
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor}],
        }
        named = {name: entry | {"path": f"model.py:{name.rstrip('123')}"} for name in models}
        control = {"mode": "explicit", "load": ["*"]}
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump({"model_control": control, "models": named}))
        kinds = registries()
        return App(load_config(tmp_path / "gateway.yaml", kinds), kinds)

    return make


@pytest.fixture
def reclaimed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which memory was given back."""
    threads: list[str] = []

    def reclaim() -> None:
        threads.append(threading.current_thread().name)

    monkeypatch.setattr(app, "reclaim_memory", reclaim)
    return threads


async def test_models_that_leave_together_cost_one_look(start: Any, reclaimed: list[str], clock: Clock) -> None:
    made = start("Model1", "Model2", "Model3")
    await made.load(lambda report: None)
    await clock.advance(1)
    assert reclaimed == []
    await asyncio.gather(made.repository.unload("Model1"), made.repository.unload("Model2"))
    await until(lambda: made.repository._reclaiming)
    await clock.advance(0.1)
    await until(lambda: reclaimed)
    await clock.advance(1)
    assert len(reclaimed) == 1
    await made.repository.load("Model3")  # anew: what served before leaves
    await until(lambda: made.repository._reclaiming)
    await clock.advance(0.1)
    await until(lambda: len(reclaimed) == 2)
    assert threading.main_thread().name not in reclaimed
    await made.repository.unload("Model3")
    await made.drain()  # nobody waits for it, and it is not begun any more
    await clock.advance(1)
    assert len(reclaimed) == 2


async def test_a_python_model_takes_its_module_with_it(start: Any) -> None:
    before = {name for name in sys.modules if name.startswith(MODULE)}
    made = start("Model1", "Broken")
    await made.load(lambda report: None)
    (name,) = {name for name in sys.modules if name.startswith(MODULE)} - before
    module = weakref.ref(sys.modules[name])
    await made.repository.unload("Model1")
    await made.drain()
    assert name not in sys.modules
    gc.collect()
    assert module() is None


def test_glibc_gives_back_what_is_free() -> None:
    """With the settings of a server, which keep what is freed."""
    import subprocess

    program = """
import gc
import numpy as np
from tensorgate.gateway import app
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
app.tune_process()
arrays = [np.ones(1 << 17) for _ in range(64)]
top = np.ones(1 << 10)
full = rss()
del arrays
kept = rss()
app.reclaim_memory()
print(full - kept < 32 << 20, kept - rss() > 48 << 20)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=app_root())
    assert said.stdout.split() == ["True", "True"]


def app_root() -> Path:
    return Path(__file__).parents[2]


def test_pools_of_the_device_are_asked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []

    class Pool:
        def __init__(self, name: str) -> None:
            self.name = name

        def free_all_blocks(self) -> None:
            freed.append(self.name)

    class Runtime:
        selected = 0

        def setDevice(self, index: int) -> None:  # noqa: N802 - CUDA's name
            self.selected = index

    runtime = Runtime()

    class Library:
        cuda = SimpleNamespace(runtime=runtime)
        get_default_memory_pool = staticmethod(lambda: Pool(f"device {runtime.selected}"))
        get_default_pinned_memory_pool = staticmethod(lambda: Pool("pinned"))

    class Torch:
        class cuda:  # noqa: N801 - PyTorch's name
            is_initialized = staticmethod(lambda: True)
            empty_cache = staticmethod(lambda: freed.append("torch"))

    monkeypatch.setitem(sys.modules, "cupy", Library)
    monkeypatch.setitem(sys.modules, "torch", Torch)
    monkeypatch.setattr(failures, "in_use", {0, 2})
    app.reclaim_memory()
    assert sorted(freed) == ["device 0", "device 2", "pinned", "torch"]
