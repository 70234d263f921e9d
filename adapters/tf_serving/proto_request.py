"""tensorflow.serving.PredictRequest -> InferRequest.

Order of checks, which clients can see: model, signature, number of inputs, each input, their names, output_filter,
dtypes. Declared shapes are not checked: only the model may refuse one. Source: TensorFlow Serving, whose texts these
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tensorgate.adapters.protobuf.wire_format import MAX_HEAD_BYTES, parse, too_large
from tensorgate.adapters.tf_serving.data_types import BY_DTYPE, type_name
from tensorgate.adapters.tf_serving.example_proto import example_inputs
from tensorgate.adapters.tf_serving.model_spec import (
    note_spec,
    outputs_of,
    requests_of,
    resolve_request,
    signature_name,
    signature_of,
)
from tensorgate.adapters.tf_serving.proto_tensors import Given, TensorProtoReader
from tensorgate.adapters.tf_serving.proto_wire import KIND, TensorCut, Unusual, split
from tensorgate.adapters.tf_serving.signature_def import feed_name
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, InvalidArgument
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import NOTHING, Signature, Tensors

_WALKED_BYTES: Final = 1 << 10 if is_taken("message_cuts") else MAX_HEAD_BYTES
"""Smaller messages are cheaper to read by protobuf alone."""


class ProtoPredictForm(NamedTuple):
    """What the encoder needs: the signature that was used, and the outputs, the caller's name -> the model's."""

    signature: str
    outputs: Mapping[str, str]


def decode_predict(call: Call, resolve: Resolve) -> InferRequest:
    """Raises InvalidArgument, LabelNotFound, ModelNotFound, SignatureNotFound, MustOffload."""
    if len(call.body) < _WALKED_BYTES:
        return _request(call, resolve, parse(KIND, call.body), NOTHING)
    try:
        head, cuts = split(call.body, in_thread=call.in_thread)
        message = parse(KIND, head)
        return _request(call, resolve, message, {name.decode(): cut for name, cut in cuts.items()})
    except Unusual:
        return _request(call, resolve, _parse_whole(call.body), NOTHING)


def _parse_whole(body: Buffer) -> Any:
    """A message that only protobuf can read."""
    if len(body) > MAX_HEAD_BYTES:
        raise too_large()
    return parse(KIND, body)


def _request(call: Call, resolve: Resolve, message: Any, cuts: Mapping[str, TensorCut]) -> InferRequest:
    try:
        view = resolve_request(message, resolve)
        signature = signature_of(view, signature_name(message.model_spec))
        given = _given(TensorProtoReader(call, cuts), message.inputs, signature)
        outputs = _outputs(message.output_filter[:], signature)
        inputs = _inputs(given, signature)
        if signature.features is not None:
            [serialized] = inputs.values()
            inputs = example_inputs(signature, serialized, in_thread=call.in_thread)
        return InferRequest(
            view,
            inputs,
            outputs=requests_of(outputs.values()) if outputs else outputs_of(view, signature),
            signature=signature.name,
            deadline=call.deadline,
            wire=ProtoPredictForm(
                signature.name, outputs or {name: spec.name for name, spec in signature.outputs.items()}
            ),
        )
    except GatewayError:
        note_spec(call, message.model_spec)
        raise


# -------------------------------------------------------------------------------------------------------------- inputs


def _given(reader: TensorProtoReader, messages: Mapping[str, Any], signature: Signature) -> dict[str, Given]:
    """The inputs by the caller's names. Which of them may be left out: those that have defaults."""
    names = signature.inputs
    if len(messages) != len(names):
        _check_count(messages, signature)
    given: dict[str, Given] = {}
    for name in names:
        if name in messages:
            given[name] = reader.read(name, messages[name])
        elif not _may_miss(name, signature):
            raise InvalidArgument(
                f"Signature input alias: {name}(feed name: {feed_name(signature, name)}) not found in request and no"
                f" default value provided. Inputs expected to be in the request {_set(messages)}, or default input"
                f" alias set: {','.join(sorted(_defaults(signature)))}",
                ErrorReason.MISSING_INPUT,
            )
    if len(given) != len(messages):
        raise InvalidArgument(
            f"Inputs contains invalid name. Used request inputs: {','.join(sorted(given))},"
            f" request input: {','.join(sorted(messages))}",
            ErrorReason.UNKNOWN_INPUT,
        )
    return given


def _check_count(messages: Mapping[str, Any], signature: Signature) -> None:
    names = signature.inputs
    if len(messages) < len(names) and any(_may_miss(name, signature) for name in names):
        return
    raise InvalidArgument(
        f"input size does not match signature: {len(messages)}!={len(names)} len({_set(messages)}) !="
        f" len({_set(names)}). Sent extra: {_set(messages.keys() - names.keys())}."
        f" Missing but required: {_set(names.keys() - messages.keys())}.",
        ErrorReason.MISSING_INPUT,
    )


def _defaults(signature: Signature) -> Tensors:
    """Of a signature that takes tf.Examples they are the features', not its input's."""
    return signature.defaults if signature.features is None else NOTHING


def _may_miss(name: str, signature: Signature) -> bool:
    return name in _defaults(signature) or signature.inputs[name].optional


def _set(names: Iterable[str]) -> str:
    return f"{{{','.join(sorted(names))}}}"


def _inputs(given: Mapping[str, Given], signature: Signature) -> Tensors:
    """The inputs by the model's names. Raises InvalidArgument where a dtype is another."""
    specs = signature.inputs
    inputs = {specs[name].name: array for name, array in _defaults(signature).items()}
    for name, (_, array) in given.items():
        if array is None or array.dtype != specs[name].dtype:
            raise _wrong_dtype(given, signature)
        inputs[specs[name].name] = array
    return inputs


def _wrong_dtype(given: Mapping[str, Given], signature: Signature) -> InvalidArgument:
    """The first of the tensors that are fed, in the order of the names that the model has for them."""
    fed = sorted(given.keys() | _defaults(signature).keys(), key=lambda name: feed_name(signature, name))
    for index, name in enumerate(fed):
        want = BY_DTYPE[signature.inputs[name].dtype].number
        if name in given and given[name].number != want:
            got = type_name(given[name].number)
            return InvalidArgument(
                f"Expects arg[{index}] to be {type_name(want)} but {got} is provided", ErrorReason.DTYPE
            )
    raise AssertionError("every dtype is right")


# ------------------------------------------------------------------------------------------------------------- outputs


def _outputs(names: list[str], signature: Signature) -> dict[str, str]:
    """The outputs that are asked for, the caller's name -> the model's; nothing means all."""
    outputs: dict[str, str] = {}
    for name in names:
        if name not in signature.outputs:
            raise InvalidArgument(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the set"
                f" {_set(signature.outputs)}."
            )
        if name in outputs:
            raise InvalidArgument(f"duplicate output tensor alias: {name}")
        outputs[name] = signature.outputs[name].name
    return outputs
