"""Messages of inference.GRPCInferenceService but for infer <-> questions and answers: health, metadata, configuration,
statistics, the repository, trace and log settings, shared memory.

Each method is a pair of functions. Source: the field tables of the protocol; the texts are Triton's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.json_format import ParseDict

from tensorgate.adapters.open_inference.model_config import triton_config
from tensorgate.adapters.open_inference.proto_message import version_ref
from tensorgate.adapters.open_inference.proto_parameters import choice
from tensorgate.adapters.open_inference.repository import plain_entry
from tensorgate.adapters.open_inference.request import metadata_of
from tensorgate.adapters.open_inference.response import extensions, plain_metadata
from tensorgate.adapters.open_inference.shared_memory import plain_region
from tensorgate.adapters.open_inference.statistics import plain_statistics
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import MAX_HEAD_BYTES, parse, too_large
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Decode, Encode, Resolve
from tensorgate.gateway.contract.errors import InvalidArgument, Unsupported
from tensorgate.gateway.contract.questions import (
    IndexEntry,
    LoadModel,
    LogSettings,
    MemoryKind,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    Question,
    Region,
    RegionStatus,
    RegisterRegion,
    RepositoryIndex,
    ServerDescription,
    Statistics,
    TraceSettings,
    UnloadModel,
    UnregisterRegion,
)

_REPOSITORY_NAME: Final = "'repository_name' specification is not supported"
_LOG_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "log_file": ("string_param", "string"),
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}
"""A log setting -> the field that it comes in, and that type in words. Others are ignored."""


def _asked(method: str, call: Call) -> Any:
    """The request message of a method. Raises InvalidArgument."""
    if len(call.body) > MAX_HEAD_BYTES:
        raise too_large()
    return parse(f"inference.{method}Request", call.body)


def _reply(kind: str, **fields: Any) -> Reply:
    return Reply(message(f"inference.{kind}")(**fields).SerializeToString())


def empty(kind: str) -> Encode:
    """The encode of a method whose answer says only that it is done."""
    done = _reply(kind)
    return lambda answer, question: done


# --------------------------------------------------------------------------------------------------- health, metadata


def asks(method: str, question: Question) -> Decode:
    """The decode of a method whose message says nothing."""

    def decode(call: Call, resolve: Resolve) -> Question:
        _asked(method, call)
        return question

    return decode


def tells(kind: str, field: str) -> Encode:
    """The encode of a method whose answer is one field."""
    return lambda answer, question: _reply(kind, **{field: answer})


def decode_model_ready(call: Call, resolve: Resolve) -> ModelReady:
    asked = _asked("ModelReady", call)
    return ModelReady(version_ref(asked.name, asked.version))


def encode_server_metadata(server: ServerDescription, question: Any) -> Reply:
    return _reply("ServerMetadataResponse", name=server.name, version=server.version, extensions=extensions(server))


def decode_metadata(call: Call, resolve: Resolve) -> ModelMetadata:
    asked = _asked("ModelMetadata", call)
    return metadata_of(version_ref(asked.name, asked.version), resolve)


def encode_metadata(view: ModelView, question: ModelMetadata) -> Reply:
    return _reply("ModelMetadataResponse", **plain_metadata(view))


def decode_config(call: Call, resolve: Resolve) -> ModelMetadata:
    asked = _asked("ModelConfig", call)
    return ModelMetadata(resolve(version_ref(asked.name, asked.version)))


def encode_config(view: ModelView, question: Any) -> Reply:
    return _reply("ModelConfigResponse", config=ParseDict(triton_config(view), message("inference.ModelConfig")()))


# ---------------------------------------------------------------------------------------------------------- statistics


def decode_statistics(call: Call, resolve: Resolve) -> ModelStatistics:
    asked = _asked("ModelStatistics", call)
    return ModelStatistics(version_ref(asked.name, asked.version) if asked.name else None)


def encode_statistics(statistics: tuple[Statistics, ...], question: Any) -> Reply:
    return _reply("ModelStatisticsResponse", model_stats=map(plain_statistics, statistics))


# ----------------------------------------------------------------------------------------------- the model repository


def decode_index(call: Call, resolve: Resolve) -> RepositoryIndex:
    asked = _asked("RepositoryIndex", call)
    if asked.repository_name:
        raise Unsupported(_REPOSITORY_NAME)
    return RepositoryIndex(asked.ready)


def encode_index(entries: tuple[IndexEntry, ...], question: Any) -> Reply:
    return _reply("RepositoryIndexResponse", models=map(plain_entry, entries))


def decode_load(call: Call, resolve: Resolve) -> LoadModel:
    asked = parse("inference.RepositoryModelLoadRequest", call.body)  # may bring whole models
    if asked.repository_name:
        raise Unsupported(_REPOSITORY_NAME)
    configuration = None
    files: dict[str, bytes] = {}
    for key, item in asked.parameters.items():
        complaint = f"invalid value type for load parameter '{key}'"
        if key == "config":
            configuration = choice(item, ("string_param",), complaint)
        elif key.startswith("file:"):
            files[key.removeprefix("file:")] = choice(item, ("bytes_param",), complaint)
        else:
            raise InvalidArgument(f"unrecognized load parameter '{key}'.")
    return LoadModel(asked.model_name, configuration, files)


def decode_unload(call: Call, resolve: Resolve) -> UnloadModel:
    asked = _asked("RepositoryModelUnload", call)
    if asked.repository_name:
        raise Unsupported(_REPOSITORY_NAME)
    flag = asked.parameters.get("unload_dependents")
    complaint = "invalid value type for 'unload_dependents' parameter"
    dependents = flag is not None and choice(flag, ("bool_param",), complaint)
    return UnloadModel(asked.model_name, dependents)


# ---------------------------------------------------------------------------------------------- trace and log settings


def decode_trace(call: Call, resolve: Resolve) -> TraceSettings:
    asked = _asked("TraceSetting", call)
    if "trace_file" in asked.settings:
        if asked.model_name:
            resolve(ModelRef(asked.model_name))  # Triton looks for the model first
        raise Unsupported("trace file location can not be updated through network protocol")
    for key, setting in asked.settings.items():
        if key != "trace_level" and len(setting.value) > 1:
            raise InvalidArgument(f"expect only 1 value for '{key}'")
    changes = {key: tuple(setting.value) or None for key, setting in asked.settings.items()}
    return TraceSettings(asked.model_name, changes)


def encode_trace(settings: Mapping[str, tuple[str, ...]], question: Any) -> Reply:
    return _reply("TraceSettingResponse", settings={key: {"value": values} for key, values in settings.items()})


def decode_log(call: Call, resolve: Resolve) -> LogSettings:
    asked = _asked("LogSettings", call)
    changes: dict[str, bool | int | str] = {}
    for key, setting in asked.settings.items():
        field, words = _LOG_TYPES.get(key, ("", ""))
        if key == "log_file":
            raise Unsupported("log file location can not be updated through network protocol")
        if field:
            if setting.WhichOneof("parameter_choice") != field:
                raise InvalidArgument(f"expect {words} for '{key}'")
            changes[key] = getattr(setting, field)
    return LogSettings(changes)


def encode_log(settings: Mapping[str, bool | int | str], question: Any) -> Reply:
    fields = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return _reply("LogSettingsResponse", settings={key: {fields[type(v)]: v} for key, v in settings.items()})


# ------------------------------------------------------------------------------------------------------- shared memory


def decode_region_status(kind: MemoryKind) -> Decode:
    method = f"{kind.capitalize()}SharedMemoryStatus"
    return lambda call, resolve: RegionStatus(kind, _asked(method, call).name)


def encode_region_status(regions: tuple[Region, ...], question: RegionStatus) -> Reply:
    described = {region.name: plain_region(region, question.kind) for region in regions}
    return _reply(f"{question.kind.capitalize()}SharedMemoryStatusResponse", regions=described)


def decode_register_system(call: Call, resolve: Resolve) -> RegisterRegion:
    asked = _asked("SystemSharedMemoryRegister", call)
    return RegisterRegion("system", Region(asked.name, asked.byte_size, asked.key, asked.offset))


def decode_register_cuda(call: Call, resolve: Resolve) -> RegisterRegion:
    asked = _asked("CudaSharedMemoryRegister", call)
    region = Region(asked.name, asked.byte_size, device_id=asked.device_id)
    return RegisterRegion("cuda", region, asked.raw_handle)


def decode_unregister(kind: MemoryKind) -> Decode:
    method = f"{kind.capitalize()}SharedMemoryUnregister"
    return lambda call, resolve: UnregisterRegion(kind, _asked(method, call).name)
