"""Shares of devices, on a device whose time the test keeps: no thread, no clock."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import QueueFull
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.fair_queue import FairQueue
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.shares import MAX_CALLERS, OTHERS, SharePolicy, Shares
from tensorgate.gateway.engine.worker import Batch

GPU = "cuda:0"
X = np.zeros((1, 1), np.float32)
View: Any = SimpleNamespace


class Machine:
    """Devices, models on them, and the time, which goes on from event to event."""

    def __init__(self, weights: dict[str, float] | None = None, **policy: Any) -> None:
        self.now = 1000.0
        self.shares = Shares(SharePolicy(weights or {}, **policy), clock=lambda: self.now)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.had: Counter[str] = Counter()
        """Caller -> seconds of batches, by rows."""
        self.waits: dict[str, list[float]] = {}
        """Caller -> seconds from each submit to its answer."""

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until


class SimulatedModel:
    """A model whose batches take `seconds(rows)` on each of its devices, for each instance; its threads compute for
    `busy` of them.
    """

    def __init__(
        self,
        machine: Machine,
        seconds: Callable[[int], float],
        devices: Iterable[str] = (GPU,),
        *,
        computes: bool = True,
        busy: float = 1.0,
        **policy: Any,
    ) -> None:
        self.machine = machine
        self.seconds = seconds
        self.busy = busy
        executor = SimpleNamespace(computes=computes, decoupled=False, runs_on="thread")
        self.idle: list[Any] = [
            SimpleNamespace(executor=executor, device=device, contention=0, is_standby=False) for device in devices
        ]
        policy.setdefault("max_batch_size", 8)
        self._wakes = False
        self.queue = FairQueue("m", QueuePolicy(**policy), None, machine.shares, list(self.idle), self.wake)
        self.key = object()
        self.batches: list[Batch] = []
        self.running = 0

    def wake(self) -> None:
        if not self._wakes:
            self._wakes = True
            self.machine.at(self.machine.now, self._look)

    def submit(
        self, share: str, answered: Callable[[], None] = lambda: None, rows: int = 1, **facts: Any
    ) -> PendingRequest:
        request = InferRequest(View(), {"x": X}, **facts)
        request.cancellation.share = share
        begun = self.machine.now
        pending = PendingRequest(request, Admission(rows, self.key), begun, self.queue.left, lambda *args: None)

        def on_answer() -> None:
            self.machine.waits.setdefault(share, []).append(self.machine.now - begun)
            answered()

        pending.answered = on_answer  # type: ignore[attr-defined]
        self.queue.add(pending)
        self.wake()
        return pending

    def _look(self) -> None:
        self._wakes = False
        while self.idle:
            found = self.queue.next_batch(self.idle)
            if found is None:
                if self.queue.next_wakeup_s is not None:
                    self.machine.at(self.machine.now + self.queue.next_wakeup_s, self._look)
                return
            worker, batch = found
            self.idle.remove(worker)
            self.running += 1
            for pending in batch.members:
                pending.started = True
            self.batches.append(batch)
            self.machine.at(self.machine.now + self.seconds(batch.rows), lambda w=worker, b=batch: self._end(w, b))

    def _end(self, worker: Any, batch: Batch) -> None:
        self.idle.append(worker)
        self.running -= 1
        seconds = self.seconds(batch.rows)
        batch.busy = seconds * self.busy
        self.queue.done(batch)
        for pending in batch.members:
            self.machine.had[pending.share] += seconds * pending.admission.rows / batch.rows  # type: ignore[assignment]
            pending.end()
            pending.answered()  # type: ignore[attr-defined]
        self._look()


def closed_loop(machine: Machine, model: SimulatedModel, share: str, clients: int, pause: float = 0.0) -> None:
    """So many clients, each of which asks again when it has its answer, after a pause, or a little after a refusal."""

    def ask() -> None:
        try:
            model.submit(share, lambda: machine.at(machine.now + pause, ask))
        except QueueFull:
            machine.at(machine.now + 0.05, ask)

    for _ in range(clients):
        machine.at(machine.now, ask)


def parts(had: Counter[str]) -> dict[str, float]:
    whole = sum(had.values())
    return {name: round(seconds / whole, 2) for name, seconds in had.items()}


def linear(rows: int) -> float:
    return 0.002 + 0.001 * rows


def test_callers_of_one_model_get_its_time_by_weight() -> None:
    machine = Machine({"a": 3})
    model = SimulatedModel(machine, linear)
    closed_loop(machine, model, "a", 40)
    closed_loop(machine, model, "b", 600)
    machine.run(4)
    assert parts(machine.had) == {"a": 0.75, "b": 0.25}
    assert len({pending.share for pending in model.batches[-1].members}) == 2  # they share batches


def test_models_of_one_device_are_counted_together() -> None:
    """Batches of one take ten times as long as those of the other, and one caller uses both."""
    machine = Machine({"a": 2})
    large, small = SimulatedModel(machine, lambda rows: 0.05), SimulatedModel(machine, lambda rows: 0.005)
    closed_loop(machine, small, "a", 20)
    closed_loop(machine, large, "b", 20)
    closed_loop(machine, small, "b", 200)
    machine.run(12)
    assert parts(machine.had) == pytest.approx({"a": 0.67, "b": 0.33}, abs=0.02)


def test_one_at_a_time_of_different_models_where_callers_compete() -> None:
    machine = Machine()
    models = [SimulatedModel(machine, linear) for _ in range(3)]
    for name, model in zip("abc", models, strict=True):
        closed_loop(machine, model, name, 20)
    machine.run(1)
    for _ in range(200):
        machine.run(0.009)
        assert sum(model.running for model in models) == 1
    assert parts(machine.had) == pytest.approx({"a": 0.33, "b": 0.33, "c": 0.33}, abs=0.02)


def test_a_caller_alone_is_not_held_back_for_its_other_models() -> None:
    machine = Machine()
    models = [SimulatedModel(machine, linear) for _ in range(3)]
    for model in models:
        closed_loop(machine, model, "a", 20)
    machine.run(2)
    assert all(model.running for model in models)


def test_what_one_does_not_want_is_for_the_others() -> None:
    """c wants a tenth, a third would be its own; a and b have the rest, two to one."""
    machine = Machine({"a": 2})
    model = SimulatedModel(machine, lambda rows: 0.008)
    closed_loop(machine, model, "a", 30)
    closed_loop(machine, model, "b", 30)

    def ask() -> None:
        model.submit("c")
        machine.at(machine.now + 0.01, ask)

    ask()
    machine.run(8)
    found = parts(machine.had)
    assert found["c"] == pytest.approx(0.1, abs=0.01)
    assert found["a"] / found["b"] == pytest.approx(2, rel=0.05)


def test_time_that_nobody_wanted_is_not_saved_up() -> None:
    machine = Machine()
    model = SimulatedModel(machine, linear)
    closed_loop(machine, model, "a", 20)
    machine.run(10)
    machine.had.clear()
    closed_loop(machine, model, "b", 20)
    machine.run(2)
    assert parts(machine.had) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.03)


def test_a_neighbour_with_a_hundred_times_the_load_changes_little() -> None:
    def waits_beside(clients: int) -> list[float]:
        machine = Machine()
        model = SimulatedModel(machine, linear)
        closed_loop(machine, model, "a", 8)
        closed_loop(machine, model, "b", clients)
        machine.run(5)
        return sorted(machine.waits["a"])

    before, after = waits_beside(8), waits_beside(800)
    assert after[int(0.99 * len(after))] <= 1.1 * before[int(0.99 * len(before))]


def test_nobody_starves() -> None:
    """Thirty heavy callers that come and go, and one of a hundredth of their weight."""
    machine = Machine({"small": 0.01})
    model = SimulatedModel(machine, lambda rows: 0.01, max_batch_size=1)
    for number in range(30):
        closed_loop(machine, model, f"heavy-{number}", 1, pause=random.Random(number).random() / 10)  # noqa: S311
    closed_loop(machine, model, "small", 1)
    machine.run(60)
    assert machine.waits["small"]


def test_weights_change_while_it_runs() -> None:
    machine = Machine()
    model = SimulatedModel(machine, linear)
    closed_loop(machine, model, "a", 20)
    closed_loop(machine, model, "b", 20)
    machine.run(1)
    machine.shares.reconfigure(SharePolicy({"a": 4}))
    machine.had.clear()
    machine.run(3)
    assert parts(machine.had) == pytest.approx({"a": 0.8, "b": 0.2}, abs=0.01)


def test_devices_are_counted_apart_and_a_model_of_two_uses_both() -> None:
    machine = Machine({"a": 3})
    both = SimulatedModel(machine, linear, [GPU, "cuda:1"])
    closed_loop(machine, both, "a", 60)
    closed_loop(machine, both, "b", 60)
    machine.run(3)
    assert parts(machine.had) == {"a": 0.75, "b": 0.25}
    usage = {(each.caller, each.device): each.seconds for each in machine.shares.usage()}
    assert usage.keys() == {(caller, device) for caller in "ab" for device in (GPU, "cuda:1")}
    assert sum(usage.values()) == pytest.approx(6, rel=0.01)
    assert usage["a", GPU] / usage["b", GPU] == pytest.approx(3, rel=0.02)


def test_on_the_host_what_threads_took_counts() -> None:
    machine = Machine()
    model = SimulatedModel(machine, linear, ["cpu"])
    closed_loop(machine, model, "a", 20)
    machine.run(1)
    (used,) = machine.shares.usage()
    assert used.seconds == pytest.approx(1, rel=0.02)


def test_instances_on_one_device_divide_it() -> None:
    machine = Machine()
    pair, other = SimulatedModel(machine, linear, [GPU, GPU]), SimulatedModel(machine, linear)
    closed_loop(machine, pair, "a", 40)
    closed_loop(machine, other, "b", 40)
    machine.run(5)
    usage = {each.caller: each.seconds for each in machine.shares.usage()}
    assert usage["a"] == pytest.approx(usage["b"], rel=0.03)
    assert sum(usage.values()) <= 5


def test_a_step_of_another_request_does_not_wait_for_the_device() -> None:
    """It holds the device, and would wait for itself."""
    machine = Machine()
    outer, inner = SimulatedModel(machine, lambda rows: 10), SimulatedModel(machine, linear)
    outer.submit("a")
    machine.run(0)
    inner.submit("b")
    machine.run(0)
    assert outer.running
    assert not inner.running
    inner.submit("a", callers=(View(),))
    machine.run(0)
    assert inner.running


def test_a_full_queue_is_full_for_its_caller() -> None:
    machine = Machine(max_queue_size=3)
    model = SimulatedModel(machine, linear, max_queue_delay_us=10**9)
    for _ in range(3):
        model.submit("a")
    with pytest.raises(QueueFull) as full:
        model.submit("a")
    assert (full.value.limit, full.value.caller) == (3, "a")
    assert "for caller 'a' alone" in str(full.value)
    model.submit("b")
    model.submit("")
    assert {each.caller: (each.queued, each.refused) for each in machine.shares.usage()} == {
        "a": (3, 1),
        "b": (1, 0),
        "": (1, 0),
    }


def test_without_a_size_of_its_own_each_caller_has_the_model_s() -> None:
    machine = Machine()
    model = SimulatedModel(machine, linear, max_queue_delay_us=10**9, level=LevelPolicy(2))
    for share in "aabb":
        model.submit(share)
    with pytest.raises(QueueFull):
        model.submit("b")


def test_levels_hold_within_a_caller() -> None:
    """a's urgent request goes before a's others, and not before b, who has had less."""
    machine = Machine()
    model = SimulatedModel(machine, lambda rows: 0.01, max_batch_size=1, levels=2, default_level=2)
    order: list[str] = []
    closed_loop(machine, model, "a", 3)
    machine.run(0.005)
    for name, share, level in (("late", "a", 2), ("urgent", "a", 1), ("other", "b", 2)):
        model.submit(share, lambda name=name: order.append(name), priority=level)
    machine.run(5)
    assert order[:2] == ["other", "urgent"]


def test_who_leaves_makes_room_and_wakes_others() -> None:
    machine = Machine(max_queue_size=1)
    first, second = SimulatedModel(machine, linear), SimulatedModel(machine, linear)
    first.submit("a")
    machine.run(0)
    waiting = second.submit("b")
    machine.run(0)
    assert not second.running
    waiting.end()
    second.submit("b")
    machine.run(1)
    assert len(second.batches) == 1


def test_a_batch_that_hangs_holds_the_device_for_a_second() -> None:
    machine = Machine()
    hanging, other = SimulatedModel(machine, lambda rows: 3600), SimulatedModel(machine, linear)
    hanging.submit("a")
    machine.run(0.1)
    closed_loop(machine, other, "b", 20)
    machine.run(0.5)
    assert not other.batches
    machine.run(1)
    assert len(other.batches) > 20


def test_batches_that_are_known_to_take_long_do_not_hang() -> None:
    machine = Machine({"a": 3})
    for name in "ab":
        closed_loop(machine, SimulatedModel(machine, lambda rows: 5.0), name, 20)
    machine.run(100)
    machine.had.clear()
    machine.run(1000)
    assert parts(machine.had) == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.02)


def test_a_model_of_the_host_that_mostly_waits_does_not_keep_others_waiting() -> None:
    machine = Machine()
    idle, other = (
        SimulatedModel(machine, lambda rows: 0.3, ["cpu"], busy=0.01),
        SimulatedModel(machine, linear, ["cpu"]),
    )
    closed_loop(machine, idle, "a", 20)
    machine.run(10)
    closed_loop(machine, other, "b", 20)
    machine.run(1)
    assert idle.running
    assert len(other.batches) > 80


def test_what_waits_for_other_servers_takes_no_device() -> None:
    machine = Machine()
    remote, local = SimulatedModel(machine, linear, computes=False), SimulatedModel(machine, linear)
    closed_loop(machine, remote, "a", 20)
    closed_loop(machine, local, "b", 20)
    machine.run(1)
    assert remote.running
    assert local.running
    assert {each.caller for each in machine.shares.usage()} == {"b"}


def test_callers_beyond_the_most_have_a_share_together_until_others_have_gone() -> None:
    machine = Machine()
    model = SimulatedModel(machine, linear, max_queue_delay_us=10**9)
    waiting = [model.submit(f"caller-{number}") for number in range(MAX_CALLERS)]
    assert model.submit("one more").share == OTHERS
    waiting[0].end()
    assert model.submit("another").share == "another"
    assert "caller-0" not in {each.caller for each in machine.shares.usage()}
    machine.run(2000)
    assert len(machine.waits) == MAX_CALLERS + 1
