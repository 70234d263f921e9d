"""HTTP bodies of Open Inference V2 -> questions of the gateway: infer in JSON, with binary tensors, or raw.

The order of the checks is part of the contract: the first failure wins. Version text, model, decoupled, content
encoding, JSON, id, parameters, each input, each output, and only then the request against what the model declares.
Source: Triton's HTTP server; the texts are its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.cuts import Cuts, NotAsNumbers, cut
from tensorgate.adapters.open_inference.compression import best_coding, plain_body
from tensorgate.adapters.open_inference.errors import with_id
from tensorgate.adapters.open_inference.inputs import Declared, Inputs
from tensorgate.adapters.open_inference.json_templates import BinaryHeads, JsonTemplates
from tensorgate.adapters.open_inference.parameters import (
    boolean,
    fields_of,
    member,
    read_parameters,
    sequence_of,
    short_array,
    text,
    unsigned,
)
from tensorgate.adapters.open_inference.raw import HEADER_LENGTH, PLAIN, V2ReplyForm
from tensorgate.adapters.open_inference.shared_memory import destination
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import Destination, InferRequest, ModelRef, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import INLINE_DECODE_MAX_JSON_BYTES, INLINE_DECODE_MAX_TENSOR_BYTES, Resolve
from tensorgate.gateway.contract.errors import (
    BodyTooLarge,
    GatewayError,
    InvalidArgument,
    MalformedJson,
    ModelDecoupled,
    UnknownOutput,
)
from tensorgate.gateway.contract.memory import Memory
from tensorgate.gateway.contract.questions import (
    ModelList,
    ModelMetadata,
    ModelReady,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import BYTES, NOTHING, Array, TensorSpec, check_inputs

MAX_JSON_DEPTH: Final = 100
_INT64_MAX: Final = 2**63 - 1
_HEADER_LENGTH: Final = HEADER_LENGTH.lower()
_INTEGER: Final = re.compile(r"-?[0-9]+")
_EMPTY: Final = memoryview(b"")
LONGEST_REMEMBERED: Final = 256
"""Longer names are some caller's own: to remember them would let it fill our memory."""
_templates: Final = JsonTemplates()
_heads: Final = BinaryHeads()
_HAS_TEMPLATES: Final = is_taken("v2_json_templates")
_HAS_HEADS: Final = is_taken("v2_binary_heads")


class _WantedOutput(NamedTuple):
    """How an output is wanted: `binary` behind the JSON, or in the caller's own `memory`."""

    request: OutputRequest
    binary: bool = False
    memory: Memory | None = None


def _wanted(name: str, binary: bool, top_k: int = 0) -> _WantedOutput:
    return _WantedOutput(OutputRequest(name, top_k), binary)


_remembered_wanted: Final = lru_cache(maxsize=1024)(_wanted)  # never stale: made of nothing but its arguments


def _usual(name: str, binary: bool, top_k: int = 0) -> _WantedOutput:
    """Models have few outputs, and requests name them over and over."""
    return (_remembered_wanted if len(name) <= LONGEST_REMEMBERED else _wanted)(name, binary, top_k)


def decode_live(call: Call, resolve: Resolve) -> ServerLive:
    return ServerLive()


def decode_ready(call: Call, resolve: Resolve) -> ServerReady:
    return ServerReady()


def decode_server_metadata(call: Call, resolve: Resolve) -> ServerMetadata:
    return ServerMetadata()


def decode_model_list(call: Call, resolve: Resolve) -> ModelList:
    return ModelList()


def decode_metadata(call: Call, resolve: Resolve) -> ModelMetadata:
    return ModelMetadata(resolve(ref_of(call)))


def decode_model_ready(call: Call, resolve: Resolve) -> ModelReady:
    return ModelReady(ref_of(call))


def ref_of(call: Call) -> ModelRef:
    return model_ref(call.args["model"], call.args.get("version"))


def model_ref(name: str, version: str | None) -> ModelRef:
    """Raises InvalidArgument for a version that is too large."""
    usual = len(name) + len(version or "") <= LONGEST_REMEMBERED
    return (_remembered_ref if usual else _model_ref)(name, version)


def _model_ref(name: str, version: str | None) -> ModelRef:
    if version is None:
        return ModelRef(name)
    digits = version.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > _INT64_MAX:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{version}' (details: stol), "
            "version should be an integral value > 0"
        )
    return ModelRef(name, int(digits))


_remembered_ref: Final = lru_cache(maxsize=1024)(_model_ref)  # never stale: a name, which is resolved each time


# --------------------------------------------------------------------------------------------------------------- infer


