"""`tensorgate serve model.onnx`: from a file to an answer in one command, in one process and by doors."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest
from forks import ROOT
from serving import Gateway, started

SCORER = """
class Scorer:
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1])}
    max_batch_size = 8

    def infer(self, inputs, request):
        return {"y": inputs["x"].sum(axis=1)}
"""
PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    shutil.copy(ROOT / "config/demo/models/half_plus_two/1/model.onnx", tmp_path / "half.onnx")
    (tmp_path / "scorer.py").write_text(SCORER)
    return [str(tmp_path / "half.onnx"), f"sums={tmp_path / 'scorer.py'}"]


def answers(gateway: Gateway) -> None:
    assert gateway.post("/v1/models/half:predict", {"inputs": [1.0, 2.0]}).json == {"outputs": [2.5, 3.0]}
    assert gateway.post("/v1/models/sums:predict", {"instances": [[1.0, 2.0]]}).json == {"predictions": [3.0]}


@pytest.mark.parametrize("doors", ["1", "2"])
def test_models_are_served_without_a_configuration(files: list[str], doors: str, tmp_path: Path) -> None:
    with started(tmp_path / "log", "--doors", doors, *PORTS, *files, python=Path(sys.executable)) as gateway:
        gateway.wait_until_ready()
        answers(gateway)
        assert gateway.stop() == 0


def test_what_was_written_is_served_from_then_on(files: list[str], tmp_path: Path) -> None:
    """And it is what a reload reads."""
    file = tmp_path / "gateway.yaml"
    with started(tmp_path / "log", *PORTS, *files, "--write-config", str(file)) as gateway:
        gateway.wait_until_ready()
        assert f"wrote {file}; from now on: tensorgate serve {file}" in gateway.said
        file.write_text(file.read_text().replace("sums:", "totals:"))
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_until_said("models that stay as they are: 1")
        assert gateway.post("/v1/models/totals:predict", {"instances": [[1.0, 2.0]]}).json == {"predictions": [3.0]}
        assert gateway.stop() == 0
    with started(tmp_path / "again", str(file)) as gateway:
        gateway.wait_until_ready()
        assert gateway.post("/v1/models/half:predict", {"inputs": [1.0, 2.0]}).json == {"outputs": [2.5, 3.0]}
        assert gateway.stop() == 0
