"""What is read from an ONNX file without loading it: the same as ONNX Runtime says when it is loaded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tensorgate.backends.onnx.backend import _DATATYPES, KIND, OnnxBackend, OnnxOptions
from tensorgate.backends.onnx.description import describe
from tensorgate.backends.onnx.file import TooLong, read_graph, unknown_ranks
from tensorgate.gateway.contract.backend import Described, ModelSource
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

MODELS = Path(onnx.__file__).parent / "backend/test/data"


def source(folder: Path, **options: Any) -> ModelSource:
    facts = {"inputs": (), "outputs": (), "max_batch_size": 0} | {
        key: options.pop(key) for key in ("inputs", "outputs", "max_batch_size") if key in options
    }
    return ModelSource("m", 1, folder, "cpu", options=OnnxOptions(**options), **facts)


def value(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(
    folder: Path, takes: Iterable[Any], gives: Iterable[Any], nodes: Iterable[Any], ir_version: int = 8, **more: Any
) -> Path:
    graph = helper.make_graph([*nodes], "g", [*takes], [*gives], **more)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=ir_version)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def add(folder: Path, ir_version: int = 8) -> Path:
    """y = x + b, where b has a default, and is an input, too."""
    default = numpy_helper.from_array(np.ones(3, np.float32), "b")
    takes = [value("x", ["n", 3]), value("b", [3])]
    node = helper.make_node("Add", ["x", "b"], ["y"])
    return save(folder, takes, [value("y", ["n", 3])], [node], ir_version, initializer=[default])


def both(folder: Path, **options: Any) -> tuple[Described, OnnxBackend]:
    described = describe(source(folder, **options))
    assert described is not None
    return described, OnnxBackend(source(folder, **options))


def test_as_loaded(tmp_path: Path) -> None:
    add(tmp_path)
    described, loaded = both(tmp_path, max_batch_size="auto")
    assert described == Described(loaded.inputs, loaded.outputs, loaded.max_batch_size, platform=loaded.platform)
    assert described.inputs == (TensorSpec("x", DTYPES["FP32"], (-1, 3)),)
    assert KIND.describe is describe


@pytest.mark.parametrize("ir_version", [3, 4, 8])
def test_inputs_with_defaults(tmp_path: Path, ir_version: int) -> None:
    add(tmp_path, ir_version)
    declared = (TensorSpec("x", DTYPES["FP32"], (-1, 3)), TensorSpec("b", DTYPES["FP32"], (3,)))
    described, loaded = both(tmp_path, inputs=declared)
    assert described.inputs == loaded.inputs
    assert [spec.optional for spec in described.inputs] == ([False] if ir_version < 4 else [False, True])


def test_scalars_unknown_ranks_and_vectors(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [name], [name + "_"]) for name in ("scalar", "any", "rows")]
    shapes: list[tuple[str, Any]] = [("scalar", []), ("any", None), ("rows", [None])]
    takes = [value(name, shape) for name, shape in shapes]
    file = save(tmp_path, takes, [value(name + "_", shape) for name, shape in shapes], nodes)
    assert unknown_ranks(file) == {"any", "any_"}
    for vectors in (False, True):
        described, loaded = both(tmp_path, scalars_as_vectors=vectors)
        assert described == Described(loaded.inputs, loaded.outputs, 0, platform=loaded.platform)
    assert [spec.shape for spec in described.inputs] == [(1,), None, (-1,)]


@pytest.mark.parametrize("element", [n for n in TensorProto.DataType.values() if n != TensorProto.UNDEFINED])
def test_every_datatype(tmp_path: Path, element: int) -> None:
    save(tmp_path, [value("x", [2], element)], [value("y", [2], element)], [helper.make_node("Identity", ["x"], ["y"])])
    try:
        session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    except Exception:  # of a type that this runtime does not know
        session = None
    if session is not None and (name := _DATATYPES.get(session.get_inputs()[0].type)) is not None:
        described = describe(source(tmp_path))
        assert described is not None
        assert described.inputs[0].datatype == name
    elif session is not None:
        with pytest.raises(ValueError, match=f"'x' is of ONNX's type {element}, which no dialect can carry"):
            describe(source(tmp_path))


def test_what_is_no_tensor(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    save(tmp_path, [sequence], [value("y", [2])], [helper.make_node("SequenceLength", ["x"], ["y"])])
    with pytest.raises(ValueError, match="'x' is no tensor, which no dialect can carry"):
        describe(source(tmp_path))


def test_onnx_own_models() -> None:
    """Wherever both know a shape it is the same; the runtime may have inferred what the file leaves open."""
    files = sorted(MODELS.glob("*/*/model.onnx"))
    compared = 0
    for file in files:
        try:
            backend = OnnxBackend(source(file.parent))
        except ValueError:  # this runtime lacks the operator, or the type is none of ours
            continue
        described = describe(source(file.parent))
        assert described is not None
        assert described.inputs == backend.inputs, file
        for read, loaded in zip(described.outputs, backend.outputs, strict=True):
            assert (read.name, read.dtype) == (loaded.name, loaded.dtype), file
            assert read.shape is None or loaded.shape is None or read.shape == loaded.shape, file
        compared += 1
    assert compared > 80


def test_folders_and_absence(tmp_path: Path) -> None:
    inner = tmp_path / "1" / "model.onnx"
    inner.mkdir(parents=True)
    add(inner)
    assert describe(source(tmp_path / "1")) is not None
    with pytest.raises(ValueError, match=r"no such file: .*other\.onnx"):
        describe(source(tmp_path / "1", file="other.onnx"))
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ValueError, match="is empty, and no ONNX file"):
        describe(source(tmp_path))


def test_hostile_files(tmp_path: Path) -> None:
    """Cut short anywhere, or with bytes changed: an answer or a ValueError, and soon."""
    file = add(tmp_path)
    whole, chance = file.read_bytes(), random.Random(0)  # noqa: S311 - it guards nothing
    for length in range(1, len(whole)):
        file.write_bytes(whole[:length])
        describes_or_refuses(file)
    for _ in range(2000):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        file.write_bytes(changed)
        describes_or_refuses(file)
    for endless in (b"\xff" * 1000, b"\x3a" + b"\xff" * 9 + b"\x01", b"\x0b" * 100, b"\x3a\x7f\x00"):
        file.write_bytes(endless)
        with pytest.raises(ValueError, match="is cut short, or no ONNX file"):
            read_graph(file)


def describes_or_refuses(file: Path) -> None:
    try:
        graph = read_graph(file)
    except ValueError:
        return
    for tensor in itertools.chain(graph.inputs, graph.outputs, graph.defaults):
        assert isinstance(tensor.name, str)


def test_a_file_of_countless_fields(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x08\x08" * 5000)
    assert read_graph(file).inputs == ()
    with pytest.raises(TooLong):
        read_graph(file, fields=4000)
