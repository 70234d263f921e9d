"""Over gRPC: the server, any model that is found, and the known models."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tensorgate.adapters.conformance.case import UNIMPLEMENTED, ConformanceCase, Level, Step
from tensorgate.adapters.conformance.expectations import HasCode
from tensorgate.adapters.conformance.patterns import OBJECT, Float32, Gap, Including
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.conformance.calls import (
    FIELDS,
    MODELS,
    NUMBERS,
    answered,
    call,
    failed,
    model_spec,
    predict_request,
    request,
    tensor,
    tensor_pattern,
)
from tensorgate.adapters.tf_serving.conformance.facts import TfModelFacts
from tensorgate.adapters.tf_serving.conformance.http_cases import NOBODY, VALUES
from tensorgate.adapters.tf_serving.conformance.known_models import ADD_SUB, HALF_PLUS_TWO, identity_name

INVALID: Final = 3
NOT_FOUND: Final = 5
FAILED_PRECONDITION: Final = 9
FORMATS: Final[Mapping[str, str]] = {
    "DT_FLOAT": "f",
    "DT_DOUBLE": "d",
    "DT_INT32": "i",
    "DT_UINT8": "B",
    "DT_INT16": "h",
    "DT_INT8": "b",
    "DT_INT64": "q",
    "DT_BOOL": "?",
    "DT_UINT32": "I",
    "DT_UINT64": "Q",
}


def _case(name: str, clause: str, *steps: Step, level: Level = Level.REQUIRED) -> ConformanceCase:
    return ConformanceCase(name, clause, steps, level)


def server_cases() -> Iterator[ConformanceCase]:
    """What holds of every server, whatever it serves."""
    latest = f"Servable not found for request: Latest({NOBODY})"
    some = {"x": tensor("DT_FLOAT", (1,), [1.0])}
    unknown = predict_request(NOBODY, some)
    yield _case("Predict of an unknown model", "errors", call("Predict", unknown, *failed(NOT_FOUND, latest)))
    versioned = predict_request(NOBODY, some, version={"value": 7})
    specific = f"Servable not found for request: Specific({NOBODY}, 7)"
    yield _case("Predict of an unknown version", "errors", call("Predict", versioned, *failed(NOT_FOUND, specific)))
    labelled = predict_request(NOBODY, some, version_label="x")
    text = "Unrecognized servable version label: x"
    yield _case("Predict of an unknown label", "errors", call("Predict", labelled, *failed(INVALID, text)))
    yield _case("Predict without a ModelSpec", "ModelSpec", call("Predict", b"", *failed(INVALID, "Missing ModelSpec")))
    nameless = predict_request("", some)
    text = "ModelSpec has no name specified."
    yield _case("Predict without a name", "ModelSpec", call("Predict", nameless, *failed(INVALID, text)))
    yield _case("an unknown method", "gRPC", call("NoSuchMethod", b"", HasCode((UNIMPLEMENTED,))))
    status = request("GetModelStatusRequest", **model_spec(NOBODY))
    text = f"Could not find any versions of model {NOBODY}"
    yield _case(
        "status of an unknown model", "errors", call("GetModelStatus", status, *failed(NOT_FOUND, text), service=MODELS)
    )
    asked = request("GetModelMetadataRequest", metadata_field=["signature_def"], **model_spec(NOBODY))
    yield _case("metadata of an unknown model", "errors", call("GetModelMetadata", asked, *failed(NOT_FOUND, latest)))
    for fields, text in (([], "must specify at least one metadata_field"), (["other"], "Metadata field other")):
        asked = request("GetModelMetadataRequest", metadata_field=fields, **model_spec(NOBODY))
        yield _case(f"metadata fields {fields}", "errors", call("GetModelMetadata", asked, *failed(INVALID, text)))
    for kind in ("Classification", "Regression"):
        method = "Classify" if kind == "Classification" else "Regress"
        asked = request(f"{kind}Request", **model_spec(NOBODY))
        asked.input.example_list.examples.add()
        yield _case(f"{method} of an unknown model", "errors", call(method, asked, *failed(NOT_FOUND, latest)))
    none = request("MultiInferenceRequest")
    yield _case("MultiInference without tasks", "errors", call("MultiInference", none, *failed(INVALID)))


def model_cases(model: TfModelFacts) -> Iterator[ConformanceCase]:
    """What holds of any model, by its metadata."""

    def case(name: str, clause: str, *steps: Step) -> ConformanceCase:
        return _case(f"{model.name}: {name}", clause, *steps)

    version = int(model.version)
    served = {"version": version, "state": 30, "status": {"error_code": 0, "error_message": ""}}
    asked = request("GetModelStatusRequest", **model_spec(model.name))
    expected = answered("GetModelStatusResponse", {"model_version_status": Including((served,))})
    yield case("status", "GetModelStatus", call("GetModelStatus", asked, *expected, service=MODELS))
    asked = request("GetModelStatusRequest", **model_spec(model.name, version={"value": version}))
    expected = answered("GetModelStatusResponse", {"model_version_status": [served]})
    yield case("status of its version", "GetModelStatus", call("GetModelStatus", asked, *expected, service=MODELS))
    asked = request("GetModelStatusRequest", **model_spec(model.name, version={"value": 987654}))
    expected = failed(NOT_FOUND, f"Could not find version 987654 of model {model.name}")
    yield case("status of an unknown version", "errors", call("GetModelStatus", asked, *expected, service=MODELS))
    asked = request("GetModelMetadataRequest", metadata_field=["signature_def"], **model_spec(model.name))
    entry = {"type_url": "type.googleapis.com/tensorflow.serving.SignatureDefMap", "value": Gap((bytes,))}
    spec = {"name": model.name, "version": {"value": version}, "signature_name": ""}
    expected = answered("GetModelMetadataResponse", {"model_spec": spec, "metadata": {"signature_def": entry}})
    yield case("metadata", "GetModelMetadata", call("GetModelMetadata", asked, *expected))
    if model.takes_zeros:
        yield from _predict_cases(model, version)


def _predict_cases(model: TfModelFacts, version: int) -> Iterator[ConformanceCase]:
    def case(name: str, clause: str, given: Any, *expected: Any) -> ConformanceCase:
        return _case(f"{model.name}: {name}", clause, call("Predict", given, *expected))

    zeros = model.zeros_in_proto
    spec = {"name": model.name, "version": {"value": version}, "signature_name": "serving_default"}
    outputs = {name: {"dtype": NUMBERS[each.dtype], "tensor_shape": OBJECT} for name, each in model.outputs.items()}
    whole = answered("PredictResponse", {"model_spec": spec, "outputs": outputs})
    yield case("zeros", "Predict", predict_request(model.name, zeros), *whole)
    named = predict_request(model.name, zeros, signature_name="serving_default", version={"value": version})
    yield case("its version and signature by name", "ModelSpec", named, *whole)
    unserved = predict_request(model.name, zeros, version={"value": 987654})
    yield case("an unknown version", "errors", unserved, *failed(NOT_FOUND, f"Specific({model.name}, 987654)"))
    zeroth = predict_request(model.name, zeros, version={"value": 0})
    if version:
        yield case("version 0 is not the latest", "ModelSpec", zeroth, *failed(NOT_FOUND, f"Specific({model.name}, 0)"))
    labelled = predict_request(model.name, zeros, version_label="no_such")
    yield case("an unknown label", "errors", labelled, *failed(INVALID, "Unrecognized servable version label: no_such"))
    other = predict_request(model.name, zeros, signature_name="nothing")
    text = 'Serving signature key "nothing" not found.'
    yield case("an unknown signature", "errors", other, *failed(FAILED_PRECONDITION, text))
    none = predict_request(model.name, {})
    yield case("no inputs", "errors", none, *failed(INVALID, "input size does not match signature"))
    more = predict_request(model.name, zeros | {"no_such_input": tensor("DT_FLOAT", (), [0.0])})
    yield case("an input too many", "errors", more, *failed(INVALID, "no_such_input"))
    first, facts = next(iter(model.inputs.items()))
    wrong = "DT_INT64" if facts.dtype != "DT_INT64" else "DT_FLOAT"
    shape, _ = facts.zeros
    retyped = predict_request(model.name, zeros | {first: tensor(wrong, shape, [0])})
    yield case("another datatype", "errors", retyped, *failed(INVALID))
    for output in model.outputs:
        chosen = predict_request(model.name, zeros)
        chosen.output_filter.append(output)
        only = HasCode((0,)), *answered("PredictResponse", {"outputs": {output: outputs[output]}})[1:]
        yield case(f"only output {output}", "output_filter", chosen, *only)
    chosen = predict_request(model.name, zeros)
    chosen.output_filter.append("no_such_output")
    text = "output tensor alias not found in signature: no_such_output"
    yield case("an output that is not there", "output_filter", chosen, *failed(INVALID, text))
    twice = predict_request(model.name, zeros)
    twice.output_filter.extend([next(iter(model.outputs))] * 2)
    yield case("an output twice", "output_filter", twice, *failed(INVALID, "duplicate output tensor alias"))


def known_cases(known: Collection[str]) -> Iterator[ConformanceCase]:
    """What the known models answer."""
    if HALF_PLUS_TWO in known:
        yield from _half_plus_two()
    if ADD_SUB in known:
        pair = {"a": tensor("DT_FLOAT", (2,), [5.0, 0.0]), "b": tensor("DT_FLOAT", (2,), [2.0, 1.0])}
        outputs = {
            "sum": tensor_pattern("DT_FLOAT", (2,), [7.0, 1.0]),
            "difference": tensor_pattern("DT_FLOAT", (2,), [3.0, -1.0]),
        }
        expected = answered("PredictResponse", {"outputs": outputs})
        yield _case("two inputs", "Predict", call("Predict", predict_request(ADD_SUB, pair), *expected))
    for dtype in NUMBERS:
        if identity_name(dtype) in known:
            yield from _identity(dtype)


def _half_plus_two() -> Iterator[ConformanceCase]:
    def case(name: str, given: Any, *expected: Any, clause: str = "TensorProto") -> ConformanceCase:
        return _case(name, clause, call("Predict", predict_request(HALF_PLUS_TWO, {"x": given}), *expected))

    def values(shape: Any, *numbers: float) -> tuple[Any, ...]:
        return answered("PredictResponse", {"outputs": {"y": tensor_pattern("DT_FLOAT", shape, numbers)}})

    yield case("a list", tensor("DT_FLOAT", (3,), [1.0, 2.0, 5.0]), *values((3,), 2.5, 3.0, 4.5))
    yield case("a table", tensor("DT_FLOAT", (2, 1), [1.0, 2.0]), *values((2, 1), 2.5, 3.0))
    yield case("no elements", tensor("DT_FLOAT", (0,)), *values((0,)))
    content = tensor("DT_FLOAT", (2,), content=struct.pack("<2f", 1, 2))
    yield case("tensor_content", content, *values((2,), 2.5, 3.0))
    both = tensor("DT_FLOAT", (2,), [9.0, 9.0], struct.pack("<2f", 1, 2))
    yield case("tensor_content wins over values", both, *values((2,), 2.5, 3.0))
    yield case("the last value is repeated", tensor("DT_FLOAT", (3,), [1.0, 2.0]), *values((3,), 2.5, 3.0, 3.0))
    yield case("no values are zeros", tensor("DT_FLOAT", (2,)), *values((2,), 2.0, 2.0))
    yield case("values too many are dropped", tensor("DT_FLOAT", (1,), [1.0, 2.0]), *values((1,), 2.5))
    for size in (7, 9, 4):
        spoilt = tensor("DT_FLOAT", (2,), content=b"\0" * size)
        yield case(f"tensor_content of {size} bytes for 8", spoilt, *failed(INVALID, "tensor parsing error"))
    untyped = message("tensorflow.TensorProto")(float_val=[1.0])
    yield case("no datatype", untyped, *failed(INVALID))
    negative = tensor("DT_FLOAT", (-1,), [1.0])
    yield case("a negative dimension", negative, *failed(INVALID, "tensor parsing error"))


def _identity(dtype: str) -> Iterator[ConformanceCase]:
    name, model = dtype.removeprefix("DT_"), identity_name(dtype)
    values: list[Any] = [each.encode() if isinstance(each, str) else each for each in VALUES[dtype]]
    shown = [Float32(each) for each in values] if dtype == "DT_FLOAT" else values
    pattern = tensor_pattern(dtype, (len(values),), shown)
    expected = answered("PredictResponse", {"outputs": {"y": pattern}})
    typed = predict_request(model, {"x": tensor(dtype, (len(values),), values)})
    yield _case(f"{name}: {FIELDS[dtype]}", "TensorProto", call("Predict", typed, *expected))
    if dtype in FORMATS:
        data = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
    else:
        data = bytes(len(each) for each in values) + b"".join(values)
    content = predict_request(model, {"x": tensor(dtype, (len(values),), content=data)})
    yield _case(f"{name}: tensor_content", "TensorProto", call("Predict", content, *expected))
