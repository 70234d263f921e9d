"""What is gathered of a call: the compiled trail has the same numbers as the other."""

import gc
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from gateway.log_lines import make_lines
from gateway.ports import Reply
from gateway.trail import NO_LEG, Trail, make_trail

FIELDS = ("view", "status", "rows", "batch_rows", "sent", "queue_s", "compute_s", "trace_id")


@pytest.fixture
def native() -> Callable[[], Any]:
    compiled = pytest.importorskip("gateway._log_lines")
    assert make_trail is compiled.Trail
    return compiled.Trail  # type: ignore[no-any-return]


def said(trail: Any) -> list[Any]:
    return [getattr(trail, name) for name in FIELDS]


def line_of(trail: Any) -> bytes:
    lines = make_lines({}, lambda count: None, 64)
    lines.add("", "x", 1.5, 5, 0.5, trail)
    return lines.take()[0]


STEPS: dict[str, list[Callable[[Any], object]]] = {
    "nothing": [],
    "one": [
        lambda trail: trail.submitted("m"),
        lambda trail: trail.ran(2, 8, 1.0, 1.5, 1.75),
        lambda trail: trail.replied(Reply(b"12345"), 0.5),
    ],
    "two in a batch": [lambda trail: trail.ran(2, 8, 1.0, 1.5, 1.75), lambda trail: trail.ran(1, 8, 1.25, 1.5, 1.75)],
    "two in turn": [lambda trail: trail.ran(2, 2, 1.0, 1.5, 1.75), lambda trail: trail.ran(1, 1, 1.0, 1.75, 3.0)],
    "too late": [lambda trail: trail.left(3, 1.0, 1.25), lambda trail: trail.left(1, 1.0, 1.125)],
    "a stream": [lambda trail: trail.replied(Reply(b"12"))] * 3 + [lambda trail: trail.replied(Reply(b"", 503))],
    "parts": [lambda trail: trail.replied(Reply([b"12", bytearray(3), memoryview(b"4567")]))],
    "buffers": [lambda trail: trail.replied(Reply(bytearray(3))), lambda trail: trail.replied(Reply(memoryview(b"1")))],
    "another model": [lambda trail: setattr(trail, "view", "a"), lambda trail: trail.submitted("b")],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_both_gather_the_same(steps: list[Callable[[Any], object]], native: Callable[[], Any]) -> None:
    plain, compiled = Trail(), native()
    for step in steps:
        step(plain)
        step(compiled)
        assert said(compiled) == said(plain)
        assert line_of(compiled) == line_of(plain)
    assert said(compiled) == said(plain)


def test_both_gather_the_same_of_anything(native: Callable[[], Any]) -> None:
    chance = random.Random(1)  # noqa: S311 - guards nothing
    for _ in range(200):
        plain, compiled = Trail(), native()
        for _ in range(4):
            rows, times = chance.randrange(5), sorted(chance.uniform(0, 1e6) for _ in range(3))
            for trail in (plain, compiled):
                trail.ran(rows, rows + 3, *times)
                trail.left(rows, *times[1:])
        assert said(compiled) == said(plain)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda trail: trail.ran(1, 1, 1.0, 1.0),
        lambda trail: trail.ran("1", 1, 1.0, 1.0, 2.0),
        lambda trail: trail.ran(1, 1, 1.0, None, 2.0),
        lambda trail: trail.left(1, 1.0),
        lambda trail: trail.left(1, "1", 2.0),
        lambda trail: trail.replied(),
        lambda trail: trail.replied(Reply(5)),  # type: ignore[arg-type]
        lambda trail: trail.replied(Reply([b"12", 5])),  # type: ignore[list-item]
        lambda trail: setattr(trail, "rows", 5),
    ],
)
def test_what_is_wrong_changes_nothing(wrong: Callable[[Any], object], native: Callable[[], Any]) -> None:
    trail = native()
    with pytest.raises((TypeError, AttributeError)):
        wrong(trail)
    assert said(trail) == said(Trail())


def test_a_reply_that_is_none(native: Callable[[], Any]) -> None:
    with pytest.raises(AttributeError):
        native().replied(5)


def test_nobody_traces_it_further(native: Callable[[], Any]) -> None:
    assert native().upstream("elsewhere") is NO_LEG is Trail().upstream("elsewhere")


def test_it_keeps_nothing(native: Callable[[], Any]) -> None:
    class Model:
        pass

    view, body = Model(), bytearray(10)
    gone, count = weakref.ref(view), sys.getrefcount(body)
    gc.disable()
    try:
        for _ in range(100):
            trail = native()
            trail.submitted(view)
            trail.submitted(view)
            trail.replied(Reply(body))
        assert sys.getrefcount(body) == count
        del view, trail
        assert gone() is None
    finally:
        gc.enable()
