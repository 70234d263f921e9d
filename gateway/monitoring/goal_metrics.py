"""Metrics of models with a goal, `target_p99_ms`: what it chooses, how well it predicts, and whom it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensorgate.gateway.contract.metrics import ModelCounts
from tensorgate.gateway.monitoring.families import AnyFamily, counter, gauge


def goal_families(models: Iterable[ModelCounts]) -> Iterator[AnyFamily]:
    """Nothing where no model has a goal."""
    found = [((each.model, str(each.version)), each.goal) for each in models if each.goal is not None]
    if not found:
        return
    labels = "model version"
    for name, text, attribute in (
        ("target_seconds", "The goal of the 99th percentile of the time in the gateway.", "target_s"),
        ("share", "The part of the goal that queue and run may use: less where answers were late.", "share"),
        ("batch_rows", "The size that a batch has at most now.", "rows"),
        ("wait_seconds", "How long an idle device was last let wait for company.", "wait_s"),
    ):
        yield gauge(f"tensorgate_goal_{name}", text, labels, [(key, getattr(goal, attribute)) for key, goal in found])
    for name, text, attribute in (
        ("batches", "Batches that ran under the goal.", "batches"),
        ("predicted_run_seconds", "Seconds that they were expected to run.", "predicted_s"),
        ("run_seconds", "Seconds that they ran.", "actual_s"),
        ("oldest_wait_seconds", "Seconds that the oldest request of each had waited.", "waited_s"),
    ):
        yield counter(f"tensorgate_goal_{name}", text, labels, [(key, getattr(goal, attribute)) for key, goal in found])
    yield counter(
        "tensorgate_goal_requests",
        "Requests that were answered, within the goal (held) or later (missed).",
        f"{labels} result",
        [
            ((*key, result), count)
            for key, goal in found
            for result, count in (("held", goal.held), ("missed", goal.missed))
        ],
    )
    yield counter(
        "tensorgate_shed_requests",
        "Requests that were refused since they would have missed the goal or their own deadline.",
        f"{labels} why",
        [((*key, why), count) for key, goal in found for why, count in goal.shed.items()],
    )
