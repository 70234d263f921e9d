"""grps' addresses for OpenAPI: predict with the forms of data that a model takes, metadata, health and the monitor's
numbers. All models have one address; which of them is asked stands in the query, or in the body.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from tensorgate.adapters.api_schemas import (
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
    record,
    ref,
    shape_text,
)
from tensorgate.adapters.grps.errors import TABLE, keeps_status
from tensorgate.adapters.grps.options import MAP_DATATYPES, PREFIX, CustomizedHttp, GrpsOptions, mapping_of
from tensorgate.adapters.grps.printing import BYTES_TYPE
from tensorgate.adapters.grps.request import JSON_TYPE, from_bytes, only_input
from tensorgate.adapters.grps.tensors import BY_DTYPE, BY_FIELD, DataType
from tensorgate.gateway.contract.api import ApiDescription, ApiOperation, ApiPart, Content, Schema
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

PREDICT: Final = f"{PREFIX}/infer/predict"
_OPEN: Final[Schema] = {}


def _own(name: str) -> Schema:
    return ref(f"grps_{name}")


def _flat(datatype: str) -> Schema:
    """A flat field's elements. Floats that are not finite have names, as in protobuf's JSON."""
    item = element(DTYPES[datatype])
    return list_of(any_of([item, _own("NotFinite")]) if item == NUMBER else item)


_STATUS: Final = record(
    {"code": INTEGER, "msg": TEXT, "status": {"type": "string", "enum": ["UNKNOWN", "SUCCESS", "FAILURE"]}},
)
_FLAT: Final = {field: _flat(row.datatype) for field, row in BY_FIELD.items()}
_TOLD_FLAT: Final = _FLAT | {"flat_int64": TEXTS}
"""In answers integers of 64 bits are texts, as protobuf's JSON has them."""
_TENSOR: Final = {
    "name": TEXT,
    "dtype": {"type": "string", "enum": ["DT_INVALID", *(row.name for row in BY_FIELD.values())]},
    "shape": list_of(COUNT),
}
_MAPS: Final[dict[str, Schema]] = {
    name: {"type": "object", "additionalProperties": element(DTYPES[datatype])}
    for name, datatype in MAP_DATATYPES.items()
}
_SCHEMAS: Final[Mapping[str, Schema]] = {
    "Status": _STATUS,
    "NotFinite": {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]},
    "Envelope": record({"status": _own("Status")}, ["status"], description="No data."),
    "Text": record({"status": _own("Status"), "str_data": TEXT}, ["status"]),
    "Series": record({"label": TEXT, "data": list_of(list_of(NUMBER))}, ["data"]),
    "ModelName": record({"model": {**TEXT, "description": "NAME-VERSION, or a model's name."}}, ["model"]),
    "Tensor": record({**_TENSOR, **_FLAT}, ["dtype"], description="Elements lie in the flat field of the dtype."),
    "AnswerTensor": record({**_TENSOR, **_TOLD_FLAT}, ["dtype"]),
    "Message": record(
        {
            "model": TEXT,
            "str_data": TEXT,
            "ndarray": {"description": "Nested lists of numbers, as FP32."},
            "gtensors": record({"tensors": list_of(_own("Tensor"))}),
            "gmap": record(_MAPS),
        },
        description="One of str_data, ndarray, gtensors and gmap.",
    ),
    "Answer": record(
        {
            "status": _own("Status"),
            "model": TEXT,
            "str_data": TEXT,
            "ndarray": {"description": "Nested lists of numbers."},
            "gtensors": record({"tensors": list_of(_own("AnswerTensor"))}),
            "gmap": record(_MAPS | {"s_i64": {"type": "object", "additionalProperties": TEXT}}),
        },
        ["status"],
        description="One of str_data, ndarray, gtensors and gmap.",
    ),
}


class _Row(NamedTuple):
    """An address's id, a sentence, and the schemas of reply and request."""

    id: str
    summary: str
    reply: str
    request: str = ""


_ROWS: Final[Mapping[str, _Row]] = {
    "/health/online": _Row("online", "Take traffic", "Envelope"),
    "/health/offline": _Row("offline", "Take no more traffic", "Envelope"),
    "/health/live": _Row("health_live", "Whether the server answers", "Envelope"),
    "/health/ready": _Row("health_ready", "Whether the server is ready, and online", "Envelope"),
    "/metadata/server": _Row("server_configuration", "The server's configuration, as YAML", "Text"),
    "/metadata/model": _Row("model_configuration", "A model's configuration, as YAML", "Text", "ModelName"),
    "/monitor/series": _Row("monitor_series", "How a number of the monitor has been lately", "Series"),
    "/infer/predict": _Row("predict_grps", "Run a model", "Answer", "Message"),
}
"""What follows the prefix. What the user has put at a path of its own is predict, too."""


