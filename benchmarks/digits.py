"""Is it worth while to parse the digits of a large JSON tensor on the GPU?

    python -m benchmarks.digits
    python -m benchmarks.digits --megabytes 0.3 3 --rounds 31

Arrays of numbers as clients print them, from bytes on the host to FP32 on the device. "CPU": the gateway's own scanner
(`adapters._native._numbers`), one thread, and one copy of what it made. "GPU": one copy of the bytes, parsed there, see
digits_cuda. Each of them once with ordinary memory on the host and once with pinned memory, which for the scanner means
one copy more on the host; all four take turns. Before a clock runs, all must have made the very bits that json.loads
and NumPy make.

Exit status: 0, or 2 if something failed, or there is no GPU.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import orjson

from benchmarks.digits_cuda import Parser, to_device
from benchmarks.table import table

try:
    from tensorgate.adapters._native import _numbers
    from tensorgate.backends.execution.device import cuda_devices
    from tensorgate.gateway.app import tune_process
except ImportError as error:
    print(f"FAILED: {error}; pip install -e . builds the scanner, and installs what the gateway itself needs")
    raise SystemExit(2) from None

SIZES_MB = (0.3, 3.0, 20.0, 64.0)
SIDE = 224
SAMPLE = 3000
WARM_UP = 3


# -------------------------------------------------------------------------------------------------------------- bodies


def _normal(count: int) -> Any:
    return np.random.default_rng(1).standard_normal(count, np.float32)


def widened(count: int) -> bytes:
    """FP32 as Python's clients print them: as doubles, 16 to 18 digits."""
    return json.dumps(_normal(count).tolist()).encode()


def shortest(count: int) -> bytes:
    """The digits that an FP32 needs, as JavaScript's and C++ clients print them."""
    return orjson.dumps(_normal(count), option=orjson.OPT_SERIALIZE_NUMPY)


def integers(count: int) -> bytes:
    return json.dumps(np.random.default_rng(2).integers(-99_999, 100_000, count).tolist()).encode()


def exponents(count: int) -> bytes:
    """Of all sizes that FP32 has, negative ones too, the smallest included."""
    random = np.random.default_rng(3)
    sizes = (random.standard_normal(count) * 10 ** random.uniform(-44, 38, count)).clip(-3e38, 3e38)
    return json.dumps(sizes.astype(np.float32).tolist()).encode()


