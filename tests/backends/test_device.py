"""What CuPy tells of a GPU, read without one: a stand-in gives what CuPy documents."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from backends.device import gpu_memory


def cupy(**changes: Any) -> Any:
    given = {
        "Device": lambda index: SimpleNamespace(mem_info=(600 + index, 1000)),
        "runtime": SimpleNamespace(getDeviceProperties=lambda index: {"uuid": bytes(range(16))}),
    }
    return SimpleNamespace(cuda=SimpleNamespace(**(given | changes)))


def test_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy())
    assert gpu_memory("cuda:3") == ("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", 1000, 397)
    assert gpu_memory("cpu") is None


def broken(index: int) -> Any:
    raise RuntimeError("no driver")


@pytest.mark.parametrize("module", [None, cupy(Device=broken)], ids=["no CuPy", "no driver"])
def test_what_cannot_be_asked_is_not_told(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", module)
    assert gpu_memory("cuda:0") is None
