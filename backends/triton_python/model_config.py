"""A model's configuration in Triton's field names, as JSON data: what models read, and may complete themselves.

Source: Triton's model configuration; the documentation of the Python backend, auto_complete_config.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tensorgate.backends.triton_python.datatypes import config_name, dtype_of_config
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.tensor import TensorSpec

_TENSOR_KEYS: Final = {"name", "data_type", "dims"}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "platform": "",
    "backend": "python",
    "max_batch_size": 0,
    "input": [],
    "output": [],
    "instance_group": [],
    "default_model_filename": "model.py",
    "cc_model_filenames": {},
    "metric_tags": {},
    "parameters": {},
    "model_warmup": [],
}


class TritonModelConfig:
    """What `auto_complete_config` gets and returns. What is configured already stays as it is."""

    def __init__(self, model_config: Mapping[str, Any]) -> None:
        self._model_config = copy.deepcopy(dict(model_config))

    def as_dict(self) -> dict[str, Any]:
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raises ValueError if more is configured than the model can take."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto_complete_config function for model "
                f"'{self._model_config.get('name', '')}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Raises ValueError if another scheduler is configured."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(f"Configuration specified scheduling_choice as '{other}', not dynamic_batching")
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """{"decoupled": bool}. Raises ValueError for anything else, and if the contrary is configured."""
        if set(transaction_policy_dict) != {"decoupled"}:
            raise ValueError("model transaction policy only has the property 'decoupled'")
        wanted = bool(transaction_policy_dict["decoupled"])
        policy = self._model_config.setdefault("model_transaction_policy", {"decoupled": wanted})
        if policy.get("decoupled", False) != wanted:
            raise ValueError("trying to change decoupled property in auto_complete_config, which is already set")

    def add_input(self, input: Mapping[str, Any]) -> None:
        """{"name", "data_type", "dims"} and perhaps "optional". Raises ValueError for what contradicts."""
        self._add("input", input, {"optional"})

    def add_output(self, output: Mapping[str, Any]) -> None:
        """{"name", "data_type", "dims"}. Raises ValueError for what contradicts."""
        self._add("output", output, set())

    def _add(self, kind: str, tensor: Mapping[str, Any], more: set[str]) -> None:
        missing, extra = _TENSOR_KEYS - tensor.keys(), tensor.keys() - _TENSOR_KEYS - more
        if missing or extra:
            wrong = f"lacks {sorted(missing)}" if missing else f"has unknown keys {sorted(extra)}"
            raise ValueError(f"an {kind} of auto_complete_config {wrong}")
        for known in self._model_config.setdefault(kind, []):
            if known["name"] == tensor["name"]:
                if known["data_type"] != tensor["data_type"] or list(known["dims"]) != list(tensor["dims"]):
                    raise ValueError(
                        f"{kind} '{tensor['name']}' is {known['data_type']} {known['dims']} in the configuration, "
                        f"and {tensor['data_type']} {tensor['dims']} in auto_complete_config"
                    )
                return
        self._model_config[kind].append({**tensor, "dims": list(tensor["dims"])})


def initial_config(source: ModelSource, given: Mapping[str, Any], *, decoupled: bool) -> dict[str, Any]:
    """The configuration before the model completes it: the given one with Triton's defaults, or what the YAML says."""
    config = copy.deepcopy(dict(given)) if given else _from_yaml(source)
    config = {"name": source.name, **copy.deepcopy(dict(_DEFAULTS)), **config}
    if decoupled:
        config["model_transaction_policy"] = {"decoupled": True}
    for tensor in config["input"]:
        tensor.setdefault("optional", False)
    return config


def _from_yaml(source: ModelSource) -> dict[str, Any]:
    rows = source.max_batch_size if isinstance(source.max_batch_size, int) else 0  # the model may say it later
    batched = rows > 0
    config: dict[str, Any] = {
        "max_batch_size": rows,
        "input": [{**_tensor(spec, batched), "optional": spec.optional} for spec in source.inputs],
        "output": [_tensor(spec, batched) for spec in source.outputs],
        "parameters": {key: {"string_value": _text(value)} for key, value in source.parameters.items()},
    }
    if batched:
        config["dynamic_batching"] = {}
    return config


def _tensor(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    """Triton's dims leave the batch dimension out; of any rank is one open dimension."""
    shape = (-1,) if spec.shape is None else spec.shape[1:] if batched else spec.shape
    return {"name": spec.name, "data_type": config_name(spec.datatype), "dims": list(shape)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def specs_of(tensors: Sequence[Mapping[str, Any]], *, batched: bool) -> tuple[TensorSpec, ...]:
    """input or output of a configuration -> specifications, with a batch dimension where the model has one."""
    front = (-1,) if batched else ()
    return tuple(
        TensorSpec(
            tensor["name"],
            dtype_of_config(tensor["data_type"]),
            (*front, *(int(size) for size in tensor["dims"])),
            bool(tensor.get("optional", False)),
        )
        for tensor in tensors
    )


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """What pb_utils calls using_decoupled_model_transaction_policy."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled", False))


def config_of(kind: str) -> Callable[[Mapping[str, Any], str], dict[str, Any] | None]:
    """A function that finds the part of a configuration which describes an input, or an output, by its name."""

    def find(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        return next((tensor for tensor in model_config.get(kind, ()) if tensor["name"] == name), None)

    return find
