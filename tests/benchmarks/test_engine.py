"""The engine's benchmarks, as commands: on the host, with turns so short that only the words count."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from benchmarks import engine
from benchmarks.engine import CASES, Round, line
from benchmarks.engine_room import Pressed
from benchmarks.table import table
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
    turn = Round(10, 10 + added, batch_us, batch_us, Pressed(rate, 5, Traffic(), 1.0))
    figures, found = line(case, [turn])
    assert found is reached
    assert (figures[-1] == "missed") is not reached
    assert f"{ratio:.2f}" in figures
