"""Requests at a fixed rate, whatever becomes of those before: one process, one kind of request.

    python -m benchmarks.open_loop  < plan (one line of JSON), then a line with the time of time.monotonic() to begin at

A latency counts from the moment at which the request was due, not from when it could be sent: a server that stalls for
20 ms is late for all that was due meanwhile, not only for the one that it was reading. Every request has a connection
(HTTP) or a call (gRPC) of its own while it is under way. Prints one line of JSON: the latencies in milliseconds, and
what the server answered.
"""
# ruff: noqa: T201 - speaks by print

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers import HOST

GIVES_UP_AFTER_S = 60.0
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """`message`: a file with the whole HTTP request, or with the message of a call to the gRPC `method`.

    `due_s` are the times at which HTTP requests are due, in place of a fixed rate: in seconds since the beginning.
    """

    port: int
    message: str
    per_second: float
    seconds: float
    method: str = ""
    due_s: Sequence[float] = ()


@dataclass(slots=True)
class Outcome:
    """`answers` counts statuses; `served_ms` are the latencies, over HTTP, of what was answered with 200."""

    latencies_ms: list[float]
    answers: Counter[str]
    served_ms: list[float] = field(default_factory=list)

    def answered(self, line: Line, now: float) -> None:
        """A request has been answered over HTTP."""
        latency_ms = (now - line.due) * 1e3
        self.latencies_ms.append(latency_ms)
        self.answers[line.status] += 1
        if line.status == "200":
            self.served_ms.append(latency_ms)


class Line:
    """A connection, and the request that is under way on it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.due = 0.0
        self.unsent = memoryview(b"")
        self.status = ""
        self._head = b""
        self._missing = -1

    def fileno(self) -> int:
        return self.socket.fileno()

    def ask(self, request: bytes, due: float) -> None:
        self.due, self.unsent = due, memoryview(request)
        self._head, self._missing = b"", -1
        self.send()

    def send(self) -> None:
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            return

    def read(self, buffer: memoryview) -> bool:
        """What has come; True once that is all. Raises ConnectionError."""
        count = self.socket.recv_into(buffer)
        if not count:
            raise ConnectionResetError("the server closed the connection")
        if self._missing < 0:
            self._head += bytes(buffer[:count])
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return False
            self.status = head[9:12].decode()
            length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._missing, count = int(length), len(body)
        self._missing -= count
        return not self._missing


class Lines:
    """Connections, and what has come on them. epoll knows any number of them, where select stops at a thousand."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._poll = select.epoll()
        self._all: dict[int, Line] = {}
        self.idle: list[Line] = []
        self.busy: set[Line] = set()
        for _ in range(8):
            self.idle.append(self._more())

    def _more(self) -> Line:
        line = Line(self._port)
        self._all[line.fileno()] = line
        self._poll.register(line, select.EPOLLIN)
        return line

    def ask(self, request: bytes, due: float) -> None:
        line = self.idle.pop() if self.idle else self._more()
        line.ask(request, due)
        self.busy.add(line)
        if line.unsent:
            self._poll.modify(line, select.EPOLLIN | select.EPOLLOUT)

    def readable(self, wait_s: float) -> Iterator[Line]:
        """Those that something has come on, after sending the rest of what is unsent."""
        for number, event in self._poll.poll(max(0.0, wait_s)):
            line = self._all[number]
            if event & select.EPOLLOUT:
                line.send()
                if not line.unsent:
                    self._poll.modify(line, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                yield line

    def done(self, line: Line) -> None:
        self.busy.discard(line)
        self.idle.append(line)

    def close(self, line: Line) -> None:
        self.busy.discard(line)
        if line in self.idle:
            self.idle.remove(line)
        del self._all[line.fileno()]
        line.socket.close()

    def close_all(self) -> None:
        for line in [*self._all.values()]:
            self.close(line)
        self._poll.close()


def press_http(plan: Plan, begin: float) -> Outcome:
    """One thread and no framework, so that there is little of ours in the figures."""
    request = Path(plan.message).read_bytes()
    buffer = memoryview(bytearray(READ_BYTES))
    lines = Lines(plan.port)
    outcome = Outcome([], Counter())
    evenly = [number / plan.per_second for number in range(int(plan.per_second * plan.seconds))]
    due = [begin + each for each in plan.due_s or evenly]
    due.reverse()
    while (due or lines.busy) and time.monotonic() < begin + plan.seconds + GIVES_UP_AFTER_S:
        if due and time.monotonic() >= due[-1]:
            lines.ask(request, due.pop())
            continue
        for line in lines.readable(due[-1] - time.monotonic() if due else 1.0):
            try:
                whole = line.read(buffer)
            except ConnectionError:
                outcome.answers["closed"] += line in lines.busy
                lines.close(line)
                continue
            if whole:
                outcome.answered(line, time.monotonic())
                lines.done(line)
    outcome.answers["none"] += len(lines.busy)
    lines.close_all()
    return outcome


def press_grpc(plan: Plan, begin: float) -> Outcome:
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    request = Path(plan.message).read_bytes()
    outcome = Outcome([], Counter())
    under_way = threading.Semaphore(0)
    total = int(plan.per_second * plan.seconds)
    with grpc.insecure_channel(f"{HOST}:{plan.port}", [*options, ("grpc.enable_http_proxy", 0)]) as channel:
        grpc.channel_ready_future(channel).result(GIVES_UP_AFTER_S)
        call = channel.unary_unary(plan.method)
        for number in range(total):
            due = begin + number / plan.per_second
            time.sleep(max(0.0, due - time.monotonic()))

            def ended(future: Any, due: float = due) -> None:
                outcome.latencies_ms.append((time.monotonic() - due) * 1e3)
                outcome.answers[future.code().name] += 1
                under_way.release()

            call.future(request, timeout=GIVES_UP_AFTER_S).add_done_callback(ended)
        for _ in range(total):
            under_way.acquire()
    return outcome


def main() -> None:
    plan = Plan(**json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    outcome = (press_grpc if plan.method else press_http)(plan, begin)
    print(json.dumps(asdict(outcome) | {"answers": dict(+outcome.answers)}))


if __name__ == "__main__":
    main()
