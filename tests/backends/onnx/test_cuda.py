"""ONNX Runtime on a GPU as far as it shows without one: what it is told, what is bound, and in which order."""

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from fake_cuda import Cupy, Memory, orders

from tensorgate.backends.execution.device import CudaDevice, Device
from tensorgate.backends.onnx.cuda import CudaSession
from tensorgate.backends.onnx.providers import (
    CPU,
    CUDA,
    TENSORRT,
    CudaOptions,
    TensorRTOptions,
    name_of,
    provider_options,
    refuse_fallback,
)
from tensorgate.gateway.contract.tensor import DTYPES

DTYPE_OF = {"tensor(float)": DTYPES["FP32"], "tensor(bfloat16)": DTYPES["BF16"], "tensor(bool)": DTYPES["BOOL"]}


class Value:
    """onnxruntime.OrtValue with memory of the device."""

    def __init__(self, world: Any, array: np.ndarray[Any, Any], kind: str) -> None:
        self.memory = Memory(world, max(1, array.nbytes), world.current)
        self.array, self._kind = array, kind

    def shape(self) -> list[int]:
        return list(self.array.shape)

    def data_type(self) -> str:
        return self._kind

    def data_ptr(self) -> int:
        return self.memory.block.bytes.ctypes.data


class Binding:
    def __init__(self, session: "Session") -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self._session = session

    def bind_input(self, name: str, *place: Any) -> None:
        self.inputs[name] = place

    def bind_output(self, name: str, *place: Any) -> None:
        self.outputs[name] = place

    def get_outputs(self) -> list[Value]:
        return self._session.values


