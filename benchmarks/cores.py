"""What more cores bring: requests per second, and processor time for each, of one process, of as many doors as cores,
of as many whole gateways on one port, and of a real Triton on the same cores.

The model is the identity. wrk and h2load keep some connections busy, then a single one, and contenders take turns
within each round; the table has medians over rounds. Processor time is that of all processes of a server.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import yaml

from benchmarks import binary_http, cores_plot, grpc_infer, h2load, json_http, report, wrk
from benchmarks.contest import CONFIGURATION, PORT
from benchmarks.servers import HOST, Failed, Family, Server, Silent, check_port, is_ready, listeners, running
from benchmarks.table import table
from benchmarks.triton import NAME as TRITON
from benchmarks.triton import Ports, Repository, find_triton, triton
from benchmarks.wrk import Load, Round

ONE, DOORS, GATEWAYS = "one", "doors", "gateways"
CONTENDERS = (ONE, DOORS, GATEWAYS, TRITON)
OURS = (ONE, DOORS, GATEWAYS)
SLOW = ("v2/150528",)
"""Takes turns of twice the length: on one core, all connections at once may take a second."""
FEW = 4
"""Cores of a machine on which servers and load share all there are."""
SERVE = [sys.executable, "-m", "tensorgate", "serve"]
EPILOG = """
contenders:
  one       tensorgate serve: one process, on the same cores as the others
  doors     tensorgate serve --doors N
  gateways  N whole gateways whose sockets are bound with SO_REUSEPORT (benchmarks.gateways)
  triton    tritonserver, with a backend in C that copies bytes; without a C compiler its Python backend

examples:
  python -m benchmarks.cores                                         # 1, 2, 4 ... doors, one for each core
  python -m benchmarks.cores --doors 2 --cases v2/16 raw/16 --rounds 9
  python -m benchmarks.cores --servers 0-7 --load 8-15 --doors 1 2 4 8 --connections 64 --plot docs/cores.svg
  python -m benchmarks.cores --from benchmarks/results/cores-20260101-120000.json --plot docs/cores.svg
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn saw: with all connections busy, and with one, which waits for each answer."""

    requests_per_s: float
    cpu_us_per_request: float
    p50_us: float
    p99_us: float
    alone_p50_us: float
    alone_p99_us: float

    @classmethod
    def of(cls, busy: Round, alone: Round) -> Turn:
        rate, cpu = busy.requests_per_s, busy.cpu_us_per_request
        return cls(rate, cpu, busy.p50_us, busy.p99_us, alone.p50_us, alone.p99_us)


Turns = Mapping[int, Mapping[str, Mapping[str, Sequence[Turn]]]]
"""doors -> case -> contender -> turns, in the order in which they were run."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A running server, by its two ports."""

    name: str
    http: Family
    grpc: Family


class Ask(Protocol):
    """One request, sent over and over."""

    def lay(self, folder: Path) -> None:
        """Write what the load sends."""
        ...

    def answer(self, contender: Contender) -> bytes:
        """What comes back; raises Failed unless it has the very numbers that were sent."""
        ...

    def press(self, contender: Contender, load: Load) -> Round: ...


class OverHttp:
    """See Ask."""

    def __init__(self, case: Any) -> None:
        self._case = case
        self._file = Path()

    def lay(self, folder: Path) -> None:
        self._file = folder / "body"
        self._file.write_bytes(self._case.body())

    def answer(self, contender: Contender) -> bytes:
        self._case.check(contender.http)
        return contender.http.post(self._case.path, self._case.body(), self._case.headers)

    def press(self, contender: Contender, load: Load) -> Round:
        return wrk.press(contender.http, self._case.path, self._file, load, self._case.headers)


class OverGrpc:
    """See Ask."""

    def __init__(self, case: grpc_infer.Case) -> None:
        self._case = case
        self._file = Path()
        self._sizes: dict[str, int] = {}

    def lay(self, folder: Path) -> None:
        body = self._case.request()
        self._file = folder / "message"
        self._file.write_bytes(b"\0" + len(body).to_bytes(4, "big") + body)

    def answer(self, contender: Contender) -> bytes:
        self._sizes[contender.name] = 5 + self._case.check(contender.grpc)
        return grpc_infer.ask(contender.grpc.port, self._case.wire.method, self._case.request())

    def press(self, contender: Contender, load: Load) -> Round:
        return h2load.press(contender.grpc, self._case.wire.method, self._file, self._sizes[contender.name], load)


