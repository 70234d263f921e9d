"""A random process of a gateway of many is killed again and again, while clients of all dialects ask: `make soak`, or

    python tests/system/soak_doors.py --minutes 10 --doors 2 --kill-every 5

There are doors, the engine and a model in a process of its own. Every request carries random markers, and every caller
checks that exactly its own come back, or that it was refused cleanly: UNAVAILABLE in its dialect's words, or a
connection that ended. Between kills the configuration is reloaded and doors are replaced one after the other. Nothing
may hang, be mixed up or answered with anything else; what is left at the end (memory, processes, /dev/shm, folders)
must be what was there before. Exit status 1 if anything of that fails.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import orjson
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))  # where pytest finds what tests share

from serving import HOST, Gateway, below, demo_config, started
from soak import ECHO, UNSHARED, message, read_answer
from soak_cases import GOOD, GOOD_GRPC, PREDICT, Case
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message as message_class

PATIENCE_S = 20.0
"""How long one answer may take, an engine's restart included; what takes longer hangs."""
PAUSE_S = 0.05
"""After a refusal: a client that asks at once again would only find out again."""
GRPC_CLIENTS = 0.2
MAX_GROWTH = 1.3
"""How much more memory all processes may have at the end than after the first minute."""
UNAVAILABLE = 503
SHARED = Path("/dev/shm")  # noqa: S108


@dataclass(slots=True)
class Seen:
    """What all clients have seen."""

    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    errors: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")

    def ended(self, begun: float, what: str) -> None:
        """One request is over."""
        self.slowest = max(self.slowest, (time.monotonic() - begun, what))


async def http_client(port: int, seen: Seen, over: asyncio.Event) -> None:
    """One connection at a time, and a new one where it ends."""
    turns = cycle(random.sample(GOOD, len(GOOD)))
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    while not over.is_set():
        case: Case = next(turns)()
        begun = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                if is_new := reader is None or writer is None:
                    reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(message(case))
                status, body = await read_answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            seen.cut += 1
            if writer is not None:
                writer.transport.abort()
            reader = writer = None
            await asyncio.sleep(PAUSE_S)
            continue
        except TimeoutError:
            seen.errors.append(f"{case.target}: no answer in {PATIENCE_S:g} s")
            break
        seen.ended(begun, f"{case.target}, {status}, {'new' if is_new else 'kept'} connection")
        if status == UNAVAILABLE:
            seen.refused[case.dialect] += 1
            await asyncio.sleep(PAUSE_S)
        elif status == case.status and case.right(orjson.loads(body)):
            seen.answered[case.dialect] += 1
        else:
            seen.errors.append(f"{case.target}: sent {case.body[:200]!r}, got {status} {body[:200]!r}")
    if writer is not None:
        writer.transport.abort()


