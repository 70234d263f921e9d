"""`tensorgate serve model.onnx`: models without a configuration, and the YAML that says the same.

What a file or folder is shows in its name and in what lies in it; nothing is loaded or executed for that. Each model
has the name of its file or folder, unless it is written NAME=PATH.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common.document import Imported, document, flow
from tensorgate.adapters.importers.triton_repository.folder import read_model
from tensorgate.gateway.contract.tensor import DTYPES

CONFIGURATIONS: Final = (".yaml", ".yml", ".json")
_RUNTIMES: Final = {".onnx": "onnx", ".pt2": "torch", ".pt": "torch", ".pth": "torch"}
_SAVED_MODEL: Final = ("saved_model.pb", "saved_model.pbtxt")
_TRITON: Final = "config.pbtxt"
_TRITON_CLASS: Final = "TritonPythonModel"
_METHOD: Final = "infer"
_MAX_SHOWN: Final = 5
_EXPECTED: Final = (
    "expected a model.onnx, .pt2 or .pt, a saved_model.pb, a file.py:Class, folders of versions with one of them, or a "
    "folder of models"
)
_IMPORTS: Final = {
    "model-settings.json": "MLServer's: tensorgate import mlserver {folder} -o gateway.yaml",
    "inference.yml": "grps': tensorgate import grps {folder}/server.yml {folder}/inference.yml -o gateway.yaml",
    "models.config": "TensorFlow Serving's: tensorgate import tf-serving {folder}/models.config -o gateway.yaml",
}
"""What lies in a folder -> how it is served."""
_NAMES: Final = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)
_CLASS: Final = re.compile(r"(.+\.py):([^\W\d]\w*)", re.DOTALL)


class NoModel(Exception):
    """A path names nothing that can be served. Its text says what was found there, and the remedy."""


def is_configuration(written: str) -> bool:
    """Whether an argument of `serve` names a configuration and not a model."""
    path = Path(written)
    if path.suffix.lower() in CONFIGURATIONS:
        return True
    is_model = path.is_dir() or path.suffix.lower() in (*_RUNTIMES, ".py") or _NAMES.fullmatch(written)
    return not (is_model or _CLASS.fullmatch(written))


def yaml_of(paths: Sequence[str], listen: Iterable[str], folder: Path) -> str:
    """The configuration that serves these models; its paths are relative to `folder`, `listen` are its first lines.

    Raises NoModel.
    """
    models: dict[str, Imported] = {}
    repositories: list[str] = []
    for written in paths:
        found = _found(written)
        if found is None:
            repositories.append(str(_path(written).absolute()))
        elif found.name in models:
            raise NoModel(f"{written}: there is a model {found.name} already; give it another name: NAME={written}")
        else:
            models[found.name] = found
    sections = [*listen, *([f"repositories: {flow(repositories)}"] if repositories else [])]
    return document(["What `tensorgate serve` was given."], sections, list(models.values()), folder)


def _found(written: str) -> Imported | None:
    """The model that an argument names; None for a folder of models. Raises NoModel."""
    named = _NAMES.fullmatch(written)
    name, place = (named[1], named[2]) if named else ("", written)
    member = _CLASS.fullmatch(place)
    path = Path(member[1] if member else place).expanduser()
    if not path.exists():
        raise NoModel(f"{path}: no such file or folder")
    if path.is_dir():
        return _folder(name or _name_of(path), path)
    if path.suffix == ".py":
        return Imported(name or path.stem, _python(path, member[2] if member else ""))
    backend = _RUNTIMES.get(path.suffix.lower())
    if backend is None:
        raise NoModel(f"{path}: what kind of model is it? {_EXPECTED}")
    return Imported(name or _name_of(path), _entry(backend, path))


def _path(written: str) -> Path:
    named = _NAMES.fullmatch(written)
    return Path(named[2] if named else written).expanduser()


def _name_of(path: Path) -> str:
    """`model.onnx` and versions have the name of the folder that they lie in."""
    path = path.absolute()
    while (path.stem == "model" and path.is_file()) or path.name.isdecimal():
        path = path.parent
    stem = path.stem if path.is_file() else path.name
    return re.sub(r"[^\w.-]+", "_", stem).strip("._-") or "model"


def _entry(backend: str, path: Path, **more: Any) -> Mapping[str, Any]:
    return {"backend": backend, "path": str(path.absolute()), **more, "max_batch_size": "auto"}


# -------------------------------------------------------------------------------------------------------------- folders


def _folder(name: str, folder: Path) -> Imported | None:
    names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    for file, remedy in _IMPORTS.items():
        if file in names:
            raise NoModel(f"{folder}: it is {remedy.format(folder=folder)}")
    versions = [folder / each for each in names if each.isdecimal() and (folder / each).is_dir()]
    if _TRITON in names:
        return _of_triton(name, folder)
    if versions:
        newest = max(versions, key=lambda version: int(version.name))
        inside = _runtime_of(newest)
        return _of_triton(name, folder) if inside is None else Imported(name, _entry(inside[0], folder, **inside[1]))
    if (inside := _runtime_of(folder)) is not None:
        return Imported(name, _entry(inside[0], folder, versions="none", **inside[1]))
    if any(_is_model(folder / each) for each in names):
        return None
    shown = ", ".join(names[:_MAX_SHOWN]) + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "")
    raise NoModel(f"{folder}: found {shown or 'nothing'}; {_EXPECTED}")


def _of_triton(name: str, folder: Path) -> Imported:
    """A model of a Triton repository. Raises NoModel."""
    try:
        reading = read_model(folder, name=name)
        return Imported(name, reading.entry, reading.notes)
    except (OSError, ValueError) as error:
        raise NoModel(f"{folder}: {error}") from None


def _runtime_of(folder: Path) -> tuple[str, Mapping[str, Any]] | None:
    """The backend of what lies in a version's folder, and its options; None where that is not to be seen."""
    if any((folder / each).is_file() for each in (*_SAVED_MODEL, f"model.savedmodel/{_SAVED_MODEL[0]}")):
        return "tensorflow", {}
    files = [each for each in sorted(folder.iterdir()) if each.is_file() and each.suffix.lower() in _RUNTIMES]
    usual = [each for each in files if each.stem == "model"]
    if len(usual or files) != 1:
        return None
    (file,) = usual or files
    return _RUNTIMES[file.suffix.lower()], {} if usual else {"file": file.name}


