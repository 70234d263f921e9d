"""Every way in which a client may put tensors on the wire, from the client's side.

Where the project has a client of its own for a way, that one is used; the others are written here by hand, with plain
JSON and protobuf. Each way has limits, stated beside it: what its contract cannot carry is refused, and the tests know
what that is before they ask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorgate.adapters.protobuf.messages import enum, message
from tensorgate.gateway.app import registries
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, ModelView
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES
from tensorgate.gateway.contract.upstream import Ask, Client, Description, UpstreamModel

Arrays = Mapping[str, Any]
JSON = {"Content-Type": "application/json"}
TYPES = frozenset(DTYPES)


class Refused(Exception):
    """The server's words."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way. `takes` are the datatypes that can go in by it, `gives` those that can come out.

    `encode(view, inputs)` makes the message; where the project's own client writes it, with more facts of the request.
    `objection(inputs, outputs)` says what else it cannot carry, by shapes and values; "" if nothing. Not every form
    shows the shape of a tensor without elements.
    """

    name: str
    transport: str
    encode: Callable[..., Ask]
    decode: Callable[[Reply, ModelView], Arrays]
    takes: frozenset[str] = TYPES
    gives: frozenset[str] = TYPES
    shows_shapes: bool = True
    objection: Callable[[Arrays, Arrays], str] = lambda inputs, outputs: ""

    def refusal(self, inputs: Arrays, outputs: Arrays) -> str:
        """Why this way cannot carry these tensors; "" if it can."""
        for arrays, carried, way in ((inputs, self.takes, "in"), (outputs, self.gives, "out")):
            missing = sorted({DATATYPES[array.dtype] for array in arrays.values()} - carried)
            if missing:
                return f"no {missing[0]} {way}"
        return self.objection(inputs, outputs)


# ----------------------------------------------------------------------------------------------- the project's clients


_REGISTRIES = registries()


def _client(dialect: str, transport: str, view: ModelView) -> Client:
    make = _REGISTRIES.client(dialect, transport)
    assert make is not None
    return make(UpstreamModel(view.name, view.version))


def _description(view: ModelView) -> Description:
    return Description(tuple(view.inputs.values()), tuple(view.outputs.values()))


def _by_client(dialect: str, transport: str, name: str, **limits: Any) -> Form:
    assert _REGISTRIES.client(dialect, transport)

    def encode(view: ModelView, inputs: Arrays, **facts: Any) -> Ask:
        request = InferRequest(view, inputs, **facts)
        client = _client(dialect, transport, view)
        return client.encode(inputs, tuple(view.outputs), request, _description(view), stream=False)

    def decode(reply: Reply, view: ModelView) -> Arrays:
        return _client(dialect, transport, view).decode(reply, _description(view)).outputs

    return Form(name, transport, encode, decode, **limits)


# ---------------------------------------------------------------------------------------------------- Open Inference V2


def _plain(array: Any) -> Any:
    """Nested lists of what JSON has; text as text."""
    if array.dtype == BYTES:
        texts = np.empty(array.size, object)
        texts[:] = [text.decode() for text in array.ravel()]
        return texts.reshape(array.shape).tolist()
    return array.tolist()


def _v2_json(view: ModelView, inputs: Arrays) -> Ask:
    items = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": DATATYPES[array.dtype],
            "data": _plain(array.reshape(-1)),
        }
        for name, array in inputs.items()
    ]
    return Ask(f"/v2/models/{view.name}/infer", (json.dumps({"inputs": items}).encode(),), headers=JSON)


def _answer(reply: Reply) -> Any:
    text = b"".join([bytes(part) for part in reply.body]) if isinstance(reply.body, list) else bytes(reply.body)
    if reply.http_status != 200:
        raise Refused(f"{reply.http_status} {text[:300]!r}")
    return json.loads(text)


def _read_v2_json(reply: Reply, view: ModelView) -> Arrays:
    return {
        item["name"]: _numbers(item["data"], DTYPES[item["datatype"]]).reshape(item["shape"])
        for item in _answer(reply)["outputs"]
    }


def _numbers(data: Any, dtype: np.dtype[Any]) -> Any:
    """A value, list or nested list -> array of its nesting; text becomes bytes."""
    if dtype != BYTES:
        return np.array(data, dtype)
    texts = np.array(data, object)
    encoded = np.empty(texts.size, object)
    encoded[:] = [text.encode() for text in texts.ravel()]
    return encoded.reshape(texts.shape)


TYPED = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def _typed_object(inputs: Arrays, outputs: Arrays) -> str:
    """There is no field for 16-bit floats, and none is needed for no elements."""
    missing = sorted({DATATYPES[array.dtype] for array in inputs.values() if array.size} - TYPED.keys())
    return f"no {missing[0]} in" if missing else ""


def _v2_typed(view: ModelView, inputs: Arrays) -> Ask:
    request = message("inference.ModelInferRequest")(model_name=view.name)
    for name, array in inputs.items():
        datatype = DATATYPES[array.dtype]
        item = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        item.contents.SetInParent()
        if datatype in TYPED:
            getattr(item.contents, TYPED[datatype]).extend(array.reshape(-1).tolist())
    return Ask("/inference.GRPCInferenceService/ModelInfer", (request.SerializeToString(),))


# --------------------------------------------------------------------------------------------------- TensorFlow Serving

TFS_JSON: Any = dict.fromkeys(("takes", "gives"), TYPES - {"FP16", "BF16", "UINT16"})
TENSORFLOW = {
    "FP32": ("DT_FLOAT", "float_val"),
    "FP64": ("DT_DOUBLE", "double_val"),
    "INT32": ("DT_INT32", "int_val"),
    "UINT8": ("DT_UINT8", "int_val"),
    "INT16": ("DT_INT16", "int_val"),
    "INT8": ("DT_INT8", "int_val"),
    "UINT16": ("DT_UINT16", "int_val"),
    "BYTES": ("DT_STRING", "string_val"),
    "INT64": ("DT_INT64", "int64_val"),
    "BOOL": ("DT_BOOL", "bool_val"),
    "FP16": ("DT_HALF", "half_val"),
    "BF16": ("DT_BFLOAT16", "half_val"),
    "UINT32": ("DT_UINT32", "uint32_val"),
    "UINT64": ("DT_UINT64", "uint64_val"),
}


def _columns_object(inputs: Arrays, outputs: Arrays) -> str:
    """Nesting is all that JSON there says of a shape: after a dimension of 0 it ends."""
    return "an input's shape that nesting does not show" if any(map(_is_hidden, inputs.values())) else ""


def _is_hidden(array: Any) -> bool:
    return 0 in array.shape[:-1]


def _rows_object(inputs: Arrays, outputs: Arrays) -> str:
    sizes = {array.shape[:1] for array in inputs.values()}
    if len(sizes) != 1 or sizes <= {(), (0,)}:
        return "inputs are no rows"
    if len(given := {array.shape[:1] for array in outputs.values()}) != 1 or () in given:
        return "outputs are no rows"
    return _columns_object(inputs, outputs)


def _tfs_rows(view: ModelView, inputs: Arrays) -> Ask:
    plain = {name: _plain(array) for name, array in inputs.items()}
    if not all(isinstance(rows, list) for rows in plain.values()):
        rows: Any = [plain]
    elif len(plain) == 1:
        (rows,) = plain.values()
    else:
        rows = [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=False)]
    return Ask(f"/v1/models/{view.name}:predict", (json.dumps({"instances": rows}).encode(),), headers=JSON)


def _read_rows(reply: Reply, view: ModelView) -> Arrays:
    rows = _answer(reply)["predictions"]
    if len(view.outputs) == 1:
        return {name: _numbers(rows, spec.dtype) for name, spec in view.outputs.items()}
    return {name: _numbers([row[name] for row in rows], spec.dtype) for name, spec in view.outputs.items()}


def _tfs_typed(view: ModelView, inputs: Arrays) -> Ask:
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = view.name
    for name, array in inputs.items():
        dtype, field = TENSORFLOW[DATATYPES[array.dtype]]
        tensor = request.inputs[name]
        tensor.dtype = enum("tensorflow.DataType").values_by_name[dtype].number
        tensor.tensor_shape.SetInParent()
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        flat = array.reshape(-1)
        getattr(tensor, field).extend((flat.view(np.uint16) if field == "half_val" else flat).tolist())
    return Ask("/tensorflow.serving.PredictionService/Predict", (request.SerializeToString(),))


# ----------------------------------------------------------------------------------------------------------------- grps

GRPS: Any = dict.fromkeys(("takes", "gives"), TYPES - {"BOOL", "UINT16", "UINT32", "UINT64", "BF16"})


def _grps_objects(inputs: Arrays, outputs: Arrays) -> str:
    if any(not array.size for array in inputs.values()):
        return "an input without elements"
    return ""


FORMS: Mapping[str, Form] = {
    form.name: form
    for form in (
        Form("v2 json", "http", _v2_json, _read_v2_json, TYPES - {"FP16", "BF16"}, TYPES - {"FP16", "BF16"}),
        _by_client("open_inference", "http", "v2 binary"),
        _by_client("open_inference", "grpc", "v2 grpc raw"),
        replace(_by_client("open_inference", "grpc", "v2 grpc typed", objection=_typed_object), encode=_v2_typed),
        _by_client("tf_serving", "http", "tfs columns", shows_shapes=False, objection=_columns_object, **TFS_JSON),
        Form("tfs rows", "http", _tfs_rows, _read_rows, shows_shapes=False, objection=_rows_object, **TFS_JSON),
        _by_client("tf_serving", "grpc", "tfs grpc content"),
        replace(_by_client("tf_serving", "grpc", "tfs grpc typed"), encode=_tfs_typed),
        _by_client("grps", "http", "grps http", objection=_grps_objects, **GRPS),
        _by_client("grps", "grpc", "grps grpc", objection=_grps_objects, **GRPS),
    )
}
