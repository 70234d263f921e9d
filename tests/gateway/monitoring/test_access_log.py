"""The access log from a call to the file: what a line says, who leaves one, and what becomes of the file."""

import contextlib
import gc
import json
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

from tensorgate.gateway.config import AccessLogConfig
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.monitoring import access_log
from tensorgate.gateway.monitoring.access_log import AccessLog, LogFile
from tensorgate.gateway.telemetry.call_outcome import CALLER_LEFT, CallOutcome, FailureKind
from tensorgate.gateway.telemetry.call_record import CallRecord

TARGET = "/v2/models/m/infer"
INFER: Any = Endpoint("POST /v2/models/{model}/infer", "infer", None, None, None)  # type: ignore[arg-type]


class Address:
    def address(self) -> str:
        return "10.0.0.7"


def trail_of(view: ModelView | None = None, **about: Any) -> tuple[Call, CallRecord]:
    call = Call(b"12345", "POST", TARGET, {}, "http", dialect="plain", listener=("front", "0.0.0.0:1"), peer=Address())
    for name, value in about.items():
        setattr(call, name, value)
    call_record = CallRecord()
    call_record.view = view
    return call, call_record


class Lines(list[dict[str, Any]]):
    """In place of a file."""

    dropped = taken = 0

    def start(self) -> None:
        """Nothing is written."""

    def write(self, lines: bytes, count: int) -> None:
        assert lines.count(b"\n") == count
        assert lines.endswith(b"\n")
        self.extend(map(json.loads, lines.splitlines()))


def outcome_of(call: Call, call_record: CallRecord) -> CallOutcome:
    outcome = CallOutcome()
    outcome.call_record = call_record
    outcome.endpoint, outcome.call = INFER, call
    outcome.code = Code.OK
    return outcome


def end(log: AccessLog, request_id: str) -> None:
    """A call is over of which there is nothing to say."""
    call, call_record = trail_of()
    call.request_id = request_id
    log.end(outcome_of(call, call_record))


def written(
    called: tuple[Call, CallRecord],
    code: Code = Code.OK,
    failure: FailureKind = CALLER_LEFT,
    seconds: float = 0.0125,
    **config: Any,
) -> Lines:
    lines = Lines()
    log = AccessLog(AccessLogConfig(**config), lines)  # type: ignore[arg-type]
    call, call_record = called
    call.request_id = "r-1"
    outcome = outcome_of(call, call_record)
    outcome.code, outcome.failure, outcome.seconds = code, failure, seconds
    log.end(outcome)
    assert outcome.call_record is None
    log.flush()
    return lines


def test_a_line_says_what_became_of_a_call(make_model: Callable[..., ModelView]) -> None:
    view = make_model("public", {}, {}, handle=SimpleNamespace(name="m"), route=SimpleNamespace(name="public"))
    call, call_record = trail_of(view)
    call_record.ran(2, 8, 1.0, 1.5, 1.75)
    call_record.sent, call_record.status = 99, 200
    (line,) = written((call, call_record))
    assert line.pop("time").endswith("Z")
    assert line == {
        "request_id": "r-1",
        "caller": None,
        "remote": "10.0.0.7",
        "dialect": "plain",
        "transport": "http",
        "listener": "front",
        "method": "infer",
        "route": "public",
        "model": "m",
        "version": 1,
        "rows": 2,
        "batch_rows": 8,
        "queue_ms": 500.0,
        "compute_ms": 250.0,
        "bytes_in": 5,
        "bytes_out": 99,
        "total_ms": 12.5,
        "code": "OK",
        "http_status": 200,
    }


def test_a_call_that_reached_no_model_says_why() -> None:
    (line,) = written(trail_of(), Code.NOT_FOUND, FailureKind("ModelNotFound", ErrorReason.UNKNOWN_MODEL))
    assert (line["code"], line["error"], line["reason"]) == ("NOT_FOUND", "ModelNotFound", "unknown_model")
    assert not {"model", "rows", "queue_ms"} & set(line)


@pytest.mark.parametrize(
    "evil", ['x"}\n{"time":"fake"}', "a\r\nb", "\x1b[2J", "\u2028", "\udcff\udcfe", "\x00", "😀"], ids=ascii
)
def test_nobody_writes_a_line_of_their_own(evil: str, make_model: Callable[..., ModelView]) -> None:
    view = make_model(evil, {}, {}, handle=SimpleNamespace(name=evil))
    (line,) = written(trail_of(view, listener=(evil,)))
    assert (line["model"], line["listener"]) == (evil, evil)


@pytest.mark.parametrize(
    ("config", "code", "seconds", "expected"),
    [
        ({"sample": 0.0}, Code.OK, 1.0, 0),
        ({"sample": 0.0}, Code.INTERNAL, 0.0, 1),
        ({"sample": 0.0, "errors": "sampled"}, Code.INTERNAL, 0.0, 0),
        ({"sample": 0.0, "slow_ms": 500.0}, Code.OK, 0.499, 0),
        ({"sample": 0.0, "slow_ms": 500.0}, Code.OK, 0.5, 1),
        ({"sample": 1.0}, Code.OK, 0.0, 1),
    ],
)
def test_which_calls_leave_a_line(config: Mapping[str, Any], code: Code, seconds: float, expected: int) -> None:
    assert len(written(trail_of(), code, CALLER_LEFT, seconds, **config)) == expected


