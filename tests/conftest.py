"""Views of models that exist only on paper: dialects are pure, so a specification is all that their tests need."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from waiting import Clock

from tensorgate.gateway.contract.canonical import Answers, InferRequest, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.tensor import DTYPES, Signature, TensorSpec

QUICK_EXAMPLES = 5

# Examples are judged by what they show, not by how long a busy machine takes over one.
settings.register_profile("any machine", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=QUICK_EXAMPLES)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="every test, each with its first case")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        settings.load_profile("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A rule that needs no upkeep: what is left out are cases of tests that run, whatever they are called."""
    if not config.getoption("--quick"):
        return
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        cases.setdefault((item.location[0], getattr(item, "originalname", item.name)), []).append(item)
    kept = {id(item) for each in cases.values() for item in each[:1]}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]
    for item in items:
        test = getattr(item, "obj", None)
        own = getattr(test, "_hypothesis_internal_use_settings", None)  # which a profile does not reach
        if own is not None and own.max_examples > QUICK_EXAMPLES:
            test._hypothesis_internal_use_settings = settings(own, max_examples=QUICK_EXAMPLES)  # type: ignore[union-attr]


class Nowhere:
    """A handle that no dialect may touch."""

    def submit(self, request: InferRequest) -> Answers:
        raise AssertionError("a dialect does no I/O")

    answer = submit


def paper_model(
    name: str,
    inputs: Mapping[str, tuple[str, tuple[int, ...] | None]],
    outputs: Mapping[str, tuple[str, tuple[int, ...] | None]],
    **changes: Any,
) -> ModelView:
    """A view: {"x": ("FP32", (-1, 16))} and so on; `changes` are fields of ModelView, signatures written as the names
    of what they show, ({"image": "x"}, {"scores": "y"}).
    """

    def specs(table: Mapping[str, tuple[str, tuple[int, ...] | None]]) -> dict[str, TensorSpec]:
        return {key: TensorSpec(key, DTYPES[datatype], shape) for key, (datatype, shape) in table.items()}

    declared: dict[str, Any] = {
        "handle": Nowhere(),
        "version": 1,
        "versions": (1,),
        "max_batch_size": 0,
        "platform": "onnxruntime_onnx",
        "example_inputs": {
            key: np.ones([1 if size < 0 else size for size in shape or ()], DTYPES[datatype])
            for key, (datatype, shape) in inputs.items()
        },
    }
    takes, gives = specs(inputs), specs(outputs)
    everything = {"serving_default": ({key: key for key in takes}, {key: key for key in gives})}
    changes["signatures"] = {
        key: Signature(
            key,
            {outer: takes[name] for outer, name in ins.items()},
            {outer: gives[name] for outer, name in outs.items()},
        )
        for key, (ins, outs) in changes.get("signatures", everything).items()
    }
    return ModelView(name=name, inputs=takes, outputs=gives, **(declared | changes))


def resolver(*views: ModelView) -> Resolve:
    """The resolve of these models: by name, name and version, or qualified "name-version"; the first is the default."""

    def resolve(ref: ModelRef) -> ModelView:
        for view in views:
            if ref.qualified is not None and ref.qualified in ("", f"{view.name}-{view.version}"):
                return view
            if ref.qualified is None and ref.name == view.name and ref.version in (None, view.version):
                return view
        name = ref.qualified if ref.qualified is not None else ref.name
        raise ModelNotFound(name, ref.version, serves=any(view.name == name for view in views))

    return resolve


@pytest.fixture
def clock() -> Iterator[Clock]:
    """time.monotonic() and the event loop's time, at a standstill; what waits in a thread goes on as ever. Ask for it
    last: what other fixtures undo has its time again.
    """
    running = time.monotonic
    standing = Clock(running)
    time.monotonic = standing
    yield standing
    time.monotonic = running


@pytest.fixture
def make_model() -> Callable[..., ModelView]:
    return paper_model


@pytest.fixture
def make_resolve() -> Callable[..., Resolve]:
    return resolver
