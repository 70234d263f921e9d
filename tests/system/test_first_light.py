"""The shipped demo as a newcomer meets it: one command serves it, and every dialect gives the same answers."""

import base64
import io
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from serving import DEMO, HOST, Gateway, command, demo_config, running
from waiting import wait_until

from tensorgate import __version__
from tensorgate.gateway.cli.main import main

Serve = Callable[[str], Gateway]
MODELS = (
    "digits", "half_plus_two", "half_plus_three", "add_sub", "upper", "countdown", "writer", "embedder", "running_sum",
)  # fmt: skip
SHOWN = (0, 2, 3, 5, 7, 9)
IMAGES = {digit: json.loads((DEMO.parent / f"demo/images/{digit}.json").read_bytes()) for digit in SHOWN}


# ------------------------------------------------------------------------------- digits: ten numbers, by every dialect


def flat(value: Any) -> list[Any]:
    return np.array(value).ravel().tolist()


def open_inference(demo: Gateway, model: str, version: str, images: list[Any]) -> Any:
    tensor = {"name": "image", "datatype": "FP32", "shape": [len(images), 8, 8], "data": images}
    answer = demo.post(f"/v2/models/{model}/versions/{version}/infer", {"inputs": [tensor]}).json
    [output] = answer["outputs"]
    assert (answer["model_name"], answer["model_version"]) == (model, version)
    assert (output["name"], output["datatype"], output["shape"]) == ("scores", "FP32", [len(images), 10])
    return np.reshape(output["data"], output["shape"]).tolist()