def decode_infer(call: Call, resolve: Resolve) -> InferRequest:
    """An infer request -> tensors, checked against what the model declares: dtypes, shapes and batch size.

    Raises ModelNotFound, ModelDecoupled, MalformedJson, InvalidArgument and its kinds, Unsupported, NotFound,
    BodyTooLarge; MustOffload.
    """
    view = resolve(ref_of(call))
    if view.decoupled:
        raise ModelDecoupled(view.name)
    header = call.headers.get(_HEADER_LENGTH)
    if header is None:
        call.check_inline(INLINE_DECODE_MAX_TENSOR_BYTES)
        return _json_request(call, view, plain_body(call, call.max_body_bytes))
    if "content-encoding" in call.headers:
        call.check_inline(0)
    message = memoryview(plain_body(call, call.max_binary_bytes))
    size = _header_length(header, len(message))
    if not size:
        return _raw_request(call, view, message)
    if size > call.max_body_bytes:
        raise BodyTooLarge(call.max_body_bytes)
    if size > INLINE_DECODE_MAX_JSON_BYTES:
        call.check_inline(INLINE_DECODE_MAX_JSON_BYTES)
    return _binary_request(call, view, bytes(message[:size]), message[size:])


def _json_request(call: Call, view: ModelView, body: Buffer) -> InferRequest:
    """A request without binary data: by its template, if one like it was read before."""
    accepted = call.headers.get("accept-encoding")
    depth = max_depth(call)
    known = _templates.read(view, accepted, depth, body) if _HAS_TEMPLATES else None
    if known is None:
        call.check_inline(INLINE_DECODE_MAX_JSON_BYTES)
        whole = body if type(body) is bytes else bytes(body)
        request = _infer_request(call, view, whole, _EMPTY)
        if _HAS_TEMPLATES:
            _templates.learn(request, accepted, depth, whole)
        return request
    template, array = known
    call.notes["id"] = ""
    inputs = {template.name: array}
    return InferRequest(view, inputs, "", template.outputs, deadline=call.deadline, wire=template.wire)


def _binary_request(call: Call, view: ModelView, head: bytes, tail: memoryview) -> InferRequest:
    """A request with binary data: by its head, if the same was read before."""
    accepted = call.headers.get("accept-encoding")
    depth = max_depth(call)
    known = _heads.read(view, accepted, depth, head, tail) if _HAS_HEADS else None
    if known is None:
        request = _infer_request(call, view, head, tail)
        if _HAS_HEADS:
            _heads.learn(request, accepted, depth, head, tail)
        return request
    said, arrays = known
    call.notes["id"] = ""
    return InferRequest(view, arrays, "", said.outputs, deadline=call.deadline, wire=said.wire)


def max_depth(call: Call) -> int:
    return MAX_JSON_DEPTH if call.max_json_depth is None else call.max_json_depth


def _header_length(text: str, body_bytes: int) -> int:
    if not _INTEGER.fullmatch(text):
        raise InvalidArgument(f"Unable to parse {HEADER_LENGTH}, got: {text}")
    if len(text) > 19 or not 0 <= int(text) <= body_bytes:
        raise InvalidArgument(f"inference header size should be in range (0, {body_bytes}), got: {text}")
    return int(text)


def _infer_request(call: Call, view: ModelView, body: bytes, tail: memoryview) -> InferRequest:
    """A request, without its long arrays if it has some; if it is wrong, the whole body tells why."""
    cuts = cut(body, max_depth(call))
    if cuts is None:
        return _read_request(call, view, body, tail)
    try:
        return _read_request(call, view, cuts.text, tail, cuts)
    except MalformedJson as error:
        if error.offset is not None:
            raise MalformedJson(error.reason, cuts.offset(error.offset)) from None
    except (GatewayError, json_body.WrongLeaf):
        pass
    return _read_request(call, view, body, tail)


def _read_request(call: Call, view: ModelView, body: bytes, tail: memoryview, cuts: Cuts | None = None) -> InferRequest:
    document = json_body.read(body, max_depth(call))
    fields = fields_of(document)
    request_id = text(document["id"], "Unable to parse 'id'") if "id" in fields else ""
    call.notes["id"] = request_id
    reserved, custom = read_parameters(document["parameters"]) if "parameters" in fields else (NOTHING, NOTHING)
    inputs = Inputs(call, view.name, cuts)
    inputs.read(short_array(member(document, fields, "inputs"), "Unable to parse 'inputs'"), tail)
    binary = reserved.get("binary_data_output", False)
    outputs = _outputs(document["outputs"], binary, inputs) if "outputs" in fields else {}
    for name in outputs:
        if name not in view.outputs:
            raise UnknownOutput(name, view.name)
    if cuts is not None and not cuts.is_all_taken and any(a.dtype == BYTES for a in inputs.arrays.values()):
        raise NotAsNumbers
    check_against(inputs, view)
    if outputs:
        in_binary = [name for name, wanted in outputs.items() if wanted.binary]
    else:
        in_binary = [*view.outputs] if binary else []
    return InferRequest(
        view,
        inputs.arrays,
        request_id,
        tuple([wanted.request for wanted in outputs.values()]),
        custom,
        priority=reserved.get("priority", 0),
        sequence=sequence_of(reserved),
        deadline=call.deadline,
        queue_timeout_us=reserved.get("timeout", 0),
        wire=_wire(call, in_binary),
        into=_destinations(outputs) if inputs.in_memory else None,
    )


