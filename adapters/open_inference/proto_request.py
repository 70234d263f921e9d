"""Open Inference V2 over gRPC: ModelInferRequest -> InferRequest.

A large tensor on its way in: the transport joins what it received to one `bytes`, and that is the last copy before the
batch's, or the device's. `split` cuts the tensor out as a view of it, and the array is a view of that view; only BOOL,
BYTES and typed contents are copied once more.

The checks come in the order of HTTP's: version, model, decoupled, parameters, each input, each output, and only then
the request against what the model declares. Source: Triton's gRPC server; the texts are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from tensorgate.adapters.open_inference.parameters import sequence_of
from tensorgate.adapters.open_inference.proto_inputs import MessageInputs
from tensorgate.adapters.open_inference.proto_parameters import (
    EMPTY_FINAL,
    V2StreamForm,
    read_parameters,
    region_of,
    top_k_of,
)
from tensorgate.adapters.open_inference.proto_templates import RAW_INPUTS, ProtoTemplates
from tensorgate.adapters.open_inference.request import LONGEST_REMEMBERED, check_against, model_ref
from tensorgate.adapters.open_inference.shared_memory import destination
from tensorgate.adapters.protobuf.wire_format import MAX_ELEMENTS, MAX_HEAD_BYTES, cut_out, fields, parse, too_large
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import Destination, InferRequest, ModelRef, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import InvalidArgument, ModelDecoupled, UnknownOutput
from tensorgate.gateway.contract.memory import Memory
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import NOTHING

KIND: Final = "inference.ModelInferRequest"
_INPUTS: Final = 5 << 3 | 2
_CONTENTS: Final = 5 << 3 | 2
"""The tags of ModelInferRequest.inputs and InferInputTensor.contents."""
WALKED_BYTES: Final = 4 << 10 if is_taken("message_cuts") else MAX_HEAD_BYTES
"""Smaller messages are cheaper to copy than to walk."""
_NO_VERSION: Final = ("", "-1")
_HAS_TEMPLATES: Final = is_taken("v2_grpc_templates")
_unary: Final = ProtoTemplates()
_streamed: Final = ProtoTemplates()
_wanted: Final = lru_cache(maxsize=1024)(OutputRequest)  # never stale: made of nothing but its arguments


def decode_infer(call: Call, resolve: Resolve) -> InferRequest:
    """ModelInfer: a request that has one answer.

    Raises ModelNotFound, ModelDecoupled, InvalidArgument and its kinds, Unsupported, NotFound.
    """
    known = _unary.read(call, resolve, stream=False) if _HAS_TEMPLATES else None
    return known or _request(call, resolve, stream=False)


def decode_stream(call: Call, resolve: Resolve) -> InferRequest:
    """One message of ModelStreamInfer: a request that may have any number of answers. Raises the same."""
    known = _streamed.read(call, resolve, stream=True) if _HAS_TEMPLATES else None
    return known or _request(call, resolve, stream=True)


def _request(call: Call, resolve: Resolve, *, stream: bool) -> InferRequest:
    message, raw = _read(call.body)
    call.notes["id"] = message.id
    ref = version_ref(message.model_name, message.model_version)
    view = resolve(ref)
    if view.decoupled and not stream:
        raise ModelDecoupled(view.name)
    reserved, custom = read_parameters(message.parameters) if message.parameters else (NOTHING, NOTHING)
    inputs = MessageInputs(call, view.name, raw)
    inputs.read_messages(message.inputs[:])  # a slice is a list: protobuf's own iteration ends with an exception
    outputs: dict[str, tuple[int, Memory | None]] = {}
    for item in message.outputs[:]:
        name, wanted = _output(item, inputs)
        inputs.check_new_output(name, outputs)
        outputs[name] = wanted
    for name in outputs:
        if name not in view.outputs:
            raise UnknownOutput(name, view.name)
    check_against(inputs, view)
    call.notes["model"] = view.name
    request = InferRequest(
        view,
        inputs.arrays,
        message.id,
        tuple([_wanted(name, top_k) for name, (top_k, _) in outputs.items()]),
        custom,
        priority=reserved.get("priority", 0),
        sequence=sequence_of(reserved),
        deadline=call.deadline,
        queue_timeout_us=reserved.get("timeout", 0),
        stream=stream,
        wire=V2StreamForm(reserved.get(EMPTY_FINAL, False), message.model_version) if stream else None,
        into=_destinations(outputs) if inputs.in_memory else None,
    )
    if _HAS_TEMPLATES and raw and not (message.id or message.parameters) and _has_plain_tensors(message):
        (_streamed if stream else _unary).learn(call.body, KIND, ref, request)
    return request


def _has_plain_tensors(message: Any) -> bool:
    """Whether nothing is said of single tensors that may mean something else another time, such as shared memory."""
    return not any(item.parameters for item in (*message.inputs[:], *message.outputs[:]))


def _read(body: Buffer) -> tuple[Any, Sequence[Buffer]]:
    """The message, and its raw contents: of a large one, as views of the body."""
    if len(body) < WALKED_BYTES:
        message = parse(KIND, body)
        return message, message.raw_input_contents[:]
    head, raw = split(body)
    return parse(KIND, head), raw


def split(body: Buffer) -> tuple[bytes, list[memoryview]]:
    """A ModelInferRequest -> the same without raw_input_contents, and these, as views of it: protobuf would copy them.

    Raises InvalidArgument for what upb refuses, as far as it can be seen from outside (the fields are left to it), and
    for a message that has much of what no tensor is made of.
    """
    head, raw = cut_out(body, RAW_INPUTS, KIND)
    if len(head) > MAX_HEAD_BYTES:
        _check_head(head)
    return head, raw


def _check_head(body: bytes) -> None:
    """Refuse a message in which something other than packed numbers is large: parameters, dimensions and single
    elements cost upb so much time, in which nobody else is served, and more memory than they have bytes.
    """
    contents = 0
    room = MAX_ELEMENTS
    for tag, _, data, end in fields(body, 0, len(body), KIND):
        if tag != _INPUTS:
            continue
        for inside, _, first, last in fields(body, data, end, KIND):
            if inside == _CONTENTS:
                contents += last - first
                room -= sum([1 for _ in fields(body, first, last, KIND, room)])
    if len(body) - contents > MAX_HEAD_BYTES:
        raise too_large()


def _destinations(outputs: Mapping[str, tuple[int, Memory | None]]) -> Mapping[str, Destination]:
    """Where outputs go that are wanted in shared memory."""
    return {name: destination(memory) for name, (_, memory) in outputs.items() if memory is not None}


def _output(item: Any, inputs: MessageInputs) -> tuple[str, tuple[int, Memory | None]]:
    """A requested output's name, how many of its best classes are wanted in its place, and the caller's memory for
    it.
    """
    if not item.parameters:
        return item.name, (0, None)
    region = region_of(item.parameters, item.name)
    if region is None:
        return item.name, (top_k_of(item.parameters), None)
    if "classification" in item.parameters:
        raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
    return item.name, (0, inputs.memory(region.region, region.offset, region.byte_size, writable=True))


def version_ref(name: str, version: str) -> ModelRef:
    """A model as messages name it; no version, or -1, is the highest. Raises InvalidArgument."""
    return (_remembered_ref if len(name) + len(version) <= LONGEST_REMEMBERED else _version_ref)(name, version)


def _version_ref(name: str, version: str) -> ModelRef:
    if version in _NO_VERSION:
        return model_ref(name, None)
    if version.isascii() and version.isdecimal():
        return model_ref(name, version)
    if version[:1] == "-" and version[1:].isdecimal():
        raise InvalidArgument(f"invalid model version specified '{version}' , version should be an integral value > 0")
    raise InvalidArgument(
        f"failed to get model version from specified version string '{version}' (details: stol), "
        "version should be an integral value > 0"
    )


_remembered_ref: Final = lru_cache(maxsize=1024)(_version_ref)  # never stale: a name, which is resolved each time
