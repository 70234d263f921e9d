"""Padding and ragged lengths from YAML to the rows of callers that shared a batch."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import ConfigError, load_config
from tensorgate.gateway.contract.canonical import (
    Destination,
    InferRequest,
    ModelRef,
    OutputRequest,
    takes_whole_outputs,
)
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
from tensorgate.gateway.engine.admission import AdmissionCheck

MODEL = '''
import threading
import numpy as np

SEEN = []
GATE = threading.Event()

class Echo:
    """y = x, n = how many are not -1."""

    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        x = inputs["x"]
        if x.size and x.flat[0] == 99:
            GATE.wait(5)
        SEEN.append(x.shape)
        return {"y": x, "n": (x != -1).sum(axis=1)}
'''
YAML = """
models:
  m:
    backend: python
    path: model.py:Echo
    max_batch_size: 8
    inputs: [{name: x, datatype: INT64, shape: [-1, -1]}]
    outputs: [{name: y, datatype: INT64, shape: [-1, -1]}, {name: n, datatype: INT64, shape: [-1]}]
"""


def written(folder: Path, keys: str) -> Path:
    (folder / "model.py").write_text(MODEL)
    file = folder / "gateway.yaml"
    file.write_text(YAML + textwrap.indent(textwrap.dedent(keys), "    "))
    return file


@pytest.mark.parametrize(
    ("keys", "shapes"),
    [
        ("", [(1, 1), (1, 1), (2, 3), (1, 5)]),
        ("pad_batches_to: [4, 8]", [(4, 1), (4, 1), (4, 3), (4, 5)]),
        (
            "ragged: {inputs: {x: {value: -1, to_multiple_of: 4}}, cut: [{output: y, to: x.1}]}",
            [(1, 4), (4, 8)],
        ),
        (
            "pad_batches_to: [1, 6]\nragged: {inputs: {x: {value: -1}}, cut: [{output: y, axis: 1, to: x.1}]}",
            [(1, 1), (6, 5)],
        ),
    ],
    ids=["neither", "rows", "lengths", "both"],
)
async def test_who_shares_a_batch_and_what_they_get(tmp_path: Path, keys: str, shapes: list[Any]) -> None:
    kinds = registries()
    app = App(load_config(written(tmp_path, keys), kinds), kinds)
    errors: list[str] = []
    await app.load(lambda report: errors.append(report.error))
    assert errors == [""]
    view = app.router.resolve(ModelRef("m"))
    assert view.max_batch_size == (6 if "6]" in keys else 8)
    module: Any = type(app.repository.serving()[0].computation.executors[0]._backend._model).infer.__globals__  # type: ignore[attr-defined]
    module["SEEN"].clear()

    def submit(x: Any) -> Any:
        return view.handle.submit(InferRequest(view, {"x": np.array(x, np.int64)}))

    sent = [[[99]], [[1]], [[2, 3, 4], [5, 6, 7]], [[1, 2, 3, 4, 5]]]
    answers = [submit(sent[0])]
    await until(lambda: app.repository.snapshot.models["m"][1].running)
    answers += [submit(x) for x in sent[1:]]
    module["GATE"].set()
    for x, answer in zip(sent, answers, strict=True):
        response = await anext(answer)
        assert response.outputs["y"].tolist() == x
        assert response.outputs["n"].tolist() == [len(x[0])] * len(x)
    assert sorted(module["SEEN"]) == sorted(shapes)
    assert (await app.drain()) is True


@pytest.mark.parametrize(
    ("keys", "remark"),
    [
        ("pad_batches_to: [1, 16]", "pad_batches_to[1]: more than max_batch_size, 8"),
        ("pad_batches_to: [4, 4]", "pad_batches_to[1]: no more than 4 before it; expected sizes that rise"),
        ("pad_batches_to: [0]", "pad_batches_to[0]: found 0, expected at least 1"),
        ("ragged: {inputs: {}}", "ragged.inputs: found an empty mapping, expected at least 1 entry"),
        ("ragged: {inputs: {x: {axes: [0]}}}", "ragged.inputs.x.axes[0]: found 0, expected at least 1"),
        (
            "ragged: {inputs: {x: {axes: [1]}}, cut: [{output: y, to: x.2}]}",
            'ragged.cut[0].to: "x.2" is not a ragged axis of one of these inputs',
        ),
        ("pad_batches_to: [4]\nsequences: {}", "sequences: a row that is added would be a step of a sequence"),
    ],
)
def test_what_cannot_be_said(tmp_path: Path, keys: str, remark: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, keys), registries())
    assert remark in str(caught.value)


def test_lengths_that_differ_much_stay_apart() -> None:
    """And so do those whose outputs cannot be cut."""
    spec = TensorSpec("x", DTYPES["INT64"], (-1, -1, -1))
    gate = AdmissionCheck("m", {"x": spec}, 8, ragged={"x": (1,)})
    view: Any = type("View", (), {"outputs": {"y": spec}})

    def key(length: int, rest: int = 2, **changes: Any) -> Any:
        request = InferRequest(view, {"x": np.zeros((1, length, rest), np.int64)}, **changes)
        return gate.admit(request).batch_key

    assert key(0) == key(1) == key(1024)
    assert key(1) != key(1, 3)
    assert key(1024) != key(1025) == key(2048) != key(2049)
    classes = {"outputs": (OutputRequest("y", 3),)}
    placed = {"into": {"y": Destination(memoryview(bytearray(8)), bytes)}}
    for changes in (classes, placed, {"on_device": True}):
        assert not takes_whole_outputs(InferRequest(view, {}, **changes))
        assert key(5, **changes) == key(5, **changes)
        assert key(5, **changes) not in (key(6, **changes), key(5))
