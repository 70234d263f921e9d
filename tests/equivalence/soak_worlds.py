"""World after world, as long as you like: `make soak`, or

    python tests/equivalence/soak_worlds.py --minutes 60
    python tests/equivalence/soak_worlds.py --world 17 --requests 3     the same world and the same requests again

Every world is another configuration, served with and without shortcuts; hypothesis draws the requests. The first
difference ends it with exit status 1, and is told with all that is needed to see it again: world, requests, models,
bytes. `--go-on` counts them all instead. `--plain NAME,NAME` looks at some shortcuts alone.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import paths  # noqa: F401  (before what lies elsewhere)
from bursts import bursts, tour
from form import Ask
from hypothesis import HealthCheck, Phase, given, seed, settings
from questions import questions
from rig import Difference, Rig, rig
from worlds import make_world

WORLD_S = 120.0
"""So long one world is asked; another takes ten seconds to start."""
AT_A_TIME = 20


class Soak:
    """`differences` counts them by their first line."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.begun = time.monotonic()
        self.until = self.begun + arguments.minutes * 60
        self.differences: Counter[str] = Counter()
        self.worlds = self.asked = self.judged = 0

    def run(self) -> int:
        number = self.arguments.world
        while True:
            world = make_world(secrets.randbelow(1 << 30) if number is None else number, self.arguments.models)
            with (
                tempfile.TemporaryDirectory() as folder,
                rig(world, Path(folder), self.arguments.plain) as pair,
            ):
                self.worlds += 1
                self._world(pair)
                self.asked, self.judged = self.asked + pair.asked, self.judged + pair.judged
            self._tell(f"world {world.seed} is done")
            if time.monotonic() >= self.until or number is not None or (self.differences and not self.arguments.go_on):
                break
        return 1 if self.differences else 0

    def _world(self, pair: Rig) -> None:
        start = self.arguments.requests
        until = min(self.until, time.monotonic() + WORLD_S)
        self._try(lambda: pair.compare(questions(pair.world)))
        for ask in tour(pair.world, secrets.randbelow(1 << 30) if start is None else start):
            self._try(lambda ask=ask: pair.judge([ask]))  # type: ignore[misc]
            if self._is_over(until):
                return
        numbers = iter(range(1 << 30))
        while not self._is_over(until):
            number = secrets.randbelow(1 << 30) if start is None else start + next(numbers)
            self._try(lambda number=number: pair.judge_callers(range(number, number + AT_A_TIME)))  # type: ignore[misc]
            self._bursts(pair, number)
            if start is not None and time.monotonic() >= self.until:
                break
        self._try(pair.check_mirrors)

    def _bursts(self, pair: Rig, number: int) -> None:
        @seed(number)
        @settings(
            max_examples=AT_A_TIME,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(bursts(pair.world))  # drawn whatever has been found: hypothesis wants the same draws of the same choices
        def some(asks: list[Ask]) -> None:
            if self.differences and not self.arguments.go_on:
                return
            self._try(lambda: pair.judge(asks) if self.arguments.go_on else pair.judge_burst(asks))

        some()

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Difference as error:
            text = str(error)
            name = text.partition("\n")[0][:60]
            self.differences[name] += 1
            if self.differences[name] <= self.arguments.shown:
                self._tell(f"DIFFERENCE {text}\n")

    def _is_over(self, until: float) -> bool:
        return time.monotonic() >= until or bool(self.differences and not self.arguments.go_on)

    def _tell(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:8.1f} s  {text}", flush=True)  # noqa: T201

    def summary(self) -> str:
        told = "".join(f"\n  {count} {name}" for name, count in self.differences.most_common())
        return (
            f"{self.worlds} worlds, {self.asked} requests to both servers, {self.judged} of them judged by NumPy: "
            f"{self.differences.total()} differences{told}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--world", type=int, help="this one alone")
    parser.add_argument("--requests", type=int, help="these requests, and those after them")
    parser.add_argument("--models", type=int, default=24, help="how many models, beside those made of them")
    parser.add_argument("--plain", default="all", help="what the plain server goes without")
    parser.add_argument("--go-on", action="store_true", help="after a difference, too")
    parser.add_argument("--shown", type=int, default=1, help="how many differences of a kind")
    soak = Soak(parser.parse_args())
    status = soak.run()
    soak._tell(soak.summary())
    return status


if __name__ == "__main__":
    sys.exit(main())
