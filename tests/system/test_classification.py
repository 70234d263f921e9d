"""Classification of the demo models over HTTP, and what once ended other servers."""

from typing import Any

import numpy as np
from serving import DEMO, Gateway, demo_config

from tensorgate.gateway.contract.tensor import DTYPES

LABELS = (DEMO.parent / "demo/models/digits/labels.txt").read_text().splitlines()


def ask(gateway: Gateway, model: str, tensor: dict[str, Any], output: str, k: int = 3) -> tuple[int, Any]:
    body = {"inputs": [tensor], "outputs": [{"name": output, "parameters": {"classification": k}}]}
    answer = gateway.post(f"/v2/models/{model}/infer", body)
    return answer.status, answer.json["outputs"][0] if answer.status == 200 else answer.json["error"]


def test_digits_by_name(demo: Gateway) -> None:
    image = {"name": "image", "datatype": "FP32", "shape": [2, 8, 8], "data": np.arange(128.0).tolist()}
    whole = demo.post("/v2/models/digits/infer", {"inputs": [image]}).json["outputs"][0]
    status, found = ask(demo, "digits", image, "scores", 2)
    assert (status, found["datatype"], found["shape"]) == (200, "BYTES", [2, 2])
    scores = np.array(whole["data"], np.float32).reshape(2, 10)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :2]
    want = [f"{scores[row, i]:f}:{i}:{LABELS[i]}" for row in range(2) for i in best[row]]
    assert found["data"] == want
    assert "classification" in demo.get("/v2").json["extensions"]


def test_text_cannot_be_classified(demo: Gateway) -> None:
    text = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["b", "a"]}
    refused = "class result not available for output due to unsupported type 'BYTES'"
    assert ask(demo, "upper", text, "shout") == (400, refused)


def test_an_empty_tensor_has_no_classes(demo: Gateway) -> None:
    none = {"name": "x", "datatype": "FP32", "shape": [0], "data": []}
    assert ask(demo, "half_plus_two", none, "y") == (
        200,
        {"name": "y", "datatype": "BYTES", "shape": [0], "data": []},
    )


def test_a_claimed_shape_is_not_believed(demo: Gateway) -> None:
    claimed = {"name": "x", "datatype": "FP32", "shape": [10**12], "data": [1.0]}
    status, text = ask(demo, "half_plus_two", claimed, "y")
    assert status == 400
    assert text.startswith(
        "JSON input 'x' has a byte_size (4000000000000 bytes) that exceeds the maximum allowed value"
    )
    assert demo.rss_bytes() < 1 << 30


def test_every_type(serve: Any) -> None:
    """Each datatype through a model that gives back what it gets: classes, or the refusal by its name."""
    tensors = {name: [{"name": "x", "datatype": name, "shape": [-1]}] for name in ("BOOL", "INT8", "UINT64", "FP64")}
    path = f"{DEMO.parents[1] / 'tests/system/clients/echo.py'}:Echo"
    echoes = {
        f"echo_{name}": {"backend": "python", "path": path, "inputs": x, "outputs": x} for name, x in tensors.items()
    }
    gateway = serve(demo_config(echoes))
    for name in tensors:
        values = np.array([1, 0, 1, 0]).astype(DTYPES[name]).tolist()
        got = ask(gateway, f"echo_{name}", {"name": "x", "datatype": name, "shape": [4], "data": values}, "x", 2)
        if name == "BOOL":
            assert got == (400, "class result not available for output due to unsupported type 'BOOL'")
        else:
            one = "1.000000" if name == "FP64" else "1"
            assert got == (200, {"name": "x", "datatype": "BYTES", "shape": [2], "data": [f"{one}:0", f"{one}:2"]})
