"""Rows and lengths that are added to batches: each caller gets what it would have got alone, and nothing that was
added is ever seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, save_model
from paper_backend import PaperBackend

from tensorgate.backends.execution import pipeline
from tensorgate.backends.execution.device import Device
from tensorgate.backends.execution.padding import Padder
from tensorgate.backends.onnx.backend import KIND as ONNX
from tensorgate.gateway.contract.backend import BackendKind, Cut, ModelSource, Padding, RaggedInput
from tensorgate.gateway.contract.canonical import Destination, InferRequest, InferResponse, OutputRequest
from tensorgate.gateway.contract.errors import ModelFailed, OutputRows
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec

SIZES = (1, 4, 7)
VIEW: Any = SimpleNamespace(name="m")
"""What a model is called is none of the pipeline's business."""


class Masked(PaperBackend):
    """Row by row, and blind to what is -1: y = the words doubled, sum = theirs, name = the name backwards."""

    def __init__(self, source: ModelSource) -> None:
        self.device = Device()
        self.inputs = (
            TensorSpec("words", DTYPES["INT64"], (-1, -1)),
            TensorSpec("name", DTYPES["BYTES"], (-1, 1)),
        )
        self.outputs = (
            TensorSpec("y", DTYPES["INT64"], (-1, -1)),
            TensorSpec("sum", DTYPES["INT64"], (-1,)),
            TensorSpec("name_out", DTYPES["BYTES"], (-1, 1)),
        )
        self.max_batch_size = 8
        self.seen: list[tuple[int, ...]] = []
        self.rows: list[list[list[int]]] = []

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        words, names = tensors["words"], tensors["name"]
        self.seen.append(words.shape)
        self.rows.append(words.tolist())
        backwards = np.array([name[0][::-1] for name in names] + [None], np.object_)[:-1].reshape(-1, 1)
        everything = {"y": words * 2, "sum": np.where(words == -1, 0, words).sum(axis=1), "name_out": backwards}
        if words.size and words.flat[0] == 666:
            everything["y"] = everything["y"][:, :1]
        if words.size and words.flat[0] == 667:
            everything["sum"] = everything["sum"][:1]
        yield {name: everything[name] for name in outputs}


KIND = BackendKind(Options, Masked)
WORDS = {"words": RaggedInput((1,), -1)}
BOTH = Padding(SIZES, WORDS, (Cut("y", 1, "words", 1),))


def load(padding: Padding, kind: BackendKind = KIND, path: Path | None = None, max_batch_size: int = 8) -> Computation:
    source = ModelSource("m", 1, path or Path(), "cpu", (), (), max_batch_size, kind.options(), padding=padding)
    return pipeline.load(kind, source, 1, (), ())


def backend(computation: Computation) -> Any:
    return computation.executors[0]._backend  # type: ignore[attr-defined]


def run(computation: Computation, requests: Sequence[InferRequest]) -> list[InferResponse]:
    (responses,) = computation.executors[0].run(requests, lambda timing: None)
    return list(responses)  # type: ignore[arg-type]


def ask(words: Any, *outputs: str) -> InferRequest:
    array = np.array(words, np.int64)
    names = np.array([f"n{row.sum()}".encode() for row in array] + [None], np.object_)[:-1].reshape(-1, 1)
    return InferRequest(VIEW, {"words": array, "name": names}, outputs=tuple(map(OutputRequest, outputs)))


def assert_same(got: InferResponse, alone: InferResponse) -> None:
    assert list(got.outputs) == list(alone.outputs)
    for name, array in got.outputs.items():
        assert array.dtype == alone.outputs[name].dtype
        assert array.shape == alone.outputs[name].shape
        np.testing.assert_array_equal(array, alone.outputs[name])


# ------------------------------------------------------------------------------------------------------------ isolation

matrices = st.integers(0, 5).flatmap(
    lambda length: st.lists(st.lists(st.integers(0, 99), min_size=length, max_size=length), min_size=0, max_size=3)
)
wanted = st.sampled_from([(), ("y",), ("sum", "y"), ("name_out",)])


