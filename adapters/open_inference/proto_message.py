"""inference.ModelInferRequest, read whole -> InferRequest.

The checks come in the order of HTTP's: version, model, decoupled, parameters, each input, each output, and only then
the request against what the model declares. Source: Triton's gRPC server; the texts are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from tensorgate.adapters.open_inference.document import Wanted, checked_request
from tensorgate.adapters.open_inference.proto_inputs import MessageInputs
from tensorgate.adapters.open_inference.proto_parameters import (
    EMPTY_FINAL,
    V2StreamForm,
    read_parameters,
    region_of,
    top_k_of,
)
from tensorgate.adapters.open_inference.request import LONGEST_REMEMBERED, model_ref
from tensorgate.adapters.protobuf.wire_format import (
    MAX_ELEMENTS,
    MAX_HEAD_BYTES,
    cut_out,
    fields,
    first_text,
    parse,
    too_large,
)
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import InvalidArgument, ModelDecoupled
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import NOTHING

KIND: Final = "inference.ModelInferRequest"
RAW_INPUTS: Final = 7 << 3 | 2
"""The tag of ModelInferRequest.raw_input_contents."""
_INPUTS: Final = 5 << 3 | 2
_CONTENTS: Final = 5 << 3 | 2
"""The tags of ModelInferRequest.inputs and InferInputTensor.contents."""
WALKED_BYTES: Final = 4 << 10 if is_taken("message_cuts") else MAX_HEAD_BYTES
"""Smaller messages are cheaper to copy than to walk."""
_NO_VERSION: Final = ("", "-1")


def infer_request(call: Call, resolve: Resolve, *, stream: bool) -> tuple[InferRequest, ModelRef | None]:
    """A message -> the request, and the model that it names, if nothing but its tensors' data, as raw contents, belongs
    to this one alone. Raises GatewayError.
    """
    message, raw = _read(call.body)
    call.notes["id"] = message.id
    try:
        ref = version_ref(message.model_name, message.model_version)
        view = resolve(ref)
        if view.decoupled and not stream:
            raise ModelDecoupled(view.name)
        reserved, custom = read_parameters(message.parameters) if message.parameters else (NOTHING, NOTHING)
        inputs = MessageInputs(call, view.name, raw)
        inputs.read_messages(message.inputs[:])  # a slice is a list: protobuf's own iteration ends with an exception
        outputs: dict[str, Wanted] = {}
        for item in message.outputs[:]:
            wanted = _wanted(item, inputs)
            inputs.check_new_output(item.name, outputs)
            outputs[item.name] = wanted
        wire = V2StreamForm(reserved.get(EMPTY_FINAL, False), message.model_version) if stream else None
        request = checked_request(call, view, inputs, outputs, message.id, reserved, custom, wire=wire, stream=stream)
    except Exception:  # whoever counts the call, or answers it elsewhere, knows which model it names
        call.notes["model"], call.notes["version"] = message.model_name, message.model_version
        raise
    call.notes["model"] = view.name
    is_usual = raw and not (message.id or message.parameters) and _has_plain_tensors(message)
    return request, ref if is_usual else None


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


def _wanted(item: Any, inputs: MessageInputs) -> Wanted:
    """How an output is wanted: as it is, as so many of its best classes, or in the caller's memory."""
    if not item.parameters:
        return Wanted()
    region = region_of(item.parameters, item.name)
    if region is None:
        return Wanted(top_k_of(item.parameters))
    if "classification" in item.parameters:
        raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
    return Wanted(memory=inputs.memory(*region, writable=True))


def model_of(args: Mapping[str, str], begun: bytes) -> ModelRef | None:
    """The model that a message names in its first field, as all clients' do; the version matters to who computes it."""
    name = first_text(begun)
    return None if name is None else ModelRef(name)


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
