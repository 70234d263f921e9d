"""The engine's benchmarks, as commands: on the host, with turns so short that only the words count."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import engine, gpu
from benchmarks.engine import CASES, Round, line
from benchmarks.engine_room import Pressed
from benchmarks.table import table
from tensorgate.backends.execution.device import cuda_devices
from tensorgate.gateway.contract.execution import Traffic

SHORT = ("--rounds", "1", "--seconds", "0.02")


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the commands set for their process."""
    before = sys.getswitchinterval()
    monkeypatch.setattr(engine, "tune_process", lambda: None)
    yield
    sys.setswitchinterval(before)


def test_columns_line_up() -> None:
    assert table(("name", "us"), [("a", "1.5"), ("longer", "12.5")]) == "name      us\na        1.5\nlonger  12.5"


def test_what_the_engine_adds(capsys: pytest.CaptureFixture[str]) -> None:
    engine.main(["--cases", "tiny", *SHORT])
    head, tiny, marks = capsys.readouterr().out.splitlines()
    assert head.startswith("model  batch  alone: session us  engine us  added us")
    assert tiny.split()[:2] == ["tiny", "64"]
    assert marks.startswith("must be reached")


@pytest.mark.parametrize(
    ("name", "batch", "added", "ratio", "reached"),
    [
        ("tiny", 64, 50, 0.01, True),
        ("tiny", 64, 70, 0.01, False),
        ("mlp", 32, 90, 0.5, True),
        ("ranker", 32, 90, 0.91, True),
        ("ranker", 32, 5, 0.5, False),
        ("ranker", 64, 5, 0.5, True),
    ],
)
def test_marks(name: str, batch: int, added: float, ratio: float, reached: bool) -> None:
    (case,) = [each for each in CASES if (each.name, each.batch) == (name, batch)]
    batch_us = 1000.0
    rate = ratio * case.batch / batch_us * 1e6
    turn = Round(10, 10 + added, batch_us, batch_us, Pressed(rate, 5, Traffic()))
    figures, found = line(case, [turn])
    assert found is reached
    assert (figures[-1] == "missed") is not reached
    assert f"{ratio:.2f}" in figures


def test_the_gpus_benchmark_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cpu", "--backends", "onnx", *SHORT]) == 0
    said = capsys.readouterr().out
    assert all(f"\n{name}: " in said for name in gpu.SECTIONS)
    assert said.splitlines()[-1] == "everything ran"
    resnet = [text.split() for text in said.splitlines() if text.startswith("onnx resnet50")]
    assert len(resnet) == 3 + 1 + 1  # three ways to ask, latency, memory


def test_a_section_that_fails_is_told_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(gpu, "open_raw", refuse)
    wanted = ["throughput", "crossover"]
    assert gpu.main(["--device", "cpu", "--backends", "onnx", "--sections", *wanted, *SHORT]) == 2
    said = capsys.readouterr().out
    assert "FAILED: onnx resnet50 4: RuntimeError: no room" in said
    assert "FAILED: onnx mlp 16: RuntimeError: no room" in said
    assert "32 x 32" in said


@pytest.mark.skipif(cuda_devices() > 0, reason="there is a GPU")
def test_without_a_gpu_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    said = capsys.readouterr().out
    assert "missing: a GPU: CuPy" in said
    assert "FAILED: there is no GPU to be used here" in said


def test_marks_on_a_gpu() -> None:
    report = gpu.Report(judged=True)
    assert [report.mark("rows/s", value, 0.95) for value in (0.96, 0.94)] == ["reached", "missed"]
    assert report.missed == ["rows/s: 0.94, must reach 0.95"]
    assert gpu.Report(judged=False).mark("rows/s", 0.1, 0.95) == ""
