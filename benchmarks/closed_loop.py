"""Callers who ask again as soon as they have their answer: one process, one kind of request, so many at once.

    python -m benchmarks.closed_loop  < plan (a line of JSON), then a line with the time of time.monotonic() to begin at

Prints one line of JSON: the latencies in milliseconds of all that came back before the end, and what was answered.
"""
# ruff: noqa: T201 - speaks by print

from __future__ import annotations

import importlib
import json
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.open_loop import READ_BYTES, Line, Outcome
from benchmarks.servers import HOST

GIVES_UP_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`message`: a file with the whole HTTP request, or with the message of a call to the gRPC `method`."""

    port: int
    message: str
    callers: int
    seconds: float
    method: str = ""


def press_http(plan: Plan, begin: float) -> Outcome:
    """A connection per caller."""
    request = Path(plan.message).read_bytes()
    buffer = memoryview(bytearray(READ_BYTES))
    lines = [Line(plan.port) for _ in range(plan.callers)]
    outcome = Outcome([], Counter())
    ends = begin + plan.seconds
    time.sleep(max(0.0, begin - time.monotonic()))
    for line in lines:
        line.ask(request, time.monotonic())
    while time.monotonic() < ends:
        sending = [line for line in lines if line.unsent]
        readable, writable, _ = select.select(lines, sending, [], max(0.0, ends - time.monotonic()))
        for line in writable:
            line.send()
        for line in readable:
            if line.read(buffer):
                now = time.monotonic()
                outcome.latencies_ms.append((now - line.due) * 1e3)
                outcome.answers[line.status] += 1
                line.ask(request, now)
    for line in lines:
        line.socket.close()
    return outcome


def press_grpc(plan: Plan, begin: float) -> Outcome:
    """One connection; a thread of grpcio's own asks for whoever has an answer."""
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    request = Path(plan.message).read_bytes()
    outcome = Outcome([], Counter())
    ends, over = begin + plan.seconds, threading.Semaphore(0)
    with grpc.insecure_channel(f"{HOST}:{plan.port}", [*options, ("grpc.enable_http_proxy", 0)]) as channel:
        grpc.channel_ready_future(channel).result(GIVES_UP_AFTER_S)
        call = channel.unary_unary(plan.method)

        def ask() -> None:
            asked = time.monotonic()
            future = call.future(request, timeout=GIVES_UP_AFTER_S)
            future.add_done_callback(lambda done: answered(done, asked))

        def answered(future: Any, asked: float) -> None:
            now = time.monotonic()
            if now >= ends:
                over.release()
                return
            outcome.latencies_ms.append((now - asked) * 1e3)
            outcome.answers[future.code().name] += 1
            ask()

        time.sleep(max(0.0, begin - time.monotonic()))
        for _ in range(plan.callers):
            ask()
        for _ in range(plan.callers):
            over.acquire()
    return outcome


def main() -> None:
    plan = Plan(**json.loads(sys.stdin.readline()))
    if plan.method:
        importlib.import_module("grpc")  # which takes longer than the others would wait
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    press: Callable[[Plan, float], Outcome] = press_grpc if plan.method else press_http
    outcome = press(plan, begin)
    print(json.dumps({"latencies_ms": outcome.latencies_ms, "answers": dict(+outcome.answers)}))


if __name__ == "__main__":
    main()
