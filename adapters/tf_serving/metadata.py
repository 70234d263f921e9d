"""JSON of GET /v1/models/{model} and its /metadata: the state of versions, and the signatures of one. Contract: the
JSON form of GetModelStatusResponse and GetModelMetadataResponse.
"""

from __future__ import annotations

import json
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from tensorgate.adapters.tf_serving.errors import JSON_HEADERS
from tensorgate.adapters.tf_serving.model_spec import model_ref, resolve_model
from tensorgate.adapters.tf_serving.signature_def import signature_def
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import ModelMetadata, ModelStatus, VersionStatus

_METADATA: Final = """\
{{
"model_spec":{spec},
"metadata": {{"signature_def": {signatures}}}
}}
"""
"""The original joins the texts of two messages. A map stands in a message of its own name, so that is there twice."""


def decode_status(call: Call, resolve: Resolve) -> ModelStatus:
    """Status asks for all versions or for one; a label in the address is ignored, known or not (a quirk)."""
    ref = model_ref(call)
    return ModelStatus(ModelRef(ref.name, ref.version))


def encode_status(versions: tuple[VersionStatus, ...], question: ModelStatus) -> Reply:
    return _reply(_json({"model_version_status": [_version(version) for version in versions]}))


def _version(version: VersionStatus) -> dict[str, Any]:
    status = {"error_code": version.code.name if version.error else "OK", "error_message": version.error}
    return {"version": str(version.version), "state": version.state, "status": status}


def decode_metadata(call: Call, resolve: Resolve) -> ModelMetadata:
    return ModelMetadata(resolve_model(call, resolve))


def encode_metadata(view: ModelView, question: ModelMetadata) -> Reply:
    signatures = {name: _plain(signature_def(view.signatures[name])) for name in sorted(view.signatures)}
    spec = {"name": view.name, "version": str(view.version), "signature_name": ""}
    return _reply(_METADATA.format(spec=_json(spec), signatures=_json({"signature_def": signatures})))


def _plain(message: Any) -> Any:
    """A message as protobuf's JSON has it: names of fields as they are, defaults printed, fields in order of their
    numbers, keys of maps sorted.
    """
    plain = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return _in_order(plain, message.DESCRIPTOR)


def _in_order(plain: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    """MessageToDict puts the fields that are set before the others."""
    fields = sorted(descriptor.fields, key=lambda field: field.number)
    return {field.name: _field(plain[field.name], field.message_type) for field in fields if field.name in plain}


def _field(value: Any, kind: Any) -> Any:
    if kind is None:
        return value
    if isinstance(value, list):
        return [_in_order(item, kind) for item in value]
    if kind.GetOptions().map_entry:
        return {key: _field(value[key], kind.fields_by_name["value"].message_type) for key in sorted(value)}
    return _in_order(value, kind)


def _json(message: Any) -> str:
    """As protobuf prints: one space a level, and a line break at the end."""
    return json.dumps(message, indent=1, ensure_ascii=False) + "\n"


def _reply(text: str) -> Reply:
    return Reply(text.encode("utf-8", "replace"), headers=JSON_HEADERS)
