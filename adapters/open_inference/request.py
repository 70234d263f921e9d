"""Requests: bodies -> questions of the gateway.

The order of the checks is part of the contract: the first failure wins. Version text, model, decoupled, content
encoding, JSON, id, parameters, each input, each output, and only then the request against what the model declares.
Source: Triton's HTTP server; the texts are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from adapters import json_body
from adapters.json_body import OBJECT
from adapters.open_inference.errors import UnsupportedCoding
from adapters.open_inference.inputs import Inputs
from adapters.open_inference.members import array, boolean, fields_of, member, text, unsigned
from gateway.canonical import (
    NOTHING,
    InferRequest,
    ModelList,
    ModelMetadata,
    ModelReady,
    ModelRef,
    OutputRequest,
    ParameterValue,
    Sequence,
    ServerLive,
    ServerMetadata,
    ServerReady,
    check_inputs,
)
from gateway.errors import InvalidArgument, ModelDecoupled, NotFound, UnknownOutput, Unsupported
from gateway.ports import Call, ModelView, Resolve

MAX_JSON_DEPTH: Final = 100
_INT64_MAX: Final = 2**63 - 1
_MAX_SEQUENCE_ID: Final = 128


def decode_live(call: Call, resolve: Resolve) -> ServerLive:
    return ServerLive()


def decode_ready(call: Call, resolve: Resolve) -> ServerReady:
    return ServerReady()


def decode_server_metadata(call: Call, resolve: Resolve) -> ServerMetadata:
    return ServerMetadata()


def decode_model_list(call: Call, resolve: Resolve) -> ModelList:
    return ModelList()


def decode_metadata(call: Call, resolve: Resolve) -> ModelMetadata:
    return ModelMetadata(resolve(_ref(call)))


def decode_model_ready(call: Call, resolve: Resolve) -> ModelReady:
    return ModelReady(_ref(call))


def _ref(call: Call) -> ModelRef:
    version = call.args.get("version")
    if version is None:
        return ModelRef(call.args["model"])
    digits = version.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > _INT64_MAX:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{version}' (details: stol), "
            "version should be an integral value > 0"
        )
    return ModelRef(call.args["model"], int(digits))


# --------------------------------------------------------------------------------------------------------------- infer


def decode_infer(call: Call, resolve: Resolve) -> InferRequest:
    """An infer request -> tensors, checked against what the model declares: dtypes, shapes and batch size.

    Raises ModelNotFound, ModelDecoupled, MalformedJson, InvalidArgument and its kinds, Unsupported, NotFound.
    """
    view = resolve(_ref(call))
    if view.decoupled:
        raise ModelDecoupled(view.name)
    if call.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedCoding()
    body = call.body if type(call.body) is bytes else bytes(call.body)
    document = json_body.read(body, MAX_JSON_DEPTH if call.max_json_depth is None else call.max_json_depth)
    return _infer_request(call, view, document)


def _infer_request(call: Call, view: ModelView, document: Any) -> InferRequest:
    fields = fields_of(document)
    request_id = text(document["id"], "Unable to parse 'id'") if "id" in fields else ""
    call.notes["id"] = request_id
    reserved, custom = _parameters(document["parameters"]) if "parameters" in fields else (NOTHING, NOTHING)
    inputs = Inputs(call, view.name)
    inputs.read(array(member(document, fields, "inputs"), "Unable to parse 'inputs'"))
    outputs = _outputs(document["outputs"]) if "outputs" in fields else ()
    for output in outputs:
        if output.name not in view.outputs:
            raise UnknownOutput(output.name, view.name)
    check_inputs(view.name, inputs.arrays, view.inputs, view.max_batch_size)
    if inputs.late:
        raise inputs.late[0]
    return InferRequest(
        view,
        inputs.arrays,
        request_id,
        outputs,
        custom,
        priority=reserved.get("priority", 0),
        sequence=_sequence(reserved),
        deadline=call.deadline,
        queue_timeout_us=reserved.get("timeout", 0),
    )


def _outputs(items: Any) -> tuple[OutputRequest, ...]:
    """The requested outputs; one that is named twice is given once."""
    requests = [_output(item) for item in array(items, "Unable to parse 'outputs'")]
    return tuple(requests) if len(requests) < 2 else tuple({request.name: request for request in requests}.values())


def _output(item: Any) -> OutputRequest:
    fields = fields_of(item)
    name = text(member(item, fields, "name"), "Unable to parse 'name'")
    if "parameters" in fields:
        parameters = item["parameters"]
        given = fields_of(parameters)
        if "shared_memory_region" in given:
            region = text(parameters["shared_memory_region"], "Unable to parse 'shared_memory_region'")
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        if "classification" in given and unsigned(parameters["classification"], "Unable to set 'classification'"):
            raise Unsupported("classification is not supported")
        if "binary_data" in given and boolean(parameters["binary_data"], "Unable to parse 'binary_data'"):
            raise Unsupported("binary tensor data is not supported")
    return OutputRequest(name)


# ---------------------------------------------------------------------------------------------------------- parameters


def _parameters(value: Any) -> tuple[dict[str, Any], dict[str, ParameterValue]]:
    """Request parameters -> those that the server consumes, and the custom ones, which go to the model."""
    if not isinstance(value, OBJECT):
        raise InvalidArgument("failed to get request params.: attempt to get members for non-object")
    reserved: dict[str, Any] = {}
    custom: dict[str, ParameterValue] = {}
    for key, item in value.items():
        if read := _RESERVED.get(key):
            reserved.setdefault(key, read(item, f"Unable to parse '{key}'"))
        elif key.startswith("triton_"):
            raise InvalidArgument(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            custom.setdefault(key, _custom(key, item))
    return reserved, custom


def _custom(key: str, value: Any) -> ParameterValue:
    """A custom parameter: string, boolean, double, or an integer of 64 bits (a larger one becomes a double)."""
    if type(value) is int:
        return value if -_INT64_MAX - 1 <= value <= _INT64_MAX else _double(value)
    if type(value) is str or type(value) is bool or type(value) is float:
        return value
    raise InvalidArgument(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _sequence_id(value: Any, what: str) -> int | str:
    if type(value) is not str:
        return unsigned(value, what)
    if len(value.encode()) > _MAX_SEQUENCE_ID:
        raise Unsupported(f"string correlation ID cannot be longer than {_MAX_SEQUENCE_ID} characters")
    return value


_RESERVED: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "sequence_id": _sequence_id,
    "sequence_start": boolean,
    "sequence_end": boolean,
    "priority": unsigned,
    "timeout": unsigned,
    "binary_data_output": boolean,
}


def _sequence(reserved: Mapping[str, Any]) -> Sequence | None:
    """Which sequence a request belongs to; an id of 0 or "" belongs to none."""
    sequence_id = reserved.get("sequence_id")
    if not sequence_id:
        return None
    return Sequence(sequence_id, reserved.get("sequence_start", False), reserved.get("sequence_end", False))
