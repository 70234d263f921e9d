"""What a GPU says of itself: memory, load, power, heat, whoever uses it. Everything here may take a millisecond.

Memory and name come from CUDA, by CuPy; the rest from NVIDIA's management library (nvidia-ml-py), where that is
installed and answers: a part of a GPU (MIG) has no load of its own, and some containers show no power. What nobody
tells is None, not zero. The two count GPUs differently, so they are matched by their place on the PCI bus.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from tensorgate.backends.execution.device import Selected
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.metrics import Gpu

_lock: Final = threading.Lock()


def read_gpu(device: str) -> Gpu | None:
    """ "cuda:0" -> that GPU now; None for other devices, and where CuPy cannot tell. For any thread."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return None
    try:
        place, name = _identity(int(index))
        runtime = importlib.import_module("cupy").cuda.runtime
        with Selected(runtime, int(index)):
            free, total = runtime.memGetInfo()
    except Exception:  # CuPy raises what CUDA, its loader or its wheels raise; each of them means no
        return None
    with _lock:
        library, handle = _managed(place)
    return Gpu(
        device,
        _uuid(library, handle, place),
        name,
        int(total),
        int(total - free),
        utilization=_asked(library, lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        power_watts=_asked(library, lambda: library.nvmlDeviceGetPowerUsage(handle) / 1e3),
        power_limit_watts=_asked(library, lambda: library.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        energy_joules=_asked(library, lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3),
        temperature_celsius=_asked(
            library, lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)
        ),
    )


def device_bytes(device: str) -> int:
    """ "cuda:0" -> the bytes that are taken there, without those that CuPy keeps for later; 0 where nobody tells. For
    any thread.
    """
    try:
        cupy = importlib.import_module("cupy")
        with Selected(cupy.cuda.runtime, int(device.partition(":")[2])):
            free, total = cupy.cuda.runtime.memGetInfo()
            return int(total - free - cupy.get_default_memory_pool().free_bytes())
    except Exception:  # CuPy raises what CUDA, its loader or its wheels raise; each of them means no
        return 0


def no_room(source: ModelSource, device: str, text: str) -> str:
    """A remark on a failed load: the limit, what is free on the GPU where it was tried, and what the runtime said."""
    facts = []
    if source.memory_limit_bytes:
        facts.append(f"memory_limit_bytes is {source.memory_limit_bytes:,}")
    gpu = read_gpu(device)
    if gpu is not None:
        facts.append(f"{gpu.total - gpu.used:,} of {gpu.total:,} bytes are free on {device}")
    message = " ".join(text.split())
    return f"no room for the model on {device}: {'; '.join((*facts, message))}"


def driver_version() -> str | None:
    """ "580.65.06 for CUDA 13.0"; None where the management library does not tell."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
        release = int(library.nvmlSystemGetCudaDriverVersion())
        return f"{_text(library.nvmlSystemGetDriverVersion())} for CUDA {release // 1000}.{release % 1000 // 10}"
    except Exception:  # not installed, no driver, or not allowed
        return None


def mig_mode(device: str) -> str:
    """Whether "cuda:0" is on a GPU that is cut into parts: on, off, or unknown."""
    with _lock:
        library, handle = _managed(_identity(int(device.partition(":")[2]))[0])
    on = _asked(library, lambda: library.nvmlDeviceGetMigMode(handle)[0])
    return "unknown" if on is None else "on" if on else "off"


@lru_cache(maxsize=64)
def _identity(index: int) -> tuple[str, str]:
    """Place on the PCI bus, name. They do not change while the process lives."""
    cuda = importlib.import_module("cupy").cuda
    name = cuda.runtime.getDeviceProperties(index)["name"]
    return str(cuda.Device(index).pci_bus_id), bytes(name).rstrip(b"\0").decode()


def _uuid(library: Any, handle: Any, place: str) -> str:
    """As the management library writes it, of a part of a GPU the whole's. Where that is not there, the place on the
    bus stands for it: CuPy ends the UUID of CUDA's properties at its first zero byte.
    """
    try:
        return _text(library.nvmlDeviceGetUUID(handle))
    except Exception:  # not installed, or not allowed
        return place


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@lru_cache(maxsize=64)
def _managed(place: str) -> tuple[Any, Any]:
    """The management library and its handle of a GPU; (None, None) where it is missing or does not know the GPU."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
        return library, library.nvmlDeviceGetHandleByPciBusId(place)
    except Exception:  # not installed, no driver, or not allowed
        return None, None


def _asked(library: Any, question: Callable[[], float]) -> float | None:
    if library is None:
        return None
    try:
        return float(question())
    except library.NVMLError:  # not supported on this GPU, or not allowed here
        return None
