"""A new list of models in place of all that are served. Source: ServerCore's checks, in their order and words."""

from __future__ import annotations

import re
from typing import Any, Final

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.proto_spec import read_small
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.questions import ReloadModels, WantedModel

_RESPONSE: Final = message("tensorflow.serving.ReloadConfigResponse")
_REQUEST_COUNTS: Final = ("/tensorflow/serving/request_count", ":tensorflow:serving:request_count")
_TENSORFLOW: Final = 1  # of the deprecated enumeration ModelType
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][0-9A-Za-z.]*://")


def decode_reload(call: Call, resolve: Resolve) -> ReloadModels:
    """An empty list is one, too: it unloads everything."""
    asked = read_small("ReloadConfigRequest", call.body)
    if asked.config.WhichOneof("config") != "model_config_list":
        raise InvalidArgument(
            "ServerModelConfig type not supported by HandleReloadConfigRequest."
            " Only ModelConfigList is currently supported"
        )
    models = asked.config.model_config_list.config
    names: set[str] = set()
    for model in models:
        if model.name in names:
            raise InvalidArgument(f"Illegal to list model {model.name} multiple times in config list")
        names.add(model.name)
    for model in models:
        if _ABSOLUTE.match(model.base_path) is None:
            raise InvalidArgument(
                f"Expected model {model.name} to have an absolute path or URI; got base_path()={model.base_path}"
            )
    return ReloadModels(tuple(map(_wanted, models)), tuple(dict.fromkeys(asked.metric_names)))


def encode_reload(inferences: int, question: ReloadModels) -> Reply:
    """What was counted meanwhile. Of all counters that can be named, requests are the one that this gateway has."""
    response = _RESPONSE()
    response.status.SetInParent()
    for name in question.counters:
        response.metric.add(name=name, int64_value_increase=inferences if name in _REQUEST_COUNTS else 0)
    return Reply(response.SerializeToString())


def _wanted(model: Any) -> WantedModel:
    return WantedModel(model.name, model.base_path, _platform(model), _policy(model), dict(model.version_labels))


def _platform(model: Any) -> str:
    fields = "ModelServerConfig::model_type (deprecated) {} ModelServerConfig::model_platform"
    if model.model_type and model.model_platform:
        raise InvalidArgument(f"Illegal setting both {fields.format('and')}, model name is {model.name}")
    if model.model_type and model.model_type != _TENSORFLOW:
        raise InvalidArgument(
            f"ModelServerConfig::model_type choice {model.model_type} not supported, model name is {model.name}"
        )
    platform = "tensorflow" if model.model_type else model.model_platform
    if not platform:
        raise InvalidArgument(f"Illegal setting neither {fields.format('nor')}, model name is {model.name}")
    return str(platform)


def _policy(model: Any) -> str | list[int] | dict[str, int]:
    """The version policy as YAML says it; the latest none are the latest one."""
    policy = model.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return "all"
    if choice == "specific":
        return list(policy.specific.versions)
    return {"latest": max(policy.latest.num_versions, 1)}
