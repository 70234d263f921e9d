"""What the rounds say: medians, ratios, a table for people and a file for programs."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.wrk import Round

LEFT = 2  # columns of words
RESULTS = Path(__file__).parent / "results"
BASES = ("bare", "precomputed", "echo", "off")  # contenders that the others are divided by
BY_CPU = ("off",)
"""Those to which one compares processor time, too."""
HEAD = ("case", "contender", "requests/s", "p50 ms", "p99 ms", "CPU us/request")

Rounds = Mapping[str, Mapping[str, Sequence[Round]]]
"""case -> contender -> rounds, in the order in which they were run."""


def middle(rounds: Sequence[Round]) -> Round:
    """The median of each figure."""
    columns = zip(*(each.facts().values() for each in rounds), strict=True)
    return Round(*(median(column) for column in columns))


def table(results: Rounds) -> str:
    bases = [base for base in BASES if any(base in contenders for contenders in results.values())]
    by_cpu = [base for base in bases if base in BY_CPU]
    lines: list[tuple[str, ...]] = [(*HEAD, *(f"/ {base}" for base in bases), *(f"CPU / {base}" for base in by_cpu))]
    for case, contenders in results.items():
        for name, rounds in contenders.items():
            ratios = [_ratio(rounds, contenders.get(base)) for base in bases]
            costs = [cost(rounds, contenders[base]) for base in by_cpu if base in contenders]
            lines.append((case, name, *_figures(middle(rounds)), *ratios, *(f"{one:.2f}" for one in costs)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(_align(line, widths) for line in lines)


def _figures(one: Round) -> tuple[str, ...]:
    rate = f"{one.requests_per_s:,.0f}" if one.requests_per_s >= 100 else f"{one.requests_per_s:.1f}"
    return rate, f"{one.p50_us / 1000:.2f}", f"{one.p99_us / 1000:.2f}", f"{one.cpu_us_per_request:,.0f}"


def _ratio(rounds: Sequence[Round], base: Sequence[Round] | None) -> str:
    """The median of the ratios within each round: what slows the whole machine for a while slows both sides."""
    if base is None:
        return "-"
    pairs = zip(rounds, base, strict=True)
    return f"{median(one.requests_per_s / other.requests_per_s for one, other in pairs):.2f}"


def cost(rounds: Sequence[Round], base: Sequence[Round]) -> float:
    """The same of processor time per request: what else the machine does shows less in it."""
    pairs = zip(rounds, base, strict=True)
    return median(one.cpu_us_per_request / other.cpu_us_per_request for one, other in pairs)


def _align(line: Sequence[str], widths: Sequence[int]) -> str:
    words = [text.ljust(width) for text, width in zip(line[:LEFT], widths, strict=False)]
    figures = [text.rjust(width) for text, width in zip(line[LEFT:], widths[LEFT:], strict=True)]
    return "  ".join(words + figures)


def save(contest: str, results: Rounds, options: Mapping[str, Any]) -> Path:
    """Every round and the medians, below benchmarks/results/. -> the file"""
    facts = {
        "rounds": {
            case: {name: [one.facts() for one in rounds] for name, rounds in contenders.items()}
            for case, contenders in results.items()
        },
        "medians": {
            case: {name: middle(rounds).facts() for name, rounds in contenders.items()}
            for case, contenders in results.items()
        },
    }
    return keep(contest, facts, options)


def keep(contest: str, facts: Mapping[str, Any], options: Mapping[str, Any]) -> Path:
    """What was measured, and what made it, below benchmarks/results/. -> the file"""
    now = datetime.now(UTC)
    content = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "options": dict(options),
        "finished": now.isoformat(timespec="seconds"),
        "machine": machine(),
        **facts,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{contest}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def machine() -> dict[str, Any]:
    packages = ("aiohttp", "grpcio", "protobuf", "uvloop", "orjson", "numpy")
    return {
        "cpu": _cpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
        "commit": _commit(),
    }


def _version(package: str) -> str:
    """Empty where it is not installed: some comparisons do without."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """The commit that was measured, `-dirty` if the tree was changed; empty outside git."""
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip()
