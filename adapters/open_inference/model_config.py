"""JSON of GET /v2/models/{model}/config, Triton's model configuration extension: ModelView -> the ModelConfig message
in JSON.

What the gateway knows of a model says most of it. A model that came from Triton shows what its own configuration says,
key by key: that stands in the model's section `open_inference: {model_config: …}`. Dims leave the batch dimension out;
perf_analyzer reads several keys without asking whether they are there. Source: Triton's model_config.proto.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import orjson
from google.protobuf import json_format
from pydantic import ConfigDict, Field, field_validator

from tensorgate.adapters.open_inference.errors import JSON_HEADERS
from tensorgate.adapters.open_inference.request import ref_of
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.plain import plain
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import VERIFIED, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.questions import ModelMetadata
from tensorgate.gateway.contract.tensor import TensorSpec

_UNKNOWN_KEY: Final = re.compile(r'has no field named "([^"]*)" at "ModelConfig\.?([^"]*)"')
_PLATFORMS: Final[Mapping[str, tuple[str, str, str]]] = {
    "onnxruntime_onnx": ("onnxruntime_onnx", "onnxruntime", "model.onnx"),
    "python": ("", "python", "model.py"),
    "ensemble": ("ensemble", "", ""),
}
"""A view's platform -> Triton's platform and backend, and the file that it looks for."""
_CONTROLS: Final[Mapping[str, str]] = {
    "start": "CONTROL_SEQUENCE_START",
    "ready": "CONTROL_SEQUENCE_READY",
    "end": "CONTROL_SEQUENCE_END",
    "correlation_id": "CONTROL_SEQUENCE_CORRID",
}


class OpenInferenceModelOptions(Options):
    """What a model shows of itself to Open Inference clients."""

    model_config = ConfigDict(serialize_by_alias=True)

    triton_config: dict[str, Any] = Field(default_factory=dict, alias="model_config")
    """A ModelConfig as JSON, as in Triton's config.pbtxt: replaces, key by key, what the gateway would say."""

    @field_validator("triton_config")
    @classmethod
    def _is_a_model_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        _message(config)
        return config


def _message(config: Mapping[str, Any]) -> Any:
    """JSON form -> inference.ModelConfig. Raises ValueError, naming an unknown key."""
    try:
        return json_format.ParseDict(dict(config), message("inference.ModelConfig")())
    except json_format.ParseError as error:
        unknown = _UNKNOWN_KEY.search(str(error))
        if unknown is None:
            raise ValueError(str(error).split("\n", 1)[0]) from None
        where = f" in {unknown[2]}" if unknown[2] else ""
        raise ValueError(f'a ModelConfig has no key "{unknown[1]}"{where}') from None


def decode_config(call: Call, resolve: Resolve) -> ModelMetadata:
    return ModelMetadata(resolve(ref_of(call)))


def encode_config(view: ModelView, question: ModelMetadata) -> Reply:
    return Reply(orjson.dumps(triton_config(view)), 200, JSON_HEADERS)


def triton_config(view: ModelView) -> dict[str, Any]:
    """A view -> inference.ModelConfig in JSON: the message's own field names, empty fields included, every integer a
    number.
    """
    config = _message(_derived(view))
    options = view.mappings.get("open_inference")
    if options is not None and options.triton_config:
        _override(config, _message(options.triton_config))
    config.name = view.name
    _complete(config, view)
    return plain(config, defaults=True)


def _override(config: Any, own: Any) -> None:
    """Put the model's own keys in place of the derived ones. What it leaves open of a tensor is filled in."""
    for key in ("input", "output"):
        known = {tensor.name: tensor for tensor in getattr(config, key)}
        for tensor in getattr(own, key):
            if tensor.name in known:
                tensor.data_type = tensor.data_type or known[tensor.name].data_type
                if not tensor.dims:
                    tensor.dims.extend(known[tensor.name].dims)
    for field, _ in own.ListFields():
        config.ClearField(field.name)
    config.MergeFrom(own)


