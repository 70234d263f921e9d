"""What wrk says, and what is made of it."""

from typing import Any

import orjson
import pytest

from benchmarks.servers import Failed
from benchmarks.wrk import ERRORS, Round, find_wrk, read_round

QUIET = {"requests": 2000, "duration_us": 500_000, "p50_us": 700, "p99_us": 1900, **dict.fromkeys(ERRORS, 0)}


def output(**changes: Any) -> str:
    """wrk's own report, then the line of post.lua."""
    return (
        "Running 1s test @ http://127.0.0.1:18000/\n  1 threads and 8 connections\n"
        + orjson.dumps(QUIET | changes).decode()
    )


def test_figures() -> None:
    assert read_round(output(), 160_000.0, "gateway") == Round(4000.0, 700, 1900, 80.0)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_ends_the_comparison(error: str) -> None:
    with pytest.raises(Failed, match=f"gateway.*{error}.*3"):
        read_round(output(**{error: 3}), 1.0, "gateway")


def test_silence_ends_it_too() -> None:
    with pytest.raises(Failed, match="answered nothing"):
        read_round(output(requests=0), 1.0, "gateway")


def test_a_missing_wrk_comes_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Failed, match="apt install wrk"):
        find_wrk()
