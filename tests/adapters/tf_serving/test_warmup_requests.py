"""Requests that lie beside a version, assets.extra/tf_serving_warmup_requests: read, run, and refused when broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.options import TfServingOptions
from tensorgate.adapters.tf_serving.warmup_requests import FILE, MAX_RECORDS, crc32c, warmup_requests
from tensorgate.gateway.app import dry_run_load, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import WarmupRequest
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Signature, TensorSpec

PredictRequest = message("tensorflow.serving.PredictRequest")
ClassificationRequest = message("tensorflow.serving.ClassificationRequest")
MultiInferenceRequest = message("tensorflow.serving.MultiInferenceRequest")
X = TensorSpec("x", DTYPES["FP32"], (-1, 2))
WIRE = {"inputs": TensorSpec("input_example_tensor", BYTES, (-1,))}
SCORES = TensorSpec("s", DTYPES["FP32"], (-1, 2))
CLASSIFY, REGRESS, MULTI, SESSION, PREDICT, STREAMED = 2, 3, 4, 5, 6, 7


def checksum(data: bytes) -> bytes:
    crc = crc32c(memoryview(data))
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def field(number: int, data: bytes) -> bytes:
    size, length = len(data), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + data


def record(data: bytes) -> bytes:
    """A TFRecord. Source: TensorFlow, record_writer.cc."""
    size = len(data).to_bytes(8, "little")
    return size + checksum(size) + data + checksum(data)


def log(kind: int, request: Any) -> bytes:
    """A PredictionLog, with metadata and an answer, which are of no account."""
    return record(field(1, b"") + field(kind, field(1, request.SerializeToString()) + field(2, b"")))


def predict(values: list[list[float]], signature: str = "", name: str = "other") -> Any:
    request = PredictRequest()
    if name:
        request.model_spec.name = name
    request.model_spec.signature_name = signature
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in (len(values), 2):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend([value for row in values for value in row])
    return request


def classify(*rows: list[float]) -> Any:
    request = ClassificationRequest()
    request.model_spec.name = "other"
    request.model_spec.signature_name = "classify"
    for row in rows:
        example = request.input.example_list.examples.add()
        example.features.feature["x"].float_list.value.extend(row)
    return request


@pytest.fixture
def read(make_model: Callable[..., ModelView], tmp_path: Path) -> Callable[..., list[WarmupRequest]]:
    plain = make_model("m", {"x": ("FP32", (-1, 2))}, {"s": ("FP32", (-1, 2))})
    found = Signature("classify", WIRE, {"scores": SCORES}, features={"x": X})
    view = replace(plain, signatures={**plain.signatures, "classify": found})

    def go(content: bytes, count: int = 1) -> list[WarmupRequest]:
        file = tmp_path / FILE
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        return list(warmup_requests(TfServingOptions(warmup_requests=count), tmp_path, view))

    return go


def test_the_checksum() -> None:
    """The value that everybody states for CRC-32C, and those of RFC 3720, B.4."""
    assert crc32c(memoryview(b"123456789")) == 0xE3069283
    assert crc32c(memoryview(bytes(32))) == 0x8A9136AA
    assert crc32c(memoryview(b"\xff" * 32)) == 0x62A8AB43
    assert crc32c(memoryview(bytes(range(32)))) == 0x46DD794E
    assert crc32c(memoryview(b"")) == 0


@settings(max_examples=10)
@given(st.binary(max_size=64))
def test_the_checksum_of_a_long_record_is_that_of_a_short_one_with_zeros_before(data: bytes) -> None:
    """Piece by piece, as bit by bit."""
    whole = data + bytes(1 << 15) + data
    register = 0xFFFFFFFF
    for byte in whole:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(memoryview(whole)) == register ^ 0xFFFFFFFF


def test_requests_of_every_kind(read: Callable[..., list[WarmupRequest]]) -> None:
    multi = MultiInferenceRequest()
    task = multi.tasks.add(method_name="tensorflow/serving/classify")
    task.model_spec.name = "other"
    task.model_spec.signature_name = "classify"
    multi.input.CopyFrom(classify([7, 8]).input)
    found = read(
        log(PREDICT, predict([[1, 2]]))
        + log(PREDICT, predict([[3, 4]], name=""))
        + log(CLASSIFY, classify([5, 6], [7, 8]))
        + log(MULTI, multi),
        count=3,
    )
    assert [(each.name, each.count) for each in found] == [(f"{FILE}[{index}]", 3) for index in range(4)]
    values = [np.asarray(each.request.inputs["x"]).tolist() for each in found]
    assert values == [[[1, 2]], [[3, 4]], [[5, 6], [7, 8]], [[7, 8]]]


def test_none(read: Callable[..., list[WarmupRequest]], tmp_path: Path, make_model: Callable[..., ModelView]) -> None:
    assert read(b"") == []
    assert read(log(PREDICT, predict([[1, 2]])), count=0) == []
    assert list(warmup_requests(TfServingOptions(), tmp_path / "other", make_model("m", {}, {}))) == []


GOOD = log(PREDICT, predict([[1, 2]]))
BROKEN = {
    "cut short": (GOOD[:-1], "truncated record at 0"),
    "cut in its head": (GOOD + GOOD[:5], f"truncated record at {len(GOOD)}"),
    "other data": (GOOD[:20] + bytes([GOOD[20] ^ 1]) + GOOD[21:], "corrupted record at 0"),
    "another length": (bytes([GOOD[0] ^ 1]) + GOOD[1:], "corrupted record at 0"),
    "no PredictionLog": (record(b"\xff"), f"{FILE}[0]: failed to parse the request"),
    "nothing in it": (GOOD + record(b""), f"{FILE}[1]: no request in it"),
    "of a session": (record(field(SESSION, b"")), "Unsupported log_type for warmup: session_run_log"),
    "streamed": (record(field(STREAMED, b"")), "Unsupported log_type for warmup: predict_streamed_log"),
    "no such signature": (log(PREDICT, predict([[1, 2]], "none")), f"{FILE}[0]: "),
    "too many": (GOOD * (MAX_RECORDS + 1), "exceeds the maximum (1000)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(read: Callable[..., list[WarmupRequest]], case: str) -> None:
    content, text = BROKEN[case]
    with pytest.raises(ValueError) as caught:
        read(content)
    assert text in str(caught.value)
    assert str(caught.value).startswith(FILE)


def save(path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    path.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize(
    ("content", "options", "error"),
    [
        (GOOD, {}, ""),
        (GOOD[:-1], {}, f"{FILE}: truncated record at 0"),
        (GOOD[:-1], {"warmup_requests": 0}, ""),
        (log(PREDICT, predict([[1, 2]] * 3)), {}, f"{FILE}[0]: "),
    ],
    ids=["answered", "broken", "off", "more rows than a batch may have"],
)
def test_a_version_is_loaded_only_if_it_answers(tmp_path: Path, content: bytes, options: Any, error: str) -> None:
    save(tmp_path / "m/1/model.onnx")
    (tmp_path / "m/1" / FILE).parent.mkdir()
    (tmp_path / "m/1" / FILE).write_bytes(content)
    file = tmp_path / "gateway.yaml"
    model = {"backend": "onnx", "path": "m", "max_batch_size": 2}
    file.write_text(yaml.safe_dump({"tf_serving": options, "models": {"m": model}}))
    failures = dry_run_load(load_config(file, registries()), registries())
    assert [text.startswith(f"m version 1: {error}") for _, text in failures] == [True] * bool(error)
