"""W3C's trace context: what callers say, and who is traced."""

from typing import Any

import pytest

from tensorgate.gateway.telemetry.trace_context import Parent, is_sampled, parent_of, untraced

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", Parent(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-00", Parent(TRACE, SPAN, False)),
        (f"00-{TRACE}-{SPAN}-03", Parent(TRACE, SPAN, True)),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", Parent(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("", None),
        ("x" * 10_000, None),
    ],
)
def test_a_caller_s_span(text: str, expected: Any) -> None:
    assert parent_of({"traceparent": text}) == expected


@pytest.mark.parametrize(
    ("state", "expected"), [("a=1,b=2", "a=1,b=2"), ("a=\udcff", ""), ("a=1\r\nb", ""), ("x" * 600, "")]
)
def test_a_caller_s_state_is_kept_if_it_is_sane(state: str, expected: str) -> None:
    found = parent_of({"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": state})
    assert found is not None
    assert found.state == expected
    assert found.headers().get("tracestate", "") == expected


def test_the_caller_decides_else_chance() -> None:
    assert is_sampled(Parent(TRACE, SPAN, True), 0.0)
    assert not is_sampled(Parent(TRACE, SPAN, False), 1.0)
    assert is_sampled(None, 1.0)
    assert not is_sampled(None, 0.0)
    assert 300 < sum(is_sampled(None, 0.5) for _ in range(1000)) < 700


def test_others_are_told_not_to_trace() -> None:
    told = parent_of(untraced().headers())
    assert told is not None
    assert not told.sampled
