"""The raw model that engines are compared with: what it gives, on the host, and on a GPU of paper in every order that
CUDA allows.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cuda import Cupy, Memory, orders

from benchmarks import networks, raw
from benchmarks.engine_room import Plan
from tensorgate.backends.onnx.providers import CUDA
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

ROWS, WIDTH = 3, 16
X = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)


def plan(path: Path, device: str, **options: Any) -> Plan:
    x, y = (TensorSpec(name, DTYPES["FP32"], (-1, WIDTH)) for name in ("x", "y"))
    return Plan("onnx", path, device, ROWS, x, y, options)


def test_on_the_host(tmp_path: Path) -> None:
    made = raw.open_raw(plan(networks.tiny(tmp_path / "tiny", WIDTH), "cpu", intra_op_threads=1), X)
    made.run(2)
    made.run_from_host(2)
    added = made.answer() - X
    np.testing.assert_allclose(added, np.broadcast_to(added[:1], added.shape), atol=1e-6)


class Session:
    """y = 2 x on the stream that the provider was given, later."""

    def __init__(self, cupy: Any, options: dict[str, str]) -> None:
        self._world = cupy.world
        self._stream = options["user_compute_stream"]
        self.inputs: tuple[Any, ...] = ()
        self.outputs: tuple[Any, ...] = ()

    def get_providers(self) -> list[str]:
        return [CUDA]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(shape=["N", WIDTH])]

    def io_binding(self) -> Any:
        return SimpleNamespace(
            bind_input=lambda *place: setattr(self, "inputs", place),
            bind_output=lambda *place: setattr(self, "outputs", place),
        )

    def run_with_iobinding(self, binding: Any, settings: Any) -> None:
        assert settings.get_run_config_entry("disable_synchronize_execution_providers") == "1"
        (*given, into), (*wanted, out) = self.inputs, self.outputs
        assert given == ["x", "cuda", 0, np.float32, X.shape]
        assert wanted == ["y", "cuda", 0, np.float32, X.shape]
        (stream,) = [each for each in self._world.streams if str(each.ptr) == self._stream]
        self._world.enqueue(stream, ("do", lambda: np.multiply(seen(into), 2, out=seen(out))))


def seen(address: int) -> Any:
    return np.frombuffer((ctypes.c_uint8 * X.nbytes).from_address(address), np.float32).reshape(X.shape)


@pytest.mark.parametrize("order", [*orders()])
def test_on_a_gpu(order: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has the options that the engine's session has, and each answer is of the batch that went in."""
    fake = Cupy(order)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    given: dict[str, str] = {}
    kept: list[Any] = []

    def pinned(cupy: Any, like: Any) -> Any:
        """Memory of the host that this GPU knows."""
        kept.append(Memory(cupy.world, like.nbytes, None))
        return seen(kept[-1].block.bytes.ctypes.data)

    def session(path: Path, provider: Any, threads: int) -> Session:
        given.update(provider[1])
        return Session(fake, given)

    monkeypatch.setattr(raw, "_session", session)
    monkeypatch.setattr(raw, "_pinned", pinned)
    made = raw.open_raw(plan(tmp_path, "cuda:0", tf32=False, convolution_search="exhaustive"), X)
    assert (given["use_tf32"], given["cudnn_conv_algo_search"]) == ("0", "EXHAUSTIVE")
    made.run(2)
    np.testing.assert_array_equal(made.answer(), X * 2)
    made.run_from_host(2)
    np.testing.assert_array_equal(made.answer(), X * 2)