async def grpc_client(channel: Any, seen: Seen, over: asyncio.Event) -> None:
    """Calls over a connection that it has alone."""
    ask = channel.unary_unary(PREDICT)
    answer = message_class("tensorflow.serving.PredictResponse")
    turns = cycle(random.sample(GOOD_GRPC, len(GOOD_GRPC)))
    while not over.is_set():
        case: Case = next(turns)()
        begun = time.monotonic()
        try:
            body = await ask(case.body, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            seen.ended(begun, f"gRPC, {error.code()}")
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                seen.refused["grpc"] += 1
                await asyncio.sleep(PAUSE_S)
            else:
                seen.errors.append(f"{case.target}: {error.code()} {error.details()}")
            continue
        seen.ended(begun, "gRPC")
        if case.right(answer.FromString(body)):
            seen.answered["grpc"] += 1
        else:
            seen.errors.append(f"{case.target}: sent {case.body[:200]!r}, got {body[:200]!r}")


def memory_of(pids: list[int]) -> int:
    """Bytes of all processes together, what they share counted once (PSS)."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total << 10


async def trouble(gateway: Gateway, file: Path, every: float, over: asyncio.Event, done: Counter[str]) -> None:
    """Kill a random process, again and again; between that, reload or replace all doors."""
    text = await asyncio.to_thread(file.read_text)
    for turn in itertools.count():
        try:
            async with asyncio.timeout(every):
                await over.wait()
            return
        except TimeoutError:
            pass
        victims = below(gateway.process.pid)
        if turn % 4 == 3:
            await asyncio.to_thread(file.write_text, f"{text}\n# for the {turn}. time\n")
            gateway.process.send_signal(signal.SIGHUP)
            done["reload"] += 1
        elif turn % 8 == 5:
            gateway.process.send_signal(signal.SIGUSR2)
            done["doors replaced"] += 1
        elif victims:
            try:
                os.kill(random.choice(victims), signal.SIGKILL)
                done["kill"] += 1
            except ProcessLookupError:
                continue


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def play(gateway: Gateway, file: Path, options: argparse.Namespace) -> list[str]:
    seen, over, done = Seen(), asyncio.Event(), Counter[str]()
    address = f"{HOST}:{gateway.grpc_port}"
    count = max(1, int(options.clients * GRPC_CLIENTS))
    channels = [grpc.aio.insecure_channel(address, options=[UNSHARED, ("n", n)]) for n in range(count)]
    clients = [asyncio.ensure_future(grpc_client(channel, seen, over)) for channel in channels]
    clients += [asyncio.ensure_future(http_client(gateway.port, seen, over)) for _ in range(options.clients - count)]
    troubles = asyncio.ensure_future(trouble(gateway, file, options.kill_every, over, done))
    first = 0
    for second in range(int(options.minutes * 60)):
        await asyncio.sleep(1)
        if second == min(60, int(options.minutes * 20)):
            first = memory_of(gateway.pids())
        if second % 30 == 29:
            answered, refused = sum(seen.answered.values()), sum(seen.refused.values())
            say(f"{second + 1:5d} s  {answered} answered, {refused} refused, {seen.cut} cut, {dict(done)}")
    over.set()
    await asyncio.gather(troubles, *clients)
    for channel in channels:
        await channel.close()
    wait_until(lambda: gateway.get("/readyz").status == 200)
    await asyncio.sleep(2)
    last = memory_of(gateway.pids())
    say(f"answered {dict(seen.answered)}\nrefused {dict(seen.refused)}, cut {seen.cut}, {dict(done)}")
    say(f"slowest {seen.slowest[0]:.2f} s ({seen.slowest[1]}); memory {first / 1e6:.0f} MB, then {last / 1e6:.0f} MB")
    problems = seen.errors[:20]
    if last > first * MAX_GROWTH:
        problems.append(f"memory grew from {first} to {last} bytes")
    if not seen.answered or (options.kill_every < options.minutes * 60 and not done["kill"]):
        problems.append("nothing happened")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--doors", type=int, default=2)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds between two kills, reloads or restarts")
    options = parser.parse_args()
    shared = set(SHARED.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "tmp"
        own.mkdir()
        os.environ["TMPDIR"] = str(own)
        file, echo = Path(folder) / "gateway.yaml", Path(folder) / "echo.py"
        echo.write_text(ECHO)
        spec = {"datatype": "FP64", "shape": [-1, 4]}
        model = {
            "backend": "python",
            "path": f"{echo}:Echo",
            "max_batch_size": 64,
            "process": "own",
            "inputs": [{"name": "x", **spec}],
            "outputs": [{"name": "y", **spec}],
        }
        file.write_text(demo_config({"echo": model}, drain_seconds=10))
        with started(
            Path(folder) / "log", "--doors", str(options.doors), str(file), python=Path(sys.executable)
        ) as gateway:
            gateway.wait_until_ready()
            found = below(gateway.process.pid)
            problems = uvloop.run(play(gateway, file, options))
            found = sorted({*found, *below(gateway.process.pid)})
            gateway.process.send_signal(signal.SIGTERM)
            status = gateway.process.wait(60)
            if status:
                problems.append(f"exit status {status}")
            if "Traceback" in gateway.said_itself:
                problems.append(f"the log has a traceback:\n{gateway.said_itself[-4000:]}")
            if left_over := [*own.iterdir()]:
                problems.append(f"folders are left: {left_over}")
            left = [pid for pid in found if Path(f"/proc/{pid}").exists()]
            if left:
                problems.append(f"processes are left: {left}")
    if strange := set(SHARED.iterdir()) - shared:
        problems.append(f"{SHARED} has more than before: {strange}")
    say("\n".join(problems) or "OK")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
