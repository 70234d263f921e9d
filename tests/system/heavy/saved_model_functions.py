"""The functions of SavedModels in one process with TensorFlow: in a session, and as eager functions over DLPack.

Eager functions are for GPUs; here they run on the host, whose arrays DLPack carries as well. Runs in .venv-tensorflow
with one argument: a folder that saved_models.py has filled.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import checks
import ml_dtypes
import numpy as np

from tensorgate.backends.execution.device import Device
from tensorgate.backends.saved_model import KIND
from tensorgate.backends.saved_model.device import DeviceFunctions
from tensorgate.backends.saved_model.library import import_tensorflow
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import DTYPES

Array = np.ndarray[Any, Any]
NAMES = {"FP16": "half", "BF16": "bfloat16", "FP32": "float32", "FP64": "float64", "BYTES": "string"}
ANYTHING = [np.zeros(()), np.arange(2), np.zeros((0, 3)), np.ones((2, 1, 3)), np.arange(12).reshape(3, 4).T]


def load(path: Path, device: str = "cpu", **options: Any) -> Any:
    return KIND.load(ModelSource("m", 1, path, device, (), (), 0, KIND.options(**options)))


def eager(path: Path) -> DeviceFunctions:
    return DeviceFunctions(import_tensorflow(), path, ["serve"], Device(), "CPU:0")


def run(backend: Any, signature: str, *outputs: str, **tensors: Array) -> dict[str, Array]:
    request = InferRequest(None, tensors, signature=signature)  # type: ignore[arg-type]
    (results,) = backend.infer(tensors, outputs, [request])
    assert list(results) == list(outputs)
    return dict(results)


def of(datatype: str, array: Array) -> Array:
    return array.astype(DTYPES[datatype]) if datatype != "BYTES" else np.array(array.astype("S"), np.object_)


def same(got: Any, want: Array) -> None:
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape, got.tolist()) == (want.dtype, want.shape, want.tolist())


def check_a_session_carries_every_datatype_and_shape(folder: str) -> None:
    backend = load(Path(folder) / "datatypes/1")
    for datatype in DTYPES:
        for array in ANYTHING:
            x = of(datatype, array)
            same(run(backend, NAMES.get(datatype, datatype.lower()), "y", x=x)["y"], x)


def check_eager_functions_carry_every_datatype_and_shape(folder: str) -> None:
    functions = eager(Path(folder) / "datatypes/1")
    for datatype in DTYPES:
        for array in ANYTHING:
            for offset in (0, 8, 64):
                x = placed(of(datatype, array), offset)
                same(functions.run(NAMES.get(datatype, datatype.lower()), {"x": x}, ["y"])["y"], x)


def check_memory_that_is_not_aligned_does_not_end_the_process(folder: str) -> None:
    """As a request's tensor lies anywhere in its body, or in the memory that a caller shares."""
    functions, backend = eager(Path(folder) / "half_plus_three/123"), load(Path(folder) / "half_plus_three/123")
    for offset in range(132):
        x = placed(np.arange(100, dtype=np.float32), offset)
        want = (x / 2 + 3).tolist()
        assert run(backend, "", "y", x=x)["y"].tolist() == want
        assert functions.run("serving_default", {"x": x}, ["y"])["y"].tolist() == want
    frozen = np.frombuffer(x.tobytes(), np.float32)
    assert run(backend, "", "y", x=frozen)["y"].tolist() == want