def _is_model(folder: Path) -> bool:
    """Whether a folder is one of a repository's."""
    return folder.is_dir() and any(each.name == _TRITON or each.name.isdecimal() for each in folder.iterdir())


# --------------------------------------------------------------------------------------------------------------- Python

_TENSORS = """

a class says its tensors where no configuration does, as names with their datatype and shape:

    class {name}:
        inputs = {{"x": ("FP32", [-1, 4])}}
        outputs = {{"y": ("FP32", [-1])}}
        max_batch_size = 0              # of requests in one call; 0: the arrays have no batch dimension
"""


def _python(file: Path, wanted: str) -> Mapping[str, Any]:
    """The entry of a class, by its source. Raises NoModel."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise NoModel(f"{file}: {error}") from None
    classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
    if wanted in ("", _TRITON_CLASS) and _TRITON_CLASS in classes:
        return {"backend": "triton_python", "path": str(file.absolute())}
    models = [name for name, each in classes.items() if _METHOD in _methods(each)]
    if wanted not in classes if wanted else len(models) != 1:
        found = f"found {', '.join(models or classes) or 'no class'}"
        raise NoModel(f"{file}: {found}; name the class, which has a method {_METHOD}: {file}:{wanted or 'Model'}")
    name = wanted or models[0]
    said = dict(_assigned(classes[name]))
    if not {"inputs", "outputs"} <= said.keys():
        raise NoModel(f"{file}:{name} does not say what it takes and gives{_TENSORS.format(name=name)}".rstrip())
    entry: dict[str, Any] = {"backend": "python", "path": f"{file.absolute()}:{name}"}
    for key in ("inputs", "outputs"):
        entry[key] = list(_tensors(f"{file}:{name}.{key}", said[key]))
    return entry | {"max_batch_size": said.get("max_batch_size", 0)}


def _methods(of_class: ast.ClassDef) -> set[str]:
    return {each.name for each in of_class.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}


def _assigned(of_class: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """The attributes that a class sets to literals."""
    for each in of_class.body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if each.value:
                with contextlib.suppress(ValueError):
                    yield name, ast.literal_eval(each.value)


def _tensors(where: str, said: Any) -> Iterator[Mapping[str, Any]]:
    """Raises NoModel."""
    if not isinstance(said, Mapping):
        raise NoModel(f'{where}: expected names with datatype and shape, like {{"x": ("FP32", [-1, 4])}}')
    for name, about in said.items():
        match about:
            case (str(datatype), list() | tuple() as shape) if datatype in DTYPES:
                yield {"name": str(name), "datatype": datatype, "shape": list(shape)}
            case _:
                raise NoModel(
                    f"{where}: {name}: expected a datatype ({', '.join(DTYPES)}) and a shape, found {about!r}"
                )
