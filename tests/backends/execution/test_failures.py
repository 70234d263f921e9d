"""What a computation raises, as a kind of ours: shortages, lost devices, and ordinary failures."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.helper as make
import pytest
from paper_backend import PaperBackend

from tensorgate.backends.execution import failures, pipeline
from tensorgate.backends.execution.device import Device
from tensorgate.backends.execution.failures import failure_of
from tensorgate.backends.onnx.backend import KIND as ONNX
from tensorgate.gateway.contract.backend import BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import DeviceLost, GatewayError, InvalidArgument, ModelFailed, OutOfMemory
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.worker import Batch, compute


def error(name: str, text: str = "", base: type[Exception] = RuntimeError, **facts: Any) -> Exception:
    """An exception like those of libraries that are not here."""
    made: Exception = type(name, (base,), {})(*[text] * bool(text))
    made.__dict__.update(facts)
    return made


def wrapped(inner: Exception) -> Exception:
    try:
        try:
            raise inner
        except Exception as cause:
            raise ValueError("inference failed") from cause
    except ValueError as outer:
        return outer


ILLEGAL = "cudaErrorIllegalAddress: an illegal memory access was encountered"
TORCH = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
ORT = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running {} node. Status Message: {}"
CASES: list[tuple[BaseException, type[GatewayError]]] = [
    (MemoryError("Unable to allocate 8 TiB"), OutOfMemory),
    (error("OutOfMemoryError", "Out of memory allocating 10 bytes", MemoryError), OutOfMemory),
    (error("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."), OutOfMemory),
    (error("CUDARuntimeError", "cudaErrorMemoryAllocation: out of memory", status=2), OutOfMemory),
    (error("AcceleratorError", "CUDA error: out of memory"), OutOfMemory),
    (error("CUBLASError", "CUBLAS_STATUS_ALLOC_FAILED"), OutOfMemory),
    (
        error("Fail", ORT.format("Pad", "Failed to allocate memory for requested buffer of size 9"), Exception),
        OutOfMemory,
    ),
    (error("RuntimeException", ORT.format("Mul", "std::bad_alloc"), Exception), OutOfMemory),
    (error("RuntimeException", ORT.format("Mul", "CUDA failure 2: out of memory ; GPU=0"), Exception), OutOfMemory),
    (error("CUDARuntimeError", ILLEGAL, status=700), DeviceLost),
    (error("CUDARuntimeError", ILLEGAL), DeviceLost),
    (error("CUDADriverError", "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", status=719), DeviceLost),
    (error("AcceleratorError", TORCH), DeviceLost),
    (error("AcceleratorError", "words", error_code=714), DeviceLost),
    (wrapped(error("CUDARuntimeError", ILLEGAL, status=700)), DeviceLost),
    (error("CUDARuntimeError", "cudaErrorInvalidValue: invalid argument", status=1), ModelFailed),
    (error("CUDARuntimeError", "cudaErrorInsufficientDriver: too old", status=35), ModelFailed),
    (error("AcceleratorError", "CUDA error: invalid argument"), ModelFailed),
    (KeyError(ILLEGAL), ModelFailed),
    (InvalidArgument("not that"), InvalidArgument),
]


@pytest.mark.parametrize(("raised", "kind"), CASES, ids=lambda value: getattr(value, "__name__", str(value))[:50])
def test_every_failure_is_of_one_kind(raised: BaseException, kind: type[GatewayError]) -> None:
    assert type(failure_of(raised, "m")) is kind


def test_a_failure_tells_its_last_line_or_what_the_backend_says() -> None:
    assert failure_of(KeyError("no such word"), "m").text == "KeyError: 'no such word'"  # type: ignore[attr-defined]
    assert failure_of(KeyError("no such word"), "m", "whole").text == "whole"  # type: ignore[attr-defined]


def cupy(synchronize: Callable[[int], None]) -> Any:
    """Two GPUs, of which `freed` tells whose memory was given back."""
    selected, freed = [0], []
    runtime = SimpleNamespace(
        deviceSynchronize=lambda: synchronize(selected[-1]),
        setDevice=selected.append,
    )
    return SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime),
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: freed.append(selected[-1])),
        get_default_pinned_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: freed.append("host")),
        freed=freed,
        selected=selected,
    )


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "in_use", {0, 1})


def refuses(index: int) -> None:
    """The second one."""
    if index == 1:
        raise error("CUDARuntimeError", ILLEGAL, status=700)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "kind"), [(refuses, DeviceLost), (lambda index: None, ModelFailed)], ids=["dead", "well"]
)
@pytest.mark.parametrize("text", [ORT.format("Conv", "CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED"), ILLEGAL])
def test_of_other_texts_the_device_is_asked(
    device: Any, kind: type[GatewayError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy(device))
    assert type(failure_of(error("Fail", text, Exception), "m")) is kind


def test_who_listens_is_told_of_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(failures, "_listener", [])
    failures.on_lost_device(lambda *what: heard.append(what))
    failure_of(wrapped(error("CUDARuntimeError", ILLEGAL, status=700)), "m")
    failure_of(MemoryError(), "m")
    assert heard == [("m", f"CUDARuntimeError: {ILLEGAL}")]


# ----------------------------------------------------------------------------------------------------- after a shortage


class OnDevice(Device):
    """A stand-in for a GPU: whatever runs on it runs in its context."""

    xp = SimpleNamespace(asarray=np.asarray)


class Small(PaperBackend):
    """A device with room for two rows, whose results hold on to what was computed."""

    held: weakref.ref[Any] | None = None
    in_the_way: list[bool]

    def __init__(self, source: ModelSource) -> None:
        self.device = OnDevice()
        self.inputs = self.outputs = (TensorSpec("x", DTYPES["FP32"], (-1, 1)),)
        self.max_batch_size = 8
        self.in_the_way = []

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        if self.held is not None:
            self.in_the_way.append(self.held() is not None)
        work = np.repeat(tensors["x"], 2)
        if len(tensors["x"]) > 2:
            self.held = weakref.ref(work)
            raise error("OutOfMemoryError", "Out of memory allocating 12 bytes", MemoryError)
        yield tensors


@pytest.fixture
def small() -> Computation:
    return pipeline.load(BackendKind(Options, Small), ModelSource("m", 1, Path(), "cpu", (), (), 8, None), 1, (), ())


def batch(make_model: Any, *rows: int) -> Batch:
    view = make_model("m", {"x": ("FP32", (-1, 1))}, {"x": ("FP32", (-1, 1))}, max_batch_size=8)
    requests = [InferRequest(view, {"x": np.full((count, 1), count, np.float32)}) for count in rows]
    return Batch(
        [PendingRequest(each, Admission(1, None), 0.0, lambda job: None, lambda *_: None) for each in requests]
    )


@pytest.mark.usefixtures("two_gpus")
def test_a_batch_too_large_for_memory_is_answered_one_by_one(
    small: Computation, make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = cupy(lambda index: None)
    monkeypatch.setattr(failures, "_short_of_memory", False)
    monkeypatch.setitem(sys.modules, "cupy", library)
    together = batch(make_model, 1, 3, 2)
    gc.disable()
    try:
        compute(small.executors[0], together)
    finally:
        gc.enable()
    first, second, third = together.outcomes
    assert [type(each) for each in (first, second, third)] == [InferResponse, OutOfMemory, InferResponse]
    answers = [each.outputs["x"].tolist() for each in together.outcomes if isinstance(each, InferResponse)]
    assert answers == [[[1]], [[2], [2]]]
    assert getattr(second, "__traceback__", "") is None
    assert small.executors[0]._backend.in_the_way == [False, False, False]  # type: ignore[attr-defined]
    assert library.freed == ["host", 0, 1] * 2  # after the batch and after the request that is too large itself
    compute(small.executors[0], batch(make_model, 1))
    assert library.freed == ["host", 0, 1] * 2


def test_memory_runs_out_where_a_batch_is_joined(
    small: Computation, make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(arrays: Sequence[Any]) -> Any:
        raise MemoryError

    monkeypatch.setattr(np, "concatenate", full)
    together = batch(make_model, 1, 1)
    compute(small.executors[0], together)
    assert [type(each) for each in together.outcomes] == [InferResponse, InferResponse]


# ------------------------------------------------------------------------------------------------------- the real thing


@pytest.fixture
def expander(tmp_path: Path) -> Iterator[Computation]:
    """y = x, to any shape that a caller names."""
    graph = make.make_graph(
        [make.make_node("Expand", ["x", "shape"], ["y"])],
        "expand",
        [make.make_tensor_value_info("x", 1, [1]), make.make_tensor_value_info("shape", 7, [None])],
        [make.make_tensor_value_info("y", 1, None)],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    source = ModelSource("huge", 1, tmp_path, "cpu", (), (), 0, ONNX.options())
    computation = pipeline.load(ONNX, source, 1, (), ())
    yield computation
    computation.executors[0].close()


def test_onnx_runtime_without_memory_goes_on(expander: Computation, make_model: Any) -> None:
    view = make_model("huge", {"x": ("FP32", (1,)), "shape": ("INT64", (-1,))}, {"y": ("FP32", None)})

    def ask(*shape: int) -> Any:
        request = InferRequest(view, {"x": np.ones(1, np.float32), "shape": np.array(shape, np.int64)})
        ((answer,),) = expander.executors[0].run([request], lambda timing: None)
        return answer

    with pytest.raises(OutOfMemory) as caught:
        ask(1 << 44)
    assert str(caught.value) == "model 'huge' is out of memory"
    assert ask(2, 2).outputs["y"].tolist() == [[1, 1], [1, 1]]