def open_inference_binary(demo: Gateway, model: str, version: str, images: list[Any]) -> Any:
    data = np.array(images, "<f4").tobytes()
    tensor: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": [len(images), 8, 8]}
    tensor["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    path, length = f"/v2/models/{model}/versions/{version}/infer", "Inference-Header-Content-Length"
    answer = demo.request("POST", path, head + data, {length: str(len(head))})
    tail = answer.body[int(answer.headers[length]) :]
    return np.frombuffer(tail, "<f4").reshape(-1, 10).tolist()


def tf_serving_rows(demo: Gateway, model: str, version: str, images: list[Any]) -> Any:
    return demo.post(f"/v1/models/{model}/versions/{version}:predict", {"instances": images}).json["predictions"]


def tf_serving_named_rows(demo: Gateway, model: str, version: str, images: list[Any]) -> Any:
    rows = [{"image": image} for image in images]
    return demo.post(f"/v1/models/{model}/versions/{version}:predict", {"instances": rows}).json["predictions"]


def tf_serving_columns(demo: Gateway, model: str, version: str, images: list[Any]) -> Any:
    body = {"inputs": {"image": images}, "signature_name": "serving_default"}
    return demo.post(f"/v1/models/{model}/versions/{version}:predict", body).json["outputs"]


def tf_serving_label(demo: Gateway, model: str, version: str, images: list[Any]) -> Any:
    label = {"1": "stable", "2": "canary"}[version]
    return demo.post(f"/v1/models/{model}/labels/{label}:predict", {"instances": images}).json["predictions"]


def grps_tensors(demo: Gateway, model: str, version: str, images: list[Any]) -> Any:
    tensor = {"name": "image", "dtype": "DT_FLOAT32", "shape": [len(images), 8, 8], "flat_float32": flat(images)}
    body = {"model": f"{model}-{version}", "gtensors": {"tensors": [tensor]}}
    answer = demo.post("/grps/v1/infer/predict", body).json
    [output] = answer["gtensors"]["tensors"]
    assert answer["status"] == {"code": 200, "msg": "OK", "status": "SUCCESS"}
    assert (output["dtype"], output["shape"]) == ("DT_FLOAT32", [len(images), 10])
    return np.reshape(output["flat_float32"], output["shape"]).tolist()


def grps_ndarray(demo: Gateway, model: str, version: str, images: list[Any]) -> Any:
    path = f"/grps/v1/infer/predict?return-ndarray=true&model={model}-{version}"
    return demo.post(path, {"ndarray": images}).json["ndarray"]


WAYS = [
    open_inference,
    open_inference_binary,
    tf_serving_rows,
    tf_serving_named_rows,
    tf_serving_columns,
    tf_serving_label,
    grps_tensors,
    grps_ndarray,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("version", ["1", "2"])
def test_every_dialect_reads_the_shown_digits(demo: Gateway, way: Any, version: str) -> None:
    scores = way(demo, "digits", version, list(IMAGES.values()))
    assert np.argmax(scores, axis=1).tolist() == list(SHOWN)
    np.testing.assert_allclose(np.sum(scores, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("version", ["1", "2"])
def test_dialects_agree_number_by_number(demo: Gateway, version: str) -> None:
    images = list(IMAGES.values())
    answers = [np.array(way(demo, "digits", version, images), np.float32) for way in WAYS]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0], strict=True)


def test_without_a_version_the_highest_answers(demo: Gateway) -> None:
    image = [IMAGES[7]]
    want = np.array(tf_serving_rows(demo, "digits", "2", image), np.float32)
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": image}
    answer = demo.post("/v2/models/digits/infer", {"inputs": [tensor]}).json
    assert answer["model_version"] == "2"
    others = [
        [answer["outputs"][0]["data"]],
        demo.post("/v1/models/digits:predict", {"instances": image}).json["predictions"],
        demo.post("/grps/v1/infer/predict?return-ndarray=true", {"ndarray": image}).json["ndarray"],
    ]
    for other in others:
        np.testing.assert_array_equal(np.array(other, np.float32), want)


# ---------------------------------------------------------------------------------------------- half_plus_two, add_sub

HALF_PLUS_TWO = [
    ({"inputs": 5}, {"outputs": 4.5}),
    ({"inputs": [1.0, 2.0, 5.0]}, {"outputs": [2.5, 3.0, 4.5]}),
    ({"inputs": [[1], [2]]}, {"outputs": [[2.5], [3.0]]}),
    ({"inputs": {"x": [1.0, 2.0]}}, {"outputs": [2.5, 3.0]}),
    ({"instances": [1.0, 2.0, 5.0]}, {"predictions": [2.5, 3.0, 4.5]}),
    ({"instances": [[1.0], [2.0]]}, {"predictions": [[2.5], [3.0]]}),
    ({"instances": [{"x": 1.0}, {"x": 2}]}, {"predictions": [2.5, 3.0]}),
]


@pytest.mark.parametrize(("body", "want"), HALF_PLUS_TWO, ids=lambda body: json.dumps(body))
def test_half_plus_two(demo: Gateway, body: Any, want: Any) -> None:
    answer = demo.post("/v1/models/half_plus_two:predict", body)
    assert (answer.status, answer.json) == (200, want)


def add_sub_inputs(rows: int) -> tuple[Any, Any, list[Any]]:
    a = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16)
    b = np.full((rows, 16), 7, np.int32)
    tensors = [
        {"name": name, "datatype": "INT32", "shape": list(x.shape), "data": x.tolist()}
        for name, x in (("INPUT0", a), ("INPUT1", b))
    ]
    return a, b, tensors


def test_add_sub_takes_two_and_gives_two(demo: Gateway) -> None:
    a, b, tensors = add_sub_inputs(3)
    answer = demo.post("/v2/models/add_sub/infer", {"id": "forty-two", "inputs": tensors}).json
    assert answer["id"] == "forty-two"
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["OUTPUT0"]["data"] == (a + b).ravel().tolist()
    assert outputs["OUTPUT1"]["data"] == (a - b).ravel().tolist()
    assert all((o["datatype"], o["shape"]) == ("INT32", [3, 16]) for o in outputs.values())


@pytest.mark.parametrize("name", ["OUTPUT0", "OUTPUT1"])
def test_add_sub_gives_what_is_asked_for(demo: Gateway, name: str) -> None:
    a, b, tensors = add_sub_inputs(1)
    answer = demo.post("/v2/models/add_sub/infer", {"inputs": tensors, "outputs": [{"name": name}]}).json
    [output] = answer["outputs"]
    assert "id" not in answer
    assert output["name"] == name
    assert output["data"] == (a + b if name == "OUTPUT0" else a - b).ravel().tolist()


# ---------------------------------------------------------------------------------------------------- upper, countdown

WORDS, SHOUTS = ["straße", "tensor", ""], ["STRASSE", "TENSOR", ""]


def encoded(word: str) -> dict[str, str]:
    return {"b64": base64.b64encode(word.encode()).decode()}


def text_tensor(words: list[str]) -> dict[str, Any]:
    return {"name": "text", "datatype": "BYTES", "shape": [len(words)], "data": words}


UPPER = [
    ("/v2/models/upper/infer", {"inputs": [text_tensor(WORDS)]}, ("outputs", 0, "data"), SHOUTS),
    ("/v1/models/upper:predict", {"instances": WORDS}, ("predictions",), SHOUTS),
    ("/v1/models/upper:predict", {"inputs": {"text": WORDS}}, ("outputs",), SHOUTS),
    ("/v1/models/upper:predict", {"instances": [encoded(word) for word in WORDS]}, ("predictions",), SHOUTS),
    ("/v1/models/upper:predict", {"inputs": [encoded("straße"), "tensor"]}, ("outputs",), SHOUTS[:2]),
    ("/grps/v1/infer/predict", {"model": "upper-1", "str_data": "straße"}, ("str_data",), "STRASSE"),
    (
        "/grps/v1/infer/predict?model=upper-1",
        {"gtensors": {"tensors": [{"dtype": "DT_STRING", "shape": [3], "flat_string": WORDS}]}},
        ("gtensors", "tensors", 0, "flat_string"),
        SHOUTS,
    ),
]


@pytest.mark.parametrize(("path", "body", "way", "want"), UPPER, ids=lambda value: str(value)[:60])
def test_upper(demo: Gateway, path: str, body: Any, way: tuple[Any, ...], want: Any) -> None:
    answer = demo.post(path, body)
    assert answer.status == 200, answer.body
    found = answer.json
    for step in way:
        found = found[step]
    assert found == want


def documents(text: str) -> Iterator[Any]:
    """Concatenated JSON documents, as grps streams them."""
    while text := text.strip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield document
        text = text[end:]


def test_countdown_streams_over_grps(demo: Gateway) -> None:
    tensor = {"name": "start", "dtype": "DT_INT32", "shape": [1], "flat_int32": [3]}
    body = {"model": "countdown-1", "gtensors": {"tensors": [tensor]}}
    answer = demo.post("/grps/v1/infer/predict?streaming=true", body)
    assert answer.status == 200
    assert answer.headers["Transfer-Encoding"] == "chunked"
    counts = [document["gtensors"]["tensors"][0]["flat_int32"] for document in documents(answer.body.decode())]
    assert counts == [[3], [2], [1], [0]]


def test_countdown_needs_a_stream(demo: Gateway) -> None:
    tensor = {"name": "start", "datatype": "INT32", "shape": [1], "data": [1]}
    refused = demo.post("/v2/models/countdown/infer", {"inputs": [tensor]})
    assert refused.status == 501
    assert refused.json == {"error": "HTTP end point doesn't support models with decoupled transaction policy"}
    refused = demo.post("/v1/models/countdown:predict", {"inputs": [1]})
    assert refused.status == 501
    assert refused.json["error"] == "Model countdown gave no answer or several, and this protocol carries one"
    grps = {"dtype": "DT_INT32", "shape": [1], "flat_int32": [1]}
    refused = demo.post("/grps/v1/infer/predict?model=countdown-1", {"gtensors": {"tensors": [grps]}})
    assert (refused.status, refused.json["status"]["status"]) == (500, "FAILURE")
    assert "streaming=true" in refused.json["status"]["msg"]


# -------------------------------------------------------------------------------------------- health, metadata, status

OK = {"status": {"code": 200, "msg": "OK", "status": "SUCCESS"}}
LOADED = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
PAGES = [
    ("GET", "/healthz", None, 200, b"ok\n"),
    ("GET", "/readyz", None, 200, b"ok\n"),
    ("GET", "/v2/health/live", None, 200, {"live": True}),
    ("GET", "/v2/health/ready", None, 200, {"live": True, "ready": True}),
    ("GET", "/v2/models/digits/ready", None, 200, {"name": "digits", "ready": True}),
    ("GET", "/v2/models/digits/versions/3/ready", None, 400, {"error": "Model version not ready"}),
    ("GET", "/grps/v1/health/live", None, 200, OK),
    ("POST", "/grps/v1/health/ready", b"", 200, OK),
    (
        "GET",
        "/v1/models/digits",
        None,
        200,
        {"model_version_status": [{"version": "2", **LOADED}, {"version": "1", **LOADED}]},
    ),
    ("GET", "/v1/models/digits/versions/1", None, 200, {"model_version_status": [{"version": "1", **LOADED}]}),
    ("GET", "/v1/models/nobody", None, 404, {"error": "Could not find any versions of model nobody"}),
    (
        "GET",
        "/v2/models/add_sub",
        None,
        200,
        {
            "name": "add_sub",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": name, "datatype": "INT32", "shape": [-1, 16]} for name in ("INPUT0", "INPUT1")],
            "outputs": [{"name": name, "datatype": "INT32", "shape": [-1, 16]} for name in ("OUTPUT0", "OUTPUT1")],
        },
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "want"), PAGES, ids=lambda value: str(value)[:40])
def test_pages(demo: Gateway, method: str, path: str, body: Any, status: int, want: Any) -> None:
    answer = demo.request(method, path, body)
    assert answer.status == status
    assert (answer.body if isinstance(want, bytes) else answer.json) == want


def test_metadata_of_the_others(demo: Gateway) -> None:
    metadata = demo.get("/v1/models/digits/labels/stable/metadata").json
    assert metadata["model_spec"] == {"name": "digits", "signature_name": "", "version": "1"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["image"]["dtype"] == "DT_FLOAT"
    assert [dim["size"] for dim in signature["outputs"]["scores"]["tensor_shape"]["dim"]] == ["-1", "10"]
    text = demo.post("/grps/v1/metadata/model", {"str_data": "digits"}).json["str_data"]
    assert "digits" in text
    assert "models:" in demo.get("/grps/v1/metadata/server").json["str_data"]


def test_grps_goes_offline_and_still_serves(demo: Gateway) -> None:
    assert demo.get("/grps/v1/health/offline").json == OK
    assert demo.get("/grps/v1/health/ready").status == 503
    assert demo.get("/grps/v1/health/live").status == 200
    assert demo.get("/v2/health/ready").status == 200
    assert demo.post("/grps/v1/infer/predict?model=upper-1", {"str_data": "a"}).json["str_data"] == "A"
    assert demo.get("/grps/v1/health/online").json == OK
    assert demo.get("/grps/v1/health/ready").status == 200


# -------------------------------------------------------------------------------------------------------- command line


def test_models_lists_what_is_served(demo: Gateway) -> None:
    done = command("models", "--url", demo.url)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "digits  versions 1, 2  onnxruntime_onnx  cpu" in lines
    assert "  input  image: FP32 [-1, 8, 8]" in lines
    assert "  output shout: BYTES [-1]" in lines
    assert sum(not line.startswith(" ") for line in lines) == len(MODELS)


CALLS = [
    (["half_plus_two", "[1.0, 2.0, 5.0]"], "half_plus_two version 1\nrow  y: FP32\n0    2.5\n1    3\n2    4.5\n"),
    (["upper", '["a", "ß"]'], "upper version 1\nrow  shout: BYTES\n0    A\n1    SS\n"),
    (["upper", "text=as it is"], "upper version 1\nrow  shout: BYTES\n0    AS IT IS\n"),
    (["upper", "@a.txt"], "upper version 1\nrow  shout: BYTES\n0    A, FILE\n"),
    (["upper", "@-"], "upper version 1\nrow  shout: BYTES\n0    STDIN\n"),
    (["half_plus_two", "x=@a.npy"], "half_plus_two version 1\nrow  y: FP32\n0    3 4 6\n"),
    (
        ["add_sub", "INPUT0=@i.npy", f"INPUT1={[2] * 16}"],
        "add_sub version 1\n"
        "row  OUTPUT0: INT32                   OUTPUT1: INT32\n"
        "0    5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5  1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n",
    ),
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"stdin")))
    Path("a.txt").write_text("a, file")
    Path("b.npy").write_bytes(b"\x93NUMPY")
    np.save("a.npy", np.float64([[2, 4, 8]]))
    np.save("i.npy", np.full(16, 3, np.int8))