@given(st.data(), st.lists(st.tuples(matrices, wanted), min_size=1, max_size=4), st.integers(1, 4))
def test_everyone_gets_what_it_would_have_got_alone(
    data: Any, batch: list[tuple[list[list[int]], tuple[str, ...]]], step: int
) -> None:
    room, requests = 7, []
    for rows, outputs in batch:
        rows = rows[:room]
        room -= len(rows)
        length = data.draw(st.integers(0, 5)) if not rows else len(rows[0])
        requests.append(ask(np.array(rows, np.int64).reshape(len(rows), length), *outputs))
    plain = load(Padding())
    alone = [run(plain, [request])[0] for request in requests]
    ragged = {"words": RaggedInput((1,), -1, step)}
    padded = load(Padding(SIZES, ragged, (Cut("y", 1, "words", 1),)))
    for got, expected in zip(run(padded, requests), alone, strict=True):
        assert_same(got, expected)
    (shape,) = backend(padded).seen
    total = sum(len(request.inputs["words"]) for request in requests)
    assert shape[0] == next(size for size in (0, *SIZES) if size >= total)
    assert shape[1] % step == 0 or len({request.inputs["words"].shape[1] for request in requests}) == 1
    assert padded.executors[0]._padded is None  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = relu(x w) along the last axis, and total = its sum over the length: zeros that are added change neither."""
    folder: Path = tmp_path_factory.mktemp("padding") / "1"
    folder.mkdir()
    weights = np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axes"], ["total"], keepdims=0),
    ]
    body = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "length", 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "length", 3]),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, ["n", 3]),
        ],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([1], np.int64), "axes")],
    )
    save_model(
        helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    return folder


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=2), st.integers(0, 99))
def test_an_onnx_graph_gives_everyone_their_own(graph: Path, shapes: list[tuple[int, int]], seed: int) -> None:
    random = np.random.default_rng(seed)
    requests = [
        InferRequest(VIEW, {"x": random.integers(-8, 8, (rows, length, 4)).astype(np.float32)})
        for rows, length in shapes
    ]
    plain = load(Padding(), ONNX, graph)
    padded = load(Padding(SIZES, {"x": RaggedInput((1,), None, 4)}, (Cut("y", 1, "x", 1),)), ONNX, graph)
    for _ in range(3):  # the third time through bound buffers
        for got, request in zip(run(padded, requests), requests, strict=True):
            (alone,) = run(plain, [request])
            for name, array in got.outputs.items():
                assert array.shape == alone.outputs[name].shape
                np.testing.assert_allclose(array, alone.outputs[name], rtol=1e-5, atol=1e-4)


# --------------------------------------------------------------------------------------------------------- what is run


@pytest.mark.parametrize(
    ("rows", "runs"),
    [([1], 1), ([2], 4), ([4], 4), ([2, 3], 7), ([3, 4], 7), ([0], 0), ([0, 5], 7), ([5, 0], 7)],
)
def test_batches_have_only_these_numbers_of_rows(rows: list[int], runs: int) -> None:
    computation = load(Padding(SIZES))
    assert computation.max_batch_size == 7
    requests = [ask(np.arange(count * 2).reshape(count, 2)) for count in rows]
    for got, request in zip(run(computation, requests), requests, strict=True):
        assert got.outputs["y"].tolist() == (request.inputs["words"] * 2).tolist()
        assert got.outputs["name_out"].tolist() == [[name[0][::-1]] for name in request.inputs["name"]]
    assert backend(computation).seen == [(runs, 2)]


def test_rows_that_are_added_are_copies_of_the_last() -> None:
    computation = load(Padding(SIZES))
    run(computation, [ask([[1, 2]]), ask([[3, 4], [5, 6]]), ask(np.zeros((0, 2)))])
    assert backend(computation).rows == [[[1, 2], [3, 4], [5, 6], [5, 6]]]


def test_lengths_are_those_of_the_longest_rounded_up() -> None:
    computation = load(Padding((), {"words": RaggedInput((1,), -1, 4)}, (Cut("y", 1, "words", 1),)))
    first, second = run(computation, [ask([[1]]), ask([[2, 3, 4, 5, 6]])])
    assert backend(computation).rows == [[[1, *[-1] * 7], [2, 3, 4, 5, 6, -1, -1, -1]]]
    assert (first.outputs["y"].tolist(), second.outputs["y"].tolist()) == ([[2]], [[4, 6, 8, 10, 12]])
    (alone,) = run(computation, [ask([[1, 2, 3]], "y")])
    assert (alone.outputs["y"].tolist(), backend(computation).seen[-1]) == ([[2, 4, 6]], (1, 4))


def test_every_input_that_varies() -> None:
    computation = load(Padding((), {"*": RaggedInput()}, (Cut("y", 1, "words", 1),)))
    assert computation.ragged == {"words": (1,)}
    first, _ = run(computation, [ask([[1]]), ask([[2, 3]])])
    assert first.outputs["y"].tolist() == [[2]]
    assert backend(computation).rows == [[[1, 0], [2, 3]]]


def test_callers_who_need_not_keep_to_the_rank() -> None:
    """TensorFlow Serving's: an input without the axis that the others are cut to."""
    ragged = {"words": RaggedInput((1,), -1), "name": RaggedInput((1,))}
    specs = {name: TensorSpec(name, dtype) for name, dtype in (("words", DTYPES["INT64"]), ("name", DTYPES["BYTES"]))}
    padder = Padder(Padding((), ragged, (Cut("y", 1, "words", 1),)), specs, {"y": TensorSpec("y", DTYPES["INT64"])}, 8)
    names = (np.array([[b"a"]], np.object_), np.array([[b"b", b"c"]], np.object_))
    padded = padder.pad([InferRequest(VIEW, {"words": np.array([1]), "name": each}) for each in names])
    assert padded is not None
    assert padded.requests[0].inputs["name"].tolist() == [[b"a", b""]]
    assert padded.cuts == ()


