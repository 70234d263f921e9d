"""What one loaded version has done since it was loaded, counted as Triton counts it.

A request is a success or a failure when it ends, once: whoever leaves it while it runs made it a failure. A *run* is
one execution of the model that gave answers; its durations count once for the run (by batch size), and once for each
request in it that succeeded. Where a joint run failed and its requests were run again alone, the joint one is no run,
and each new one that gave an answer is. A decoupled model's request is one run, however many answers it had.

Everything is counted on the event loop, in plain numbers; each of them may be read from any thread. Source: Triton's
statistics extension.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from tensorgate.gateway.contract.errors import (
    DeadlineExceeded,
    GatewayError,
    Internal,
    ModelUnavailable,
    QueueFull,
    QueueTimeout,
    SequenceCancelled,
    WouldBeLate,
)
from tensorgate.gateway.contract.questions import Duration, Statistics

MAX_ANSWERS_COUNTED: Final = 256
"""Answers of one request beyond this many are not told apart in the statistics: nobody may grow them without end."""

REJECTED: Final = "REJECTED"
CANCELED: Final = "CANCELED"
BACKEND: Final = "BACKEND"
OTHER: Final = "OTHER"
REASONS: Final = (REJECTED, CANCELED, BACKEND, OTHER)
"""Why a request failed: the queue refused it, nobody waited any more, the model failed, anything else."""

_REASONS: Final[Mapping[type[GatewayError], str]] = {
    QueueFull: REJECTED,
    QueueTimeout: REJECTED,
    WouldBeLate: REJECTED,
    DeadlineExceeded: CANCELED,
    SequenceCancelled: CANCELED,
    ModelUnavailable: OTHER,
    Internal: OTHER,
}
"""What is not here, the model raised."""

Timings: TypeAlias = Sequence[tuple[str, float]]
"""(stage, seconds), in order"""
Took: TypeAlias = tuple[float, float]
"""When something began (time.monotonic), and for how many seconds it ran"""
Compute: TypeAlias = tuple[float, float, float]
"""Seconds of input, inference and output"""
_ANSWER_KEYS: Final = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


def _nobody(rows: int, infer: Any) -> None:
    """Wants to know."""


def reason_of(error: GatewayError) -> str:
    """One of REASONS."""
    return _REASONS.get(type(error), BACKEND)


def compute_of(timings: Timings) -> Compute:
    """Stages by the names that this house gives them -> Triton's three."""
    before = infer = after = 0.0
    for stage, seconds in timings:
        if stage == "infer":
            infer += seconds
        elif stage == "preprocess":
            before += seconds
        elif stage == "postprocess":
            after += seconds
    return before, infer, after


