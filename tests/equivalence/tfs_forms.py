"""TensorFlow Serving's two APIs as clients write them."""

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
    check_json,
    from_json,
    from_nested,
    from_raw,
    nested_of,
    over_grpc,
    over_http,
    plain_json,
    raw_bytes,
    read_anything,
)
from spoilt import spoil_proto, spoilt
from truth import Arrays, Asked, Model, answers
from wire import Message, Reply

from tensorgate.adapters.protobuf.messages import enum, message


def _path(ask: Ask, verb: str) -> str:
    version = f"/versions/{ask.version}" if ask.version else ""
    return f"/v1/models/{ask.model.name}{version}:{verb}"


def _outer_inputs(ask: Ask) -> dict[str, Any]:
    """By the names that the signature has for them."""
    if not ask.view.inputs:
        return dict(ask.tensors)
    return {outer: ask.tensors[name] for outer, name in ask.view.inputs.items() if name in ask.tensors}


def _outer_outputs(ask: Ask) -> dict[str, Any]:
    view = ask.view.outputs or {each.name: each.name for each in ask.model.outputs}
    return {outer: ask.model.spec(name) for outer, name in view.items()}


def _json(*, row: bool) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        tensors = {name: nested_of(array) for name, array in _outer_inputs(ask).items()}
        body: dict[str, Any] = {"signature_name": ask.signature} if ask.signature else {}
        lone = len(tensors) == 1 and ask.seed % 3
        if row:
            values = list(tensors.values())
            count = min((len(value) for value in values if isinstance(value, list)), default=0)
            rows = [{name: value[at] for name, value in tensors.items()} for at in range(count)]
            body["instances"] = values[0] if lone else rows
        else:
            body["inputs"] = next(iter(tensors.values())) if lone else tensors
        compact = {"separators": (",", ":")} if ask.seed % 2 else {}
        text = spoilt(ask, body, lambda document: json.dumps(document, **compact).encode())  # type: ignore[arg-type]
        return over_http(ask, _path(ask, "predict"), text)

    return encode


def _read_json(ask: Ask, reply: Reply) -> list[Arrays]:
    check_json(reply)
    document = json.loads(reply.body)
    outputs = _outer_outputs(ask)
    if "predictions" in document:
        rows = document["predictions"]
        if len(outputs) == 1:
            named = dict.fromkeys(outputs, rows)
        else:
            named = {name: [each[name] for each in rows] for name in outputs}
    else:
        found = document["outputs"]
        named = dict.fromkeys(outputs, found) if len(outputs) == 1 else found
    return [{name: from_nested(named[name], spec.datatype) for name, spec in outputs.items()}]


_SERVICE: Final = "/tensorflow.serving.PredictionService/"
TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "FP32": ("DT_FLOAT", "float_val"), "FP64": ("DT_DOUBLE", "double_val"), "INT32": ("DT_INT32", "int_val"),
    "INT64": ("DT_INT64", "int64_val"), "INT8": ("DT_INT8", "int_val"), "UINT8": ("DT_UINT8", "int_val"),
    "INT16": ("DT_INT16", "int_val"), "UINT16": ("DT_UINT16", "int_val"), "BOOL": ("DT_BOOL", "bool_val"),
    "BYTES": ("DT_STRING", "string_val"), "FP16": ("DT_HALF", "half_val"),
}  # fmt: skip


def _tf_tensor(datatype: str, array: Any, *, content: bool) -> Any:
    kind, name = TYPES[datatype]
    made = message("tensorflow.TensorProto")(dtype=enum("tensorflow.DataType").values_by_name[kind].number)
    for size in array.shape:
        made.tensor_shape.dim.add(size=size)
    if content and datatype != "BYTES":
        made.tensor_content = raw_bytes(array)
    else:
        flat = array.ravel()
        if datatype == "FP16":
            flat = flat.view(np.uint16)
        getattr(made, name).extend(list(flat) if datatype == "BYTES" else flat.tolist())
    return made


def _from_tf_tensor(tensor: Any) -> Any:
    kind = enum("tensorflow.DataType").values_by_number[tensor.dtype].name
    datatype, field_name = next((each, name) for each, (dt, name) in TYPES.items() if dt == kind)
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        return from_raw(tensor.tensor_content, datatype, shape)
    leaves = list(getattr(tensor, field_name))
    if datatype == "BYTES":
        leaves = [leaf.decode() for leaf in leaves]
    if len(leaves) == 1 and math.prod(shape) > 1:
        leaves *= math.prod(shape)
    if datatype == "FP16":
        return np.array(leaves, np.uint16).view(np.float16).reshape(shape)
    return from_json(leaves, datatype, shape)


def _spec_of(ask: Ask, made: Any, signature: str | None = None) -> None:
    made.name = ask.model.name
    if ask.version:
        made.version.value = int(ask.version)
    made.signature_name = ask.signature if signature is None else signature


def _grpc(*, content: bool) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        made = message("tensorflow.serving.PredictRequest")()
        _spec_of(ask, made.model_spec)
        types = {each.name: each.datatype for each in ask.model.inputs}
        inner = ask.view.inputs
        for name, array in _outer_inputs(ask).items():
            made.inputs[name].CopyFrom(_tf_tensor(types[inner.get(name, name)], array, content=content))
        made.output_filter.extend(ask.outputs)
        if ask.spoil:
            spoil_proto(ask, made)
        return over_grpc(ask, f"{_SERVICE}Predict", made)

    return encode