@pytest.mark.parametrize(("arguments", "printed"), CALLS)
def test_call(
    demo: Gateway, arguments: list[str], printed: str, files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["call", *arguments, "--url", demo.url])
    assert (status, *capsys.readouterr()) == (0, printed, "")


def test_call_for_programs(demo: Gateway) -> None:
    done = command("call", "half_plus_two", "[1.0]", "--json", "--url", demo.url)
    assert json.loads(done.stdout)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]}]


def test_call_reads_a_file(demo: Gateway) -> None:
    image = f"image=@{DEMO.parent}/demo/images/7.json"
    done = command("call", "digits", image, "--version", "1", "--url", demo.url)
    assert done.returncode == 0, done.stderr
    first, head, row = done.stdout.splitlines()
    assert (first, head) == ("digits version 1", "row  scores: FP32")
    assert np.argmax([float(score) for score in row.split()[1:]]) == 7


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nobody", "1"], "404 Request for unknown model: 'nobody' is not found"),
        (["upper", "[1]"], "400 Unable to parse JSON bytes array"),
        (["add_sub", "[1]"], "say which input"),
        (["half_plus_two", "one"], "input x is no JSON: "),
        (["half_plus_two", "@none.npy"], "cannot read none.npy: No such file or directory"),
        (["half_plus_two", "@b.npy"], "input x, FP32: "),
        (["upper", "@a.npy"], "input text is BYTES, and an array of numbers is none"),
        (["add_sub", "INPUT0=@a.npy"], "input INPUT0, INT32: Cannot cast array data from dtype('float64')"),
    ],
)
def test_call_says_what_is_wrong(
    demo: Gateway, arguments: list[str], complaint: str, files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["call", *arguments, "--url", demo.url]) == 1
    printed, said = capsys.readouterr()
    assert (printed, complaint in said, said.count("\n")) == ("", True, 1), said