def test_of_a_share_about_as_many_leave_one() -> None:
    assert 800 < sum(len(written(trail_of(), sample=0.5)) for _ in range(2000)) < 1200


def test_times_are_rfc_3339_and_now() -> None:
    before = int(time.time() * 1e3) / 1e3
    (line,) = written(trail_of())
    after = time.time()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert before - 1e-3 <= datetime.fromisoformat(line["time"]).timestamp() <= after


# ------------------------------------------------------------------------------------------------------------ the file


def content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def test_a_file_that_was_renamed_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    file = LogFile("access.log", path)
    file.write(b"one\n")
    wait_until(lambda: content(path) == b"one\n")
    path.rename(tmp_path / "access.log.1")
    file.write(b"two\n")
    wait_until(lambda: content(path) == b"two\n")
    os.truncate(path, 0)  # logrotate's copytruncate
    file.reopen()
    file.write(b"three\n")
    file.close()
    assert content(path) == b"three\n"
    assert content(tmp_path / "access.log.1") == b"one\n"


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    file = LogFile("access.log", path)
    for number in range(5000):
        file.write(b"%d\n" % number)
    file.close()
    assert content(path).split() == [b"%d" % number for number in range(5000)]
    assert (file.taken, file.dropped) == (5000, 0)


def test_a_full_pipe_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "MAX_WAITING", 10)
    monkeypatch.setattr(access_log, "_CLOSES_WITHIN_S", 0.1)
    read, write = os.pipe()
    os.set_blocking(write, True)
    os.set_blocking(read, False)
    file = LogFile("stdout", Path("stdout"))
    monkeypatch.setattr(file, "_opened", lambda: write)
    for _ in range(100):
        file.write(bytes(100_000))  # more than a pipe takes
    thread = file._thread
    assert thread is not None
    file.close()
    assert thread.is_alive(), "nobody has waited for it"
    assert file.dropped >= 80

    def ends() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(read, 1 << 20)
        return not thread.is_alive()

    wait_until(ends)
    os.close(read)


def test_a_file_that_cannot_be_written_drops_lines_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = LogFile("x", tmp_path / "gone" / "x")
    file.write(b"one\n")
    wait_until(lambda: file.dropped == 1)
    file.write(b"two\n")
    file.close()
    assert file.dropped == 2
    assert len(caplog.records) == 1


def test_the_default_is_the_standard_output() -> None:
    assert AccessLogConfig().file == FileRef("stdout", Path("stdout"))


def test_what_is_noted_becomes_lines_in_order_though_nobody_waits_for_them(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(AccessLogConfig(), LogFile("access.log", path))
    for number in range(3 * access_log.LINES_AT_ONCE + 1):
        end(log, str(number))
    assert log.written == 3 * access_log.LINES_AT_ONCE + 1
    wait_until(lambda: content(path).count(b"\n") == 3 * access_log.LINES_AT_ONCE + 1)
    assert [int(json.loads(line)["request_id"]) for line in content(path).splitlines()] == [*range(193)]
    end(log, "last")
    log._file.close()  # at the end of the process
    assert json.loads(content(path).splitlines()[-1])["request_id"] == "last"


def test_a_log_that_nobody_has_is_gone(tmp_path: Path) -> None:
    log = AccessLog(AccessLogConfig(), LogFile("access.log", tmp_path / "access.log"))
    end(log, "x")
    log._file.close()
    gone = weakref.ref(log)
    del log
    gc.collect()
    assert gone() is None


def test_lines_that_wait_for_the_disk_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "MAX_WAITING", 100)
    file = LogFile("access.log", tmp_path / "access.log")
    monkeypatch.setattr(file, "start", lambda: None)  # a disk that takes nothing
    log = AccessLog(AccessLogConfig(), file)
    for _ in range(1000):
        end(log, "x")
    lines, waiting = log._lines.take()
    assert waiting < access_log.LINES_AT_ONCE
    file.write(lines, waiting)
    assert 100 <= log.written < 100 + access_log.LINES_AT_ONCE
    assert log.written + log.dropped == 1000


@pytest.mark.parametrize("is_pipe", [True, False])
def test_what_is_no_regular_file_is_written_by_one_process_at_a_time(
    is_pipe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        entered.append(1)
        yield
        entered.append(-1)

    read, write = os.pipe()
    target = write if is_pipe else os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    file = LogFile("stdout", Path("stdout"), alone=alone)
    monkeypatch.setattr(file, "_opened", lambda: target)
    file.write(b"a line\n")
    file.close()
    assert entered == ([1, -1] if is_pipe else [])
    assert (os.read(read, 100) if is_pipe else (tmp_path / "log").read_bytes()) == b"a line\n"
    for each in {read, write, target}:
        os.close(each)
