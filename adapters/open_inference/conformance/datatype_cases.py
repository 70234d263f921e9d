"""Every datatype, through the identity model of it, in all the forms in which tensors travel."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tensorgate.adapters.conformance.case import ConformanceCase, Level, Step
from tensorgate.adapters.conformance.expectations import HasHeaderStart, HasJsonAndTail, HasStatus
from tensorgate.adapters.conformance.http_calls import json_ok, post
from tensorgate.adapters.conformance.patterns import INTEGER, Float32
from tensorgate.adapters.open_inference.conformance.calls import (
    CONTENTS,
    LENGTH_HEADER,
    GivenTensor,
    answered,
    binary_infer,
    call,
    cut_infer,
    error,
    failed,
    infer_document,
    infer_message,
    infer_path,
    json_values,
    malformed,
    output,
    packed,
    proto_output,
    response,
)
from tensorgate.adapters.open_inference.conformance.known_models import TRITON_TYPES, identity_name

VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "BOOL": (True, False, True, True),
    "UINT8": (0, 1, 127, 128, 255),
    "UINT16": (0, 1, 255, 256, 65535),
    "UINT32": (0, 1, 65536, 2**31, 2**32 - 1),
    "UINT64": (0, 1, 2**53 + 1, 2**63, 2**64 - 1),
    "INT8": (0, 1, -1, 127, -128),
    "INT16": (0, 1, -1, 32767, -32768),
    "INT32": (0, 1, -1, 2**31 - 1, -(2**31)),
    "INT64": (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)),
    "FP16": (0.0, 1.0, -2.5, 65504.0, 0.0999755859375),
    "FP32": (0.0, 1.0, -2.5, 0.1, 1e30, 16777216.0),
    "FP64": (0.0, 1.0, -2.5, 0.1, 1e300, 9007199254740993.0),
    "BYTES": (b"a", b"", "späße 🎈".encode(), b'"quoted\\" \n'),
}
"""The edges of each datatype."""
RAW_ONLY: Final = ("FP16",)
WRONG_LEAVES: Final[Mapping[str, tuple[Any, ...]]] = {
    "BOOL": (1, "true", None),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32", "UINT64"), (-1, 1.5, "1", True, None)),
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64"), (1.5, "1", True, None)),
    **dict.fromkeys(("FP32", "FP64"), ("1", True, None)),
    "BYTES": (1, True, None),
}
"""What is no value of the datatype in JSON."""


def cases(known: Collection[str]) -> Iterator[ConformanceCase]:
    """Of every datatype whose identity model is there."""
    for datatype in TRITON_TYPES:
        model = identity_name(datatype)
        if model not in known:
            continue
        values = VALUES[datatype]
        given = GivenTensor("IN", datatype, (len(values),), values)
        yield from _over_http(model, given)
        yield from _over_grpc(model, given)


def _over_http(model: str, given: GivenTensor) -> Iterator[ConformanceCase]:
    datatype, shape = given.datatype, given.shape
    data = packed(datatype, given.values)
    binary = {"outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}
    in_tail = (
        HasStatus((200,)),
        HasHeaderStart("content-type", "application/octet-stream"),
        HasJsonAndTail(
            LENGTH_HEADER,
            {"model_name": model, "outputs": [output("OUT", datatype, shape, None) | {"parameters": _size(data)}]},
            data,
        ),
    )

    def case(name: str, clause: str, *steps: Step, extension: str = "binary_tensor_data") -> ConformanceCase:
        level = Level.EXTENSION if extension else Level.REQUIRED
        return ConformanceCase(f"{datatype}: {name}", clause, steps, level, extension)

    yield case("binary in, binary out", "binary tensor data", binary_infer(model, [given], binary, *in_tail))
    all_binary = {"parameters": {"binary_data_output": True}}
    yield case("binary by binary_data_output", "binary tensor data", binary_infer(model, [given], all_binary, *in_tail))
    one_less = data[:-1]
    yield case(
        "tail too short",
        "binary tensor data",
        cut_infer(model, {"inputs": [_described(given, len(data))]}, one_less, *error(400)),
    )
    yield case(
        "tail too long",
        "binary tensor data",
        cut_infer(model, {"inputs": [_described(given, len(data))]}, data + b"\0", *error(400)),
    )
    yield case(
        "size that is not the shape's",
        "binary tensor data",
        cut_infer(model, {"inputs": [_described(given, len(one_less))]}, one_less, *error(400)),
    )
    if datatype in RAW_ONLY:
        yield case(
            "refused in JSON",
            "datatypes",
            post(infer_path(model), _without_data(given), *error(400, "binary")),
            extension="",
        )
        return
    numbers = [Float32(each) for each in given.values] if datatype == "FP32" else json_values(given)
    in_json = json_ok({"model_name": model, "outputs": [output("OUT", datatype, shape, numbers)]})
    document = infer_document([given])
    yield case("JSON in, JSON out", "infer, datatypes", post(infer_path(model), document, *in_json), extension="")
    yield case("binary in, JSON out", "binary tensor data", binary_infer(model, [given], {}, *in_json))
    yield case(
        "JSON in, binary out",
        "binary tensor data",
        post(infer_path(model), infer_document([given], **binary), *in_tail),
    )
    halves = [json_values(given)[:2], json_values(given)[2:]]
    nested = {"inputs": [{**document["inputs"][0], "data": halves}]}
    yield case("nested data", "tensor data: row-major order", post(infer_path(model), nested, *in_json), extension="")
    empty = GivenTensor("IN", datatype, (0,), ())
    yield case(
        "no elements",
        "tensor data",
        post(infer_path(model), infer_document([empty]), *json_ok({"outputs": [output("OUT", datatype, (0,), [])]})),
        extension="",
    )
    for what, values in (("too few", json_values(given)[1:]), ("too many", json_values(given) * 2)):
        wrong = {"inputs": [{**document["inputs"][0], "data": values}]}
        yield case(f"{what} values", "tensor data", post(infer_path(model), wrong, *malformed()), extension="")
    for leaf in WRONG_LEAVES[datatype]:
        wrong = {"inputs": [{**document["inputs"][0], "shape": [1], "data": [leaf]}]}
        yield case(
            f"{leaf!r} is no value of it", "datatypes", post(infer_path(model), wrong, *malformed()), extension=""
        )


def _over_grpc(model: str, given: GivenTensor) -> Iterator[ConformanceCase]:
    datatype = given.datatype
    data = packed(datatype, given.values)
    same = answered(
        "ModelInferResponse", response(model, [proto_output("OUT", datatype, given.shape)], data, id="same")
    )

    def case(name: str, clause: str, *steps: Step) -> ConformanceCase:
        return ConformanceCase(f"{datatype}: {name}", clause, steps)

    yield case(
        "raw contents", "raw_input_contents", call("ModelInfer", infer_message(model, [given], id="same"), *same)
    )
    short = infer_message(model, [given])
    short.raw_input_contents[0] = data[:-1]
    yield case("raw contents too short", "raw_input_contents", call("ModelInfer", short, *failed(3)))
    longer = infer_message(model, [given])
    longer.raw_input_contents[0] = data + b"\0"
    yield case("raw contents too long", "raw_input_contents", call("ModelInfer", longer, *failed(3)))
    yield case(
        "no data at all",
        "tensor contents",
        call("ModelInfer", _without_contents(model, given), *failed(3)),
    )
    if datatype in RAW_ONLY:
        return
    typed = infer_message(model, [given], raw=False, id="same")
    yield case("typed contents", "tensor contents", call("ModelInfer", typed, *same))
    both = infer_message(model, [given], raw=False)
    both.raw_input_contents.append(data)
    yield case("typed and raw contents at once", "tensor contents", call("ModelInfer", both, *failed(3)))
    few = infer_message(model, [GivenTensor("IN", datatype, given.shape, given.values[1:])], raw=False)
    yield case("too few typed contents", "tensor contents", call("ModelInfer", few, *failed(3)))
    other = _without_contents(model, given)
    field = "fp64_contents" if CONTENTS[datatype] != "fp64_contents" else "fp32_contents"
    getattr(other.inputs[0].contents, field).extend([1.0] * len(given.values))
    yield case("contents of another datatype", "tensor contents", call("ModelInfer", other, *failed(3)))
    empty = infer_message(model, [GivenTensor("IN", datatype, (0,), ())])
    yield case(
        "no elements",
        "tensor contents",
        call(
            "ModelInfer",
            empty,
            *answered("ModelInferResponse", response(model, [proto_output("OUT", datatype, (0,))], b"")),
        ),
    )


def _described(given: GivenTensor, size: int) -> dict[str, Any]:
    tensor = {"name": given.name, "datatype": given.datatype, "shape": list(given.shape)}
    return tensor | {"parameters": {"binary_data_size": size}}


def _without_data(given: GivenTensor) -> dict[str, Any]:
    tensor = {"name": given.name, "datatype": given.datatype, "shape": list(given.shape)}
    return {"inputs": [tensor | {"data": list(given.values)}]}


def _without_contents(model: str, given: GivenTensor) -> Any:
    request = infer_message(model)
    request.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
    return request


def _size(data: bytes) -> dict[str, Any]:
    return {"binary_data_size": len(data) if data else INTEGER}
