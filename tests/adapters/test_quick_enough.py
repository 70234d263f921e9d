"""What is read and written on the event loop, and what in a thread."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorgate.adapters import grps, open_inference, tf_serving
from tensorgate.adapters.open_inference.raw import V2ReplyForm
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.canonical import (
    INLINE_ENCODE_MAX_NUMBERS,
    INLINE_ENCODE_MAX_TEXTS,
    InferRequest,
    InferResponse,
    ModelRef,
    ModelView,
    TopK,
)
from tensorgate.gateway.contract.dialect import INLINE_DECODE_MAX_JSON_BYTES, INLINE_DECODE_MAX_TENSOR_BYTES, Dialect
from tensorgate.gateway.contract.tensor import BYTES

MakeModel = Callable[..., ModelView]
V2, TFS, GRPS = "/v2/models/m/infer", "/v1/models/m:predict", "/grps/v1/infer/predict?model=m-1"


def dialect(target: str) -> Dialect:
    kind: Any = {"/v2": open_inference.KIND, "/v1": tf_serving.KIND, "/gr": grps.KIND}[target[:3]]
    made: Dialect = kind.make(kind.options())
    return made


@pytest.fixture
def view(make_model: MakeModel) -> ModelView:
    return make_model("m", {"x": ("FP32", (-1,))}, {"y": ("FP32", (-1,))})


def decode(target: str, view: ModelView, body: bytes, **more: Any) -> Any:
    found = dialect(target).match("POST", target)
    headers = {"content-type": "application/json", **more.pop("headers", {})}
    call = Call(body, "POST", target, headers, "http", found.args, **more)

    def resolve(ref: ModelRef) -> ModelView:
        return view

    return found.endpoint.decode(call, resolve)


def numbers(target: str, size: int) -> bytes:
    """A request of that many bytes, about."""
    digits = ",".join(["0.125"] * (size // 6))
    if target == V2:
        shape = f'"shape":[{size // 6}],"datatype":"FP32"'
        return f'{{"inputs":[{{"name":"x",{shape},"data":[{digits}]}}]}}'.encode()
    return f'{{"{"instances" if target == TFS else "ndarray"}":[{digits}]}}'.encode()


@pytest.mark.parametrize("target", [V2, TFS, GRPS])
def test_large_bodies_need_a_thread(target: str, view: ModelView) -> None:
    for size in (INLINE_DECODE_MAX_JSON_BYTES // 2, INLINE_DECODE_MAX_TENSOR_BYTES + 1000):
        body = numbers(target, size)
        if size > INLINE_DECODE_MAX_TENSOR_BYTES:
            with pytest.raises(MustOffload):
                decode(target, view, body)
        given = decode(target, view, body, in_thread=size > INLINE_DECODE_MAX_TENSOR_BYTES)
        np.testing.assert_array_equal(given.inputs["x"], np.full(size // 6, 0.125, np.float32))


@pytest.mark.parametrize("target", [V2, TFS, GRPS])
def test_documents_need_a_thread_sooner(target: str, view: ModelView) -> None:
    body = b'{"other": ["' + b"a" * INLINE_DECODE_MAX_JSON_BYTES + b'"],' + numbers(target, 60)[1:]
    with pytest.raises(MustOffload):
        decode(target, view, body)
    assert decode(target, view, body, in_thread=True).inputs["x"].size == 10


def is_long(target: str, view: ModelView, answer: InferResponse, **more: Any) -> bool:
    return dialect(target).match("POST", target).endpoint.is_long(answer, InferRequest(view, {}, **more))


@pytest.mark.parametrize("target", [V2, TFS, GRPS])
def test_long_answers(target: str, view: ModelView) -> None:
    texts = np.full(INLINE_ENCODE_MAX_TEXTS + 1, b"a", BYTES)
    for array, expected in [
        (np.zeros(INLINE_ENCODE_MAX_NUMBERS), False),
        (np.zeros(INLINE_ENCODE_MAX_NUMBERS + 1), True),
        (texts[1:], False),
        (texts, True),
        (np.array([b"a" * 100_000], BYTES), True),
    ]:
        assert is_long(target, view, InferResponse({"y": array})) is expected
    assert is_long(target, view, InferResponse({}, classes={"y": TopK(texts, texts)}))


def test_tensors_as_bytes_are_not_long(view: ModelView) -> None:
    many = InferResponse({"y": np.zeros(1_000_000)})
    texts = InferResponse({"y": np.full(INLINE_ENCODE_MAX_TEXTS + 1, b"a", BYTES)})
    binary = V2ReplyForm(frozenset({"y"}), "")
    assert not is_long(V2, view, many, wire=binary)
    assert is_long(V2, view, texts, wire=binary)
    assert is_long(V2, view, many, wire=V2ReplyForm(frozenset({"y"}), "gzip"))
    for endpoint in (
        dialect(V2).grpc["/inference.GRPCInferenceService/ModelInfer"],
        dialect(TFS).grpc["/tensorflow.serving.PredictionService/Predict"],
        dialect(GRPS).grpc["/grps.protos.v1.GrpsService/Predict"],
    ):
        assert not endpoint.is_long(many, InferRequest(view, {}))
        assert endpoint.is_long(texts, InferRequest(view, {}))
