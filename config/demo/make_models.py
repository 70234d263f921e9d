"""Makes the ONNX models and images below config/demo/, from the handwritten digits that come with scikit-learn.

    pip install -e '.[demo,cpu]'
    python config/demo/make_models.py

Seeded: a second run writes the same files. Each model is run by ONNX Runtime and compared with NumPy or scikit-learn
before it is written, and the digits must read more than 95 % of images that they were not trained on.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).parent
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before it is imported; see gateway/__init__.py
SEED = 11
INK = 16  # the strongest pixel of the data set
HIDDEN = {1: (8,), 2: (64,)}  # version -> sizes of the hidden layers: the second version is larger and reads better
SHOWN = (0, 2, 3, 5, 7, 9)
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Shape = Sequence[int | str] | None
"""Sizes, a name where one varies; None is any rank."""


def main() -> None:
    read = {version: make_digits(version) for version in HIDDEN}
    if read[2].sum() <= read[1].sum():
        raise SystemExit("version 2 should read more images than version 1")
    write(HERE / "models/digits/labels.txt", "".join(f"{label}\n" for label in LABELS).encode())
    make_images(read[1] & read[2])
    make_half_plus("half_plus_two/1", 2.0)
    make_half_plus("half_plus_three/123", 3.0)
    make_add_sub()


# -------------------------------------------------------------------------------------------------------------- digits


def split() -> tuple[Any, Any, Any, Any]:
    """Training images, held-out images, and their digits: images are [N, 8, 8] of 0..16, a quarter is held out."""
    digits = load_digits()
    parts = train_test_split(digits.images, digits.target, test_size=0.25, stratify=digits.target, random_state=SEED)
    return tuple(parts)


def make_digits(version: int) -> Any:
    """Train and write one version. -> which of the held-out images it reads, as BOOL [N]."""
    train, held_out, train_digits, digits = split()
    network = MLPClassifier(HIDDEN[version], alpha=0.1, max_iter=1000, random_state=SEED)
    network.fit(normalised(train).reshape(-1, 64), train_digits)
    model = digits_model(network)
    (logits,) = run(model, image=normalised(held_out))
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scores, network.predict_proba(normalised(held_out).reshape(-1, 64)), atol=1e-5)

    read = logits.argmax(axis=1) == digits
    print(f"digits version {version}: reads {read.mean():.1%} of {len(digits)} held-out images")
    if read.mean() <= 0.95:
        raise SystemExit("that is not enough: more than 95 % are wanted")
    save(model, f"digits/{version}")
    return read


def normalised(images: Any) -> Any:
    return (images / INK).astype(np.float32)


def digits_model(network: Any) -> onnx.ModelProto:
    """The trained network as a graph, without its last softmax: FP32 image [N, 8, 8] of 0..1 -> FP32 logits [N, 10]."""
    nodes = [helper.make_node("Flatten", ["image"], ["layer0"])]
    weights: dict[str, Any] = {}
    last = len(network.coefs_)
    for layer, (matrix, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True), start=1):
        weights[f"w{layer}"], weights[f"b{layer}"] = matrix.astype(np.float32), bias.astype(np.float32)
        total = "logits" if layer == last else f"sum{layer}"
        nodes.append(helper.make_node("Gemm", [f"layer{layer - 1}", f"w{layer}", f"b{layer}"], [total]))
        if layer < last:
            nodes.append(helper.make_node("Relu", [total], [f"layer{layer}"]))
    image, logits = value("image", ["N", 8, 8]), value("logits", ["N", 10])
    return make_model("digits", nodes, [image], [logits], weights)


def make_images(read: Any) -> None:
    """For each shown digit, the clearest of the held-out images that all versions read: as numbers, as a picture."""
    train, held_out, train_digits, digits = split()
    for digit in SHOWN:
        candidates = held_out[(digits == digit) & read]
        typical = train[train_digits == digit].mean(axis=0) - train.mean(axis=0)
        write_image(digit, candidates[(candidates * typical).sum(axis=(1, 2)).argmax()].astype(np.uint8))


def write_image(digit: int, pixels: Any) -> None:
    """UINT8 [8, 8] of 0..16 -> one line of JSON, and a picture of dark ink on white paper that a person can look at."""
    write(HERE / f"images/{digit}.json", (json.dumps(pixels.tolist(), separators=(",", ":")) + "\n").encode())
    paper = Image.fromarray((255 - pixels * (255 / INK)).astype(np.uint8))
    content = io.BytesIO()
    paper.resize((128, 128), Image.Resampling.NEAREST).save(content, "png", optimize=True)
    write(HERE / f"images/{digit}.png", content.getvalue())


# ---------------------------------------------------------------------------------------------------------- arithmetic


def make_half_plus(version: str, addend: float) -> None:
    """y = x / 2 + addend, for FP32 of any rank: a number, a list and a table all work."""
    nodes = [helper.make_node("Mul", ["x", "half"], ["product"]), helper.make_node("Add", ["product", "addend"], ["y"])]
    constants = {"half": np.float32(0.5), "addend": np.float32(addend)}
    model = make_model(version.split("/")[0], nodes, [value("x", None)], [value("y", None)], constants)
    for x in (np.float32(5), np.array([1, 2, 5], np.float32), np.array([[1], [2]], np.float32)):
        (y,) = run(model, x=np.asarray(x))
        np.testing.assert_array_equal(y, x * np.float32(0.5) + np.float32(addend), strict=True)
    save(model, version)


def make_add_sub() -> None:
    """INT32 INPUT0 and INPUT1 [N, 16] -> OUTPUT0 the sum, OUTPUT1 the difference, as Triton's example `simple`."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    inputs = [value(name, ["N", 16], TensorProto.INT32) for name in ("INPUT0", "INPUT1")]
    outputs = [value(name, ["N", 16], TensorProto.INT32) for name in ("OUTPUT0", "OUTPUT1")]
    model = make_model("add_sub", nodes, inputs, outputs)
    a, b = np.arange(32, dtype=np.int32).reshape(2, 16), np.full((2, 16), 3, np.int32)
    np.testing.assert_array_equal(run(model, INPUT0=a, INPUT1=b), [a + b, a - b])
    save(model, "add_sub/1")


# ---------------------------------------------------------------------------------------------------------------- ONNX


def value(name: str, shape: Shape, datatype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, datatype, shape)


def make_model(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """A checked model in an old form (opset 17, IR 8), so that older ONNX Runtimes load it too."""
    constants = [numpy_helper.from_array(np.asarray(array), key) for key, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, constants)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="tensorgate")
    check(model)
    return model


def check(model: onnx.ModelProto) -> None:
    """onnx's own checker. It insists on a rank for every input and output, which ONNX Runtime does not: it sees a copy
    in which those without one are vectors.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in (*copy.graph.input, *copy.graph.output):
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            tensor.shape.dim.add().dim_param = "N"
    onnx.checker.check_model(copy, full_check=True)


def run(model: onnx.ModelProto, **inputs: Any) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def save(model: onnx.ModelProto, version: str) -> None:
    write(HERE / "models" / version / "model.onnx", model.SerializeToString(deterministic=True))


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    print(f"{path.relative_to(HERE)}: {len(content)} bytes")


if __name__ == "__main__":
    main()
