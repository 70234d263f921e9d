"""Whole gateways in processes of their own: what an install brings is enough, and their metrics tell of the GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from runtimes import CUDA
from serving import HOST, ROOT, Gateway, running

ROW = {"datatype": "FP32", "shape": [-1, 64]}
CLASS = """
class Twice:
    def __init__(self, context):
        self.xp = context.xp

    def infer(self, inputs, request):
        assert isinstance(inputs["x"], self.xp.ndarray)
        return {"y": inputs["x"] * 2}
"""


def test_nothing_else_has_to_be_imported_first(onnx_place: str, mlp: Path, tmp_path: Path) -> None:
    """ONNX Runtime opens CUDA's libraries by name: they are found in a process that has neither torch nor anything else
    that would have opened them.
    """
    file = tmp_path / "gateway.yaml"
    model = {"backend": "onnx", "path": str(mlp), "device": onnx_place, "max_batch_size": 8}
    bind = {"bind": f"{HOST}:0"}
    file.write_text(yaml.safe_dump({"listen": {"http": [bind]}, "models": {"m": model}}))
    code = (
        "import sys; from tensorgate.gateway.cli.main import main; "
        f"status = main(['check', '--load', {str(file)!r}]); print(status, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["0 False"], f"{done.stdout}{done.stderr}"


def ask(gateway: Gateway, x: Any) -> Any:
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
    (output,) = gateway.post("/v2/models/m/infer", {"inputs": [tensor]}).json["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def test_metrics_tell_of_the_gpu(place: str, tmp_path: Path) -> None:
    """One copy in and one out per batch, as many bytes as the tensors have; memory and load where it tells them."""
    (tmp_path / "model.py").write_text(CLASS)
    model = {"backend": "python", "path": "model.py:Twice", "device": place, "max_batch_size": 8}
    model |= {"inputs": [{"name": "x", **ROW}], "outputs": [{"name": "y", **ROW}]}
    bind = {"bind": f"{HOST}:0"}
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": {"http": [bind], "metrics": dict(bind)}, "models": {"m": model}}))
    x = np.random.default_rng(0).standard_normal((8, 64), np.float32)
    with running(file, python=Path(sys.executable)) as gateway:
        before = gateway.metrics()
        for _ in range(5):
            np.testing.assert_array_equal(ask(gateway, x), x * 2)
        series = gateway.metrics()

        def grown(name: str, **labels: str) -> float:
            return series.total(name, **labels) - before.total(name, **labels)

        if place == CUDA:
            assert grown("tensorgate_device_batches_total") == 5
            for direction in ("in", "out"):
                assert grown("tensorgate_device_copies_total", direction=direction) == 5
                assert grown("tensorgate_device_copied_bytes_total", direction=direction) == 5 * x.nbytes
            used, total = (series.total(f"tensorgate_gpu_memory_{each}bytes") for each in ("used_", ""))
            assert 0 < used < total
            assert {value[:4] for value in series.values("gpu_uuid")} <= {"GPU-", "MIG-"}
            assert 0 <= series.total("tensorgate_gpu_utilization_ratio") <= 1
        else:
            assert not [name for name in series.names() if "device" in name or "gpu" in name]
        assert gateway.stop() == 0, gateway.said
