"""How contenders are compared over HTTP: started on one core, checked, pressed in turns from another.

A comparison is a `Contest`: who takes part, and with which requests. Contenders take turns within each round, and the
table has medians over rounds.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks import report
from benchmarks.servers import Failed, Server, check_port, running
from benchmarks.wrk import Load, Round, find_wrk, press

CONFIGURATION = Path(__file__).parent / "identity.yaml"
GATEWAY = [sys.executable, "-m", "tensorgate", "serve", str(CONFIGURATION)]
PORT = 18000
"""Where identity.yaml listens; other contenders take higher ones."""


class Case(Protocol):
    """One request, sent over and over."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def body(self) -> bytes: ...

    def check(self, server: Server) -> None:
        """Raise Failed unless the server sends back the very numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Contest:
    """`commands` maps a contender to its port and how to start it; the first `usual` take part unless others are
    named. `verdict` has a last word on the results.
    """

    name: str
    about: str
    epilog: str
    commands: Mapping[str, tuple[int, list[str]]]
    cases: Mapping[str, Case]
    usual: int = 2
    find_load: Callable[[], object] = field(default=find_wrk)
    verdict: Callable[[report.Rounds], str] = field(default=lambda results: "")

    def parse(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}",
            description=self.about,
            epilog=self.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        choices, names = list(self.commands), list(self.cases)
        usual = choices[: self.usual]
        add = parser.add_argument
        text = f"see below; default: {' '.join(usual)}"
        add("--contenders", nargs="+", choices=choices, default=usual, metavar="NAME", help=text)
        text = f"default: {' '.join(names)}"
        add("--cases", nargs="+", choices=names, default=names, metavar="DIALECT/FLOATS", help=text)
        add("--rounds", type=int, default=5, help="turns of each contender, of which the median counts; default: 5")
        add("--seconds", type=int, default=3, help="length of one turn; default: 3")
        add("--connections", type=int, default=8, help="kept busy by wrk's one thread; default: 8")
        add("--server-core", type=int, default=0, help="the servers' core; default: 0")
        add("--load-core", type=int, default=1, help="wrk's core; default: 1")
        return parser.parse_args(arguments)

    def check_machine(self, options: argparse.Namespace) -> None:
        """Everything that can be wrong before a server is started. Raises Failed."""
        self.find_load()
        check_cores(options)
        for contender in options.contenders:
            check_port(self.commands[contender][0])

    def compare(self, options: argparse.Namespace) -> dict[str, dict[str, list[Round]]]:
        """Start the contenders, check their answers, and let them take turns."""
        load = Load(options.seconds, options.connections, options.load_core)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers = []
            for name in options.contenders:
                port, command = self.commands[name]
                servers.append(stack.enter_context(running(name, command, port, options.server_core)))
            chosen = [case for name, case in self.cases.items() if name in options.cases]
            for case in chosen:
                for server in servers:
                    case.check(server)
            return {case.name: measure(case, servers, folder, load, options.rounds) for case in chosen}

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """The command: prints the table, or says what is missing."""
        options = self.parse(arguments)
        try:
            self.check_machine(options)
            results: Mapping[str, Mapping[str, Sequence[Round]]] = self.compare(options)
        except Failed as failure:
            raise SystemExit(f"failed: {failure}") from None
        print(report.table(results))
        if word := self.verdict(results):
            print(word)
        print(f"all rounds: {report.save(self.name, results, vars(options))}")


def measure(case: Case, servers: Sequence[Server], folder: Path, load: Load, rounds: int) -> dict[str, list[Round]]:
    """Turns of one case, after one short turn each that does not count."""
    body = folder / "body"
    body.write_bytes(case.body())
    for server in servers:
        press(server, case.path, body, Load(1, load.connections, load.core), case.headers)
    return take_turns(case.name, servers, rounds, lambda server: press(server, case.path, body, load, case.headers))


def check_cores(options: argparse.Namespace) -> None:
    """Raises Failed unless server and load have cores of their own."""
    if options.server_core == options.load_core:
        raise Failed("server and load on one core would measure each other")
    missing = {options.server_core, options.load_core} - os.sched_getaffinity(0)
    if missing:
        raise Failed(f"core {min(missing)} is not ours to use; choose with --server-core and --load-core")


def take_turns(
    case: str, servers: Sequence[Server], rounds: int, turn: Callable[[Server], Round]
) -> dict[str, list[Round]]:
    """server -> what each of its turns saw"""
    results: dict[str, list[Round]] = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers if number % 2 == 0 else reversed(servers):  # nobody always runs first
            results[server.name].append(turn(server))
        print(f"{case}: round {number + 1} of {rounds}", file=sys.stderr)
    return results
