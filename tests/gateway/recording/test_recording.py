"""Recorded calls: what a line has, what files hold, and what differs between two answers."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

from tensorgate.gateway.config.observing import RecordConfig
from tensorgate.gateway.contract.call import Call, Caller, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.recording import backlog
from tensorgate.gateway.recording.files import RecordFiles
from tensorgate.gateway.recording.record import RecordedCall, body_of, read_files
from tensorgate.gateway.recording.recorder import FlightRecorder
from tensorgate.gateway.telemetry.call_outcome import CallOutcome


class Kept:
    """In place of files."""

    written = dropped = 0

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def take(self, line: bytes, nbytes: int) -> None:
        assert nbytes == len(line)
        self.lines.append(line)


def config(**more: Any) -> RecordConfig:
    return RecordConfig.model_construct(file=FileRef("calls", Path("calls")), **more)


def recorded(call: Call, *replies: Reply, view: Any = None, code: Code = Code.OK, **more: Any) -> RecordedCall | None:
    kept: Any = Kept()
    recorder = FlightRecorder(config(**more), kept, None, frozenset({"x-admin"}))
    outcome = CallOutcome()
    outcome.call, outcome.begun, outcome.code = call, time.perf_counter(), code
    endpoint: Any = SimpleNamespace(stream="unary")
    outcome.endpoint = endpoint
    outcome.question = SimpleNamespace(view=view) if view is not None else None
    recorder.begin(outcome)
    for reply in replies:
        outcome.recorded.replied(reply)
    recorder.keep(outcome)
    if not kept.lines:
        return None
    (line,) = kept.lines
    assert line.endswith(b"\n")
    return decoded(line)


def decoded(line: bytes) -> RecordedCall:
    import msgspec

    return msgspec.json.decode(line, type=RecordedCall)


HEADERS = st.dictionaries(
    st.text("abc-", min_size=1, max_size=8), st.text(st.characters(codec="utf-8"), max_size=20), max_size=4
)


@given(st.binary(max_size=200), HEADERS, st.lists(st.binary(max_size=100), max_size=3), st.text(max_size=30))
def test_what_is_recorded_is_what_came_and_went(body: bytes, headers: Any, answers: list[bytes], target: str) -> None:
    target = target.encode("utf-8", "replace").decode()
    call = Call(body, "POST", target, headers, "http", request_id="r", listener=("l", "b"))
    call.dialect = "v2"
    call.caller = Caller("ann")
    found = recorded(call, *[Reply([each, b"x"], 201, {"A": "b"}, Code.UNKNOWN, "no") for each in answers])
    assert found is not None
    assert (found.dialect, found.transport, found.target, found.listener) == ("v2", "http", target, "l")
    assert (found.caller, found.request_id, found.ended, found.model) == ("ann", "r", "OK", "")
    assert found.headers == headers
    assert body_of(found) == body
    assert [body_of(each) for each in found.replies] == [each + b"x" for each in answers]
    for reply in found.replies:
        assert (reply.code, reply.message, reply.headers, reply.status) == (0, "", {"A": "b"}, 201)


def test_over_grpc_there_are_codes_and_no_body_beside_an_error() -> None:
    replies = Reply(b"one", grpc_code=Code.OK), Reply(b"no", 404, {"A": "b"}, Code.NOT_FOUND, "none")
    found = recorded(Call(b"", "POST", "/s/M", {}, "grpc"), *replies)
    assert found is not None
    assert [(each.code, each.message, body_of(each)) for each in found.replies] == [(0, "", b"one"), (5, "none", b"")]
    assert [(each.status, each.headers) for each in found.replies] == [(200, {})] * 2


def test_memory_that_is_used_again_is_copied() -> None:
    memory = bytearray(b"one")
    call = Call(memoryview(memory), "POST", "/", {}, "http")
    kept: Any = Kept()
    outcome = CallOutcome()
    outcome.call, outcome.begun = call, time.perf_counter()
    outcome.endpoint = SimpleNamespace(stream="unary")  # type: ignore[assignment]
    answer = bytearray(b"uno")
    recorder = FlightRecorder(config(), kept)
    recorder.begin(outcome)
    memory[:] = b"two"
    outcome.recorded.replied(Reply(memoryview(answer)))
    answer[:] = b"dos"
    recorder.keep(outcome)
    found = decoded(kept.lines[0])
    assert (body_of(found), body_of(found.replies[0])) == (b"one", b"uno")


def test_credentials_and_what_is_redacted_are_never_written() -> None:
    secret = dict.fromkeys(("authorization", "cookie", "x-api-key", "x-admin", "x-own", "set-cookie"), "secret")
    call = Call(b"", "GET", "/", {**secret, "kept": "1"}, "http")
    found = recorded(call, Reply(b"", headers={"Set-Cookie": "secret", "Kept": "2"}), redact=("X-Own",))
    assert found is not None
    assert (found.headers, found.replies[0].headers) == ({"kept": "1"}, {"Kept": "2"})


def test_long_bodies_leave_their_length() -> None:
    found = recorded(Call(bytes(11), "POST", "/", {}, "http"), Reply([bytes(6), bytes(6)]), max_body_bytes=10)
    assert found is not None
    assert (found.left_out_bytes, found.replies[0].left_out_bytes) == (11, 12)
    assert body_of(found) is body_of(found.replies[0]) is None


@pytest.mark.parametrize(("name", "is_kept"), [("m", True), ("n", False), ("", False)])
def test_only_wanted_models_are_recorded(name: str, is_kept: bool) -> None:
    view = SimpleNamespace(name=name, version=3) if name else None
    found = recorded(Call(b"", "GET", "/", {}, "http"), Reply(b""), view=view, models=("m",))
    assert (found is not None) is is_kept
    if found is not None:
        assert (found.model, found.version) == ("m", 3)


def test_a_call_that_has_no_line_is_counted_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    kept: Any = Kept()
    recorder = FlightRecorder(config(), kept)
    outcome: Any = CallOutcome()
    outcome.call, outcome.begun = Call(b"", "GET", "/", {}, "http"), 0.0
    recorder.begin(outcome)
    recorder.keep(outcome)  # it has no endpoint
    assert (kept.lines, recorder.counts()) == ([], (0, 1, 0))
    assert "a call cannot be recorded" in caplog.text


def test_a_share_of_all_calls() -> None:
    kept: Any = Kept()
    recorder = FlightRecorder(config(share=0.25), kept)
    begun = 0
    for _ in range(4000):
        outcome = CallOutcome()
        outcome.call, outcome.begun = Call(b"", "GET", "/", {}, "http"), 0.0
        recorder.begin(outcome)
        begun += outcome.recorded is not None
    assert 800 < begun < 1200


def test_under_load_calls_are_passed_over_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: Any = Kept()
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    recorder = FlightRecorder(config(max_load=0.05), kept)
    monkeypatch.setattr(recorder, "_keep", lambda outcome: now.__setitem__(0, now[0] + 0.001))  # each takes 1 ms
    for _ in range(3):
        begun = 0
        for _ in range(1000):  # one every 2 ms
            outcome: Any = CallOutcome()
            outcome.call, outcome.begun = Call(b"", "GET", "/", {}, "http"), now[0]
            recorder.begin(outcome)
            if outcome.recorded is not None:
                recorder.keep(outcome)
                begun += 1
            now[0] += 0.002
        assert 10 <= begun <= 40  # all that is done for one takes five times as long
    assert recorder.counts()[2] > 2800
    everything = FlightRecorder(config(max_load=1.0), kept)
    for _ in range(100):
        outcome = CallOutcome()
        outcome.call, outcome.begun = Call(b"", "GET", "/", {}, "http"), now[0]
        everything.begin(outcome)
        assert outcome.recorded is not None


# --------------------------------------------------------------------------------------------------------------- files


def test_files_rotate_and_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    for number in range(7):
        files = RecordFiles(path, 1 << 16, 3)
        files.take(b"%d" % number * 40_000 + b"\n", 40_001)
        files.close()
        assert (files.written, files.dropped) == (1, 0)
    whole = RecordFiles(path, 1 << 16, 3)
    for number in range(7):
        whole.take(b"%d" % number * 40_000 + b"\n", 40_001)
        wait_until(lambda number=number: whole.written == number + 1)
    whole.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["calls", "calls.1", "calls.2"]
    assert [(tmp_path / name).read_bytes()[:1] for name in ("calls", "calls.1", "calls.2")] == [b"6", b"5", b"4"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_is_too_slow_costs_calls_and_nobody_s_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MAX_WAITING_BYTES", 100)
    monkeypatch.setattr(backlog, "_WRITE_EVERY_S", 100)
    files = RecordFiles(tmp_path / "calls", 1 << 20, 1)
    for _ in range(10):
        files.take(b"x\n", 30)
    files.close()
    assert (files.written, files.dropped) == (3, 7)
    assert (tmp_path / "calls").read_bytes() == b"x\n" * 3


def test_a_disk_that_refuses_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = RecordFiles(tmp_path / "none" / "calls", 1 << 20, 1)
    for number in range(3):
        files.take(b"x\n", 2)
        wait_until(lambda number=number: files.dropped == number + 1)
    (tmp_path / "none").mkdir()
    files.take(b"y\n", 2)
    wait_until(lambda: files.written == 1)
    files.close()
    assert len([each for each in caplog.records if "cannot be recorded" in each.message]) == 1


@pytest.mark.parametrize("cut", [b"", b'{"v":1', b"y" * 200_000])
def test_a_line_that_was_cut_off_is_removed_before_the_next(cut: bytes, tmp_path: Path) -> None:
    (tmp_path / "calls").write_bytes(b"one\ntwo\n" + cut)
    files = RecordFiles(tmp_path / "calls", 1 << 20, 1)
    files.take(b"three\n", 6)
    files.close()
    assert (tmp_path / "calls").read_bytes() == b"one\ntwo\nthree\n"


def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, room = os.write, [8]

    def write(file: int, data: Any) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = genuine(file, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    files = RecordFiles(tmp_path / "calls", 1 << 20, 1)
    files.take(b"12345\n", 6)
    wait_until(lambda: files.written == 1)
    files.take(b"67890\n", 6)
    wait_until(lambda: files.dropped == 1)
    room[0] = 100
    files.take(b"abcde\n", 6)
    files.close()
    assert (tmp_path / "calls").read_bytes() == b"12345\nabcde\n"


LINE = {"v": 1, "time": 1.0, "dialect": "v2", "transport": "http", "stream": "unary", "method": "GET", "target": "/"}
WHOLE = json.dumps(LINE | {"headers": {}, "seconds": 0.5, "ended": "OK"}).encode()


def test_the_last_line_of_a_killed_process_may_be_cut_off(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(WHOLE + b"\n" + WHOLE[:30])
    (tmp_path / "b").write_bytes(WHOLE + b"\n")
    assert [each.target for each in read_files([tmp_path / "a", tmp_path / "b"])] == ["/", "/"]


@pytest.mark.parametrize(
    ("line", "text"),
    [(b"{}", "no recorded call"), (b"x", "no recorded call"), (WHOLE.replace(b'"v": 1', b'"v": 2'), "version 2")],
)
def test_what_is_no_recording_is_named(line: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(WHOLE + b"\n" + line + b"\n")
    with pytest.raises(ValueError, match=text) as error:
        list(read_files([tmp_path / "a"]))
    assert str(error.value).startswith(f"{tmp_path}/a:2: ")
