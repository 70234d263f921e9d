"""ONNX models made on the spot: specifications, every datatype, strings, errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tensorgate.backends.onnx.backend import KIND, OnnxOptions
from tensorgate.backends.onnx.failures import is_about_inputs, plain
from tensorgate.backends.onnx.file import unknown_ranks
from tensorgate.gateway.contract.backend import Backend, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import DATATYPES, DTYPES, TensorSpec

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def save(folder: Path, op: str, inputs: dict[str, tuple[str, Any]], outputs: dict[str, tuple[str, Any]]) -> Path:
    def infos(table: dict[str, tuple[str, Any]]) -> list[Any]:
        return [helper.make_tensor_value_info(n, ONNX_TYPES[t], shape) for n, (t, shape) in table.items()]

    node = helper.make_node(op, list(inputs), list(outputs))
    graph = helper.make_graph([node], "g", infos(inputs), infos(outputs))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder


def load(folder: Path, device: str = "cpu", **changes: Any) -> Any:
    """`changes`: options of the backend, or fields of the source."""
    fields = {
        key: changes.pop(key, default) for key, default in (("inputs", ()), ("outputs", ()), ("max_batch_size", 0))
    }
    options = OnnxOptions(**({"intra_op_threads": 1} | changes))
    return KIND.load(ModelSource("m", 1, folder, device, options=options, **fields))


def run(backend: Backend, **tensors: Any) -> dict[str, Any]:
    request = InferRequest(None, tensors)  # type: ignore[arg-type]
    (outputs,) = backend.infer(tensors, [spec.name for spec in backend.outputs], [request])  # type: ignore[misc]
    return dict(outputs)


@pytest.mark.parametrize("datatype", ONNX_TYPES)
def test_every_datatype_passes_through_bit_equal(tmp_path: Path, datatype: str) -> None:
    backend = load(save(tmp_path, "Identity", {"x": (datatype, ["n", 2])}, {"y": (datatype, ["n", 2])}))
    (spec,) = backend.inputs
    assert (spec.name, spec.datatype, spec.shape) == ("x", datatype, (-1, 2))
    if datatype == "BYTES":
        x = np.array([[b"", "é".encode()], [b"a\x00b", b"xyz"]], np.object_)
    else:
        x = np.array([[0, 1], [1, 3]]).astype(DTYPES[datatype])
    y = run(backend, x=x)["y"]
    assert y.dtype == x.dtype
    assert y.tolist() == x.tolist()


def test_repeated_calls_through_bound_buffers_are_equal_and_the_callers_own(tmp_path: Path) -> None:
    shapes = {"a": ("FP32", [None, None]), "b": ("FP32", [None, None])}
    backend = load(save(tmp_path, "Add", shapes, {"c": ("FP32", [None, None])}))
    random = np.random.default_rng(0)
    results = []
    for shape in [(1, 16), (3, 4), (1, 16), (0, 2), (200, 200)] * 4:
        a, b = random.random(shape, np.float32), random.random(shape, np.float32)
        results.append((a + b, run(backend, a=a, b=np.asfortranarray(b))["c"]))
    for want, got in results:
        np.testing.assert_array_equal(want, got)


def test_outputs_whose_shape_depends_on_the_numbers_are_not_bound(tmp_path: Path) -> None:
    backend = load(save(tmp_path, "NonZero", {"x": ("FP32", [None])}, {"y": ("INT64", [1, None])}))
    for x in ([1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0], [1, 0, 1]):
        assert run(backend, x=np.array(x, np.float32))["y"].tolist() == [np.flatnonzero(x).tolist()]


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    backend = load(save(tmp_path, "Identity", {"x": ("BYTES", [1])}, {"y": ("BYTES", [1])}))
    with pytest.raises(InvalidArgument, match="input 'x' has an element that is not UTF-8"):
        run(backend, x=np.array([b"\xff"], np.object_))


SHAPES: list[tuple[Any, Any]] = [(None, None), ([], ()), ([1], (1,)), (["a", 3, None], (-1, 3, -1))]


@pytest.mark.parametrize(("written", "want"), SHAPES)
def test_scalar_and_unknown_rank_are_told_apart(tmp_path: Path, written: Any, want: Any) -> None:
    folder = save(tmp_path, "Identity", {"x": ("FP32", written)}, {"y": ("FP32", None)})
    backend = load(folder)
    assert backend.inputs[0].shape == want
    assert ("x" in unknown_ranks(folder / "model.onnx")) == (want is None)


def test_what_the_runtime_refuses_is_the_callers_fault(tmp_path: Path) -> None:
    backend = load(save(tmp_path, "Add", {"a": ("FP32", None), "b": ("FP32", None)}, {"c": ("FP32", None)}))
    with pytest.raises(Exception, match=r".") as caught:  # whichever kind: its text is the runtime's
        run(backend, a=np.ones((2, 3), np.float32), b=np.ones((4, 5), np.float32))
    assert "Traceback" not in str(caught.value)
    with pytest.raises(InvalidArgument):
        run(backend, a=np.ones((2, 3), np.float64), b=np.ones((2, 3), np.float32))


INT, F = np.int64, np.float32
UNFIT: list[tuple[str, dict[str, Any], str]] = [
    (
        "Add",
        {"a": np.ones(3, F), "b": np.ones(4, F)},
        "Attempting to broadcast an axis by a dimension other than 1. 3 by",
    ),
    ("Where", {"c": np.ones(2, bool), "a": np.ones(3, F), "b": np.ones(4, F)}, "Attempting to broadcast an axis by a"),
    ("MatMul", {"a": np.ones((3, 2), F), "b": np.ones((3, 4), F)}, "MatMul dimension mismatch"),
    ("Gemm", {"a": np.ones((3, 2), F), "b": np.ones((3, 4), F)}, "GEMM: Dimension mismatch"),
    ("Conv", {"a": np.ones((1, 2, 4, 4), F), "b": np.ones((1, 3, 2, 2), F)}, "Input channels C is not equal to kernel"),
    (
        "Reshape",
        {"a": np.ones(3, F), "i": np.array([2, 2], INT)},
        "The input tensor cannot be reshaped to the requested",
    ),
    ("Reshape", {"a": np.ones(3, F), "i": np.array([-1, -1], INT)}, "At most one dimension can be -1."),
    (
        "Slice",
        {"a": np.ones(3, F), "i": np.array([0, 1], INT), "j": np.array([1], INT)},
        "Starts and ends shape mismatch",
    ),
    ("Pad", {"a": np.ones(3, F), "i": np.array([2, 2, 3], INT)}, "Pads tensor size should be equal to twice the input"),
    (
        "Squeeze",
        {"a": np.ones(3, F), "i": np.array([0], INT)},
        "Dimension of input 0 must be 1 instead of 3. shape={3}",
    ),
    ("Unsqueeze", {"a": np.ones(3, F), "i": np.array([5], INT)}, "axis 5 is not in valid range [-2,1]"),
    (
        "Gather",
        {"a": np.ones(3, F), "i": np.array([5], INT)},
        "indices element out of data bounds, idx=5 must be within",
    ),
]


@pytest.mark.parametrize(("op", "inputs", "text"), UNFIT, ids=[f"{op} {text[:20]}" for op, _, text in UNFIT])
def test_inputs_that_do_not_fit_each_other_are_the_callers_fault(
    op: str, inputs: dict[str, Any], text: str, tmp_path: Path
) -> None:
    declared = {name: (DATATYPES[array.dtype], None) for name, array in inputs.items()}
    backend = load(save(tmp_path, op, declared, {"y": ("FP32", None)}))
    with pytest.raises(InvalidArgument) as caught:
        run(backend, **inputs)
    assert f"Status Message: {text}" in caught.value.text
    for word in ("/onnxruntime_src", ".h:", ".cc:", "::", "\n", "was false"):
        assert word not in caught.value.text


RUNNING = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running {} node. Name:'{}' Status Message: {}"
)
SOURCE = "/onnxruntime_src/onnxruntime/core"
WORDS: list[tuple[str, str, bool]] = [
    (f"{SOURCE}/a/b.h:563 void o::B::Init(long, long) a == 1 was false. An axis too many.", "An axis too many.", True),
    (
        f"{SOURCE}/concatbase.h:120 o::Status o::C::P(K*, const o::V&, o::P&) const [with K = o::C; V = a::V<o::T*,"
        " 5, std::allocator<const o::T*> >] rank == other was false. Ranks differ, cannot join.",
        "Ranks differ, cannot join.",
        True,
    ),
    (f"{SOURCE}/c.cc:9 virtual o::Status o::C::Compute(o::O*) const rank > 2 was false. ", "rank > 2 was false.", True),
    (f"{SOURCE}/c.cc:9 o::Status o::C::Go(o::O*, std::vector<int>) No such thing", "No such thing", False),
    ("cast_op.cc:42 Compute of dims", "of dims", True),
    (f"{SOURCE}/cuda_call.cc:5 CUDA failure 700: an illegal access ; of shape 3", "", False),
    (f"{SOURCE}/bfc_arena.cc:9 Failed to allocate memory for requested buffer of size 9", "", False),
    ("Shape mismatch attempting to re-use buffer. {1} != {2}", "Shape mismatch attempting to re-use buffer.", False),
    ("CUDNN failure 3: CUDNN_STATUS_BAD_PARAM ; shape", "", False),
    ("the custom operator did not like it", "the custom operator did not like it", False),
    (
        "Non-zero status code returned while running Add node. Name:'x' Status Message: 3 by 4 broadcast",
        "Non-zero",
        True,
    ),
    ("stod", "stod", True),
]


@pytest.mark.parametrize(("said", "told", "is_the_callers"), WORDS)
def test_words_of_the_runtime(said: str, told: str, is_the_callers: bool) -> None:
    text = plain(RUNNING.format("Shape", "axis", said + "\n"))
    assert text.partition("Status Message: ")[2].startswith(told)
    assert SOURCE not in text
    assert is_about_inputs(text) is is_the_callers


def test_long_texts_are_cut_before_they_are_read() -> None:
    hostile = f"{SOURCE}/x.h:1 " + "f(((" * 100_000
    assert len(plain(hostile)) <= 4096


def cut(folder: Path) -> None:
    file = folder / "model.onnx"
    file.write_bytes(file.read_bytes()[:-7])


def garble(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"not a model")


def remove(folder: Path) -> None:
    (folder / "model.onnx").unlink()


@pytest.mark.parametrize(("harm", "words"), [(cut, "cannot load"), (garble, "cannot load"), (remove, "no such file")])
def test_a_bad_file_is_named(tmp_path: Path, harm: Callable[[Path], None], words: str) -> None:
    folder = save(tmp_path, "Identity", {"x": ("FP32", None)}, {"y": ("FP32", None)})
    harm(folder)
    with pytest.raises(ValueError, match=words) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, "Identity", {"x": ("FP32", None)}, {"y": ("FP32", None)})
    with pytest.raises(ValueError, match="device cuda:97 was asked for"):
        load(folder, "cuda:97")


def test_datatype_names_cover_every_dtype() -> None:
    assert set(ONNX_TYPES) == set(DTYPES)
    assert all(DATATYPES[dtype] == name for name, dtype in DTYPES.items())


def test_how_the_session_runs(tmp_path: Path) -> None:
    folder = save(tmp_path, "Neg", {"x": ("FP32", ["n"])}, {"y": ("FP32", ["n"])})
    options = {"inter_op_threads": 2, "execution_mode": "parallel", "graph_optimization": "disabled"}
    backend = load(folder, **options)
    settings = backend._session.get_session_options()  # type: ignore[attr-defined]
    assert settings.inter_op_num_threads == 2
    assert settings.execution_mode.name == "ORT_PARALLEL"
    assert settings.graph_optimization_level.name == "ORT_DISABLE_ALL"
    assert run(backend, x=np.array([1], np.float32))["y"].tolist() == [-1]


def test_a_folder_for_a_large_model(tmp_path: Path) -> None:
    (tmp_path / "big.onnx").mkdir()
    save(tmp_path / "big.onnx", "Neg", {"x": ("FP32", [1])}, {"y": ("FP32", [1])})
    assert load(tmp_path, file="big.onnx").inputs[0].shape == (1,)


SPEC = TensorSpec("x", DTYPES["FP32"], (-1, 2))
BATCHES: dict[str, tuple[str, Any, Any, int]] = {
    "all vary": ("Neg", ["n", 2], ["n", 2], 4),
    "scalars per row": ("Neg", ["n"], ["n"], 4),
    "a fixed input": ("Unique", [1, 2], ["n"], 0),
    "a fixed output": ("ReduceMax", ["n", 2], [1, 1], 0),
    "a scalar": ("Unique", [], ["n"], 0),
    "an unknown rank": ("Unique", None, ["n"], 0),
}


@pytest.mark.parametrize("case", BATCHES)
def test_auto_batches_what_can_be_batched(tmp_path: Path, case: str) -> None:
    op, takes, gives, size = BATCHES[case]
    folder = save(tmp_path, op, {"x": ("FP32", takes)}, {"y": ("FP32", gives)})
    assert load(folder, max_batch_size="auto").max_batch_size == size


def test_a_batch_size_that_the_file_cannot_have(tmp_path: Path) -> None:
    folder = save(tmp_path, "Neg", {"x": ("FP32", [1, 2])}, {"y": ("FP32", [1, 2])})
    with pytest.raises(
        ValueError,
        match="autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specif",
    ):
        load(folder, max_batch_size=8, inputs=(SPEC,))
    with pytest.raises(ValueError, match=r"model 'm', tensor 'x': for the model to support .* model is \[1,2\]"):
        load(folder, max_batch_size=8, inputs=(SPEC,), outputs=(SPEC,))
    anything = save(tmp_path, "Neg", {"x": ("FP32", None)}, {"y": ("FP32", None)})
    assert load(anything, max_batch_size=8).max_batch_size == 8


def test_scalars_as_vectors(tmp_path: Path) -> None:
    folder = save(tmp_path, "Add", {"a": ("FP32", ["n"]), "b": ("FP32", ["n"])}, {"y": ("FP32", ["n"])})
    backend = load(folder, max_batch_size=8, scalars_as_vectors=True)
    assert [spec.shape for spec in (*backend.inputs, *backend.outputs)] == [(-1, 1)] * 3
    a = np.array([[1], [2]], np.float32)
    for _ in range(3):  # the usual way, and then through bound buffers
        assert run(backend, a=a, b=a)["y"].tolist() == [[2], [4]]
    declared = load(folder, max_batch_size=8, scalars_as_vectors=True, inputs=(SPEC,))
    assert [spec.shape for spec in (*declared.inputs, *declared.outputs)] == [(-1,), (-1,), (-1, 1)]
    assert run(declared, a=a[:, 0], b=a[:, 0])["y"].tolist() == [[2], [4]]
    unbatched = load(folder, scalars_as_vectors=True)
    assert [spec.shape for spec in unbatched.inputs] == [(-1,), (-1,)]


def test_a_lone_scalar_as_a_vector(tmp_path: Path) -> None:
    folder = save(tmp_path, "Neg", {"x": ("FP32", [])}, {"y": ("FP32", [])})
    backend = load(folder, max_batch_size="auto", scalars_as_vectors=True)
    assert (backend.inputs[0].shape, backend.outputs[0].shape) == ((1,), (1,))
    assert run(backend, x=np.array([3], np.float32))["y"].tolist() == [-3]


def test_an_initializer_that_is_declared_is_an_optional_input(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    bias = helper.make_tensor_value_info("bias", TensorProto.FLOAT, [1])
    initial = helper.make_tensor("bias", TensorProto.FLOAT, [1], [10])
    graph = helper.make_graph([helper.make_node("Add", ["x", "bias"], ["y"])], "g", [x, bias], [y], [initial])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx"
    )
    assert [spec.name for spec in load(tmp_path).inputs] == ["x"]
    declared = tuple(TensorSpec(name, DTYPES["FP32"], (-1,)) for name in ("x", "bias"))
    backend = load(tmp_path, inputs=declared)
    assert [(spec.name, spec.shape, spec.optional) for spec in backend.inputs] == [
        ("x", (-1,), False),
        ("bias", (1,), True),
    ]
    one = np.ones(1, np.float32)
    assert run(backend, x=one)["y"].tolist() == [11]
    assert run(backend, x=one, bias=one)["y"].tolist() == [2]


def test_a_scalar_of_16_bits_stays_a_scalar(tmp_path: Path) -> None:
    backend = load(save(tmp_path, "Identity", {"x": ("BF16", [])}, {"y": ("BF16", None)}))
    y = run(backend, x=np.array(3, DTYPES["BF16"]))["y"]
    assert (y.shape, float(y)) == ((), 3)


def test_the_same_numbers_give_the_same_bits_wherever_they_lie(tmp_path: Path) -> None:
    """Too large to be copied into bound buffers, at every address that a request's body may put them at."""
    backend = load(save(tmp_path, "ReduceSum", {"x": ("FP32", ["n"])}, {"y": ("FP32", [1])}))
    size = 50_001
    x = np.random.default_rng(0).standard_normal(size, np.float32)
    want = run(backend, x=x)["y"].tobytes()
    for offset in range(17):
        body = bytes(offset) + x.tobytes()
        assert run(backend, x=np.frombuffer(body, np.float32, size, offset))["y"].tobytes() == want


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    folder = save(tmp_path, "Add", {"x": ("FP32", [3]), "w": ("FP32", [3])}, {"y": ("FP32", [3])})
    model = onnx.load(folder / "model.onnx")
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w"))
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (folder / "weights.bin").stat().st_size >= 12
    assert run(load(folder), x=np.ones(3, np.float32))["y"].tolist() == [2, 3, 4]
    (folder / "weights.bin").unlink()
    with pytest.raises(ValueError, match="cannot load"):
        load(folder)


