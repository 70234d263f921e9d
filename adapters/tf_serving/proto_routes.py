"""Methods of tensorflow.serving.PredictionService and ModelService -> endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from tensorgate.adapters.tf_serving import classify_proto as classify
from tensorgate.adapters.tf_serving import proto_control as control
from tensorgate.adapters.tf_serving.errors import encode_grpc_error, encode_grpc_predict_error, encode_grpc_status_error
from tensorgate.adapters.tf_serving.model_spec import model_of
from tensorgate.adapters.tf_serving.proto_control import decode_reload, encode_reload
from tensorgate.adapters.tf_serving.proto_request import decode_predict
from tensorgate.adapters.tf_serving.proto_response import predict_encoder
from tensorgate.gateway.contract.canonical import is_long_as_bytes
from tensorgate.gateway.contract.dialect import Decode, Encode, Endpoint

_PREDICTION: Final = "/tensorflow.serving.PredictionService/"
PREDICT: Final = _PREDICTION + "Predict"
_MODEL: Final = "/tensorflow.serving.ModelService/"
_ENDPOINTS: Final[dict[str, Endpoint]] = {}


def _row(address: str, label: str, decode: Decode, encode: Encode, **more: Any) -> None:
    more.setdefault("encode_error", encode_grpc_error)
    more.setdefault("is_long", is_long_as_bytes)
    _ENDPOINTS[address] = Endpoint(address, label, decode, encode, **more)


_row(
    PREDICT,
    "infer",
    decode_predict,
    predict_encoder(content=False),
    encode_error=encode_grpc_predict_error,
    stream="single",
    model_of=model_of,
)
_row(_PREDICTION + "Classify", "classify", classify.decoder("classify"), classify.encode_classify, stream="single")
_row(_PREDICTION + "Regress", "regress", classify.decoder("regress"), classify.encode_regress, stream="single")
_row(_PREDICTION + "MultiInference", "multi_inference", classify.decode_multi, classify.encode_multi)
_row(_PREDICTION + "GetModelMetadata", "metadata", control.decode_metadata, control.encode_metadata)
_row(
    _MODEL + "GetModelStatus",
    "status",
    control.decode_status,
    control.encode_status,
    encode_error=encode_grpc_status_error,
)
_row(_MODEL + "HandleReloadConfigRequest", "reload", decode_reload, encode_reload, admin=True)

_PREDICT_CONTENT: Final = replace(_ENDPOINTS[PREDICT], encode=predict_encoder(content=True))

GRPC_ENDPOINTS: Final[Mapping[str, Endpoint]] = MappingProxyType(_ENDPOINTS)


def grpc_endpoints(*, tensor_content: bool) -> Mapping[str, Endpoint]:
    """The table for a server that answers with elements as bytes, or in typed fields."""
    return {**GRPC_ENDPOINTS, PREDICT: _PREDICT_CONTENT} if tensor_content else GRPC_ENDPOINTS
