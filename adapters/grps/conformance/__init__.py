"""What grps promises, as questions with their answers; where its Python and its C++ server disagree, either will do.

The protocol lists no models, and names none of a known behaviour: the cases know the models of `KNOWN`, wherever they
are served. Source: the contract of grps 1.1.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import chain
from typing import Final

from tensorgate.adapters.conformance.case import (
    ConformanceCase,
    ConformanceSuite,
    FoundServer,
    WireReply,
    WireRequest,
)
from tensorgate.adapters.grps.conformance import cases
from tensorgate.adapters.grps.conformance.known_models import repository

KNOWN: Final = (cases.HALF_PLUS_TWO, cases.ADD_SUB, *cases.IDENTITIES)


def _find(transports: Sequence[str], named: Sequence[str]) -> Generator[WireRequest, WireReply, FoundServer]:
    """Ask for the metadata of the models that are known; `named` are asked for theirs, too."""
    found = []
    for name in dict.fromkeys((*named, *KNOWN)):
        request, _ = cases.metadata_call("http" if "http" in transports else "grpc", name)
        reply = yield request
        if cases.succeeded(reply):
            found.append(name)
    missing = len([name for name in KNOWN if name not in found])
    notes = [f"{missing} of the {len(KNOWN)} known models are not there: {', '.join(KNOWN)}"] if missing else []
    return FoundServer("", found, notes)


def _cases(server: FoundServer, transports: Sequence[str]) -> Sequence[ConformanceCase]:
    known = frozenset(server.models)
    asked = chain(
        cases.server_cases(),
        *(cases.model_cases(name) for name in server.models),
        cases.known_cases(known),
    )
    return [case for case in asked if case.transport in transports]


def _is_volatile(request: WireRequest) -> bool:
    """The configuration as text, and counters."""
    return "/metadata/" in request.target or "/monitor/" in request.target or request.target.endswith("Metadata")


SUITE = ConformanceSuite(
    name="grps",
    title="grps",
    find=_find,
    cases=_cases,
    repository=repository,
    serve_hint="cp -r {folder}/. server/py_server of grps, and start_server.sh there",
    is_volatile=_is_volatile,
)
