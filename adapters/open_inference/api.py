"""Open Inference V2's addresses for OpenAPI: what `routes` has, and of a model its infer with the names, datatypes and
shapes that it declares, and generate where it takes texts or streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from tensorgate.adapters.api_schemas import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    TEXT,
    TEXTS,
    any_of,
    dimensions,
    element,
    identifier,
    list_of,
    nested,
    parameters_of,
    record,
    ref,
    shape_text,
)
from tensorgate.adapters.open_inference.errors import ANSWERS
from tensorgate.adapters.open_inference.raw import HEADER_LENGTH
from tensorgate.adapters.open_inference.routes import ENDPOINTS, model_endpoints
from tensorgate.gateway.contract.api import ApiDescription, ApiOperation, ApiPart, Content, Schema
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, NOTHING, TensorSpec

_JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"
_EVENTS: Final = "text/event-stream"
_VALUE: Final[Schema] = {"anyOf": [TEXT, BOOLEAN, NUMBER]}
_OPEN: Final[Schema] = {}


def _json(schema: Schema) -> Content:
    return {_JSON: schema}


def _own(name: str) -> Schema:
    """One of the dialect's schemas."""
    return ref(f"v2_{name}")


# ------------------------------------------------------------------------------------------------------ server schemas

_TENSORS: Final = list_of(
    record({"name": TEXT, "datatype": TEXT, "shape": list_of(INTEGER)}, ["name", "datatype", "shape"])
)
_DURATION: Final = record({"count": COUNT, "ns": COUNT}, ["count", "ns"])
_MEMORY: Final = {
    "shared_memory_region": TEXT,
    "shared_memory_offset": COUNT,
    "shared_memory_byte_size": COUNT,
}
_INPUT_PARAMETERS: Final = record(
    {
        "binary_data_size": {**COUNT, "description": "Bytes of this tensor behind the JSON, in place of data."},
        **_MEMORY,
    },
)
_OUTPUT_PARAMETERS: Final = record(
    {
        "classification": {**COUNT, "description": "So many best classes, as texts, in place of the tensor."},
        "binary_data": {**BOOLEAN, "description": "As bytes behind the JSON, in place of data."},
        **_MEMORY,
    }
)
_RESERVED: Final = {
    "sequence_id": any_of([COUNT, TEXT]),
    "sequence_start": BOOLEAN,
    "sequence_end": BOOLEAN,
    "priority": {**COUNT, "description": "1 is the highest; 0: as the model says."},
    "timeout": {**COUNT, "description": "How many microseconds it may wait in the queue."},
    "binary_data_output": {**BOOLEAN, "description": "All outputs as bytes behind the JSON."},
}
_DATATYPE: Final[Schema] = {"type": "string", "enum": [*DTYPES]}
_ANY_DATA: Final = list_of(_OPEN, description="Elements in row-major order, flat or as nested lists.")
_ANY_TENSOR: Final = {"name": TEXT, "datatype": _DATATYPE, "shape": list_of(COUNT), "data": _ANY_DATA}
_SETTINGS: Final = {
    "trace_rate": TEXT,
    "trace_count": TEXT,
    "log_frequency": TEXT,
    "trace_level": TEXTS,
}
_LOGGING: Final = {
    "log_info": BOOLEAN,
    "log_warning": BOOLEAN,
    "log_error": BOOLEAN,
    "log_verbose_level": COUNT,
    "log_format": TEXT,
}


def _nullable(properties: Mapping[str, Schema]) -> Schema:
    return record({name: any_of([schema, {"type": "null"}]) for name, schema in properties.items()})


_SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": record({"error": TEXT}, ["error"]),
    "ServerMetadata": record({"name": TEXT, "version": TEXT, "extensions": TEXTS}, ["name", "version", "extensions"]),
    "ServerLive": record({"live": BOOLEAN}, ["live"]),
    "ServerReady": record({"live": BOOLEAN, "ready": BOOLEAN}, ["live", "ready"]),
    "ModelReady": record({"name": TEXT, "ready": BOOLEAN}, ["name", "ready"]),
    "ModelList": record({"models": TEXTS}, ["models"]),
    "ModelMetadata": record(
        {"name": TEXT, "versions": TEXTS, "platform": TEXT, "inputs": _TENSORS, "outputs": _TENSORS},
        ["name", "versions", "platform", "inputs", "outputs"],
    ),
    "Document": {**ANY_OBJECT, "description": "A document of OpenAPI 3.1."},
    "ModelConfig": {**ANY_OBJECT, "description": "Triton's ModelConfig as JSON."},
    "ModelStatistics": record(
        {
            "model_stats": list_of(
                record(
                    {
                        "name": TEXT,
                        "version": TEXT,
                        "last_inference": {**COUNT, "description": "In milliseconds since 1970."},
                        "inference_count": {**COUNT, "description": "Rows."},
                        "execution_count": {**COUNT, "description": "Runs of the model."},
                        "inference_stats": {"type": "object", "additionalProperties": _DURATION},
                        "response_stats": ANY_OBJECT,
                        "batch_stats": list_of(ANY_OBJECT),
                        "memory_usage": list_of(_OPEN),
                    },
                    ["name", "version", "last_inference", "inference_count", "execution_count", "inference_stats"],
                )
            )
        },
        ["model_stats"],
    ),
    "RepositoryIndex": list_of(record({"name": TEXT, "version": TEXT, "state": TEXT, "reason": TEXT}, ["name"])),
    "TraceSettings": record(_SETTINGS),
    "TraceChanges": _nullable(_SETTINGS),
    "LogSettings": record(_LOGGING),
    "LogChanges": _nullable(_LOGGING),
    "Regions": list_of(
        record({"name": TEXT, "byte_size": COUNT, "key": TEXT, "offset": COUNT, "device_id": COUNT}, ["name"])
    ),
    "RegisterRegion": record(
        {
            "byte_size": COUNT,
            "key": {**TEXT, "description": "Of system memory: its name below /dev/shm."},
            "offset": COUNT,
            "device_id": COUNT,
            "raw_handle": record({"b64": {**TEXT, "description": "Of CUDA memory: its IPC handle."}}, ["b64"]),
        },
        ["byte_size"],
    ),
    "LoadModel": record(
        {
            "parameters": {
                **record({"config": {**TEXT, "description": "A configuration in place of the model's own, as JSON."}}),
                "additionalProperties": {**TEXT, "description": "file:PATH, a file of the model in base64."},
            }
        }
    ),
    "UnloadModel": record({"parameters": record({"unload_dependents": BOOLEAN})}),
    "IndexRequest": record({"ready": {**BOOLEAN, "description": "Only what is ready."}}),
    "InferParameters": {**record(_RESERVED), "additionalProperties": _VALUE},
    "InputParameters": _INPUT_PARAMETERS,
    "OutputParameters": _OUTPUT_PARAMETERS,
    "ReplyParameters": {"type": "object", "additionalProperties": _VALUE},
    "InferRequest": record(
        {
            "id": TEXT,
            "parameters": _own("InferParameters"),
            "inputs": list_of(
                record({**_ANY_TENSOR, "parameters": _own("InputParameters")}, ["name", "datatype", "shape"])
            ),
            "outputs": list_of(record({"name": TEXT, "parameters": _own("OutputParameters")}, ["name"])),
        },
        ["inputs"],
    ),
    "InferResponse": record(
        {
            "id": TEXT,
            "model_name": TEXT,
            "model_version": TEXT,
            "parameters": _own("ReplyParameters"),
            "outputs": list_of(
                record({**_ANY_TENSOR, "parameters": _own("ReplyParameters")}, ["name", "datatype", "shape"])
            ),
        },
        ["model_name", "model_version", "outputs"],
    ),
    "Classes": record(
        {
            "name": TEXT,
            "datatype": {"type": "string", "const": "BYTES"},
            "shape": list_of(COUNT),
            "data": {**TEXTS, "description": "score:index or score:index:label"},
            "parameters": _own("ReplyParameters"),
        },
        ["name", "datatype", "shape"],
        description="An output whose best classes were asked for.",
    ),
    "GenerateRequest": record(
        {"id": TEXT, "parameters": ANY_OBJECT},
        additionalProperties=True,
        description="Inputs by their names, each a scalar or a flat list; any other key is a parameter.",
    ),
    "GenerateResponse": record(
        {"id": TEXT, "model_name": TEXT, "model_version": TEXT},
        ["model_name", "model_version"],
        additionalProperties=True,
        description="Outputs and parameters by their names, each a scalar or a flat list.",
    ),
}
# ---------------------------------------------------------------------------------------------------------- operations