def image(count: int) -> bytes:
    """Pixels from 0 to 1, NHWC, nested lists: one smaller image, or several of 224 x 224."""
    side = min(SIDE, math.isqrt(count // 3))
    shape = (max(1, round(count / (3 * side * side))), side, side, 3)
    pixels = np.random.default_rng(4).integers(0, 256, shape).astype(np.float32) / np.float32(255)
    return json.dumps(pixels.tolist()).encode()


BODIES: dict[str, Callable[[int], bytes]] = {
    each.__name__: each for each in (widened, shortest, integers, exponents, image)
}


def make_body(kind: str, megabytes: float) -> bytes:
    """About so long."""
    each = len(BODIES[kind](SAMPLE)) / SAMPLE
    return BODIES[kind](max(SAMPLE, round(megabytes * 1e6 / each)))


# ---------------------------------------------------------------------------------------------------------- contenders


class Line(NamedTuple):
    """One body. All times are microseconds, medians; copy, find and convert are parts of `gpu_pinned`."""

    kind: str
    megabytes: float
    numbers: int
    cpu: float
    cpu_pinned: float
    gpu: float
    gpu_pinned: float
    copy: float
    find: float
    convert: float
    on_host: float
    """The part of the numbers that was read once more on the host, in percent."""

    @property
    def ratio(self) -> float:
        return self.cpu / self.gpu

    @property
    def ratio_pinned(self) -> float:
        """Of the scanner's better time: with pinned memory, it has one copy more to make."""
        return min(self.cpu, self.cpu_pinned) / self.gpu_pinned


class Laps:
    """What an event on the stream says of each stage of a parser's run."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._events: list[Any] = []

    def __call__(self) -> None:
        event = self._xp.cuda.Event()
        event.record()
        self._events.append(event)

    def stages(self) -> tuple[float, float, float]:
        """Microseconds: the copy; finding the numbers; locating, converting and checking them."""
        events = self._events
        for event in events:
            event.synchronize()
        copy, find, _, convert = (
            1e3 * self._xp.cuda.get_elapsed_time(begun, ended) for begun, ended in itertools.pairwise(events)
        )
        return copy, find, convert


class Contest:
    """One body, and the ways from there to the device."""

    def __init__(self, kind: str, body: bytes, xp: Any, parser: Parser) -> None:
        self.kind = kind
        self.body = body
        self._xp = xp
        self._parser = parser
        self._plain = np.frombuffer(body, np.uint8)
        self._pinned = _pinned(xp, len(body))
        self._pinned[:] = self._plain
        self._want = wanted(body)
        self._staging = _pinned(xp, self._want.nbytes).view(np.float32)
        self.doubtful = 0

    def cpu(self) -> Any:
        return self._send(self._scan())

    def cpu_pinned(self) -> Any:
        numbers = self._scan()
        np.copyto(self._staging, numbers.reshape(-1))
        return self._send(self._staging.reshape(numbers.shape))

    def gpu(self) -> Any:
        return self._parse(self._plain)

    def gpu_pinned(self) -> Any:
        return self._parse(self._pinned)

    def _stages(self) -> tuple[float, float, float]:
        """Of `gpu_pinned`, in a run of its own: events take time, too."""
        laps = Laps(self._xp)
        self._parse(self._pinned, laps)
        return laps.stages()

    def _scan(self) -> Any:
        found = _numbers.scan(self.body, 0, "f")
        if found is None:
            raise ValueError("the scanner refuses the body")
        return np.frombuffer(found[0], np.float32).reshape(found[1])

    def _send(self, numbers: Any) -> Any:
        there = self._xp.empty(numbers.shape, np.float32)
        to_device(self._xp, there, numbers)
        self._xp.cuda.get_current_stream().synchronize()
        return there

    def _parse(self, body: Any, *lap: Any) -> Any:
        parsed = self._parser.parse(body, *lap)
        if parsed is None:
            raise ValueError("the GPU's parser refuses the body")
        self.doubtful = parsed.doubtful
        return parsed.values

    def check(self, ways: Sequence[Callable[[], Any]]) -> None:
        """Raises ValueError where a way does not give the very same bits."""
        for way in ways:
            got = self._xp.asnumpy(way())
            if got.shape != self._want.shape or got.dtype != self._want.dtype:
                raise ValueError(f"{way.__name__}: {got.dtype} {got.shape}, not float32 {self._want.shape}")
            wrong = np.flatnonzero(got.view(np.uint32) != self._want.view(np.uint32))
            if len(wrong):
                at = wrong[0]
                raise ValueError(
                    f"{way.__name__}: {len(wrong)} numbers of {got.size} differ from json's and NumPy's, the first is "
                    f"number {at}: {got.reshape(-1)[at]!r} in place of {self._want.reshape(-1)[at]!r}"
                )

    def measure(self, rounds: int) -> Line:
        ways = [self.cpu, self.cpu_pinned, self.gpu, self.gpu_pinned]
        self.check(ways)
        for way in WARM_UP * ways:
            way()
        times: dict[str, list[float]] = {way.__name__: [] for way in ways}
        stages = []
        for turn in range(rounds):
            for way in ways if turn % 2 else reversed(ways):
                begun = time.perf_counter()
                way()
                times[way.__name__].append(1e6 * (time.perf_counter() - begun))
            stages.append(self._stages())
        copy, find, convert = (median(stage) for stage in zip(*stages, strict=True))
        size, on_host = self._want.size, 100 * self.doubtful / self._want.size
        middle = {name: median(each) for name, each in times.items()}
        return Line(
            self.kind, len(self.body) / 1e6, size, **middle, copy=copy, find=find, convert=convert, on_host=on_host
        )


def _pinned(xp: Any, nbytes: int) -> Any:
    """Host memory that the GPU reads by itself."""
    return np.frombuffer(xp.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def wanted(body: bytes) -> Any:
    """What Python itself makes of a body."""
    with np.errstate(over="ignore"):
        return np.array(json.loads(body), np.float32)


# -------------------------------------------------------------------------------------------------------------- report

HEAD = (
    *("numbers are", "MB", "numbers", "CPU us", "CPU pinned", "GPU us", "GPU pinned"),
    *("copy", "find", "convert", "ratio", "ratio pinned", "on host %"),
)


def report(lines: Sequence[Line]) -> str:
    rows = []
    for line in lines:
        times = (line.cpu, line.cpu_pinned, line.gpu, line.gpu_pinned, line.copy, line.find, line.convert)
        figures = (*(f"{each:,.0f}" for each in times), f"{line.ratio:.2f}", f"{line.ratio_pinned:.2f}")
        rows.append((line.kind, f"{line.megabytes:.1f}", f"{line.numbers:,}", *figures, f"{line.on_host:.4f}"))
    return table(HEAD, rows)


def verdict(sizes: Sequence[tuple[float, Sequence[Line]]]) -> str:
    """From which size on the GPU wins. `sizes`: megabytes and lines, none where a body failed; the smallest first."""
    ordinary = _from(sizes, lambda line: line.ratio)
    pinned = _from(sizes, lambda line: line.ratio_pinned)
    return (
        f"One body at a time on a GPU with nothing else to do: with bodies in ordinary memory {ordinary}; with bodies "
        f"that are in pinned memory already {pinned}."
    )


def _from(sizes: Sequence[tuple[float, Sequence[Line]]], ratio: Callable[[Line], float]) -> str:
    """The size from which on every kind of body is in its place sooner by the GPU, and by how much."""
    won: list[tuple[float, list[float]]] = []
    for megabytes, lines in reversed(sizes):
        ratios = [ratio(line) for line in lines]
        if not ratios or min(ratios) <= 1:
            break
        won.append((megabytes, ratios))
    if not won:
        some = sum(ratio(line) > 1 for _, lines in sizes for line in lines)
        return (
            f"the GPU does not win at the largest size for every kind of numbers (in {some} lines of the table it does)"
        )
    ratios = [each for _, ratios in won for each in ratios]
    return f"the GPU wins from {won[-1][0]:g} MB on, {min(ratios):.1f} to {max(ratios):.1f} times as fast"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digits", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[*SIZES_MB], help="sizes of bodies")
    parser.add_argument("--kinds", nargs="+", choices=BODIES, default=[*BODIES], help="what the numbers look like")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender, of which the median counts")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, xp: Any) -> list[str]:
    """Every body's turns, and what they say -> what failed."""
    parser, failed = Parser(xp), []
    measured: list[Line] = []
    sizes: list[tuple[float, list[Line]]] = []
    for megabytes in sorted(options.megabytes):
        lines: list[Line] = []
        for kind in options.kinds:
            try:
                lines.append(Contest(kind, make_body(kind, megabytes), xp, parser).measure(options.rounds))
            except Exception as error:  # CuPy has an exception class of its own per library; the other bodies go on
                failed.append(f"{kind}, {megabytes:g} MB: {type(error).__name__}: {error}")
                traceback.print_exception(error)
        measured += lines
        sizes.append((megabytes, lines if len(lines) == len(options.kinds) else []))
    print(report(measured))
    print(f"\n{verdict(sizes)}")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if not cuda_devices():
        print("FAILED: there is no GPU to be used here: CuPy (cupy-cuda13x) is not installed, or finds no driver")
        return 2
    tune_process()  # as the server does
    cupy = importlib.import_module("cupy")
    print(f"{cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}, CuPy {cupy.__version__}\n")
    failed = run(options, cupy)
    for line in failed:
        print(f"FAILED: {line}")
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
