"""Open Inference V2 as clients write it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from form import (
    Ask,
    Form,
    check_grpc,
    check_json,
    from_json,
    from_raw,
    given,
    leaves_of,
    nested_of,
    over_grpc,
    over_http,
    plain_json,
    raw_bytes,
    read_anything,
)
from spoilt import spoil_proto, spoilt
from truth import DTYPES, Arrays, Refused
from wire import Message, Reply

from tensorgate.adapters.protobuf.messages import message


def _path(ask: Ask, verb: str) -> str:
    version = f"/versions/{ask.version}" if ask.version else ""
    return f"/v2/models/{ask.model.name}{version}/{verb}"


def _json(*, binary_in: bool, binary_out: bool, packed: bool = False) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        source = ask.random
        inputs: list[Any] = []
        tail = b""
        for name, datatype, array in given(ask):
            item: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype}
            if binary_in and (source.random() < 0.8 or datatype == "FP16"):
                data = raw_bytes(array)
                item["parameters"] = {"binary_data_size": len(data)}
                tail += data
            else:
                item["data"] = nested_of(array) if source.random() < 0.3 and array.ndim else leaves_of(array)
            inputs.append(item)
        body: dict[str, Any] = {"inputs": inputs}
        parameters: dict[str, Any] = dict(ask.parameters)
        if binary_out and not ask.outputs:
            parameters["binary_data_output"] = True
        if parameters:
            body["parameters"] = parameters
        if ask.id:
            body = {"id": ask.id, **body} if ask.seed % 2 else {**body, "id": ask.id}
        if ask.outputs:
            body["outputs"] = [_requested(ask, name, binary_out) for name in ask.outputs]
        compact = {"separators": (",", ":")} if ask.seed % 2 else {}
        text = spoilt(ask, body, lambda document: json.dumps(document, **compact).encode())  # type: ignore[arg-type]
        headers = [("Inference-Header-Content-Length", str(len(text)))] if binary_in else []
        whole = text + tail
        if packed:
            whole = gzip.compress(whole, mtime=0)
            headers.append(("Content-Encoding", "gzip"))
        return over_http(ask, _path(ask, "infer"), whole, *headers)

    return encode


def _requested(ask: Ask, name: str, binary: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if name in ask.classes:
        parameters["classification"] = ask.classes[name]
    if binary:
        parameters["binary_data"] = True
    elif ask.seed % 5 == 0:
        parameters["binary_data"] = False
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def _read(ask: Ask, reply: Reply) -> list[Arrays]:
    check_json(reply)
    cut = reply.header("inference-header-content-length")
    whole = reply.body
    text, tail = (whole[: int(cut)], whole[int(cut) :]) if cut else (whole, b"")
    document = json.loads(text)
    assert document.get("id", "") == ask.id, "another id"
    assert document["model_version"] == "1", "another version"
    found = {}
    for item in document["outputs"]:
        size = item.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[item["name"]] = from_json(item["data"], item["datatype"], item["shape"])
        else:
            found[item["name"]] = from_raw(tail[:size], item["datatype"], item["shape"])
            tail = tail[size:]
    assert not tail, "bytes of nothing"
    assert [item["name"] for item in document["outputs"]] == _in_order(ask), "another order"
    return [found]


def _in_order(ask: Ask) -> list[str]:
    names = [each.name for each in ask.model.outputs]
    return [name for name in names if not ask.outputs or name in ask.outputs]


def _raw(ask: Ask) -> Message:
    """The body is the tensor, and nothing tells what it is."""
    (array,) = list(ask.tensors.values())[:1]
    data = array.ravel()[0] if array.dtype == np.object_ and array.size else raw_bytes(array)
    return over_http(ask, _path(ask, "infer"), data, ("Inference-Header-Content-Length", "0"))


def _generate(verb: str) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        body: dict[str, Any] = {}
        for name, _, array in given(ask):
            body[name] = leaves_of(array)[0] if array.size == 1 and ask.seed % 2 else leaves_of(array)
        if ask.id:
            body["id"] = ask.id
        more = {key: value for key, value in ask.parameters.items() if key != "timeout"}
        body |= {"parameters": more} if more and ask.seed % 3 else more
        return over_http(ask, _path(ask, verb), spoilt(ask, body, plain_json))

    return encode


def _read_generate(ask: Ask, reply: Reply) -> list[Arrays]:
    check_json(reply)
    return [_generated(ask, json.loads(reply.body))]


def _read_events(ask: Ask, reply: Reply) -> list[Arrays]:
    if not reply.body.startswith(b"data: "):
        check_json(reply)
    found: list[Arrays] = []
    for event in reply.body.split(b"\n\n")[:-1]:
        assert event.startswith(b"data: "), event
        document = json.loads(event[6:])
        if "error" in document:
            raise Refused(document["error"], found)
        found.append(_generated(ask, document))
    return found


def _generated(ask: Ask, document: Any) -> Arrays:
    assert document.get("id", "") == ask.id, "another id"
    found = {}
    for each in ask.model.outputs:
        value = document[each.name]
        leaves = value if isinstance(value, list) else [value]
        found[each.name] = from_json(leaves, each.datatype, [len(leaves)])
    return found


_SERVICE: Final = "/inference.GRPCInferenceService/"
TYPED: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents", "INT64": "int64_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents",
    "FP64": "fp64_contents", "BYTES": "bytes_contents",
    **{f"INT{bits}": "int_contents" for bits in (8, 16, 32)},
    **{f"UINT{bits}": "uint_contents" for bits in (8, 16, 32)},
}  # fmt: skip


def _proto(ask: Ask, *, typed: bool) -> Any:
    made = message("inference.ModelInferRequest")(model_name=ask.model.name, model_version=ask.version, id=ask.id)
    for key, value in ask.parameters.items():
        if isinstance(value, str):
            made.parameters[key].string_param = value
        else:
            made.parameters[key].int64_param = value
    for name, datatype, array in given(ask):
        each = made.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if typed:
            leaves = list(array.ravel()) if datatype == "BYTES" else array.ravel().tolist()
            getattr(each.contents, TYPED[datatype]).extend(leaves)
        else:
            made.raw_input_contents.append(raw_bytes(array))
    for name in ask.outputs:
        output = made.outputs.add(name=name)
        if name in ask.classes:
            output.parameters["classification"].int64_param = ask.classes[name]
    if ask.spoil:
        spoil_proto(ask, made)
    return made


def _unary(*, typed: bool) -> Callable[[Ask], Message]:
    return lambda ask: over_grpc(ask, f"{_SERVICE}ModelInfer", _proto(ask, typed=typed and _is_typed(ask)))


def _stream(ask: Ask) -> Message:
    return over_grpc(ask, f"{_SERVICE}ModelStreamInfer", _proto(ask, typed=ask.seed % 4 == 3 and _is_typed(ask)))


def _is_typed(ask: Ask) -> bool:
    return all(each.datatype in TYPED for each in ask.model.inputs)


def _read_message(ask: Ask, answer: Any) -> Arrays:
    assert answer.id == ask.id, "another id"
    assert [each.name for each in answer.outputs] == _in_order(ask), "another order"
    found = {}
    for number, each in enumerate(answer.outputs):
        if answer.raw_output_contents:
            found[each.name] = from_raw(answer.raw_output_contents[number], each.datatype, each.shape)
        else:
            leaves = list(getattr(each.contents, TYPED[each.datatype]))
            if each.datatype == "BYTES":
                leaves = [leaf.decode() for leaf in leaves]
            found[each.name] = from_json(leaves, each.datatype, each.shape)
    return found


def _read_unary(ask: Ask, reply: Reply) -> list[Arrays]:
    check_grpc(reply)
    (part,) = reply.parts
    return [_read_message(ask, message("inference.ModelInferResponse").FromString(part))]


def _read_stream(ask: Ask, reply: Reply) -> list[Arrays]:
    check_grpc(reply)
    found: list[Arrays] = []
    for part in reply.parts:
        answer = message("inference.ModelStreamInferResponse").FromString(part)
        if answer.error_message:
            raise Refused(answer.error_message, found)
        found.append(_read_message(ask, answer.infer_response))
    return found


_ALL: Final = frozenset(each for each in DTYPES if each != "BF16")
_JSON: Final = _ALL - {"FP16"}
_FACTS: Final[dict[str, Any]] = {"selects": True, "parameters": True}
_FLAT: Final[dict[str, Any]] = {"generators": True, "flat": True, "parameters": True}
_NONE: Final = frozenset[str]()

FORMS: Final = (
    Form("v2 json", "http", _json(binary_in=False, binary_out=False), _read, _JSON, _JSON, **_FACTS),
    Form("v2 binary", "http", _json(binary_in=True, binary_out=True), _read, _ALL, _ALL, **_FACTS),
    Form("v2 binary in", "http", _json(binary_in=True, binary_out=False), _read, _ALL, _JSON, **_FACTS),
    Form("v2 binary out", "http", _json(binary_in=False, binary_out=True), _read, _JSON, _ALL, **_FACTS),
    Form("v2 gzip", "http", _json(binary_in=True, binary_out=True, packed=True), _read, _ALL, _ALL, **_FACTS),
    Form("v2 raw", "http", _raw, read_anything, _NONE, _NONE),
    Form("v2 generate", "http", _generate("generate"), _read_generate, _JSON, _JSON, **_FLAT),
    Form("v2 generate_stream", "http", _generate("generate_stream"), _read_events, _JSON, _JSON, True, **_FLAT),
    Form("v2 grpc", "grpc", _unary(typed=False), _read_unary, _ALL, _ALL, **_FACTS),
    Form("v2 grpc typed", "grpc", _unary(typed=True), _read_unary, _ALL, _ALL, **_FACTS),
    Form("v2 grpc stream", "grpc", _stream, _read_stream, _ALL, _ALL, True, True, **_FACTS),
)
