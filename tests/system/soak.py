"""A thousand clients of all dialects at once, for as long as you like: `make soak`, or

    python tests/system/soak.py --clients 1000 --seconds 60 --big

Every request carries random markers, and every caller checks that exactly its own come back. Two in a hundred leave
before their answer, one in a hundred sends nonsense. At the end nothing may be lost, the server's memory must be flat,
its counters must account for every request, and SIGTERM must end it with exit status 0. Exit status 1 if anything of
that fails.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import grpc
import orjson
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))  # where pytest finds what tests share

from serving import HOST, Gateway, Series, demo_config, running
from soak_cases import GOOD, GOOD_GRPC, PREDICT, Case, nonsense, nonsense_grpc

from tensorgate.adapters.protobuf.messages import message as message_class

LEAVE, NONSENSE = 0.02, 0.01
GRPC_SHARE, CHANNELS = 0.1, 8
"""One client in ten calls over gRPC, all of them over a few connections."""
UNSHARED = ("grpc.use_local_subchannel_pool", 1)
PATIENCE_S = 60.0
BIG_BYTES = 200 << 20
QUEUE = 4096
"""Places in each model's queue: more than clients, so that nobody is turned away."""
FLAT_SHARE, FLAT_BYTES = 1.02, 5 << 20

ECHO = '''
class Echo:
    """Any rows in, the same rows out, in one batch with everybody's."""

    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        return {"y": inputs["x"].copy()}
'''


# ------------------------------------------------------------------------------------------------------------- clients


@dataclass(slots=True)
class Tally:
    """What all clients have seen."""

    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    sent: int = 0

    def note(self, case: Case, seconds: float) -> None:
        (self.answered if case.status == 200 else self.refused)[case.dialect] += 1
        self.seconds.setdefault(case.dialect, []).append(seconds)


