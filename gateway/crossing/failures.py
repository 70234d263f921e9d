"""GatewayError <-> message: the kind, the text and the facts, never code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tensorgate.gateway.contract.errors import Code, GatewayError, Internal, kinds, text_of
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import Failure

_KINDS: Final = {
    kind.__name__: kind for kind in kinds() if kind.__module__.startswith(GatewayError.__module__.rpartition(".")[0])
}


def failure_of(call: int, error: BaseException, ran: tuple[tuple[float, ...], ...] = ()) -> Failure:
    """What ends a call. An exception that is no GatewayError is a bug, whose text stays here."""
    if not isinstance(error, GatewayError):
        return Failure(call, Internal.__name__, "", {}, ran)
    facts = {name: _plain(value) for name, value in vars(error).items() if not name.startswith("_")}
    kind = next(each.__name__ for each in type(error).__mro__ if _KINDS.get(each.__name__) is each)
    return Failure(call, kind, text_of(error), facts, ran)


def error_of(failure: Failure) -> GatewayError:
    """The error that the other side had. Raises CrossingBroken for a kind that does not exist."""
    kind = _KINDS.get(failure.kind)
    if kind is None:
        raise CrossingBroken(f"an error of kind {failure.kind[:80]}")
    error = kind.__new__(kind, failure.text)
    facts = {name: _frozen(value) for name, value in failure.facts.items()}
    if "code" in facts:
        facts["code"] = Code(facts["code"])
    vars(error).update(facts)
    return error


def _plain(value: Any) -> Any:
    """What msgpack has: a set becomes a list, as tuples do, and any mapping a plain one."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Code):
        return int(value)
    return dict(value) if isinstance(value, Mapping) else value


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