def zip_map(folder: Path, classes: list[Any]) -> Path:
    """What scikit-learn's exporter ends a classifier with: a map of its classes for each row."""
    texts = isinstance(classes[0], str)
    key = TensorProto.STRING if texts else TensorProto.INT64
    maps = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    given = {"classlabels_strings" if texts else "classlabels_int64s": classes}
    node = helper.make_node("ZipMap", ["x"], ["probability"], domain="ai.onnx.ml", **given)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", len(classes)])
    y = helper.make_value_info("probability", helper.make_sequence_type_proto(maps))
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=domains, ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder


@pytest.mark.parametrize(("classes", "order"), [([0, 1, 7], [0, 1, 2]), ([7, -1, 3], [1, 2, 0]), (["b", "a"], [1, 0])])
def test_a_list_of_maps_is_a_table_by_ascending_classes(tmp_path: Path, classes: list[Any], order: list[int]) -> None:
    folder = zip_map(tmp_path, classes)
    backend = load(folder, max_batch_size=8)
    spec = TensorSpec("probability", DTYPES["FP32"], (-1, -1))
    assert backend.outputs == (spec,)
    described = KIND.describe(
        ModelSource("m", 1, folder, "cpu", options=OnnxOptions(), inputs=(), outputs=(), max_batch_size=8)
    )  # type: ignore[misc]
    assert described is not None
    assert described.outputs == (spec,)
    x = np.random.default_rng(3).random((4, len(classes)), np.float32)
    y = run(backend, x=x)["probability"]
    assert (y.dtype, y.tolist()) == (np.float32, x[:, order].tolist())
    assert run(backend, x=x[:0])["probability"].shape[0] == 0


def test_a_locale_that_is_missing_is_named_with_its_remedy(tmp_path: Path) -> None:
    node = helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER", locale="xx_NOWHERE.UTF-8")
    texts = [helper.make_tensor_value_info(name, TensorProto.STRING, [None]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", texts[:1], texts[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="apt-get install locales; localedef"):
        load(tmp_path)
