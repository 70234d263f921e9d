"""What differs between the answer that was recorded and another one: status, the headers that say what a body is, and
the body, as values where both are JSON, else byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorgate.gateway.recording.record import RecordedReply, body_of

COMPARED: Final = frozenset(
    {"allow", "content-encoding", "content-type", "inference-header-content-length", "retry-after", "www-authenticate"}
)
"""Headers that are an answer's; dates, lengths and names of servers are not."""
_SHOWN_CHARS: Final = 80
_MISSING: Final = object()


def differences(recorded: Sequence[RecordedReply], got: Sequence[RecordedReply]) -> list[str]:
    """What differs, a line each; none if nothing does. Bodies that were not kept are not compared."""
    found = []
    if len(recorded) != len(got):
        found.append(f"{len(recorded)} replies, now {len(got)}")
    for number, (then, now) in enumerate(zip(recorded, got, strict=False)):
        where = "" if len(recorded) == 1 else f"reply {number + 1}: "
        found += [f"{where}{each}" for each in _reply(then, now)]
    return found


def _reply(then: RecordedReply, now: RecordedReply) -> list[str]:
    found = [
        f"{name} {_shown(before)}, now {_shown(after)}"
        for name, before, after in (
            ("status", then.status, now.status),
            ("code", then.code, now.code),
            ("message", then.message, now.message),
        )
        if before != after
    ]
    before, after = _headers(then.headers), _headers(now.headers)
    found += [
        f"header {name} {_shown(before.get(name))}, now {_shown(after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    one, other = body_of(then), body_of(now)
    if one is not None and other is not None and one != other:
        found.append(_bodies(one, other))
    return found


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() in COMPARED}


def _bodies(one: bytes, other: bytes) -> str:
    try:
        place = _first(json.loads(one), json.loads(other), "")
    except (ValueError, RecursionError):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return (
            f"body of {len(one)} bytes, now {len(other)}, from byte {at} on: {_shown(one[at : at + 16])}, "
            f"now {_shown(other[at : at + 16])}"
        )
    if place is None:
        return "body: the same JSON, written otherwise"
    where, before, after = place
    return f"body{where or ''}: {_shown(before)}, now {_shown(after)}"


def _first(one: Any, other: Any, where: str) -> tuple[str, Any, Any] | None:
    """The first place where two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in (*one, *(key for key in other if key not in one)):
            place = _first(one.get(key, _MISSING), other.get(key, _MISSING), f"{where}.{key}")
            if place is not None:
                return place
        return None
    if isinstance(one, list) and isinstance(other, list):
        for index, (a, b) in enumerate(zip(one, other, strict=False)):
            place = _first(a, b, f"{where}[{index}]")
            if place is not None:
                return place
        return None if len(one) == len(other) else (where, f"{len(one)} elements", f"{len(other)} elements")
    same = type(one) is type(other) and (one == other or (one != one and other != other))
    return None if same else (where, one, other)


def _shown(value: Any) -> str:
    if value is _MISSING or value is None:
        return "nothing"
    text = repr(value) if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
