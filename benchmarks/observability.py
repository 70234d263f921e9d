"""What it costs to be seen: small requests over HTTP, with everything off, with metrics, with the access log, and with
OpenTelemetry for calls that are not sampled.

Each contender is a gateway on one core; wrk presses it from another. They take turns within each round, and the table
has medians over rounds. `/ off` is requests per second divided by those of `off` in the same round, `CPU / off` the
same of processor time per request: the steadier figure on a machine that does other things too.

The log and metrics together may cost a tenth: where they take more processor time, it says so.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from benchmarks.contest import Contest
from benchmarks.json_http import cases
from benchmarks.observed import LEVELS
from benchmarks.report import Rounds, cost

FIRST_PORT = 18020
EPILOG = """
contenders:
  off      no metrics: what counts for Prometheus and for statistics is replaced by nothing, here only
  metrics  the gateway as it is without further settings
  log      with access_log: a line for each call, into a file
  traced   the same, and opentelemetry with a ratio of 0: what calls cost that are not sampled (needs the extra otel)

examples:
  python -m benchmarks.observability
  python -m benchmarks.observability --rounds 9 --cases tf_serving/16
"""


def commands() -> dict[str, tuple[int, list[str]]]:
    """contender -> its port, how to start it"""
    ports = {level: FIRST_PORT + number for number, level in enumerate(LEVELS)}
    return {
        level: (port, [sys.executable, "-m", "benchmarks.observed", level, str(port)]) for level, port in ports.items()
    }


SMALL = {name: case for name, case in cases().items() if name.endswith("/16")}
USUAL = len(LEVELS) if find_spec("opentelemetry") else len(LEVELS) - 1
MOST = 1.10
"""Processor time with `log`, of that with `off`."""


def verdict(results: Rounds) -> str:
    """Whether the log and metrics cost no more than they may."""
    costs = {case: cost(of["log"], of["off"]) for case, of in results.items() if {"log", "off"} <= of.keys()}
    missed = [f"{case} {ratio:.2f}" for case, ratio in costs.items() if ratio > MOST]
    return f"missed, more than {MOST:.2f} times the processor time of off: {', '.join(missed)}" if missed else ""


CONTEST = Contest("observability", __doc__ or "", EPILOG, commands(), SMALL, usual=USUAL, verdict=verdict)


if __name__ == "__main__":
    CONTEST.main()
