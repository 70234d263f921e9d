"""Models without an engine: a session or module that is fed with the same batch over and over, on its device already or
from pinned memory.

A session has the very options that the engine's has, and so the same search for convolutions and the same arithmetic.
On a GPU everything is on one stream, and nobody waits for anything before the last run.
"""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.engine_room import Plan, kind_of
from tensorgate.backends.execution.device import CudaDevice
from tensorgate.backends.onnx.providers import provider_options

CUDA = "CUDAExecutionProvider"


class Raw(Protocol):
    """A model and one batch on its device."""

    def run(self, times: int) -> None:
        """So many runs, one behind the other; all of them are done when it returns."""
        ...

    def run_from_host(self, times: int) -> None:
        """The same, each run with a copy of the batch to the device and one of the answer back, in pinned memory."""
        ...

    def answer(self) -> Any:
        """What one run gives, on the host."""
        ...


def open_raw(plan: Plan, x: Any) -> Raw:
    """What `plan` loads, for the batch `x`, a NumPy array. Raises ValueError, ImportError, and what the runtime
    raises.
    """
    threads = plan.options.get("intra_op_threads", 0)
    if plan.backend == "onnx":
        return OnnxOnHost(plan.path, x, threads) if plan.device == "cpu" else OnnxOnGpu(plan, x)
    return Torch(plan.path, plan.device, x, threads)


def _session(path: Path, provider: Any, threads: int) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path / "model.onnx"), settings, providers=[provider])


class OnnxOnHost:
    """See Raw."""

    def __init__(self, path: Path, x: Any, threads: int) -> None:
        self._session = _session(path, "CPUExecutionProvider", threads)
        self._feed = {"x": x}

    def run(self, times: int) -> None:
        for _ in range(times):
            self._session.run(["y"], self._feed)

    def run_from_host(self, times: int) -> None:
        self.run(times)

    def answer(self) -> Any:
        return self._session.run(["y"], self._feed)[0]


class OnnxOnGpu:
    """See Raw. Input and output are bound once, by their device pointers."""

    def __init__(self, plan: Plan, x: Any) -> None:
        import onnxruntime

        device = CudaDevice(int(plan.device.partition(":")[2] or 0))
        cupy = device.xp
        self._device, self._runtime = device, cupy.cuda.runtime
        (provider, *_) = provider_options(kind_of("onnx").options(**plan.options), device)
        self._session = _session(plan.path, provider, 0)
        if self._session.get_providers()[0] != CUDA:
            raise ValueError("this build of ONNX Runtime gives no session on a GPU")
        (output,) = self._session.get_outputs()
        with device.selected():
            self._x = cupy.asarray(x)
            self._y = cupy.empty((x.shape[0], output.shape[1]), x.dtype)
            self._given, self._wanted = _pinned(cupy, x), _pinned(cupy, self._y)
            self._given[...] = x
        device.finish_all()
        self._binding = self._session.io_binding()
        self._binding.bind_input("x", "cuda", device.index, x.dtype, x.shape, self._x.data.ptr)
        self._binding.bind_output("y", "cuda", device.index, self._y.dtype, self._y.shape, self._y.data.ptr)
        self._settings = onnxruntime.RunOptions()
        self._settings.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def run(self, times: int) -> None:
        for _ in range(times):
            self._session.run_with_iobinding(self._binding, self._settings)
        self._device.finish()

    def run_from_host(self, times: int) -> None:
        runtime, stream = self._runtime, self._device.stream_pointer
        x, y, given, wanted = self._x, self._y, self._given.ctypes.data, self._wanted.ctypes.data
        with self._device.selected():
            for _ in range(times):
                runtime.memcpyAsync(x.data.ptr, given, x.nbytes, runtime.memcpyHostToDevice, stream)
                self._session.run_with_iobinding(self._binding, self._settings)
                runtime.memcpyAsync(wanted, y.data.ptr, y.nbytes, runtime.memcpyDeviceToHost, stream)
        self._device.finish()

    def answer(self) -> Any:
        self.run_from_host(1)
        return self._wanted.copy()


def _pinned(cupy: Any, like: Any) -> Any:
    """A host array of that dtype and shape, where the GPU reads and writes by itself."""
    memory = cupy.cuda.alloc_pinned_memory(like.nbytes)
    return np.frombuffer(memory, like.dtype, like.size).reshape(like.shape)


class Torch:
    """See Raw. A TorchScript module."""

    def __init__(self, path: Path, device: str, x: Any, threads: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        if device == "cpu" and threads:
            torch.set_num_threads(threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            self._module = torch.jit.load(str(path / "model.pt"), map_location=self._device).eval()
        self._given = torch.from_numpy(x)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        if self._stream is not None:
            self._given = self._given.pin_memory()
        self._x = self._given.to(self._device)
        with torch.inference_mode():
            self._wanted = self._module(self._x).cpu()
        if self._stream is not None:
            self._wanted = self._wanted.pin_memory()
            torch.cuda.synchronize(self._device)

    def run(self, times: int) -> None:
        torch, stream = self._torch, self._stream
        with torch.inference_mode(), contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            for _ in range(times):
                self._module(self._x)
        if stream is not None:
            stream.synchronize()

    def run_from_host(self, times: int) -> None:
        torch, stream = self._torch, self._stream
        with torch.inference_mode(), contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            for _ in range(times):
                self._x.copy_(self._given, non_blocking=True)
                self._wanted.copy_(self._module(self._x), non_blocking=True)
        if stream is not None:
            stream.synchronize()

    def answer(self) -> Any:
        self.run_from_host(1)
        return self._wanted.numpy().copy()