def cases() -> dict[str, Ask]:
    http = {**json_http.cases(), **binary_http.cases()}
    grpc = grpc_infer.cases()
    return {
        **{name: OverHttp(http[name]) for name in ("v2/16", "binary/16", "v2/150528", "binary/150528")},
        **{name: OverGrpc(grpc[name]) for name in ("raw/16", "raw/150528")},
    }


def cores(text: str) -> set[int]:
    """`0-3,6` -> {0, 1, 2, 3, 6}; raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found.update(range(int(first), int(last if dash else first) + 1))
    if not found:
        raise ValueError(f"{text} names no core")
    return found


def shares(machine: Sequence[int]) -> tuple[set[int], set[int]]:
    """Which of the machine's cores servers and load get, unless told otherwise: all of few, or half each of many."""
    if len(machine) <= FEW:
        return set(machine), set(machine)
    half = len(machine) // 2
    return set(machine[:half]), set(machine[half:])


def steps(available: int) -> list[int]:
    """1, 2, 4 … and all."""
    powers = [1 << bit for bit in range(available.bit_length()) if 1 << bit < available]
    return [*powers, available]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cores",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    servers, load = shares(sorted(os.sched_getaffinity(0)))
    names = list(cases())
    add = parser.add_argument
    add("--doors", type=int, nargs="+", metavar="N", help="how many, and how many cores; default: 1, 2, 4 … all")
    add("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME", help="see below")
    add("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=f"default: {' '.join(names)}")
    add("--servers", type=cores, default=servers, metavar="CORES", help="such as 0-3,6; N doors get the first N")
    add("--load", type=cores, default=load, metavar="CORES", help="the load's, a thread on each; may be the servers'")
    add("--connections", type=int, default=16, help="default: 16")
    add("--rounds", type=int, default=5, help="turns of each contender, of which the median counts; default: 5")
    add("--seconds", type=int, default=3, help="length of one turn; with a single connection a third; default: 3")
    add("--plot", type=Path, metavar="FILE", help="write a picture, SVG")
    add("--from", type=Path, dest="kept", metavar="FILE", help="measure nothing: take an earlier run's results")
    options = parser.parse_args(arguments)
    options.doors = options.doors or steps(len(options.servers))
    return options


def check_machine(options: argparse.Namespace) -> None:
    """Everything that can be wrong before a server is started. Raises Failed."""
    missing = (options.servers | options.load) - os.sched_getaffinity(0)
    if missing:
        raise Failed(f"core {min(missing)} is not ours to use; choose with --servers and --load")
    if max(options.doors) > len(options.servers):
        raise Failed(f"{max(options.doors)} doors need as many cores, and --servers has {len(options.servers)}")
    wrk.find_wrk()
    h2load.find_h2load()


def without_what_is_missing(contenders: Sequence[str]) -> list[str]:
    """Those that can be started here; says of the others why not."""
    left = list(contenders)
    if DOORS in left and not has_doors():
        print("left out: this gateway's `serve` knows no --doors", file=sys.stderr)
        left.remove(DOORS)
    if TRITON in left:
        try:
            find_triton()
        except Failed as failure:
            print(f"left out: {failure}", file=sys.stderr)
            left.remove(TRITON)
    return left


def has_doors() -> bool:
    said = subprocess.run([*SERVE, "--help"], capture_output=True, text=True, check=True)  # noqa: S603 - our own command
    return "--doors" in said.stdout


@contextmanager
def started(name: str, doors: int, folder: Path, on: set[int]) -> Iterator[Contender]:
    """The contender on these cores, ready in each of its processes. `folder` is its own."""
    first = PORT + 40 + 3 * CONTENDERS.index(name)
    ports = Ports(first, first + 1, first + 2)
    check_port(ports.grpc)
    with ExitStack() as stack:
        if name == TRITON:
            repository = Repository.at(folder)
            repository.add_identity(doors)
            server = stack.enter_context(triton(repository, ports, on))
        else:
            configuration = folder / "gateway.yaml"
            configuration.write_text(yaml.safe_dump(gateway_at(ports)))
            file = str(configuration)
            commands = {
                ONE: [*SERVE, file],
                DOORS: [*SERVE, file, "--doors", str(doors)],
                GATEWAYS: [sys.executable, "-m", "benchmarks.gateways", str(doors), "serve", file],
            }
            ready = partial(all_ready, processes=1 if name == ONE else doors)
            server = stack.enter_context(running(name, commands[name], ports.http, on, ready))
        yield contender(server, ports)


def contender(server: Server, ports: Ports) -> Contender:
    at = [Family(server.name, port, server.pid) for port in (ports.http, ports.grpc)]
    return Contender(server.name, *at)


def gateway_at(ports: Ports) -> dict[str, Any]:
    """The configuration of the comparisons, elsewhere."""
    content: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
    content["listen"] = {
        door: [{"bind": f"{HOST}:{port}"}] for door, port in (("http", ports.http), ("grpc", ports.grpc))
    }
    for model in content["models"].values():
        model["path"] = str(CONFIGURATION.parent / model["path"])
    return content


def all_ready(port: int, processes: int) -> bool:
    """Each has a socket there, and none that the kernel gives one of many connections to is not ready."""
    return listeners(port) >= processes and all(is_ready(port) for _ in range(1 if processes == 1 else 8 * processes))


def compare(options: argparse.Namespace, contenders: Sequence[str]) -> Turns:
    return {doors: compare_on(doors, options, contenders) for doors in options.doors}


class Field:
    """Everybody who takes part, running on the first `doors` of these cores; each may be started anew."""

    def __init__(self, doors: int, servers: set[int], folder: Path) -> None:
        self._doors = doors
        self._on = set(sorted(servers)[:doors])
        self._folder = folder
        self._running: dict[str, tuple[ExitStack, Contender]] = {}

    def __iter__(self) -> Iterator[Contender]:
        return iter([contender for _, contender in self._running.values()])

    def start(self, name: str) -> Contender:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        with ExitStack() as stack:
            contender = stack.enter_context(started(name, self._doors, folder, self._on))
            self._running[name] = stack.pop_all(), contender
        return contender

    def again(self, contender: Contender) -> Contender:
        """Stop it and start another in its place."""
        self._running[contender.name][0].close()
        return self.start(contender.name)

    def close(self) -> None:
        for stack, _ in self._running.values():
            stack.close()

    def turn(self, ask: Ask, contender: Contender, loads: tuple[Load, Load]) -> Turn:
        """Triton's server for gRPC may stand still for good under messages of 600 KB: then it is started anew, and its
        turn begins again. Raises Silent if that helps nothing, and if it is one of ours.
        """
        try:
            return Turn.of(*(ask.press(contender, load) for load in loads))
        except Silent as failure:
            if contender.name != TRITON:
                raise
            print(f"{failure}: started anew", file=sys.stderr)
        contender = self.again(contender)
        ask.answer(contender)
        return Turn.of(*(ask.press(contender, load) for load in loads))


def compare_on(doors: int, options: argparse.Namespace, contenders: Sequence[str]) -> dict[str, dict[str, list[Turn]]]:
    """Start everybody, compare their answers, and let them take turns. One door is one process, so there are two
    contenders then.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        field = Field(doors, options.servers, folder)
        stack.callback(field.close)
        for name in contenders:
            if doors > 1 or name in (ONE, TRITON):
                field.start(name)
        results = {}
        for case, ask in cases().items():
            if case not in options.cases:
                continue
            seconds = options.seconds * 2 if case in SLOW else options.seconds
            busy = Load(seconds, options.connections, options.load)
            alone = Load(max(2 if case in SLOW else 1, seconds // 3), 1, options.load)
            ask.lay(folder)
            check_answers(case, {each.name: ask.answer(each) for each in field})
            for each in field:  # does not count
                field.turn(ask, each, (busy, alone))
            results[case] = take_turns(f"{doors} doors, {case}", ask, field, options.rounds, (busy, alone))
        return results


def check_answers(case: str, answers: Mapping[str, bytes]) -> None:
    """Raises Failed unless the gateway says the same bytes however many processes it has."""
    ours = {name: answer for name, answer in answers.items() if name in OURS}
    if len(set(ours.values())) > 1:
        raise Failed(f"{case}: {' and '.join(ours)} do not answer the same bytes")


def take_turns(title: str, ask: Ask, field: Field, rounds: int, loads: tuple[Load, Load]) -> dict[str, list[Turn]]:
    """contender -> what each of its turns saw"""
    results: dict[str, list[Turn]] = {each.name: [] for each in field}
    for number in range(rounds):
        for each in field if number % 2 == 0 else reversed([*field]):  # nobody always runs first
            results[each.name].append(field.turn(ask, each, loads))
        print(f"{title}: round {number + 1} of {rounds}", file=sys.stderr)
    return results


def middle(turns: Sequence[Turn]) -> Turn:
    """The median of each figure."""
    return Turn(*(median(column) for column in zip(*(asdict(turn).values() for turn in turns), strict=True)))


def ratio(turns: Sequence[Turn], base: Sequence[Turn], figure: str = "requests_per_s") -> float:
    """The median of the ratios within each round: what slows the whole machine for a while slows both sides."""
    pairs = zip(map(asdict, turns), map(asdict, base), strict=True)
    ratios: list[float] = [one[figure] / other[figure] for one, other in pairs]
    return median(ratios)


HEAD = ("doors", "case", "contender", "requests/s", "CPU us/request", "p50 ms", "p99 ms", "alone p50", "alone p99")
BASES = (ONE, GATEWAYS, TRITON)


def lines(results: Turns) -> list[tuple[str, ...]]:
    """What the table shows, its head first."""
    made: list[tuple[str, ...]] = [(*HEAD, *(f"/ {base}" for base in BASES), f"CPU / {ONE}")]
    for doors, by_case in results.items():
        for case, contenders in by_case.items():
            for name, turns in contenders.items():
                one = middle(turns)
                rate = f"{one.requests_per_s:,.0f}" if one.requests_per_s >= 100 else f"{one.requests_per_s:.1f}"
                times = (one.p50_us, one.p99_us, one.alone_p50_us, one.alone_p99_us)
                ratios = [_shown(turns, contenders.get(base), "requests_per_s") for base in BASES]
                cpu = _shown(turns, contenders.get(ONE), "cpu_us_per_request")
                figures = (rate, f"{one.cpu_us_per_request:,.0f}", *(f"{time / 1000:.2f}" for time in times))
                made.append((str(doors), case, name, *figures, *ratios, cpu))
    return made


def _shown(turns: Sequence[Turn], base: Sequence[Turn] | None, figure: str) -> str:
    return "-" if base is None else f"{ratio(turns, base, figure):.2f}"


def facts(results: Turns) -> dict[str, Any]:
    """For the file: every turn, and the medians."""
    return {
        "turns": _each(results, lambda turns: [asdict(turn) for turn in turns]),
        "medians": _each(results, lambda turns: asdict(middle(turns))),
    }


def _each(results: Turns, show: Any) -> dict[int, dict[str, dict[str, Any]]]:
    return {
        doors: {case: {name: show(turns) for name, turns in by_name.items()} for case, by_name in by_case.items()}
        for doors, by_case in results.items()
    }


def measured(options: argparse.Namespace) -> Path:
    """Prints the table. -> the file with all results"""
    check_machine(options)
    contenders = without_what_is_missing(options.contenders)
    results = compare(options, contenders)
    head, *body = lines(results)
    print(table(head, body, left=3))
    kept = {**vars(options), "contenders": contenders}
    for name, value in kept.items():
        kept[name] = sorted(value) if isinstance(value, set) else str(value) if isinstance(value, Path) else value
    return report.keep("cores", facts(results), kept)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    try:
        file = options.kept or measured(options)
    except Failed as failure:
        raise SystemExit(f"failed: {failure}") from None
    print(f"all rounds: {file}")
    if options.plot is not None:
        options.plot.write_text(cores_plot.draw(json.loads(file.read_text())))
        print(f"wrote {options.plot}")


if __name__ == "__main__":
    main()