class _Row(NamedTuple):
    """What an address is for: its id, a sentence, the schemas of reply and request, "" for no body."""

    id: str
    summary: str
    reply: str
    request: str = ""
    requires_body: bool = False


_OF_MODELS: Final[Mapping[str, _Row]] = {
    "GET ": _Row("model_metadata", "What a model takes and gives", "ModelMetadata"),
    "GET /ready": _Row("model_ready", "Whether a model is ready", "ModelReady"),
    "POST /infer": _Row("infer", "Run a model", "InferResponse", "InferRequest", True),
    "POST /generate": _Row(
        "generate", "Run a model on flat values, for one answer", "GenerateResponse", "GenerateRequest", True
    ),
    "POST /generate_stream": _Row(
        "generate_stream",
        "Run a model on flat values, for any number of answers",
        "GenerateResponse",
        "GenerateRequest",
        True,
    ),
    "GET /config": _Row("model_config", "A model's configuration", "ModelConfig"),
    "GET /stats": _Row("model_statistics", "What a model has done", "ModelStatistics"),
    "GET /openapi.json": _Row("model_api", "A model's addresses, as OpenAPI has them", "Document"),
}
"""HTTP method and what follows the address of a model, or of a version of it."""

_OF_SERVER: Final[Mapping[str, _Row]] = {
    "GET /v2": _Row("server_metadata", "The server's name, version and extensions", "ServerMetadata"),
    "GET /v2/health/live": _Row("server_live", "Whether the server answers", "ServerLive"),
    "GET /v2/health/ready": _Row("server_ready", "Whether the server is ready", "ServerReady"),
    "GET /v2/models": _Row("model_list", "The names of all models", "ModelList"),
    "POST /v2/repository/index": _Row(
        "repository_index", "All models, loaded or not", "RepositoryIndex", "IndexRequest"
    ),
    "POST /v2/repository/models/{model}/load": _Row("load_model", "Load a model, or load it anew", "", "LoadModel"),
    "POST /v2/repository/models/{model}/unload": _Row("unload_model", "Unload a model", "", "UnloadModel"),
    "GET /v2/models/stats": _Row("server_statistics", "What all models have done", "ModelStatistics"),
    "GET /v2/trace/setting": _Row("trace_settings", "How requests are traced", "TraceSettings"),
    "POST /v2/trace/setting": _Row(
        "change_trace_settings", "Change how requests are traced", "TraceSettings", "TraceChanges", True
    ),
    "GET /v2/models/{model}/trace/setting": _Row(
        "model_trace_settings", "How a model's requests are traced", "TraceSettings"
    ),
    "POST /v2/models/{model}/trace/setting": _Row(
        "change_model_trace_settings", "Change how a model's requests are traced", "TraceSettings", "TraceChanges", True
    ),
    "GET /v2/logging": _Row("log_settings", "What is logged", "LogSettings"),
    "POST /v2/logging": _Row("change_log_settings", "Change what is logged", "LogSettings", "LogChanges", True),
    "GET /v2/{kind}sharedmemory/status": _Row("regions", "Registered regions of shared memory", "Regions"),
    "GET /v2/{kind}sharedmemory/region/{region}/status": _Row("region", "A region of shared memory", "Regions"),
    "POST /v2/{kind}sharedmemory/region/{region}/register": _Row(
        "register_region", "Register a region of shared memory", "", "RegisterRegion", True
    ),
    "POST /v2/{kind}sharedmemory/unregister": _Row("unregister_regions", "Forget all regions", ""),
    "POST /v2/{kind}sharedmemory/region/{region}/unregister": _Row("unregister_region", "Forget a region", ""),
}
_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = f"{_MODEL}/versions/{{version}}"
_ALIASES: Final = frozenset({"GET /v2/"})
"""Addresses that are another one with a slash behind it."""
_PARAMETERS: Final[Mapping[str, Schema]] = {
    "version": {"type": "string", "pattern": "^[0-9]+$"},
    "kind": {"type": "string", "enum": ["system", "cuda"]},
}
_NOT_READY: Final[Mapping[str, tuple[str, Content]]] = {
    "server_live": ("Not live", _json(_own("ServerLive"))),
    "server_ready": ("Not ready", _json(_own("ServerReady"))),
    "model_ready": ("Not ready, or unknown", _json(_own("Error"))),
}
"""What status 400 means, and its body."""
_HEADER: Final[Mapping[str, Any]] = {
    "name": HEADER_LENGTH,
    "in": "header",
    "required": False,
    "description": "How many bytes of the body are JSON, where tensors follow it as bytes.",
    "schema": TEXT,
}