def _complete(config: Any, view: ModelView) -> None:
    """What Triton itself fills in where a configuration is silent."""
    if proof := view.configuration.get(VERIFIED):
        config.parameters["verified_sha256"].string_value = proof["sha256"]
        config.parameters["verified_by"].string_value = proof["by"]
    if config.platform == "ensemble":
        config.model_transaction_policy.decoupled = view.decoupled
        return
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        group.kind = group.kind or ("KIND_GPU" if view.devices[0].startswith("cuda") else "KIND_CPU")
    for memory in (config.optimization.input_pinned_memory, config.optimization.output_pinned_memory):
        memory.enable = True
    scheduler = config.WhichOneof("scheduling_choice")
    if scheduler == "dynamic_batching" and not config.dynamic_batching.preferred_batch_size:
        config.dynamic_batching.preferred_batch_size.append(view.max_batch_size)
    if scheduler == "sequence_batching" and config.sequence_batching.HasField("oldest"):
        oldest = config.sequence_batching.oldest
        if not oldest.preferred_batch_size and view.max_batch_size:
            oldest.preferred_batch_size.append(view.max_batch_size)


# ------------------------------------------------------------------------------------------ what the gateway knows


def _derived(view: ModelView) -> dict[str, Any]:
    said = view.configuration
    platform, backend, file = _PLATFORMS.get(view.platform, (view.platform, str(said.get("backend", "")), ""))
    batched = view.max_batch_size > 0
    labels = said.get("class_labels", {})
    config: dict[str, Any] = {
        "platform": platform,
        "backend": backend,
        "version_policy": _version_policy(said.get("versions", "latest")),
        "max_batch_size": view.max_batch_size,
        "input": [_tensor(spec, batched) | {"optional": spec.optional} for spec in view.inputs.values()],
        "output": [_tensor(spec, batched) | _label_file(labels.get(spec.name)) for spec in view.outputs.values()],
        "default_model_filename": file,
        "parameters": {key: {"string_value": _text(value)} for key, value in said.get("parameters", {}).items()},
        **_scheduler(view, said),
    }
    if view.decoupled:
        config["model_transaction_policy"] = {"decoupled": True}
    if said.get("response_cache"):
        config["response_cache"] = {"enable": True}
    if platform != "ensemble":
        config["optimization"] = {"priority": "PRIORITY_DEFAULT"}
        config["instance_group"] = list(_groups(view, said))
    return config


def _version_policy(policy: Any) -> dict[str, Any]:
    """As YAML says it -> as Triton does."""
    match policy:
        case "all":
            return {"all": {}}
        case {"latest": latest}:
            return {"latest": {"num_versions": latest}}
        case [*versions]:
            return {"specific": {"versions": versions}}
    return {"latest": {"num_versions": 1}}


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    """A tensor of any rank is described as a vector of any length, a number as a vector of one that is reshaped: the
    message has no words for either.
    """
    shape = (-1,) if spec.shape is None else spec.shape[1:] if batched else spec.shape
    reshape = {} if shape else {"reshape": {"shape": ()}}
    return {"name": spec.name, "data_type": _type_name(spec.datatype), "dims": shape or (1,), **reshape}


def _label_file(path: str | None) -> dict[str, str]:
    """Its name only: where it lies is nobody's business."""
    return {"label_filename": PurePosixPath(path).name} if path else {}


