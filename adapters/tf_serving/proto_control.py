"""Messages of GetModelMetadata, GetModelStatus and HandleReloadConfigRequest <-> questions and answers. Contract:
TensorFlow Serving, for the reload ServerCore's checks in their order and words.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tensorgate.adapters.protobuf.messages import enum, message
from tensorgate.adapters.tf_serving.model_spec import effective_spec, read_small, ref_of, resolve_spec
from tensorgate.adapters.tf_serving.signature_def import signature_def
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Code, InvalidArgument
from tensorgate.gateway.contract.questions import ModelMetadata, ModelStatus, ReloadModels, VersionStatus, WantedModel

_SIGNATURES: Final = "signature_def"
_METADATA_RESPONSE: Final = message("tensorflow.serving.GetModelMetadataResponse")
_SIGNATURE_MAP: Final = message("tensorflow.serving.SignatureDefMap")
_STATUS_RESPONSE: Final = message("tensorflow.serving.GetModelStatusResponse")
_STATES: Final = enum("tensorflow.serving.ModelVersionStatus.State").values_by_name


def decode_metadata(call: Call, resolve: Resolve) -> ModelMetadata:
    """What is asked for is looked at before the model."""
    asked = read_small("GetModelMetadataRequest", call.body)
    if not asked.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    if not asked.metadata_field:
        raise InvalidArgument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in asked.metadata_field:
        if field != _SIGNATURES:
            raise InvalidArgument(f"Metadata field {field} is not supported")
    return ModelMetadata(resolve_spec(asked.model_spec, resolve))


def encode_metadata(view: ModelView, question: Any) -> Reply:
    signatures = _SIGNATURE_MAP()
    for name, signature in view.signatures.items():
        signatures.signature_def[name].CopyFrom(signature_def(signature))
    response = _METADATA_RESPONSE()
    response.model_spec.ParseFromString(effective_spec(view.name, view.version))
    response.metadata[_SIGNATURES].Pack(signatures, deterministic=True)
    return Reply(response.SerializeToString(deterministic=True))


def decode_status(call: Call, resolve: Resolve) -> ModelStatus:
    """Of all versions or of one; a label is ignored, known or not (a quirk)."""
    asked = read_small("GetModelStatusRequest", call.body)
    if not asked.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    ref = ref_of(asked.model_spec)
    return ModelStatus(ModelRef(ref.name, ref.version))


def encode_status(versions: tuple[VersionStatus, ...], question: Any) -> Reply:
    return Reply(_STATUS_RESPONSE(model_version_status=map(_version, versions)).SerializeToString())


def _version(version: VersionStatus) -> dict[str, Any]:
    code = version.code if version.error else Code.OK
    return {
        "version": version.version,
        "state": _STATES[version.state].number,
        "status": {"error_code": code, "error_message": version.error},
    }


# --------------------------------------------------------------------------------------------------------------- reload

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