def _operation(
    endpoint: Endpoint, row: _Row, id_suffix: str = "", request: Content = NOTHING, reply: Content = NOTHING
) -> ApiOperation:
    """`request` and `reply` are a model's own, where it has some."""
    method, _, path = endpoint.address.partition(" ")
    replies = _json(_own(row.reply)) if row.reply else {}
    if endpoint.method == "generate_stream":
        replies = {_EVENTS: _own(row.reply)}
    requests = _json(_own(row.request)) if row.request else {}
    parameters = parameters_of(path, _PARAMETERS)
    if endpoint.method == "infer":
        parameters += (_HEADER,)
        requests = {**requests, _BINARY: {"type": "string", "format": "binary"}}
        requests |= request
    else:
        requests = dict(request or requests)
    unready = _NOT_READY.get(row.id)
    return ApiOperation(
        endpoint.method,
        method,
        path,
        row.id + id_suffix,
        row.summary,
        reply or replies,
        endpoint.admin,
        requests,
        row.requires_body,
        parameters,
        {} if unready is None else {400: unready},
    )


def _of_server() -> ApiPart:
    operations = []
    for endpoint in ENDPOINTS:
        if endpoint.address in _ALIASES:
            continue
        row, suffix = _OF_SERVER.get(endpoint.address), ""
        if row is None:
            method, _, path = endpoint.address.partition(" ")
            address, suffix = (_VERSION, "_of_version") if path.startswith(_VERSION) else (_MODEL, "")
            row = _OF_MODELS[f"{method} {path.removeprefix(address)}"]
        operations.append(_operation(endpoint, row, suffix))
    return ApiPart(tuple(operations), {f"v2_{name}": schema for name, schema in _SCHEMAS.items()})


# -------------------------------------------------------------------------------------------------------------- models


def _of_model(view: ModelView, version: int | None) -> ApiPart:
    """Infer, unless it streams; generate where it streams or takes a text; and what tells of it."""
    address = f"/v2/models/{quote(view.name, safe='')}" + ("" if version is None else f"/versions/{version}")
    name = identifier(view.name)
    schemas = dict(_infer_schemas(view, name))
    requests = {"infer": _json(ref(f"{name}_InferRequest"))}
    replies = {"infer": _json(ref(f"{name}_InferResponse"))}
    hidden = {"infer"} if view.decoupled else set[str]()
    if _generates(view):
        schemas |= _generate_schemas(view, name)
        for kind, media_type in (("generate", _JSON), ("generate_stream", _EVENTS)):
            requests[kind] = _json(ref(f"{name}_GenerateRequest"))
            replies[kind] = {media_type: ref(f"{name}_GenerateResponse")}
    else:
        hidden |= {"generate", "generate_stream"}
    operations = []
    for endpoint in model_endpoints(address):
        kind = endpoint.method
        if kind not in hidden:
            method, _, path = endpoint.address.partition(" ")
            row = _OF_MODELS[f"{method} {path.removeprefix(address)}"]
            operations.append(
                _operation(endpoint, row, f"_{name}", requests.get(kind, NOTHING), replies.get(kind, NOTHING))
            )
    return ApiPart(tuple(operations), schemas)


def _generates(view: ModelView) -> bool:
    specs = [*view.inputs.values(), *view.outputs.values()]
    takes_text = any(spec.dtype == BYTES for spec in view.inputs.values())
    return (view.decoupled or takes_text) and all(map(_fits_json, specs))


def _fits_json(spec: TensorSpec) -> bool:
    """Half floats travel as bytes alone."""
    return spec.dtype.itemsize != 2 or spec.dtype.kind in "iu"


