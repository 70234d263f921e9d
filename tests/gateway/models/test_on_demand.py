"""Models that are loaded when somebody asks for them, in a world where a load takes as long as the test wants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import Clock, stays, steps, until

from tensorgate.gateway.config import Residency
from tensorgate.gateway.config.residency import ModelResidency, PrefetchConfig
from tensorgate.gateway.contract.errors import DeadlineExceeded, LoadFailed, ModelNotFound, Reason, Unavailable
from tensorgate.gateway.models.on_demand import OnDemand


class Loaded:
    """A version in memory."""

    def __init__(self) -> None:
        self.is_quiet = True
        self.devices = ("cpu",)
        self.computation = SimpleNamespace(memory=lambda: 0)
        self.counters = SimpleNamespace(last=None, settle=lambda: None)

    def used(self) -> None:
        self.counters.last = time.monotonic()


class World:
    """What loads and unloads, and the memory that it takes: of every model 100 bytes, unless it is said otherwise."""

    def __init__(self, folder: Path, **residency: Any) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}
        self.composed: dict[str, tuple[str, ...]] = {}
        self.wrong: dict[str, str] = {}
        self.settings: dict[str, ModelResidency] = {}
        self.memory: dict[str, Loaded] = {}
        self.log: list[str] = []
        self.slow: set[str] = set()
        self.far: set[str] = set()
        self.is_fetched = asyncio.Event()
        self.may_load = asyncio.Event()
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.of = OnDemand(
            self,
            Residency(**{"on_demand": True, "max_resident_bytes": {"cpu": 300}, **residency}),
            self,  # type: ignore[arg-type]
            lambda name: self.settings.get(name, ModelResidency()),
        )

    def read(self, devices: Iterable[str]) -> dict[str, int]:
        """In place of the meter."""
        return {"cpu": 1000 + sum(self.sizes.get(name, 100) for name in self.memory)}

    def read_demanded(self, name: str) -> Any:
        if name == "nobody":
            raise ModelNotFound(name)
        file = self.folder / name
        file.write_bytes(bytes(self.sizes.get(name, 100)))
        own = self.settings.get(name, ModelResidency())
        config = SimpleNamespace(device="cpu", backend="still", path=file, residency=own, name=name)
        return SimpleNamespace(config=config, versions={1: file})

    async def fetch_demanded(self, stored: Any) -> None:
        if stored.config.name in self.far:
            self.log.append(f"fetch {stored.config.name}")
            await self.is_fetched.wait()

    async def load_demanded(self, stored: Any, name: str, report: Any) -> Reason | None:
        self.log.append(f"load {name}")
        if name in self.slow:
            await self.may_load.wait()
        if name in self.wrong:
            return Reason(self.wrong[name])
        self.memory[name] = Loaded()
        return None

    async def evict(self, name: str) -> None:
        self.log.append(f"evict {name}")
        await self.may_leave.wait()
        self.memory.pop(name, None)

    def loaded(self, name: str) -> Any:
        return [self.memory[name]] if name in self.memory else []

    def parts(self, config: Any) -> tuple[str, ...]:
        return self.composed.get(config.name, ())

    def is_loadable(self, name: str) -> bool:
        return name not in ("nobody", "held")

    async def ask(self, name: str, seconds: float | None = None) -> None:
        await self.of.demand(name, None if seconds is None else time.monotonic() + seconds)
        self.memory[name].used()

    def told(self) -> set[str]:
        return set(self.of.ledger.residents)


@pytest.fixture
async def make(tmp_path: Path) -> Any:
    made: list[World] = []

    def world(**residency: Any) -> World:
        made.append(World(tmp_path, **residency))
        return made[-1]

    yield world
    for each in made:
        each.may_load.set()
        each.is_fetched.set()
        each.may_leave.set()
        await each.of.close()


async def test_however_many_ask_it_is_loaded_once(make: Any) -> None:
    world = make()
    world.slow.add("a")
    asking = [asyncio.ensure_future(world.of.demand("a")) for _ in range(50)]
    await until(lambda: world.log)
    world.may_load.set()
    await asyncio.gather(*asking)
    await world.ask("a")
    assert world.log == ["load a"]
    assert world.of.counts.loads == {"request": 1}
    assert world.of.ledger.residents["a"].holds == {"cpu": 100}


async def test_who_has_not_been_used_for_longest_makes_way(make: Any, clock: Clock) -> None:
    world = make()
    for name in "abc":
        await world.ask(name)
        await clock.advance(10)
    world.memory["a"].used()
    await world.ask("d")
    assert world.log[3:] == ["evict b", "load d"]
    assert world.told() == {"a", "c", "d"}
    assert world.of.counts.evictions == {"memory": 1}


async def test_who_runs_stays_and_who_waits_for_room_waits(make: Any, clock: Clock) -> None:
    world = make()
    for name in "abc":
        await world.ask(name)
        world.memory[name].is_quiet = False
    await clock.advance(60)
    asking = asyncio.ensure_future(world.of.demand("d"))
    await stays(lambda: not asking.done())
    world.memory["b"].is_quiet = True
    while not asking.done():
        await clock.advance(0.05)
        await steps()
    await asking
    assert world.log[3:] == ["evict b", "load d"]


async def test_where_nobody_makes_way_in_time_callers_are_told_to_come_again(make: Any, clock: Clock) -> None:
    world = make(wait=5.0)
    for name in "abc":
        await world.ask(name)
        world.memory[name].is_quiet = False
    await clock.advance(60)
    asking = asyncio.ensure_future(world.of.demand("d"))
    while not asking.done():
        await clock.advance(0.5)
        await steps()
    with pytest.raises(Unavailable) as error:
        await asking
    assert int(error.value.http_headers["Retry-After"]) >= 1
    while world.of.loading:
        await clock.advance(0.05)
        await steps()
    assert world.told() == set("abc")


async def test_a_deadline_counts_while_one_waits_and_the_load_goes_on(make: Any, clock: Clock) -> None:
    world = make()
    world.slow.add("a")
    asking = asyncio.ensure_future(world.ask("a", 0.5))
    await until(lambda: world.log)
    await clock.advance(0.6)
    with pytest.raises(DeadlineExceeded):
        await asking
    world.may_load.set()
    await world.ask("a", 0.5)
    assert world.log == ["load a"]


@pytest.mark.parametrize("of_model", [False, True])
async def test_who_is_not_to_wait_is_told_at_once_when_to_come_again(make: Any, of_model: bool) -> None:
    world = make() if of_model else make(wait=0.0)
    world.settings["a"] = ModelResidency(wait=0.0 if of_model else None)
    world.slow.add("a")
    with pytest.raises(Unavailable, match="model 'a' is being loaded") as error:
        await world.of.demand("a")
    assert int(error.value.http_headers["Retry-After"]) >= 1
    assert world.of.counts.turned_away == 1
    world.may_load.set()
    await until(lambda: "a" in world.told())
    await world.of.demand("a")


async def test_who_is_fetched_from_afar_keeps_nobody_from_being_loaded(make: Any) -> None:
    world = make(loads_at_once=1)
    world.far.update(("x", "y"))
    asking = [asyncio.ensure_future(world.of.demand(name)) for name in "xy"]
    await until(lambda: len(world.log) == 2)
    await world.ask("near")
    assert world.told() == {"near"}
    world.is_fetched.set()
    await asyncio.gather(*asking)
    assert world.told() == {"near", "x", "y"}


async def test_a_load_that_failed_is_not_tried_again_at_once(make: Any, clock: Clock) -> None:
    world = make()
    world.wrong["a"] = "its file is no model"
    waits = []
    for _ in range(4):
        with pytest.raises(Unavailable, match="its file is no model"):
            await world.of.demand("a")
        tries = len(world.log)
        with pytest.raises(Unavailable, match="model 'a' failed to load: its file is no model") as error:
            await world.of.demand("a")
        assert len(world.log) == tries
        waits.append(int(error.value.http_headers["Retry-After"]))
        await clock.advance(waits[-1])
    assert waits == [1, 2, 4, 8]
    assert world.of.failure("a") == ""
    del world.wrong["a"]
    await world.ask("a")
    assert world.of.counts.failures == 4


async def test_where_a_model_lies_is_for_the_log_alone(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    world = make()
    place = "/srv/secret-models/a/config.pbtxt"

    def read(name: str) -> Any:
        raise PermissionError(13, "Permission denied", place)

    world.read_demanded = read
    for _ in range(2):  # who asks first, and who is told of it
        with pytest.raises(Unavailable, match=r"Permission denied: 'config\.pbtxt'") as error:
            await world.ask("a")
        assert "secret-models" not in error.value.text
    assert "secret-models" not in world.of.failure("a")
    assert f"model a was asked for, and failed to load: [Errno 13] Permission denied: '{place}'" in caplog.text


async def test_what_is_not_there_and_what_never_fits(make: Any) -> None:
    world = make()
    world.sizes["huge"] = 301
    with pytest.raises(Unavailable, match="it needs 301 bytes of cpu, more than max_resident_bytes leaves"):
        await world.of.demand("huge")
    with pytest.raises(Unavailable, match="nobody"):
        await world.of.demand("nobody")
    await world.ask("a")
    assert world.told() == {"a"}


async def test_a_model_that_turns_out_larger_pushes_others_out_behind_it(make: Any, clock: Clock) -> None:
    world = make()
    await world.ask("a")
    await world.ask("b")
    assert world.of.ledger.residents["a"].guessed_on == "cpu", "what the library takes with the first is not its own"
    await clock.advance(60)
    world.sizes["c"] = 90
    asked = world.read_demanded

    def larger_than_its_file(name: str) -> Any:
        stored = asked(name)
        world.sizes[name] = 220 if name == "c" else 100
        return stored

    world.read_demanded = larger_than_its_file
    await world.ask("c")
    assert world.of.ledger.residents["c"].holds == {"cpu": 220}
    await until(lambda: world.told() == {"c"}, world.told)


async def test_who_is_idle_leaves_after_a_while(make: Any, clock: Clock) -> None:
    world = make(keep=100.0)
    world.settings["short"] = ModelResidency(keep=10.0)
    for name in ("short", "long", "used", "busy"):
        world.sizes[name] = 10
        await world.ask(name)
    world.memory["busy"].is_quiet = False
    await clock.advance(50)
    world.memory["used"].used()
    world.of.look()
    await until(lambda: world.told() == {"long", "used", "busy"}, world.told)
    await clock.advance(60)
    world.of.look()
    await until(lambda: world.told() == {"used", "busy"}, world.told)
    assert world.of.counts.evictions == {"idle": 2}


async def test_neighbours_come_after_whom_they_belong_to(make: Any, clock: Clock) -> None:
    world = make(neighbours={"a": ("b", "nobody")})
    await world.ask("a")
    await until(lambda: world.told() == {"a", "b"}, world.told)
    assert world.of.counts.loads == {"request": 1, "neighbour": 1}


async def test_neighbours_push_nobody_out_who_was_just_asked_for(make: Any, clock: Clock) -> None:
    world = make(neighbours={"a": ("b",)})
    for name in "cda":
        await world.ask(name)
    await until(lambda: not world.of.loading)
    assert world.told() == set("cda")
    await clock.advance(200)
    await world.ask("a")
    await until(lambda: world.told() == {"a", "b", "d"}, world.told)


async def test_a_model_is_fetched_when_it_is_time(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(prefetch=(PrefetchConfig(models=("a",), at="07:30", days=("mon", "tue")),))
    begun = time.mktime((2026, 11, 23, 7, 29, 0, 0, 0, -1))  # a Monday
    for passed, want in ((0, set()), (61, {"a"}), (120, {"a"}), (3600, {"a"})):
        monkeypatch.setattr(time, "time", lambda at=begun + passed: at)
        if not passed:
            world.of._looked = begun
        world.of.look()
        await until(lambda want=want: world.told() == want, world.told)
    assert world.log == ["load a"]
    await world.of.release("a")
    monkeypatch.setattr(time, "time", lambda: begun + 2 * 86400 + 61)
    world.of.look()
    await stays(lambda: not world.told())


async def test_a_model_made_of_models_keeps_them(make: Any, clock: Clock) -> None:
    world = make()
    world.composed["both"] = ("x", "y", "held")
    await world.ask("both")
    assert world.log == ["load x", "load y", "load both"]
    await clock.advance(60)
    world.memory["both"].used()
    world.settings["z"] = ModelResidency(wait=0.0)
    with pytest.raises(Unavailable):
        await world.of.demand("z")
    await until(lambda: "evict both" in world.log or not world.of.loading, lambda: world.log)
    await clock.advance(60)
    await world.ask("z")
    assert world.log[3] == "evict both", "the parts are not the first, though they were not asked for as lately"


async def test_who_leaves_and_is_asked_for_comes_back(make: Any, clock: Clock) -> None:
    world = make()
    await world.ask("a")
    world.may_leave.clear()
    leaving = asyncio.ensure_future(world.of.release("a"))
    await until(lambda: "evict a" in world.log)
    asking = asyncio.ensure_future(world.of.demand("a"))
    await stays(lambda: not asking.done())
    world.may_leave.set()
    await leaving
    await asking
    assert world.log == ["load a", "evict a", "load a"]
    assert world.told() == {"a"}


async def test_callers_pin_and_release(make: Any, clock: Clock) -> None:
    world = make(keep=5.0)
    await world.of.pin("a", "caller")
    world.wrong["b"] = "no"
    with pytest.raises(LoadFailed):
        await world.of.pin("b", "caller")
    await clock.advance(100)
    world.of.look()
    await stays(lambda: world.told() == {"a"})
    await world.of.release("a")
    assert world.told() == set()
    assert world.of.counts.evictions == {"caller": 1}


async def test_what_others_unload_is_not_held_any_more(make: Any) -> None:
    world = make()
    await world.ask("a")
    world.memory.clear()
    world.of.look()
    assert world.told() == set()
    await world.ask("a")


async def test_at_the_end_nothing_is_begun_and_callers_are_told(make: Any) -> None:
    world = make()
    world.slow.add("a")
    asking = asyncio.ensure_future(world.of.demand("a"))
    await until(lambda: world.log)
    await world.of.close()
    with pytest.raises(Unavailable, match="the server stops"):
        await asking


async def test_many_models_in_little_memory_take_turns(make: Any, clock: Clock) -> None:
    """Whatever is asked for comes in the end, and never more is held than may be."""
    world = make(max_resident_bytes={"cpu": 1000}, loads_at_once=3)
    asked = [f"m{(n * n) % 31}" for n in range(200)]
    for start in range(0, len(asked), 5):
        some = [asyncio.ensure_future(world.of.demand(name)) for name in asked[start : start + 5]]
        while not all(each.done() for each in some):
            assert len(world.memory) <= 10
            await clock.advance(0.1)
            await steps(3)
        await asyncio.gather(*some)
    assert world.of.counts.turned_away == 0
