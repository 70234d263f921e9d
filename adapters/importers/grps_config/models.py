"""The models of inference.yml, each as its entry below `models:`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import NO_BOUND, Imported, own_notes, printable
from tensorgate.adapters.importers.common.tree import Item
from tensorgate.adapters.importers.grps_config.model_location import find
from tensorgate.adapters.importers.grps_config.skeleton import ENTRY, MAPPING, class_name, class_text, module_name

_DEVICE: Final = re.compile(r"(?:cuda|gpu)(:[0-9]{1,3})?")
_KNOWN_TYPES: Final = ("torch", "tensorflow", "tensorrt", "customized")
_CUSTOMIZED: Final = (
    "customized inferers are classes for grps alone; with -o FILE a class to be written lies beside the YAML, and the "
    "model's entry in it"
)
_TO_WRITE: Final = "-> {path}: a class that is to be written: what the old one did is there as text alone"
_WHOLE: Final = "is ignored: the class gets each request by itself; write max_batch_size beside it once it takes rows"
_CONVERTER: Final = (
    "is refused: a customized converter is a class for grps alone; do its work with preprocess and postprocess, or in "
    "a python model before this one (backend: ensemble). The model itself is served, for gtensors and ndarray"
)
_STREAMS: Final = "CUDA streams of TensorRT; see instances"


@dataclass(frozen=True, slots=True)
class Named:
    """A model that was read, as grps' callers and dags say it, and as it is called here."""

    qualified: str
    imported: Imported


@dataclass(frozen=True, slots=True)
class SkeletonFolder:
    """What lies beside the YAML: inference.yml is in `conf`; classes to be written go into `programs`, a folder below
    that of the YAML, "" where nobody knows it, and their texts into `texts`.
    """

    conf: Path
    programs: str
    texts: dict[str, str] = field(default_factory=dict)


def read_models(tree: Item, beside: SkeletonFolder) -> list[Named]:
    """Every model, read or with what is wrong with it. Raises ValueError if there is none, or one without a name."""
    items = tree.member("models").items()
    if not items:
        raise tree.member("models").wrong("there are none")
    found: list[Named] = []
    for item in items:
        name, version = (item.mapping().member(key).text() for key in ("name", "version"))
        if not name or not version:
            raise item.wrong("a model needs name and version")
        qualified = f"{name}-{version}"
        if any(each.qualified == qualified for each in found):
            raise item.wrong(f"{qualified} stands there already")
        taken = any(each.imported.name == name for each in found)
        found.append(Named(qualified, _model(item, name, qualified if taken else name, beside)))
    return found


def _model(item: Item, name: str, ours: str, beside: SkeletonFolder) -> Imported:
    """One model; its notes are taken out of the file's."""
    before = len(item.file.notes)
    entry, wrong = None, ""
    try:
        entry = _entry(item, ours, beside)
        own = {"name": name} if ours != name else {}
        entry["grps"] = {"version": item.member("version").text()} | own | entry.get("grps", {})
        if own:
            item.member("name").note(f"-> {ours}, since {name} is another version; callers say what they did", "told")
    except ValueError as error:
        wrong = str(error)
    except OSError as error:
        wrong = str(item.member("inferer_path").wrong((error.strerror or str(error)).lower()))
    notes = item.file.notes[before:]
    del item.file.notes[before:]
    return Imported(printable(ours), entry, () if wrong else own_notes(notes, f"{item.key}."), wrong)


def _entry(item: Item, ours: str, beside: SkeletonFolder) -> dict[str, Any]:
    inferer = item.member("inferer_type").choice(_KNOWN_TYPES[0], *_KNOWN_TYPES[1:])
    path, inferer_name = item.member("inferer_path"), item.member("inferer_name")
    if inferer == "customized" and not path.text().endswith(".onnx"):
        return _to_be_written(item, ours, beside)
    place = find(inferer, path, beside.conf)
    path.note(f"-> path, backend: {place.entry['backend']} ({place.because})", "mapped")
    if place.remark:
        path.note(place.remark, "told")
    item.member("inferer_type").note(f"-> backend: {place.entry['backend']}", "mapped")
    if inferer != "customized":
        inferer_name.ignore("it names customized inferers alone")
    entry = place.entry | _device(item.member("device")) | _batching(item.member("batching").mapping())
    numbers = [each["name"] for each in entry.get("inputs", ()) if "shape" in each]
    if numbers and entry.pop("max_queue_delay_us", None) is not None:
        entry["max_batch_size"] = 0
        text = f"is not done: rows of several callers cannot share {', '.join(numbers)}, which forward takes as numbers"
        item.member("batching").note(text, "told")
    item.member("inp_device").ignore("inputs are copied to where the model runs")
    entry |= _arguments(item.member("inferer_args").mapping())
    _converter(item)
    item.leftovers()
    return entry


