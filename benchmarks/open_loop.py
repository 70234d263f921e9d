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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import HOST

GIVES_UP_AFTER_S = 60.0
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """`message`: a file with the whole HTTP request, or with the message of a call to the gRPC `method`."""

    port: int
    message: str
    per_second: float
    seconds: float
    method: str = ""


@dataclass(slots=True)
class Outcome:
    """`answers` counts statuses."""

    latencies_ms: list[float]
    answers: Counter[str]


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


def press_http(plan: Plan, begin: float) -> Outcome:
    """One thread and no framework, so that there is little of ours in the figures."""
    request = Path(plan.message).read_bytes()
    buffer = memoryview(bytearray(READ_BYTES))
    idle = [Line(plan.port) for _ in range(8)]
    busy: set[Line] = set()
    outcome = Outcome([], Counter())
    due = [begin + number / plan.per_second for number in range(int(plan.per_second * plan.seconds))]
    due.reverse()
    while (due or busy) and time.monotonic() < begin + plan.seconds + GIVES_UP_AFTER_S:
        if due and time.monotonic() >= due[-1]:
            line = idle.pop() if idle else Line(plan.port)
            line.ask(request, due.pop())
            busy.add(line)
            continue
        wait = due[-1] - time.monotonic() if due else 1.0
        readable, writable, _ = select.select(busy, [line for line in busy if line.unsent], [], max(0.0, wait))
        for line in writable:
            line.send()
        for line in readable:
            try:
                whole = line.read(buffer)
            except ConnectionError:
                busy.discard(line)
                line.socket.close()
                outcome.answers["closed"] += 1
                continue
            if whole:
                outcome.latencies_ms.append((time.monotonic() - line.due) * 1e3)
                outcome.answers[line.status] += 1
                busy.discard(line)
                idle.append(line)
    outcome.answers["none"] += len(busy)
    for line in (*idle, *busy):
        line.socket.close()
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
    print(json.dumps({"latencies_ms": outcome.latencies_ms, "answers": dict(+outcome.answers)}))


if __name__ == "__main__":
    main()
