"""Questions about models: the state of their versions, and the signatures of one. Source: the JSON form of
GetModelStatusResponse and GetModelMetadataResponse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from adapters.tf_serving.errors import JSON_HEADERS
from adapters.tf_serving.model_ref import model_ref, resolve_model
from gateway.canonical import ModelRef, Signature, TensorSpec
from gateway.ports import Call, ModelView, Reply, Resolve
from gateway.questions import ModelMetadata, ModelStatus, VersionStatus

ENUM_NAMES: Final = {
    "BOOL": "DT_BOOL",
    "UINT8": "DT_UINT8",
    "UINT16": "DT_UINT16",
    "UINT32": "DT_UINT32",
    "UINT64": "DT_UINT64",
    "INT8": "DT_INT8",
    "INT16": "DT_INT16",
    "INT32": "DT_INT32",
    "INT64": "DT_INT64",
    "FP16": "DT_HALF",
    "BF16": "DT_BFLOAT16",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    "BYTES": "DT_STRING",
}
"""Datatype -> tensorflow.DataType."""


def decode_status(call: Call, resolve: Resolve) -> ModelStatus:
    """Status asks for all versions or for one; a label in the address is ignored, known or not (a quirk)."""
    ref = model_ref(call)
    return ModelStatus(ModelRef(ref.name, ref.version))


def encode_status(versions: tuple[VersionStatus, ...], question: ModelStatus) -> Reply:
    return _reply({"model_version_status": [_version(version) for version in versions]})


def _version(version: VersionStatus) -> dict[str, Any]:
    status = {"error_code": version.code.name if version.error else "OK", "error_message": version.error}
    return {"version": str(version.version), "state": version.state, "status": status}


def decode_metadata(call: Call, resolve: Resolve) -> ModelMetadata:
    return ModelMetadata(resolve_model(call, resolve))


def encode_metadata(view: ModelView, question: ModelMetadata) -> Reply:
    signatures = {name: _signature(view.signatures[name]) for name in sorted(view.signatures)}
    return _reply(
        {
            "model_spec": {"name": view.name, "version": str(view.version), "signature_name": ""},
            "metadata": {"signature_def": {"signature_def": signatures}},  # twice: a map in a message of that name
        }
    )


def _signature(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
        "method_name": signature.method,
        "defaults": {},
    }


def _tensors(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    return {name: _tensor_info(specs[name]) for name in sorted(specs)}


def _tensor_info(spec: TensorSpec) -> dict[str, Any]:
    dimensions = [{"size": str(size), "name": ""} for size in spec.shape or ()]
    return {
        "name": f"{spec.name}:0",
        "dtype": ENUM_NAMES[spec.datatype],
        "tensor_shape": {"dim": dimensions, "unknown_rank": spec.shape is None},
    }


def _reply(message: dict[str, Any]) -> Reply:
    text = json.dumps(message, indent=1, ensure_ascii=False) + "\n"
    return Reply(text.encode("utf-8", "replace"), headers=JSON_HEADERS)
