"""The configuration as grps servers show it: YAML with the keys of inference.yml and server.yml.

Only what has an equivalent is shown, key by key, so that nothing else of the configuration (a token, say) leaks out.
Source: grps v1.1.0, the comments and loaders of both files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from tensorgate.adapters.grps.errors import BadRequest, UnsupportedMediaType
from tensorgate.adapters.grps.request import JSON_TYPE, content_type
from tensorgate.adapters.json.body import OBJECT, read
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import ModelConfiguration, ServerDescription

Plain = Mapping[str, Any]

_INFERER_TYPES: Final = frozenset(("torch", "tensorflow", "tensorrt"))


def decode_model(call: Call, resolve: Resolve) -> ModelConfiguration:
    """{"str_data": "<bare name>"} -> the question. Any JSON type will do, its parameters are ignored."""
    content = content_type(call) or ""
    if content != JSON_TYPE and not (content.startswith("application/") and content.endswith("+json")):
        raise UnsupportedMediaType("Unsupported content type.")
    value = read(bytes(call.body), call.max_json_depth or 100)
    name = value.get("str_data") if isinstance(value, OBJECT) else None
    if not isinstance(name, str):
        raise BadRequest("No model name.")
    return ModelConfiguration(name)


def model_text(name: str, configuration: Plain) -> str:
    """One model's entry of inference.yml, keys sorted."""
    return str(yaml.safe_dump(_model(name, configuration), allow_unicode=True))


def server_text(server: ServerDescription, default_model: str | None) -> str:
    """inference.yml, a newline, server.yml; null is what has no bound, or is not there at all."""
    configuration = server.configuration
    models = {str(name): model for name, model in (configuration.get("models") or {}).items()}
    inference = {"models": [_model(name, model) for name, model in models.items()], "dag": _dag(models, default_model)}
    return f"{_dump(inference)}\n{_dump(_server(configuration, models))}"


def _dump(data: Plain) -> str:
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))


def _model(name: str, configuration: Plain) -> dict[str, Any]:
    backend = str(configuration.get("backend", ""))
    rows = configuration.get("max_batch_size") or 0
    entry: dict[str, Any] = {
        "name": _own(configuration).get("name") or name,
        "version": _version(configuration),
        "device": _device(configuration.get("device")),
        "inferer_type": backend if backend in _INFERER_TYPES else "customized",
        "inferer_name": backend if backend not in _INFERER_TYPES else None,
        "inferer_path": str(configuration.get("path") or "") or None,
        "inferer_args": configuration.get("parameters") or None,
        "converter_type": "none",
        "batching": {"type": "none"},
    }
    if rows:
        delay_us = configuration.get("max_queue_delay_us") or 0
        entry["batching"] = {"type": "dynamic", "max_batch_size": rows, "batch_timeout_us": delay_us}
    return {key: value for key, value in entry.items() if value is not None}


def _device(said: Any) -> Any:
    """One, or several in one text."""
    return ", ".join(said) if isinstance(said, list) else said


def _own(configuration: Plain) -> Plain:
    """The model's section for grps."""
    return configuration.get("grps") or {}


def _version(configuration: Plain) -> str | None:
    """As text, which is how grps reads it: that of the YAML, the loaded one, or the highest of those that are wanted by
    number.
    """
    version = _own(configuration).get("version") or configuration.get("version")
    if version is not None:
        return str(version)
    versions = configuration.get("versions")
    return str(max(versions)) if isinstance(versions, list) and versions else None


def _dag(models: Mapping[str, Plain], default_model: str | None) -> dict[str, Any] | None:
    """What an empty model name reaches: the default model, or the only one."""
    name = default_model or (next(iter(models)) if len(models) == 1 else None)
    if name is None:
        return None
    version = _version(models.get(name, {}))
    shown = _own(models.get(name, {})).get("name") or name
    node = {"name": "node-1", "type": "model", "model": f"{shown}-{version}" if version else shown}
    return {"type": "sequential", "name": "default", "nodes": [node]}


def _server(configuration: Plain, models: Mapping[str, Plain]) -> dict[str, Any]:
    listen = configuration.get("listen") or {}
    binds = [str(kind[0].get("bind", "")) for kind in (listen.get("http"), listen.get("grpc")) if kind]
    data: dict[str, Any] = {}
    if binds:
        host = binds[0].rpartition(":")[0]
        ports = ",".join(bind.rpartition(":")[2] for bind in binds)
        framework = "http+grpc" if listen.get("grpc") else "http"
        data["interface"] = {"framework": framework, "host": host, "port": ports}
        own_path = (configuration.get("grps") or {}).get("customized_predict_http")
        data["interface"] |= {"customized_predict_http": own_path} if own_path else {}
    data |= {key: (configuration.get("limits") or {}).get(key) for key in ("max_connections", "max_concurrency")}
    data["log"] = {"log_dir": None, "log_backup_count": None}
    said = [model.get("device") for model in models.values()]
    devices = {str(each) for one in said for each in (one if isinstance(one, list) else [one])}
    data["gpu"] = {"devices": sorted(int(device[5:]) for device in devices if device[5:].isdecimal())}
    if not data["gpu"]["devices"]:
        del data["gpu"]
    return data
