"""TensorFlow Serving's REST addresses for OpenAPI: predict in both of its formats for each signature, classify and
regress where a signature's tensors are theirs, metadata and status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from tensorgate.adapters.api_schemas import (
    ANY_OBJECT,
    NUMBER,
    TEXT,
    any_of,
    element,
    identifier,
    list_of,
    nested,
    parameters_of,
    record,
    ref,
    shape_text,
)
from tensorgate.adapters.tf_serving.classify_regress import Verb, suits
from tensorgate.adapters.tf_serving.errors import ANSWERS
from tensorgate.adapters.tf_serving.tensors import WITHOUT_JSON
from tensorgate.gateway.contract.api import ApiDescription, ApiOperation, ApiPart, Content, Schema
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.tensor import DEFAULT_SIGNATURE, Signature, TensorSpec

_JSON: Final = "application/json"
_MODEL: Final = "/v1/models/{model}"
_ADDRESSES: Final = {
    "": _MODEL,
    "_of_version": f"{_MODEL}/versions/{{version}}",
    "_of_label": f"{_MODEL}/labels/{{label}}",
}
"""What ids end with -> the addresses of a model, of a version by its number, and by its label."""
_BASE64_SUFFIX: Final = "_bytes"
_BASE64: Final = record({"b64": TEXT}, ["b64"])
_OPEN: Final[Schema] = {}


def _own(name: str) -> Schema:
    return ref(f"tfs_{name}")


_SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": record({"error": TEXT}, ["error"]),
    "ModelStatus": record(
        {
            "model_version_status": list_of(
                record(
                    {
                        "version": TEXT,
                        "state": {"type": "string", "enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
                        "status": record({"error_code": TEXT, "error_message": TEXT}),
                    },
                    ["version", "state"],
                )
            )
        },
        ["model_version_status"],
    ),
    "ModelMetadata": record(
        {
            "model_spec": record({"name": TEXT, "signature_name": TEXT, "version": TEXT}, ["name", "version"]),
            "metadata": record({"signature_def": ANY_OBJECT}, ["signature_def"]),
        },
        ["model_spec", "metadata"],
    ),
    "PredictRequest": record(
        {
            "signature_name": TEXT,
            "instances": list_of(_OPEN, description="Rows: each a value, or an object of values by input."),
            "inputs": {"description": "Columns: a tensor, or an object of tensors by input."},
        },
        description="Either instances or inputs.",
    ),
    "PredictResponse": record(
        {
            "predictions": list_of(_OPEN, description="Of rows: each a value, or an object of values by output."),
            "outputs": {"description": "Of columns: a tensor, or an object of tensors by output."},
        }
    ),
    "ExamplesRequest": record(
        {
            "signature_name": TEXT,
            "context": {**ANY_OBJECT, "description": "Features that all examples have."},
            "examples": list_of(ANY_OBJECT, minItems=1, description="Each an object of features."),
        },
        ["examples"],
    ),
    "ClassifyResponse": record(
        {
            "results": list_of(
                list_of(list_of(any_of([TEXT, NUMBER]), minItems=2, maxItems=2)),
                description="Of each example a list of classes: label and score.",
            )
        },
        ["results"],
    ),
    "RegressResponse": record({"results": list_of(NUMBER, description="A number for each example.")}, ["results"]),
}


class _Row(NamedTuple):
    """What stands behind an address, its label in metrics, a sentence, and the schemas of request and reply."""

    method: str
    path: str
    kind: str
    id: str
    summary: str
    reply: str
    request: str = ""


_ROWS: Final = (
    _Row("POST", ":predict", "infer", "predict", "Run a model", "PredictResponse", "PredictRequest"),
    _Row("POST", ":classify", "classify", "classify", "Classify examples", "ClassifyResponse", "ExamplesRequest"),
    _Row("POST", ":regress", "regress", "regress", "A number for each example", "RegressResponse", "ExamplesRequest"),
    _Row("GET", "", "status", "model_version_status", "The state of a model's versions", "ModelStatus"),
    _Row("GET", "/metadata", "metadata", "model_signatures", "The signatures of a model", "ModelMetadata"),
)


def _json(schema: Schema) -> Content:
    return {_JSON: schema}


def _of_server() -> ApiPart:
    operations = []
    for suffix, address in _ADDRESSES.items():
        for row in _ROWS:
            path = address + row.path
            parameters = parameters_of(path, {"version": {"type": "string", "pattern": "^[0-9]+$"}})
            request = _json(_own(row.request)) if row.request else {}
            operations.append(
                ApiOperation(
                    row.kind,
                    row.method,
                    path,
                    row.id + suffix,
                    row.summary,
                    _json(_own(row.reply)),
                    request=request,
                    parameters=parameters,
                )
            )
    return ApiPart(tuple(operations), {f"tfs_{name}": schema for name, schema in _SCHEMAS.items()})


# -------------------------------------------------------------------------------------------------------------- models


def _of_model(view: ModelView, version: int | None) -> ApiPart:
    address = f"/v1/models/{quote(view.name, safe='')}" + ("" if version is None else f"/versions/{version}")
    name = identifier(view.name)
    schemas: dict[str, Schema] = {}
    requests: dict[str, Schema] = {}
    replies: dict[str, Schema] = {}
    predicted = [each for each in view.signatures.values() if _is_json(each)]
    if predicted and not view.decoupled:
        schemas |= _predict_schemas(name, predicted)
        requests["infer"], replies["infer"] = ref(f"{name}_PredictRequest"), ref(f"{name}_PredictResponse")
    for verb in _VERBS:
        fitting = [each for each in view.signatures.values() if suits(each, verb)]
        if fitting and not view.decoupled:
            schemas[f"{name}_{verb.capitalize()}Request"] = _examples(fitting)
            requests[verb] = ref(f"{name}_{verb.capitalize()}Request")
    operations = []
    for row in _ROWS:
        if row.request and row.kind not in requests:
            continue
        request = _json(requests[row.kind]) if row.request else {}
        reply = _json(replies.get(row.kind, _own(row.reply)))
        operations.append(
            ApiOperation(
                row.kind, row.method, address + row.path, f"{row.id}_{name}", row.summary, reply, request=request
            )
        )
    return ApiPart(tuple(operations), schemas)


_VERBS: Final[tuple[Verb, ...]] = ("classify", "regress")


def _is_json(signature: Signature) -> bool:
    """Some datatypes have no words in this protocol's JSON."""
    specs = (*signature.inputs.values(), *signature.outputs.values())
    return not any(spec.dtype in WITHOUT_JSON for spec in specs)


