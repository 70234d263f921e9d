"""Messages of PredictionService's Classify, Regress and MultiInference <-> requests and answers. Results are written by
hand, as protobuf takes a microsecond for each class.

Order of checks, which clients can see: model, signature, Examples, features. A multi-inference asks several signatures
of one model about the same Examples; those that feed it alike are one run.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import varint
from tensorgate.adapters.tf_serving.classify_regress import (
    Classified,
    ExamplesForm,
    Verb,
    check_signature,
    classified,
    infer_request,
    regressed,
    signature_for,
)
from tensorgate.adapters.tf_serving.example_proto import SMALL_BYTES, read_request
from tensorgate.adapters.tf_serving.example_tensors import Examples
from tensorgate.adapters.tf_serving.model_spec import (
    effective_spec,
    note_spec,
    resolve_request,
    resolve_spec,
    signature_name,
)
from tensorgate.adapters.tf_serving.tensors import Tensor
from tensorgate.gateway.contract.call import Call, MustOffload, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.dialect import Decode, Resolve
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, InvalidArgument, Unsupported
from tensorgate.gateway.contract.questions import InferTogether
from tensorgate.gateway.contract.tensor import Signature

_PACKAGE: Final = "tensorflow.serving."
_KINDS: Final[dict[Verb, str]] = {
    "classify": _PACKAGE + "ClassificationRequest",
    "regress": _PACKAGE + "RegressionRequest",
}
_VERBS: Final[dict[str, Verb]] = {"tensorflow/serving/classify": "classify", "tensorflow/serving/regress": "regress"}
_MULTI: Final = _PACKAGE + "MultiInferenceRequest"
_ModelSpec: Final = message(_PACKAGE + "ModelSpec")
_RESULT: Final = b"\x0a"
"""The tag of `result` in both responses."""
_MODEL_SPEC: Final = b"\x12"
_RESULTS: Final = b"\x0a"
"""The tag of MultiInferenceResponse.results, whose messages have the next three."""
_RESULT_SPEC: Final = b"\x0a"
_CLASSIFICATION: Final = b"\x12"
_REGRESSION: Final = b"\x1a"


class Task(NamedTuple):
    """One task of a multi-inference: which of the requests answers it, and how it is read."""

    request: int
    verb: Verb
    asked: ExamplesForm


# ------------------------------------------------------------------------------------------------------------ requests


def decoder(verb: Verb) -> Decode:
    """The decode of Classify or Regress."""

    def decode(call: Call, resolve: Resolve) -> InferRequest:
        """Raises InvalidArgument, LabelNotFound, ModelNotFound, MustOffload."""
        request, examples = _read(call, _KINDS[verb])
        try:
            view = resolve_request(request, resolve)
            signature = signature_for(view, request.model_spec.signature_name, verb)
            return infer_request(view, [signature], _some(examples), call.deadline)
        except GatewayError:
            note_spec(call, request.model_spec)
            raise

    return decode


def decode_multi(call: Call, resolve: Resolve) -> InferTogether:
    """Raises InvalidArgument, Unsupported, LabelNotFound, ModelNotFound, MustOffload."""
    message, examples = _read(call, _MULTI)
    try:
        view = resolve_spec(message.tasks[0].model_spec if message.tasks else _ModelSpec(), resolve)
        asked = _tasks(message.tasks, view.signatures)
        groups: dict[Hashable, list[Signature]] = {}
        tasks = []
        for verb, signature in asked:
            feed = signature.name if view.sees_requests else _feed(signature)
            groups.setdefault(feed, []).append(signature)
            tasks.append(Task([*groups].index(feed), verb, ExamplesForm(signature, len(examples))))
        _some(examples)
        requests = [infer_request(view, signatures, examples, call.deadline) for signatures in groups.values()]
        return InferTogether(tuple(requests), tasks)
    except GatewayError:
        note_spec(call, message.tasks[0].model_spec if message.tasks else _ModelSpec())
        raise


def _read(call: Call, kind: str) -> tuple[Any, Examples]:
    if not call.in_thread and len(call.body) > SMALL_BYTES:
        raise MustOffload
    return read_request(kind, call.body)


def _some(examples: Examples) -> Examples:
    if not len(examples):
        raise InvalidArgument("Input is empty.")
    return examples


def _tasks(messages: Any, signatures: Any) -> list[tuple[Verb, Signature]]:
    """What each task asks. Raises InvalidArgument, Unsupported. Source: the order of the original's checks."""
    tasks: dict[str, tuple[Verb, Signature]] = {}
    for task in messages:
        spec = task.model_spec
        if not spec.name:
            raise InvalidArgument("Found ModelSpec with an empty model name.")
        if spec.name != messages[0].model_spec.name:
            raise InvalidArgument("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
        name = signature_name(spec)
        if name in tasks:
            raise InvalidArgument(f"Duplicate evaluation of signature: {name}")
        if name not in signatures:
            raise InvalidArgument(
                f"Requested signature not found in model graph: {name}", ErrorReason.UNKNOWN_SIGNATURE
            )
        if task.method_name not in _VERBS:
            raise Unsupported(f"Unsupported signature method_name: {task.method_name}")
        tasks[name] = _VERBS[task.method_name], signatures[name]
        check_signature(signatures[name], _VERBS[task.method_name])
    return [*tasks.values()]


def _feed(signature: Signature) -> Hashable:
    """What a signature feeds the model with; signatures that a model brought are functions of their own."""
    if signature.definition:
        return signature.name
    if signature.features is None:
        return signature.inputs["inputs"].name, None
    return tuple([(name, spec.name) for name, spec in signature.features.items()])


# ------------------------------------------------------------------------------------------------------------- answers


def encode_classify(response: InferResponse, request: InferRequest) -> Reply:
    """Raises EncodingFailed."""
    return Reply(field(_RESULT, classification_result(classified(response, request.wire))) + _spec(request))


def encode_regress(response: InferResponse, request: InferRequest) -> Reply:
    """Raises EncodingFailed."""
    return Reply(field(_RESULT, regression_result(regressed(response, request.wire))) + _spec(request))


def _spec(request: InferRequest) -> bytes:
    """The field model_spec of a response."""
    return field(_MODEL_SPEC, effective_spec(request.view.name, request.view.version, request.wire.signature.name))


def encode_multi(responses: tuple[InferResponse, ...], question: InferTogether) -> Reply:
    """Raises EncodingFailed."""
    view = question.requests[0].view
    results = []
    for at, verb, asked in question.wire:
        spec = field(_RESULT_SPEC, effective_spec(view.name, view.version, asked.signature.name))
        if verb == "classify":
            result = field(_CLASSIFICATION, classification_result(classified(responses[at], asked)))
        else:
            result = field(_REGRESSION, regression_result(regressed(responses[at], asked)))
        results.append(field(_RESULTS, spec + result))
    return Reply(b"".join(results))


# -------------------------------------------------------------------------------------------------- results as messages

_FIRST: Final = b"\x0a"
"""The tag of field 1 of a message, text or list."""
_SCORE: Final = b"\x15"
_VALUE: Final = b"\x0a\x05\x0d"
"""An element of RegressionResult.regressions as far as its four bytes."""
_FLOAT: Final = np.dtype("<f4")
_FLOAT_BYTES: Final = 4


def field(tag: bytes, content: bytes) -> bytes:
    """A field that has a length."""
    return tag + varint(len(content)) + content


def classification_result(found: Classified) -> bytes:
    """A ClassificationResult. Its labels are text: bytes that are none come as U+FFFD. Every score is there, also where
    it is 0 and protobuf would leave it out: to a reader that is the same.
    """
    rows, columns = found.shape
    heads = _heads(found)
    scores = _raw(np.zeros((rows, columns), _FLOAT) if found.scores is None else found.scores)
    parts: list[Any] = [b""] * (2 * columns)
    lists = []
    for row_heads, row_scores in zip(heads, scores, strict=True):
        parts[::2] = row_heads
        parts[1::2] = row_scores
        lists.append(field(_FIRST, b"".join(parts)))
    return b"".join(lists)


def _raw(scores: Tensor) -> list[list[bytes]]:
    """float32 [rows, columns] -> the four bytes of each, row by row."""
    rows: list[list[bytes]] = np.ascontiguousarray(scores, _FLOAT).view("V4").tolist()
    return rows


def _heads(found: Classified) -> list[list[bytes]]:
    """The message of every class as far as its score."""
    rows, columns = found.shape
    if isinstance(found.labels, tuple):
        known = found.labels[:columns]
        return [[_head(label.encode()) for label in (*known, *[""] * (columns - len(known)))]] * rows
    texts = found.labels.tolist()
    heads = {label: _head(label.decode("utf-8", "replace").encode()) for label in {*chain.from_iterable(texts)}}
    return [[heads[label] for label in row] for row in texts]


def _head(label: bytes) -> bytes:
    text = field(_FIRST, label) if label else b""
    return _FIRST + varint(len(text) + len(_SCORE) + _FLOAT_BYTES) + text + _SCORE


def regression_result(values: Tensor) -> bytes:
    """float32 [Examples] -> a RegressionResult."""
    messages = np.empty((values.size, len(_VALUE) + _FLOAT_BYTES), np.uint8)
    messages[:, : len(_VALUE)] = np.frombuffer(_VALUE, np.uint8)
    messages[:, len(_VALUE) :] = np.ascontiguousarray(values, _FLOAT).view(np.uint8).reshape(-1, _FLOAT_BYTES)
    return messages.tobytes()
