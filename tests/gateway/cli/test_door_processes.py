"""Doors as processes, with real listeners: connections in equal numbers, and a rolling restart under load. Their only
page tells their pid.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from waiting import until

ROOT = Path(__file__).parents[3]
WITHIN_S = 30.0

CHILD = """
import asyncio, os, signal, sys
from types import SimpleNamespace
import uvloop
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.crossing.role import Role
from tensorgate.gateway.crossing.shared_state import SharedState
from tensorgate.gateway.transport.http_server import HttpLimits, HttpListener, read_only
from tensorgate.gateway.transport.sockets import Sockets
from tensorgate.gateway.transport.spread import Spread


async def page(exchange):
    return Reply(str(os.getpid()).encode(), 200, {})


async def main(role):
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    asked = []
    for number in (signal.SIGTERM, signal.SIGUSR2):
        loop.add_signal_handler(number, lambda number=number: (asked.append(number), over.set()))
    if role.role == "engine":
        role.is_ready()
        await over.wait()
        return
    sockets = Sockets.inherited(role.http, role.metrics, role.grpc)
    spread = Spread(SharedState(role.shared), role.row, role.door_socket)
    limits = HttpLimits(1 << 20, 1 << 20, grace_seconds=5)
    http = HttpListener(SimpleNamespace(authorizer=None), [], {"/pid": read_only(page)}, limits)
    await http.start(sockets.http[0], spread.share(0))
    spread.start()
    role.is_ready()
    await over.wait()
    spread.stop()
    await http.stop(hand_on=signal.SIGUSR2 in asked)


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(Role.of_environment(os.environ)))
"""

PROGRAM = """
import sys
from tensorgate.gateway.cli.processes import GroupParts, ProcessGroup
from tensorgate.gateway.config.listeners import Listen, Listener
from tensorgate.gateway.transport.sockets import addresses, bound_for_doors

listen = Listen(http=(Listener(bind=sys.argv[2]),))
with bound_for_doors(listen, 2) as slots:
    def log(line):
        print(line, flush=True)
    parts = GroupParts([sys.executable, sys.argv[1]], slots, addresses(listen, slots[0]), "")
    sys.exit(ProcessGroup(parts, log, 10, 10, lambda: log(f"serves {parts.addresses[0]}"), int).run())
"""


@pytest.fixture(params=["127.0.0.1:0", "unix:"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    for name, text in (("child.py", CHILD), ("program.py", PROGRAM)):
        (tmp_path / name).write_text(text)
    bind = f"unix:{tmp_path}/http.sock" if request.param == "unix:" else request.param
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "child.py"), bind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def line(group: subprocess.Popen[str]) -> str:
    assert group.stdout is not None
    return group.stdout.readline().rstrip()


class PidClient:
    """Asks for the pid of the door, over connections that stay open, or over a new one each time."""

    def __init__(self, address: str, keep: bool) -> None:
        scheme, _, rest = address.partition(":")
        is_unix = scheme.endswith("+unix")
        made = (
            aiohttp.UnixConnector(rest, limit=16, force_close=not keep)
            if is_unix
            else aiohttp.TCPConnector(limit=16, force_close=not keep)
        )
        self.session = aiohttp.ClientSession("http://localhost" if is_unix else address, connector=made)

    async def ask(self) -> int:
        async with self.session.get("/pid") as answer:
            return int(await answer.text())


async def test_connections_are_spread_and_a_rolling_restart_refuses_nobody(group: subprocess.Popen[str]) -> None:
    address = (await asyncio.to_thread(line, group)).removeprefix("serves ")
    kept = [PidClient(address, keep=True) for _ in range(16)]
    fresh = PidClient(address, keep=False)
    try:
        doors = Counter([await client.ask() for client in kept])
        assert sorted(doors.values()) == [8, 8]
        assert Counter([await client.ask() for client in kept]) == doors
        for client in kept:
            await client.session.close()
        answers: Counter[int] = Counter()
        over = False

        async def keep_asking() -> None:
            while not over:
                answers[await fresh.ask()] += 1

        asking = [asyncio.ensure_future(keep_asking()) for _ in range(4)]
        group.send_signal(signal.SIGUSR2)
        said = [await asyncio.wait_for(asyncio.to_thread(line, group), WITHIN_S) for _ in range(2)]
        assert said == ["door 0 is another process now", "door 1 is another process now"]
        await until(lambda: len(answers.keys() - doors.keys()) == 2)
        over = True
        await asyncio.gather(*asking)  # raises what any of them was refused with
    finally:
        await fresh.session.close()
        for client in kept:
            await client.session.close()
    group.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(group.wait, WITHIN_S) == 0