def _data(spec: TensorSpec, *, flat: bool) -> Schema:
    """Elements in row-major order; callers may also nest them as the shape does."""
    item = element(spec.dtype)
    shape = spec.shape
    if shape is None:
        return list_of(item if flat else _OPEN)
    count = math.prod(shape)
    fixed = {"minItems": count, "maxItems": count} if all(size >= 0 for size in shape) else {}
    elements = list_of(item, **fixed)
    return elements if flat or len(shape) < 2 else any_of([elements, nested(item, shape)])


def _tensor(spec: TensorSpec, data: Mapping[str, Schema], parameters: str) -> Schema:
    return record(
        {
            "name": {"type": "string", "const": spec.name},
            "datatype": {"type": "string", "const": spec.datatype},
            "shape": dimensions(spec),
            **data,
            "parameters": _own(parameters),
        },
        ["name", "datatype", "shape"],
        description=shape_text(spec),
    )


def _infer_schemas(view: ModelView, name: str) -> Iterable[tuple[str, Schema]]:
    inputs, outputs = [], []
    for spec in view.inputs.values():
        key = f"{name}_Input_{identifier(spec.name)}"
        data = {"data": _data(spec, flat=False)} if _fits_json(spec) else {}
        yield key, _tensor(spec, data, "InputParameters")
        inputs.append(ref(key))
    classified = False
    for spec in view.outputs.values():
        key = f"{name}_Output_{identifier(spec.name)}"
        data = {"data": _data(spec, flat=True)} if _fits_json(spec) else {}
        yield key, _tensor(spec, data, "ReplyParameters")
        outputs.append(ref(key))
        classified |= spec.dtype != BYTES
    if classified:
        outputs.append(_own("Classes"))
    required = ["inputs"]
    parameters: Schema = _own("InferParameters")
    if view.configuration.get("sequences"):
        required.append("parameters")
        parameters = {**record(_RESERVED, ["sequence_id"]), "additionalProperties": _VALUE}
    count = {"minItems": sum(not spec.optional for spec in view.inputs.values()), "maxItems": len(view.inputs)}
    yield (
        f"{name}_InferRequest",
        record(
            {
                "id": TEXT,
                "parameters": parameters,
                "inputs": list_of(any_of(inputs) if inputs else _OPEN, **count),
                "outputs": list_of(
                    record(
                        {"name": {"type": "string", "enum": [*view.outputs]}, "parameters": _own("OutputParameters")},
                        ["name"],
                    ),
                    description="The outputs that are wanted; left out: all.",
                ),
            },
            required,
            description=_about(view),
        ),
    )
    yield (
        f"{name}_InferResponse",
        record(
            {
                "id": TEXT,
                "model_name": TEXT,
                "model_version": TEXT,
                "parameters": _own("ReplyParameters"),
                "outputs": list_of(any_of(outputs) if outputs else _OPEN),
            },
            ["model_name", "model_version", "outputs"],
        ),
    )


def _about(view: ModelView) -> str:
    texts = [f"{spec.name}: {shape_text(spec)}{', optional' if spec.optional else ''}" for spec in view.inputs.values()]
    if view.max_batch_size:
        texts.append(f"up to {view.max_batch_size} rows, of which all inputs have as many")
    return "; ".join(texts)


def _generate_schemas(view: ModelView, name: str) -> Mapping[str, Schema]:
    def values(specs: Mapping[str, TensorSpec]) -> dict[str, Schema]:
        return {
            spec.name: {"anyOf": [element(spec.dtype), list_of(element(spec.dtype))], "description": shape_text(spec)}
            for spec in specs.values()
        }

    needed = [spec.name for spec in view.inputs.values() if not spec.optional]
    return {
        f"{name}_GenerateRequest": record(
            {"id": TEXT, "parameters": ANY_OBJECT, **values(view.inputs)},
            needed,
            additionalProperties=_VALUE,
            description="Inputs by their names; any other key is a parameter.",
        ),
        f"{name}_GenerateResponse": record(
            {"id": TEXT, "model_name": TEXT, "model_version": TEXT, **values(view.outputs)},
            ["model_name", "model_version"],
            additionalProperties=_VALUE,
        ),
    }


DESCRIPTION: Final = ApiDescription(
    _of_server, _of_model, {kind: answer.http_status for kind, answer in ANSWERS.items()}, _own("Error")
)