def test_the_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"tensorgate {__version__}\n")


def test_health_by_exit_status(demo: Gateway) -> None:
    up = command("health", "--url", demo.url)
    assert (up.returncode, up.stdout) == (0, "ready\n")
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        down = command("health", "--live", "--url", f"http://{HOST}:{unused.getsockname()[1]}")
    assert (down.returncode, down.stdout) == (1, "")
    assert down.stderr.count("\n") == 1


def test_check_and_schema() -> None:
    done = command("check", "--load", str(DEMO))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{DEMO}: ok, {len(MODELS)} models\n", "")
    done = command("schema")
    assert done.returncode == 0
    assert {"listen", "models", "grps"} <= json.loads(done.stdout)["properties"].keys()


WRONG = """\
models:
  digits: {backend: onxx, path: nowhere}
  upper: {backend: python, path: nowhere.py:Upper, instances: many}
limits: {max_body_byte: 1}
"""


@pytest.mark.parametrize("verb", ["check", "serve"])
def test_a_wrong_configuration_is_told_line_by_line(tmp_path: Path, verb: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)
    done = command(verb, str(file))
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert all(line.startswith(f"{file}:") for line in lines)
    assert [line.split(":")[1] for line in lines] == ["2", "3", "3", "4"]
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        address = f"{HOST}:{taken.getsockname()[1]}"
        file = tmp_path / "taken.yaml"
        file.write_text(demo_config(listen={"http": [{"bind": address}]}))
        done = command("serve", str(file))
    assert (done.returncode, done.stdout) == (1, f"cannot listen on {address}: Address already in use\n")
    assert done.stderr == ""


