"""What it costs to be seen: small requests over HTTP, with everything off, with metrics, with all calls recorded, with
the access log, and with OpenTelemetry for calls that are not sampled.

Each contender is a gateway on one core; wrk presses it from another. They take turns within each round, and the table
has medians over rounds. `/ off` is requests per second divided by those of `off` in the same round, `CPU / off` the
same of processor time per request: the steadier figure on a machine that does other things too.

The log and metrics together may cost a tenth, and recording a twentieth of what there is with metrics: where they take
more processor time, it says so.
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
  record   with record: calls and their answers, into files that rotate, as many as max_load allows
  all      the same with max_load 1: every call, whatever it costs
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
USUAL = len(LEVELS) if find_spec("opentelemetry") else LEVELS.index("traced")
MOST = (("log", "off", 1.10), ("record", "metrics", 1.05))
"""Processor time with the first, of that with the second."""


def verdict(results: Rounds) -> str:
    """Whether the log and metrics cost no more than they may."""
    missed = []
    for level, beside, most in MOST:
        costs = {case: cost(of[level], of[beside]) for case, of in results.items() if {level, beside} <= of.keys()}
        over = ", ".join([f"{case} {ratio:.2f}" for case, ratio in costs.items() if ratio > most])
        if over:
            missed.append(f"missed: {level} takes more than {most:.2f} times the processor time of {beside}: {over}")
    return "\n".join(missed)


CONTEST = Contest("observability", __doc__ or "", EPILOG, commands(), SMALL, usual=USUAL, verdict=verdict)


if __name__ == "__main__":
    CONTEST.main()
