"""Tensors in TensorFlow Serving's two forms, and expectations that many cases share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorgate.adapters.conformance.case import Expectation, Level, Step, WireRequest
from tensorgate.adapters.conformance.expectations import (
    HasCode,
    HasHeader,
    HasJson,
    HasMessages,
    HasStatus,
    HasText,
)
from tensorgate.adapters.conformance.patterns import TEXT, Gap
from tensorgate.adapters.protobuf.messages import message

PREDICTION: Final = "/tensorflow.serving.PredictionService/"
MODELS: Final = "/tensorflow.serving.ModelService/"
NUMBERS: Final[Mapping[str, int]] = {
    "DT_FLOAT": 1,
    "DT_DOUBLE": 2,
    "DT_INT32": 3,
    "DT_UINT8": 4,
    "DT_INT16": 5,
    "DT_INT8": 6,
    "DT_STRING": 7,
    "DT_INT64": 9,
    "DT_BOOL": 10,
    "DT_UINT32": 22,
    "DT_UINT64": 23,
}
"""The types that travel in JSON, too, by name."""
FIELDS: Final[Mapping[str, str]] = {
    "DT_FLOAT": "float_val",
    "DT_DOUBLE": "double_val",
    **dict.fromkeys(("DT_INT32", "DT_UINT8", "DT_INT16", "DT_INT8"), "int_val"),
    "DT_STRING": "string_val",
    "DT_INT64": "int64_val",
    "DT_BOOL": "bool_val",
    "DT_UINT32": "uint32_val",
    "DT_UINT64": "uint64_val",
}
"""Where a TensorProto has values of a type."""


def tensor(dtype: str, shape: Sequence[int], values: Sequence[Any] = (), content: bytes = b"") -> Any:
    """A TensorProto, with typed values or with `tensor_content`."""
    made = message("tensorflow.TensorProto")(dtype=NUMBERS[dtype], tensor_content=content)
    made.tensor_shape.SetInParent()
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    getattr(made, FIELDS[dtype]).extend(values)
    return made


def tensor_pattern(dtype: str, shape: Sequence[int], values: Any) -> dict[str, Any]:
    """A TensorProto as a plain value, with all its values typed."""
    return {
        "dtype": NUMBERS[dtype],
        "tensor_shape": {"dim": [{"size": size} for size in shape], "unknown_rank": False},
        "tensor_content": b"",
        FIELDS[dtype]: list(values) if isinstance(values, tuple | list) else values,
    }


def model_spec(name: str, **more: Any) -> dict[str, Any]:
    """As keyword arguments of requests."""
    return {"model_spec": {"name": name, **more}}


def request(kind: str, **fields: Any) -> Any:
    """A message of the package `tensorflow.serving`."""
    return message(f"tensorflow.serving.{kind}")(**fields)


def predict_request(name: str, inputs: Mapping[str, Any], **spec: Any) -> Any:
    made = request("PredictRequest", **model_spec(name, **spec))
    for key, value in inputs.items():
        made.inputs[key].CopyFrom(value)
    return made


def call(method: str, given: Any, *expectations: Expectation, service: str = PREDICTION) -> Step:
    """A unary call; what is not bytes is a message."""
    data = given if isinstance(given, bytes) else given.SerializeToString()
    return WireRequest("grpc", service + method, (data,)), expectations


def answered(kind: str, pattern: Any) -> tuple[Expectation, ...]:
    """A success over gRPC with one message."""
    return HasCode((0,)), HasMessages(f"tensorflow.serving.{kind}", (pattern,))


def failed(code: int, text: str = "") -> tuple[Expectation, ...]:
    """An error over gRPC of this code, and with this in its text."""
    return HasCode((code,)), HasText(), *((HasText(text, Level.RECOMMENDED),) if text else ())


def error(status: int, text: str = "") -> tuple[Expectation, ...]:
    """An error over HTTP of this status, and with this in its text."""
    return (
        HasStatus((status,)),
        HasJson({"error": TEXT}),
        HasHeader("content-type", "application/json", Level.RECOMMENDED),
        *((HasJson({"error": Gap((str,), text)}, Level.RECOMMENDED),) if text else ()),
    )


def nested(values: Sequence[Any], shape: Sequence[int]) -> Any:
    """Values as nested lists of this shape."""
    if not shape:
        return values[0]
    inner = math.prod(shape[1:])
    return [nested(values[index * inner : (index + 1) * inner], shape[1:]) for index in range(shape[0])]
