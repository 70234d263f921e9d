"""What measures shortcuts: every row has a request, which both sides answer alike."""

from pathlib import Path

import pytest

from benchmarks import shortcuts
from benchmarks.servers import Failed
from benchmarks.wrk import Round
from tensorgate.gateway.contract.shortcuts import SHORTCUTS

CASES = shortcuts.cases()


def test_every_shortcut_has_a_request() -> None:
    assert CASES.keys() == SHORTCUTS.keys()


def test_one_side_goes_without(tmp_path: Path) -> None:
    for name in SHORTCUTS:
        short, plain = shortcuts.commands(name, tmp_path)
        assert name in plain[1]
        assert name not in short[1]


def seen(cpu: float, rate: float) -> Round:
    return Round(rate, 1.0, 1.0, cpu)


def test_what_a_line_says() -> None:
    rounds = [(seen(100, 1000), seen(150, 800)), (seen(100, 1000), seen(120, 1000)), (seen(100, 1000), seen(200, 500))]
    name, what, short, plain, saves, slower, mark = shortcuts.line("bare_runs", CASES["bare_runs"], rounds)
    assert (name, what, short, plain, saves, slower, mark) == (
        "bare_runs",
        "V2 gRPC, 16 floats",
        "100",
        "150",
        "50%",
        "25%",
        "",
    )
    assert shortcuts.line("x", CASES["bare_runs"], [(seen(100, 100), seen(102, 100))])[-1] == "less than 3 %"


def test_a_missing_tool_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise Failed("wrk is missing")

    monkeypatch.setattr(shortcuts.wrk, "find_wrk", missing)
    with pytest.raises(SystemExit, match="failed: wrk is missing"):
        shortcuts.main(["--only", "bare_runs"])
