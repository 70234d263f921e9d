"""Lines of the access log: what is compiled makes the same bytes as what is not."""

import gc
import importlib.util
import json
import random
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import Code
from gateway.log_lines import Lines, PlainLines, make_lines
from gateway.ports import Call, Reply
from gateway.request_id import is_sane
from gateway.trail import Trail, make_trail

CALL = {"names": ',"code":"OK"', "request_id": "r-1", "now": 1769903999.0421, "received": 5, "seconds": 0.0125}
TRAIL = {"view": "m", "rows": 2, "batch_rows": 8, "sent": 99, "queue_s": 0.5, "compute_s": 0.25, "trace_id": None}


def call(**about: Any) -> Any:
    """What `add` is given."""
    trail = {name: about.pop(name, value) for name, value in TRAIL.items()}
    assert about.keys() <= CALL.keys()
    return (*{**CALL, **about}.values(), SimpleNamespace(**trail))


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
def native() -> Lines:
    compiled = pytest.importorskip("gateway._log_lines")
    made = make_lines(NAMES, nobody, 64)
    assert type(made) is compiled.Lines
    return made


@pytest.fixture(params=["plain", "native"])
def lines(request: pytest.FixtureRequest) -> Lines:
    return PlainLines(NAMES, nobody, 64) if request.param == "plain" else request.getfixturevalue("native")  # type: ignore[no-any-return]


def test_it_is_compiled_where_there_is_a_compiler() -> None:
    built = importlib.util.find_spec("gateway._log_lines") is not None
    assert built or shutil.which("g++") is None, "g++ is here: pip install -e . builds gateway._log_lines"


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


def test_both_make_the_same_bytes(native: Lines) -> None:
    chance = random.Random(1)  # noqa: S311  (it guards nothing)
    plain = PlainLines(NAMES, nobody, 64)
    numbers = [0, 1, 9, 10, 256, 99999, 1 << 31, (1 << 63) - 1, -1, -(1 << 63)]
    times = seconds_of_all_kinds(chance)
    for count, seconds in enumerate(times):
        facts = call(
            names=chance.choice(["", ',"model":"m"', ',"remote":"' + "x" * 5000 + '"']),
            request_id=chance.choice(["r-1", "x" * 3000, '"', "é"]),
            now=chance.uniform(0, 4e9),
            received=chance.choice(numbers),
            sent=chance.choice(numbers),
            seconds=seconds,
            view=chance.choice([None, "m"]),
            rows=chance.choice(numbers),
            batch_rows=chance.choice(numbers),
            queue_s=chance.choice(times),
            compute_s=chance.choice(times),
            trace_id=chance.choice([None, "0af7651916cd43dd8448eb211c80319c"]),
        )
        assert plain.add(*facts) == native.add(*facts) == 1 + count % 50
        if count % 50 == 49:
            assert plain.take() == native.take()
    assert plain.take() == native.take()


@pytest.mark.parametrize(
    "wrong",
    [
        {"now": float("nan")},
        {"now": float("inf")},
        {"now": "then"},
        {"received": 1 << 63},
        {"rows": 1.5},
        {"seconds": None},
        {"names": 5},
        {"names": "\udcff"},
        {"request_id": None},
        {"trace_id": 5},
    ],
    ids=str,
)
def test_what_is_no_line_leaves_nothing(wrong: dict[str, Any], native: Lines) -> None:
    native.add(*call())
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.add(*call(**wrong))
    with pytest.raises(TypeError):
        native.add(*call()[:-1])
    with pytest.raises(AttributeError):
        native.add(*call()[:-1], None)  # type: ignore[arg-type]
    native.add(*call())
    found, count = native.take()
    assert count == found.count(b"\n") == 2


@pytest.mark.parametrize("text", ["", "x" * 41])
def test_a_clock_that_errs(text: str) -> None:
    compiled = pytest.importorskip("gateway._log_lines")

    def fails(second: int) -> str:
        raise OSError("no clock")

    with pytest.raises(OSError, match="no clock"):
        compiled.Lines(json.dumps, fails, NAMES, str, nobody, 64).add(*call())
    odd = compiled.Lines(json.dumps, lambda second: text, NAMES, str, nobody, 64)
    if text:
        with pytest.raises(ValueError, match="too long"):
            odd.add(*call())
    else:
        odd.add(*call())
        assert odd.take()[0].startswith(b'{"time":".042Z"')


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


@pytest.mark.parametrize("make", ["plain", "native"])
def test_whoever_takes_them_is_told(make: str) -> None:
    told: list[int] = []
    if make == "plain":
        lines: Lines = PlainLines(NAMES, told.append, 3)
    else:
        pytest.importorskip("gateway._log_lines")
        lines = make_lines(NAMES, told.append, 3)
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


@pytest.mark.parametrize("make", [Trail, make_trail])
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
    lines: Lines, make: Any, view: Any, question: Any, model: Any, about: Any, listener: Any, caller: Any
) -> None:
    facts = {"listener": ("front", "*:1"), "dialect": "plain", "peer": Peer(), "request_id": "r-1", **about}
    called = Call(b"12345", "POST", "/", {}, "http", **facts)
    called.trail = trail = make()
    trail.view = view
    trail.replied(Reply([b"1234", b"56"], http_status=503))
    trail.ran(2, 8, 1.0, 1.5, 1.75)
    before = time.time()
    endpoint: Any = SimpleNamespace(method="infer")
    assert lines.end(endpoint, called, question, Code.UNAVAILABLE, "QueueFull", 0.0125) == 1
    assert called.trail is None
    line = json.loads(lines.take()[0])
    said, after = datetime.fromisoformat(line.pop("time")).timestamp(), time.time()
    assert int(before * 1e3) / 1e3 - 1e-3 <= said <= after
    key = [model, listener, "plain", "http", "infer", "UNAVAILABLE", "QueueFull", 503, "10.0.0.7", caller]
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
        called.trail = make_trail()
        lines.end(SimpleNamespace(method="infer"), called, None, Code.OK, "", 0.0)  # type: ignore[arg-type]
        ids.append(json.loads(lines.take()[0])["request_id"])
    assert len(set(ids)) == 3
    assert all(map(is_sane, ids))


@pytest.mark.parametrize(
    ("about", "error"),
    [
        ({"peer": None}, AttributeError),
        ({"peer": Lost()}, OSError),
        ({"listener": []}, TypeError),
        ({"caller": 5}, AttributeError),
        ({"body": None}, TypeError),
        ({"request_id": 5}, TypeError),
        ({"trail": None}, AttributeError),
    ],
    ids=str,
)
def test_a_call_that_cannot_be_told_leaves_nothing(about: dict[str, Any], error: Any, lines: Lines) -> None:
    called = Call(b"", "POST", "/", {}, "http", peer=Peer())
    called.trail = make_trail()
    for name, value in about.items():
        setattr(called, name, value)
    endpoint: Any = SimpleNamespace(method="infer")

    def tell() -> None:
        lines.end(endpoint, called, None, Code.OK, "", 0.0)
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
