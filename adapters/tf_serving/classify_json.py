"""JSON bodies of `:classify` and `:regress`: {"examples": [...], "context": {...}} -> {"results": [...]}. Contract:
TensorFlow Serving's REST API.

Order of checks, which clients can see: syntax, top level, signature_name, context, examples; then model, signature,
features. So a wrong body of an unknown model is a wrong body.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from tensorgate.adapters.json.body import ARRAY
from tensorgate.adapters.tf_serving.classify_regress import (
    Classified,
    Verb,
    classified,
    infer_request,
    regressed,
    signature_for,
)
from tensorgate.adapters.tf_serving.errors import JSON_HEADERS
from tensorgate.adapters.tf_serving.example_json import JsonExamples, read_example
from tensorgate.adapters.tf_serving.json_text import number_rows, quote, show
from tensorgate.adapters.tf_serving.model_spec import resolve_model
from tensorgate.adapters.tf_serving.request_body import plain_body, read_object
from tensorgate.gateway.contract.call import Call, MustOffload, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.dialect import INLINE_DECODE_MAX_JSON_BYTES, Decode, Resolve
from tensorgate.gateway.contract.errors import InvalidArgument

_MAX_EXAMPLES: Final = 1 << 20
"""An empty one has three bytes here, and 64 as an object."""


def decoder(verb: Verb) -> Decode:
    """The decode of a verb."""

    def decode(call: Call, resolve: Resolve) -> InferRequest:
        if len(call.body) > INLINE_DECODE_MAX_JSON_BYTES and not call.in_thread:
            raise MustOffload
        name, examples = _read(read_object(call, bytes(plain_body(call))))
        view = resolve_model(call, resolve)
        return infer_request(view, [signature_for(view, name, verb)], examples, call.deadline)

    return decode


def _read(root: Any) -> tuple[str, JsonExamples]:
    """The name of the signature, "" if there is none, and the Examples."""
    name = root.get("signature_name", "")
    if not isinstance(name, str):
        _refuse(root, "not formatted correctly. 'signature_name' key must be a string value.")
    context = read_example(root["context"]) if "context" in root else None
    if "examples" not in root:
        _refuse(root, "When method is classify, key 'examples' is expected and was not found")
    examples = root["examples"]
    if not isinstance(examples, ARRAY):
        _refuse(root, "Expecting 'examples' value to be an list/array")
    if not len(examples):
        _refuse(root, "'examples' value is an empty array")
    if len(examples) > _MAX_EXAMPLES:
        raise InvalidArgument(f"'examples' has more than {_MAX_EXAMPLES} elements")
    return name, JsonExamples([read_example(example) for example in examples], context)


def _refuse(root: Any, objection: str) -> NoReturn:
    raise InvalidArgument(f"JSON Value: {show(root)} {objection}")


def encode_classify(response: InferResponse, request: InferRequest) -> Reply:
    """Rows of [label, score], in the order in which the model has the classes. Raises EncodingFailed."""
    found = classified(response, request.wire)
    _, columns = found.shape
    if not columns:
        rows = ["[]"] * found.shape[0]
    else:
        scores = ["0.0"] * math.prod(found.shape) if found.scores is None else number_rows(found.scores, 1)
        pairs = map(str.__add__, _openings(found), scores)
        rows = [f"[{'], '.join(row)}]]" for row in zip(*[pairs] * columns, strict=True)]
    text = '{\n    "results": [' + ", ".join(rows) + "\n    ]\n}"
    return Reply(text.encode("utf-8", "surrogateescape"), headers=JSON_HEADERS)


def _openings(found: Classified) -> Iterable[str]:
    """The text of every class as far as its score, row by row; the label is "" where the model tells none."""
    rows, columns = found.shape
    if isinstance(found.labels, tuple):
        known = found.labels[:columns]
        return [f"[{quote(label)}, " for label in (*known, *[""] * (columns - len(known)))] * rows
    labels = found.labels.reshape(-1).tolist()
    openings = {label: f"[{quote(label.decode('utf-8', 'surrogateescape'))}, " for label in {*labels}}
    return [openings[label] for label in labels]


def encode_regress(response: InferResponse, request: InferRequest) -> Reply:
    """One number per Example. Raises EncodingFailed."""
    values = regressed(response, request.wire)
    [numbers] = number_rows(values, values.size, ", ")
    return Reply(f'{{\n    "results": [{numbers}]\n}}'.encode(), headers=JSON_HEADERS)