class Tally:
    """How often, and how many seconds in all."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    def duration(self) -> Duration:
        return Duration(self.count, round(self.seconds * 1e9))


class Runs:
    """The runs of one batch size."""

    __slots__ = ("count", "infer", "input", "output")

    def __init__(self) -> None:
        self.count = 0
        self.input = 0.0
        self.infer = 0.0
        self.output = 0.0


class Counters:
    """All numbers of one loaded version; `model.Model` keeps them. Seconds are floats.

    Of small requests that run alone there are many: `note_alone` takes (rows, when it began (time.monotonic), its
    seconds, the model's) of each, and `settle`, which goes before each reading, counts them. It tells `settled` of the
    rows, and of the model's seconds for each request of so many.
    """

    __slots__ = (
        "_alone",
        "answers",
        "batches",
        "failed_by",
        "failures",
        "hits",
        "in_doors",
        "infer",
        "input",
        "last",
        "misses",
        "note_alone",
        "output",
        "queue",
        "rows",
        "runs",
        "settled",
        "successes",
    )

    def __init__(self) -> None:
        self.successes = Tally()
        self.failures = Tally()
        self.failed_by = dict.fromkeys(REASONS, 0)
        self.hits = Tally()
        self.misses = Tally()
        self.queue = self.input = self.infer = self.output = 0.0
        self.rows = 0
        self.runs = 0
        self.in_doors = 0
        self.last: float | None = None
        self.batches: dict[int, Runs] = {}
        self.answers: list[dict[str, Tally]] = []
        self._alone = array("d")
        self.note_alone: Callable[[Iterable[float]], None] = self._alone.extend
        self.settled: Callable[[int, Any], None] = _nobody

    def note_in_door(self, noted: Sequence[float]) -> None:
        """Requests that ran alone in a door's copy of the model, as `note_alone` takes them, one after the other."""
        self.in_doors += len(noted) // 4
        self.note_alone(noted)

    def settle(self) -> None:
        """Count those that ran alone. On the loop, as everything that counts."""
        if not self._alone:
            return
        noted = np.array(self._alone).reshape(-1, 4)
        del self._alone[:]
        self.last = float(noted[-1, 1]) if self.last is None else max(self.last, float(noted[-1, 1]))
        for rows in np.unique(noted[:, 0]).tolist():
            alone = noted[noted[:, 0] == rows]
            count, infer = len(alone), float(alone[:, 3].sum())
            batch = self._batch(int(rows))
            batch.count += count
            batch.infer += infer
            self.runs += count
            self.successes.count += count
            self.successes.seconds += float(alone[:, 2].sum())
            self.rows += int(rows) * count
            self.infer += infer
            self.settled(int(rows), alone[:, 3])

    def _batch(self, rows: int) -> Runs:
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = Runs()
        return batch

    def ran(self, rows: int, compute: Compute) -> None:
        """The model has given answers to a batch."""
        batch = self._batch(rows)
        before, infer, after = compute
        batch.count += 1
        batch.input += before
        batch.infer += infer
        batch.output += after
        self.runs += 1

    def succeeded(
        self, rows: int, began: float, seconds: float, queued: float, compute: Compute, requests: int = 1
    ) -> None:
        """Requests that have their last answer. The last one `began` then (time.monotonic); `compute` is the time of
        their run, `rows`, `seconds` and `queued` are sums over them.
        """
        before, infer, after = compute
        successes = self.successes
        successes.count += requests
        successes.seconds += seconds
        self.rows += rows
        self.queue += queued
        self.input += before * requests
        self.infer += infer * requests
        self.output += after * requests
        self.last = began

    def hit(self, began: float, seconds: float) -> None:
        """A request that `began` then was answered from the response cache: a success, for which nothing ran."""
        self.hits.add(seconds)
        self.successes.add(seconds)
        self.last = began

    def failed(self, reason: str, seconds: float) -> None:
        """A request got an error in place of its last answer, or nobody waits for it any more."""
        self.failures.add(seconds)
        self.failed_by[reason] += 1

    # ---------------------------------------------------------------------------------- answers of decoupled models

    def answered(self, index: int, compute: Compute, *, empty: bool) -> None:
        """A decoupled model has given its answer number `index` to a request."""
        answer = self._answer(index)
        if answer is None:
            return
        _, infer, after = compute
        answer["compute_infer"].add(infer)
        answer["compute_output"].add(after)
        answer["empty_response" if empty else "success"].add(infer + after)

    def broke_off(self, index: int, key: str, compute: Compute) -> None:
        """In place of answer number `index` there was an error (`key` fail), or nobody to take it (cancel)."""
        answer = self._answer(index)
        if answer is not None:
            answer[key].add(sum(compute))

    def _answer(self, index: int) -> dict[str, Tally] | None:
        if index >= MAX_ANSWERS_COUNTED:
            return None
        while index >= len(self.answers):
            self.answers.append({key: Tally() for key in _ANSWER_KEYS})
        return self.answers[index]

    # --------------------------------------------------------------------------------------------------------- reading

    def statistics(self, name: str, version: int) -> Statistics:
        """All of it, under the name that the caller uses."""
        self.settle()
        count = self.successes.count
        computed = count - self.hits.count
        stages = {
            "success": self.successes.duration(),
            "fail": self.failures.duration(),
            "queue": _duration(count, self.queue),
            "compute_input": _duration(computed, self.input),
            "compute_infer": _duration(computed, self.infer),
            "compute_output": _duration(computed, self.output),
            "cache_hit": self.hits.duration(),
            "cache_miss": self.misses.duration(),
        }
        batches = {rows: _stages(runs) for rows, runs in sorted(self.batches.items())}
        answers = {
            str(index): {key: tally.duration() for key, tally in answer.items()}
            for index, answer in enumerate(self.answers)
        }
        return Statistics(name, version, self._last_ms(), self.rows, self.runs, stages, batches, answers)

    def _last_ms(self) -> int:
        """When the last successful request came, in milliseconds since the epoch; 0: never."""
        if self.last is None:
            return 0
        return round((time.time() - (time.monotonic() - self.last)) * 1e3)


def _duration(count: int, seconds: float) -> Duration:
    return Duration(count, round(seconds * 1e9))


def _stages(runs: Runs) -> Mapping[str, Duration]:
    return {
        "compute_input": _duration(runs.count, runs.input),
        "compute_infer": _duration(runs.count, runs.infer),
        "compute_output": _duration(runs.count, runs.output),
    }
