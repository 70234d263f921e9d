"""One model-settings.json -> the model's entry below `models:`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import NO_BOUND, Imported, printable
from tensorgate.adapters.importers.common.location import local_path
from tensorgate.adapters.importers.common.tabular import TabularModel, onnx_beside, onnx_entry, tabular_entry
from tensorgate.adapters.importers.common.tree import Item, read_tree

_KINDS: Final = {
    "mlserver_sklearn.SKLearnModel": "sklearn",
    "mlserver_xgboost.XGBoostModel": "xgboost",
    "mlserver_lightgbm.LightGBMModel": "lightgbm",
}
_CLASS: Final = "write its load and predict as a class with infer(self, inputs, request): backend: python"
_REMEDIES: Final = {
    "mlserver_catboost": "save it as ONNX, model.save_model('model.onnx', format='onnx'), beside the old file",
    "mlserver_mlflow": "save its flavour's model as ONNX beside it, or write a class that calls mlflow.pyfunc",
    "mlserver_huggingface": "export it with optimum-cli export onnx, or let a vLLM behind backend: remote answer",
    "mlserver_alibi_explain": "explanations are not done here; let MLServer go on beside this server",
    "mlserver_alibi_detect": "detection is not done here; let MLServer go on beside this server",
}
_UNKNOWN_INPUT: Final = "are not declared: callers' name of the input is a guess, input-0; correct it"
_UNKNOWN_OUTPUT: Final = "are not declared: {name} is taken to be FP64; correct it (a classifier's predict is INT64)"
_ENVIRONMENT: Final = "all models share this server's Python; install what the model needs there"


@dataclass(slots=True)
class MlserverImport:
    """The folder beside the YAML that gets the classes, whether the models' files may be programs, whether answers may
    be given again; and whether any model needs those classes.
    """

    programs: str
    trusted: bool
    cached: bool
    is_tabular: bool = False


def read_models(files: Sequence[Path], beside: MlserverImport) -> list[Imported]:
    """Every model, read or with what is wrong with it."""
    found: list[Imported] = []
    for file in files:
        model = _model(file, beside)
        if any(each.name == model.name for each in found):
            error = f"{file}: {model.name} stands in another file, too; rename one"
            model = Imported(f"{model.name} ({file.parent.absolute().name})", error=error)
        found.append(model)
    return found


def _model(file: Path, beside: MlserverImport) -> Imported:
    name = file.parent.absolute().name
    try:
        settings = read_tree(file)
    except (ValueError, OSError) as error:
        return Imported(printable(name), error=str(error))
    try:
        name = settings.member("name").text() or name
        entry = _entry(settings, file.parent, beside)
    except (ValueError, OSError) as error:
        return Imported(printable(name), error=str(error))
    return Imported(printable(name), entry, settings.file.notes)


def _entry(settings: Item, folder: Path, beside: MlserverImport) -> dict[str, Any]:
    implementation = settings.member("implementation")
    kind = _KINDS.get(implementation.text())
    parameters = settings.member("parameters").mapping()
    path = _path(parameters.member("uri"), folder)
    onnx = onnx_beside(path)
    if onnx is not None:
        implementation.note(f"-> backend: onnx ({onnx.name}, which lies beside)", "mapped")
        entry = onnx_entry(onnx)
        for name in ("inputs", "outputs"):
            settings.member(name).ignore("the ONNX file tells its tensors")
    elif kind is None:
        name = implementation.text()
        remedy = _REMEDIES.get(name.partition(".")[0], _CLASS)
        raise implementation.wrong(f"{name or 'nothing'} is a runtime of MLServer's alone: {remedy}")
    else:
        entry = _tabular(settings, kind, path, parameters, beside)
    entry |= _batching(settings) | {"max_queue_size": NO_BOUND}
    if beside.cached and (settings.member("cache_enabled").truth()):
        entry["response_cache"] = True
    _ignored(settings, parameters)
    return entry


def _path(uri: Item, folder: Path) -> Path:
    """Raises ValueError with a remedy."""
    if not uri.given:
        return folder.absolute()
    try:
        place = folder.absolute() / local_path(uri.text())
    except ValueError as error:
        raise uri.wrong(str(error)) from None
    if not place.exists():
        raise uri.wrong(f"{place} is not there; copy it here")
    uri.note("-> path", "mapped")
    return place


def _tabular(settings: Item, kind: str, path: Path, parameters: Item, beside: MlserverImport) -> dict[str, Any]:
    method = parameters.member("extra").mapping().member("predict_fn").text("predict")
    inputs = [_tensor(each) for each in settings.member("inputs").items()]
    outputs = [_tensor(each) for each in settings.member("outputs").items()]
    if not inputs:
        settings.member("inputs").note(_UNKNOWN_INPUT, "told")
        inputs = [{"name": "input-0", "datatype": "FP64"}]
    if not outputs:
        settings.member("outputs").note(_UNKNOWN_OUTPUT.format(name=method), "told")
        outputs = [{"name": method, "datatype": "FP64"}]
    model = TabularModel(kind, inputs, outputs, beside.programs, beside.trusted, column=True)
    try:
        entry, remark = tabular_entry(model, path)
    except ValueError as error:
        raise settings.member("implementation").wrong(str(error)) from None
    beside.is_tabular = True
    settings.member("implementation").note(f"-> backend: python; {remark}", "told")
    return entry


def _tensor(item: Item) -> dict[str, Any]:
    """Name, datatype and shape, as MLServer's metadata have them."""
    shape = [each.number(0, -1) for each in item.mapping().member("shape").items()]
    item.member("parameters").ignore("arrays are NumPy's")
    found: dict[str, Any] = {"name": item.member("name").text(), "datatype": item.member("datatype").text()}
    return found | ({"shape": shape} if shape else {})


def _batching(settings: Item) -> dict[str, Any]:
    size, wait = settings.member("max_batch_size"), settings.member("max_batch_time")
    rows = size.number(0, 0)
    if rows <= 1 or not wait.given:
        return {"max_batch_size": 0}
    try:
        seconds = float(wait.text())
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < 1 << 20:
        raise wait.wrong(f"found {wait.text()}, expected seconds")
    size.note(f"-> max_batch_size: {rows}", "mapped")
    wait.note("-> max_queue_delay_us", "mapped")
    return {"max_batch_size": rows, "max_queue_delay_us": round(seconds * 1_000_000)}


def _ignored(settings: Item, parameters: Item) -> None:
    version = parameters.member("version")
    if version.given:
        version.note("is ignored: versions are numbers here, and there is one; callers leave it out", "told")
    for name in ("environment_path", "environment_tarball", "inference_pool_gid", "autogenerate_inference_pool_gid"):
        parameters.member(name).ignore(_ENVIRONMENT)
    content = parameters.member("content_type")
    if content.text("np") not in ("np", "numpy"):
        content.note("is refused: models get NumPy's arrays; convert them in a class of your own", "refused")
    parameters.member("format").ignore("the file's name tells its form")
    parameters.member("extra").ignore("of it, predict_fn is known")
    for name in ("platform", "versions"):
        settings.member(name).ignore("it describes the model, for people")
    for name in ("parallel_workers", "warm_workers"):
        settings.member(name).ignore("process: own lets a model compute in a process of its own")
    settings.member("cache_enabled")
    settings.leftovers()
    parameters.leftovers()