def _to_be_written(item: Item, ours: str, beside: SkeletonFolder) -> dict[str, Any]:
    """The entry of a customized model, whose class is a skeleton. Raises ValueError where there is no place for it."""
    inferer_name, path, arguments = (item.member(f"inferer_{part}") for part in ("name", "path", "args"))
    if not beside.programs:
        raise inferer_name.wrong(_CUSTOMIZED)
    converter = item.member("converter_name").text()
    place = f"{beside.programs}/{module_name(ours)}.py"
    beside.texts[place] = class_text(ours, inferer_name.text("Inferer"), converter)
    program = f"{place}:{class_name(inferer_name.text('Inferer'))}"
    inferer_name.note(_TO_WRITE.format(path=program), "told")
    item.member("inferer_type").note("-> backend: python", "mapped")
    batching = item.member("batching").mapping()
    if batching.member("type").choice("none", "dynamic") == "dynamic":
        batching.note(_WHOLE, "told")
    item.member("inp_device").ignore("inputs are copied to where the model runs")
    item.member("converter_type").choice("none", *_KNOWN_TYPES)
    given = _arguments(arguments.mapping())
    if path.given:
        path.note("-> parameters.inferer_path", "mapped")
        given = {"parameters": {"inferer_path": path.text(), **given.get("parameters", {})}}
    for part in ("converter_path", "converter_args"):
        if item.member(part).given:
            item.member(part).note(f"-> parameters.{part}", "mapped")
            given = {"parameters": {**given.get("parameters", {}), part: item.member(part).plain()}}
    item.leftovers()
    rest = {"backend": "python", "path": program, "max_batch_size": 0, "max_queue_size": NO_BOUND, "grps": MAPPING}
    return rest | _device(item.member("device")) | ENTRY | given


def _device(item: Item) -> dict[str, str]:
    text = item.text("original")
    match = _DEVICE.fullmatch(text)
    device = f"cuda{match[1] or ''}" if match else {"cpu": "cpu", "original": "auto"}.get(text)
    if device is None:
        raise item.wrong(f"found {text}, expected cpu, cuda, cuda:N, gpu, gpu:N or original")
    if item.given:
        item.note(f"-> device: {device}", "mapped")
    return {"device": device}


def _batching(item: Item) -> dict[str, int]:
    kind = item.member("type").choice("none", "dynamic")
    size, delay = item.member("max_batch_size"), item.member("batch_timeout_us")
    item.leftovers()
    if kind == "none":
        for each in (size, delay):
            each.ignore("the type of batching is none")
        return {"max_batch_size": 0, "max_queue_size": NO_BOUND}
    rows, delay_us = size.number(16, 1), delay.number(1000, 0)
    item.note(f"-> max_batch_size: {rows}, max_queue_delay_us: {delay_us}", "mapped")
    if delay.given:
        delay.note("is in microseconds, whatever the comment in the template says", "told")
    return {"max_batch_size": rows, "max_queue_delay_us": delay_us, "max_queue_size": NO_BOUND}


def _arguments(item: Item) -> dict[str, Any]:
    """What is no argument of grps' own inferers is handed to the model, as it was there."""
    operators, streams = item.member("customized_op_paths"), item.member("streams")
    if operators.given and operators.value != []:
        operators.note("is refused: libraries of operators are not loaded; export without them, or as ONNX", "refused")
    streams.ignore(_STREAMS)
    members = item.value if isinstance(item.value, dict) else {}
    rest = {name: each.plain() for name, each in members.items() if name not in item.asked and each.given}
    if rest:
        item.note("-> parameters", "mapped")
    return {"parameters": rest} if rest else {}


def _converter(item: Item) -> None:
    kind = item.member("converter_type").choice("none", *_KNOWN_TYPES)
    parts = [item.member(f"converter_{part}") for part in ("name", "path", "args")]
    if kind == "customized":
        item.member("converter_type").note(_CONVERTER, "refused")
        return
    item.member("converter_type").ignore("tensors are read and written by the gateway, for every model")
    for part in parts:
        part.ignore("it is for customized converters alone")