def _predict_schemas(name: str, signatures: Iterable[Signature]) -> Iterator[tuple[str, Schema]]:
    """Of each signature: rows, where all of its tensors have them, and columns."""
    requests, replies = [], []
    for signature in signatures:
        prefix = name if signature.name == DEFAULT_SIGNATURE else f"{name}_{identifier(signature.name)}"
        chosen: Mapping[str, Schema] = {"signature_name": {"type": "string", "const": signature.name}}
        needed = [] if signature.name == DEFAULT_SIGNATURE else ["signature_name"]
        tensors = [*signature.inputs.values(), *signature.outputs.values()]
        forms = [("inputs", "outputs", False)]
        if all(spec.shape is None or spec.shape for spec in tensors):
            forms.insert(0, ("instances", "predictions", True))
        for given, told, rows in forms:
            key = "Rows" if rows else "Columns"
            taken = _taken(signature.inputs, rows=rows)
            yield (
                f"{prefix}_Predict{key}",
                record({**chosen, given: taken}, [given, *needed], description=_about(signature)),
            )
            yield f"{prefix}_Predicted{key}", record({told: _given(signature.outputs, rows=rows)}, [told])
            requests.append(ref(f"{prefix}_Predict{key}"))
            replies.append(ref(f"{prefix}_Predicted{key}"))
    yield f"{name}_PredictRequest", any_of(requests)
    yield f"{name}_PredictResponse", any_of(replies)


def _taken(inputs: Mapping[str, TensorSpec], *, rows: bool) -> Schema:
    """One tensor bare or by its name, several by their names; as `rows` a list of such things, each without the batch
    dimension. Texts that are bytes go in base64.
    """
    values = {
        name: _tensor(spec, element(spec.dtype, any_of([TEXT, _BASE64])), rows=rows) for name, spec in inputs.items()
    }
    named = record(values, values)
    schema = any_of([*values.values(), named]) if len(values) == 1 else named
    return list_of(schema) if rows else schema


def _given(outputs: Mapping[str, TensorSpec], *, rows: bool) -> Schema:
    """One tensor bare, several by their names; `rows` as above."""
    values = {}
    for name, spec in outputs.items():
        text = _BASE64 if name.endswith(_BASE64_SUFFIX) else TEXT
        values[name] = _tensor(spec, element(spec.dtype, text), rows=rows)
    schema = next(iter(values.values())) if len(values) == 1 else record(values, values)
    return list_of(schema) if rows else schema


def _tensor(spec: TensorSpec, item: Schema, *, rows: bool) -> Schema:
    if spec.shape is None:
        return _OPEN
    return nested(item, spec.shape[1:] if rows else spec.shape)


def _about(signature: Signature) -> str:
    return "; ".join(f"{name}: {shape_text(spec)}" for name, spec in signature.inputs.items())


def _examples(signatures: Iterable[Signature]) -> Schema:
    """Features by their names, as far as the signatures know them; a feature is a value or a flat list."""
    known = list(signatures)
    features: dict[str, Schema] = {}
    for signature in known:
        for name, spec in (signature.features or {}).items():
            item = element(spec.dtype, any_of([TEXT, _BASE64]))
            features[name] = any_of([item, list_of(item)])
    example = {**record(features), "additionalProperties": True}
    return record(
        {
            "signature_name": {"type": "string", "enum": [signature.name for signature in known]},
            "context": example,
            "examples": list_of(example, minItems=1),
        },
        ["examples"] if any(each.name == DEFAULT_SIGNATURE for each in known) else ["signature_name", "examples"],
    )


DESCRIPTION: Final = ApiDescription(
    _of_server, _of_model, {kind: answer.http_status for kind, answer in ANSWERS.items()}, _own("Error")
)
