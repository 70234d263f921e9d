"""A ModelConfig and what lies in its folder -> the model's entry below `models:`.

Names of files become absolute paths. Keys that only Triton knows are told in notes; what cannot be served as it is
meant raises ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import Source
from tensorgate.adapters.importers.triton_repository import kind as kinds
from tensorgate.adapters.importers.triton_repository.backend_options import (
    TENSORFLOW_PARAMETERS,
    TORCH_PARAMETERS,
    onnx_options,
)
from tensorgate.adapters.importers.triton_repository.ignored import note_ignored
from tensorgate.adapters.importers.triton_repository.instances import placement, versions
from tensorgate.adapters.importers.triton_repository.kind import Kind, kind_of
from tensorgate.adapters.importers.triton_repository.scheduling import scheduling, steps
from tensorgate.adapters.importers.triton_repository.tensors import class_labels, inside, reshapes, tensors
from tensorgate.adapters.importers.triton_repository.text import Reading
from tensorgate.adapters.importers.triton_repository.warmup import warmup
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.plain import plain

_RAGGED: Final = (
    "Triton joins ragged inputs end to end and tells the model by further tensors where each request begins; here "
    "every request keeps its rows. Give the model rows that are filled up to one length (see ragged), or serve it by "
    "Triton behind backend: remote"
)
_PYTHON_PARAMETERS: Final = {
    "EXECUTION_ENV_PATH": "is ignored: the model runs in the gateway's own interpreter",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "is ignored: the model's device says where its tensors are",
}


def translate(source: Source, name: str, folder: Path, files: Iterable[str]) -> Reading:
    """`name` is the model's, `files` are the names in all version folders.

    Raises ValueError, naming file, line and key where it can.
    """
    config = source.config
    if config.name and config.name != name:
        raise source.wrong("name", f'"{config.name}" is not the name of its folder, {name}')
    config.name = name
    if config.max_batch_size < 0:
        raise source.wrong("max_batch_size", "must be at least 0")
    for key in ("batch_input", "batch_output"):
        if getattr(config, key):
            raise source.wrong(key, f"is not supported: {_RAGGED}")
    kind = kind_of(source, files)
    note_ignored(source)
    entry = _BY_KIND[kind](source, folder, kind) | warmup(source, folder)
    labels = class_labels(source, folder)
    if labels:
        entry["class_labels"] = labels
    if config.response_cache.enable:
        entry["response_cache"] = True
    if config.parameters:
        entry["parameters"] = {key: config.parameters[key].string_value for key in sorted(config.parameters)}
    entry["open_inference"] = {"model_config": plain(config, defaults=False)}
    return Reading(entry, tuple(sorted(source.notes, key=lambda note: note.line)))


def _onnx(source: Source, folder: Path, kind: Kind) -> dict[str, Any]:
    """What is not declared is completed from the model's file, when that is loaded."""
    entry = _from_file(source, folder, kind, onnx_options, "an ONNX model")
    if _is_completed(source):
        entry["scalars_as_vectors"] = True
    return entry | reshapes(source)


def _tensorflow(source: Source, folder: Path, kind: Kind) -> dict[str, Any]:
    """What is not declared is completed from the model's default signature, when that is loaded."""
    return _from_file(source, folder, kind, TENSORFLOW_PARAMETERS.options, "a SavedModel") | reshapes(source)


def _torch(source: Source, folder: Path, kind: Kind) -> dict[str, Any]:
    """What is not declared is completed from an exported program, when that is loaded; TorchScript does not tell it."""
    return _from_file(source, folder, kind, TORCH_PARAMETERS.options, "a pytorch model") | _beyond_reshapes(source)


def _from_file(
    source: Source, folder: Path, kind: Kind, options: Callable[[Source], dict[str, Any]], what: str
) -> dict[str, Any]:
    """What models have in common that one file computes."""
    config, completed = source.config, _is_completed(source)
    _refuse_ragged(source)
    if config.model_transaction_policy.decoupled:
        source.note("model_transaction_policy.decoupled", f"is ignored: {what} answers once")
    return (
        _versioned(source, folder, kind)
        | options(source)
        | {"max_batch_size": config.max_batch_size or ("auto" if completed else 0)}
        | scheduling(source, folder, completed=completed)
        | _declared(source)
    )


def _is_completed(source: Source) -> bool:
    return not (source.config.input and source.config.output)


