"""What is counted of every loaded version. Schedulers write it on the event loop; `settle` and the rest read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tensorgate.gateway.contract.metrics import Distribution, ModelCounts, Total, VersionDistributions
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.telemetry.histogram import SECONDS, Gathered
from tensorgate.gateway.telemetry.statistics import Counters, Tally
from tensorgate.gateway.telemetry.tracing import RequestTracing

ROWS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
STAGES: Final = ("queue", "preprocess", "infer", "postprocess")
STREAMS: Final = ("first_answer", "next_answer")
"""Of decoupled models: until the first answer since the request came, and from each to the next."""


class VersionMeter:
    """The numbers of one model version. Stage times and rows go on when the version is loaded anew, `counters` start
    at 0.
    """

    __slots__ = ("_observe", "batches", "counters", "stages")

    def __init__(self) -> None:
        self.stages = {stage: Gathered(SECONDS) for stage in (*STAGES, *STREAMS)}
        self.batches = Gathered(ROWS)
        self.counters = Counters()
        self._observe = {stage: gathered.observe for stage, gathered in self.stages.items()}

    def observe(self, stage: str, seconds: float) -> None:
        """Note the time of one stage."""
        self._observe[stage](seconds)

    def ran_alone(self, rows: int, infer: Any) -> None:
        """Count requests of one size that each ran at once, in a batch of its own, for so many seconds."""
        self.stages["queue"].observe_often(0.0, len(infer))
        self.stages["infer"].observe_all(infer)
        self.batches.observe_often(rows, len(infer))

    def settle(self) -> None:
        """Sort what was noted into histograms. On the event loop."""
        self.counters.settle()
        for gathered in (*self.stages.values(), self.batches):
            gathered.settle()

    def distributions(self) -> VersionDistributions:
        """The histograms as values. In any thread."""
        stages = {stage: gathered.histogram.distribution() for stage, gathered in self.stages.items()}
        return VersionDistributions(stages, self.batches.histogram.distribution())


class Meters:
    """The meters of all versions. `tracing` says whose requests leave a trace.

    `on_forget` is called with a version that was unloaded (model, version, whether it was the model's last).
    """

    def __init__(self, tracing: RequestTracing | None = None) -> None:
        self.on_forget: Callable[[str, int, bool], None] = lambda model, version, is_last: None
        self._tracing = tracing or RequestTracing()
        self._meters: dict[tuple[str, str], VersionMeter] = {}

    def meter(self, model: str, version: int) -> SchedulerMetrics:
        """What the scheduler of a version that is being loaded reports to. Series exist from here on, at 0."""
        meter = self._meters.setdefault((model, str(version)), VersionMeter())
        counters = meter.counters = Counters()
        counters.settled = meter.ran_alone
        return SchedulerMetrics(
            meter.observe,
            meter.batches.observe,
            counters,
            self._tracing.tracer(model),
            counters.note_alone,
        )

    def forget(self, model: str, version: int) -> None:
        """A version was unloaded: its series end. They start at 0 should it come back, as after a restart."""
        self._meters.pop((model, str(version)), None)
        self.on_forget(model, version, not any(name == model for name, _ in self._meters))

    def settle(self) -> None:
        """Sort what was noted into histograms. On the event loop."""
        for meter in self._meters.values():
            meter.settle()

    def batches(self, model: str, version: int) -> Distribution:
        """Rows of the batches of one version."""
        return self._meters[model, str(version)].batches.histogram.distribution()

    def streams(self, model: str, version: int) -> Mapping[str, Distribution]:
        """What the streams of one version were like."""
        stages = self._meters[model, str(version)].stages
        return {name: stages[name].histogram.distribution() for name in STREAMS}

    def distributions(self) -> Mapping[tuple[str, str], VersionDistributions]:
        """(model, version) -> the histograms of each version. In any thread."""
        return {key: meter.distributions() for key, meter in list(self._meters.items())}


def model_counts(model: Model) -> ModelCounts:
    """All that a loaded version has counted, as values. In any thread: each number is whole, though others go on."""
    counters = model.counters
    return ModelCounts(
        model=model.name,
        version=model.version,
        successes=_total(counters.successes),
        failures=dict(counters.failed_by),
        hits=_total(counters.hits),
        misses=_total(counters.misses),
        is_cached=model.is_cached,
        rows=counters.rows,
        runs=counters.runs,
        in_doors=counters.in_doors,
        queue_s=counters.queue,
        input_s=counters.input,
        infer_s=counters.infer,
        output_s=counters.output,
        queued=model.queued,
        queued_tokens=model.queued_tokens,
        running=model.running,
        load_s=model.load_seconds,
        devices=model.devices,
        traffic=model.computation.traffic(),
        goal=model.goal,
    )


def _total(tally: Tally) -> Total:
    return Total(tally.count, tally.seconds)
