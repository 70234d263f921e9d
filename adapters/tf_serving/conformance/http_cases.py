"""Over HTTP: the server, any model that is found, and the known models."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tensorgate.adapters.conformance.case import ConformanceCase, Level, Step
from tensorgate.adapters.conformance.expectations import HasErrorStatus, HasStatus
from tensorgate.adapters.conformance.http_calls import get, json_ok, post
from tensorgate.adapters.conformance.patterns import ABSENT, ANY, TEXT, Float32, Including
from tensorgate.adapters.tf_serving.conformance.calls import NUMBERS, error
from tensorgate.adapters.tf_serving.conformance.facts import TfModelFacts
from tensorgate.adapters.tf_serving.conformance.known_models import ADD_SUB, HALF_PLUS_TWO, identity_name

NOBODY: Final = "no_such_model_of_conformance"
VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "DT_FLOAT": (0.0, 1.0, -2.5, 0.1, 1e30, 16777216.0),
    "DT_DOUBLE": (0.0, 1.0, -2.5, 0.1, 1e300, 0.30000000000000004),
    "DT_INT32": (0, 1, -1, 2**31 - 1, -(2**31)),
    "DT_UINT8": (0, 1, 127, 255),
    "DT_INT16": (0, 1, -1, 32767, -32768),
    "DT_INT8": (0, 1, -1, 127, -128),
    "DT_STRING": ("a", "", "späße", '"quoted\\" \n'),
    "DT_INT64": (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)),
    "DT_BOOL": (True, False, True),
    "DT_UINT32": (0, 1, 2**31, 2**32 - 1),
    "DT_UINT64": (0, 1, 2**53 + 1, 2**64 - 1),
}
"""The edges of each type."""
_NO_INTEGER: Final = (1.0, 1.5, "1", True, None)
WRONG: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("DT_FLOAT", "DT_DOUBLE"), ("1", True, None, {"a": 1})),
    **dict.fromkeys(("DT_INT32", "DT_UINT8", "DT_INT16", "DT_INT8"), (*_NO_INTEGER, 2**31)),
    "DT_INT64": (*_NO_INTEGER, 2**63),
    "DT_UINT32": (*_NO_INTEGER, -1, 2**32),
    "DT_UINT64": (*_NO_INTEGER, -1, 2**64),
    "DT_BOOL": (1, 0, "true", None),
    "DT_STRING": (1, True, None, {"a": "b"}),
}
"""What is no value of the type in JSON."""


def _case(name: str, clause: str, *steps: Step, level: Level = Level.REQUIRED) -> ConformanceCase:
    return ConformanceCase(name, clause, steps, level)


def server_cases() -> Iterator[ConformanceCase]:
    """What holds of every server, whatever it serves."""
    path = f"/v1/models/{NOBODY}"
    latest = f"Servable not found for request: Latest({NOBODY})"
    seventh = f"Servable not found for request: Specific({NOBODY}, 7)"
    none = f"Could not find any versions of model {NOBODY}"
    yield _case("status of an unknown model", "errors", get(path, *error(404, none)))
    yield _case("metadata of an unknown model", "errors", get(f"{path}/metadata", *error(404, latest)))
    yield _case("metadata of an unknown version", "errors", get(f"{path}/versions/7/metadata", *error(404, seventh)))
    anything = {"instances": [1.0]}
    yield _case("predict of an unknown model", "errors", post(f"{path}:predict", anything, *error(404, latest)))
    yield _case(
        "predict of an unknown version", "errors", post(f"{path}/versions/7:predict", anything, *error(404, seventh))
    )
    label = "Unrecognized servable version label: x"
    yield _case("predict of an unknown label", "errors", post(f"{path}/labels/x:predict", anything, *error(400, label)))
    yield _case(
        "an unknown model is told before missing keys", "order of checks", post(f"{path}:predict", {}, *error(404))
    )
    yield _case(
        "bad JSON is told before an unknown model", "order of checks", post(f"{path}:predict", b"{", *error(400))
    )
    for verb in ("classify", "regress"):
        examples = {"examples": [{"x": 1.0}]}
        yield _case(f"{verb} of an unknown model", "errors", post(f"{path}:{verb}", examples, *error(404, latest)))
        yield _case(f"{verb} without examples", "order of checks", post(f"{path}:{verb}", {}, *error(400, "examples")))
    yield _case("no model's name", "paths", get("/v1/models", *error(400, "Missing model name in request.")))
    malformed = "Malformed request: "
    for method, target in (
        ("GET", f"{path}:predict"),
        ("PUT", f"{path}:predict"),
        ("DELETE", path),
        ("PATCH", path),
        ("POST", path),
        ("POST", f"{path}/metadata"),
        ("POST", f"{path}:explain"),
        ("POST", f"{path}:PREDICT"),
        ("POST", f"{path}/versions/x:predict"),
        ("POST", f"{path}/versions/1/labels/a:predict"),
        ("GET", "/v1/other"),
        ("GET", f"{path}/"),
        ("GET", f"{path}/version/1"),
    ):
        step = get(target, *error(400, f"{malformed}{method} {target}"), method=method)
        yield _case(f"{method} {target.replace(NOBODY, 'M')}", "paths and methods", step)
    query = post(f"{path}:predict?x=1", anything, *error(400, malformed))
    yield _case("a query is part of the path", "paths", query, level=Level.RECOMMENDED)
    yield _case("a path outside /v1", "paths", get("/nothing_of_conformance", HasStatus((404,))))
    far = get(f"{path}/versions/99999999999999999999", HasErrorStatus(), HasStatus((400,)))
    yield _case("a version beyond 64 bits", "paths", far)


def model_cases(model: TfModelFacts) -> Iterator[ConformanceCase]:
    """What holds of any model, by its metadata."""

    def case(name: str, clause: str, *steps: Step) -> ConformanceCase:
        return _case(f"{model.name}: {name}", clause, *steps)

    path, version = model.path, model.version
    served = {"version": version, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    yield case("status", "status", get(path, *json_ok({"model_version_status": Including((served,))})))
    one = json_ok({"model_version_status": [served]})
    yield case("status of its version", "status", get(f"{path}/versions/{version}", *one))
    unserved = f"{path}/versions/987654"
    text = f"Could not find version 987654 of model {model.name}"
    yield case("status of an unknown version", "status", get(unserved, *error(404, text)))
    spec = {"name": model.name, "version": version, "signature_name": ""}
    described = {side: {name: _info(each) for name, each in tensors.items()} for side, tensors in _sides(model)}
    whole = {
        "model_spec": spec,
        "metadata": {"signature_def": {"signature_def": {"serving_default": described | {"method_name": TEXT}}}},
    }
    for name, target in (("metadata", path), ("metadata of its version", f"{path}/versions/{version}")):
        yield case(name, "metadata", get(f"{target}/metadata", *json_ok(whole)))
    missing = f"Specific({model.name}, 987654)"
    yield case("metadata of an unknown version", "metadata", get(f"{unserved}/metadata", *error(404, missing)))
    if model.takes_zeros:
        yield from _predict_cases(model)


def _sides(model: TfModelFacts) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return ("inputs", model.inputs), ("outputs", model.outputs)


def _info(facts: Any) -> dict[str, Any]:
    dims = [{"size": str(size), "name": TEXT} for size in facts.shape or ()]
    shape = {"dim": dims, "unknown_rank": facts.shape is None}
    return {"dtype": facts.dtype, "name": TEXT, "tensor_shape": shape}


def _predict_cases(model: TfModelFacts) -> Iterator[ConformanceCase]:
    def case(
        name: str, clause: str, body: Any, *expected: Any, target: str = f"{model.path}:predict"
    ) -> ConformanceCase:
        return _case(f"{model.name}: {name}", clause, post(target, body, *expected))

    zeros = model.zeros_in_json
    outputs = ANY if len(model.outputs) == 1 else dict.fromkeys(model.outputs, ANY)
    columns = json_ok({"outputs": outputs, "predictions": ABSENT})
    yield case("inputs by name", "predict: columns", {"inputs": zeros}, *columns)
    if len(zeros) == 1:
        yield case(
            "the only input without its name", "predict: columns", {"inputs": next(iter(zeros.values()))}, *columns
        )
    named = {"signature_name": "serving_default", "inputs": zeros}
    yield case("its signature by name", "predict: signatures", named, *columns)
    yield case("an empty signature name", "predict: signatures", named | {"signature_name": ""}, *columns)
    unknown = 'Serving signature name: "nothing" not found in signature def'
    yield case("an unknown signature", "errors", named | {"signature_name": "nothing"}, *error(400, unknown))
    text = "'signature_name' key must be a string value."
    yield case("a signature name that is no text", "errors", named | {"signature_name": 5}, *error(400, text))
    yield case("keys nobody knows are ignored", "predict", {"inputs": zeros, "strange": [1]}, *columns)
    target = f"{model.path}/versions/{model.version}:predict"
    yield case("its version", "versions", {"inputs": zeros}, *columns, target=target)
    missing = f"Servable not found for request: Specific({model.name}, 987654)"
    target = f"{model.path}/versions/987654:predict"
    yield case("an unknown version", "versions", {"inputs": zeros}, *error(404, missing), target=target)
    target = f"{model.path}/labels/no_such:predict"
    label = "Unrecognized servable version label: no_such"
    yield case("an unknown label", "labels", {"inputs": zeros}, *error(400, label), target=target)
    yield case("neither instances nor inputs", "errors", {}, *error(400, "Missing 'inputs' or 'instances' key"))
    both = {"inputs": zeros, "instances": [zeros]}
    yield case("both instances and inputs", "errors", both, *error(400, "only one of 'inputs' or 'instances'"))
    yield case("instances that are no list", "errors", {"instances": {}}, *error(400, "to be an list/array"))
    yield case("no instances", "errors", {"instances": []}, *error(400, "No values in 'instances' array"))
    first = next(iter(zeros))
    extra = {"instances": [zeros | {"no_such_input": 1}]}
    yield case("a row with a name too many", "errors", extra, *error(400, "no_such_input"))
    fewer = {"inputs": {name: value for name, value in zeros.items() if name != first}}
    yield case("an input is missing", "errors", fewer | {"inputs": fewer["inputs"] | {"other": 1}}, *error(400, first))


def known_cases(known: Collection[str]) -> Iterator[ConformanceCase]:
    """What the known models answer."""
    if HALF_PLUS_TWO in known:
        yield from _half_plus_two()
    if ADD_SUB in known:
        yield from _add_sub()
    for dtype in NUMBERS:
        if identity_name(dtype) in known:
            yield from _identity(dtype)


def _half_plus_two() -> Iterator[ConformanceCase]:
    path = f"/v1/models/{HALF_PLUS_TWO}:predict"

    def case(name: str, clause: str, body: Any, *expected: Any, **headers: str) -> ConformanceCase:
        return _case(name, clause, post(path, body, *expected, **headers))

    def rows(*values: Any) -> tuple[Any, ...]:
        return json_ok({"predictions": list(values), "outputs": ABSENT})

    three = rows(2.5, 3.0, 4.5)
    yield case("rows", "predict: rows", {"instances": [1.0, 2.0, 5.0]}, *three)
    yield case("rows by name", "predict: rows", {"instances": [{"x": 1.0}, {"x": 2.0}, {"x": 5.0}]}, *three)
    yield case("rows of lists", "predict: rows", {"instances": [[1.0, 2.0], [5.0, 0.0]]}, *rows([2.5, 3.0], [4.5, 2.0]))
    yield case("integers for floats", "datatypes", {"instances": [1, 2, 5]}, *three)
    yield case("columns", "predict: columns", {"inputs": [1.0, 2.0]}, *json_ok({"outputs": [2.5, 3.0]}))
    yield case("columns by name", "predict: columns", {"inputs": {"x": [1.0]}}, *json_ok({"outputs": [2.5]}))
    yield case(
        "unknown columns are ignored",
        "predict: columns",
        {"inputs": {"x": [1.0], "z": 5}},
        *json_ok({"outputs": [2.5]}),
    )
    for body, name in ((b'{"instances": [NaN, Infinity, -Infinity]}', "numbers that are not finite"),):
        values = float("nan"), float("inf"), float("-inf")
        yield case(name, "JSON", body, *rows(*values))
    yield case("exponents", "JSON", b'{"instances": [1e0, 2E+0, 50e-1]}', *three)
    lenient = "JSON, as upstream reads it"
    for name, body in (
        ("text after the document", b'{"instances": [1.0]} and more'),
        ("a byte order mark", b'\xef\xbb\xbf{"instances": [1.0]}'),
        ("the first of two keys", b'{"instances": [1.0], "instances": [7.0]}'),
        ("a deep key that is ignored", b'{"a": ' + b"[" * 500 + b"]" * 500 + b', "instances": [1.0]}'),
    ):
        yield _case(name, lenient, post(path, body, *rows(2.5)), level=Level.RECOMMENDED)
    yield _case(
        "a path in capitals",
        "paths",
        post(path.replace("/v1/models", "/V1/MODELS"), {"instances": [1.0]}, *rows(2.5)),
        level=Level.RECOMMENDED,
    )
    yield case("any content type", "headers", {"instances": [1.0]}, *rows(2.5), Content_Type="text/plain")
    yield case(
        "a request in gzip", "headers", gzip.compress(b'{"instances": [1.0]}'), *rows(2.5), Content_Encoding="gzip"
    )
    for name, body in _broken_bodies():
        yield case(f"body {name}", "JSON", body, *error(400, "JSON"))
    for name, instances, text in (
        ("ragged rows", [[1.0, 2.0], [3.0]], ""),
        ("ragged lists in a row", [[[1.0, 2.0], [3.0]]], "Encountered list at unexpected size"),
        ("a number beside a list", [1.0, [2.0]], ""),
        ("a row by name after a plain one", [1.0, {"x": 2.0}], "Expecting value/list but got object at item 1"),
        ("a plain row after one by name", [{"x": 1.0}, 2.0], "Expecting object but got list at item 1"),
        ("another name in a row", [{"z": 1.0}], ""),
        ("null", [None], "Type: Null is not of expected type: float"),
        ("text", ["1.0"], "Type: String is not of expected type: float"),
    ):
        yield case(f"instances: {name}", "errors", {"instances": instances}, *error(400, text))
    yield case("inputs without the name", "errors", {"inputs": {"z": 1.0}}, *error(400, "Missing named input: x"))


def _broken_bodies() -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "of spaces", b"   "
    yield "of half its JSON", b'{"instances": [1.'
    yield "that is a list", b"[1]"
    yield "that is a number", b"1"
    yield "with single quotes", b"{'instances': [1]}"
    yield "with a comma too many", b'{"instances": [1.0],}'
    yield "with a comment", b'{"instances": [1.0] /* one */}'
    for number in (b"01", b".5", b"1.", b"+1", b"1e", b"nan", b"1e400"):
        yield f"with the number {number.decode()}", b'{"instances": [' + number + b"]}"


def _add_sub() -> Iterator[ConformanceCase]:
    path = f"/v1/models/{ADD_SUB}:predict"
    row = {"a": 5.0, "b": 2.0}
    answered = {"sum": 7.0, "difference": 3.0}
    rows = json_ok({"predictions": [answered, {"sum": 1.0, "difference": -1.0}]})
    yield _case("two inputs, rows", "predict: rows", post(path, {"instances": [row, {"a": 0.0, "b": 1.0}]}, *rows))
    columns = json_ok({"outputs": {"sum": [7.0, 1.0], "difference": [3.0, -1.0]}})
    step = post(path, {"inputs": {"a": [5.0, 0.0], "b": [2.0, 1.0]}}, *columns)
    yield _case("two inputs, columns", "predict: columns", step)
    text = "expecting list of objects as multiple input tensors required"
    yield _case("two inputs, plain rows", "errors", post(path, {"instances": [1.0]}, *error(400, text)))
    text = "expecting an object as multiple input tensors required"
    yield _case("two inputs, a plain column", "errors", post(path, {"inputs": [1.0]}, *error(400, text)))
    yield _case(
        "a row without an input",
        "errors",
        post(path, {"instances": [{"a": 1.0}]}, *error(400, "keys must be equal to: a,b")),
    )
    yield _case(
        "columns without an input",
        "errors",
        post(path, {"inputs": {"a": [1.0]}}, *error(400, "Missing named input: b")),
    )


def _identity(dtype: str) -> Iterator[ConformanceCase]:
    path = f"/v1/models/{identity_name(dtype)}:predict"
    values = list(VALUES[dtype])
    same = [Float32(each) for each in values] if dtype == "DT_FLOAT" else values
    name = dtype.removeprefix("DT_")
    yield _case(f"{name}: rows", "datatypes", post(path, {"instances": values}, *json_ok({"predictions": same})))
    yield _case(f"{name}: columns", "datatypes", post(path, {"inputs": values}, *json_ok({"outputs": same})))
    step = post(path, {"instances": [{"x": each} for each in values]}, *json_ok({"predictions": same}))
    yield _case(f"{name}: rows by name", "datatypes", step)
    for wrong in WRONG[dtype]:
        step = post(path, {"instances": [wrong]}, *error(400))
        yield _case(f"{name}: {json.dumps(wrong)} is no value of it", "datatypes", step)
    if dtype == "DT_STRING":
        encoded = {"b64": base64.b64encode(b"any text").decode()}
        step = post(path, {"instances": [encoded, "plain"]}, *json_ok({"predictions": ["any text", "plain"]}))
        yield _case("STRING: base64", "base64", step)
        yield _case(
            "STRING: a column of base64",
            "base64",
            post(path, {"inputs": [encoded]}, *json_ok({"outputs": ["any text"]})),
        )
        for spoilt in ("a", "a-_b", "===="):
            step = post(path, {"instances": [{"b64": spoilt}]}, *error(400, "base64"))
            yield _case(f"STRING: {spoilt} is no base64", "base64", step)