def test_without_a_cut_the_common_length_is_seen() -> None:
    first, _ = run(load(Padding((), WORDS)), [ask([[1]]), ask([[2, 3]])])
    assert first.outputs["y"].tolist() == [[2, -2]]


def test_the_best_classes_are_of_real_rows_and_lengths() -> None:
    computation = load(BOTH)
    request = replace(ask([[5, 9]]), outputs=(OutputRequest("y", 1), OutputRequest("sum")))
    twice = [request, replace(request, inputs=ask([[8, 7]]).inputs)]
    first, second = run(computation, twice)
    assert [each.classes["y"].indices.tolist() for each in (first, second)] == [[[1]], [[0]]]
    assert [each.outputs["sum"].tolist() for each in (first, second)] == [[14], [15]]
    assert backend(computation).seen == [(4, 2)]


def test_outputs_go_into_memory_of_the_callers() -> None:
    memory = bytearray(64)
    request = replace(ask([[5, 9]], "sum"), into={"sum": Destination(memoryview(memory), bytes)})
    run(load(BOTH), [request, replace(ask([[1, 1]], "sum"), into={})])
    assert np.frombuffer(memory, np.int64).tolist() == [14, *[0] * 7]


def test_what_is_not_as_long_as_said_is_named() -> None:
    with pytest.raises(ModelFailed, match=r"'y' has shape \[2, 1\], but is to be cut along axis 1, where .* has 3"):
        run(load(Padding((), WORDS, (Cut("y", 1, "words", 1),))), [ask([[666, 1]]), ask([[1, 2, 3]])])
    with pytest.raises(OutputRows):
        run(load(BOTH), [ask([[667, 1]]), ask([[1, 2, 3]])])


# ---------------------------------------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("padding", "remark"),
    [
        (Padding((), {"x": RaggedInput()}), "the model has no input 'x'"),
        (Padding((), {"words": RaggedInput((2,))}), r"'words' has shape \[-1, -1\], which does not vary along 2"),
        (Padding((), {"name": RaggedInput((1,))}), r"'name' has shape \[-1, 1\], which does not vary along 1"),
        (Padding((), {"name": RaggedInput()}), r"'name' has shape \[-1, 1\], which does not vary; name axes"),
        (Padding((), {"*": RaggedInput()}, (Cut("y", 1, "name", 1),)), "'y' is to be cut to name.1, which is not rag"),
        (Padding((), WORDS, (Cut("z", 1, "words", 1),)), "the model has no output 'z'"),
        (Padding((), WORDS, (Cut("sum", 1, "words", 1),)), r"output 'sum' has shape \[-1\], which does not vary"),
        (Padding((), {"words": RaggedInput((1,), "")}), "'words' is INT64, and cannot be filled up with text"),
        (Padding((), {"words": RaggedInput((1,), 0.5)}), "'words' is INT64, and cannot be filled up with 0.5"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(padding: Padding, remark: str) -> None:
    with pytest.raises(ValueError, match=remark):
        load(padding)


def test_padding_is_for_models_that_batch(graph: Path) -> None:
    with pytest.raises(ValueError, match="pad_batches_to and ragged are for batches, and max_batch_size is 0"):
        load(Padding(SIZES), ONNX, graph, 0)
