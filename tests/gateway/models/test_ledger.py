"""Which models leave first, and when there is room."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.gateway.models.ledger import MAX_STAY_S, Ledger, Resident

NOW = 1000.0


def resident(
    name: str, nbytes: int = 100, *, load: float = 0.1, age: float = 50.0, idle: float = 50.0, **more: bool
) -> Resident:
    return Resident(name, {"cpu": nbytes}, load, NOW - age, NOW - idle, **more)


def ledger(*residents: Resident, cpu: int = 1000, **bounds: int) -> Ledger:
    made = Ledger({"cpu": cpu, **bounds})
    for each in residents:
        made.add(each)
    return made


def leaving(made: Ledger, nbytes: int, **kept: bool) -> list[str]:
    lacking = made.lacking({"cpu": nbytes})
    return [each.name for each in made.to_leave(lacking, NOW, lambda each: each.name not in kept)]


def test_nobody_leaves_while_there_is_room() -> None:
    made = ledger(resident("a", 400), resident("b", 400))
    assert made.lacking({"cpu": 200}) == {}
    assert made.lacking({"cpu": 201}) == {"cpu": 1}
    made.reserved["c"] = {"cpu": 100}
    assert made.lacking({"cpu": 200}) == {"cpu": 100}, "who is being loaded has its room"


@pytest.mark.parametrize(
    ("residents", "first"),
    [
        ((resident("old", idle=40), resident("new", idle=4)), "old"),
        ((resident("dear", load=5.0, age=500), resident("cheap", load=0.1)), "cheap"),
        ((resident("large", 800), resident("small", 80)), "large"),
        ((resident("dear and long idle", load=1.0, idle=400), resident("cheap and just used", load=0.1, idle=1)),
         "dear and long idle"),
    ],
)  # fmt: skip
def test_the_least_valuable_leaves_first(residents: tuple[Resident, ...], first: str) -> None:
    assert leaving(ledger(*residents), 300 + 1000 - sum(each.holds["cpu"] for each in residents) - 200)[0] == first


def test_as_many_leave_as_make_room_and_no_more() -> None:
    made = ledger(*[resident(f"m{n}", 100, idle=100 - n) for n in range(10)])
    assert leaving(made, 250) == ["m0", "m1", "m2"]
    assert leaving(made, 1000) == [f"m{n}" for n in range(10)]


def test_where_leaving_would_not_be_enough_nobody_does() -> None:
    made = ledger(resident("a", 500), resident("busy", 500))
    assert leaving(made, 600, busy=True) == []
    assert leaving(made, 500, busy=True) == ["a"]


def test_who_has_just_come_stays_for_as_long_as_his_load_was_worth() -> None:
    made = ledger(resident("a", 900, load=0.2, age=1.9, idle=1.9))
    assert leaving(made, 200) == []
    made.residents["a"].since -= 0.2
    assert leaving(made, 200) == ["a"]
    slow = ledger(resident("slow", 900, load=60.0, age=MAX_STAY_S, idle=0.0))
    assert leaving(slow, 200) == ["slow"], "and no longer than that"


def test_the_pinned_stay_and_what_can_never_fit_is_known() -> None:
    made = ledger(resident("pinned", 600, stays=True), resident("a", 300))
    assert leaving(made, 300) == ["a"]
    assert made.fits({"cpu": 400})
    assert not made.fits({"cpu": 401})
    assert ledger().fits({"cuda:0": 1 << 50}), "where there is no bound, all fits"


def test_each_device_has_its_own_bound() -> None:
    both = Resident("both", {"cpu": 10, "cuda:0": 800}, 0.1, 0.0, NOW - 5)
    made = ledger(resident("host", 900), both, **{"cuda:0": 1000})
    assert [each.name for each in made.to_leave(made.lacking({"cuda:0": 300}), NOW, lambda each: True)] == ["both"]
    assert made.lacking({"cpu": 50, "cuda:0": 200}) == {}
    assert made.excess() == {}
    made.add(resident("more", 200))
    assert made.excess() == {"cpu": 110}


def test_what_a_model_holds_is_remembered_and_of_others_guessed_by_their_files() -> None:
    made = ledger()
    assert made.expected("new", "onnx", 100, "cpu") == {"cpu": 100}
    guessed = resident("guessed", 100)
    guessed.kind, guessed.file_bytes, guessed.guessed_on = "onnx", 100, "cpu"
    made.add(guessed)
    for n in range(3):
        each = resident(f"m{n}", 200)
        each.kind, each.file_bytes = "onnx", 100
        made.add(each)
    assert made.expected("new", "onnx", 50, "cpu") == {"cpu": 100}
    assert made.expected("new", "torch", 50, "cpu") == {"cpu": 50}, "others of its kind"
    assert guessed.holds == {"cpu": 200}, "what is learned of others is learned of it"
    made.add(resident("odd", 7, load=3.0))
    made.remove("odd")
    assert made.expected("odd", "onnx", 100, "cpu") == {"cpu": 7}
    made.remove("guessed")
    assert made.expected("guessed", "onnx", 100, "cpu") == {"cpu": 200}
    assert made.load_seconds("odd") == 3.0
    assert made.load_seconds("new") == pytest.approx(0.1)


@given(st.integers(0, 1 << 30), st.integers(1, 3000))
def test_those_who_leave_are_worth_less_than_those_who_stay(seed: int, nbytes: int) -> None:
    source = random.Random(seed)  # noqa: S311  no secret
    made = ledger(
        *[
            resident(
                f"m{n}", source.randint(1, 300), load=source.random(), age=60.0, idle=source.random() * 100,
                stays=source.random() < 0.2,
            )
            for n in range(20)
        ],
        cpu=3000,
    )  # fmt: skip
    lacking = made.lacking({"cpu": nbytes})
    left = made.to_leave(lacking, NOW, lambda each: True)
    assert sum(each.holds["cpu"] for each in left) >= lacking.get("cpu", 0) or not left
    assert not any(each.stays for each in left)
    stay = [each for each in made.residents.values() if each not in left and not each.stays]
    worth = [each.value(NOW, ["cpu"]) for each in left]
    assert not left or all(each.value(NOW, ["cpu"]) >= max(worth) for each in stay)
