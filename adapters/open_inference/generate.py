"""JSON bodies of POST /v2/models/{model}/generate and generate_stream <-> InferRequest and InferResponse: a flat object
in, and out for each answer, alone or as server-sent events.

A key that is the name of an input is that tensor, any other key is a parameter for the model; the object under
`parameters` is read the same way. Values are a scalar or a flat array, and the shape that the model declares is filled
with them. Source: Triton's generate extension; the texts are its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import orjson

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.body import ARRAY, OBJECT
from tensorgate.adapters.open_inference.compression import plain_body
from tensorgate.adapters.open_inference.document import check_against
from tensorgate.adapters.open_inference.errors import JSON_HEADERS, encode_error
from tensorgate.adapters.open_inference.inputs import Declared, Inputs
from tensorgate.adapters.open_inference.parameters import custom_parameter, text
from tensorgate.adapters.open_inference.request import max_depth, ref_of
from tensorgate.adapters.open_inference.response import dumps, json_text
from tensorgate.gateway.contract.call import Call, MustOffload, Reply
from tensorgate.gateway.contract.canonical import LOAD_REPORT, InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import INLINE_DECODE_MAX_JSON_BYTES, Resolve
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, InvalidArgument
from tensorgate.gateway.contract.tensor import Array, ParameterValue, TensorSpec

SSE_HEADERS: Final = MappingProxyType({"Content-Type": "text/event-stream; charset=utf-8"})
NO_EVENTS: Final = Reply(b"", 200, SSE_HEADERS)
"""Where the model has nothing to say."""

_LOAD_FORMAT: Final = "endpoint-load-metrics-format"
_LOAD_METRICS: Final = "endpoint-load-metrics"
_LOAD_FORMATS: Final = frozenset(("text", "json"))
_PYTHON: Final = "python"
"""The platform of Triton's Python models, which may count how full they are."""
_ID: Final = "id"
_PARAMETERS: Final = "parameters"
_MAX_MEMBERS: Final = 4096
"""Each is read by itself, for microseconds; no model knows as many names."""


# ------------------------------------------------------------------------------------------------------------- request


def decode_generate(call: Call, resolve: Resolve, *, stream: bool = False) -> InferRequest:
    """A generate request -> tensors and parameters, checked against what the model declares. `stream`: for a call that
    takes any number of answers.

    Raises ModelNotFound, MalformedJson, InvalidArgument and its kinds, Unsupported, BodyTooLarge.
    """
    view = resolve(ref_of(call))
    if len(call.body) > INLINE_DECODE_MAX_JSON_BYTES and not call.in_thread:
        raise MustOffload
    document = json_body.read(bytes(plain_body(call, call.max_body_bytes)), max_depth(call))
    if not isinstance(document, OBJECT):
        raise InvalidArgument("attempt to get members for non-object")
    request_id = text(document[_ID], "Unable to parse 'id'") if _ID in document else ""
    call.notes["id"] = request_id
    inputs, parameters = Inputs(call, view.name), dict[str, ParameterValue]()
    for key, value in _members(document):
        if key == _PARAMETERS:
            _read_nested(value, inputs, parameters, view)
        elif key != _ID or key in view.inputs:
            _read_member(key, value, inputs, parameters, view)
    check_against(inputs, view)
    if (form := call.headers.get(_LOAD_FORMAT)) in _LOAD_FORMATS and view.platform == _PYTHON:
        parameters[LOAD_REPORT] = form
    return InferRequest(view, inputs.arrays, request_id, (), parameters, deadline=call.deadline, stream=stream)


def _read_nested(value: Any, inputs: Inputs, parameters: dict[str, ParameterValue], view: ModelView) -> None:
    if not isinstance(value, OBJECT):
        raise InvalidArgument(
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
        )
    try:
        for key, nested in _members(value):
            _read_member(key, nested, inputs, parameters, view)
    except InvalidArgument as error:
        raise InvalidArgument(f"Converting keyword: 'parameters': {error.text}") from None


