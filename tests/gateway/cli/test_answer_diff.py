"""What a replay calls a difference."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.app import registries
from tensorgate.gateway.cli.answer_diff import Leniency, differences
from tensorgate.gateway.cli.replay import answer_reader
from tensorgate.gateway.recording.record import RecordedCall, RecordedReply
from tensorgate.gateway.routing.response_diff import Tolerance


def reply(body: bytes = b"{}", status: int = 200, **more: Any) -> RecordedReply:
    return RecordedReply(0.0, status, data=body, **more)


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ([reply()], [reply()], []),
        ([reply()], [reply(status=400)], ["status 200, now 400"]),
        ([reply(code=3, message="a")], [reply(code=3, message="b")], ['message "a", now "b"']),
        ([reply()], [], ["1 replies, now 0"]),
        ([reply(headers={"Content-Type": "a", "Date": "1"})], [reply(headers={"content-type": "a", "date": "2"})], []),
        ([reply(headers={"Allow": "GET"})], [reply()], ['header allow "GET", now nothing']),
        ([reply(b'{"a":[1,2]}')], [reply(b'{"a": [1, 3]}')], ["body.a[1]: 2, now 3"]),
        ([reply(b'{"a":1}')], [reply(b'{"a":1.0}')], ["body.a: 1, now 1.0"]),
        ([reply(b'{"a":1}')], [reply(b'{"b":1}')], ["body.a: 1, now nothing"]),
        ([reply(b'{"a":[1]}')], [reply(b'{"a":[1,2]}')], ['body.a: "1 elements", now "2 elements"']),
        ([reply(b'{"a":1}')], [reply(b'{ "a":1}')], ["body: the same JSON, written otherwise"]),
        ([reply(b'{"a":NaN}')], [reply(b'{"a": NaN}')], ["body: the same JSON, written otherwise"]),
        ([reply(b"\0abc")], [reply(b"\0abd")], [r"body of 4 bytes, now 4, from byte 3 on: b'c', now b'd'"]),
        ([reply(b"\0abc")], [reply(b"\0ab")], [r"body of 4 bytes, now 3, from byte 3 on: b'c', now b''"]),
        ([RecordedReply(0.0, left_out_bytes=9)], [reply()], []),
        ([reply(), reply(b"1")], [reply(), reply(b"2")], ["reply 2: body: 1, now 2"]),
    ],
)
def test_what_differs(then: Any, now: Any, found: list[str]) -> None:
    assert differences(then, now) == found


LENIENT = Leniency(Tolerance(1e-2, 0.0), frozenset({"id"}))


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        (b'{"y":[1.0,2.0]}', b'{"y":[1.001,2]}', []),
        (b'{"y":[1.0,2.0]}', b'{"y":[1.0,2.1]}', ["body.y[1]: 2.0, now 2.1"]),
        (b'{"y":[100]}', b'{"y":[101]}', ["body.y[0]: 100, now 101"]),
        (b'{"y":[true]}', b'{"y":[1.0]}', ["body.y[0]: true, now 1.0"]),
        (b'{"y":[NaN]}', b'{"y":[1.0]}', ["body.y[0]: NaN, now 1.0"]),
        (b'{"y":[Infinity]}', b'{"y":[1.0]}', ["body.y[0]: Infinity, now 1.0"]),
        (b'{"id":"a","y":{"id":1}}', b'{"y": {"id":2}}', []),
        (b'{"y":1}', b'{"y": 1}', []),
    ],
)
def test_what_may_differ(then: bytes, now: bytes, found: list[str]) -> None:
    assert differences([reply(then)], [reply(now)], LENIENT) == found


# ------------------------------------------------------------------------------------------------------------- tensors


def v2(*y: float, **more: Any) -> RecordedReply:
    tensor = {"name": "y", "datatype": "FP32", "shape": [len(y)]}
    answer = {"model_name": "m", "outputs": [tensor], "raw_output_contents": [np.float32(y).tobytes()]}
    return reply(message("inference.ModelInferResponse")(**answer | more).SerializeToString())


def v2_http(*y: float) -> RecordedReply:
    output = {"name": "y", "datatype": "FP32", "shape": [len(y)], "parameters": {"binary_data_size": 4 * len(y)}}
    head = json.dumps({"model_name": "m", "outputs": [output]}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    return reply(head + np.float32(y).tobytes(), headers=headers)


def tf_serving(*y: float, **more: Any) -> RecordedReply:
    shape = {"dim": [{"size": len(y)}]}
    tensor = {"dtype": 1, "tensor_shape": shape, "float_val": y}
    return reply(message("tensorflow.serving.PredictResponse")(outputs={"y": tensor}).SerializeToString())


def grps(*y: float) -> RecordedReply:
    tensor = {"name": "y", "dtype": "DT_FLOAT32", "shape": [len(y)], "flat_float32": y}
    made = message("grps.protos.v1.GrpsMessage")(
        status={"status": "SUCCESS", "code": 200}, gtensors={"tensors": [tensor]}
    )
    return reply(made.SerializeToString())


WIRES = {
    "V2 gRPC": ("open_inference", "grpc", v2),
    "V2 HTTP": ("open_inference", "http", v2_http),
    "TensorFlow Serving": ("tf_serving", "grpc", tf_serving),
    "grps": ("grps", "grpc", grps),
}


@pytest.mark.parametrize("wire", WIRES)
def test_tensors_are_compared_as_tensors(wire: str) -> None:
    dialect, transport, answer = WIRES[wire]
    call = RecordedCall(1, 0.0, dialect, transport, "unary", "POST", "/", {}, 0.0, "OK", model="m")
    read = answer_reader(call, registries().dialects)

    def found(then: RecordedReply, now: RecordedReply, leniency: Leniency = Leniency()) -> list[str]:  # noqa: B008
        return differences([then], [now], leniency, read)

    assert found(answer(1, 2), answer(1, 2.5)) == ["output y: 1 of 2 elements, by up to 0.5; first [1]: 2.0, now 2.5"]
    near = ["output y: 1 of 2 elements, by up to 0.0001221; first [0]: 1000.0, now 1000.0001220703125"]
    assert found(answer(1000, 2), answer(1000.0001, 2)) == near
    assert found(answer(1000, 2), answer(1000.0001, 2), LENIENT) == []
    (shapes,) = [each for each in found(answer(1), answer(1, 2), LENIENT) if not each.startswith("header")]
    assert shapes == "output y: FP32 [1], now FP32 [2]"
    assert found(answer(1), answer(2), Leniency(ignored=frozenset({"y"}))) == []


def test_what_is_no_answer_of_tensors_is_compared_byte_for_byte() -> None:
    call = RecordedCall(1, 0.0, "open_inference", "grpc", "unary", "POST", "/", {}, 0.0, "OK", model="m")
    read = answer_reader(call, registries().dialects)
    kind = message("inference.ModelMetadataResponse")
    outputs = [{"name": "y", "datatype": "FP32", "shape": [1]}]
    then, now = (reply(kind(name="m", platform=each, outputs=outputs).SerializeToString()) for each in ("one", "two"))
    for leniency in (Leniency(), LENIENT):
        (line,) = differences([then], [now], leniency, read)
        assert "from byte 5 on: b'one" in line
    (line,) = differences([v2(1)], [v2(1, model_version="2")], Leniency(), read)
    assert line.startswith("the same tensors, in a body of ")
