"""HTTP bodies of Open Inference V2's infer, read whole -> InferRequest: JSON, JSON in front of binary tensors, or the
bytes of the only input.

The order of the checks is part of the contract: the first failure wins. JSON, id, parameters, each input, each output,
and only then the request against what the model declares. Source: Triton's HTTP server; the texts are its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.cuts import Cuts, NotAsNumbers, cut
from tensorgate.adapters.open_inference.compression import best_coding
from tensorgate.adapters.open_inference.errors import with_id
from tensorgate.adapters.open_inference.inputs import Declared, Inputs
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
from tensorgate.adapters.open_inference.raw import PLAIN, V2ReplyForm
from tensorgate.adapters.open_inference.shared_memory import destination
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, ModelView, OutputRequest
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, MalformedJson, UnknownOutput
from tensorgate.gateway.contract.memory import Memory
from tensorgate.gateway.contract.tensor import BYTES, NOTHING, Array, ParameterValue, TensorSpec, check_inputs

_output_request: Final = lru_cache(maxsize=1024)(OutputRequest)  # never stale: made of nothing but its arguments


class Wanted(NamedTuple):
    """How an output is wanted: as the best classes, as it is, `binary` behind the JSON, or in the caller's `memory`."""

    top_k: int = 0
    binary: bool = False
    memory: Memory | None = None


def infer_request(call: Call, view: ModelView, body: bytes, tail: memoryview, max_depth: int) -> InferRequest:
    """JSON and the binary data behind it -> the request. Without its long arrays if it has some; if it is wrong, the
    whole body tells why.
    """
    cuts = cut(body, max_depth)
    if cuts is None:
        return _read_request(call, view, body, tail, max_depth)
    try:
        return _read_request(call, view, cuts.text, tail, max_depth, cuts)
    except MalformedJson as error:
        if error.offset is not None:
            raise MalformedJson(error.reason, cuts.offset(error.offset)) from None
    except (GatewayError, json_body.WrongLeaf):
        pass
    return _read_request(call, view, body, tail, max_depth)


def _read_request(
    call: Call, view: ModelView, body: bytes, tail: memoryview, max_depth: int, cuts: Cuts | None = None
) -> InferRequest:
    document = json_body.read(body, max_depth)
    fields = fields_of(document)
    request_id = text(document["id"], "Unable to parse 'id'") if "id" in fields else ""
    call.notes["id"] = request_id
    reserved, custom = read_parameters(document["parameters"]) if "parameters" in fields else (NOTHING, NOTHING)
    inputs = Inputs(call, view.name, cuts)
    inputs.read(short_array(member(document, fields, "inputs"), "Unable to parse 'inputs'"), tail)
    binary = reserved.get("binary_data_output", False)
    outputs = _outputs(document["outputs"], binary, inputs) if "outputs" in fields else {}
    if cuts is not None and not cuts.is_all_taken and any(a.dtype == BYTES for a in inputs.arrays.values()):
        raise NotAsNumbers
    if outputs:
        in_binary = [name for name, wanted in outputs.items() if wanted.binary]
    else:
        in_binary = [*view.outputs] if binary else []
    return checked_request(call, view, inputs, outputs, request_id, reserved, custom, wire=_wire(call, in_binary))


def checked_request(
    call: Call,
    view: ModelView,
    inputs: Inputs,
    outputs: Mapping[str, Wanted],
    request_id: str,
    reserved: Mapping[str, Any],
    custom: Mapping[str, ParameterValue],
    *,
    wire: Any,
    stream: bool = False,
) -> InferRequest:
    """What a message of either transport said -> the request, checked against what the model declares."""
    for name in outputs:
        if name not in view.outputs:
            raise UnknownOutput(name, view.name)
    check_against(inputs, view)
    into = {name: destination(wanted.memory) for name, wanted in outputs.items() if wanted.memory is not None}
    return InferRequest(
        view,
        inputs.arrays,
        request_id,
        tuple([_output_request(name, wanted.top_k) for name, wanted in outputs.items()]),
        custom,
        priority=reserved.get("priority", 0),
        sequence=sequence_of(reserved),
        deadline=call.deadline,
        queue_timeout_us=reserved.get("timeout", 0),
        stream=stream,
        wire=wire,
        into=into if inputs.in_memory else None,
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


def _outputs(items: Any, binary: bool, inputs: Inputs) -> dict[str, Wanted]:
    """The requested outputs. One that is named twice is refused, as Triton does from 26.05 on."""
    outputs: dict[str, Wanted] = {}
    for item in short_array(items, "Unable to parse 'outputs'"):
        name, wanted = _output(item, binary, inputs)
        inputs.check_new_output(name, outputs)
        outputs[name] = wanted
    return outputs


def _output(item: Any, binary: bool, inputs: Inputs) -> tuple[str, Wanted]:
    fields = fields_of(item)
    name = text(member(item, fields, "name"), "Unable to parse 'name'")
    if "parameters" not in fields:
        return name, Wanted(binary=binary)
    parameters = item["parameters"]
    given = fields_of(parameters)
    in_memory = "shared_memory_region" in given
    top_k = unsigned(parameters["classification"], "Unable to set 'classification'") if "classification" in given else 0
    if "binary_data" in given:
        binary = boolean(parameters["binary_data"], "Unable to parse 'binary_data'")
    if not in_memory:
        return name, Wanted(top_k, binary)
    for key, other in (("classification", top_k), ("binary_data", "binary_data" in given and binary)):
        if other:
            raise InvalidArgument(f"Output can't set both 'shared_memory_region' and '{key}'")
    return name, Wanted(memory=inputs.memory_named(parameters, given, writable=True))


# ------------------------------------------------------------------------------------------------- raw binary requests


def raw_request(call: Call, view: ModelView, body: memoryview) -> InferRequest:
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
