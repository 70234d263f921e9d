"""JSON of GET /v2/models/stats, Triton's statistics extension: what models have done, as perf_analyzer reads it. Every
key is always there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tensorgate.adapters.open_inference.errors import JSON_HEADERS, encode_error
from tensorgate.adapters.open_inference.request import ref_of
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelNotFound
from tensorgate.gateway.contract.questions import Duration, ModelStatistics, Statistics


def decode_statistics(call: Call, resolve: Resolve) -> ModelStatistics:
    return ModelStatistics(ref_of(call))


def encode_statistics(statistics: tuple[Statistics, ...], question: ModelStatistics) -> Reply:
    return Reply(orjson.dumps({"model_stats": [plain_statistics(each) for each in statistics]}), 200, JSON_HEADERS)


def plain_statistics(statistics: Statistics) -> dict[str, Any]:
    """One version's -> the JSON form of inference.ModelStatistics."""
    return {
        "name": statistics.name,
        "version": str(statistics.version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": _durations(statistics.stages),
        "response_stats": {index: _durations(stages) for index, stages in statistics.responses.items()},
        "batch_stats": [{"batch_size": rows, **_durations(stages)} for rows, stages in statistics.batches.items()],
        "memory_usage": [],
    }


def _durations(stages: Mapping[str, Duration]) -> dict[str, Any]:
    return {stage: {"count": duration.count, "ns": duration.ns} for stage, duration in stages.items()}


def encode_statistics_error(error: GatewayError, call: Call) -> Reply:
    """A model that is not there is an invalid argument here, in words of its own."""
    if isinstance(error, ModelNotFound):
        of_model = f"requested model '{error.name}' is not available"
        of_version = f"requested model version is not available for model '{error.name}'"
        error = InvalidArgument(of_model if error.version is None else of_version)
    return encode_error(error, call)