def _groups(view: ModelView, said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A group for all devices with as many copies as each other; `auto` leaves its kind open, and so its GPU."""
    copies = said.get("instances", 1)
    device = said.get("device", "")
    if device in ("cuda:*", "all"):
        device = view.devices
    elif isinstance(device, str):
        yield {"name": view.name, "count": copies, **_kind((device,))}
        return
    times = Counter(device)
    together: dict[tuple[int, bool], list[str]] = {}
    for name, count in times.items():
        together.setdefault((count, name == "cpu"), []).append(name)
    for number, ((count, _), names) in enumerate(together.items()):
        name = view.name if len(together) == 1 else f"{view.name}_{number}"
        yield {"name": name, "count": count * copies, **_kind(names)}


def _kind(devices: Sequence[str]) -> dict[str, Any]:
    """Devices that are all GPUs, or one that is none."""
    if devices[0].startswith("cuda"):
        return {"kind": "KIND_GPU", "gpus": [int(device.partition(":")[2] or 0) for device in devices]}
    return {"kind": "KIND_CPU"} if devices[0] == "cpu" else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _scheduler(view: ModelView, said: Mapping[str, Any]) -> dict[str, Any]:
    """The one that is in use, if there is more than a queue."""
    if view.platform == "ensemble":
        return {"ensemble_scheduling": {"step": [_step(step) for step in said.get("steps", ())]}}
    if said.get("sequences"):
        return {"sequence_batching": _sequence_batching(said["sequences"], view.max_batch_size > 0)}
    if view.max_batch_size and not view.decoupled and view.merges:
        return {"dynamic_batching": _dynamic_batching(view, said)}
    return {}


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    version = step.get("version")
    return {
        "model_name": step["model"],
        "model_version": -1 if version is None else version,
        "input_map": step.get("inputs", {}),
        "output_map": step.get("outputs", {}),
    }


def _dynamic_batching(view: ModelView, said: Mapping[str, Any]) -> dict[str, Any]:
    batching: dict[str, Any] = {
        "preferred_batch_size": said.get("preferred_batch_sizes") or [view.max_batch_size],
        "max_queue_delay_microseconds": said.get("max_queue_delay_us", 0),
        "default_queue_policy": _queue_policy(said.get("queue", {}), said.get("max_queue_size", 0)),
    }
    priorities = said.get("priorities")
    if priorities:
        batching["priority_levels"] = priorities["levels"]
        batching["default_priority_level"] = priorities["default"]
        batching["priority_queue_policy"] = {
            str(level): _queue_policy(policy, policy.get("max_queue_size") or said.get("max_queue_size", 0))
            for level, policy in priorities.get("queue_policies", {}).items()
        }
    return batching


def _queue_policy(queue: Mapping[str, Any], size: int) -> dict[str, Any]:
    return {
        "timeout_action": str(queue.get("timeout_action", "reject")).upper(),
        "default_timeout_microseconds": queue.get("timeout_us", 0),
        "allow_timeout_override": queue.get("allow_timeout_override", True),
        "max_queue_size": size,
    }


def _sequence_batching(sequences: Mapping[str, Any], batched: bool) -> dict[str, Any]:
    return {
        "max_sequence_idle_microseconds": sequences.get("max_idle_us", 1_000_000),
        "control_input": [
            {"name": control["input"], "control": [_control(control)]} for control in sequences.get("controls", ())
        ],
        "state": [
            {
                "input_name": state["input"],
                "output_name": state["output"],
                "data_type": _type_name(state["datatype"]),
                "dims": state["shape"][1:] if batched else state["shape"],
            }
            for state in sequences.get("states", ())
        ],
        "direct": {},
    }


def _control(control: Mapping[str, Any]) -> dict[str, Any]:
    """What no and yes are called stands in the field of the input's type, which the message has for three."""
    said: dict[str, Any] = {"kind": _CONTROLS[control["kind"]]}
    datatype = control.get("datatype", "INT32")
    no, yes = control.get("values", (0, 1))
    if control["kind"] == "correlation_id" or datatype not in ("INT32", "FP32", "BOOL"):
        return {**said, "data_type": _type_name(datatype)}
    kind = {"INT32": int, "FP32": float, "BOOL": bool}[datatype]
    return {**said, f"{datatype.lower()}_false_true": [kind(no), kind(yes)]}


def _type_name(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
