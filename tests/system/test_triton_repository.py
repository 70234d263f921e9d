"""A Triton model repository, served as it is: a dozen ONNX models made on the spot, asked over HTTP.

What is expected of each is what Triton answers for the same folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from serving import Gateway, command, started

TYPES = {
    "FP32": TensorProto.FLOAT,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "INT8": TensorProto.INT8,
    "INT32": TensorProto.INT32,
    "BOOL": TensorProto.BOOL,
    "BYTES": TensorProto.STRING,
}
Shapes = dict[str, tuple[str, list[Any]]]


def save(file: Path, inputs: Shapes, outputs: Shapes, *nodes: tuple[str, list[str], list[str]]) -> None:
    def infos(table: Shapes) -> list[Any]:
        return [helper.make_tensor_value_info(n, TYPES[t], shape) for n, (t, shape) in table.items()]

    graph = helper.make_graph([helper.make_node(*node) for node in nodes], "g", infos(inputs), infos(outputs))
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


def identity(file: Path, datatype: str, shape: list[Any]) -> None:
    save(file, {"x": (datatype, shape)}, {"y": (datatype, shape)}, ("Identity", ["x"], ["y"]))


def add_sub(file: Path, rows: Any = "n") -> None:
    inputs: Shapes = {"INPUT0": ("INT32", [rows, 16]), "INPUT1": ("INT32", [rows, 16])}
    outputs: Shapes = {"OUTPUT0": ("INT32", [rows, 16]), "OUTPUT1": ("INT32", [rows, 16])}
    names = list(inputs)
    save(file, inputs, outputs, ("Add", names, ["OUTPUT0"]), ("Sub", names, ["OUTPUT1"]))


def tensors(*names: str, kind: str = "INT32", dims: str = "[ 16 ]") -> str:
    return ", ".join(f'{{ name: "{name}" data_type: TYPE_{kind} dims: {dims} }}' for name in names)


SIMPLE = f"input [ {tensors('INPUT0', 'INPUT1')} ]\noutput [ {tensors('OUTPUT0', 'OUTPUT1')} ]\n"
CONFIGS = {
    "simple": f'name: "simple"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\n{SIMPLE}',
    "only_size": "max_batch_size: 2",
    "delayed": 'backend: "onnxruntime" max_batch_size: 8 '
    "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 500 }"
    "optimization { cuda { graphs: true } }",
    "two_copies": f"max_batch_size: 8 instance_group [ {{ count: 2 kind: KIND_CPU }} ] {SIMPLE}",
    "labelled": f"max_batch_size: 4 input [ {tensors('x', kind='FP32', dims='[ 3 ]')} ] output [ {{"
    'name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }} ]'.replace("}}", "}"),
    "reshaped": 'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 2, 3 ] reshape { shape: [ 6 ] } } '
    'output { name: "y" data_type: TYPE_FP32 dims: [ 3, 2 ] reshape { shape: [ 6 ] } }',
    "all_versions": "version_policy { all {} }",
    "some_versions": "version_policy: { specific: { versions: [ 1, 3 ] } }",
    "renamed": 'default_model_filename: "best.onnx"',
    "broken_config": 'max_batch_size: 4\ninput [ { nam: "x" } ]',
    "cannot_batch": "max_batch_size: 4",
    "contradicted": f"max_batch_size: 8 input [ {tensors('INPUT0', 'INPUT1', kind='FP32')} ] "
    f"output [ {tensors('OUTPUT0', 'OUTPUT1')} ]",
    "tensorrt": "",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triton") / "models"
    for name in ("simple", "only_size", "delayed", "two_copies", "contradicted"):
        add_sub(folder / name / "1/model.onnx")
    add_sub(folder / "cannot_batch/1/model.onnx", rows=1)
    identity(folder / "no_config/1/model.onnx", "FP32", ["n", 2])
    identity(folder / "scalars/1/model.onnx", "FP32", ["n"])
    identity(folder / "unbatched/1/model.onnx", "FP32", [2, "m"])
    identity(folder / "words/1/model.onnx", "BYTES", ["n", 1])
    identity(folder / "labelled/1/model.onnx", "FP32", ["n", 3])
    identity(folder / "reshaped/1/model.onnx", "FP32", ["n", 6])
    identity(folder / "renamed/1/best.onnx", "FP32", ["n", 2])
    identity(folder / "broken_config/1/model.onnx", "FP32", ["n", 2])
    for version in (1, 2, 3):
        identity(folder / f"all_versions/{version}/model.onnx", "FP32", ["n", version])
        identity(folder / f"some_versions/{version}/model.onnx", "FP32", ["n", version])
        identity(folder / f"latest/{version}/model.onnx", "FP32", ["n", version])
    for datatype in ("FP16", "BF16", "INT8", "BOOL"):
        identity(folder / f"as_{datatype}/1/model.onnx", datatype, ["n", 2])
    (folder / "tensorrt/1").mkdir(parents=True)
    (folder / "tensorrt/1/model.plan").write_bytes(b"")
    for name, text in CONFIGS.items():
        (folder / name / "config.pbtxt").write_text(text)
    (folder / "labelled/labels.txt").write_bytes(b"cat\r\ndog\nbird\n")
    return folder


@pytest.fixture(scope="module")
def gateway(repository: Path) -> Iterator[Gateway]:
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    with started(repository.parent / "serve.log", "--model-repository", str(repository), *ports) as running:
        running.wait_until_said("READY")
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.said_itself, running.said


def shapes(gateway: Gateway, model: str) -> list[list[int]]:
    answer = gateway.get(f"/v2/models/{model}")
    assert answer.status == 200, answer.body
    return [tensor["shape"] for tensor in answer.json["inputs"] + answer.json["outputs"]]


def infer(gateway: Gateway, model: str, inputs: dict[str, tuple[str, list[int], Any]], **more: Any) -> Any:
    body = [{"name": n, "datatype": t, "shape": shape, "data": data} for n, (t, shape, data) in inputs.items()]
    return gateway.post(f"/v2/models/{model}/infer", {"inputs": body, **more})


def echo(gateway: Gateway, model: str, datatype: str, shape: list[int], data: list[Any]) -> Any:
    answer = infer(gateway, model, {"x": (datatype, shape, data)})
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    return output["shape"], output["data"]


SHAPES = {
    "simple": [[-1, 16]] * 4,
    "only_size": [[-1, 16]] * 4,
    "delayed": [[-1, 16]] * 4,
    "two_copies": [[-1, 16]] * 4,
    "no_config": [[-1, 2]] * 2,
    "scalars": [[-1, 1]] * 2,
    "unbatched": [[2, -1]] * 2,
    "words": [[-1, 1]] * 2,
    "labelled": [[-1, 3]] * 2,
    "reshaped": [[-1, 2, 3], [-1, 3, 2]],
    "renamed": [[-1, 2]] * 2,
    "all_versions": [[-1, 3]] * 2,
    "latest": [[-1, 3]] * 2,
    "as_BF16": [[-1, 2]] * 2,
}


@pytest.mark.parametrize("model", SHAPES)
def test_metadata(gateway: Gateway, model: str) -> None:
    assert shapes(gateway, model) == SHAPES[model]
    assert gateway.get(f"/v2/models/{model}/ready").status == 200
    assert gateway.get(f"/v2/models/{model}").json["platform"] == "onnxruntime_onnx"


def test_versions(gateway: Gateway) -> None:
    served = {name: gateway.get(f"/v2/models/{name}").json["versions"] for name in ("all_versions", "some_versions")}
    assert served == {"all_versions": ["1", "2", "3"], "some_versions": ["1", "3"]}
    assert gateway.get("/v2/models/latest").json["versions"] == ["3"]
    assert gateway.get("/v2/models/some_versions/versions/2").status == 404
    assert shapes(gateway, "all_versions/versions/2") == [[-1, 2]] * 2


@pytest.mark.parametrize("model", ["simple", "only_size", "delayed", "two_copies"])
def test_add_sub(gateway: Gateway, model: str) -> None:
    ones = ("INT32", [2, 16], [1] * 32)
    answer = infer(gateway, model, {"INPUT0": ones, "INPUT1": ones})
    assert answer.status == 200, answer.body
    assert [output["data"] for output in answer.json["outputs"]] == [[2] * 32, [0] * 32]


@pytest.mark.parametrize(("model", "most"), [("simple", 8), ("only_size", 2), ("no_config", 4), ("delayed", 8)])
def test_the_batch_has_its_limit(gateway: Gateway, model: str, most: int) -> None:
    width = 2 if model == "no_config" else 16
    kind = "FP32" if model == "no_config" else "INT32"
    names = ["x"] if model == "no_config" else ["INPUT0", "INPUT1"]
    for rows in (most, most + 1):
        answer = infer(gateway, model, {name: (kind, [rows, width], [1] * rows * width) for name in names})
        assert answer.status == (200 if rows == most else 400), answer.body
    assert f"inference request batch-size must be <= {most} for '{model}'" in answer.json["error"]


def test_echoes(gateway: Gateway) -> None:
    assert echo(gateway, "scalars", "FP32", [3, 1], [1, 2, 3]) == ([3, 1], [1, 2, 3])
    assert echo(gateway, "unbatched", "FP32", [2, 1], [1, 2]) == ([2, 1], [1, 2])
    assert echo(gateway, "words", "BYTES", [2, 1], ["a", "ö"]) == ([2, 1], ["a", "ö"])
    assert echo(gateway, "reshaped", "FP32", [1, 2, 3], [1, 2, 3, 4, 5, 6]) == ([1, 3, 2], [1, 2, 3, 4, 5, 6])
    assert echo(gateway, "renamed", "FP32", [1, 2], [1, 2]) == ([1, 2], [1, 2])
    assert echo(gateway, "as_INT8", "INT8", [1, 2], [-1, 2]) == ([1, 2], [-1, 2])
    assert echo(gateway, "as_BOOL", "BOOL", [1, 2], [True, False]) == ([1, 2], [True, False])


@pytest.mark.parametrize(("datatype", "size"), [("FP16", 2), ("BF16", 2), ("INT8", 1), ("BOOL", 1)])
def test_binary_tensors_pass_bit_equal(gateway: Gateway, datatype: str, size: int) -> None:
    data = bytes(range(2, 2 + 4 * size)) if datatype != "BOOL" else b"\1\0\0\1"
    header = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": datatype, "shape": [2, 2], "parameters": {"binary_data_size": len(data)}}
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    length = {"Inference-Header-Content-Length": str(len(header))}
    answer = gateway.request("POST", f"/v2/models/as_{datatype}/infer", header + data, length)
    assert answer.status == 200, answer.body
    assert answer.body[int(answer.headers["Inference-Header-Content-Length"]) :] == data


def test_a_shape_that_does_not_fit_is_told_with_the_declared_one(gateway: Gateway) -> None:
    answer = infer(gateway, "reshaped", {"x": ("FP32", [1, 6], [1] * 6)})
    assert answer.status == 400
    assert "unexpected shape for input 'x' for model 'reshaped'. Expected [-1,2,3], got [1,6]." in answer.json["error"]


def test_what_failed_fails_alone(gateway: Gateway) -> None:
    assert gateway.get("/v2/health/live").status == 200
    assert gateway.get("/v2/health/ready").status == 400
    for model in ("broken_config", "cannot_batch", "contradicted", "tensorrt"):
        assert gateway.get(f"/v2/models/{model}/ready").status == 400
        assert "has no available versions" in gateway.post(f"/v2/models/{model}/infer", {"inputs": []}).json["error"]


def test_what_is_said(gateway: Gateway) -> None:
    lines = gateway.said.splitlines()
    for line in [
        "  delayed: config.pbtxt:1: optimization.cuda.graphs is ignored: cuda_graph of an ONNX or a PyTorch model asks "
        "for it",
        '  FAILED broken_config: config.pbtxt:2:11: input.nam: unknown key "nam"; did you mean name?',
        "  FAILED tensorrt: model.plan is a TensorRT engine, which is not supported; onnxruntime, python, pytorch, "
        "tensorflow (SavedModels) and ensemble are",
    ]:
        assert line in lines
    (line,) = (line for line in lines if "FAILED cannot_batch" in line)
    assert "autofill failed for model 'cannot_batch': model does not support batching while non-zero" in line
    (line,) = (line for line in lines if "FAILED contradicted" in line)
    assert "'INPUT0' is FP32 at one end and INT32 at the other" in line


def test_import(repository: Path, tmp_path: Path) -> None:
    """The report names each key that is ignored, and each model that is left out; so do comments in the file."""
    file = tmp_path / "gateway.yaml"
    done = command("import", "triton", str(repository), "-o", str(file))
    assert done.returncode == 1, "two models cannot be imported"
    assert "broken_config: NOT IMPORTED: config.pbtxt:2:11" in done.stderr
    assert "delayed: config.pbtxt:1: optimization.cuda.graphs is ignored" in done.stderr
    assert done.stdout == ""
    text = file.read_text()
    assert "    # config.pbtxt:1: optimization.cuda.graphs is ignored" in text
    assert "# tensorrt: not imported: model.plan is a TensorRT engine" in text
    assert "path: ../" in text


def test_what_is_imported_passes_the_check(repository: Path, tmp_path: Path) -> None:
    """And loads: the paths lead from the file's folder to the models."""
    part = tmp_path / "part"
    part.mkdir()
    for name in ("no_config", "only_size", "scalars", "unbatched", "all_versions", "some_versions", "renamed"):
        (part / name).symlink_to(repository / name)
    file = tmp_path / "configs" / "gateway.yaml"
    file.parent.mkdir()
    assert command("import", "triton", str(part), "-o", str(file)).returncode == 0
    assert "path: ../part/renamed" in file.read_text()
    done = command("check", "--load", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("ok, 7 models\n")


def test_import_refuses(tmp_path: Path) -> None:
    assert command("import", "triton", str(tmp_path / "nowhere")).returncode == 1
    done = command("serve")
    assert done.returncode == 2
    assert "--model-repository" in done.stderr
    done = command("serve", "--model-repository", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "no such file or directory" in done.stderr
    done = command("serve", "--model-repository", __file__)
    assert done.returncode == 2
    assert "not a directory" in done.stderr
