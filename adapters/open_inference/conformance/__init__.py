"""What Open Inference V2 and Triton's extensions promise, as questions with their answers.

known_models  a Triton repository of Python models whose behaviour the cases know
facts         what is asked first: which models there are, and what they take
calls         requests, and expectations that many cases share
http_cases    over HTTP; grpc_cases: over gRPC; datatype_cases: every datatype, over both
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tensorgate.adapters.conformance.case import ConformanceCase, ConformanceSuite, FoundServer, WireRequest
from tensorgate.adapters.open_inference.conformance import datatype_cases, grpc_cases, http_cases
from tensorgate.adapters.open_inference.conformance.facts import find
from tensorgate.adapters.open_inference.conformance.known_models import repository


def _cases(server: FoundServer, transports: Sequence[str]) -> Sequence[ConformanceCase]:
    """Every case of these transports: of the server, of any model that was found, and of the known models there are."""
    known = frozenset(model.name for model in server.models)
    plain = [model for model in server.models if model.zeros]
    asked = chain(
        http_cases.server_cases(),
        grpc_cases.server_cases(),
        *(chain(http_cases.model_cases(model), grpc_cases.model_cases(model)) for model in server.models),
        *(http_cases.body_cases(model) for model in plain[:1]),
        datatype_cases.cases(known),
        http_cases.known_cases(known),
        grpc_cases.known_cases(known),
    )
    return [case for case in asked if case.transport in transports]


def _is_volatile(request: WireRequest) -> bool:
    """Statistics count, and the server's own metadata names it."""
    return request.target.endswith(("/stats", "/ModelStatistics")) or request.target in (
        "/v2",
        "/inference.GRPCInferenceService/ServerMetadata",
    )


SUITE = ConformanceSuite(
    name="v2",
    title="Open Inference V2",
    find=find,
    cases=_cases,
    repository=repository,
    serve_hint="tritonserver --model-repository={folder}, or tensorgate serve --model-repository {folder}",
    is_volatile=_is_volatile,
)
