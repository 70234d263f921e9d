"""ModelServerConfig -> the models, each as its entry below `models:`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tensorgate.adapters.importers.common import Imported, Source, flow, own_notes, parse_text, printable, versions_of
from tensorgate.adapters.importers.common.key_locations import read_key_locations
from tensorgate.adapters.importers.tf_serving_config.batching import BATCHES
from tensorgate.adapters.importers.tf_serving_config.model_location import ServableLocation, find
from tensorgate.adapters.importers.tf_serving_config.rows import first_whole_tensor

KIND: Final = "tensorflow.serving.ModelServerConfig"
PLATFORM: Final = "tensorflow"

_NAME: Final = re.compile(r"[^/\x00-\x1f\x7f-\x9f]+")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*://")
_TENSORFLOW: Final = 1  # of the deprecated enumeration ModelType

Extras = Callable[[str], Mapping[str, Any]]
"""The name of a backend -> the keys that the command line gives its models."""


def parse_models(text: str, file: str) -> Source:
    """The text of a models.config. Raises ValueError."""
    custom = read_key_locations(text).of("custom_model_config")
    if custom is not None:  # of a type that only its server knows, so that nobody else can read it
        remark = "is refused: it is for servers built with sources of their own; list the models in model_config_list"
        raise ValueError(f"{file}:{custom.line}:{custom.column}: custom_model_config {remark}")
    try:
        return parse_text(text, KIND, file, lenient=True)
    except ValueError as error:
        raise ValueError(f"{error} (Error parsing text-format {KIND})") from None  # the original's words for it


def models(source: Source, extras: Extras) -> list[Imported]:
    """Every model, read or with what is wrong with it. Raises ValueError if the file lists none."""
    config = source.config
    if not config.HasField("model_config_list"):
        raise ValueError(f"{source.file}: no model_config_list; expected model_config_list {{ config {{ name: … }} }}")
    taken = set[str]()
    return [_model(source, index, taken, extras) for index in range(len(config.model_config_list.config))]


def _model(source: Source, index: int, taken: set[str], extras: Extras) -> Imported:
    """One model; its notes are taken out of the file's."""
    key = f"model_config_list[0].config[{index}]"
    model = source.config.model_config_list.config[index]
    entry, wrong = None, ""
    try:
        _check(source, key, model, taken)
        entry = _entry(source, key, model, extras)
    except ValueError as error:
        wrong = str(error)
    except OSError as error:
        wrong = str(source.wrong(f"{key}.base_path", f"{model.base_path}: {(error.strerror or str(error)).lower()}"))
    prefix = f"{key}.".replace("[0]", "")
    own = [note for note in source.notes if note.key.startswith(prefix)]
    source.notes = [note for note in source.notes if not note.key.startswith(prefix)]
    return Imported(
        printable(model.name) or f"model {index + 1}", entry, () if wrong else own_notes(own, prefix), wrong
    )


def _check(source: Source, key: str, model: Any, taken: set[str]) -> None:
    """What TensorFlow Serving would refuse, in its words. Raises ValueError."""
    name, platform = model.name, model.model_platform
    if not name:
        raise source.wrong(key, "a model needs a name")
    if not _NAME.fullmatch(name):
        raise source.wrong(f"{key}.name", f'"{name}": expected a name without / and control characters; rename it')
    if name in taken:
        raise source.wrong(f"{key}.name", f"Illegal to list model {name} multiple times in config list; rename one")
    taken.add(name)
    if not _ABSOLUTE.match(model.base_path):
        text = f"Expected model {name} to have an absolute path or URI; got base_path()={model.base_path}"
        text += "; begin it with /"
        raise source.wrong(f"{key}.base_path" if model.base_path else key, text)
    for wrong, both in ((not platform and not model.model_type, "neither"), (platform and model.model_type, "both")):
        if wrong:
            text = f"Illegal setting {both} ModelServerConfig::model_type (deprecated) "
            text += f"{'nor' if both == 'neither' else 'and'} ModelServerConfig::model_platform, model name is {name}"
            text += f'; write model_platform: "{PLATFORM}" alone'
            raise source.wrong(f"{key}.model_platform" if platform else key, text)
    if model.model_type not in (0, _TENSORFLOW):
        text = f"ModelServerConfig::model_type choice {model.model_type} not supported, model name is {name}"
        raise source.wrong(f"{key}.model_type", f'{text}; write model_platform: "{PLATFORM}"')
    if platform not in ("", PLATFORM):
        text = f"Model {name} requests unsupported platform {platform}; write {PLATFORM}, also of an ONNX model"
        raise source.wrong(f"{key}.model_platform", text)


def _entry(source: Source, key: str, model: Any, extras: Extras) -> dict[str, Any]:
    try:
        place = find(model.base_path)
    except ValueError as error:
        raise source.wrong(f"{key}.base_path", str(error)) from None
    entry: dict[str, Any] = {"backend": place.backend, "path": str(place.path)}
    _note_place(source, key, place)
    entry["versions"] = _versions(source, key, model.model_version_policy)
    labels = dict(_labels(source, key, model, entry["versions"]))
    if model.HasField("logging_config"):
        text = "is ignored: requests are not logged; tracing.file writes the times of single requests"
        source.note(f"{key}.logging_config", text)
    entry |= ({"labels": labels} if labels else {}) | dict(extras(place.backend))
    whole = first_whole_tensor(place.file) if place.file and entry["max_batch_size"] else ""
    if whole:
        entry = {key: value for key, value in entry.items() if key not in BATCHES} | {"max_batch_size": 0}
        text = f"is not batched: {whole} has no dimension of rows that varies; each request runs by itself"
        source.note(f"{key}.base_path", text, fate="told")
    return entry


def _note_place(source: Source, key: str, place: ServableLocation) -> None:
    source.note(f"{key}.base_path", f"-> path, backend: {place.backend} ({place.because})", fate="mapped")
    if place.remark:
        source.note(f"{key}.base_path", place.remark, fate="told")


def _versions(source: Source, key: str, policy: Any) -> Any:
    """latest, all, a list, or {latest: n}. Raises ValueError."""
    text = "expected versions, each at least 0, as in specific { versions: 1 }"
    versions = versions_of(policy, 0, lambda field: source.wrong(f"{key}.model_version_policy.{field}", text))
    if policy.WhichOneof("policy_choice") is None:
        return versions
    source.note(f"{key}.model_version_policy", f"-> versions: {flow(versions)}", fate="mapped")
    return versions


def _labels(source: Source, key: str, model: Any, versions: Any) -> Iterator[tuple[str, int]]:
    """Those that can be had: a label leads to a version that is served."""
    for label, version in sorted(model.version_labels.items()):
        named = isinstance(versions, list)
        if version < 0 or (named and version not in versions):
            served = f"the versions served are {versions}" if named else "versions start from 0"
            text = f"is refused: there is no version {version}; {served}"
            source.note(f"{key}.version_labels", text, at=label, fate="refused")
        else:
            source.note(f"{key}.version_labels", f"-> labels.{printable(label)}: {version}", at=label, fate="mapped")
            yield label, version