def _beyond_reshapes(source: Source) -> dict[str, Any]:
    """The steps of reshapes, and what the model itself takes and gives at their other end."""
    steps = reshapes(source)
    rows = (-1,) if source.config.max_batch_size > 0 else ()
    for key, option, step in (("input", "model_inputs", "preprocess"), ("output", "model_outputs", "postprocess")):
        if step in steps:
            entries = tensors(source, key, rows)
            for entry, tensor in zip(entries, getattr(source.config, key), strict=True):
                if tensor.HasField("reshape"):
                    entry["shape"] = [*rows, *tensor.reshape.shape]
            steps[option] = entries
    return steps


def _python(source: Source, folder: Path, kind: Kind) -> dict[str, Any]:
    """The model gets its configuration whole, and may complete it; so that says its inputs and outputs, too."""
    config = source.config
    for key in ("input", "output"):
        for index, tensor in enumerate(getattr(config, key)):
            if tensor.HasField("reshape"):
                raise source.wrong(f"{key}[{index}].reshape", "is not supported for a python model")
    for name in sorted(_PYTHON_PARAMETERS.keys() & set(config.parameters)):
        source.note("parameters", _PYTHON_PARAMETERS[name], at=name)
    _declared(source)  # for its errors, with their lines
    entry = _versioned(source, folder, kind) | {"decoupled": config.model_transaction_policy.decoupled}
    entry |= {"max_batch_size": config.max_batch_size} | scheduling(source, folder, completed=True)
    return entry | {"triton_config": plain(_completed(config, kind), defaults=True)}


def _ensemble(source: Source, folder: Path, kind: Kind) -> dict[str, Any]:
    config = source.config
    for key in ("input", "output"):
        if not getattr(config, key):
            raise source.wrong("ensemble_scheduling", f"an ensemble needs its {key}s declared")
    if reshapes(source):
        raise source.wrong("ensemble_scheduling", "an ensemble cannot have a reshape")
    entry: dict[str, Any] = {"backend": kind.name, "max_batch_size": config.max_batch_size}
    if config.model_transaction_policy.decoupled:
        entry["decoupled"] = True
    versions = _ensemble_versions(source, folder)
    if versions and versions != [1]:
        entry["versions"] = versions
    return entry | _declared(source) | {"steps": steps(source)}


def _ensemble_versions(source: Source, folder: Path) -> list[int]:
    """The numbers of its empty folders that the policy chooses: all of them are the same ensemble."""
    policy = source.config.version_policy
    found = sorted(int(entry.name) for entry in folder.iterdir() if re.fullmatch(r"[0-9]{1,18}", entry.name))
    if policy.WhichOneof("policy_choice") == "specific":
        return [version for version in found if version in policy.specific.versions]
    if policy.WhichOneof("policy_choice") == "all":
        return found
    return found[-(policy.latest.num_versions or 1) :]


_BY_KIND: Final = {
    kinds.ONNX: _onnx,
    kinds.PYTHON: _python,
    kinds.TENSORFLOW: _tensorflow,
    kinds.TORCH: _torch,
    kinds.ENSEMBLE: _ensemble,
}


def _refuse_ragged(source: Source) -> None:
    """A model of these backends would get one row of all requests' elements, in a dimension less than is declared."""
    for index, tensor in enumerate(source.config.input):
        if tensor.allow_ragged_batch and source.config.max_batch_size:
            raise source.wrong(f"input[{index}].allow_ragged_batch", f"is not supported: {_RAGGED}")


def _versioned(source: Source, folder: Path, kind: Kind) -> dict[str, Any]:
    entry: dict[str, Any] = {"backend": kind.name, "path": str(folder), "versions": versions(source)}
    file = source.config.default_model_filename
    if file and inside(source, "default_model_filename", file) != kind.file:
        entry[kind.option] = file
    return entry | placement(source, "auto" if kind is kinds.PYTHON else "all")  # Python models are on the CPU


def _declared(source: Source) -> dict[str, Any]:
    rows = (-1,) if source.config.max_batch_size > 0 else ()
    found = {f"{key}s": tensors(source, key, rows) for key in ("input", "output")}
    return {key: entries for key, entries in found.items() if entries}


def _completed(config: Any, kind: Kind) -> Any:
    """A copy with what Triton adds before it shows a model its configuration."""
    whole = message("inference.ModelConfig")()
    whole.CopyFrom(config)
    whole.backend = "python"
    whole.default_model_filename = whole.default_model_filename or kind.file
    if not whole.version_policy.WhichOneof("policy_choice"):
        whole.version_policy.latest.num_versions = 1
    if not whole.instance_group:
        whole.instance_group.add(name=whole.name)
    for index, group in enumerate(whole.instance_group):
        group.name = group.name or f"{whole.name}_{index}"
        group.count = group.count or 1
    return whole
