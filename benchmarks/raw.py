"""Models without an engine: a session or module that is fed with the same batch, on its device already, over and over.

On a GPU everything is on one stream, and nobody waits for anything before the last run.
"""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any, Protocol

CUDA = "CUDAExecutionProvider"


class Raw(Protocol):
    """A model and one batch on its device."""

    def run(self, times: int) -> None:
        """So many runs, one behind the other; all of them are done when it returns."""
        ...

    def answer(self) -> Any:
        """What one run gives, on the host."""
        ...


def open_raw(backend: str, path: Path, device: str, x: Any, threads: int) -> Raw:
    """`device` is cpu or cuda:N, `x` a NumPy array. Raises ValueError, ImportError, and what the runtime raises."""
    index = int(device.partition(":")[2] or 0)
    if backend == "onnx":
        return OnnxOnHost(path, x, threads) if device == "cpu" else OnnxOnGpu(path, index, x)
    return Torch(path, device, x, threads)


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

    def answer(self) -> Any:
        return self._session.run(["y"], self._feed)[0]


class OnnxOnGpu:
    """See Raw. Input and output are bound once, by their device pointers."""

    def __init__(self, path: Path, index: int, x: Any) -> None:
        import cupy
        import onnxruntime

        self._cupy = cupy
        self._device = cupy.cuda.Device(index)
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            options = {
                "device_id": str(index),
                "has_user_compute_stream": "1",
                "user_compute_stream": str(self._stream.ptr),
            }
            self._session = _session(path, (CUDA, options), 0)
            if self._session.get_providers()[0] != CUDA:
                raise ValueError("this build of ONNX Runtime gives no session on a GPU")
            (output,) = self._session.get_outputs()
            self._x = cupy.asarray(x)
            self._y = cupy.empty((x.shape[0], output.shape[1]), x.dtype)
            self._device.synchronize()
        self._binding = self._session.io_binding()
        self._binding.bind_input("x", "cuda", index, x.dtype, x.shape, self._x.data.ptr)
        self._binding.bind_output("y", "cuda", index, self._y.dtype, self._y.shape, self._y.data.ptr)
        self._settings = onnxruntime.RunOptions()
        self._settings.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def run(self, times: int) -> None:
        for _ in range(times):
            self._session.run_with_iobinding(self._binding, self._settings)
        self._stream.synchronize()

    def answer(self) -> Any:
        self.run(1)
        with self._device:
            return self._cupy.asnumpy(self._y)


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
        self._x = torch.from_numpy(x).to(self._device)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        if self._stream is not None:
            torch.cuda.synchronize(self._device)

    def run(self, times: int) -> None:
        torch, stream = self._torch, self._stream
        with torch.inference_mode(), contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            for _ in range(times):
                self._module(self._x)
        if stream is not None:
            stream.synchronize()

    def answer(self) -> Any:
        with self._torch.inference_mode():
            return self._module(self._x).cpu().numpy()
