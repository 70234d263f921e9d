"""Bodies in memory that two processes share are decoded as bytes are, and numbers stay where they came."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorgate.adapters import grps, open_inference, tf_serving
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Endpoint, Resolve

NUMBERS = np.arange(90_000, dtype=np.float32).reshape(3, -1)
TEXTS = [b"text %d" % number * 9 for number in range(3000)]


def v2_proto() -> tuple[Endpoint, bytes, dict[str, str]]:
    request = message("inference.ModelInferRequest")(model_name="m", raw_input_contents=[NUMBERS.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=NUMBERS.shape)
    return _grpc(open_inference, "/inference.GRPCInferenceService/ModelInfer"), request.SerializeToString(), {}


def v2_binary() -> tuple[Endpoint, bytes, dict[str, str]]:
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[3,30000],"parameters":{"binary_data_size":360000}}]}'
    endpoint = _made(open_inference).match("POST", "/v2/models/m/infer").endpoint
    return endpoint, head + NUMBERS.tobytes(), {"inference-header-content-length": str(len(head))}


def tf_numbers() -> tuple[Endpoint, bytes, dict[str, str]]:
    return _predict(dtype=1, tensor_content=NUMBERS.tobytes(), shape=NUMBERS.shape)


def tf_texts() -> tuple[Endpoint, bytes, dict[str, str]]:
    return _predict(dtype=7, string_val=TEXTS, shape=(3000,))


def grps_numbers() -> tuple[Endpoint, bytes, dict[str, str]]:
    request = message("grps.protos.v1.GrpsMessage")()
    request.model = "m-1"
    request.gtensors.tensors.add(name="x", dtype=7, shape=NUMBERS.shape, flat_float32=NUMBERS.ravel().tolist())
    return _grpc(grps, "/grps.protos.v1.GrpsService/Predict"), request.SerializeToString(), {}


def _made(kind: Any) -> Any:
    return kind.KIND.make(kind.KIND.options())


def _grpc(kind: Any, method: str) -> Endpoint:
    endpoint: Endpoint = _made(kind).grpc[method]
    return endpoint


def _predict(*, dtype: int, shape: tuple[int, ...], **values: Any) -> tuple[Endpoint, bytes, dict[str, str]]:
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "m"
    tensor = request.inputs["x"]
    tensor.CopyFrom(message("tensorflow.TensorProto")(dtype=dtype, **values))
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    return _grpc(tf_serving, "/tensorflow.serving.PredictionService/Predict"), request.SerializeToString(), {}


@pytest.mark.parametrize("make", [v2_proto, v2_binary, tf_numbers, tf_texts, grps_numbers])
def test_a_shared_body(
    make: Callable[[], tuple[Endpoint, bytes, dict[str, str]]],
    make_model: Callable[..., ModelView],
    make_resolve: Callable[..., Resolve],
) -> None:
    endpoint, data, headers = make()
    datatype, shape = ("BYTES", (-1,)) if make is tf_texts else ("FP32", (-1, -1))
    resolve = make_resolve(make_model("m", {"x": (datatype, shape)}, {}))
    args = {} if endpoint.address.startswith("/") else {"model": "m"}
    memory = np.frombuffer(bytearray(b"12345" + data), np.uint8)
    for _ in range(2):  # the second time, what the first has taught is in use
        for body in (data, memoryview(memory)[5:].toreadonly()):
            call = Call(body, "POST", "", headers, "grpc", args, in_thread=True)
            found = endpoint.decode(call, resolve).inputs["x"]
            if make is tf_texts:
                assert found.tolist() == TEXTS
                assert {type(each) for each in found.tolist()} == {bytes}
            else:
                assert found.tobytes() == NUMBERS.tobytes()
                assert body is data or np.shares_memory(found, memory)
