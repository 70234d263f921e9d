"""What a GPU says of itself, from stand-ins of CuPy and NVIDIA's library that say what the real ones do."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tensorgate.backends.execution import gpu
from tensorgate.gateway.contract.metrics import Gpu

NUMBER = "GPU-01234567-00ab-cdef-0123-456789abcdef"


class NVMLError(Exception):
    pass


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    gpu._identity.cache_clear()
    gpu._managed.cache_clear()


def cupy(index: int = 1) -> Any:
    def device(number: int) -> Any:
        assert number == index
        return SimpleNamespace(pci_bus_id="0000:65:00.0")

    selected: list[int] = []

    def memory() -> tuple[int, int]:
        assert selected[-1] == index
        return 300, 1000

    properties = {"uuid": b"\x01\x23\x45\x67", "name": b"NVIDIA H200"}
    runtime = SimpleNamespace(
        getDeviceProperties=lambda number: properties, setDevice=selected.append, memGetInfo=memory
    )
    return SimpleNamespace(cuda=SimpleNamespace(Device=device, runtime=runtime))


def pynvml(**answers: Any) -> Any:
    def unsupported(*_: Any) -> Any:
        raise NVMLError("Not Supported")

    def handle(place: str) -> str:
        assert place == "0000:65:00.0"
        return "handle"

    library = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=handle,
        nvmlDeviceGetUUID=lambda handle: NUMBER,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=42, memory=7),
        nvmlDeviceGetPowerUsage=lambda handle: 350_500,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 123_456,
        nvmlDeviceGetTemperature=lambda handle, sensor: 55,
    )
    for name, answer in answers.items():
        setattr(library, name, unsupported if answer is None else answer)
    return library


def test_all_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy())
    monkeypatch.setitem(sys.modules, "pynvml", pynvml())
    expected = Gpu("cuda:1", NUMBER, "NVIDIA H200", 1000, 700, 0.42, 350.5, 700.0, 123.456, 55.0)
    assert gpu.read_gpu("cuda:1") == expected


def test_what_nobody_tells_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy())
    monkeypatch.setitem(sys.modules, "pynvml", pynvml(nvmlDeviceGetUtilizationRates=None, nvmlDeviceGetPowerUsage=None))
    read = gpu.read_gpu("cuda:1")
    assert read is not None
    assert (read.utilization, read.power_watts, read.temperature_celsius) == (None, None, 55.0)


@pytest.mark.parametrize("library", [None, pynvml(nvmlInit=None), pynvml(nvmlDeviceGetHandleByPciBusId=None)])
def test_without_the_library_there_is_memory(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy())
    monkeypatch.setitem(sys.modules, "pynvml", library)  # None: its import fails
    read = gpu.read_gpu("cuda:1")
    assert read == Gpu("cuda:1", "0000:65:00.0", "NVIDIA H200", 1000, 700)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.read_gpu("cpu") is None
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.read_gpu("cuda:0") is None


@pytest.mark.parametrize(("mode", "word"), [([1, 1], "on"), ([0, 1], "off"), (None, "unknown")])
def test_parts_of_a_gpu(monkeypatch: pytest.MonkeyPatch, mode: Any, word: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy())
    monkeypatch.setitem(sys.modules, "pynvml", pynvml(nvmlDeviceGetMigMode=mode and (lambda handle: mode)))
    assert gpu.mig_mode("cuda:1") == word


def test_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
    }
    monkeypatch.setitem(sys.modules, "pynvml", pynvml(**versions))
    assert gpu.driver_version() == "580.65.06 for CUDA 13.0"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.driver_version() is None


@pytest.mark.gpu
def test_the_real_one() -> None:
    read = gpu.read_gpu("cuda:0")
    assert read is not None
    assert read.total > read.used > 0
    assert read.uuid.startswith("GPU-")
