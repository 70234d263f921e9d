"""How a float tensor travels over gRPC in each dialect, in the shortest code that does it: what clients send and read,
and what a handler by hand does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tensorgate.adapters.protobuf.messages import message

INFER_REQUEST = message("inference.ModelInferRequest")
INFER_RESPONSE = message("inference.ModelInferResponse")
PREDICT_REQUEST = message("tensorflow.serving.PredictRequest")
PREDICT_RESPONSE = message("tensorflow.serving.PredictResponse")
FLOAT = 1
"""DT_FLOAT"""


@dataclass(frozen=True, slots=True)
class GrpcWire:
    """One way to call `identity`. Arrays are FP32 [rows, columns], bytes are messages.

    `request` is what a client sends, `read` what it makes of the answer: raises KeyError, ValueError or TypeError.
    """

    name: str
    method: str
    request: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def infer_request(array: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": array.shape}
    request = INFER_REQUEST(model_name="identity", inputs=[tensor], raw_input_contents=[array.tobytes()])
    return _bytes(request)


def infer_answer(body: bytes) -> bytes:
    """The work of a handler."""
    request = INFER_REQUEST.FromString(body)
    (tensor,) = request.inputs
    return infer_encode(np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tensor.shape))


def infer_encode(array: Any) -> bytes:
    response = INFER_RESPONSE(model_name="identity", model_version="1")
    response.outputs.add(name="y", datatype="FP32", shape=array.shape)
    response.raw_output_contents.append(array.tobytes())
    return _bytes(response)


def infer_read(body: bytes) -> Any:
    response = INFER_RESPONSE.FromString(body)
    (tensor,) = response.outputs
    (data,) = response.raw_output_contents
    if (tensor.name, tensor.datatype) != ("y", "FP32"):
        raise ValueError(f"the answer has {tensor.name} of {tensor.datatype}, not y of FP32")
    return np.frombuffer(data, np.float32).reshape(tensor.shape)


def _fill(tensor: Any, array: Any, *, content: bool) -> None:
    tensor.dtype = FLOAT
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if content:
        tensor.tensor_content = array.tobytes()
    else:
        tensor.float_val.extend(array.reshape(-1).tolist())


def _array(tensor: Any) -> Any:
    if tensor.dtype != FLOAT:
        raise ValueError(f"the tensor has dtype {tensor.dtype}, not {FLOAT}")
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, np.float32).reshape(shape)
    return np.array(tensor.float_val, np.float32).reshape(shape)


def predict_request(array: Any, *, content: bool) -> bytes:
    request = PREDICT_REQUEST()
    request.model_spec.name = "identity"
    _fill(request.inputs["x"], array, content=content)
    return _bytes(request)


def predict_answer(body: bytes) -> bytes:
    """The work of a handler; it answers in the form in which it was asked."""
    tensor = PREDICT_REQUEST.FromString(body).inputs["x"]
    return predict_encode(_array(tensor), content=bool(tensor.tensor_content))


def predict_encode(array: Any, *, content: bool) -> bytes:
    response = PREDICT_RESPONSE()
    response.model_spec.name = "identity"
    response.model_spec.version.value = 1
    response.model_spec.signature_name = "serving_default"
    _fill(response.outputs["y"], array, content=content)
    return _bytes(response)


def predict_read(body: bytes) -> Any:
    return _array(PREDICT_RESPONSE.FromString(body).outputs["y"])


def _bytes(whole: Any) -> bytes:
    serialized: bytes = whole.SerializeToString()
    return serialized


INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
WIRES = (
    GrpcWire("raw", INFER, infer_request, infer_read),
    GrpcWire("float_val", PREDICT, partial(predict_request, content=False), predict_read),
    GrpcWire("tensor_content", PREDICT, partial(predict_request, content=True), predict_read),
)
