"""Lines of the access log."""

import gc
import json
import random
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.monitoring.log_lines import Lines
from tensorgate.gateway.telemetry.call_outcome import CALLER_LEFT, CallOutcome, FailureKind
from tensorgate.gateway.telemetry.call_record import CallRecord
from tensorgate.gateway.telemetry.request_id import is_valid

CALL = {"names": ',"code":"OK"', "request_id": "r-1", "now": 1769903999.0421, "received": 5, "seconds": 0.0125}
TRAIL = {"view": "m", "rows": 2, "batch_rows": 8, "sent": 99, "queue_s": 0.5, "compute_s": 0.25, "trace_id": None}


def call(**about: Any) -> Any:
    """What `add` is given."""
    call_record = {name: about.pop(name, value) for name, value in TRAIL.items()}
    assert about.keys() <= CALL.keys()
    return (*{**CALL, **about}.values(), SimpleNamespace(**call_record))


class Peer:
    def address(self) -> str:
        return "10.0.0.7"


class Lost:
    def address(self) -> str:
        raise OSError("gone")


class Told(dict[tuple[Any, ...], str]):
    """The key as the part of a line that is looked up by it."""

    def __missing__(self, key: tuple[Any, ...]) -> str:
        return f',"key":{json.dumps([getattr(each, "name", each) for each in key])}'


NAMES = Told()


def nobody(count: int) -> None:
    """Wants to know."""


@pytest.fixture
def lines() -> Lines:
    return Lines(NAMES, nobody, 64)


def test_what_a_line_is_made_of(lines: Lines) -> None:
    assert lines.add(*call()) == 1
    assert lines.add(*call(view=None, trace_id="0af7")) == 2
    assert lines.take() == (
        b'{"time":"2026-01-31T23:59:59.042Z","request_id":"r-1","code":"OK","rows":2,"batch_rows":8,"queue_ms":500.000,'
        b'"compute_ms":250.000,"bytes_in":5,"bytes_out":99,"total_ms":12.500}\n'
        b'{"time":"2026-01-31T23:59:59.042Z","request_id":"r-1","code":"OK","bytes_in":5,"bytes_out":99,'
        b'"total_ms":12.500,"trace_id":"0af7"}\n',
        2,
    )
    assert lines.take() == (b"", 0)
    assert lines.add(*call()) == 1


@pytest.mark.parametrize(
    "evil",
    ['x"}\n{"time":"fake"}', "a\r\nb", "\x1b[2J", "\u2028", "\udcff\udcfe", "\x00", "😀", "\x7f", "\\", "", " ~"],
)
def test_nobody_writes_a_line_of_their_own(evil: str, lines: Lines) -> None:
    lines.add(*call(request_id=evil))
    line, _ = lines.take()
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert json.loads(line)["request_id"] == evil


def test_seconds_pass(lines: Lines) -> None:
    for now in (0.0, 1.0, 1.9999, 86400.0, 1e10, 1.5):
        lines.add(*call(now=now))
    found = [json.loads(line)["time"] for line in lines.take()[0].splitlines()]
    assert found == [
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:01.000Z",
        "1970-01-01T00:00:01.999Z",
        "1970-01-02T00:00:00.000Z",
        "2286-11-20T17:46:40.000Z",
        "1970-01-01T00:00:01.500Z",
    ]


def seconds_of_all_kinds(chance: random.Random) -> list[float]:
    near = [step * 1e-3 + shift * 1e-7 for step in (0.5, 1, 9.9995, 10, 10.0005) for shift in range(-12, 13)]
    spread = [chance.uniform(0, 10**power) for power in range(-7, 8) for _ in range(200)]
    halves = [count / 2e6 for count in range(200)] + [count / 2e6 + 10e-3 for count in range(200)]
    return [*near, *spread, *halves, 0.0, 5e-324, 1e300, float("inf"), float("nan"), -1e-9, -1.0]


def test_numbers_read_back(lines: Lines) -> None:
    chance = random.Random(1)  # noqa: S311  (it guards nothing)
    numbers = [0, 1, 9, 10, 256, 99999, 1 << 31, (1 << 63) - 1, -1, -(1 << 63)]
    times = [seconds for seconds in seconds_of_all_kinds(chance) if 0 <= seconds < 1e9]
    for seconds in times:
        received, sent, rows, queue_s = *chance.choices(numbers, k=3), chance.choice(times)
        lines.add(*call(received=received, sent=sent, rows=rows, seconds=seconds, queue_s=queue_s))
        line = json.loads(lines.take()[0])
        assert (line["bytes_in"], line["bytes_out"], line["rows"]) == (received, sent, rows)
        assert line["total_ms"] == pytest.approx(seconds * 1e3, abs=5.1e-4, rel=1e-12)
        assert line["queue_ms"] == pytest.approx(queue_s * 1e3, abs=5.1e-4, rel=1e-12)


@pytest.fixture
def collecting() -> Iterator[None]:
    """Python's collector comes by all the time, and lets other threads on."""

    def let_on(phase: str, info: object) -> None:
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.freeze()  # there is little to look at then
    gc.callbacks.append(let_on)
    gc.set_threshold(20, 1_000_000, 1_000_000)
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
    gc.callbacks.remove(let_on)


