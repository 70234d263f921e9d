"""Views cross whole: all that dialects say of a model is the same on the other side."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.gateway.app import registries
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Signature, TensorSpec
from tensorgate.gateway.crossing.arena import Arena, PeerArena
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import Spec, View
from tensorgate.gateway.crossing.tensors import TensorReader, TensorWriter
from tensorgate.gateway.crossing.views import view_message, view_of

DIALECTS = registries().dialects
OPTIONS: dict[str, type[Options]] = {name: kind.model_options for name, kind in DIALECTS.items() if kind.model_options}
ARENA = Arena(1 << 30)
READER = TensorReader(PeerArena(os.dup(ARENA.fd)))
STAYS = {"handle", "configuration", "example_inputs", "route"}
"""What the engine keeps to itself."""

names = st.text(min_size=1, max_size=5)
shapes = st.none() | st.lists(st.integers(-1, 9), max_size=4).map(tuple)
labels = st.lists(names, max_size=2).map(tuple)
dtypes = st.sampled_from(sorted(DTYPES)).map(DTYPES.__getitem__)
specs = st.builds(TensorSpec, names, dtypes, shapes, st.booleans(), labels)
by_name = st.lists(specs, max_size=3).map(lambda found: {spec.name: spec for spec in found})
signatures = st.builds(
    Signature, names, by_name, by_name, st.sampled_from(["", "tensorflow/serving/predict"]), st.none() | by_name
)


def crossed(view: ModelView) -> ModelView:
    said = msgspec.msgpack.decode(msgspec.msgpack.encode(view_message(view, 3, TensorWriter(ARENA))), type=View)
    return view_of(said, view.handle, OPTIONS, READER)


def plain(value: Any) -> Any:
    """Something that compares by its content, and by the order of its names."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tolist()
    if isinstance(value, Mapping):
        return [(key, plain(each)) for key, each in value.items()]
    if isinstance(value, Signature):
        return [plain(getattr(value, each.name)) for each in fields(value)]
    return value


def assert_same(found: ModelView, view: ModelView) -> None:
    for each in fields(ModelView):
        if each.name not in STAYS:
            assert plain(getattr(found, each.name)) == plain(getattr(view, each.name)), each.name


@given(
    by_name, by_name, st.lists(signatures, max_size=2), st.integers(0, 9), st.booleans(), st.booleans(), st.booleans()
)
def test_any_view(
    inputs: Any, outputs: Any, signatures: list[Signature], rows: int, decoupled: bool, merges: bool, sees: bool
) -> None:
    handle = cast("Any", object())
    by_key = {each.name: each for each in signatures}
    options = {name: kind() for name, kind in OPTIONS.items()}
    view = ModelView(
        "m", 2, (1, 2), inputs, outputs, by_key, rows, "onnx", handle, decoupled, merges, sees, options, instances=3
    )
    assert_same(crossed(view), view)


@pytest.mark.parametrize("size", [3, 100_000])
def test_defaults_of_a_signature(make_model: Callable[..., ModelView], size: int) -> None:
    view = make_model("m", {"x": ("FP32", (-1, 2))}, {"y": ("BYTES", (-1,))})
    texts = np.empty(2, object)
    texts[:] = [b"a", b"b" * size]
    [(key, signature)] = view.signatures.items() or [("s", Signature("s", {}, {}))]
    defaults = {"x": np.arange(size, dtype=np.float32), "t": texts}
    view = replace(view, signatures={key: replace(signature, defaults=defaults, definition=b"\0\xff" * 9)})
    assert_same(crossed(view), view)


def test_dialects_say_the_same(make_model: Callable[..., ModelView]) -> None:
    inputs = {name: (name, (-1, 3)) for name in DTYPES}
    view = make_model("m", inputs, {"y": ("FP32", (-1, 4)), "z": ("BYTES", None)})
    found = crossed(view)
    said = 0
    for kind in DIALECTS.values():
        dialect = kind.make(kind.options())
        for target in ("/v2/models/m", "/v1/models/m/metadata", "/v2/models/m/config"):
            endpoint = dialect.match("GET", target).endpoint
            replies = []
            for each in (view, found):
                call = Call(b"", "GET", target, {}, "http", {"model": "m"})
                try:
                    question = endpoint.decode(call, lambda ref, each=each: _only(ref, each))
                    replies.append(endpoint.encode(each, question).body)
                except Exception as error:
                    replies.append(type(error))
            assert replies[0] == replies[1]
            said += isinstance(replies[0], bytes)
    assert said >= 2


def _only(ref: ModelRef, view: ModelView) -> ModelView:
    return view


GOOD = view_message(
    ModelView("m", 1, (1,), {}, {}, {}, 0, "onnx", cast("Any", None)), 1, TensorWriter(ARENA)
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (Spec("x", "FP31", (1,), False, ()),)},
        {"mappings": {"nobody": "{}"}},
        {"mappings": {next(iter(OPTIONS)): "no JSON"}},
        {"mappings": {next(iter(OPTIONS)): '{"no_such_option": 1}'}},
    ],
    ids=range(4),
)
def test_hostile_views(changes: dict[str, Any]) -> None:
    with pytest.raises(CrossingBroken):
        view_of(msgspec.structs.replace(GOOD, **changes), cast("Any", None), OPTIONS, READER)