def _read_member(key: str, value: Any, inputs: Inputs, parameters: dict[str, ParameterValue], view: ModelView) -> None:
    """A tensor of the model, or a parameter."""
    spec = view.inputs.get(key)
    if spec is None:
        parameters.setdefault(key, custom_parameter(key, value))
        return
    inputs.check_new(key)
    values = value if isinstance(value, ARRAY) else [value]
    elements = json_body.length(values)
    shape = filled_shape(spec, elements, batched=view.max_batch_size > 0)
    inputs.arrays[key] = inputs.from_json(values, Declared(key, spec.dtype, shape, math.prod(shape)))


def _members(value: Any) -> list[tuple[str, Any]]:
    if len(value) > _MAX_MEMBERS:
        raise InvalidArgument(f"more than {_MAX_MEMBERS} members in an object")
    return json_body.members(value)


def filled_shape(spec: TensorSpec, elements: int, *, batched: bool = False) -> tuple[int, ...]:
    """The shape that so many elements take: the innermost variable dimension has what the fixed ones leave, any other
    variable one is 1, and so is a batch of nothing. A tensor of any rank is a vector, as the metadata says. Raises
    InvalidArgument.
    """
    shape = list((-1,) if spec.shape is None else spec.shape)
    fixed = math.prod([size for size in shape if size >= 0])
    left, rest = divmod(elements, fixed) if fixed else (1, elements)
    for place in reversed(range(len(shape))):
        if shape[place] < 0:
            shape[place], left = left or int(batched and place == 0), 1
    if rest or left != 1:
        raise InvalidArgument(
            f"The schema can not convert input '{spec.name}' to tensor with proper shape", ErrorReason.SHAPE
        )
    return tuple(shape)


# ------------------------------------------------------------------------------------------------------------- replies


def encode_generate(answer: InferResponse, request: InferRequest) -> Reply:
    """The one answer -> a JSON object. Raises EncodingFailed for a tensor that JSON cannot carry."""
    return Reply(_document(answer, request), 200, _headers(JSON_HEADERS, answer))


def encode_event(answer: InferResponse, request: InferRequest) -> Reply:
    """An answer of several -> an event. Of one without outputs, as some models end with, nobody is told."""
    body = _event(_document(answer, request)) if answer.outputs else b""
    return Reply(body, 200, _headers(SSE_HEADERS, answer), streamed=True)


def encode_event_error(error: GatewayError, call: Call) -> Reply:
    """A failure: an event once a model has taken the request on, a plain reply before."""
    reply = encode_error(error, call)
    if not call.accepted:
        return reply
    return replace(reply, body=_event(bytes(reply.body)), headers={**reply.headers, **SSE_HEADERS})  # type: ignore[arg-type]


def _headers(headers: Mapping[str, str], answer: InferResponse) -> Mapping[str, str]:
    """With the load report that the model has added to its answer."""
    report = answer.parameters.get(LOAD_REPORT)
    return headers if report is None else {**headers, _LOAD_METRICS: str(report)}


def _event(document: bytes) -> bytes:
    return b"data: %b\n\n" % document


def _document(answer: InferResponse, request: InferRequest) -> bytes:
    """{"id":"42","model_name":"m","model_version":"1","text_output":"…"}: parameters and outputs by their names."""
    view = request.view
    document: dict[str, Any] = {_ID: request.id} if request.id else {}
    document |= {"model_name": view.name, "model_version": str(view.version), **answer.parameters}
    document.pop(LOAD_REPORT, None)
    for name, array in answer.outputs.items():
        document[name] = orjson.Fragment(bare_value(name, array))
    return dumps(document)


def bare_value(name: str, array: Array) -> bytes:
    """A bare value for exactly one element, else a flat array."""
    elements = b"".join(json_text(name, array))
    return elements[1:-1] if array.size == 1 else elements
