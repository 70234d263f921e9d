"""What can compute on the GPU of this machine, and what a model gives there by itself, without an engine."""

from __future__ import annotations

import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tensorgate.backends.execution.device import cuda_devices

CUDA = "cuda:0"
CLIENT = Path(__file__).parents[2] / "build/gpu/client"
"""Triton's client library, which has no place beside the gateway: `python -m benchmarks.offline` puts it there."""


@cache
def missing() -> tuple[str, ...]:
    """What a machine with a GPU lacks of all that is tried on one; nothing is said where there is none."""
    if not cuda_devices():
        return ()
    wanted = {"onnx": _onnxruntime, "torch": _torch, "tensorflow": _tensorflow, "tritonclient": _tritonclient}
    return tuple(f"{name}: {said}" for name, look in wanted.items() if (said := look()))


def runtimes() -> Iterator[Any]:
    """(runtime, place) for parametrize: those that are installed, on the host and, where they can, on the GPU."""
    for name, look in (("onnx", _onnxruntime), ("torch", _torch)):
        if importlib.util.find_spec({"onnx": "onnxruntime"}.get(name, name)) is not None:
            yield pytest.param(name, "cpu", id=f"{name} cpu")
            if not look():
                yield pytest.param(name, CUDA, id=f"{name} {CUDA}", marks=pytest.mark.gpu)


def can_run(name: str) -> bool:
    """Whether a runtime is there for the GPU, where there is one."""
    return not any(each.startswith(name) for each in missing())


def _onnxruntime() -> str:
    try:
        module = importlib.import_module("onnxruntime")
    except ImportError:
        return "onnxruntime is not installed"
    has = "CUDAExecutionProvider" in module.get_available_providers()
    return "" if has else f"onnxruntime {module.__version__} is a build without CUDA"


def _torch() -> str:
    try:
        module = importlib.import_module("torch")
    except ImportError:
        return "torch is not installed"
    return "" if module.cuda.is_available() else f"torch {module.__version__} finds no GPU"


def _tensorflow() -> str:
    return "" if importlib.util.find_spec("tensorflow") else "tensorflow is not installed"


def _tritonclient() -> str:
    if not (CLIENT / "tritonclient").is_dir():
        return f"nothing is in {CLIENT}"
    found = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    return "" if found else "cuda-bindings, which it needs, is not installed"


# --------------------------------------------------------------------------------------------------- the device's work


class Span(NamedTuple):
    """Something that the GPU did, from its own clock: microseconds."""

    kind: str
    """in, out, within or kernel."""
    begin: float
    end: float
    nbytes: int

    def overlaps(self, other: Span) -> bool:
        """Whether both were under way at one moment."""
        return self.begin < other.end and other.begin < self.end


_COPIES = {"HtoD": "in", "DtoH": "out", "DtoD": "within"}


def spans(trace: dict[str, Any]) -> list[Span]:
    """Copies and kernels of a trace in Chrome's format, as torch's profiler writes it. It has those of the whole
    process, whichever library has asked for them.
    """
    found = []
    for event in trace["traceEvents"]:
        if event.get("ph") != "X" or event.get("cat") not in ("kernel", "gpu_memcpy"):
            continue
        way = next((kind for words, kind in _COPIES.items() if words in event["name"]), "within")
        kind = "kernel" if event["cat"] == "kernel" else way
        nbytes = int(event.get("args", {}).get("bytes", 0))
        found.append(Span(kind, event["ts"], event["ts"] + event["dur"], nbytes))
    return sorted(found, key=lambda span: span.begin)


def profiled(work: Callable[[], None]) -> list[Span]:
    """What the GPU did while `work` ran."""
    profiler = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
        work()
        importlib.import_module("torch").cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        return spans(json.loads(file.read_text()))


def host(array: Any) -> Any:
    """An array of either module, on the host."""
    return array if isinstance(array, (np.ndarray, np.generic)) else array.get()
