"""Photos as files to a network, in every dialect: decoded, resized, cropped and normalized where the model runs."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from onnx import TensorProto, helper
from PIL import Image
from serving import HOST, Gateway

from tensorgate.adapters.protobuf.messages import message

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LABELS = ["cat", "dog", "horse", "ship", "truck"]
RANDOM = np.random.default_rng(11)


def make_model(folder: Path) -> Path:
    """A small convolutional network: FP32 [-1, 3, 32, 32] -> FP32 [-1, 5]."""
    weights = {
        "w1": RANDOM.normal(0, 0.4, (8, 3, 3, 3)),
        "b1": RANDOM.normal(0, 0.4, 8),
        "w2": RANDOM.normal(0, 3, (8, len(LABELS))),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w1", "b1"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("MatMul", ["f", "w2"], ["logits"]),
        ],
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", len(LABELS)])],
        [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    (folder / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "1" / "model.onnx")
    return folder / "1" / "model.onnx"


def config(folder: Path) -> str:
    (folder / "labels.txt").write_text("\n".join(LABELS))
    bind = {"bind": f"{HOST}:0"}
    pixels = {"mean": [255 * each for each in MEAN], "std": [255 * each for each in STD]}
    photos = {
        "backend": "onnx",
        "path": str(folder / "photos"),
        "max_batch_size": 8,
        "class_labels": {"scores": str(folder / "labels.txt")},
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1]}],
        "preprocess": [
            {"op": "decode_image", "input": "image"},
            {"op": "resize", "input": "image", "shorter": 40},
            {"op": "center_crop", "input": "image", "size": [32, 32]},
            {"op": "normalize", "input": "image", "axis": -1, "to": "FP32", **pixels},
            {"op": "transpose", "input": "image", "layout": "NHWC->NCHW"},
        ],
        "postprocess": [{"op": "softmax", "input": "logits", "output": "scores"}],
    }
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    return yaml.safe_dump({"listen": listen, "models": {"photos": photos}})


def photo(height: int, width: int) -> bytes:
    y, x = np.mgrid[:height, :width]
    waves = [128 + 100 * np.sin(x / a + y / b) for a, b in RANDOM.uniform(3, 20, (3, 2))]
    stream = io.BytesIO()
    Image.fromarray(np.stack(waves, -1).astype(np.uint8)).save(stream, "JPEG", quality=92)
    return stream.getvalue()


def by_hand(session: Any, contents: bytes) -> Any:
    """Resize(40), CenterCrop(32), ToTensor, Normalize and softmax, by Pillow and NumPy."""
    image = Image.open(io.BytesIO(contents)).convert("RGB")
    short, long = sorted(image.size)
    new = int(40 * long / short)
    image = image.resize((40, new) if image.width <= image.height else (new, 40), Image.Resampling.BILINEAR)
    left, top = round((image.width - 32) / 2.0), round((image.height - 32) / 2.0)
    pixels = np.asarray(image)[top : top + 32, left : left + 32].transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    tensor = (pixels - np.float32(MEAN)[:, None, None]) / np.float32(STD)[:, None, None]
    (logits,) = session.run(None, {"image": tensor[None]})
    weights = np.exp(logits[0] - logits[0].max())
    return weights / weights.sum()


class Case:
    """A gateway with the model, and what its answers have to be."""

    def __init__(self, gateway: Gateway, session: Any) -> None:
        self.gateway = gateway
        self.session = session

    def by_open_inference(self, contents: bytes) -> Any:
        data = struct.pack("<I", len(contents)) + contents
        tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answer = self.gateway.request("POST", "/v2/models/photos/infer", head + data, headers)
        assert answer.status == 200, answer.body
        return answer.json["outputs"][0]["data"]

    def by_open_inference_grpc(self, contents: bytes) -> Any:
        kind = message("inference.ModelInferRequest")
        request = kind(model_name="photos", raw_input_contents=[struct.pack("<I", len(contents)) + contents])
        request.inputs.add(name="image", datatype="BYTES", shape=[1])
        with grpc.insecure_channel(f"{HOST}:{self.gateway.grpc_port}") as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                kind.SerializeToString,
                message("inference.ModelInferResponse").FromString,
            )
            return np.frombuffer(call(request, timeout=20).raw_output_contents[0], np.float32).tolist()

    def by_tf_serving(self, contents: bytes) -> Any:
        body = {"instances": [{"b64": base64.b64encode(contents).decode()}]}
        answer = self.gateway.post("/v1/models/photos:predict", body)
        assert answer.status == 200, answer.body
        return answer.json["predictions"][0]

    def by_grps(self, contents: bytes) -> Any:
        path = "/grps/v1/infer/predict?model=photos-1&return-ndarray=true"
        answer = self.gateway.request("POST", path, contents, {"Content-Type": "application/octet-stream"})
        assert answer.status == 200, answer.body
        (row,) = answer.json["ndarray"]
        return row


Ask = Callable[[Case, bytes], Any]
WAYS: dict[str, Ask] = {
    "open_inference": Case.by_open_inference,
    "open_inference over gRPC": Case.by_open_inference_grpc,
    "tf_serving": Case.by_tf_serving,
    "grps": Case.by_grps,
}


@pytest.fixture
def case(tmp_path: Path, serve: Callable[[str], Gateway]) -> Case:
    session = onnxruntime.InferenceSession(make_model(tmp_path / "photos"), providers=["CPUExecutionProvider"])
    return Case(serve(config(tmp_path)), session)


def test_every_dialect_gives_the_same_scores(case: Case) -> None:
    for size in [(60, 80), (81, 60), (33, 200)]:
        contents = photo(*size)
        want = by_hand(case.session, contents)
        answers = {way: np.float32(ask(case, contents)) for way, ask in WAYS.items()}
        for way, scores in answers.items():
            np.testing.assert_array_equal(scores, answers["open_inference"], err_msg=way)
        np.testing.assert_allclose(answers["open_inference"], want, atol=1e-5)


def test_classes_by_name(case: Case) -> None:
    contents = photo(50, 50)
    scores = by_hand(case.session, contents)
    image = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 4 + len(contents)}}
    wanted = {"name": "scores", "parameters": {"classification": 2}}
    head = json.dumps({"inputs": [image], "outputs": [wanted]}).encode()
    body = head + struct.pack("<I", len(contents)) + contents
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = case.gateway.request("POST", "/v2/models/photos/infer", body, headers)
    names = [text.split(":")[2] for text in answer.json["outputs"][0]["data"]]
    assert names == [LABELS[index] for index in np.argsort(-scores)[:2]]


def test_a_broken_photo_is_its_senders_alone(case: Case) -> None:
    """Photos of different sizes share runs, and one that cannot be read costs its neighbours nothing."""
    photos = [photo(40 + 3 * number, 90 - 2 * number) for number in range(24)]
    wants = [by_hand(case.session, each) for each in photos]
    ways = [*WAYS.values()]

    def ask(number: int) -> Any:
        if number % 5 == 4:
            body = {"instances": [{"b64": base64.b64encode(photos[number][:-300]).decode()}]}
            return case.gateway.post("/v1/models/photos:predict", body)
        return ways[number % len(ways)](case, photos[number])

    with ThreadPoolExecutor(12) as threads:
        for number, got in enumerate(threads.map(ask, range(len(photos)))):
            if number % 5 == 4:
                assert got.status == 400
                assert "'image': image 0 is broken" in got.json["error"]
            else:
                np.testing.assert_allclose(got, wants[number], atol=1e-5)
