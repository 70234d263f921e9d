"""Signatures that classify and regress: tf.Examples -> InferRequest, InferResponse -> classes and values, whatever
bytes they travel in.

Both transports ask and answer alike but for the bytes. A signature's method_name is not looked at, only its tensors.
Source: TensorFlow Serving, whose checks, in this order, and texts these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from google.protobuf import text_format

from tensorgate.adapters.tf_serving.data_types import BY_DTYPE
from tensorgate.adapters.tf_serving.example_tensors import Examples, model_inputs
from tensorgate.adapters.tf_serving.model_spec import requests_of
from tensorgate.adapters.tf_serving.signature_def import signature_def
from tensorgate.adapters.tf_serving.tensors import Tensor, output_of
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import EncodingFailed, ErrorReason, InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, DEFAULT_SIGNATURE, DTYPES, Signature

Verb: TypeAlias = Literal["classify", "regress"]

INPUTS: Final = "inputs"
CLASSES: Final = "classes"
SCORES: Final = "scores"
OUTPUTS: Final = "outputs"
_FLOAT: Final = DTYPES["FP32"]


@dataclass(frozen=True, slots=True)
class ExamplesForm:
    """What the encoder needs: the signature, and how many Examples came."""

    signature: Signature
    count: int


class Classified(NamedTuple):
    """The classes of every Example, best or not. `scores` are float32 [Examples, classes], None where the model has
    none; `labels` BYTES of that shape, or the names of the classes, as many as are known.
    """

    shape: tuple[int, int]
    labels: Tensor | tuple[str, ...]
    scores: Tensor | None


# ------------------------------------------------------------------------------------------------------------ requests


def signature_for(view: ModelView, name: str, verb: Verb) -> Signature:
    """The signature of that name, "" being the default, if its tensors are a verb's. Raises InvalidArgument."""
    signature = view.signatures.get(name or DEFAULT_SIGNATURE)
    if signature is None:
        raise InvalidArgument(
            f"No signature was found with the name: {name or DEFAULT_SIGNATURE}", ErrorReason.UNKNOWN_SIGNATURE
        )
    check_signature(signature, verb)
    return signature


def check_signature(signature: Signature, verb: Verb) -> None:
    """Whether a signature's tensors are a verb's. Raises InvalidArgument."""
    if len(signature.inputs) != 1:
        raise InvalidArgument("Expected one input Tensor.")
    if verb == "classify":
        _check_classification(signature)
    else:
        _check_regression(signature)


def suits(signature: Signature, verb: Verb) -> bool:
    """Whether a signature's tensors are a verb's."""
    try:
        check_signature(signature, verb)
    except InvalidArgument:
        return False
    return True


def _check_classification(signature: Signature) -> None:
    outputs = signature.outputs
    if len(outputs) not in (1, 2):
        raise InvalidArgument(f"Expected one or two output Tensors, found {len(outputs)}")
    if INPUTS not in signature.inputs:
        raise InvalidArgument(f"No classification inputs found in SignatureDef: {_text(signature)}")
    if CLASSES not in outputs and SCORES not in outputs:
        raise InvalidArgument(
            'Expected classification signature outputs to contain at least one of "classes" or "scores". Signature was:'
            f" {_text(signature)}"
        )


def _check_regression(signature: Signature) -> None:
    if len(signature.outputs) != 1:
        raise InvalidArgument("Expected one output Tensor.")
    if INPUTS not in signature.inputs:
        raise InvalidArgument(f"No regression inputs found in SignatureDef: {_text(signature)}")
    if OUTPUTS not in signature.outputs:
        raise InvalidArgument(f"No regression outputs found in SignatureDef: {_text(signature)}")


def _text(signature: Signature) -> str:
    return text_format.MessageToString(signature_def(signature))


def infer_request(
    view: ModelView, signatures: Sequence[Signature], examples: Examples, deadline: float | None
) -> InferRequest:
    """The Examples as one request for what classification and regression look at in these signatures, which feed the
    model alike. Raises InvalidArgument.
    """
    looked_at = (CLASSES, SCORES, OUTPUTS)
    specs = [signature.outputs[name] for signature in signatures for name in looked_at if name in signature.outputs]
    wanted = [spec.name for spec in specs]
    return InferRequest(
        view,
        model_inputs(signatures[0], examples),
        outputs=() if {*wanted} == view.outputs.keys() else requests_of(wanted),
        signature=signatures[0].name,
        deadline=deadline,
        wire=ExamplesForm(signatures[0], len(examples)),
    )


# ------------------------------------------------------------------------------------------------------------- answers


def classified(response: InferResponse, asked: ExamplesForm) -> Classified:
    """Raises EncodingFailed for outputs that are no classes."""
    outputs = asked.signature.outputs
    classes = _matrix(response, asked, CLASSES, BYTES) if CLASSES in outputs else None
    scores = _matrix(response, asked, SCORES, _FLOAT) if SCORES in outputs else None
    if classes is None:
        assert scores is not None  # noqa: S101  # the signature has one of the two
        return Classified(scores.shape, outputs[SCORES].labels, scores)
    if scores is not None and scores.shape != classes.shape:
        raise EncodingFailed(
            f"Tensors class and score should match in dim_size(1). Got {classes.shape[1]} vs. {scores.shape[1]}"
        )
    return Classified(classes.shape, classes, scores)


def _matrix(response: InferResponse, asked: ExamplesForm, name: str, dtype: Any) -> Tensor:
    """An output [Examples, classes] of that dtype."""
    tensor = output_of(response, asked.signature.outputs[name].name)
    if tensor.ndim != 2:
        raise EncodingFailed(f"Expected Tensor shape: [batch_size num_classes] but got {_shape(tensor)}")
    if tensor.dtype != dtype:
        raise EncodingFailed(f"Expected {name} Tensor of {BY_DTYPE[dtype].name}. Got: {BY_DTYPE[tensor.dtype].name}")
    if tensor.shape[0] != asked.count:
        raise EncodingFailed(f"Expected {name} output batch size of {asked.count}. Got: {tensor.shape[0]}")
    return tensor


def regressed(response: InferResponse, asked: ExamplesForm) -> Tensor:
    """The value of every Example, float32 [Examples]. Raises EncodingFailed for outputs that are no such thing."""
    tensor = output_of(response, asked.signature.outputs[OUTPUTS].name)
    if tensor.ndim != 1 and (tensor.ndim != 2 or tensor.shape[1] != 1):
        raise EncodingFailed(
            f"Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {_shape(tensor)}"
        )
    if tensor.shape[0] != asked.count:
        raise EncodingFailed(f"Input batch size did not match output batch size: {asked.count} vs. {tensor.shape[0]}")
    if tensor.dtype != _FLOAT:
        raise EncodingFailed(f"Expected output Tensor of DT_FLOAT.  Got: {BY_DTYPE[tensor.dtype].name}")
    return tensor.reshape(-1)


def _shape(tensor: Tensor) -> str:
    return f"[{','.join(map(str, tensor.shape))}]"