class Session:
    """y = 2 x, b = x > 0, h = the bits of y's upper halves: BF16. Runs on the stream, later."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.world: Any = device.xp.world
        self.values: list[Value] = []
        self.graphs: list[str] = []

    def io_binding(self) -> Binding:
        return Binding(self)

    def run_with_iobinding(self, binding: Binding, options: Any) -> None:
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"
        try:
            self.graphs.append(options.get_run_config_entry("gpu_graph_id"))
        except RuntimeError:  # there is none
            self.graphs.append("")
        assert self.world.current is self._device.stream
        kind, index, element, shape, address = binding.inputs["x"]
        assert (kind, index, element) == ("cuda", 0, np.float32)
        x = _seen(address, shape, np.dtype(np.float32))
        templates = {
            "y": (np.empty_like(x), "tensor(float)"),
            "b": (np.empty(shape, bool), "tensor(bool)"),
            "h": (np.empty(shape, np.uint16), "tensor(bfloat16)"),
        }
        self.values, targets = [], []
        for name, place in binding.outputs.items():
            template, kind = templates[name]
            if len(place) > 2:
                assert place[2] == (16 if name == "h" else template.dtype)
                target = _seen(place[4], place[3], template.dtype)
            else:
                value = Value(self.world, template, kind)
                self.values.append(value)
                target = _seen(value.data_ptr(), shape, template.dtype)
            targets.append((name, target))

        def work() -> None:
            for name, target in targets:
                y = x * 2
                target[...] = {"y": y, "b": x > 0, "h": (y.view(np.uint32) >> 16).astype(np.uint16)}[name]

        self.world.enqueue(self._device.stream, ("do", work))


def _seen(address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype).reshape(shape)


@pytest.fixture(params=orders())
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    monkeypatch.setitem(sys.modules, "cupy", Cupy(request.param))
    return CudaDevice(0)


@pytest.mark.parametrize("graphs", [False, True])
def test_arrays_go_in_and_come_out_by_address(device: CudaDevice, graphs: bool) -> None:
    session = Session(device)
    cuda = CudaSession(session, device, onnxruntime.RunOptions, DTYPE_OF, graphs=graphs)
    outputs = ("y", "b", "h")
    kept = []
    for turn in range(6):
        x = np.arange(6, dtype=np.float32).reshape(2 + turn % 2, 3 - turn % 2) - turn
        with device.active():
            kept.append((x, cuda.run({"x": device.xp.asarray(x)[:, ::-1]}, outputs)))
            device.finish()
    for x, results in kept:
        assert list(results) == list(outputs)
        y = x[:, ::-1] * 2
        np.testing.assert_array_equal(results["y"].get(), y)
        np.testing.assert_array_equal(results["b"].get(), x[:, ::-1] > 0)
        assert results["h"].dtype == DTYPES["BF16"]
        np.testing.assert_array_equal(results["h"].get(), y.astype(DTYPES["BF16"]))
    assert session.graphs == (["-1", "-1", "1", "2", "1", "2"] if graphs else [""] * 6)


def test_a_scalar_stays_one(device: CudaDevice) -> None:
    cuda = CudaSession(Session(device), device, onnxruntime.RunOptions, DTYPE_OF, graphs=False)
    with device.active():
        results = cuda.run({"x": device.xp.asarray(np.float32(3))}, ("y",))
        assert results["y"].shape == ()
        assert results["y"].get() == 6


def test_nothing_empty_is_recorded(device: CudaDevice) -> None:
    session = Session(device)
    cuda = CudaSession(session, device, onnxruntime.RunOptions, DTYPE_OF, graphs=True)
    for _ in range(3):
        with device.active():
            results = cuda.run({"x": device.xp.asarray(np.empty((0, 3), np.float32))}, ("y",))
        assert results["y"].shape == (0, 3)
    assert session.graphs == ["-1"] * 3


def test_results_outlive_the_next_run(device: CudaDevice) -> None:
    cuda = CudaSession(Session(device), device, onnxruntime.RunOptions, DTYPE_OF, graphs=False)
    with device.active():
        first = cuda.run({"x": device.xp.asarray(np.ones(3, np.float32))}, ("y",))
        for _ in range(3):
            cuda.run({"x": device.xp.asarray(np.zeros(3, np.float32))}, ("y",))
        assert first["y"].get().tolist() == [2, 2, 2]


def test_what_the_providers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    device = CudaDevice(0)
    stream = {"device_id": "0", "user_compute_stream": str(device.stream_pointer), "has_user_compute_stream": "1"}
    plain = {"use_tf32": "1", "enable_cuda_graph": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    assert provider_options(CudaOptions(), device) == [(CUDA, stream | plain)]
    limit = {"gpu_mem_limit": "7", "arena_extend_strategy": "kSameAsRequested"}
    assert provider_options(CudaOptions(), device, 7) == [(CUDA, stream | plain | limit)]
    asked = CudaOptions(
        tf32=False,
        cuda_graph=True,
        convolution_search="exhaustive",
        tensorrt=TensorRTOptions(
            fp16=True, cache=Path("engines"), workspace_bytes=1 << 30, max_shapes={"x": (64, 3), "n": (64,)}
        ),
    )
    tensorrt, cuda = provider_options(asked, device)
    assert cuda == (CUDA, stream | {"use_tf32": "0", "enable_cuda_graph": "1", "cudnn_conv_algo_search": "EXHAUSTIVE"})
    assert tensorrt == (
        TENSORRT,
        stream
        | {
            "trt_fp16_enable": "1",
            "trt_max_workspace_size": str(1 << 30),
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": "engines",
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": "engines",
            "trt_profile_max_shapes": "x:64x3,n:64",
        },
    )
    assert [name_of(each) for each in provider_options(asked, Device())] == [CPU]


def test_another_provider_than_asked_for_is_refused() -> None:
    class Fallen:
        def get_providers(self) -> list[str]:
            return [CPU]

    refuse_fallback(Fallen(), CPU)
    with pytest.raises(ValueError, match="CUDAExecutionProvider was asked for, but ONNX Runtime gave CPU"):
        refuse_fallback(Fallen(), CUDA)
