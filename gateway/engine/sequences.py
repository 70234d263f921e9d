"""Requests that build on one another: a sequence runs in order, on one instance, one request at a time.

A request with `start` begins a sequence, one with `end` is its last; what comes for a sequence that is not alive is
refused. A live sequence holds a *seat* at one instance, so that whatever a model remembers of it is where its next
request runs. An instance has `max_batch_size` seats, one without batching. Sequences that find every seat taken wait
in a *backlog* for one that ends, or that has been idle for too long: this is Triton's direct strategy.

What is chosen where the contract is silent:

* Requests of different sequences share a run where the gateway keeps all that is remembered (`states`), or the model
  is given requests as they are and none a second time (`batches_own_state`). Else a batch that fails is run again one
  by one, and a model that keeps sums of its own would add twice; and a class that is told of a batch learns of its
  first request only. So it gets its requests singly, those of up to `max_batch_size` sequences in turn, and may know
  them by `request.sequence` or by a correlation id.
* A start on a live sequence restarts it, in its turn: behind the requests that wait already.
* A request that fails is a step that did not happen: states stay as they were, and the sequence lives on. But if the
  first request fails, or ends before it has run (late), the sequence has not started, and those behind it are told so:
  a model that remembers would take them for steps of an earlier sequence of that name.
* A request whose caller leaves while it waits takes those behind it along, which are cancelled, and ends the sequence:
  without it they would be other steps than their callers meant.
* An end gives the seat back. A start that follows at once under the same id waits for a seat like any other.
* Sequences are served in the order in which their turns come: they have no priorities. Where `max_queue_delay_us` says
  so they wait for company, until each seat, or as many as the smallest preferred size, has a request that may share the
  run.

Source: Triton, the sequence batcher and its implicit state.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Sequence as Series
from dataclasses import dataclass, field, replace
from typing import Final, cast

from tensorgate.gateway.contract.canonical import InferResponse, OutputRequest, Sequence
from tensorgate.gateway.contract.errors import (
    GatewayError,
    QueueFull,
    SequenceBatch,
    SequenceCancelled,
    SequenceIdMismatch,
    SequenceIdMissing,
    SequenceNotStarted,
)
from tensorgate.gateway.contract.tensor import Tensors
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import QueuePolicy, batch_key
from tensorgate.gateway.engine.sequence_controls import SequencePolicy, frozen
from tensorgate.gateway.engine.worker import Batch, Worker

_FLAGS: Final = (False, True)


@dataclass(slots=True, eq=False)
class SequenceSeats:
    """One executor's part: how many seats are taken, and which of its sequences may go, in order."""

    taken: int = 0
    ready: dict[LiveSequence, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class LiveSequence:
    """A sequence that is alive. `instance` None: in the backlog; `open`: it has not been told to end.

    `identity` and `states` are inputs that its next request gets.
    """

    id: int | str
    identity: Tensors
    states: Tensors
    waiting: deque[PendingRequest] = field(default_factory=deque)
    instance: SequenceSeats | None = None
    running: bool = False
    open: bool = True
    idle_since: float = 0.0


class Sequences:
    """The queue of a model that keeps sequences: see `queue.SchedulerQueue`.

    `wake` is called when a seat has changed hands outside of the scheduler's own steps. Every method belongs to the
    event loop; `clock` tells seconds.
    """

    def __init__(
        self,
        name: str,
        queue: QueuePolicy,
        policy: SequencePolicy,
        workers: Iterable[Worker],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._policy = policy
        self._most = queue.level.max_queue_size
        self._seats = max(1, queue.max_batch_size)
        self._delay_s = queue.max_queue_delay_us / 1e6
        self._enough = min((self._seats, *queue.preferred_batch_sizes))
        self._shares_runs = bool(policy.states) or policy.batches_own_state
        self._flags: Mapping[tuple[bool, bool], Tensors] = {
            (start, end): policy.flags(start=start, end=end) for start in _FLAGS for end in _FLAGS
        }
        self._state_names = frozenset(state.output for state in policy.states)
        self._state_outputs = tuple(OutputRequest(name) for name in sorted(self._state_names))
        self._instances = {worker: SequenceSeats() for worker in workers}
        self._wake = wake
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._live: dict[int | str, LiveSequence] = {}
        self._idle: dict[LiveSequence, None] = {}
        self._backlog: dict[LiveSequence, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self.queued = 0
        self.queued_tokens: int | None = None
        self.next_wakeup_s: float | None = None

    @property
    def alive(self) -> int:
        """Sequences that hold a seat or wait for one."""
        return len(self._live)

    # ---------------------------------------------------------------------------------------------------- the scheduler

    def add(self, pending: PendingRequest) -> None:
        """Raises SequenceBatch, SequenceIdMissing, SequenceNotStarted, SequenceIdMismatch, QueueFull."""
        sequence = pending.request.sequence
        if pending.admission.rows != 1:
            raise SequenceBatch(self._name)
        if sequence is None or not sequence.id:
            raise SequenceIdMissing(self._name)
        self.expire()
        live = self._live.get(sequence.id)
        if not sequence.start and (live is None or not live.open):
            raise SequenceNotStarted(sequence.id, self._name)
        self._enter(pending)
        if live is None:
            live = self._begin(sequence.id)
        live.open = not sequence.end
        live.waiting.append(pending)
        self.queued += 1
        self._idle.pop(live, None)
        self._note_ready(live)

    def next_batch(self, idle: Series[Worker]) -> tuple[Worker, Batch] | None:
        self.next_wakeup_s = None
        for worker in idle:
            instance = self._instances[worker]
            if instance.ready:
                companions = self._companions(instance)
                wait_s = self._wait_s(companions) if self._delay_s else 0.0
                if wait_s <= 0:
                    return worker, Batch([self._take(live) for live in companions])
                self.next_wakeup_s = wait_s if self.next_wakeup_s is None else min(self.next_wakeup_s, wait_s)
        return None

    def done(self, batch: Batch) -> None:
        outcomes = batch.settled()
        for place, pending in enumerate(batch.members):
            sequence = _sequence(pending)
            live = self._live[sequence.id]
            outcome = outcomes[place] if outcomes else None
            if isinstance(outcome, InferResponse) and self._state_names:
                outcomes[place] = self._keep_states(live, outcome)
            elif isinstance(outcome, GatewayError) and sequence.start:
                self._end_until_next_start(live, 0, cancelled=False)
            live.running = False
            if sequence.end:
                self._vacate(live)
                if live.waiting:
                    self._seat(live)
            self._go_on(live)

    def left(self, pending: PendingRequest) -> None:
        sequence = _sequence(pending)
        live = self._live[sequence.id]
        place = live.waiting.index(pending)
        del live.waiting[place]
        self.queued -= 1
        self._leave(pending)
        if pending.abandoned or sequence.start:
            self._end_until_next_start(live, place, cancelled=pending.abandoned)
        if self._live.get(live.id) is live:
            self._go_on(live)

    def delay(self, pending: PendingRequest) -> None:
        """A sequence keeps its order: nobody steps behind anybody."""

    def waiting(self) -> Iterable[PendingRequest]:
        return [pending for live in self._live.values() for pending in live.waiting]

    def close(self) -> None:
        """No live sequence can go on; those in the backlog get their seats."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for live in list(self._idle):
            self._forget(live)

    # ------------------------------------------------------------------------------------------------------------ steps

    # What queues differ in that keep callers apart: who comes in, and whose turn it is. See fair_queue.

    def _enter(self, pending: PendingRequest) -> None:
        """Raises QueueFull."""
        if self.queued >= self._most:
            raise QueueFull(self._name, self._most)

    def _leave(self, pending: PendingRequest) -> None:
        """It waits no more."""

    def _in_turn(self, ready: Iterable[LiveSequence]) -> Series[LiveSequence]:
        return [*ready]

    def _companions(self, instance: SequenceSeats) -> list[LiveSequence]:
        """The sequence whose turn it is, and those that may share its run."""
        first, *others = self._in_turn(instance.ready)
        key = self._run_key(first)
        if key is None:
            return [first]
        return [first, *[live for live in others if self._run_key(live) == key]]  # no more are ready than have seats

    def _run_key(self, live: LiveSequence) -> Hashable:
        """None: it runs alone."""
        key = batch_key(live.waiting[0]) if self._shares_runs else None
        if key is None:
            return None
        states = self._policy.initial_states() if _sequence(live.waiting[0]).start else live.states
        return key, tuple(array.shape[1:] for array in states.values())

    def _wait_s(self, companions: Series[LiveSequence]) -> float:
        """Seconds until these go, though more could share their run: at most so long from the first one's coming."""
        if len(companions) >= self._enough or self._closing or self._run_key(companions[0]) is None:
            return 0.0
        return self._delay_s - (self._clock() - min(live.waiting[0].submitted for live in companions))

    def _take(self, live: LiveSequence) -> PendingRequest:
        """Its next request, with the inputs that callers do not see."""
        pending = live.waiting.popleft()
        self.queued -= 1
        self._leave(pending)
        if live.instance is not None:
            live.instance.ready.pop(live)
        live.running = True
        request, sequence = pending.request, _sequence(pending)
        if sequence.start:
            live.states = self._policy.initial_states()
        sequence_inputs = {**self._flags[sequence.start, sequence.end], **live.identity, **live.states}
        if sequence_inputs:
            outputs = (*request.outputs, *self._state_outputs) if request.outputs else ()
            pending.request = replace(request, inputs={**request.inputs, **sequence_inputs}, outputs=outputs)
        return pending

    def _keep_states(self, live: LiveSequence, response: InferResponse) -> InferResponse:
        """What the next step needs, taken out of the answer. A copy: an answer's rows are views of a whole batch."""
        outputs = response.outputs
        live.states = {state.input: frozen(outputs[state.output].copy()) for state in self._policy.states}
        shown = {name: array for name, array in outputs.items() if name not in self._state_names}
        return replace(response, outputs=shown)

    def _end_until_next_start(self, live: LiveSequence, place: int, *, cancelled: bool) -> None:
        """A request that a sequence cannot do without is lost: those from `place` on that belong to it end, too."""
        orphans = []
        for pending in list(live.waiting)[place:]:
            if _sequence(pending).start:
                break
            orphans.append(pending)
        if place + len(orphans) == len(live.waiting):
            live.open = False
        for pending in reversed(orphans):
            pending.end((SequenceCancelled if cancelled else SequenceNotStarted)(live.id, self._name))

    # ------------------------------------------------------------------------------------------------- seats and lives

    def _begin(self, sequence: int | str) -> LiveSequence:
        try:
            identity = self._policy.identity(sequence)
        except ValueError as error:
            raise SequenceIdMismatch(sequence, str(error), self._name) from None
        live = self._live[sequence] = LiveSequence(sequence, identity, self._policy.initial_states())
        self._seat(live)
        return live

    def _seat(self, live: LiveSequence) -> None:
        """At the instance with the most room, or in the backlog."""
        instance = min(self._instances.values(), key=lambda each: each.taken)
        if instance.taken >= self._seats:
            self._backlog[live] = None
            return
        instance.taken += 1
        live.instance = instance
        self._note_ready(live)

    def _vacate(self, live: LiveSequence) -> None:
        """Give its seat to the first of the backlog."""
        instance, live.instance = live.instance, None
        if instance is None:
            self._backlog.pop(live, None)
            return
        instance.ready.pop(live, None)
        instance.taken -= 1
        if self._backlog:
            following = self._in_turn(self._backlog)[0]
            del self._backlog[following]
            self._seat(following)
            self._wake()

    def _note_ready(self, live: LiveSequence) -> None:
        if live.instance is not None and live.waiting and not live.running:
            live.instance.ready[live] = None

    def _go_on(self, live: LiveSequence) -> None:
        """One of its requests is over: it waits for its next turn, or for its next request, or is forgotten."""
        if live.waiting or live.running:
            self._note_ready(live)
        elif self._closing or not live.open:
            self._forget(live)
        else:
            self._rest(live)

    def _forget(self, live: LiveSequence) -> None:
        del self._live[live.id]
        self._idle.pop(live, None)
        self._vacate(live)

    # ---------------------------------------------------------------------------------------------------------- idling

    def expire(self) -> None:
        """Forget what has been idle for too long. All wait equally long, so the first to rest is the first to go."""
        while self._idle:
            live = next(iter(self._idle))
            if self._clock() - live.idle_since < self._policy.max_idle_us / 1e6:
                return
            self._forget(live)

    def _rest(self, live: LiveSequence) -> None:
        if live.instance is not None:
            live.instance.ready.pop(live, None)
        live.idle_since = self._clock()
        self._idle[live] = None
        if self._timer is None:
            self._set_timer(self._policy.max_idle_us / 1e6)

    def _set_timer(self, seconds: float) -> None:
        """One for all sequences, due when the first of the idle may be."""
        self._timer = self._loop.call_later(max(seconds, 1e-3), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.expire()
        if self._idle:
            first = next(iter(self._idle))
            self._set_timer(first.idle_since + self._policy.max_idle_us / 1e6 - self._clock())


def _sequence(pending: PendingRequest) -> Sequence:
    return cast("Sequence", pending.request.sequence)
