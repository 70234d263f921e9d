"""grps' two transports as clients write them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from form import (
    Ask,
    Form,
    check_grpc,
    from_json,
    from_nested,
    given,
    given_in_order,
    leaves_of,
    nested_of,
    over_grpc,
    over_http,
    plain_json,
)
from spoilt import spoil_proto, spoilt
from truth import Arrays, Refused
from wire import Message, Reply

from tensorgate.adapters.protobuf.messages import enum, message

_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "UINT8": ("DT_UINT8", "flat_uint8"), "INT8": ("DT_INT8", "flat_int8"), "INT16": ("DT_INT16", "flat_int16"),
    "INT32": ("DT_INT32", "flat_int32"), "INT64": ("DT_INT64", "flat_int64"), "FP16": ("DT_FLOAT16", "flat_float16"),
    "FP32": ("DT_FLOAT32", "flat_float32"), "FP64": ("DT_FLOAT64", "flat_float64"),
    "BYTES": ("DT_STRING", "flat_string"),
}  # fmt: skip
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_WORDS: Final = frozenset(_NOT_FINITE.values())
_SERVICE: Final = "/grps.protos.v1.GrpsService/"


def _tensors(ask: Ask) -> list[Any]:
    named = ask.seed % 3 > 0
    made = []
    for name, datatype, array in given(ask) if named else [(n, d, a) for n, d, a in given_in_order(ask)]:
        kind, flat = _TYPES.get(datatype, ("DT_INVALID", "flat_int32"))
        leaves = [int(leaf) for leaf in array.ravel()] if datatype == "BOOL" else leaves_of(array)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            leaves = [leaf if math.isfinite(leaf) else _NOT_FINITE[str(leaf)] for leaf in leaves]
        made.append({"name": name if named else "", "dtype": kind, "shape": list(array.shape), flat: leaves})
    return made


def _query(ask: Ask, **more: str) -> str:
    query = "&".join(f"{key.replace('_', '-')}={value}" for key, value in more.items())
    return "/grps/v1/infer/predict" + (f"?{query}" if query else "")


def _json(*, stream: bool = False) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        body = {"model": f"{ask.model.name}-1", "gtensors": {"tensors": _tensors(ask)}}
        target = _query(ask, **({"streaming": "true"} if stream else {}))
        text = spoilt(ask, body, plain_json)
        return over_http(ask, target, text, ("Content-Type", "application/json"))

    return encode


def _ndarray(ask: Ask) -> Message:
    array = next(iter(ask.tensors.values()))
    target = _query(ask, model=f"{ask.model.name}-1", return_ndarray="true")
    text = spoilt(ask, {"ndarray": nested_of(array)}, plain_json)
    return over_http(ask, target, text, ("Content-Type", "application/json"))


def _check(document: Any) -> None:
    if document["status"]["status"] != "SUCCESS":
        raise Refused(document["status"]["msg"])


def _read_json(ask: Ask, reply: Reply) -> list[Arrays]:
    document = json.loads(reply.body)
    _check(document)
    assert reply.status == 200
    return [_arrays(document["gtensors"])]


def _arrays(tensors: Any) -> Arrays:
    found = {}
    for each in tensors.get("tensors", ()):
        datatype, flat = next((each_type, name) for each_type, (kind, name) in _TYPES.items() if kind == each["dtype"])
        leaves = [int(leaf) for leaf in each.get(flat, ())] if datatype == "INT64" else each.get(flat, [])
        found[each["name"]] = from_json(leaves, datatype, each.get("shape", []))
    return found


def _read_stream(ask: Ask, reply: Reply) -> list[Arrays]:
    found: list[Arrays] = []
    text = reply.body.decode()
    while text.strip():
        document, end = json.JSONDecoder().raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        try:
            _check(document)
        except Refused as error:
            raise Refused(str(error), found) from None
        found.append(_arrays(document["gtensors"]))
    return found


def _read_ndarray(ask: Ask, reply: Reply) -> list[Arrays]:
    document = json.loads(reply.body)
    _check(document)
    return [{ask.model.outputs[0].name: from_nested(document["ndarray"], "FP32")}]


def _grpc(method: str) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        made = message("grps.protos.v1.GrpsMessage")(model=f"{ask.model.name}-1")
        types = enum("grps.protos.v1.DataType").values_by_name
        made.gtensors.SetInParent()
        for each in _tensors(ask):
            flat = next(key for key in each if key.startswith("flat"))
            tensor = made.gtensors.tensors.add(
                name=each["name"], dtype=types[each["dtype"]].number, shape=each["shape"]
            )
            getattr(tensor, flat).extend(
                [float(leaf) if leaf in _WORDS else leaf for leaf in each[flat]] if "float" in flat else each[flat]
            )
        if ask.spoil:
            spoil_proto(ask, made)
        return over_grpc(ask, f"{_SERVICE}{method}", made)

    return encode


def _read_grpc(ask: Ask, reply: Reply) -> list[Arrays]:
    check_grpc(reply)
    found: list[Arrays] = []
    for part in reply.parts:
        answer = message("grps.protos.v1.GrpsMessage").FromString(part)
        if answer.status.status != 1:
            raise Refused(answer.status.msg, found)
        names = enum("grps.protos.v1.DataType").values_by_number
        arrays = {}
        for each in answer.gtensors.tensors:
            kind = names[each.dtype].name
            datatype, flat = next((each_type, name) for each_type, (named, name) in _TYPES.items() if named == kind)
            arrays[each.name] = from_json(list(getattr(each, flat)), datatype, list(each.shape))
        found.append(arrays)
    return found


_ANY: Final = frozenset(_TYPES)
_FP32: Final = frozenset({"FP32"})
_OF: Final[dict[str, Any]] = {"dialect": "grps", "generators": True}

FORMS: Final = (
    Form("grps json", "http", _json(), _read_json, _ANY, _ANY, **_OF),
    Form("grps json stream", "http", _json(stream=True), _read_stream, _ANY, _ANY, True, **_OF),
    Form("grps ndarray", "http", _ndarray, _read_ndarray, _FP32, _ANY, **_OF),
    Form("grps grpc", "grpc", _grpc("Predict"), _read_grpc, _ANY, _ANY, **_OF),
    Form("grps grpc stream", "grpc", _grpc("PredictStreaming"), _read_grpc, _ANY, _ANY, True, **_OF),
)
