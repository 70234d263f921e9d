"""Questions about models over gRPC, with their answers: the state of versions, the signatures of one."""

from __future__ import annotations

from typing import Any, Final

from tensorgate.adapters.protobuf.messages import enum, message
from tensorgate.adapters.tf_serving.proto_spec import effective_spec, read_small, ref_of, resolve_spec
from tensorgate.adapters.tf_serving.signature_def import signature_def
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Code, InvalidArgument
from tensorgate.gateway.contract.questions import ModelMetadata, ModelStatus, VersionStatus

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
