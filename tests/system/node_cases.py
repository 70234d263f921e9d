"""ONNX's own tests of its operators: hundreds of small models, each with recorded inputs and outputs.

They come with the package `onnx`, made by its functions (the recorded files themselves are in its repository alone).
What ONNX Runtime makes of a model when it is called directly is the yardstick: a server in front of it may not change a
bit.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
from onnx.backend.test.loader import load_model_tests

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")  # operators of a version that is not out yet count, too

import onnxruntime

BF16 = np.dtype(ml_dtypes.bfloat16)
CARRIED = re.compile(r"tensor\((bool|string|double|float|float16|bfloat16|u?int(8|16|32|64))\)")
"""ONNX Runtime's names of the types that a dialect can carry."""

FILED = ("simple", "pytorch-operator", "pytorch-converted")
"""What the package has as files."""
IR_VERSION = 10
"""The package writes files in the newest form, also where nothing in them is new, and runtimes are behind it."""
RUNS = 4

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class NodeCase:
    """One model with recorded inputs and outputs, by name. A value that is no tensor is there as it was recorded."""

    name: str
    model: bytes
    inputs: Arrays
    recorded: Arrays
    rtol: float
    atol: float

    def save(self, folder: Path) -> Path:
        (folder / self.name).mkdir()
        (folder / self.name / "model.onnx").write_bytes(self.model)
        return folder / self.name


@dataclass(frozen=True, slots=True, eq=False)
class Direct:
    """What ONNX Runtime says without anything in front of it.

    `refusal` is why it cannot be served at all: it does not load, takes or gives what no dialect can carry, or fails.
    `random`: it does not give the same every time.
    """

    outputs: Arrays
    refusal: str = ""
    random: bool = False


def collect() -> list[NodeCase]:
    """Every test of an operator, and of the small networks that come along, in a stable order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference numbers are made with overflows on purpose
        from onnx.backend.test.case.node import collect_testcases

        made = collect_testcases(None)
    files = [case for kind in FILED for case in load_model_tests(kind=kind)]
    return sorted([*map(_made, made), *map(_filed, files)], key=lambda case: case.name)


def _made(found: Any) -> NodeCase:
    ((inputs, outputs),) = found.data_sets
    found.model.ir_version = min(found.model.ir_version, IR_VERSION)
    return _case(found, found.model.SerializeToString(), found.model.graph, inputs, outputs)


def _filed(found: Any) -> NodeCase:
    folder = Path(found.model_dir)
    content = (folder / "model.onnx").read_bytes()
    graph = onnx.ModelProto.FromString(content).graph
    values = {kind: sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb")) for kind in ("input", "output")}
    inputs, outputs = (
        [_read_file(path, value) for path, value in zip(paths, described, strict=False)]
        for paths, described in ((values["input"], graph.input), (values["output"], graph.output))
    )
    return _case(found, content, graph, inputs, outputs)


def _read_file(path: Path, value: Any) -> Any:
    """A recorded tensor; None for anything else."""
    return onnx.TensorProto.FromString(path.read_bytes()) if value.type.HasField("tensor_type") else None


def _case(found: Any, content: bytes, graph: Any, inputs: Any, outputs: Any) -> NodeCase:
    takes, gives = [value.name for value in graph.input], [value.name for value in graph.output]
    return NodeCase(
        found.name,
        content,
        {name: _array(value) for name, value in zip(takes, inputs, strict=False)},
        {name: _array(value) for name, value in zip(gives, outputs, strict=True)},
        found.rtol,
        found.atol,
    )


def _array(value: Any) -> Any:
    """A recorded value as the gateway has it: text as bytes. Sequences and the like stay what they are."""
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "OUS":
        return value
    texts = np.empty(value.size, np.object_)
    texts[:] = [text if isinstance(text, bytes) else str(text).encode() for text in value.ravel()]
    return texts.reshape(value.shape)


def ask_directly(case: NodeCase) -> Direct:
    """Load and run it, twice, with the settings that a served model has."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(case.model, settings, providers=["CPUExecutionProvider"])
    except Exception:  # an exception class per status, all derived from Exception alone
        return Direct({}, "ONNX Runtime cannot load it")
    strange = {
        node.type for node in (*session.get_inputs(), *session.get_outputs()) if not CARRIED.fullmatch(node.type)
    }
    if strange:
        return Direct({}, f"no dialect carries {', '.join(sorted(strange))}")
    try:
        first, *others = [_run(session, case) for _ in range(RUNS)]
    except Exception:
        return Direct({}, "ONNX Runtime cannot run it")
    return Direct(first, random=any(not same(first[name], other[name]) for other in others for name in first))


def _run(session: Any, case: NodeCase) -> Arrays:
    names = [node.name for node in session.get_outputs()]
    if any("bfloat16" in node.type for node in (*session.get_inputs(), *session.get_outputs())):
        results = session.run_with_ort_values(names, {name: _ort_value(array) for name, array in case.inputs.items()})
        return {name: _read(value) for name, value in zip(names, results, strict=True)}
    results = session.run(names, {name: _text(array) for name, array in case.inputs.items()})
    return {name: _array(array) for name, array in zip(names, results, strict=True)}


def _text(array: Any) -> Any:
    if array.dtype != np.object_:
        return array
    return np.array([text.decode() for text in array.ravel()], np.object_).reshape(array.shape)


def _ort_value(array: Any) -> Any:
    if array.dtype != BF16:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = np.array(array).view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)


def _read(value: Any) -> Any:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    data = ctypes.string_at(value.data_ptr(), BF16.itemsize * math.prod(value.shape()))
    return np.frombuffer(data, BF16).reshape(value.shape())


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, dtype and shape included; NaN is NaN, whichever."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == np.object_:
        return bool((one == other).all())
    if one.dtype.kind in "fV":
        wide = np.float64 if one.dtype.itemsize == 8 else np.float32
        one, other = one.astype(wide), other.astype(wide)
        return bool((np.isnan(one) & np.isnan(other) | (one == other) & (np.signbit(one) == np.signbit(other))).all())
    return bool((one == other).all())


def close(one: Any, other: Any, case: NodeCase) -> bool:
    """Equal within the tolerance of the test."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind not in "fV":
        return same(one, other)
    wide = np.float64 if one.dtype.itemsize == 8 else np.float32
    return bool(np.allclose(other.astype(wide), one.astype(wide), case.rtol, case.atol, equal_nan=True))
