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

from tensorgate.backends.execution import graphs as graphs_module
from tensorgate.backends.execution.device import CudaDevice, Device
from tensorgate.backends.execution.graphs import RUNS_BEFORE, Graphs
from tensorgate.backends.onnx.cuda import CudaSession, Recording
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
from tensorgate.gateway.contract.backend import Padding
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

DTYPE_OF = {"tensor(float)": DTYPES["FP32"], "tensor(bfloat16)": DTYPES["BF16"], "tensor(bool)": DTYPES["BOOL"]}


class Arena:
    """ONNX Runtime's own pool of the device's memory: what comes back is given to the next who asks for its size."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._free: dict[int, list[Memory]] = {}

    def take(self, nbytes: int) -> Memory:
        free = self._free.setdefault(nbytes, [])
        return free.pop() if free else Memory(self._world, nbytes, self._world.current)

    def give_back(self, memory: Memory) -> None:
        self._free[memory.block.bytes.nbytes].append(memory)


class Value:
    """onnxruntime.OrtValue with memory of the device."""

    def __init__(self, arena: Arena, array: np.ndarray[Any, Any], kind: str) -> None:
        self._arena = arena
        self.memory = arena.take(max(1, array.nbytes))
        self.array, self._kind = array, kind

    def __del__(self) -> None:
        self._arena.give_back(self.memory)

    def shape(self) -> list[int]:
        return list(self.array.shape)

    def data_type(self) -> str:
        return self._kind

    def data_ptr(self) -> int:
        return self.memory.block.bytes.ctypes.data


class Binding:
    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.values: list[Value] = []

    def bind_input(self, name: str, *place: Any) -> None:
        self.inputs[name] = place

    def bind_output(self, name: str, *place: Any) -> None:
        self.outputs[name] = place

    def get_outputs(self) -> list[Value]:
        return self.values


class Session:
    """y = 2 x, b = x > 0, h = the bits of y's upper halves: BF16. Runs on the stream, later, and needs as much memory
    for each output beside it for a while, where it leaves what it has computed there.
    """

    def __init__(self, device: CudaDevice, waits: bool = False) -> None:
        self._device = device
        self._waits = waits
        self.world: Any = device.xp.world
        self.arena = Arena(self.world)
        self.runs: list[str] = []

    def io_binding(self) -> Binding:
        return Binding()

    def run_with_iobinding(self, binding: Binding, options: Any) -> None:
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"
        captured = self._device.stream.captured is not None  # type: ignore[attr-defined]
        self.runs.append("captured" if captured else "plain")
        assert self.world.current is self._device.stream
        kind, index, element, shape, address = binding.inputs["x"]
        assert (kind, index, element) == ("cuda", 0, np.float32)
        x = _seen(address, shape, np.dtype(np.float32))
        if self._waits:
            self._device.stream.synchronize()
        templates = {
            "y": (np.empty_like(x), "tensor(float)"),
            "b": (np.empty(shape, bool), "tensor(bool)"),
            "h": (np.empty(shape, np.uint16), "tensor(bfloat16)"),
        }
        binding.values, targets, scratch = [], [], []
        for name, place in binding.outputs.items():
            template, kind = templates[name]
            if len(place) > 2:
                assert place[2] == (16 if name == "h" else template.dtype)
                target = _seen(place[4], place[3], template.dtype)
            else:
                value = Value(self.arena, template, kind)
                binding.values.append(value)
                target = _seen(value.data_ptr(), shape, template.dtype)
            targets.append((name, target))
            scratch.append(self.arena.take(max(1, template.nbytes)))
        places = [memory.block.bytes for memory in scratch]
        for memory in scratch:
            self.arena.give_back(memory)

        def work() -> None:
            for (name, target), place in zip(targets, places, strict=True):
                y = x * 2
                place[:] = 0x77
                target[...] = {"y": y, "b": x > 0, "h": (y.view(np.uint32) >> 16).astype(np.uint16)}[name]

        self.world.enqueue(self._device.stream, ("do", work))


def _seen(address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype).reshape(shape)


@pytest.fixture(params=orders())
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    monkeypatch.setitem(sys.modules, "cupy", Cupy(request.param))
    return CudaDevice(0)


OUTPUTS = ("y", "b", "h")


def on(device: CudaDevice, graphs: bool, waits: bool = False) -> tuple[Session, CudaSession, Graphs[Recording]]:
    session = Session(device, waits)
    recorded: Graphs[Recording] = Graphs("m", device)
    made = CudaSession(session, device, onnxruntime.RunOptions, DTYPE_OF, recorded if graphs else None, OUTPUTS)
    return session, made, recorded


@pytest.fixture(autouse=True)
def _all_can_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "check_replayable", lambda graph: None)


def check(x: Any, results: Any) -> None:
    """Of an input that is given the other way round."""
    y = x[:, ::-1] * 2
    np.testing.assert_array_equal(results["y"].get(), y)
    np.testing.assert_array_equal(results["b"].get(), x[:, ::-1] > 0)
    assert results["h"].dtype == DTYPES["BF16"]
    np.testing.assert_array_equal(results["h"].get(), y.astype(DTYPES["BF16"]))


@pytest.mark.parametrize("graphs", [False, True])
def test_arrays_go_in_and_come_out_by_address(device: CudaDevice, graphs: bool) -> None:
    session, cuda, _ = on(device, graphs)
    kept = []
    for turn in range(12):
        x = np.arange(6, dtype=np.float32).reshape(2 + turn % 2, 3 - turn % 2) - turn
        with device.active():
            kept.append((x, cuda.run({"x": device.xp.asarray(x)[:, ::-1]}, OUTPUTS)))
            device.finish()
    for x, results in kept:
        assert list(results) == list(OUTPUTS)
        check(x, results)
    recording = ["plain", "plain", "captured"]  # once more as ever, once into its own buffers, and then for good
    assert session.runs == (["plain"] * 6 + recording * 2 if graphs else ["plain"] * 12)


def test_what_a_plain_run_gave_is_not_written_by_a_replay(device: CudaDevice) -> None:
    """Its results wait for their copy to the host while other batches are computed."""
    _, cuda, graphs = on(device, graphs=True)
    often = np.ones((2, 3), np.float32)
    for _ in range(RUNS_BEFORE + 2):
        with device.active():
            cuda.run({"x": device.xp.asarray(often)[:, ::-1]}, OUTPUTS)
    assert graphs
    for turn in range(3):
        x = np.arange(6, dtype=np.float32).reshape(3, 2) - turn  # as many bytes, another shape
        with device.active():
            plain = cuda.run({"x": device.xp.asarray(x)[:, ::-1]}, OUTPUTS)
            for _ in range(3):
                replayed = cuda.run({"x": device.xp.asarray(often)[:, ::-1]}, OUTPUTS)
            device.finish()
            check(x, plain)
            check(often, replayed)


def test_some_outputs_are_of_the_same_recording(device: CudaDevice) -> None:
    session, cuda, _ = on(device, graphs=True)
    x = np.ones((2, 3), np.float32)
    for turn in range(8):
        with device.active():
            results = cuda.run({"x": device.xp.asarray(x)}, OUTPUTS[: 1 + turn % 3])
            assert list(results) == list(OUTPUTS[: 1 + turn % 3])
            assert results["y"].get().tolist() == (x * 2).tolist()
    assert session.runs.count("captured") == 1


def test_padded_sizes_are_recorded_at_load(device: CudaDevice) -> None:
    session, cuda, graphs = on(device, graphs=True)
    specs = [TensorSpec("x", DTYPES["FP32"], (-1, 3)), TensorSpec("d", DTYPES["FP32"], (-1, -1), optional=True)]
    graphs.record_at_load(lambda tensors: cuda.run(tensors, OUTPUTS), specs, Padding((1, 4)))
    assert session.runs.count("captured") == 2
    session.runs.clear()
    for rows in (4, 1):
        x = np.full((rows, 3), rows, np.float32)
        with device.active():
            check(x, cuda.run({"x": device.xp.asarray(x)}, OUTPUTS))
    assert session.runs == []


def test_a_model_that_waits_runs_as_ever_and_tells_once(device: CudaDevice, caplog: pytest.LogCaptureFixture) -> None:
    session, cuda, _ = on(device, graphs=True, waits=True)
    for rows in range(1, 4):
        for _ in range(2 * RUNS_BEFORE):
            x = np.full((rows, 3), rows, np.float32)
            with device.active():
                check(x, cuda.run({"x": device.xp.asarray(x)}, OUTPUTS))
    assert session.runs.count("captured") == 1
    assert [line for line in caplog.messages if "CUDA graphs" in line] == [
        "model m runs without CUDA graphs, since it cannot be recorded: cudaErrorStreamCaptureUnsupported: operation "
        "not permitted when stream is capturing"
    ]


def test_a_scalar_stays_one(device: CudaDevice) -> None:
    _, cuda, _ = on(device, graphs=False)
    with device.active():
        results = cuda.run({"x": device.xp.asarray(np.float32(3))}, ("y",))
        assert results["y"].shape == ()
        assert results["y"].get() == 6


def test_nothing_empty_is_recorded(device: CudaDevice) -> None:
    session, cuda, _ = on(device, graphs=True)
    for _ in range(6):
        with device.active():
            results = cuda.run({"x": device.xp.asarray(np.empty((0, 3), np.float32))}, ("y",))
        assert results["y"].shape == (0, 3)
    assert session.runs == ["plain"] * 6


def test_results_outlive_the_next_run(device: CudaDevice) -> None:
    _, cuda, _ = on(device, graphs=False)
    with device.active():
        first = cuda.run({"x": device.xp.asarray(np.ones(3, np.float32))}, ("y",))
        for _ in range(3):
            cuda.run({"x": device.xp.asarray(np.zeros(3, np.float32))}, ("y",))
        assert first["y"].get().tolist() == [2, 2, 2]


def test_what_the_providers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    device = CudaDevice(0)
    stream = {"device_id": "0", "user_compute_stream": str(device.stream_pointer), "has_user_compute_stream": "1"}
    plain = {"use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"}
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
    assert cuda == (CUDA, stream | {"use_tf32": "0", "cudnn_conv_algo_search": "EXHAUSTIVE"})
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