def test_every_printed_example_works(demo: Gateway) -> None:
    """What `serve` prints can be pasted into a shell as it is."""
    lines = [line.strip() for line in demo.said.splitlines() if line.startswith("  ") and "curl " in line]
    assert len(lines) == 4
    lines = [line for line in lines if "/openai/" not in line]  # whose answer is a text
    assert max(map(len, lines)) <= 220
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for line in lines:
        done = subprocess.run(  # noqa: S602  (it is ours)
            line, shell=True, capture_output=True, timeout=60, env=os.environ | path
        )
        assert done.returncode == 0
        (scores,) = [value for value in walk(json.loads(done.stdout)) if len(value) == 10]
        assert np.argmax(scores) == 7


def walk(value: Any) -> Iterator[list[float]]:
    """Every list of numbers inside a document."""
    if isinstance(value, list) and value and isinstance(value[0], float):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(inner)


# ------------------------------------------------------------------------------------------- one batch, three dialects

BATCHED = '''
import itertools
import time

import numpy as np


class Echo:
    """FP64 x [rows, 2] -> the same, and for every row the number of the batch it was in."""

    def __init__(self, context):
        self.serials = itertools.count(1)
        self.pause_s = context.parameters["pause_ms"] / 1000

    def infer(self, inputs, request):
        time.sleep(self.pause_s)
        x = inputs["x"]
        return {"y": x + 0, "batch": np.full((len(x), 1), next(self.serials), np.int64)}
'''


