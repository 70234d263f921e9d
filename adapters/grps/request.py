"""Bodies of POST /grps/v1/infer/predict, JSON or raw bytes -> InferRequest; and how a caller asks for a stream.

The order of objections is the contract's: content type, streaming against return-ndarray (both before a stream would
start), empty body, JSON, payload, and the model last, since the body may name it.
Source: grps v1.1.0, the Python server's predict.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from tensorgate.adapters.grps.errors import BadRequest
from tensorgate.adapters.grps.fields import known_members, shown
from tensorgate.adapters.grps.flat import MIN_BYTES, cut
from tensorgate.adapters.grps.message import MESSAGE, message
from tensorgate.adapters.grps.options import MAP_DATATYPES, MapName, StreamingControl, mapping_of
from tensorgate.adapters.grps.printing import BYTES_TYPE
from tensorgate.adapters.grps.response import Form, reply_form
from tensorgate.adapters.grps.tensors import Array, GrpsTensor, array_of
from tensorgate.adapters.json.body import (
    ARRAY,
    MAX_DIMENSIONS,
    OBJECT,
    Ragged,
    TooManyDimensions,
    WrongLeaf,
    as_list,
    read,
    rectangle,
)
from tensorgate.adapters.json.cuts import Envelope, lone_array
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import INLINE_DECODE_MAX_JSON_BYTES, INLINE_DECODE_MAX_TENSOR_BYTES, Resolve
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, InvalidArgument, UnknownInput
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, NOTHING, Tensors, TensorSpec

JSON_TYPE: Final = "application/json"

_MESSAGE_KEYS: Final = ("str_data", "gtensors", "gmap")
_FLOAT32: Final = DTYPES["FP32"]
_ENVELOPE: Final = Envelope("model", "ndarray")


def decode_predict(call: Call, resolve: Resolve, asks: Asks) -> InferRequest:
    """infer/predict, JSON or bytes; `asks` tells whether the caller wants a stream, which is noted for errors. Raises
    GatewayError as its dialect's table words it.
    """
    content = content_type(call)
    if content not in (JSON_TYPE, BYTES_TYPE):
        raise BadRequest("No content type in headers." if content is None else "Unsupported content type.")
    stream = asks(call)
    if stream and "return_ndarray" in call.args:
        raise BadRequest("Bad Request, err: Streaming and ret ndarray are not supported at the same time.")
    call.notes["stream"] = "true" if stream else ""
    if not len(call.body):
        raise BadRequest("The http body is empty.")
    if content == BYTES_TYPE:
        view = _resolve(call, resolve, "")
        try:
            return _request(call, view, "bin_data", from_bytes(view, "bin_data", bytes(call.body)), stream)
        except GatewayError:
            call.notes["model"] = view.name
            raise
    return _decode_json(call, resolve, stream)


def content_type(call: Call) -> str | None:
    """The media type without its parameters, in lower case; the old servers accept no others."""
    header = call.headers.get("content-type")
    return header if header is None or header == JSON_TYPE else header.partition(";")[0].strip().lower()


def _decode_json(call: Call, resolve: Resolve, stream: bool) -> InferRequest:
    if len(call.body) > INLINE_DECODE_MAX_TENSOR_BYTES and not call.in_thread:
        raise MustOffload
    opened = _ENVELOPE.open(call.body)
    array = None if opened is None else lone_array(call.body, opened, _FLOAT32, _max_depth(call))
    if opened is None or array is None:
        return _decode_document(call, resolve, stream)
    return _ndarray_request(call, resolve, opened.text, array, stream)


def _ndarray_request(call: Call, resolve: Resolve, model: Any, array: Array, stream: bool) -> InferRequest:
    view = _resolve(call, resolve, model if isinstance(model, str) else "")
    try:
        return _request(call, view, "ndarray", {only_input(view): array}, stream)
    except GatewayError:
        call.notes["model"] = view.name
        raise


def _decode_document(call: Call, resolve: Resolve, stream: bool) -> InferRequest:
    members, body, arrays = _document(call)
    kind = _kind(members)
    if kind == "ndarray":
        return _ndarray_request(call, resolve, members.get("model"), _ndarray(members["ndarray"], body), stream)
    return of_message(call, resolve, message(members, body, arrays), stream)


def _document(call: Call) -> tuple[dict[str, Any], bytes, Sequence[Array]]:
    """The members of the body's object, the text that they were read from, and the arrays that were cut out of it."""
    if len(call.body) >= MIN_BYTES:
        body, arrays = cut(call.body)
        if len(body) > INLINE_DECODE_MAX_JSON_BYTES and not call.in_thread:
            raise MustOffload
        if arrays:
            with contextlib.suppress(GatewayError):  # which says where it is wrong, in a text that nobody has sent
                return json_object(body, call), body, arrays
    body = bytes(call.body)
    encoding = json.detect_encoding(body[:4])
    if not encoding.startswith("utf-8"):  # UTF-16, UTF-32, as Python's parser tells them
        body = body.decode(encoding, "replace").encode()
    return json_object(body, call), body, ()


