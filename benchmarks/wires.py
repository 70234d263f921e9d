"""How a float tensor travels as JSON in each dialect, in the shortest code that does it: a measure for the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson


@dataclass(frozen=True, slots=True)
class Wire:
    """One dialect's way to call `identity`. Arrays are FP32 [rows, columns].

    `request` is a body as a Python client sends it; `decode` and `encode` are what a handler by hand does with
    it; `read` is what the client makes of the answer. `decode` and `read` raise KeyError, ValueError or TypeError.
    """

    name: str
    path: str
    request: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def v2_request(array: Any) -> bytes:
    """float32 widened to Python floats, 16 to 17 digits each: what `json.dumps(array.tolist())` gives."""
    data = array.reshape(-1).tolist()
    tensor = {"name": "x", "shape": list(array.shape), "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def v2_decode(body: bytes) -> Any:
    tensor = orjson.loads(body)["inputs"][0]
    return np.array(tensor["data"], np.float32).reshape(tensor["shape"])


def v2_encode(array: Any) -> bytes:
    tensor = {"name": "y", "datatype": "FP32", "shape": array.shape, "data": array.reshape(-1)}
    answer = {"model_name": "identity", "model_version": "1", "outputs": [tensor]}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def v2_read(body: bytes) -> Any:
    (tensor,) = orjson.loads(body)["outputs"]
    if (tensor["name"], tensor["datatype"]) != ("y", "FP32"):
        raise ValueError(f"the answer has {tensor['name']} of {tensor['datatype']}, not y of FP32")
    return np.array(tensor["data"], np.float32).reshape(tensor["shape"])


def tf_serving_request(array: Any) -> bytes:
    return json.dumps({"instances": array.tolist()}).encode()


def tf_serving_decode(body: bytes) -> Any:
    return np.array(orjson.loads(body)["instances"], np.float32)


def tf_serving_encode(array: Any) -> bytes:
    return orjson.dumps({"predictions": array}, option=orjson.OPT_SERIALIZE_NUMPY)


def tf_serving_read(body: bytes) -> Any:
    return np.array(orjson.loads(body)["predictions"], np.float32)


GRPS_OK = {"code": 200, "msg": "OK", "status": "SUCCESS"}


def grps_request(array: Any) -> bytes:
    tensor = {
        "name": "x",
        "dtype": "DT_FLOAT32",
        "shape": list(array.shape),
        "flat_float32": array.reshape(-1).tolist(),
    }
    return json.dumps({"gtensors": {"tensors": [tensor]}}).encode()


def grps_decode(body: bytes) -> Any:
    tensor = orjson.loads(body)["gtensors"]["tensors"][0]
    return np.array(tensor["flat_float32"], np.float32).reshape(tensor["shape"])


def grps_encode(array: Any) -> bytes:
    tensor = {"name": "y", "dtype": "DT_FLOAT32", "shape": array.shape, "flat_float32": array.reshape(-1)}
    answer = {"status": GRPS_OK, "gtensors": {"tensors": [tensor]}}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def grps_ndarray_request(array: Any) -> bytes:
    return json.dumps({"ndarray": array.tolist()}).encode()


def grps_ndarray_decode(body: bytes) -> Any:
    return np.array(orjson.loads(body)["ndarray"], np.float32)


def grps_ndarray_encode(array: Any) -> bytes:
    return orjson.dumps({"status": GRPS_OK, "ndarray": array}, option=orjson.OPT_SERIALIZE_NUMPY)


V2 = Wire("v2", "/v2/models/identity/infer", v2_request, v2_decode, v2_encode, v2_read)
TF_SERVING = Wire(
    "tf_serving",
    "/v1/models/identity:predict",
    tf_serving_request,
    tf_serving_decode,
    tf_serving_encode,
    tf_serving_read,
)
GRPS = Wire("grps", "/grps/v1/infer/predict?model=identity-1", grps_request, grps_decode, grps_encode, grps_decode)
GRPS_NDARRAY = Wire(
    "grps_ndarray",
    "/grps/v1/infer/predict?model=identity-1&return-ndarray=true",
    grps_ndarray_request,
    grps_ndarray_decode,
    grps_ndarray_encode,
    grps_ndarray_decode,
)
WIRES = (V2, TF_SERVING, GRPS, GRPS_NDARRAY)
