"""What is said where something of CUDA is missing, the driver, a package or a library, and in which order they open."""

import ctypes
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_cuda import Cupy

from tensorgate.backends.execution import cuda_install, device
from tensorgate.backends.execution.cuda_install import TOOLKITS, cuda_problem, open_toolkit
from tensorgate.backends.execution.device import CudaDevice, open_device
from tensorgate.backends.onnx import providers

NO_DRIVER = "the NVIDIA driver is missing: libcuda.so.1: cannot open shared object file"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is loaded, by a loader that finds what has a path, and what was put here before."""
    loaded: list[str] = []

    def load(name: str) -> None:
        if not (Path(name).is_absolute() or name in loaded):
            raise OSError(f"{name}: cannot open shared object file")
        loaded.append(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    return loaded


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names: set[str] = set()
    monkeypatch.setattr(cuda_install, "is_installed", names.__contains__)
    monkeypatch.setattr(device, "is_installed", names.__contains__)
    monkeypatch.setattr(device, "_noted", set())
    return names


def cupy(count: int | Exception) -> Cupy:
    made = Cupy()

    def get() -> int:
        if isinstance(count, Exception):
            raise count
        return count

    made.cuda.runtime.getDeviceCount = get
    return made


@pytest.mark.parametrize("major", TOOLKITS)
def test_packages_come_before_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str], major: int
) -> None:
    """In each folder that modules come from, wherever ONNX Runtime itself lies."""
    toolkit = TOOLKITS[major]
    names = [*toolkit.linked, *toolkit.lazy]
    places = [tmp_path / "second" / "nvidia" / toolkit.folders[0] / "lib" / name for name in names]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert open_toolkit(major) == ([], [])
    assert opened == [str(place) for place in places]


def test_what_is_missing_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    opened += ["libcudart.so.13", "libcublasLt.so.13", "libcurand.so.10", "libnvrtc.so.13"]  # the system has them
    linked, lazy = open_toolkit(13)
    assert linked == ["libcublas.so.13 (pip install nvidia-cublas)"]
    assert lazy == ["libcufft.so.12 (pip install nvidia-cufft)", "libcudnn.so.9 (pip install nvidia-cudnn-cu13)"]


def test_another_cuda_is_refused() -> None:
    with pytest.raises(ValueError, match="built for CUDA 11, but known are 12, 13"):
        open_toolkit(11)


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (None, NO_DRIVER),
        (cupy(RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")), NO_DRIVER),
        (cupy(0), "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES is '')"),
        (cupy(1), ""),
    ],
    ids=["a CuPy that does not import", "no driver", "no GPU", "one GPU"],
)
def test_why_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, opened: list[str], installed: set[str], module: Any, told: str
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cuda_problem() == told


def test_a_driver_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> None:
    opened.append("libcuda.so.1")
    monkeypatch.setitem(sys.modules, "cupy", cupy(RuntimeError("cudaErrorInsufficientDriver: too old")))
    assert cuda_problem() == "CUDA cannot be used: cudaErrorInsufficientDriver: too old"


@pytest.mark.parametrize("pair", [("cupy-cuda12x", "cupy-cuda13x"), ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")])
def test_packages_that_overwrite_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], pair: tuple[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy(1))
    installed.add(pair[0])
    assert isinstance(open_device("cuda:0"), CudaDevice)
    installed.add(pair[1])
    with pytest.raises(ValueError, match=f"{pair[0]} and {pair[1]} are both installed.*torch-cuda12"):
        open_device("cuda:0")


def test_auto_is_the_host_and_says_why_once(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_device("auto", lambda: NO_DRIVER).name == "cpu"
        assert caplog.messages == []  # no GPU was meant
        installed.add("cupy-cuda13x")
        for _ in range(2):
            assert open_device("auto", lambda: NO_DRIVER).name == "cpu"
    assert caplog.messages == [f"models with device auto run on the CPU: {NO_DRIVER}"]


def test_a_device_that_is_named_has_to_be_there(monkeypatch: pytest.MonkeyPatch, installed: set[str]) -> None:
    with pytest.raises(ValueError, match=f"^device cuda was asked for, but {NO_DRIVER}; say device: auto"):
        open_device("cuda", lambda: NO_DRIVER)
    monkeypatch.setitem(sys.modules, "cupy", cupy(2))
    assert open_device("cuda:1").name == "cuda:1"
    with pytest.raises(ValueError, match="device cuda:2 was asked for, but only 2 CUDA devices can be used here"):
        open_device("cuda:2")


class Ort:
    cuda_version = "13.0"

    def __init__(self, *names: str) -> None:
        self.get_available_providers = lambda: list(names)


def test_why_onnx_has_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(providers, "is_installed", lambda name: name == "onnxruntime")
    monkeypatch.setitem(sys.modules, "onnxruntime", Ort(providers.CPU))
    assert providers.gpu_problem() == (
        f"{NO_DRIVER}; this build of ONNX Runtime has no CUDA provider: install the extra cuda12 or cuda13 in place of "
        "cpu"
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", Ort(providers.CUDA, providers.CPU))
    assert providers.gpu_problem().startswith(f"{NO_DRIVER}; ONNX Runtime's CUDA provider needs libcudart.so.13 (pip ")
    monkeypatch.setitem(sys.modules, "cupy", cupy(1))
    opened += TOOLKITS[13].linked
    assert providers.gpu_problem() == ""
    assert "there is no libcufft.so.12 (pip install nvidia-cufft), libnvrtc.so.13" in caplog.messages[-1]
    monkeypatch.setattr(providers, "is_installed", lambda name: True)
    assert "onnxruntime and onnxruntime-gpu are both installed" in providers.gpu_problem()