def of_message(call: Call, resolve: Resolve, fields: Mapping[str, Any], stream: bool) -> InferRequest:
    """The fields of a message, at most one of which is data -> the request. Without any, the model gets no input."""
    view = _resolve(call, resolve, fields.get("model", ""))
    try:
        if "gtensors" in fields:
            return _request(call, view, "gtensors", _from_tensors(view, fields["gtensors"]), stream)
        if "gmap" in fields:
            return _request(call, view, "gmap", _from_maps(view, fields["gmap"]), stream)
        if "str_data" in fields:
            return _request(call, view, "str_data", from_bytes(view, "str_data", fields["str_data"].encode()), stream)
        if "bin_data" in fields:
            return _request(call, view, "bin_data", from_bytes(view, "bin_data", fields["bin_data"]), stream)
        return _request(call, view, "gtensors", {}, stream)
    except GatewayError:
        call.notes["model"] = view.name
        raise


def _max_depth(call: Call) -> int:
    return call.max_json_depth or 100


def json_object(body: bytes, call: Call) -> dict[str, Any]:
    """The members of the body's object that a message has."""
    value = read(body, _max_depth(call))
    if not isinstance(value, OBJECT):
        raise InvalidArgument("The json body is not an object.")
    return dict(known_members(value, MESSAGE))


def _kind(members: Mapping[str, Any]) -> str:
    """Which payload the object carries: the first that is not empty, else the first that is there at all, as the C++
    server has it.
    """
    if any(members.get(key) for key in _MESSAGE_KEYS):
        return "message"
    if members.get("ndarray"):
        return "ndarray"
    if members.get("bin_data"):
        raise InvalidArgument("bin_data should use application/octet-stream format.")
    if members.get("str_data") == "" or any(isinstance(members.get(key), OBJECT) for key in _MESSAGE_KEYS):
        return "message"
    if isinstance(members.get("ndarray"), (int, float)):
        return "ndarray"
    raise InvalidArgument("No legal field in json.")


def _resolve(call: Call, resolve: Resolve, in_body: str) -> ModelView:
    return resolve(ModelRef(qualified=in_body or call.args.get("model", "")))


def _request(call: Call, view: ModelView, kind: Form, inputs: Tensors, stream: bool) -> InferRequest:
    form, outputs = reply_form(view, kind, "return_ndarray" in call.args, stream)
    return InferRequest(view, inputs, outputs=outputs, deadline=call.deadline, stream=stream, wire=form)


# -------------------------------------------------------------------------------------------------------------- arrays


def _ndarray(value: Any, body: bytes) -> Array:
    """Nested lists of numbers and booleans, or a bare one -> FP32 array of that shape, values rounded.

    NaN and Infinity are taken as bare tokens here, and here alone.
    """
    if not isinstance(value, (*ARRAY, int, float)):
        raise InvalidArgument("NDArray is not number or array.", ErrorReason.DTYPE)
    nested = value if isinstance(value, ARRAY) else [value]
    try:
        array = rectangle(nested, _FLOAT32, body)
    except WrongLeaf as wrong:
        array = _with_booleans(nested, wrong.leaf)
    except TooManyDimensions:
        raise InvalidArgument(f"Parse json failed. arrays nested deeper than {MAX_DIMENSIONS} levels.") from None
    except Ragged:
        raise InvalidArgument("Parse NDArray failed: NDArray some array size not match.", ErrorReason.SHAPE) from None
    return array if nested is value else array.reshape(())


def _with_booleans(nested: Any, leaf: Any) -> Array:
    """The FP32 array of lists where `leaf` is no number: rare enough for a Python object per element."""
    values = np.array(as_list(nested), np.object_)
    leaves = values.reshape(-1)
    types = {type(value) for value in leaves}
    if types - {bool, int, float, list}:
        raise InvalidArgument(
            f"Parse NDArray failed: {shown(leaf)} is not a number or array.", ErrorReason.DTYPE
        ) from None
    if any(isinstance(value, list) for value in leaves):
        raise InvalidArgument("Parse NDArray failed: NDArray some array size not match.", ErrorReason.SHAPE) from None
    try:
        with np.errstate(over="ignore"):
            return values.astype(_FLOAT32)
    except OverflowError:
        raise InvalidArgument("Parse NDArray failed: a number is too large.") from None


def only_input(view: ModelView) -> str:
    """The input that nothing but tensors fills, or the one of these, or of all, that is required."""
    names = list(view.inputs)
    if len(names) > 1:
        names = _unclaimed(view) or names
    if len(names) > 1:
        names = [name for name in names if not view.inputs[name].optional]
    if len(names) != 1:
        raise InvalidArgument(
            f"Model {view.name} takes {len(view.inputs)} inputs, ndarray carries one: use gtensors.",
            ErrorReason.MISSING_INPUT,
        )
    return names[0]


