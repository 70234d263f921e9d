"""GatewayError <-> message: the kind, the text and the facts, never code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tensorgate.gateway.contract.errors import Code, ErrorReason, GatewayError, Internal, kinds, text_of
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import Asked, Failure

_PUBLIC: Final = GatewayError.__module__.rpartition(".")[0]
_KINDS: Final = {"GatewayError": GatewayError} | {
    kind.__name__: kind for kind in kinds() if kind.__module__.startswith(_PUBLIC)
}
_MAX_INTEGER: Final = 1 << 63


def failure_of(
    call: int,
    error: BaseException,
    ran: tuple[tuple[float, ...], ...] = (),
    asked: tuple[Asked, ...] = (),
    *,
    refused: bool = False,
) -> Failure:
    """What ends a call, `refused` before it was accepted. An exception that is no GatewayError is a bug: its text stays
    here.
    """
    if not isinstance(error, GatewayError):
        return Failure(call, Internal.__name__, "", {}, ran, asked, refused)
    facts = {name: _plain(value) for name, value in vars(error).items() if not name.startswith("_")}
    kind = next(each.__name__ for each in type(error).__mro__ if _KINDS.get(each.__name__) is each)
    return Failure(call, kind, text_of(error), facts, ran, asked, refused)


def error_of(failure: Failure) -> GatewayError:
    """The error that the other side had. Raises CrossingBroken for a kind, a code or a reason that does not exist."""
    kind = _KINDS.get(failure.kind)
    if kind is None:
        raise CrossingBroken(f"an error of kind {failure.kind[:80]}")
    error = kind.__new__(kind, failure.text)
    facts = {name: _frozen(value) for name, value in failure.facts.items()}
    if "code" in facts:
        facts["code"] = code_of(facts["code"])
    if "error_reason" in facts:
        facts["error_reason"] = reason_of(facts["error_reason"])
    vars(error).update(facts)
    return error


def code_of(number: Any) -> Code:
    """Raises CrossingBroken for a number that is no code."""
    try:
        return Code(number)
    except ValueError as error:
        raise CrossingBroken(str(error)[:80]) from None


def reason_of(word: Any) -> ErrorReason:
    """Raises CrossingBroken for what is no reason."""
    try:
        return ErrorReason(word)
    except ValueError as error:
        raise CrossingBroken(str(error)[:80]) from None


def _plain(value: Any) -> Any:
    """What msgpack has: a set becomes a list, as tuples do, and what a user's class may hold its text."""
    if value is None or isinstance(value, (bool, float, bytes)):
        return value
    if isinstance(value, int) and abs(value) < _MAX_INTEGER:
        return int(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, (set, frozenset)):
        return [_plain(each) for each in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return str(value)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
