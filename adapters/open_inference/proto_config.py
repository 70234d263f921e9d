"""A model's configuration as Triton's clients read it: the ModelConfig message, made of what the gateway knows.

Dims leave the batch dimension out. Source: Triton's model_config.proto; what perf_analyzer and Triton's own examples
read is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from adapters.pb import enum, message
from gateway.canonical import BYTES, TensorSpec
from gateway.ports import ModelView

_CONFIG: Final = message("inference.ModelConfig")
_DATATYPES: Final = enum("inference.DataType").values_by_name
_BACKENDS: Final[Mapping[str, tuple[str, str]]] = {
    "onnx": ("onnxruntime", "model.onnx"),
    "python": ("python", "model.py"),
}
"""The gateway's name of a backend -> Triton's, and the file that it looks for."""


def model_config(view: ModelView) -> Any:
    """A view -> inference.ModelConfig."""
    written = view.configuration
    backend, file = _BACKENDS.get(written.get("backend", ""), (written.get("backend", ""), ""))
    config = _CONFIG(
        name=view.name,
        platform=view.platform,
        backend=backend,
        max_batch_size=view.max_batch_size,
        input=[_tensor(spec, view) | {"optional": spec.optional} for spec in view.inputs.values()],
        output=[_tensor(spec, view) | _labels(spec, written) for spec in view.outputs.values()],
        default_model_filename=file,
        version_policy=_version_policy(written.get("versions", "latest")),
        instance_group=[{"name": f"{view.name}_0", "count": written.get("instances", 1), **_kind(written)}],
        parameters={key: {"string_value": _text(value)} for key, value in written.get("parameters", {}).items()},
    )
    if view.max_batch_size > 1:
        batching = config.dynamic_batching
        batching.preferred_batch_size.append(view.max_batch_size)
        batching.max_queue_delay_microseconds = written.get("max_queue_delay_us", 0)
        batching.default_queue_policy.max_queue_size = written.get("max_queue_size", 0)
    if view.decoupled:
        config.model_transaction_policy.decoupled = True
    return config


def _tensor(spec: TensorSpec, view: ModelView) -> dict[str, Any]:
    """A tensor of any rank is described as a vector of any length: the protocol has no word for it."""
    shape = (-1,) if spec.shape is None else spec.shape
    datatype = "STRING" if spec.dtype == BYTES else spec.datatype
    dims = shape[1:] if view.max_batch_size and len(shape) > 1 else shape
    return {"name": spec.name, "data_type": _DATATYPES[f"TYPE_{datatype}"].number, "dims": dims}


def _labels(spec: TensorSpec, written: Mapping[str, Any]) -> dict[str, str]:
    file = written.get("class_labels", {}).get(spec.name)
    return {"label_filename": PurePath(file).name} if file else {}


def _version_policy(versions: Any) -> dict[str, Any]:
    """latest, all, [1, 3] or {latest: 2}"""
    if versions == "all":
        return {"all": {}}
    if isinstance(versions, (list, tuple)):
        return {"specific": {"versions": versions}}
    return {"latest": {"num_versions": versions["latest"] if isinstance(versions, Mapping) else 1}}


def _kind(written: Mapping[str, Any]) -> dict[str, Any]:
    kind, _, index = str(written.get("device", "auto")).partition(":")
    gpus = [int(index)] if index else []
    return {"kind": {"cpu": "KIND_CPU", "cuda": "KIND_GPU"}.get(kind, "KIND_AUTO"), "gpus": gpus}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
