"""Methods of inference.GRPCInferenceService -> endpoints: all twenty, as Triton has them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from tensorgate.adapters.open_inference import proto_control as control
from tensorgate.adapters.open_inference import proto_request, proto_response
from tensorgate.adapters.open_inference.errors import encode_error
from tensorgate.adapters.open_inference.proto_message import model_of
from tensorgate.adapters.open_inference.settings import encode_trace_error
from tensorgate.adapters.open_inference.statistics import encode_statistics_error
from tensorgate.gateway.contract.canonical import is_long_as_bytes
from tensorgate.gateway.contract.dialect import Decode, Encode, Endpoint
from tensorgate.gateway.contract.questions import ServerLive, ServerMetadata, ServerReady

_SERVICE: Final = "/inference.GRPCInferenceService/"
_ENDPOINTS: Final[dict[str, Endpoint]] = {}


def _row(name: str, label: str, decode: Decode, encode: Encode, **more: Any) -> None:
    more.setdefault("encode_error", encode_error)
    more.setdefault("is_long", is_long_as_bytes)
    _ENDPOINTS[_SERVICE + name] = Endpoint(_SERVICE + name, label, decode, encode, **more)


_row("ServerLive", "live", control.asks("ServerLive", ServerLive()), control.tells("ServerLiveResponse", "live"))
_row("ServerReady", "ready", control.asks("ServerReady", ServerReady()), control.tells("ServerReadyResponse", "ready"))
_row("ModelReady", "model_ready", control.decode_model_ready, control.tells("ModelReadyResponse", "ready"))
_row(
    "ServerMetadata",
    "server_metadata",
    control.asks("ServerMetadata", ServerMetadata()),
    control.encode_server_metadata,
)
_row("ModelMetadata", "metadata", control.decode_metadata, control.encode_metadata)
_row("ModelConfig", "config", control.decode_config, control.encode_config)
_row("ModelInfer", "infer", proto_request.decode_infer, proto_response.encode_infer, model_of=model_of)
_row(
    "ModelStreamInfer",
    "stream_infer",
    proto_request.decode_stream,
    proto_response.encode_stream,
    encode_error=proto_response.encode_stream_error,
    encode_end=proto_response.encode_end,
    stream="bidi",
)
_row(
    "ModelStatistics",
    "statistics",
    control.decode_statistics,
    control.encode_statistics,
    encode_error=encode_statistics_error,
)
_row("RepositoryIndex", "repository_index", control.decode_index, control.encode_index)
_row(
    "RepositoryModelLoad",
    "load",
    control.decode_load,
    control.empty("RepositoryModelLoadResponse"),
    admin=True,
)
_row(
    "RepositoryModelUnload", "unload", control.decode_unload, control.empty("RepositoryModelUnloadResponse"), admin=True
)
_row(
    "TraceSetting",
    "trace",
    control.decode_trace,
    control.encode_trace,
    encode_error=encode_trace_error,
    admin=True,
)
_row("LogSettings", "logging", control.decode_log, control.encode_log, admin=True)
for _kind in ("system", "cuda"):
    _title = f"{_kind.capitalize()}SharedMemory"
    _register = control.decode_register_system if _kind == "system" else control.decode_register_cuda
    _row(f"{_title}Status", "memory_status", control.decode_region_status(_kind), control.encode_region_status)
    _row(f"{_title}Register", "memory_register", _register, control.empty(f"{_title}RegisterResponse"), admin=True)
    _row(
        f"{_title}Unregister",
        "memory_unregister",
        control.decode_unregister(_kind),
        control.empty(f"{_title}UnregisterResponse"),
        admin=True,
    )

GRPC_ENDPOINTS: Final[Mapping[str, Endpoint]] = MappingProxyType(_ENDPOINTS)
