"""Who waits for a request that one model makes of another, so that a ring of models is found and not waited for."""

from __future__ import annotations

from dataclasses import dataclass

from tensorgate.gateway.contract.canonical import InferRequest, ModelView
from tensorgate.gateway.contract.errors import ModelFailed


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The models that wait for a request, outermost first, by their handles. Travels as the request's `wire`.

    `ensembles` are the last of them, as far as they are ensembles: these do the same each time, so that one of them
    in itself would never come to an end. A program may stop after a while.
    """

    waiting: tuple[object, ...] = ()
    ensembles: tuple[object, ...] = ()


_NOBODY = Chain()


def chain_of(request: InferRequest) -> Chain:
    return request.wire if isinstance(request.wire, Chain) else _NOBODY


def check_room(waiting: tuple[object, ...], view: ModelView) -> None:
    """Raises ModelFailed if nobody would be left to answer a request for which these models wait."""
    room = view.configuration.get("in_flight") or view.instances
    if waiting.count(view.handle) >= room:
        raise ModelFailed(
            f"model '{view.name}' is asked by itself while all its instances ({room}) wait for the answer"
        )
