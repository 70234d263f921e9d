"""Who a call belongs to, as W3C's trace context writes it in headers, and whether it is traced.

That is decided here, before anything is made for a trace: a caller's own word counts, else chance. Source: W3C, Trace
Context, level 1.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_LONGEST_STATE: Final = 512
_PARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
).fullmatch
_STATE: Final = re.compile(rf"[\x20-\x7e]{{1,{_LONGEST_STATE}}}").fullmatch


@dataclass(frozen=True, slots=True)
class Parent:
    """The span of a caller. Both ids are in hexadecimal digits."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""

    def headers(self) -> Mapping[str, str]:
        """As the next server reads it."""
        parent = {TRACEPARENT: f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"}
        return {**parent, TRACESTATE: self.state} if self.state else parent


def parent_of(headers: Mapping[str, str]) -> Parent | None:
    """What a caller says; None for nothing, or nothing that can be understood."""
    text = headers.get(TRACEPARENT)
    found = _PARENT(text) if text is not None and len(text) <= _LONGEST_STATE else None
    if found is None or (found[1] == "00" and found[5]):
        return None
    state = headers.get(TRACESTATE, "")
    return Parent(found[2], found[3], bool(int(found[4], 16) & 1), state if _STATE(state) else "")


def is_sampled(parent: Parent | None, ratio: float) -> bool:
    """Whether a call is traced."""
    # S311: it guards nothing.
    return parent.sampled if parent is not None else random.random() < ratio  # noqa: S311


def untraced() -> Parent:
    """What other servers are told of a call that began here and is not traced, so that they do not trace it, either."""
    return Parent(secrets.token_hex(16), secrets.token_hex(8), sampled=False)
