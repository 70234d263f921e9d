"""The path of a grps model -> what lies there, and how it is served here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import is_version, needs_tensorflow
from tensorgate.adapters.importers.common.tree import Item
from tensorgate.adapters.importers.grps_config.torch_script import forward_signature
from tensorgate.gateway.contract.extras import install_command

_ONNX: Final = "model.onnx"
_SAVED: Final = ("saved_model.pb", "saved_model.pbtxt")
_GUESS: Final = (
    "needs PyTorch, {install}; its tensors are declared as FP32 of any shape, since the file "
    "does not tell: correct those that are not"
)
_EXPORT: Final = {
    "torch": "export it once: torch.onnx.export(torch.jit.load('{path}'), EXAMPLE, '{onnx}', dynamo=False)",
    "tensorrt": "copy the ONNX file that the engine was built from to {onnx}",
    "tensorflow": "there is no saved_model.pb; copy it here, or convert it: python -m tf2onnx.convert --output {onnx}",
}


@dataclass(frozen=True, slots=True)
class GrpsModelLocation:
    """The keys of an entry that say where a model lies, and a remark about them."""

    entry: dict[str, Any]
    because: str
    remark: str = ""


def find(inferer: str, path: Item, folder: Path) -> GrpsModelLocation:
    """`folder` is that of inference.yml. Raises ValueError with a remedy."""
    given = path.text()
    if not given:
        raise path.wrong("is blank; it has to name the model's file or folder")
    place = next((each for each in _candidates(Path(given), folder) if each.exists()), None)
    target = (place or next(_candidates(Path(given), folder))).absolute()
    onnx = _onnx(target)
    if onnx is not None:
        remark = "" if target.suffix == onnx.suffix or target.is_dir() else f"is not run; {onnx.name} beside it is"
        return _place("onnx", onnx.parent, onnx.name, remark)
    if inferer == "tensorflow" and (place is None or _saved(target)):
        remark = needs_tensorflow() if place else f"is not on this machine; copy it here; {needs_tensorflow()}"
        return _place("tensorflow", target, "", remark)
    if inferer == "torch" and target.is_file() and (found := forward_signature(target)) is not None:
        entry = {"inputs": list(found.inputs), "outputs": list(found.outputs)}
        located = _place("torch", target.parent, target.name, _GUESS.format(install=install_command("torch")))
        return GrpsModelLocation(located.entry | entry, located.because, located.remark)
    wanted = target.with_suffix(".onnx") if target.suffix else target / _ONNX
    remedy = _EXPORT[inferer].format(path=target, onnx=wanted)
    raise path.wrong(f"{inferer} models of this form are not run here; {remedy}; then import again")


def _candidates(path: Path, folder: Path) -> Iterator[Path]:
    """grps starts in the folder above conf/, and its paths from there."""
    base = folder.absolute().parent if folder.absolute().name == "conf" else folder
    yield from dict.fromkeys((base / path, folder / path, Path.cwd() / path))


def _onnx(target: Path) -> Path | None:
    """The ONNX file that is the model, lies in its folder, or beside its file under the same name."""
    file = target / _ONNX if target.is_dir() else target.with_suffix(".onnx")
    return file if file.is_file() else None


def _saved(target: Path) -> bool:
    if not target.is_dir():
        return False
    folders = [target, *(each for each in target.iterdir() if is_version(each))]
    return any((folder / file).is_file() for folder in folders for file in _SAVED)


def _place(backend: str, folder: Path, file: str, remark: str) -> GrpsModelLocation:
    """There are no version folders, but SavedModels that were copied with theirs."""
    entry: dict[str, Any] = {"backend": backend, "path": str(folder), "versions": "none"}
    if folder.is_dir() and backend == "tensorflow" and not any((folder / each).is_file() for each in _SAVED):
        entry["versions"] = "latest"
    if file not in ("", _ONNX):
        entry["file"] = file
    return GrpsModelLocation(entry, file or "a SavedModel", remark)
