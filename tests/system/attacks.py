"""The harness of all attacks: a gateway that is attacked, callers that send good requests meanwhile, and what an answer
to an attack may be.

A module of attacks has a fixture `gateway`, made by `attacked`, and uses the fixture `undisturbed` everywhere; its
bystanders are those of its `BYSTANDERS`, if it has any of its own.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any

import pytest
from serving import HOST, ROOT, Answer, Gateway, running
from waiting import wait_until

LIMIT_BYTES = 8 << 20
WITHIN_S = 2.0
INFER = "/v2/models/half_plus_two/infer"
PREDICT = "/v1/models/half_plus_two:predict"
GRPS = "/grps/v1/infer/predict?model=half_plus_two-1"
Body = bytes | Callable[[], bytes]


# ---------------------------------------------------------------------------------------------------------- bystanders

GOOD = [
    (
        INFER,
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}]},
        {
            "model_name": "half_plus_two",
            "model_version": "1",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [2.5, 3.0]}],
        },
    ),
    (PREDICT, {"instances": [1.0, 2.0]}, {"predictions": [2.5, 3.0]}),
    (
        f"{GRPS}&return-ndarray=true",
        {"ndarray": [1.0, 2.0]},
        {"status": {"code": 200, "msg": "OK", "status": "SUCCESS"}, "ndarray": [2.5, 3.0]},
    ),
]


class Bystanders:
    """A thread that sends good requests of all dialects, one after another, for as long as the attacks go on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()
        self.rounds = 0
        self.failures: list[str] = []

    def _go_on(self) -> None:
        while not self._over.wait(0.01):
            for path, body, want in GOOD:
                self._ask(path, body, want)
            self.ask_more()
            self.rounds += 1

    def _ask(self, path: str, body: Any, want: Any) -> None:
        try:
            answer = self._gateway.post(path, body)
            if (answer.status, answer.json) != (200, want):
                self.failures.append(f"{path}: {answer.status} {answer.body[:200]!r}")
        except (OSError, HTTPException) as error:
            self.failures.append(f"{path}: {error!r}")

    def ask_more(self) -> None:
        """What else a round has."""

    def check(self) -> None:
        """Nothing went wrong for them since the last check, and at least one more round was answered."""
        rounds = self.rounds
        wait_until(lambda: self.rounds > rounds, lambda: "Good requests are not answered any more.")
        assert self.failures == []

    def pause(self) -> None:
        """For a hundredth of a second."""
        self._over.wait(0.01)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def attacked(folders: pytest.TempPathFactory, config: str, **modules: str) -> Iterator[Gateway]:
    """A gateway of this YAML, with these Python modules beside it; it must end as it should, without a traceback."""
    file = folders.mktemp("attacked") / "demo.yaml"
    file.write_text(config)
    for name, source in modules.items():
        (file.parent / f"{name}.py").write_text(source)
    with running(file) as gateway:
        yield gateway
        assert gateway.stop() == 0, gateway.said
        assert "Traceback" not in gateway.said_itself, gateway.said


# -------------------------------------------------------------------------------------------------------------- checks


def message_of(dialect: str, answer: Answer) -> str:
    """The text of an error in the form of its dialect, which is checked to the last key."""
    assert answer.headers["Content-Type"] == ("application/json;charset=utf-8" if dialect == "grps" else JSON_TYPE)
    if dialect == "grps":
        assert answer.json.keys() == {"status"}
        status = answer.json["status"]
        assert (status["code"], status["status"]) == (answer.status, "FAILURE")
        assert status.keys() == {"code", "msg", "status"}
        return str(status["msg"])
    assert answer.json.keys() == {"error"}
    return str(answer.json["error"])


JSON_TYPE = "application/json"
SECRETS = (b"Traceback", b'File "', b".py", b"site-packages", str(ROOT).encode())


def check_refusal(dialect: str, answer: Answer, status: int, text: str) -> None:
    assert answer.status == status, answer.body[:300]
    assert text in message_of(dialect, answer)
    assert not [secret for secret in SECRETS if secret in answer.body]


def closing_connection(gateway: Gateway) -> socket.socket:
    return socket.create_connection((HOST, gateway.port), timeout=10)


def read_answer(sock: socket.socket) -> Answer:
    response = HTTPResponse(sock)
    response.begin()
    return Answer(response.status, dict(response.headers), response.read())
