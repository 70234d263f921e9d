"""Models that stream, under OpenTelemetry's names for generative AI, for dashboards that were made for these.

What the gateway knows is answers: each counts as a token, as a generator that gives one at a time means it. Source:
OpenTelemetry, semantic conventions for generative AI metrics (gen_ai.server.*), as Prometheus writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tensorgate.gateway.contract.metrics import Distribution, VersionDistributions
from tensorgate.gateway.monitoring.families import AnyFamily, histogram

_LABELS: Final = "gen_ai_operation_name gen_ai_provider_name gen_ai_request_model"
_OPERATION: Final = "text_completion"
_PROVIDER: Final = "tensorgate"


def genai_families(
    versions: Mapping[tuple[str, str], VersionDistributions], calls: Mapping[tuple[str, str], Distribution]
) -> Iterator[AnyFamily]:
    """`calls` are the seconds of a version's calls. Nothing where none has streamed."""
    first = {key: each.stages.get("first_answer") for key, each in versions.items()}
    streaming = {key: versions[key].stages for key, each in first.items() if each is not None and any(each.counts)}
    for name, text, found in (
        (
            "gen_ai_server_time_to_first_token_seconds",
            "Time from a request to the first answer of its stream.",
            {key: stages["first_answer"] for key, stages in streaming.items()},
        ),
        (
            "gen_ai_server_time_per_output_token_seconds",
            "Time from an answer of a stream to the next.",
            {key: stages["next_answer"] for key, stages in streaming.items()},
        ),
        (
            "gen_ai_server_request_duration_seconds",
            "Time from the whole request read to the last answer sent.",
            {key: calls[key] for key in streaming if key in calls},
        ),
    ):
        if found:
            samples = [((_OPERATION, _PROVIDER, model), each) for model, each in _by_model(found).items()]
            yield histogram(name, text, _LABELS, samples)


def _by_model(found: Mapping[tuple[str, str], Distribution]) -> dict[str, Distribution]:
    """Of all versions of a model: these names know none."""
    merged: dict[str, Distribution] = {}
    for (model, _), each in found.items():
        other = merged.get(model)
        if other is not None:
            counts = tuple([one + more for one, more in zip(other.counts, each.counts, strict=True)])
            each = Distribution(each.bounds, counts, other.sum + each.sum)
        merged[model] = each
    return merged
