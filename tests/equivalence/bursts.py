"""Who asks at the same time, as hypothesis draws it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from asks import PLAIN_SEEDS, able_forms, behind, make_ask, shows_fault
from form import Ask
from hypothesis import strategies as st
from truth import Model
from worlds import World

SEEDS: Final = st.integers(0, 1 << 30)
MANY: Final = 32


def bursts(world: World) -> st.SearchStrategy[list[Ask]]:
    """One request, a few, or 32: of anybody, or all to one model and to what is made of it."""
    everybody = _some(world, [*world.models.values()])
    families = st.sampled_from([*world.models]).flatmap(lambda name: _some(world, family(world, name)))
    return st.one_of(everybody, families, families)


def family(world: World, name: str) -> list[Model]:
    """A model, and those that lead to it: more often the model itself."""
    own = world.models[name]
    others = [
        each for each in world.models.values() if each.behind == name or name in [step.model for step in each.steps]
    ]
    return [own, own, *others]


def _some(world: World, models: Sequence[Model]) -> st.SearchStrategy[list[Ask]]:
    names = st.sampled_from([each.name for each in models])
    one = st.tuples(names, st.integers(0, 1 << 16), SEEDS).map(lambda drawn: _ask(world, *drawn))
    return st.one_of(st.lists(one, min_size=1, max_size=4), st.lists(one, min_size=MANY, max_size=MANY))


def _ask(world: World, name: str, form: int, seed: int) -> Ask:
    model = world.models[name]
    forms = able_forms(model)
    return make_ask(world.models, model, forms[form % len(forms)], seed)


def tour(world: World, seed: int = 0) -> list[Ask]:
    """Every model by every form that makes sense for it, once; a model with a fault also where it shows."""
    made: list[Ask] = []
    numbers = itertools.count(seed + PLAIN_SEEDS)
    for model in world.models.values():
        for form in dict.fromkeys(able_forms(model)):
            made.append(make_ask(world.models, model, form, next(numbers)))
            if behind(world.models, model).fault and model.inputs[0].datatype not in ("BOOL", "BYTES"):
                asks = (make_ask(world.models, model, form, next(numbers)) for _ in range(MANY))
                made += list(itertools.islice((each for each in asks if shows_fault(each)), 1))
    return made
