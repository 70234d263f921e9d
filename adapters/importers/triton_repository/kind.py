"""backend and platform of Triton's ModelConfig, or the name of the model's file -> the backend here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tensorgate.adapters.importers.common import Source


@dataclass(frozen=True, slots=True)
class Kind:
    """A backend of Triton's that has one here: by which name, the file that it looks for in a version's folder, and the
    option that names another.
    """

    name: str
    file: str
    option: str = "file"


ONNX: Final = Kind("onnx", "model.onnx")
PYTHON: Final = Kind("triton_python", "model.py")
TENSORFLOW: Final = Kind("tensorflow", "model.savedmodel", "folder")
TORCH: Final = Kind("torch", "model.pt")
ENSEMBLE: Final = Kind("ensemble", "")

_BACKENDS: Final = {"onnxruntime": ONNX, "python": PYTHON, "tensorflow": TENSORFLOW, "pytorch": TORCH}
_PLATFORMS: Final = {
    "onnxruntime_onnx": ONNX,
    "tensorflow_savedmodel": TENSORFLOW,
    "pytorch_libtorch": TORCH,
    "ensemble": ENSEMBLE,
}
_SUFFIXES: Final = {".onnx": ONNX, ".py": PYTHON, ".savedmodel": TENSORFLOW, ".pt": TORCH, ".pt2": TORCH}
_FILES: Final = tuple(f"model{suffix}" for suffix in _SUFFIXES)
_ELSEWHERE: Final = {
    "model.plan": "a TensorRT engine",
    "model.xml": "an OpenVINO model",
    "model.graphdef": "a TensorFlow GraphDef",
    "model.dali": "a DALI pipeline",
}
_SUPPORTED: Final = "onnxruntime, python, pytorch, tensorflow (SavedModels) and ensemble are"


def kind_of(source: Source, files: Iterable[str]) -> Kind:
    """Raises ValueError naming what is not supported, or that there is nothing to go by."""
    config = source.config
    if config.WhichOneof("scheduling_choice") == "ensemble_scheduling" or config.platform == "ensemble":
        if config.backend or config.platform not in ("", "ensemble"):
            key = "backend" if config.backend else "platform"
            raise source.wrong(key, "a model with ensemble_scheduling is an ensemble")
        if not config.ensemble_scheduling.step:
            raise source.wrong("platform", "an ensemble needs ensemble_scheduling with its steps")
        return ENSEMBLE
    for key, name, known in (("backend", config.backend, _BACKENDS), ("platform", config.platform, _PLATFORMS)):
        if name and name not in known:
            raise source.wrong(key, f'"{name}" is not supported; {_SUPPORTED}')
    named = _BACKENDS.get(config.backend) or _PLATFORMS.get(config.platform)
    if named and config.platform and named is not _PLATFORMS[config.platform]:
        raise source.wrong("platform", f'"{config.platform}" is not a platform of the backend {config.backend}')
    return named or _guess(source, config.default_model_filename, sorted(set(files)))


def _guess(source: Source, file: str, found: list[str]) -> Kind:
    for name in [file] if file else found:
        if name in _FILES or (file and name.endswith(tuple(_SUFFIXES))):
            return _SUFFIXES["." + name.rpartition(".")[2]]
    for name in [file, *found]:
        if name in _ELSEWHERE:
            raise ValueError(f"{name} is {_ELSEWHERE[name]}, which is not supported; {_SUPPORTED}")
    seen = ", ".join(found[:8]) or "nothing"
    raise ValueError(
        f"neither backend nor platform is given, and no version has one of {', '.join(_FILES)}; found {seen}"
    )
