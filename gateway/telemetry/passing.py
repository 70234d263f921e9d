"""Who sees a call that another server answers, unread, on its way to the caller: what counts its tokens, what compares
it with a mirror's, and the record of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tensorgate.gateway.contract.call import Buffer, PassOn, Reply
from tensorgate.gateway.telemetry.call_outcome import CallOutcome

_OK: Final = 200


def show(reply: Reply, outcome: CallOutcome) -> None:
    """Show a reply to those who count its tokens, or compare it. An error has none."""
    if reply.http_status != _OK:
        return
    body = reply.body
    for taker in (outcome.meter, outcome.seen_by):
        if taker is not None:
            for piece in (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body:
                taker.take(piece)


def watched(reply: Reply, outcome: CallOutcome) -> Reply:
    """The first reply of a stream; whoever wants to know is told of the pieces that are passed on behind it."""
    further, takers = reply.further, _takers(outcome)
    if further is None or not takers:
        return reply

    def tell(pass_: PassOn) -> None:
        def pass_and_tell(piece: Buffer) -> bool:
            if not pass_(piece):
                return False
            for take in takers:
                take(piece)
            return True

        further(pass_and_tell)

    return replace(reply, further=tell)


def _takers(outcome: CallOutcome) -> list[Callable[[Buffer], None]]:
    takers: list[Callable[[Buffer], None]] = []
    if outcome.call_record is not None:
        takers.append(outcome.call_record.passed)
    takers += [taker.take for taker in (outcome.meter, outcome.seen_by) if taker is not None]
    return takers


def tokens_of(outcome: CallOutcome) -> tuple[int, int] | None:
    """Those that a call brought, and those that it was answered with; None where nobody counts them, and of a call that
    was refused.
    """
    if outcome.meter is not None:
        return outcome.meter.tokens()
    tokens, question = outcome.endpoint.tokens, outcome.question
    if tokens is None or question is None or (outcome.code and not outcome.call.accepted):
        return None
    return tokens(question)
