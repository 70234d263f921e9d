"""What of CUDA is installed here: the driver, the toolkit's libraries, and whether the packages that bring them agree.

pip puts NVIDIA's libraries into `nvidia/` beside the packages that ask for them, where the system's loader does not
look. But what is loaded already is found by its name alone: so a library that names another is satisfied once that one
has been opened by its path, with no LD_LIBRARY_PATH and wherever the asking package itself lies.
Source: dlopen(3); ONNX Runtime, preload_dlls, which looks beside ONNX Runtime alone.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tensorgate.gateway.contract.errors import text_of

DRIVER: Final = "libcuda.so.1"
_ONE_OF: Final = (("cupy-cuda12x", "cupy-cuda13x"), ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"))
"""Packages whose files have the same paths: of two that are installed, the one that came last is there."""


class Toolkit(NamedTuple):
    """Libraries of one CUDA release that ONNX Runtime uses, each with the package that brings it, and those on which
    others rely first. `linked` must be there before the provider is loaded, `lazy` are opened when a model needs them.
    """

    linked: Mapping[str, str]
    lazy: Mapping[str, str]
    folders: tuple[str, ...]


TOOLKITS: Final[Mapping[int, Toolkit]] = {
    12: Toolkit(
        {
            "libcudart.so.12": "nvidia-cuda-runtime-cu12",
            "libcublasLt.so.12": "nvidia-cublas-cu12",
            "libcublas.so.12": "nvidia-cublas-cu12",
            "libcurand.so.10": "nvidia-curand-cu12",
            "libcufft.so.11": "nvidia-cufft-cu12",
            "libcudnn.so.9": "nvidia-cudnn-cu12",
        },
        {"libnvrtc.so.12": "nvidia-cuda-nvrtc-cu12"},
        ("cuda_runtime", "cublas", "curand", "cufft", "cudnn", "cuda_nvrtc"),
    ),
    13: Toolkit(
        {
            "libcudart.so.13": "nvidia-cuda-runtime",
            "libcublasLt.so.13": "nvidia-cublas",
            "libcublas.so.13": "nvidia-cublas",
            "libcurand.so.10": "nvidia-curand",
        },
        {
            "libcufft.so.12": "nvidia-cufft",
            "libnvrtc.so.13": "nvidia-cuda-nvrtc",
            "libcudnn.so.9": "nvidia-cudnn-cu13",
        },
        ("cu13", "cudnn"),
    ),
}
"""By CUDA's major release."""


def driver_problem() -> str:
    """What is wrong with the NVIDIA driver's library; empty where it can be opened."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        return f"the NVIDIA driver is missing: {error}"
    return ""


def cuda_problem() -> str:
    """Why no GPU can be used from here, naming what is missing; empty where one can."""
    if "cupy" not in sys.modules and importlib.util.find_spec("cupy") is None:
        return "CuPy is missing: install the extra cuda12 or cuda13"
    try:
        count = int(importlib.import_module("cupy").cuda.runtime.getDeviceCount())
    except Exception as error:  # CuPy raises what CUDA, its loader or its wheels raise
        return driver_problem() or f"CUDA cannot be used: {text_of(error)}"
    if not count:
        return "the NVIDIA driver shows no GPU" + _hidden()
    return package_conflict()


def package_conflict() -> str:
    """Installed packages that overwrite each other, and what to do; empty where there are none."""
    for names in _ONE_OF:
        installed = [name for name in names if is_installed(name)]
        if len(installed) > 1:
            return (
                f"{' and '.join(installed)} are both installed, and their files overwrite each other: uninstall both, "
                "then install extras for one CUDA, cuda12 with torch-cuda12 or cuda13 with torch-cuda13"
            )
    return ""


def open_toolkit(major: int) -> tuple[list[str], list[str]]:
    """Open the libraries of a CUDA release, from the packages that bring them or else from where the system has them.

    Returns which of the linked and which of the lazy ones cannot be opened, each as "LIBRARY (pip install PACKAGE)".
    Raises ValueError for a release that is not known.
    """
    toolkit = TOOLKITS.get(major)
    if toolkit is None:
        raise ValueError(f"ONNX Runtime was built for CUDA {major}, but known are {', '.join(map(str, TOOLKITS))}")
    missing: tuple[list[str], list[str]] = ([], [])
    for kind, libraries in zip(missing, (toolkit.linked, toolkit.lazy), strict=True):
        kind += [f"{name} (pip install {wheel})" for name, wheel in libraries.items() if not _open(name, toolkit)]
    return missing


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _open(name: str, toolkit: Toolkit) -> bool:
    for place in (*_places(name, toolkit), name):
        try:
            ctypes.CDLL(place)
        except OSError:
            continue
        return True
    return False


def _places(name: str, toolkit: Toolkit) -> Iterator[str]:
    for entry in sys.path:
        for folder in toolkit.folders:
            place = Path(entry, "nvidia", folder, "lib", name)
            if place.is_file():
                yield str(place)


def _hidden() -> str:
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if shown is None else f" (CUDA_VISIBLE_DEVICES is '{shown}')"
