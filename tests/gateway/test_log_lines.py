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
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.log_lines import Lines, PlainLines, make_lines

CALL = {"names": ',"code":"OK"', "request_id": "r-1", "now": 1769903999.0421, "received": 5, "seconds": 0.0125}
TRAIL = {"view": "m", "rows": 2, "batch_rows": 8, "sent": 99, "queue_s": 0.5, "compute_s": 0.25, "trace_id": None}


def call(**about: Any) -> Any:
    """What `add` is given."""
    trail = {name: about.pop(name, value) for name, value in TRAIL.items()}
    assert about.keys() <= CALL.keys()
    return (*{**CALL, **about}.values(), SimpleNamespace(**trail))


@pytest.fixture
def native() -> Lines:
    compiled = pytest.importorskip("gateway._log_lines")
    made = make_lines()
    assert isinstance(made, compiled.Lines)
    return made


@pytest.fixture(params=["plain", "native"])
def lines(request: pytest.FixtureRequest) -> Lines:
    return PlainLines() if request.param == "plain" else request.getfixturevalue("native")  # type: ignore[no-any-return]


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
    plain = PlainLines()
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
        compiled.Lines(json.dumps, fails).add(*call())
    odd = compiled.Lines(json.dumps, lambda second: text)
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


def test_a_line_keeps_no_model(lines: Lines) -> None:
    class Model:
        pass

    view = Model()
    gone = weakref.ref(view)
    lines.add(*call(view=view))
    del view
    assert gone() is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, "0.000"), (0.0009996, "1.000"), (0.00999999, "10.000"), (0.01, "10.000"), (61.5, "61500.000")],
)
def test_times_have_three_digits_of_a_millisecond(seconds: float, expected: str, lines: Lines) -> None:
    lines.add(*call(seconds=seconds))
    assert f'"total_ms":{expected}}}'.encode() in lines.take()[0]
