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
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import orjson
import uvloop
from serving import DEMO, HOST, Gateway, Series, demo_config, running

LEAVE, NONSENSE = 0.02, 0.01
PATIENCE_S = 60.0
BIG_BYTES = 200 << 20
QUEUE = 4096
"""Places in each model's queue: more than clients, so that nobody is turned away."""
FLAT_SHARE, FLAT_BYTES = 1.02, 5 << 20
DIGITS = (0, 2, 3, 5, 7, 9)
IMAGES = {digit: json.loads((DEMO.parent / f"demo/images/{digit}.json").read_bytes()) for digit in DIGITS}
WORDS = ["abc", "ß", "é", "漢", "🙂", "tensor"]

ECHO = '''
class Echo:
    """Any rows in, the same rows out, in one batch with everybody's."""

    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        return {"y": inputs["x"].copy()}
'''


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and whether an answer to it is right. `status` is what it must be answered with."""

    dialect: str
    target: str
    body: bytes
    right: Callable[[Any], bool]
    status: int = 200


Make = Callable[[], Case]


# ------------------------------------------------------------------------------------------------------------ dialects


def open_inference(model: str, tensors: dict[str, tuple[str, Any]], outputs: dict[str, Any]) -> Case:
    """`tensors`: name -> (datatype, nested list); `outputs`: name -> the flat list that must come back."""
    mark = f"{random.getrandbits(64):x}"
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape_of(data), "data": data}
        for name, (datatype, data) in tensors.items()
    ]

    def right(answer: Any) -> bool:
        return answer["id"] == mark and {each["name"]: each["data"] for each in answer["outputs"]} == outputs

    return Case("open_inference", f"/v2/models/{model}/infer", orjson.dumps({"id": mark, "inputs": inputs}), right)


def tf_serving(model: str, body: Any, answer: Any) -> Case:
    return Case("tf_serving", f"/v1/models/{model}:predict", orjson.dumps(body), lambda got: bool(got == answer))


def grps(model: str, body: Any, right: Callable[[Any], bool], query: str = "") -> Case:
    body = {"model": f"{model}-1", **body}
    return Case("grps", f"/grps/v1/infer/predict{query}", orjson.dumps(body), right)


def grps_tensor(model: str, dtype: str, flat_field: str, rows: Any, answer: list[Any]) -> Case:
    tensor = {"dtype": dtype, "shape": shape_of(rows), flat_field: flat(rows)}
    return grps(
        model,
        {"gtensors": {"tensors": [tensor]}},
        lambda got: bool(got["gtensors"]["tensors"][0][flat_field] == answer),
    )


def shape_of(value: Any) -> list[int]:
    return [len(value), *shape_of(value[0])] if isinstance(value, list) else []


def flat(value: Any) -> list[Any]:
    return list(chain.from_iterable(map(flat, value))) if isinstance(value, list) else [value]


# --------------------------------------------------------------------------------------------------------------- cases


def halves() -> tuple[list[float], list[float]]:
    """Numbers that float32 holds exactly, and what half_plus_two makes of them."""
    x = [float(random.randrange(1 << 20)) for _ in range(random.randint(1, 8))]
    return x, [value / 2 + 2 for value in x]


def rows() -> list[list[float]]:
    return [[random.gauss(0, 1) for _ in range(4)] for _ in range(random.randint(1, 3))]


def words() -> tuple[list[str], list[str]]:
    text = [f"{random.choice(WORDS)}{random.getrandbits(32):x}" for _ in range(random.randint(1, 4))]
    return text, [word.upper() for word in text]


def images() -> tuple[list[Any], list[int]]:
    shown = random.choices(DIGITS, k=random.randint(1, 3))
    return [IMAGES[digit] for digit in shown], shown


def best(scores: list[list[float]]) -> list[int]:
    return [row.index(max(row)) for row in scores]


def half_open_inference() -> Case:
    x, y = halves()
    return open_inference("half_plus_two", {"x": ("FP32", x)}, {"y": y})


def half_tf_serving() -> Case:
    x, y = halves()
    return tf_serving("half_plus_two", {"instances": x}, {"predictions": y})


def half_grps() -> Case:
    x, y = halves()
    return grps("half_plus_two", {"ndarray": x}, lambda got: bool(got["ndarray"] == y), "?return-ndarray=true")


def echo_open_inference() -> Case:
    x = rows()
    return open_inference("echo", {"x": ("FP64", x)}, {"y": flat(x)})


def echo_tf_serving() -> Case:
    x = rows()
    return tf_serving("echo", {"inputs": {"x": x}}, {"outputs": x})


def echo_grps() -> Case:
    x = rows()
    return grps_tensor("echo", "DT_FLOAT64", "flat_float64", x, flat(x))


def upper_open_inference() -> Case:
    text, shout = words()
    return open_inference("upper", {"text": ("BYTES", text)}, {"shout": shout})


def upper_tf_serving() -> Case:
    text, shout = words()
    return tf_serving("upper", {"instances": text}, {"predictions": shout})


def upper_grps() -> Case:
    text, shout = words()
    return grps("upper", {"str_data": text[0]}, lambda got: bool(got["str_data"] == shout[0]))


def digits_open_inference() -> Case:
    pixels, shown = images()
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [len(pixels), 8, 8], "data": pixels}]}

    def right(answer: Any) -> bool:
        scores = answer["outputs"][0]["data"]
        return best([scores[n : n + 10] for n in range(0, len(scores), 10)]) == shown

    return Case("open_inference", "/v2/models/digits/infer", orjson.dumps(body), right)


def digits_tf_serving() -> Case:
    pixels, shown = images()
    body = orjson.dumps({"instances": pixels})
    return Case("tf_serving", "/v1/models/digits:predict", body, lambda got: best(got["predictions"]) == shown)


def digits_grps() -> Case:
    pixels, shown = images()
    return grps("digits", {"ndarray": pixels}, lambda got: best(got["ndarray"]) == shown, "?return-ndarray=true")


def sum_open_inference() -> Case:
    a, b = ([[random.randrange(-(1 << 30), 1 << 30) for _ in range(16)]] for _ in range(2))
    total = [x + y for x, y in zip(a[0], b[0], strict=True)]
    difference = [x - y for x, y in zip(a[0], b[0], strict=True)]
    inputs = {"INPUT0": ("INT32", a), "INPUT1": ("INT32", b)}
    return open_inference("add_sub", inputs, {"OUTPUT0": total, "OUTPUT1": difference})


GOOD: tuple[Make, ...] = (
    *(half_open_inference, half_tf_serving, half_grps),
    *(echo_open_inference, echo_tf_serving, echo_grps),
    *(upper_open_inference, upper_tf_serving, upper_grps),
    *(digits_open_inference, digits_tf_serving, digits_grps),
    sum_open_inference,
)


def nonsense() -> Case:
    """What its dialect refuses, by the status of its contract."""
    dialect, target, body, status = random.choice(
        (
            ("open_inference", "/v2/models/half_plus_two/infer", b'{"inputs": [', 400),
            ("open_inference", f"/v2/models/m{random.getrandbits(64):x}/infer", b"{}", 404),
            ("tf_serving", "/v1/models/half_plus_two:predict", b'{"instances": ["x"]}', 400),
            ("tf_serving", f"/v1/models/m{random.getrandbits(64):x}:predict", b"{}", 404),
            ("grps", "/grps/v1/infer/predict?model=half_plus_two-1", b'{"ndarray": [[1], [2, 3]]}', 500),
            ("grps", f"/grps/v1/infer/predict?model=m{random.getrandbits(64):x}-1", b'{"ndarray": [1]}', 500),
        )
    )
    return Case(dialect, target, body, lambda got: "error" in got or got["status"]["status"] == "FAILURE", status)


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
    clients: list[Awaitable[None]] = [Client(gateway.port, tally).run(until) for _ in range(options.clients)]
    everybody = asyncio.gather(*clients)
    await asyncio.sleep(options.seconds / 4)
    told = await big_bodies(gateway.port, tally) if options.big else []
    await everybody
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
