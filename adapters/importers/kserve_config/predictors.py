"""One predictor -> its models, each as an entry below `models:`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import NO_BOUND
from tensorgate.adapters.importers.common.location import local_path
from tensorgate.adapters.importers.common.tabular import TabularModel, onnx_beside, onnx_entry, tabular_entry
from tensorgate.adapters.importers.common.tree import Item
from tensorgate.adapters.importers.tf_serving_config.model_location import find
from tensorgate.adapters.importers.triton_repository import model_folders, read_model
from tensorgate.gateway.contract.extras import install_command

CLAIMS: Final = Path("/mnt/pvc")
"""Where volumes are taken to be mounted, each below its claim's name."""
FORMATS: Final = (
    "sklearn", "xgboost", "lightgbm", "tensorflow", "onnx", "triton", "pytorch", "huggingface", "pmml", "paddle",
)  # fmt: skip
"""The keys of predictors that are older than `model`."""
_GPUS: Final = "nvidia.com/gpu"
_REMEDIES: Final = {
    "pytorch": "an archive of TorchServe is not run; put model.pt (TorchScript) or model.onnx into the folder",
    "huggingface": "let the vLLM or TGI that serves it go on, behind backend: remote, or export it to ONNX",
    "pmml": "convert it to ONNX, and put model.onnx into the folder",
    "paddle": "convert it with paddle2onnx, and put model.onnx into the folder",
    "mlflow": "save its flavour's model as ONNX into the folder",
    "catboost": "save it as ONNX, model.save_model('model.onnx', format='onnx'), into the folder",
}
_STATEFUL: Final = "a storage's credentials stay in the cluster; copy the model here and write storageUri: file:///DIR"


@dataclass(slots=True)
class KserveImport:
    """The folder beside the YAML that gets the classes of models, whether these may load programs, and whether any
    model needs them. `threads` and `dialects` are what all predictors want together; `grpc`: whether one is called so.
    """

    programs: str
    trusted: bool
    is_tabular: bool = False
    threads: float = 0
    dialects: set[str] = field(default_factory=set)
    grpc: bool = False


@dataclass(frozen=True, slots=True)
class _Stored:
    """A model of a format, at its storageUri, which is on this machine; `name` is its service's."""

    model: Item
    kind: str
    uri: Item
    path: Path
    name: str


Entries = dict[str, dict[str, Any]]
"""The name of a model -> its entry."""


def read_predictor(predictor: Item, name: str, beside: KserveImport) -> Entries:
    """The models of one predictor; mostly one, named like the service. Raises ValueError with a remedy, or OSError."""
    if predictor.member("containers").given:
        text = "a container of your own is not run here; let it go on behind backend: remote, or write a python model"
        raise predictor.member("containers").wrong(text)
    model = predictor.member("model").mapping()
    kind = model.member("modelFormat").mapping().member("name").text().lower()
    if not model.given:
        kind = next((each for each in FORMATS if predictor.member(each).given), "")
        model = predictor.member(kind or "model").mapping()
    if not kind:
        raise predictor.wrong(f"expected model.modelFormat.name, or one of {', '.join(FORMATS)}")
    _protocol(model.member("protocolVersion"), kind, beside)
    entries = _located(model, kind, name, beside)
    common = _resources(model.member("resources").mapping(), beside) | _batcher(predictor.member("batcher").mapping())
    _ignored(model)
    return {
        key: {"max_batch_size": 0} | entry | common | {"max_queue_size": NO_BOUND} for key, entry in entries.items()
    }


def _protocol(item: Item, kind: str, beside: KserveImport) -> None:
    """v1 is TensorFlow Serving's protocol, v2 Open Inference."""
    version = item.text("v2" if kind == "triton" else "v1")
    if version not in ("v1", "v2", "grpc-v1", "grpc-v2"):
        raise item.wrong(f"found {version}, expected v1, v2, grpc-v1 or grpc-v2")
    beside.dialects.add("tf_serving" if version.endswith("v1") else "open_inference")
    beside.grpc |= version.startswith("grpc")
    if item.given:
        item.note("-> listen", "mapped")


def _located(model: Item, kind: str, name: str, beside: KserveImport) -> Entries:
    uri = _uri(model)
    try:
        path = _path(uri)
    except ValueError as error:
        raise uri.wrong(str(error)) from None
    onnx = onnx_beside(path)
    if onnx is not None and kind != "triton":
        uri.note(f"-> path, backend: onnx ({onnx.name})", "mapped")
        return {name: onnx_entry(onnx)}
    read = _READERS.get(kind)
    if read is None:
        remedy = _REMEDIES.get(kind, "put model.onnx into the folder, or write a python model")
        raise model.wrong(f"the format {kind} is not run here: {remedy}")
    try:
        return read(_Stored(model, kind, uri, path, name), beside)
    except ValueError as error:
        raise uri.wrong(str(error)) from None


def _uri(model: Item) -> Item:
    """Raises ValueError for a model whose place is not named."""
    several = model.member("storageUris").items()
    uri = several[0].mapping().member("uri") if several else model.member("storageUri")
    if model.member("storage").given and not uri.given:
        raise model.member("storage").wrong(_STATEFUL)
    if not uri.given:
        raise model.wrong("there is no storageUri")
    return uri


def _path(uri: Item) -> Path:
    """A claim's place is where it is taken to be mounted. Raises ValueError with a remedy."""
    text = uri.text()
    if text.startswith("pvc://"):
        claim, _, inner = text.removeprefix("pvc://").partition("/")
        uri.note(f"is taken to be at {CLAIMS / claim}: mount the claim {claim} there, or correct the path", "told")
        return CLAIMS / claim / inner
    return local_path(text)