@pytest.fixture
def echo(tmp_path: Path) -> dict[str, Any]:
    """A model whose answers tell in which batch they were made."""
    (tmp_path / "echo.py").write_text(BATCHED)
    return {
        "backend": "python",
        "path": str(tmp_path / "echo.py:Echo"),
        "max_batch_size": 64,
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 2]}],
        "outputs": [
            {"name": "y", "datatype": "FP64", "shape": [-1, 2]},
            {"name": "batch", "datatype": "INT64", "shape": [-1, 1]},
        ],
        "parameters": {"pause_ms": 250},
    }


def echo_open_inference(gateway: Gateway, rows: Any) -> tuple[Any, Any]:
    tensor = {"name": "x", "datatype": "FP64", "shape": list(rows.shape), "data": rows.tolist()}
    answer = gateway.post("/v2/models/echo/infer", {"inputs": [tensor]}).json
    outputs = {output["name"]: np.reshape(output["data"], output["shape"]) for output in answer["outputs"]}
    return outputs["y"], outputs["batch"]


def echo_tf_serving(gateway: Gateway, rows: Any) -> tuple[Any, Any]:
    answer = gateway.post("/v1/models/echo:predict", {"inputs": rows.tolist()}).json["outputs"]
    return np.array(answer["y"]), np.array(answer["batch"])


def echo_grps(gateway: Gateway, rows: Any) -> tuple[Any, Any]:
    tensor = {"name": "x", "dtype": "DT_FLOAT64", "shape": list(rows.shape), "flat_float64": flat(rows)}
    answer = gateway.post("/grps/v1/infer/predict", {"model": "echo-1", "gtensors": {"tensors": [tensor]}}).json
    y, batch = answer["gtensors"]["tensors"]
    return np.reshape(y["flat_float64"], y["shape"]), np.array(batch["flat_int64"], np.int64)


ECHOES = (echo_open_inference, echo_tf_serving, echo_grps)


def test_one_batch_holds_rows_of_every_dialect(serve: Serve, echo: dict[str, Any]) -> None:
    """While the first batch runs, the rest piles up; then each batch is seen by its number in the answers."""
    gateway = serve(demo_config({"echo": echo}))
    before = gateway.metrics().total("tensorgate_batch_rows_count", model="echo")
    random = np.random.default_rng(7)
    sent = [(way, random.standard_normal((1 + n % 3, 2))) for n in range(8) for way in ECHOES]
    with ThreadPoolExecutor(len(sent)) as pool:
        answers = list(pool.map(lambda pair: pair[0](gateway, pair[1]), sent))
    members: dict[int, set[str]] = {}
    for (way, rows), (y, batch) in zip(sent, answers, strict=True):
        np.testing.assert_array_equal(y, rows)
        (serial,) = {*batch.ravel().tolist()}
        members.setdefault(serial, set()).add(way.__name__)
    assert {way.__name__ for way in ECHOES} in members.values()
    series = gateway.metrics()
    assert series.total("tensorgate_batch_rows_sum", model="echo") >= sum(len(rows) for _, rows in sent)
    assert series.total("tensorgate_batch_rows_count", model="echo") - before == len(members) < len(sent)


# ------------------------------------------------------------------------------------------------------------- SIGTERM


