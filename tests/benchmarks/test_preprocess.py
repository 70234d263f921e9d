"""The comparison of ways to prepare pixels: its contenders agree, and its table says who is ahead."""

import numpy as np

from benchmarks.preprocess import Line, crossover, measure, table


def test_the_contenders_agree() -> None:
    line = measure(2, 1, np)
    assert line.rows == 2
    assert min(line.naive, line.steps, line.fused) > 0
    assert table([line]).endswith("\nno GPU here")


def test_the_table_of_a_machine_with_a_gpu() -> None:
    lines = [
        Line(1, 4.0, 2.0, 0.1, 0.01, 0.2, 500.0, 2000.0),
        Line(8, 40.0, 20.0, 1.0, 0.05, 0.5, 1700.0, 2000.0),
    ]
    head, first, second, last = table(lines).splitlines()
    assert head.split()[-2:] == ["of", "copy"]
    assert first.split()[-1] == "0.25"
    assert second.split() == [
        "8",
        "40.000",
        "20.000",
        "1.000",
        "40.0",
        "20.0",
        "0.0500",
        "0.5000",
        "1700",
        "2000",
        "0.85",
    ]
    assert last == "with its copy, the GPU is ahead of the host from 8 rows on"
    assert crossover(lines[:1]) == "with its copy, the GPU is never ahead of the host"