def _places(view: ModelView, count: int) -> list[str]:
    """The inputs that so many tensors without names mean, where there are more."""
    free = _unclaimed(view)
    places = [name for name in view.inputs if name in free or not view.inputs[name].optional]
    return (places if len(places) >= count else list(view.inputs))[:count]


def _unclaimed(view: ModelView) -> list[str]:
    """The inputs that neither text nor bytes nor entries of gmap fill."""
    claimed = mapping_of(view).claimed() or {_only(view.inputs)}
    return [name for name in view.inputs if name not in claimed]


def _from_tensors(view: ModelView, tensors: list[GrpsTensor]) -> Tensors:
    """All named: by name. None named: in the model's order, without optional inputs that are no tensors' to fill."""
    names = [tensor.name for tensor in tensors]
    if not any(names):
        names = list(view.inputs)
        if len(names) > len(tensors):
            names = _places(view, len(tensors))
    if not all(names):
        raise InvalidArgument("Tensors should be all named or all unnamed.")
    if len(names) < len(tensors):
        raise InvalidArgument(
            f"Model {view.name} takes {len(names)} inputs, got {len(tensors)} tensors.", ErrorReason.MISSING_INPUT
        )
    inputs = {name: array_of(tensor) for name, tensor in zip(names, tensors, strict=True)}
    if len(inputs) < len(tensors):
        raise InvalidArgument(f"Tensor name {max(names, key=names.count)} is given twice.")
    return inputs


# --------------------------------------------------------------------------------------------------- what is no tensor


def from_bytes(view: ModelView, kind: Literal["str_data", "bin_data"], data: bytes) -> Tensors:
    """Text or bytes -> the input that they fill."""
    name: str | None = getattr(mapping_of(view), kind) or _only(view.inputs)
    if name is None:
        raise InvalidArgument(f"Model {view.name} takes no {kind}.", ErrorReason.UNKNOWN_INPUT)
    return {name: _element(view, name, data, BYTES)}


def _only(specs: Mapping[str, TensorSpec]) -> str | None:
    """The name of the only BYTES tensor."""
    names = [name for name, spec in specs.items() if spec.dtype == BYTES]
    return names[0] if len(names) == 1 else None


def _from_maps(view: ModelView, maps: Mapping[MapName, Mapping[str, Any]]) -> Tensors:
    """gmap's entries, each into the input that the model's YAML names for it."""
    wanted = mapping_of(view).gmap
    if not wanted:
        raise InvalidArgument(f"Model {view.name} takes no gmap.", ErrorReason.UNKNOWN_INPUT)
    inputs: dict[str, Array] = {}
    for map_name, entries in maps.items():
        entry_inputs = wanted.get(map_name) or NOTHING
        for key, value in entries.items():
            name = entry_inputs.get(key)
            if name is None:
                raise InvalidArgument(
                    f"Model {view.name} takes no {map_name} entry {key} of gmap.", ErrorReason.UNKNOWN_INPUT
                )
            data = value.encode() if isinstance(value, str) else value
            inputs[name] = _element(view, name, data, DTYPES[MAP_DATATYPES[map_name]])
    return inputs


def _element(view: ModelView, name: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """An array of one element in the shape that the model declares, its open dimensions being 1; [1] for any rank."""
    if name not in view.inputs:
        raise UnknownInput(name, view.name)
    declared = view.inputs[name].shape
    shape = (1,) if declared is None else tuple(1 if size < 0 else size for size in declared)
    if math.prod(shape) != 1:
        raise InvalidArgument(
            f"Input {name} takes the shape {list(shape)}, the request carries one element.", ErrorReason.SHAPE
        )
    array = np.empty(shape, dtype)
    with np.errstate(over="ignore"):
        array.fill(value)
    return array


# --------------------------------------------------------------------------------------------------- who wants a stream

STREAMING = "streaming"
"""The argument of an address whose query asks for a stream."""

Asks = Callable[[Call], bool]


def asks_for_stream(control: StreamingControl) -> Asks:
    """What looks at a call; the mode replaces the others entirely."""
    if control.ctrl_mode == "query_param":
        return lambda call: STREAMING in call.args
    if control.ctrl_mode == "header_param":
        name = control.ctrl_key.lower()
        return lambda call: call.headers.get(name, "").lower() == "true"
    return lambda call: _member(call, control.ctrl_key) is True


def _member(call: Call, key: str) -> Any:
    """A member of a body that is a JSON object; None of any other body."""
    try:
        value = read(bytes(call.body), call.max_json_depth or 100)
    except GatewayError:
        return None
    return value.get(key) if isinstance(value, OBJECT) else None