def test_sigterm_answers_what_is_under_way(serve: Serve, echo: dict[str, Any]) -> None:
    """Six requests that wait for one another, then SIGTERM: all are answered, and nobody is told "ready" any more."""
    gateway = serve(demo_config({"echo": {**echo, "max_batch_size": 0}}))
    rows = [np.full((1, 2), float(n)) for n in range(6)]
    with ThreadPoolExecutor(len(rows)) as pool:
        asked = [pool.submit(way, gateway, row) for way, row in zip(itertools.cycle(ECHOES), rows, strict=False)]
        wait_until(lambda: under_way(gateway) == len(rows))
        gateway.terminate()
        wait_until(lambda: "draining" in gateway.said)
        assert gateway.process.poll() is None
        for path in ("/readyz", "/v2/health/ready", "/grps/v1/health/ready"):
            assert ready_status(gateway, path) != 200
        assert not all(future.done() for future in asked), "the requests must outlast the probes"
        for future, row in zip(asked, rows, strict=True):
            np.testing.assert_array_equal(future.result()[0], row)
    assert gateway.process.wait(20) == 0
    assert "drained" in gateway.said


def under_way(gateway: Gateway) -> float:
    series = gateway.metrics()
    return sum(series.total(f"tensorgate_{kind}_requests", model="echo") for kind in ("queued", "running"))


def ready_status(gateway: Gateway, path: str) -> int:
    """The status of a probe; 0 where the gateway takes no more connections."""
    try:
        return gateway.get(path).status
    except (OSError, HTTPException):
        return 0


# ------------------------------------------------------------------------------------------------------------- metrics

REQUEST_LABELS = {"dialect", "transport", "model", "version", "method"}
LABELS = {
    "tensorgate_requests_total": REQUEST_LABELS | {"code"},
    "tensorgate_request_seconds_bucket": REQUEST_LABELS | {"le"},
    "tensorgate_request_seconds_count": REQUEST_LABELS,
    "tensorgate_request_seconds_sum": REQUEST_LABELS,
    "tensorgate_stage_seconds_bucket": {"model", "version", "stage", "le"},
    "tensorgate_batch_rows_bucket": {"model", "version", "le"},
    "tensorgate_queued_requests": {"model", "version"},
    "tensorgate_running_requests": {"model", "version"},
    "process_resident_memory_bytes": set(),
}


def test_metrics_after_traffic(serve: Serve) -> None:
    gateway = serve(demo_config())
    for _ in range(3):
        for way in WAYS:
            way(gateway, "digits", "2", [IMAGES[7]])
    for path in ("/v2/models/evil0/infer", "/v1/models/evil1:predict", "/grps/v1/infer/predict?model=evil2-1"):
        assert gateway.post(path, {"str_data": "evil3", "instances": [1]}).status in (404, 500)
    series = gateway.metrics()
    for name, labels in LABELS.items():
        found = [has.keys() for each, has, _ in series.all if each == name]
        assert found, name
        assert all(has - {"reason"} == labels for has in found), name
    counted = {"transport": "http", "model": "digits", "version": "2", "method": "infer", "code": "OK"}
    for dialect, count in (("open_inference", 6), ("tf_serving", 12), ("grps", 6)):
        assert series.total("tensorgate_requests_total", dialect=dialect, **counted) == count
        assert series.total("tensorgate_requests_total", dialect=dialect, code="NOT_FOUND", model="") == 1
    assert series.values("model") == {"", *MODELS}
    assert series.values("stage") == {"decode", "queue", "preprocess", "infer", "postprocess", "encode"}


STUCK = """
import time
class Stuck:
    def __init__(self, context): pass
    def infer(self, inputs, request):
        time.sleep(600)
"""


def test_a_model_that_never_ends_is_given_up_and_its_caller_told(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    tensor = {"datatype": "FP32", "shape": [-1]}
    stuck = {
        "backend": "python",
        "path": str(tmp_path / "stuck.py:Stuck"),
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }
    file = tmp_path / "stuck.yaml"
    file.write_text(demo_config({"stuck": stuck}, drain_seconds=1))
    with running(file) as gateway, ThreadPoolExecutor() as threads:
        asked = threads.submit(gateway.post, "/v1/models/stuck:predict", {"instances": [1.0]})
        wait_until(lambda: gateway.metrics().total("tensorgate_running_requests", model="stuck"))
        assert gateway.stop() == 1
        assert asked.result().status == 503
    assert "gave up after" in gateway.said