def placed(array: Array, offset: int) -> Array:
    """A copy that begins that many bytes behind an address that suits TensorFlow, rows laid out as they were."""
    if array.dtype == DTYPES["BYTES"]:
        return array
    room = np.zeros(array.nbytes + 64 + offset, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    flat = room[begin : begin + array.nbytes].view(array.dtype)
    placed = flat.reshape(array.T.shape).T if array.flags.f_contiguous else flat.reshape(array.shape)
    placed[...] = array
    return placed


def check_eager_functions_have_tables_and_variables_and_scalars(folder: str) -> None:
    word = np.array([b"one", b"four"], np.object_)
    for model, ids in (("words", [1, -1]), ("old_words", [1, -1])):
        functions = eager(Path(folder) / model / "1")
        assert functions.run("serving_default", {"word": word}, ["id"])["id"].tolist() == ids
    functions = eager(Path(folder) / "half_plus_two/1")
    assert set(functions.definitions) >= {"serving_default", "regress_x_to_y", "classify_x_to_y"}
    x = np.array([[1], [4]], np.float32)
    assert functions.run("both", {"x": x}, ["y2"])["y2"].tolist() == [[3.5], [5.0]]
    inputs = {"a": np.ones((2, 2), np.float32), "b": np.eye(2, dtype=np.float32), "k": np.array(3, np.int32)}
    results = eager(Path(folder) / "several/1").run("serving_default", inputs, ["name", "times"])
    same(results["name"], np.array(b"3", np.object_))
    same(results["times"], np.array(6, np.int32))


def check_both_ways_say_the_same_of_what_is_wrong(folder: str) -> None:
    inputs = {"a": np.ones((1, 2), np.float32), "b": np.ones((1, 2), np.float32), "k": np.array(3, np.int32)}
    host, device = load(Path(folder) / "several/1"), eager(Path(folder) / "several/1")
    texts = [
        checks.raised(InvalidArgument, lambda: run(host, "", "product", **inputs)).text,
        checks.raised(InvalidArgument, lambda: device.run("serving_default", inputs, ["product"])).text,
    ]
    assert texts == ["Matrix size-incompatible: In[0]: [1,2], In[1]: [1,2] 0 0"] * 2, texts
    host, device = load(Path(folder) / "examples/1"), eager(Path(folder) / "examples/1")
    for sent, quoted in ((b"text", "text"), (b"\xff", "\ufffd")):
        tensors = {"examples": np.array([sent], np.object_)}
        texts = [
            checks.raised(InvalidArgument, lambda given=tensors: run(host, "", "y", **given)).text,
            checks.raised(InvalidArgument, lambda given=tensors: device.run("serving_default", given, ["y"])).text,
        ]
        assert texts == [f"Could not parse example input, value: '{quoted}'"] * 2, texts


def check_only_what_the_wanted_outputs_need_is_computed(folder: str) -> None:
    """Of a graph, that is: a function runs whole. Scores cannot be had of this, and nobody asks for them."""
    backend = load(Path(folder) / "half_plus_two/1")
    text = np.array([b"text"], np.object_)
    classes = run(backend, "classify_low_high", "classes", inputs=text)["classes"]
    assert classes.tolist() == [[b"low", b"high"]]
    checks.raised(InvalidArgument, lambda: run(backend, "classify_low_high", "scores", inputs=text))


def check_the_ways_to_one_function_are_bounded(folder: str) -> None:
    backend = load(Path(folder) / "datatypes/1")
    functions = backend._functions
    word = np.array(1, np.int8)
    for repeat in range(100):
        assert functions.run("int8", {"x": word}, ["y"] * (repeat + 1))["y"] == 1
    assert len(functions._callables) == 64


def check_answers_outlive_the_model_and_requests_do_not_linger(folder: str) -> None:
    backend = load(Path(folder) / "datatypes/1")
    x = np.arange(1 << 20, dtype=np.float32)
    y = run(backend, "float32", "y", x=x)["y"]
    sent = weakref.ref(x)
    del x
    assert sent() is None
    backend.close()
    del backend
    gc.collect()
    assert y[-1] == (1 << 20) - 1


def check_a_closed_model_leaves_no_session(folder: str) -> None:
    backend = load(Path(folder) / "half_plus_two/1")
    run(backend, "", "y", x=np.ones((1, 1), np.float32))
    session = weakref.ref(backend._functions._session)
    backend.close()
    assert session() is None
    functions = eager(Path(folder) / "half_plus_two/1")
    functions.run("serving_default", {"x": np.ones((1, 1), np.float32)}, ["y"])
    loaded = weakref.ref(functions._loaded)
    functions.close()
    gc.collect()
    assert loaded() is None


def check_a_gpu_that_is_not_there_is_refused(folder: str) -> None:
    assert load(Path(folder) / "half_plus_two/1", "auto").device.name == "cpu"
    error = checks.raised(ValueError, lambda: load(Path(folder) / "half_plus_two/1", "cuda"))
    assert str(error).startswith("device cuda was asked for, but CuPy is missing"), error


def check_bfloat16_is_ml_dtypes_own(folder: str) -> None:
    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    assert run(load(Path(folder) / "datatypes/1"), "", "y", x=x)["y"].dtype == ml_dtypes.bfloat16


if __name__ == "__main__":
    checks.main(globals())
