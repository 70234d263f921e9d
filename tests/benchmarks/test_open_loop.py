"""Load at a fixed rate: what is late counts as late, whoever is to blame."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.mix import ALONE, Turn, stall_table, table
from benchmarks.mix_cases import LARGE, SMALL
from benchmarks.open_loop import Plan, press_http

BODY = b"x" * 100_000
HEAD = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 7\r\nContent-Length: %d\r\n\r\n" % len(BODY)
STALL_S = 0.3


class Stalling:
    """A server of one thread, which stands still before it answers its third request."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.asked = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            while connection.recv(1000):
                with self.lock:
                    self.asked += 1
                    if self.asked == 3:
                        time.sleep(STALL_S)  # real time: what is measured is time
                connection.sendall(HEAD + BODY)


@pytest.fixture
def server() -> Iterator[Stalling]:
    stalling = Stalling()
    yield stalling
    stalling.listener.close()


def test_a_stall_counts_for_all_that_was_due_meanwhile(server: Stalling, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_bytes(b"GET / HTTP/1.1\r\n\r\n")
    outcome = press_http(Plan(server.port, str(message), 50, 1), time.monotonic() + 0.1)
    assert outcome.answers == {"200": 50, "none": 0}
    late = [latency for latency in outcome.latencies_ms if latency > 20]
    assert len(late) >= STALL_S * 50 - 4
    assert max(late) >= STALL_S * 1e3 - 5


def test_a_turn_is_slow_by_itself_and_beside_the_others() -> None:
    def turn(p99: float) -> Turn:
        return Turn(1, p99, 2 * p99, 10, 3, 2, 1)

    lines = table(
        {
            ("v2", ALONE): [turn(4), turn(2)],
            ("v2", "quick"): [turn(4.9), turn(4.8)],
            ("v2", "slow"): [turn(9), turn(9)],
            ("v2", "as before"): [turn(8), turn(4)],
        }
    ).splitlines()
    assert [line.endswith("SLOW") for line in lines] == [False, False, False, True, False]


def test_of_stalls_the_least_counts() -> None:
    told = [{"took_ms": 5.0, "worst_ms": 2.0, "busy_ms": 1.0, "over_2_ms": 0.0}]
    told.append({"took_ms": 4.0, "worst_ms": 3.0, "busy_ms": 0.5, "over_2_ms": 1.0})
    assert stall_table({"big": told}).splitlines()[1].split() == ["big", "4.00", "2.00", "0.50", "0.00"]


@pytest.mark.parametrize("name", ["v2 two inputs", "v2 classes", "tf_serving texts", "grpc texts"])
def test_messages_are_whole(name: str) -> None:
    ask = LARGE[name]
    message = ask.message()
    if ask.transport == "grpc":
        assert message == ask.body()
        return
    head, _, body = message.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert ask.target in head.decode()
    assert SMALL["v2"].target.startswith("/v2/")
