"""One tensor in every encoding that can carry it, over both transports: the same bits arrive, and leave."""

import base64
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving import KIND, proto_request
from tensorgate.adapters.tf_serving.data_types import BY_DTYPE
from tensorgate.adapters.tf_serving.proto_tensors import tensor_parts
from tensorgate.adapters.tf_serving.tensors import WITHOUT_JSON
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferResponse, ModelRef
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Signature, TensorSpec

TYPED, CONTENT = (KIND.make(KIND.options(tensor_content=content)) for content in (False, True))
PREDICT = "/tensorflow.serving.PredictionService/Predict"
Request, Response = message("tensorflow.serving.PredictRequest"), message("tensorflow.serving.PredictResponse")


def paper(name: str) -> Any:
    """A view whose only input and output have this datatype, for tests that hypothesis repeats."""
    x, y = TensorSpec("x", DTYPES[name]), TensorSpec("x_bytes", DTYPES[name])
    signature = Signature("serving_default", {"x": x}, {"x_bytes": y})
    return SimpleNamespace(name=name, version=1, outputs={"x_bytes": y}, signatures={"serving_default": signature})


VIEWS = {name: paper(name) for name in DTYPES}


def resolve(ref: ModelRef) -> Any:
    return VIEWS[ref.name]


def strings(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    def array(values: list[bytes]) -> Any:
        flat = np.empty(len(values), np.object_)
        flat[:] = values
        return flat.reshape(shape)

    count = int(np.prod(shape))
    return st.lists(st.binary(max_size=5), min_size=count, max_size=count).map(array)


def numbers(dtype: np.dtype[Any], shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    bits = st_numpy.arrays(f"u{dtype.itemsize}", shape).map(lambda array: array.view(dtype))
    if dtype.kind == "b":
        return st_numpy.arrays(dtype, shape)
    return bits.filter(lambda array: dtype.kind != "f" or not np.isnan(array.astype(np.float64)).any())


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, Any]:
    name = draw(st.sampled_from([*DTYPES]))
    shape = draw(st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    dtype = DTYPES[name]
    return name, draw(strings(shape) if dtype == BYTES else numbers(dtype, shape))


def bits(array: Any) -> Any:
    return array.tolist() if array.dtype == BYTES else array.tobytes()


def plain(array: Any) -> Any:
    """As JSON has it."""
    if array.dtype != BYTES:
        return array.tolist()
    flat = np.empty(array.size, np.object_)
    flat[:] = [{"b64": base64.b64encode(value).decode()} for value in array.ravel()]
    return flat.reshape(array.shape).tolist()


def over_rest(name: str, body: dict[str, Any]) -> tuple[Endpoint, Any]:
    found = TYPED.match("POST", f"/v1/models/{name}:predict")
    call = Call(json.dumps(body).encode(), "POST", "", {}, "http", args=found.args)
    return found.endpoint, found.endpoint.decode(call, resolve)


def over_grpc(dialect: Any, name: str, tensor: Any) -> tuple[Endpoint, Any]:
    request = Request(model_spec={"name": name}, inputs={"x": tensor})
    endpoint = dialect.grpc[PREDICT]
    return endpoint, endpoint.decode(Call(request.SerializeToString(), "POST", "", {}, "grpc"), resolve)


def whole(reply: Reply) -> bytes:
    return reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)  # type: ignore[arg-type]


@given(case=tensors(), walked=st.sampled_from([0, 1 << 30]))
def test_every_encoding_carries_the_same_bits(case: tuple[str, Any], walked: int) -> None:
    name, array = case
    ways: list[Callable[[], tuple[Endpoint, Any]]] = []
    for content, dialect in ((False, TYPED), (True, CONTENT)):
        tensor = message("tensorflow.TensorProto").FromString(b"".join(tensor_parts(array, content=content)))
        ways.append(lambda dialect=dialect, tensor=tensor: over_grpc(dialect, name, tensor))  # type: ignore[misc]
    if array.dtype not in WITHOUT_JSON and (array.size or array.ndim < 2):
        ways.append(lambda: over_rest(name, {"inputs": plain(array)}))
        if array.ndim and array.size:
            ways.append(lambda: over_rest(name, {"instances": plain(array)}))
            ways.append(lambda: over_rest(name, {"instances": [{"x": row} for row in plain(array)]}))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(proto_request, "_WALKED_BYTES", walked)
        for way in ways:
            _, request = way()
            got = request.inputs["x"]
            assert (got.dtype, got.shape, bits(got)) == (array.dtype, array.shape, bits(array))


@given(tensors())
def test_every_answer_carries_the_same_bits(case: tuple[str, Any]) -> None:
    """Typed fields and bytes say what protobuf's own reading of them says; JSON says it where it can."""
    name, array = case
    typed, request = over_grpc(TYPED, name, {"dtype": BY_DTYPE[array.dtype].number})
    answer = InferResponse({"x_bytes": array})
    for endpoint in (typed, CONTENT.grpc[PREDICT]):
        proto = Response.FromString(whole(endpoint.encode(answer, request))).outputs["x_bytes"]
        assert [dim.size for dim in proto.tensor_shape.dim] == [*array.shape]
        _, again = over_grpc(TYPED, name, proto)
        assert bits(again.inputs["x"]) == bits(array)
    if array.dtype in WITHOUT_JSON:
        return
    rest, asked = over_rest(name, {"inputs": plain(np.zeros(1, array.dtype)) if array.dtype != BYTES else "a"})
    said = json.loads(whole(rest.encode(answer, asked)))["outputs"]
    if array.size:
        _, again = over_rest(name, {"inputs": said})
        assert bits(again.inputs["x"]) == bits(array)
