"""Medians, ratios and the table."""

import pytest

from benchmarks import report
from benchmarks.observability import verdict
from benchmarks.wrk import Round


def rounds(*rates: float) -> list[Round]:
    return [Round(rate, 1000, 2000, 50) for rate in rates]


def test_each_figure_has_its_own_median() -> None:
    assert report.middle([Round(1, 30, 9, 4), Round(2, 10, 8, 6), Round(3, 20, 7, 5)]) == Round(2, 20, 8, 5)


def test_ratios_are_taken_within_rounds() -> None:
    """The machine halves its speed in the last rounds; twice as fast stays twice as fast."""
    text = report.table({"v2/16": {"gateway": rounds(200, 100, 100), "bare": rounds(100, 50, 50)}})
    head, gateway, bare = (line.split() for line in text.splitlines())
    assert head[:3] == ["case", "contender", "requests/s"]
    assert gateway == ["v2/16", "gateway", "100", "1.00", "2.00", "50", "2.00"]
    assert bare == ["v2/16", "bare", "50.0", "1.00", "2.00", "50", "1.00"]


def test_columns_line_up() -> None:
    lines = report.table({"a": {"bare": rounds(12345)}, "longer/1": {"precomputed": rounds(1)}}).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "12,345" in lines[1]


def test_rounds_that_do_not_pair_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        report.table({"v2/16": {"gateway": rounds(1, 2), "bare": rounds(1)}})


def test_processor_time_stands_beside_the_rate_of_who_is_off() -> None:
    results = {"v2/16": {"off": [Round(100, 1, 1, 50)] * 3, "log": [Round(80, 1, 1, cpu) for cpu in (55, 57, 90)]}}
    head, off, log = report.table(results).splitlines()
    assert head.endswith("/ off  CPU / off")
    assert (off.split()[-2:], log.split()[-2:]) == (["1.00", "1.00"], ["0.80", "1.14"])
    assert verdict(results) == "missed: log takes more than 1.10 times the processor time of off: v2/16 1.14"
    assert verdict({"v2/16": {"off": results["v2/16"]["off"], "log": results["v2/16"]["off"]}}) == ""
