"""What is gathered of a call."""

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.monitoring.log_lines import Lines
from tensorgate.gateway.telemetry.call_record import NO_OUTGOING_SPAN, CallRecord

Step = Callable[[Any], object]
NOTHING = {"view": None, "status": 0, "rows": 0, "batch_rows": 0, "sent": 0, "queue_s": 0.0, "compute_s": 0.0}

STEPS: dict[str, tuple[list[Step], dict[str, Any]]] = {
    "nothing": ([], {}),
    "one": (
        [
            lambda call_record: call_record.submitted("m"),
            lambda call_record: call_record.ran(2, 8, 1.0, 1.5, 1.75),
            lambda call_record: call_record.replied(Reply(b"12345"), 0.5),
        ],
        {"view": "m", "rows": 2, "batch_rows": 8, "queue_s": 0.5, "compute_s": 0.25, "sent": 5, "status": 200},
    ),
    "two in a batch": (
        [
            lambda call_record: call_record.ran(2, 8, 1.0, 1.5, 1.75),
            lambda call_record: call_record.ran(1, 8, 1.25, 1.5, 1.75),
        ],
        {"rows": 3, "batch_rows": 8, "queue_s": 0.5, "compute_s": 0.25},
    ),
    "two in turn": (  # from the first's submission to the second's end
        [
            lambda call_record: call_record.ran(2, 2, 1.0, 1.5, 1.75),
            lambda call_record: call_record.ran(1, 1, 1.0, 1.75, 3.0),
        ],
        {"rows": 3, "batch_rows": 2, "queue_s": 0.75, "compute_s": 1.25},
    ),
    "too late": (
        [lambda call_record: call_record.left(3, 1.0, 1.25), lambda call_record: call_record.left(1, 1.0, 1.125)],
        {"rows": 4, "queue_s": 0.25},
    ),
    "a stream": (
        [lambda call_record: call_record.replied(Reply(b"12"))] * 3
        + [lambda call_record: call_record.replied(Reply(b"", 503))],
        {"sent": 6, "status": 503},
    ),
    "parts": (
        [lambda call_record: call_record.replied(Reply([b"12", bytearray(3), memoryview(b"4567")]))],
        {"sent": 9, "status": 200},
    ),
    "buffers": (
        [
            lambda call_record: call_record.replied(Reply(bytearray(3))),
            lambda call_record: call_record.replied(Reply(memoryview(b"1"))),
        ],
        {"sent": 4, "status": 200},
    ),
    "another model": (
        [lambda call_record: setattr(call_record, "view", "a"), lambda call_record: call_record.submitted("b")],
        {"view": "b"},
    ),
}


@pytest.mark.parametrize(("steps", "expected"), STEPS.values(), ids=STEPS)
def test_what_is_gathered(steps: list[Step], expected: dict[str, Any]) -> None:
    call_record = CallRecord()
    for step in steps:
        step(call_record)
    assert {name: getattr(call_record, name) for name in NOTHING} == {**NOTHING, **expected}
    assert call_record.trace_id is None


def test_nobody_traces_it_further() -> None:
    assert CallRecord().upstream("elsewhere") is NO_OUTGOING_SPAN


def test_it_keeps_no_model_and_no_body() -> None:
    class Model:
        pass

    view: Any = Model()
    body = bytearray(10)
    gone, count = weakref.ref(view), sys.getrefcount(body)
    gc.disable()
    try:
        lines = Lines({}, lambda count: None, 64)
        for _ in range(100):
            call_record = CallRecord()
            call_record.submitted(view)
            call_record.replied(Reply(body))
            lines.add("", "x", 1.5, 5, 0.5, call_record)
        del view, call_record
        assert gone() is None
        assert sys.getrefcount(body) == count
    finally:
        gc.enable()