def _read_grpc(ask: Ask, reply: Reply) -> list[Arrays]:
    check_grpc(reply)
    (part,) = reply.parts
    answer = message("tensorflow.serving.PredictResponse").FromString(part)
    return [{name: _from_tf_tensor(tensor) for name, tensor in answer.outputs.items()}]


def _example_numbers(ask: Ask) -> list[float]:
    """A feature x of each row, where the model is one of tf.Examples."""
    array = next(iter(ask.tensors.values()))
    return [float(row) for row in array.reshape(len(array), -1)[:, 0]]


def _tasks(ask: Ask) -> list[str]:
    return ask.random.sample(["kinds", "others", "price"], ask.random.randint(1, 3))


def _example_json(ask: Ask) -> Message:
    (signature,) = _tasks(ask)[:1]
    examples = [{"x": [number]} if ask.seed % 2 else {"x": number} for number in _example_numbers(ask)]
    verb = "regress" if signature == "price" else "classify"
    body = {"signature_name": signature, "examples": examples}
    return over_http(ask, _path(ask, verb), spoilt(ask, body, plain_json))


def _example_input(ask: Ask, made: Any) -> None:
    for number in _example_numbers(ask):
        each = made.example_list.examples.add()
        each.features.feature["x"].float_list.value.append(number)


def _example_grpc(ask: Ask) -> Message:
    (signature,) = _tasks(ask)[:1]
    name = "Regression" if signature == "price" else "Classification"
    made = message(f"tensorflow.serving.{name}Request")()
    _spec_of(ask, made.model_spec, signature)
    _example_input(ask, made.input)
    return over_grpc(ask, f"{_SERVICE}{'Regress' if signature == 'price' else 'Classify'}", made)


def _example_multi(ask: Ask) -> Message:
    made = message("tensorflow.serving.MultiInferenceRequest")()
    for signature in _tasks(ask):
        task = made.tasks.add(method_name=f"tensorflow/serving/{'regress' if signature == 'price' else 'classify'}")
        _spec_of(ask, task.model_spec, signature)
    _example_input(ask, made.input)
    return over_grpc(ask, f"{_SERVICE}MultiInference", made)


def example_truth(models: Mapping[str, Model], ask: Ask, signature: str) -> Any:
    """Numbers of a regression, or of each row [(label, score)]."""
    behind = ask.model if ask.model.kind != "route" else models[ask.model.behind]
    column = np.array(_example_numbers(ask), np.float32)[:, None]
    (answer,) = answers(models, behind, {"x": column}, Asked(signature))
    if signature == "price":
        return answer["value"][:, 0].tolist()
    labels = behind.labels["scores"]
    return [list(zip(labels, row.tolist(), strict=True)) for row in answer["scores"]]


def example_answers(ask: Ask, reply: Reply) -> list[tuple[str, Any]]:
    """(signature, what came) of each task. Raises Refused."""
    if reply.heads and isinstance(reply.heads[0], str):
        check_json(reply)
        results = json.loads(reply.body)["results"]
        (signature,) = _tasks(ask)[:1]
        return [(signature, results if signature == "price" else [[tuple(pair) for pair in row] for row in results])]
    check_grpc(reply)
    (part,) = reply.parts
    if ask.form == "tfs example multi":
        answer = message("tensorflow.serving.MultiInferenceResponse").FromString(part)
        results = [
            (result.model_spec.signature_name, _example_result(getattr(result, result.WhichOneof("result"))))
            for result in answer.results
        ]
        assert [name for name, _ in results] == _tasks(ask), "other tasks"
        return results
    (signature,) = _tasks(ask)[:1]
    name = "Regression" if signature == "price" else "Classification"
    return [(signature, _example_result(message(f"tensorflow.serving.{name}Response").FromString(part).result))]


def _example_result(result: Any) -> Any:
    if hasattr(result, "regressions"):
        return [each.value for each in result.regressions]
    return [[(one.label, one.score) for one in each.classes] for each in result.classifications]


_JSON: Final = frozenset({"FP32", "FP64", "INT32", "INT64", "INT8", "UINT8", "INT16", "BOOL", "BYTES"})
_PROTO: Final = frozenset(TYPES)
_NONE: Final = frozenset[str]()
_ALL: Final[dict[str, Any]] = {"dialect": "tfs", "generators": True}
_GRPC: Final[dict[str, Any]] = {**_ALL, "selects": True}

FORMS: Final = (
    Form("tfs json row", "http", _json(row=True), _read_json, _JSON, _JSON, **_ALL),
    Form("tfs json column", "http", _json(row=False), _read_json, _JSON, _JSON, **_ALL),
    Form("tfs grpc", "grpc", _grpc(content=False), _read_grpc, _PROTO, _PROTO, **_GRPC),
    Form("tfs grpc content", "grpc", _grpc(content=True), _read_grpc, _PROTO, _PROTO, **_GRPC),
    Form("tfs example json", "http", _example_json, read_anything, _NONE, _NONE, **_ALL),
    Form("tfs example grpc", "grpc", _example_grpc, read_anything, _NONE, _NONE, **_ALL),
    Form("tfs example multi", "grpc", _example_multi, read_anything, _NONE, _NONE, **_ALL),
)