def check_against(inputs: Inputs, view: ModelView) -> None:
    """The inputs against what the model declares, and then what else is wrong with them."""
    check_inputs(view.name, inputs.arrays, view.inputs, view.max_batch_size)
    if inputs.late:
        raise inputs.late[0]


def _wire(call: Call, binary: Collection[str]) -> V2ReplyForm:
    """How to answer, with these outputs as binary."""
    accepted = call.headers.get("accept-encoding")
    coding = best_coding(accepted) if accepted else ""
    return V2ReplyForm(frozenset(binary), coding) if coding or binary else PLAIN


def _destinations(outputs: Mapping[str, _WantedOutput]) -> Mapping[str, Destination]:
    """Where outputs go that are wanted in shared memory."""
    return {name: destination(wanted.memory) for name, wanted in outputs.items() if wanted.memory is not None}


def _outputs(items: Any, binary: bool, inputs: Inputs) -> dict[str, _WantedOutput]:
    """The requested outputs. One that is named twice is refused, as Triton does from 26.05 on."""
    outputs: dict[str, _WantedOutput] = {}
    for item in short_array(items, "Unable to parse 'outputs'"):
        name, wanted = _output(item, binary, inputs)
        inputs.check_new_output(name, outputs)
        outputs[name] = wanted
    return outputs


def _output(item: Any, binary: bool, inputs: Inputs) -> tuple[str, _WantedOutput]:
    fields = fields_of(item)
    name = text(member(item, fields, "name"), "Unable to parse 'name'")
    if "parameters" not in fields:
        return name, _usual(name, binary)
    parameters = item["parameters"]
    given = fields_of(parameters)
    in_memory = "shared_memory_region" in given
    top_k = unsigned(parameters["classification"], "Unable to set 'classification'") if "classification" in given else 0
    if "binary_data" in given:
        binary = boolean(parameters["binary_data"], "Unable to parse 'binary_data'")
    if not in_memory:
        return name, _usual(name, binary, top_k)
    for key, other in (("classification", top_k), ("binary_data", "binary_data" in given and binary)):
        if other:
            raise InvalidArgument(f"Output can't set both 'shared_memory_region' and '{key}'")
    return name, _WantedOutput(OutputRequest(name), memory=inputs.memory_named(parameters, given, writable=True))


# ------------------------------------------------------------------------------------------------- raw binary requests


def _raw_request(call: Call, view: ModelView, body: memoryview) -> InferRequest:
    """A body that is nothing but the data of the model's only input; every output goes out as binary."""
    if len(view.inputs) != 1:
        complaint = (
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(view.inputs)} inputs in "
            f"'{view.name}' model configuration"
        )
        raise InvalidArgument(with_id(call, complaint))
    (spec,) = view.inputs.values()
    inputs = Inputs(call, view.name)
    if spec.dtype == BYTES:
        inputs.arrays[spec.name] = _raw_string(call, spec, view, body)
    else:
        shape = _raw_shape(call, spec, view, len(body))
        inputs.arrays[spec.name] = inputs.from_raw(body, Declared(spec.name, spec.dtype, shape, math.prod(shape)))
    check_against(inputs, view)
    wire = _wire(call, view.outputs)
    return InferRequest(view, inputs.arrays, deadline=call.deadline, wire=wire)


def _raw_string(call: Call, spec: TensorSpec, view: ModelView, body: memoryview) -> Array:
    batch = (1,) if view.max_batch_size else ()
    if spec.shape is None or spec.shape[len(batch) :] != (1,):
        complaint = f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
        raise InvalidArgument(with_id(call, complaint))
    element = np.empty((*batch, 1), object)
    element[...] = bytes(body)
    return element


def _raw_shape(call: Call, spec: TensorSpec, view: ModelView, size: int) -> tuple[int, ...]:
    """The shape that this many bytes have: a batch of 1, and what is left in the one variable dimension."""
    shape = list(spec.shape or ())
    if view.max_batch_size:
        shape[:1] = [1]
    if spec.shape is None or shape.count(-1) > 1:
        complaint = (
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
        raise InvalidArgument(with_id(call, complaint))
    if -1 in shape:
        shape[shape.index(-1)] = size // ((spec.dtype.itemsize * -math.prod(shape)) or 1)
    return tuple(shape)
