"""Requests in V2's two forms, and expectations that many cases share."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorgate.adapters.conformance.case import Expectation, Level, Step, WireRequest
from tensorgate.adapters.conformance.expectations import (
    HasCode,
    HasErrorStatus,
    HasHeader,
    HasJson,
    HasMessages,
    HasStatus,
    HasText,
)
from tensorgate.adapters.conformance.patterns import ABSENT, OBJECT, TEXT, Gap
from tensorgate.adapters.conformance.plain import plain_message
from tensorgate.adapters.protobuf.messages import message

LENGTH_HEADER: Final = "Inference-Header-Content-Length"
SERVICE: Final = "/inference.GRPCInferenceService/"
FORMATS: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """An input as a case gives it; BYTES are bytes objects."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


def packed(datatype: str, values: Sequence[Any]) -> bytes:
    """The raw form: little-endian, row by row; BYTES have their length before each."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(each)) + each for each in values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def json_values(tensor: GivenTensor) -> list[Any]:
    """As they stand in JSON."""
    return [each.decode() if isinstance(each, bytes) else each for each in tensor.values]


def infer_path(model: str, version: str = "") -> str:
    return f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"


def infer_document(tensors: Sequence[GivenTensor], **more: Any) -> dict[str, Any]:
    """The JSON of an inference with all data in it."""
    inputs = [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape), "data": json_values(each)}
        for each in tensors
    ]
    return {"inputs": inputs} | more


def binary_infer(model: str, tensors: Sequence[GivenTensor], more: Mapping[str, Any], *expected: Expectation) -> Step:
    """An inference whose inputs are all in the tail."""
    datas = [packed(each.datatype, each.values) for each in tensors]
    inputs = [
        {
            "name": each.name,
            "datatype": each.datatype,
            "shape": list(each.shape),
            "parameters": {"binary_data_size": len(data)},
        }
        for each, data in zip(tensors, datas, strict=True)
    ]
    return cut_infer(model, {"inputs": inputs, **more}, b"".join(datas), *expected)


def cut_infer(model: str, document: Mapping[str, Any], tail: bytes, *expected: Expectation) -> Step:
    """JSON and a tail, with the header that says where the cut is."""
    text = json.dumps(document).encode()
    headers = (("Content-Type", "application/octet-stream"), (LENGTH_HEADER, str(len(text))))
    return WireRequest("http", infer_path(model), (text + tail,), headers=headers), expected


def infer_message(model: str, tensors: Sequence[GivenTensor] = (), *, raw: bool = True, **more: Any) -> Any:
    """A ModelInferRequest; `raw` says where the data are."""
    request = message("inference.ModelInferRequest")(model_name=model, **more)
    for tensor in tensors:
        entry = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if raw:
            request.raw_input_contents.append(packed(tensor.datatype, tensor.values))
        else:
            getattr(entry.contents, CONTENTS[tensor.datatype]).extend(tensor.values)
    return request


def call(method: str, request: Any, *expectations: Expectation) -> Step:
    """A unary call; what is not bytes is a message."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    return WireRequest("grpc", SERVICE + method, (data,)), expectations


def stream(requests: Sequence[Any], *expectations: Expectation) -> Step:
    """A ModelStreamInfer of these messages, after which the client closes its side."""
    datas = tuple(each.SerializeToString() for each in requests)
    return WireRequest(
        "grpc", f"{SERVICE}ModelStreamInfer", datas, client_streams=True, server_streams=True
    ), expectations


def error(status: int, contains: str = "", level: Level = Level.REQUIRED) -> tuple[Expectation, ...]:
    """An error of this status; that it is one, with its text under `error`, is required whatever the level is."""
    return (
        HasErrorStatus(),
        HasJson({"error": TEXT}),
        HasStatus((status,), level),
        *(
            (HasHeader("content-type", "application/json", Level.RECOMMENDED),)
            if level is Level.REQUIRED or status == 400
            else ()
        ),
        *((HasJson({"error": Gap((str,), contains)}, Level.RECOMMENDED),) if contains else ()),
    )


def malformed(contains: str = "") -> tuple[Expectation, ...]:
    """A body that cannot be understood: an error, of status 400 where the server can tell whose fault it is."""
    return error(400, contains, Level.RECOMMENDED)


def failed(code: int, contains: str = "", level: Level = Level.REQUIRED) -> tuple[Expectation, ...]:
    """An error over gRPC, without a message before it."""
    return (
        HasCode(tuple(range(1, 17))),
        HasCode((code,), level),
        HasText(),
        *((HasText(contains, Level.RECOMMENDED),) if contains else ()),
    )


def answered(type_name: str, pattern: Any) -> tuple[Expectation, ...]:
    """A success over gRPC with one message."""
    transform = in_raw_form if type_name == "ModelInferResponse" else plain_message
    return HasCode((0,)), HasMessages(f"inference.{type_name}", (pattern,), transform=transform)


def output(name: str, datatype: str, shape: Sequence[int], data: Any = None) -> dict[str, Any]:
    """An output as JSON has it, without data where they lie in the tail."""
    described = {"name": name, "datatype": datatype, "shape": list(shape)}
    return described | ({"data": ABSENT, "parameters": OBJECT} if data is None else {"data": data})


def response(model: str, outputs: Any, *raw: bytes, **more: Any) -> dict[str, Any]:
    """A ModelInferResponse as a plain value: data are raw, in the order of the outputs."""
    return {"model_name": model, "outputs": outputs, "raw_output_contents": list(raw), **more}


def proto_output(name: str, datatype: str, shape: Sequence[int]) -> dict[str, Any]:
    """An output as a plain value: its data lie in `raw_output_contents`."""
    return {"name": name, "datatype": datatype, "shape": list(shape), "contents": ABSENT}


def in_raw_form(reply: Any) -> dict[str, Any]:
    """A ModelInferResponse as a plain value with raw contents: a server may send typed ones, and empty ones beside raw
    contents, as MLServer does.
    """
    found = plain_message(reply)
    for described, entry in zip(found["outputs"], reply.outputs, strict=True):
        datatype = described["datatype"]
        values = getattr(entry.contents, CONTENTS[datatype]) if datatype in CONTENTS else ()
        if not reply.raw_output_contents and entry.HasField("contents"):
            found["raw_output_contents"].append(packed(datatype, values))
            del described["contents"]
        elif not entry.contents.ByteSize():
            described.pop("contents", None)
    return found


def by_output_name(reply: Any) -> dict[str, Any]:
    """A ModelInferResponse as a plain value whose outputs and raw contents are sorted by the outputs' names."""
    found = in_raw_form(reply)
    if len(found["outputs"]) == len(found["raw_output_contents"]):
        order = sorted(range(len(found["outputs"])), key=lambda index: found["outputs"][index]["name"])
        found |= {key: [found[key][index] for index in order] for key in ("outputs", "raw_output_contents")}
    return found