def _query(name: str, schema: Schema, about: str = "", *, required: bool = False) -> Mapping[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": about, "schema": schema}


def description(options: GrpsOptions, endpoints: Mapping[str, tuple[tuple[str, ...], Endpoint]]) -> ApiDescription:
    """Of the addresses that the options make: path -> its methods and what answers."""
    always_200 = options.http_status == "always_200"
    return ApiDescription(
        partial(_of_server, options, endpoints),
        partial(_of_model, options, endpoints),
        {kind: 200 if always_200 and not keeps_status(kind) else row.http_status for kind, row in TABLE.items()},
        _own("Envelope"),
    )


def _of_server(options: GrpsOptions, endpoints: Mapping[str, tuple[tuple[str, ...], Endpoint]]) -> ApiPart:
    operations = []
    for path, (methods, endpoint) in endpoints.items():
        row = _ROWS.get(path.removeprefix(PREFIX), _ROWS["/infer/predict"])
        own_path = "" if path.startswith(PREFIX) else "_at_own_path"
        for method in methods:
            suffix = own_path + (f"_by_{method.lower()}" if len(methods) > 1 else "")
            operations.append(_operation(options, row, endpoint, method, path, suffix))
    return ApiPart(tuple(operations), {f"grps_{name}": schema for name, schema in _SCHEMAS.items()})


def _operation(
    options: GrpsOptions,
    row: _Row,
    endpoint: Endpoint,
    method: str,
    path: str,
    suffix: str,
    request: Schema | None = None,
    model: Schema = TEXT,
) -> ApiOperation:
    reply: Content = {JSON_TYPE: _own(row.reply)}
    requests: Content = {JSON_TYPE: request or _own(row.request)} if row.request else {}
    parameters: tuple[Mapping[str, Any], ...] = ()
    if row.id == "monitor_series":
        parameters = (_query("name", TEXT, "Such as *qps.", required=True),)
    elif endpoint.method == "infer":
        own = options.customized_predict_http
        if own is not None and own.customized_body:
            requests, reply = {BYTES_TYPE: _BINARY}, {BYTES_TYPE: _BINARY}
        else:
            requests = {**requests, BYTES_TYPE: _BINARY}
            reply = {**reply, BYTES_TYPE: _BINARY}
        parameters = (
            _query("model", model, "NAME-VERSION, a name, or nothing for the default model."),
            _query("return-ndarray", BOOLEAN, "The first output as nested lists, FP32."),
            *_streaming(own),
        )
    return ApiOperation(
        endpoint.method,
        method,
        path,
        row.id + suffix,
        row.summary,
        reply,
        endpoint.admin,
        requests if method == "POST" else {},
        parameters=parameters,
        other_replies={503: ("Not so", {JSON_TYPE: _own("Envelope")})} if row.id.startswith("health") else {},
    )


_BINARY: Final[Schema] = {"type": "string", "format": "binary"}


def _streaming(own: CustomizedHttp | None) -> tuple[Mapping[str, Any], ...]:
    """How a stream is asked for, unless the body says so."""
    control = (own or CustomizedHttp(path="/predict")).streaming_ctrl
    place = {"query_param": "query", "header_param": "header"}.get(control.ctrl_mode)
    if place is None:
        return ()
    return ({**_query(control.ctrl_key, BOOLEAN, "Any number of answers, one after the other."), "in": place},)


# -------------------------------------------------------------------------------------------------------------- models


def _of_model(
    options: GrpsOptions,
    endpoints: Mapping[str, tuple[tuple[str, ...], Endpoint]],
    view: ModelView,
    version: int | None,
) -> ApiPart:
    """Predict, with the model in the query."""
    name = identifier(view.name)
    called = f"{view.name}-{view.version if version is None else version}"
    request = f"{name}_GrpsMessage"
    operation = _operation(
        options,
        _ROWS["/infer/predict"],
        endpoints[PREDICT][1],
        "POST",
        PREDICT,
        f"_{name}",
        ref(request),
        {"type": "string", "enum": [called], "default": called},
    )
    forms = _form_schemas(view, name)
    schemas = forms | _tensor_schemas(view, name) | {request: any_of([ref(key) for key in forms])}
    return ApiPart((operation,), schemas)


def _form_schemas(view: ModelView, name: str) -> dict[str, Schema]:
    """What a model's data may come as: text where one input takes it, an array where there is one place for it, tensors
    by name, entries of gmap.
    """
    forms: dict[str, Schema] = {}
    with contextlib.suppress(GatewayError):
        from_bytes(view, "str_data", b"")
        forms[f"{name}_GrpsText"] = record({"str_data": TEXT}, ["str_data"])
    with contextlib.suppress(GatewayError):
        spec = view.inputs[only_input(view)]
        if spec.dtype == DTYPES["FP32"]:
            shape: Schema = _OPEN if spec.shape is None else nested(NUMBER, spec.shape)
            array = {**shape, "description": shape_text(spec)}
            forms[f"{name}_GrpsArray"] = record({"ndarray": array}, ["ndarray"])
    tensors = [ref(key) for key in _tensor_schemas(view, name)]
    listed = record({"tensors": list_of(any_of(tensors or [_own("Tensor")]))}, ["tensors"])
    forms[f"{name}_GrpsTensors"] = record({"gtensors": listed}, ["gtensors"])
    if maps := mapping_of(view).gmap:
        entries: dict[str, Schema] = {
            map_name: record({key: element(DTYPES[MAP_DATATYPES[map_name]]) for key in keys})
            for map_name, keys in maps.items()
        }
        forms[f"{name}_GrpsMaps"] = record({"gmap": record(entries)}, ["gmap"])
    return forms


def _tensor_schemas(view: ModelView, name: str) -> dict[str, Schema]:
    return {
        f"{name}_GrpsTensor_{identifier(spec.name)}": _tensor(spec, BY_DTYPE[spec.dtype])
        for spec in view.inputs.values()
        if spec.dtype in BY_DTYPE
    }


def _tensor(spec: TensorSpec, row: DataType) -> Schema:
    return record(
        {
            "name": {"type": "string", "const": spec.name},
            "dtype": {"type": "string", "const": row.name},
            "shape": dimensions(spec),
            row.field: _flat(row.datatype),
        },
        ["name", "dtype", row.field],
        description=shape_text(spec),
    )