class Client:
    """One keep-alive connection at a time, one request after another."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, until: float) -> None:
        turns = cycle(random.sample(GOOD, len(GOOD)))
        while time.monotonic() < until:
            case = nonsense() if random.random() < NONSENSE else next(turns)()
            leaves = random.random() < LEAVE
            self._tally.sent += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await (self._leave(case) if leaves else self._ask(case))
            except (OSError, EOFError, TimeoutError, ValueError, KeyError, IndexError) as error:
                self._tally.errors.append(f"{case.target}: {error!r}")
                self._drop()
        self._drop()

    async def _ask(self, case: Case) -> None:
        begun = time.perf_counter()
        await self._send(message(case))
        status, body = await self._answer()
        self._tally.note(case, time.perf_counter() - begun)
        if status != case.status or not case.right(orjson.loads(body)):
            self._tally.errors.append(f"{case.target}: sent {case.body[:200]!r}, got {status} {body[:200]!r}")

    async def _leave(self, case: Case) -> None:
        """Close in the middle of the request, or at some time after it."""
        whole = message(case)
        await self._send(whole[: random.choice((len(whole) - 1, len(whole)))])
        await asyncio.sleep(random.expovariate(200))
        self._drop()
        self._tally.left[case.dialect] += 1

    async def _send(self, data: bytes) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
        self._writer.write(data)
        await self._writer.drain()

    async def _answer(self) -> tuple[int, bytes]:
        assert self._reader is not None
        return await read_answer(self._reader)

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = None


class GrpcClient:
    """One call after another over a connection that it shares."""

    def __init__(self, channel: Any, tally: Tally) -> None:
        self._ask = channel.unary_unary(PREDICT)
        self._tally = tally
        self._answer = message_class("tensorflow.serving.PredictResponse")

    async def run(self, until: float) -> None:
        turns = cycle(random.sample(GOOD_GRPC, len(GOOD_GRPC)))
        while time.monotonic() < until:
            case = nonsense_grpc() if random.random() < NONSENSE else next(turns)()
            self._tally.sent += 1
            if random.random() < LEAVE:
                await self._leave(case)
            else:
                await self._call(case)

    async def _call(self, case: Case) -> None:
        begun = time.perf_counter()
        try:
            body = await self._ask(case.body, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            status, got = error.code().value[0], error.details()
        else:
            status, got = 200, self._answer.FromString(body)
        self._tally.note(case, time.perf_counter() - begun)
        if status != case.status or not case.right(got):
            self._tally.errors.append(f"{case.target}: sent {case.body[:200]!r}, got {status} {str(got)[:200]}")

    async def _leave(self, case: Case) -> None:
        call = self._ask(case.body, timeout=PATIENCE_S)
        await asyncio.sleep(random.expovariate(200))
        call.cancel()
        self._tally.left[case.dialect] += 1


def message(case: Case) -> bytes:
    head = f"POST {case.target} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(case.body)}\r\n\r\n".encode() + case.body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, length = head.partition(b"content-length: ")
    return int(head[9:12]), await reader.readexactly(int(length.partition(b"\r")[0]))


# ---------------------------------------------------------------------------------------------------------- big bodies

BIG = (
    ("open_inference", "/v2/models/half_plus_two/infer", 400),
    ("tf_serving", "/v1/models/half_plus_two:predict", 413),
    ("grps", "/grps/v1/infer/predict", 413),
)


async def big_bodies(port: int, tally: Tally) -> list[str]:
    """200 MB to every dialect, announced and in chunks, really sent as far as the server takes them."""
    told = []
    for dialect, target, want in BIG:
        for chunked in (False, True):
            begun = time.monotonic()
            tally.sent += 1
            status, sent = await send_big(port, target, chunked)
            tally.refused[dialect] += 1
            if status != want:
                tally.errors.append(f"{target}: a body of 200 MB got {status}")
            how = "in chunks" if chunked else "announced"
            told.append(f"{dialect}, {how}: {status} in {time.monotonic() - begun:.2f} s, {sent >> 20} MB sent by then")
    return told


async def send_big(port: int, target: str, chunked: bool) -> tuple[int, int]:
    """(status, bytes sent when it came)"""
    reader, writer = await asyncio.open_connection(HOST, port)
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {BIG_BYTES}"
    writer.write(
        f"POST {target} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n{length}\r\n\r\n".encode()
    )
    answer = asyncio.create_task(read_answer(reader))
    piece, sent = b"1," * (1 << 19), 0
    try:
        while sent < BIG_BYTES and not answer.done():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            sent += len(piece)
            await writer.drain()
    except OSError:
        pass  # the server has closed: what it said before can still be read
    status, _ = await answer
    writer.transport.abort()
    return status, sent


# ------------------------------------------------------------------------------------------------------------- verdict


async def watch(gateway: Gateway, sizes: list[int]) -> None:
    while True:
        sizes.append(gateway.rss_bytes())
        await asyncio.sleep(1)


async def storm(gateway: Gateway, options: argparse.Namespace, tally: Tally, sizes: list[int]) -> list[str]:
    """All clients until the time is over; the report of the big bodies, if they were asked for."""
    watching = asyncio.create_task(watch(gateway, sizes))
    until = time.monotonic() + options.seconds
    channels = [grpc.aio.insecure_channel(f"{HOST}:{gateway.grpc_port}", [UNSHARED]) for _ in range(CHANNELS)]
    callers = int(options.clients * GRPC_SHARE)
    clients: list[Awaitable[None]] = [
        *(Client(gateway.port, tally).run(until) for _ in range(options.clients - callers)),
        *(GrpcClient(channels[number % CHANNELS], tally).run(until) for number in range(callers)),
    ]
    everybody = asyncio.gather(*clients)
    await asyncio.sleep(options.seconds / 4)
    told = await big_bodies(gateway.port, tally) if options.big else []
    await everybody
    await asyncio.gather(*(channel.close() for channel in channels))
    watching.cancel()
    return told


def verdicts(tally: Tally, sizes: list[int], series: Series, gateway: Gateway, status: int) -> Iterator[str]:
    """What went wrong, one line each."""
    if tally.errors:
        yield f"{len(tally.errors)} wrong or missing answers, among them:"
        yield from (f"    {error}" for error in islice(tally.errors, 5))
    over = sum(chain(tally.answered.values(), tally.refused.values(), tally.left.values()))
    if over + len(tally.errors) < tally.sent:
        yield f"{tally.sent} requests were sent, of {over} the end is known"
    yield from growth(sizes)
    yield from miscounted(tally, series)
    if status != 0:
        yield f"exit status {status} after SIGTERM"
    if "Traceback" in gateway.said:
        yield f"the server's log has a traceback:\n{gateway.said[-3000:]}"


def growth(sizes: list[int]) -> Iterator[str]:
    if len(sizes) < 9:
        return
    second, last = middle_and_last(sizes)
    if last > second * FLAT_SHARE and last > second + FLAT_BYTES:
        yield f"memory grew from {second / 1e6:.1f} to {last / 1e6:.1f} MB"


def middle_and_last(sizes: list[int]) -> tuple[float, float]:
    """Means of the second and the last third."""
    third = len(sizes) // 3
    return statistics.mean(sizes[third : 2 * third]), statistics.mean(sizes[2 * third :])


def miscounted(tally: Tally, series: Series) -> Iterator[str]:
    """Everything that was answered is counted once; of those who left, at most everything."""
    for dialect in tally.seconds:
        total = series.total("tensorgate_requests_total", dialect=dialect, method="infer")
        fine = series.total("tensorgate_requests_total", dialect=dialect, method="infer", code="OK")
        answered, refused, left = tally.answered[dialect], tally.refused[dialect], tally.left[dialect]
        if not answered <= fine <= answered + left:
            yield f"{dialect}: {fine:.0f} OK counted, {answered} seen, {left} left early"
        if not answered + refused <= total <= answered + refused + left:
            yield f"{dialect}: {total:.0f} counted, {answered + refused} seen, {left} left early"
    for waiting in ("tensorgate_queued_requests", "tensorgate_running_requests"):
        if series.total(waiting):
            yield f"{waiting} is {series.total(waiting):.0f} after the end"


def table(tally: Tally, sizes: list[int], series: Series, seconds: float) -> Iterator[str]:
    heads = ("answered", "refused", "left", "counted", "p50 ms", "p99 ms", "max ms")
    yield f"{'dialect':16}" + "".join(f"{head:>9}" for head in heads)
    for dialect, times in sorted(tally.seconds.items()):
        cuts = statistics.quantiles(times, n=100)
        counted = series.total("tensorgate_requests_total", dialect=dialect, method="infer")
        counts = (tally.answered[dialect], tally.refused[dialect], tally.left[dialect], counted)
        latencies = (f"{seconds * 1e3:9.1f}" for seconds in (cuts[49], cuts[98], max(times)))
        yield f"{dialect:16}" + "".join(f"{count:9.0f}" for count in counts) + "".join(latencies)
    total = sum(tally.answered.values()) + sum(tally.refused.values())
    yield f"{total / seconds:.0f} requests per second"
    batches, rows = (series.total(f"tensorgate_batch_rows_{kind}", model="echo") for kind in ("count", "sum"))
    yield f"batches of the python model: {batches:.0f}, {rows / max(batches, 1):.1f} rows each"
    if len(sizes) >= 3:
        second, last = middle_and_last(sizes)
        means = f"second third {second / 1e6:.1f}, last third {last / 1e6:.1f}"
        yield f"resident memory, MB: start {sizes[0] / 1e6:.1f}, {means}, end {sizes[-1] / 1e6:.1f}"


def configuration(folder: Path) -> str:
    (folder / "echo.py").write_text(ECHO)
    tensor = {"datatype": "FP64", "shape": [-1, 4]}
    echo = {
        "backend": "python",
        "path": str(folder / "echo.py:Echo"),
        "max_batch_size": 64,
        "max_queue_size": QUEUE,
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }
    return demo_config({"echo": echo}, {"max_queue_size": QUEUE})


def soak(options: argparse.Namespace, folder: Path) -> list[str]:
    file = folder / "soak.yaml"
    file.write_text(configuration(folder))
    tally, sizes = Tally(), list[int]()
    with running(file) as gateway, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        begun = time.monotonic()
        told = runner.run(storm(gateway, options, tally, sizes))
        seconds = time.monotonic() - begun
        time.sleep(0.5)  # for those who left at the very end
        series = gateway.metrics()
        status = gateway.stop()
        lines = [*table(tally, sizes, series, seconds), *told]
        sys.stdout.write("\n".join(lines) + "\n")
        return list(verdicts(tally, sizes, series, gateway, status))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--big", action="store_true", help="also send bodies of 200 MB to every dialect meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = soak(options, Path(folder))
    sys.stdout.write("\n".join(problems or ["nothing lost, nothing mixed up, memory flat, exit status 0"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