def _tabular(stored: _Stored, beside: KserveImport) -> Entries:
    v2 = stored.model.member("protocolVersion").text("v1").endswith("v2")
    inputs = [{"name": "input-0", "datatype": "FP64"}]
    outputs = [{"name": "predict", "datatype": "FP64"}]
    made = TabularModel(stored.kind, inputs, outputs, beside.programs, beside.trusted, column=v2)
    entry, remark = tabular_entry(made, stored.path)
    beside.is_tabular = True
    stored.uri.note(f"-> backend: python; {remark}", "told")
    stored.uri.note("tells no tensors: input-0 FP64 and predict FP64 are guesses; correct them", "told")
    return {stored.name: entry}


def _tensorflow(stored: _Stored, beside: KserveImport) -> Entries:
    place = find(str(stored.path))
    stored.uri.note(f"-> path, backend: {place.backend} ({place.because})", "mapped")
    if place.remark:
        stored.uri.note(place.remark, "told")
    return {stored.name: {"backend": place.backend, "path": str(place.path), "versions": "latest"}}


def _onnx(stored: _Stored, beside: KserveImport) -> Entries:
    stored.uri.note("is not on this machine, or has no model.onnx: check path and file", "told")
    return {stored.name: onnx_entry(stored.path if stored.path.suffix == ".onnx" else stored.path / "model.onnx")}


def _torch(stored: _Stored, beside: KserveImport) -> Entries:
    file = next((each for each in ("model.pt2", "model.pt") if (stored.path / each).is_file()), None)
    if file is None:
        raise ValueError(f"the format pytorch: {_REMEDIES['pytorch']}")
    text = f"-> path, backend: torch; TorchScript needs inputs and outputs declared; {install_command('torch')}"
    stored.uri.note(text, "told")
    return {stored.name: {"backend": "torch", "path": str(stored.path), "file": file, "versions": "none"}}


def _triton(stored: _Stored, beside: KserveImport) -> Entries:
    if not stored.path.is_dir():
        raise ValueError(f"{stored.path} is not on this machine; copy or mount the repository here, and import again")
    entries: Entries = {}
    for each, folder in model_folders(stored.path).items():
        reading = read_model(folder)
        entries[each] = dict(reading.entry)
        for note in reading.notes:
            stored.uri.note(f"{each}: {note}", "told")
    if not entries:
        raise ValueError(f"{stored.path} has no models")
    stored.uri.note("-> the models of the repository, by their own names", "mapped")
    return entries


_READERS: Final[Mapping[str, Callable[[_Stored, KserveImport], Entries]]] = {
    "sklearn": _tabular,
    "xgboost": _tabular,
    "lightgbm": _tabular,
    "tensorflow": _tensorflow,
    "onnx": _onnx,
    "pytorch": _torch,
    "triton": _triton,
}


def _resources(resources: Item, beside: KserveImport) -> dict[str, Any]:
    """A container's limits: processors count for all models together, a GPU says where the model runs."""
    limits, requests = resources.member("limits").mapping(), resources.member("requests").mapping()
    cpu = limits.member("cpu") if limits.member("cpu").given else requests.member("cpu")
    if cpu.given:
        text = cpu.text()
        try:
            beside.threads += float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
        except ValueError:
            raise cpu.wrong(f'found {text}, expected processors, as in "2" or 500m') from None
        cpu.note("-> cpu.threads, of all models together", "mapped")
    for each in (limits, requests):
        each.member("memory").ignore("the container that this server runs in has a limit; see process: own")
    gpus = limits.member(_GPUS) if limits.member(_GPUS).given else requests.member(_GPUS)
    if not gpus.given:
        return {}
    device = "cuda" if gpus.number(1, 0) == 1 else "all" if gpus.number(1, 0) else "cpu"
    gpus.note(f"-> device: {device}", "mapped")
    return {"device": device}


def _batcher(batcher: Item) -> dict[str, Any]:
    """KServe's batcher is a container beside the model, of up to 32 rows for up to 5 s unless it says otherwise."""
    if not batcher.given:
        return {}
    rows, wait = batcher.member("maxBatchSize").number(32, 1), batcher.member("maxLatency").number(5000, 0)
    batcher.member("timeout").ignore("callers wait as long as they like; routes have timeout_ms")
    batcher.leftovers()
    batcher.note(f"-> max_batch_size: {rows}, max_queue_delay_us", "mapped")
    return {"max_batch_size": rows, "max_queue_delay_us": wait * 1000}


def _ignored(model: Item) -> None:
    arguments = model.member("args")
    if arguments.given:
        kind = model.member("modelFormat").member("name").text() or model.key.rpartition(".")[2]
        verb = {"tensorflow": "import tf-serving -- ", "triton": "import triton --from-command-line "}.get(kind)
        text = f"see what becomes of them: tensorgate {verb}" if verb else "they are the old program's"
        arguments.note(f"is ignored: {text}", "told")
    for name in ("runtime", "runtimeVersion", "image", "imagePullPolicy", "name", "command", "workingDir"):
        model.member(name).ignore("the backend runs the model")
    for name in ("env", "envFrom", "ports", "volumeMounts", "securityContext", "livenessProbe", "readinessProbe"):
        model.member(name).ignore("it is the container's; give it to that of this server")
    model.member("startupProbe").ignore("it is the container's; give it to that of this server")
    for name in ("modelFormat", "storage"):
        model.member(name)
    model.leftovers()
