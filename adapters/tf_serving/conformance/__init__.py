"""What TensorFlow Serving promises, as questions with their answers.

known_models  SavedModels whose behaviour the cases know, written without TensorFlow
facts         what is asked first: what the models take and give
calls         tensors in both forms, and expectations that many cases share
http_cases    over HTTP; grpc_cases: over gRPC
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tensorgate.adapters.conformance.case import ConformanceCase, ConformanceSuite, FoundServer
from tensorgate.adapters.tf_serving.conformance import grpc_cases, http_cases
from tensorgate.adapters.tf_serving.conformance.facts import find
from tensorgate.adapters.tf_serving.conformance.known_models import repository


def _cases(server: FoundServer, transports: Sequence[str]) -> Sequence[ConformanceCase]:
    """Every case of these transports: of the server, of any model that was found, and of the known models there are."""
    known = frozenset(model.name for model in server.models)
    asked = chain(
        http_cases.server_cases(),
        grpc_cases.server_cases(),
        *(chain(http_cases.model_cases(model), grpc_cases.model_cases(model)) for model in server.models),
        http_cases.known_cases(known),
        grpc_cases.known_cases(known),
    )
    return [case for case in asked if case.transport in transports]


SUITE = ConformanceSuite(
    name="tf_serving",
    title="TensorFlow Serving",
    find=find,
    cases=_cases,
    repository=repository,
    serve_hint="tensorflow_model_server --rest_api_port=8501 --model_config_file={folder}/models.config",
)