@pytest.mark.usefixtures("collecting")
def test_a_thread_takes_whole_lines(lines: Lines) -> None:
    taken: list[tuple[bytes, int]] = []
    ends = threading.Event()

    def take() -> None:
        while not ends.is_set():
            taken.append(lines.take())

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(300):
        lines.add(*call(request_id=str(number), now=float(number)))
    ends.set()
    thread.join()
    taken.append(lines.take())
    found = b"".join(text for text, _ in taken).splitlines()
    assert [int(json.loads(line)["request_id"]) for line in found] == [*range(300)]
    assert all(text.count(b"\n") == count for text, count in taken)


def test_whoever_takes_them_is_told() -> None:
    told: list[int] = []
    lines = Lines(NAMES, told.append, 3)
    for _ in range(4):
        lines.add(*call())
    assert told == [1, 3, 4]
    lines.take()
    lines.add(*call())
    assert told == [1, 3, 4, 1]


def test_a_line_keeps_no_model(lines: Lines) -> None:
    class Model:
        pass

    view = Model()
    gone = weakref.ref(view)
    lines.add(*call(view=view))
    del view
    assert gone() is None


class View:
    def __init__(self, name: str) -> None:
        self.name = name


VIEW, OTHER = View("m"), View("other")
FULL = FailureKind("QueueFull", ErrorReason.QUEUE_FULL)


def ended(
    call: Call,
    call_record: CallRecord | None,
    question: Any = None,
    code: Code = Code.OK,
    failure: FailureKind = CALLER_LEFT,
    seconds: float = 0.0,
) -> CallOutcome:
    endpoint: Any = SimpleNamespace(method="infer")
    outcome = CallOutcome()
    outcome.endpoint, outcome.call, outcome.call_record = endpoint, call, call_record
    outcome.question, outcome.code, outcome.failure, outcome.seconds = question, code, failure, seconds
    return outcome


@pytest.mark.parametrize(
    ("view", "question", "model"),
    [
        (VIEW, None, "m"),
        (VIEW, SimpleNamespace(view=OTHER), "m"),
        (None, SimpleNamespace(view=OTHER), "other"),
        (None, SimpleNamespace(), None),
        (None, None, None),
    ],
)
@pytest.mark.parametrize(
    ("about", "listener", "caller"),
    [({}, ["front", "*:1"], None), ({"listener": (), "caller": SimpleNamespace(name="ann")}, [], "ann")],
)
def test_a_line_of_a_call(
    lines: Lines, view: Any, question: Any, model: Any, about: Any, listener: Any, caller: Any
) -> None:
    facts = {"listener": ("front", "*:1"), "dialect": "plain", "peer": Peer(), "request_id": "r-1", **about}
    called = Call(b"12345", "POST", "/", {}, "http", **facts)
    call_record = CallRecord()
    call_record.view = view
    call_record.replied(Reply([b"1234", b"56"], http_status=503))
    call_record.ran(2, 8, 1.0, 1.5, 1.75)
    before = time.time()
    outcome = ended(called, call_record, question, Code.UNAVAILABLE, FULL, 0.0125)
    assert lines.end(outcome) == 1
    assert outcome.call_record is None
    line = json.loads(lines.take()[0])
    said, after = datetime.fromisoformat(line.pop("time")).timestamp(), time.time()
    assert int(before * 1e3) / 1e3 - 1e-3 <= said <= after
    key = [model or ["", ""], listener, "plain", "http", "infer", "UNAVAILABLE", [*FULL], 503, "10.0.0.7", caller]
    ran = {"rows": 2, "batch_rows": 8, "queue_ms": 500.0, "compute_ms": 250.0}
    assert line == {
        "request_id": "r-1",
        "key": key,
        "bytes_in": 5,
        "bytes_out": 6,
        "total_ms": 12.5,
        **(ran if model else {}),
    }


def test_a_call_without_a_name_is_given_one(lines: Lines) -> None:
    ids = []
    for _ in range(3):
        called = Call(b"", "POST", "/", {}, "http", peer=Peer())
        lines.end(ended(called, CallRecord()))
        ids.append(json.loads(lines.take()[0])["request_id"])
    assert len(set(ids)) == 3
    assert all(map(is_valid, ids))


@pytest.mark.parametrize(
    ("about", "call_record", "error"),
    [
        ({"peer": None}, CallRecord(), AttributeError),
        ({"peer": Lost()}, CallRecord(), OSError),
        ({"listener": []}, CallRecord(), TypeError),
        ({"caller": 5}, CallRecord(), AttributeError),
        ({"body": None}, CallRecord(), TypeError),
        ({"request_id": 5}, CallRecord(), TypeError),
        ({}, None, AttributeError),
    ],
    ids=str,
)
def test_a_call_that_cannot_be_told_leaves_nothing(
    about: dict[str, Any], call_record: CallRecord | None, error: Any, lines: Lines
) -> None:
    called = Call(b"", "POST", "/", {}, "http", peer=Peer())
    for name, value in about.items():
        setattr(called, name, value)

    def tell() -> None:
        lines.end(ended(called, call_record))
        lines.take()  # without the helper, it is made here

    with pytest.raises(error):
        tell()
    assert lines.take() == (b"", 0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, "0.000"), (0.0009996, "1.000"), (0.00999999, "10.000"), (0.01, "10.000"), (61.5, "61500.000")],
)
def test_times_have_three_digits_of_a_millisecond(seconds: float, expected: str, lines: Lines) -> None:
    lines.add(*call(seconds=seconds))
    assert f'"total_ms":{expected}}}'.encode() in lines.take()[0]
