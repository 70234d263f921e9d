"""The base path of a TensorFlow Serving model -> what lies there, which decides how it is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorgate.adapters.importers.common import is_version, needs_tensorflow
from tensorgate.adapters.importers.common.location import local_path
from tensorgate.gateway.contract.locations import OBJECT_STORES, parse_location

ONNX: Final = "onnx"
TENSORFLOW: Final = "tensorflow"

_FILES: Final = {"model.onnx": ONNX, "saved_model.pb": TENSORFLOW, "saved_model.pbtxt": TENSORFLOW}


@dataclass(frozen=True, slots=True)
class ServableLocation:
    """Where a model lies, and what computes it; `remark` is something to look at."""

    path: Path | str
    """Of this machine; or a URL, as it was written."""
    backend: str
    because: str
    remark: str = ""
    file: Path | None = None
    """The model of the version that was looked at."""


def find(base_path: str) -> ServableLocation:
    """Looks into the folder if it is on this machine. Raises ValueError with a remedy, or OSError."""
    if base_path.partition("://")[0] in OBJECT_STORES:
        url = parse_location(base_path).url
        remark = f"is not looked into: check the backend, which is a guess; tensorflow {needs_tensorflow()}"
        return ServableLocation(url, TENSORFLOW, "in an object store", remark)
    path = local_path(base_path)
    if not path.exists():
        remark = f"is not on this machine: check path and backend, which is a guess; tensorflow {needs_tensorflow()}"
        return ServableLocation(path, TENSORFLOW, "not on this machine", remark)
    versions = {entry.name: entry for entry in path.iterdir() if is_version(entry)}
    if not versions:
        remark = f"has no version yet: check the backend, which is a guess; tensorflow {needs_tensorflow()}"
        return ServableLocation(path, TENSORFLOW, "no version yet", remark)
    return _by_files(path, [versions[name] for name in sorted(versions, key=int, reverse=True)])


def _by_files(path: Path, versions: list[Path]) -> ServableLocation:
    """The highest version that has a model decides."""
    for version in versions:
        for file, backend in _FILES.items():
            if (version / file).is_file():
                remark = needs_tensorflow() if backend == TENSORFLOW else ""
                return ServableLocation(path, backend, f"{version.name}/{file}", remark, version / file)
    seen = sorted({file.name for version in versions for file in version.iterdir() if file.name.isprintable()})
    remedy = "; convert it to ONNX: python -m tf2onnx.convert" if "model.tflite" in seen else ""
    shown = ", ".join(seen[:8]) or "nothing"
    raise ValueError(f"no version in {path} has one of {', '.join(_FILES)}; found {shown}{remedy}")
