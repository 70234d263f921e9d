"""What differs between the answer that was recorded and another one: status, the headers that say what a body is, and
the body: as values where both are JSON, as tensors where the dialect's client reads them, else byte for byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tensorgate.gateway.contract.canonical import InferResponse
from tensorgate.gateway.recording.record import RecordedReply, body_of
from tensorgate.gateway.routing.response_diff import TensorDiff, Tolerance, compare

COMPARED: Final = frozenset(
    {"allow", "content-encoding", "content-type", "inference-header-content-length", "retry-after", "www-authenticate"}
)
"""Headers that are an answer's; dates, lengths and names of servers are not."""
_LENGTHS: Final = frozenset({"inference-header-content-length"})
"""Headers that follow from how a body is written."""
_SHOWN_CHARS: Final = 80
_MISSING: Final = object()
_EXACT: Final = Tolerance(0.0, 0.0)

ReadTensors: TypeAlias = Callable[[RecordedReply], InferResponse | None]
"""The answer of a reply; None where it is none that has tensors."""


@dataclass(frozen=True, slots=True)
class Leniency:
    """What counts as no difference: floating-point numbers within a tolerance, keys of JSON and outputs that are
    `ignored`. With any of it JSON is compared as values alone, and what is not JSON as tensors alone.
    """

    tolerance: Tolerance = _EXACT
    ignored: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.tolerance != _EXACT or bool(self.ignored)


def differences(
    recorded: Sequence[RecordedReply],
    got: Sequence[RecordedReply],
    leniency: Leniency = Leniency(),
    read: ReadTensors = lambda reply: None,
) -> list[str]:
    """What differs, a line each; none if nothing does. Bodies that were not kept are not compared."""
    found = []
    if len(recorded) != len(got):
        found.append(f"{len(recorded)} replies, now {len(got)}")
    for number, (then, now) in enumerate(zip(recorded, got, strict=False)):
        where = "" if len(recorded) == 1 else f"reply {number + 1}: "
        found += [f"{where}{each}" for each in _reply(then, now, leniency, read)]
    return found


def _reply(then: RecordedReply, now: RecordedReply, leniency: Leniency, read: ReadTensors) -> Iterator[str]:
    for name, before, after in (
        ("status", then.status, now.status),
        ("code", then.code, now.code),
        ("message", then.message, now.message),
    ):
        if before != after:
            yield f"{name} {_shown(before)}, now {_shown(after)}"
    headers, others = _headers(then.headers, leniency), _headers(now.headers, leniency)
    for name in sorted(headers.keys() | others.keys()):
        if headers.get(name) != others.get(name):
            yield f"header {name} {_shown(headers.get(name))}, now {_shown(others.get(name))}"
    one, other = body_of(then), body_of(now)
    if one is None or other is None or one == other:
        return
    try:
        values = json.loads(one), json.loads(other)
    except (ValueError, RecursionError):
        yield from _binary(then, now, leniency, read)
        return
    place = _first(*values, "", leniency)
    if place is not None:
        where, before, after = place
        yield f"body{where or ''}: {_shown(before)}, now {_shown(after)}"
    elif not leniency:
        yield "body: the same JSON, written otherwise"


def _headers(headers: Mapping[str, str], leniency: Leniency) -> dict[str, str]:
    compared = COMPARED - _LENGTHS if leniency else COMPARED
    return {name.lower(): value for name, value in headers.items() if name.lower() in compared}


def _binary(then: RecordedReply, now: RecordedReply, leniency: Leniency, read: ReadTensors) -> Iterator[str]:
    """What differs between bodies of which one at least is no JSON."""
    primary, shadow = read(then), read(now)
    known = primary is not None and shadow is not None
    if primary is not None and shadow is not None:
        compared = compare(primary, shadow, leniency.tolerance, leniency.ignored)
        lines = [_tensor(each) for each in compared if each.what != "equal"]
        yield from lines
        if lines or leniency:
            return
    one, other = body_of(then) or b"", body_of(now) or b""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    what = "the same tensors, in a body" if known else "body"
    yield (
        f"{what} of {len(one)} bytes, now {len(other)}, from byte {at} on: {_shown(one[at : at + 16])}, "
        f"now {_shown(other[at : at + 16])}"
    )


def _tensor(found: TensorDiff) -> str:
    if found.what != "values":
        return f"output {found.output}: {found.primary or 'nothing'}, now {found.shadow or 'nothing'}"
    far = f", by up to {found.max_absolute:.4g}" if found.max_absolute else ""
    index, before, after = found.first[0]
    return (
        f"output {found.output}: {found.beyond} of {found.elements} elements{far}; "
        f"first {list(index)}: {before}, now {after}"
    )


def _first(one: Any, other: Any, where: str, leniency: Leniency) -> tuple[str, Any, Any] | None:
    """The first place where two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in (*one, *(key for key in other if key not in one)):
            if key in leniency.ignored:
                continue
            place = _first(one.get(key, _MISSING), other.get(key, _MISSING), f"{where}.{key}", leniency)
            if place is not None:
                return place
        return None
    if isinstance(one, list) and isinstance(other, list):
        for index, (a, b) in enumerate(zip(one, other, strict=False)):
            place = _first(a, b, f"{where}[{index}]", leniency)
            if place is not None:
                return place
        return None if len(one) == len(other) else (where, f"{len(one)} elements", f"{len(other)} elements")
    same = type(one) is type(other) and (one == other or (one != one and other != other))
    return None if same or _near(one, other, leniency) else (where, one, other)


def _near(one: Any, other: Any, leniency: Leniency) -> bool:
    """Two numbers, of which one at least has a fraction or an exponent."""
    kinds = {type(one), type(other)}
    tolerance = leniency.tolerance
    return (
        tolerance != _EXACT
        and float in kinds
        and kinds <= {int, float}
        and math.isfinite(one)
        and abs(one - other) <= tolerance.atol + tolerance.rtol * abs(one)
    )


def _shown(value: Any) -> str:
    if value is _MISSING or value is None:
        return "nothing"
    text = repr(value) if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
