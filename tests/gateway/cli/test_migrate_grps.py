"""`tensorgate import grps`: the two files of a server as people write them, and what becomes of them."""

from __future__ import annotations

import json
import re
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_outcome import Outcome

from tensorgate import Server
from tensorgate.adapters.importers.grps_config import read_server
from tensorgate.adapters.importers.grps_config.skeleton import class_name, class_text
from tensorgate.gateway.app import registries
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import config_class, parse_config

SERVER = """\
interface:
  framework: http+grpc # http or http+grpc
  host: 0.0.0.0
  port: 7080,7081 # Http port and rpc port
max_connections: 1000 # Maximum number of concurrent connections.
max_concurrency: 32
gpu:
  devices: [ 0 ]
  mem_manager_type: torch
  mem_limit_mib: -1
  mem_gc_enable: false
  mem_gc_interval: 60
log:
  log_dir: ./logs
  log_backup_count: 7
"""
MODEL = """\
  - name: your_model
    version: 1.0.0
    device: cpu
    inferer_type: torch
    inferer_name:
    inferer_path: ./data/model.pt
    inferer_args:
    converter_type: torch
    converter_name:
    converter_path:
    converter_args:
    batching:
      type: none
      max_batch_size: 16
      batch_timeout_us: 1000
"""
DAG = """\
dag:
  type: sequential
  name: your_dag
  nodes:
    - name: node-1
      type: model
      model: your_model-1.0.0
"""
INFERENCE = f"models:\n{MODEL}{DAG}"


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command where conf/ has the files, and data/ model.pt with model.onnx beside it, engine.trt, lone.pt,
    saved/saved_model.pb and versions/3/saved_model.pb.
    """
    files = ("model.pt", "model.onnx", "engine.trt", "lone.pt", "saved/saved_model.pb", "versions/3/saved_model.pb")
    for file in files:
        (tmp_path / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / file).touch()
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)

    def go(server: str = SERVER, inference: str = INFERENCE, *words: str) -> Outcome:
        Path("conf/server.yml").write_text(server)
        Path("conf/inference.yml").write_text(inference)
        status = main(["import", "grps", "conf/server.yml", "conf/inference.yml", *words])
        told = capsys.readouterr()
        return Outcome(status, told.out, told.err.splitlines())

    return go


def test_the_templates_of_both_files(run: Run, tmp_path: Path) -> None:
    outcome = run()
    assert outcome.status == 0, outcome.report
    assert outcome.config == {
        "listen": {
            "http": [{"bind": "0.0.0.0:7080", "dialects": ["grps"]}],
            "grpc": [{"bind": "0.0.0.0:7081", "dialects": ["grps"]}],
        },
        "limits": {"max_body_bytes": 1 << 30},
        "grps": {"default_model": "your_model-1.0.0"},
        "models": {
            "your_model": {
                "backend": "onnx",
                "path": str(tmp_path / "data"),
                "versions": "none",
                "device": "cpu",
                "max_batch_size": 0,
                "max_queue_size": 65536,
                "grps": {"version": "1.0.0"},
            }
        },
    }
    assert outcome.said("is not run; model.onnx beside it is") == (
        "your_model: conf/inference.yml:7: inferer_path is not run; model.onnx beside it is"
    )
    keys = [line.partition(": ")[2].split(" ")[0] for line in outcome.report if line.startswith("conf/")]
    wanted = ["interface.port", "max_connections", "max_concurrency", "gpu.devices", "gpu.mem_manager_type"]
    wanted += ["gpu.mem_limit_mib", "gpu.mem_gc_enable", "gpu.mem_gc_interval", "log.log_dir", "log.log_backup_count"]
    assert keys == [*wanted, "dag.name", "dag"]
    assert outcome.report[-1] == "1 of 1 models imported"


def test_what_is_written_is_a_configuration(run: Run, tmp_path: Path) -> None:
    outcome = run(SERVER, INFERENCE, "-o", "gateway.yaml")
    assert (outcome.status, outcome.yaml) == (0, "")
    file = tmp_path / "gateway.yaml"
    config = parse_config(file.read_text(), file, config_class(registries()))
    assert config.models["your_model"].mappings()["grps"].qualified("your_model") == "your_model-1.0.0"  # type: ignore[attr-defined]


def server_of(**changes: str) -> str:
    lines = {"framework": "http", "host": "0.0.0.0", "port": "7080"} | changes
    return "interface:\n" + "".join(f"  {key}: {value}\n" for key, value in lines.items())


LISTENS: list[tuple[dict[str, str], list[str], list[str]]] = [
    ({}, ["0.0.0.0:7080"], []),
    ({"port": '"7080"'}, ["0.0.0.0:7080"], []),
    ({"framework": "http+grpc", "port": '" 80 , 81 "', "host": "10.0.0.7"}, ["10.0.0.7:80"], ["10.0.0.7:81"]),
    ({"framework": "http+grpc", "port": "80,81", "host": '"::"'}, ["[::]:80"], ["[::]:81"]),
    ({"framework": "http+brpc", "port": "80,81"}, ["0.0.0.0:80"], []),
    ({"host": ""}, ["0.0.0.0:7080"], []),
]


@pytest.mark.parametrize(("changes", "http", "grpc"), LISTENS)
def test_ports(run: Run, changes: dict[str, str], http: list[str], grpc: list[str]) -> None:
    outcome = run(server_of(**changes))
    listen = outcome.config["listen"]
    assert [each["bind"] for each in listen["http"]] == http
    assert [each["bind"] for each in listen.get("grpc", ())] == grpc
    brpc = changes.get("framework") == "http+brpc"
    assert outcome.status == int(brpc)
    assert ("http_status" in outcome.config["grps"]) is brpc
    if brpc:
        assert "gRPC" in outcome.said("brpc is refused")


CUSTOMIZED: list[tuple[str, dict[str, Any]]] = [
    ("path: /predict", {"path": "/predict"}),
    ("path: /predict\n    customized_body:\n    streaming_ctrl:", {"path": "/predict"}),
    (
        "path: /v1/chat/completions\n    customized_body: true\n    streaming_ctrl:\n      ctrl_mode: body_param\n"
        "      ctrl_key: stream\n      res_content_type: 'text/event-stream; charset=utf-8'",
        {
            "path": "/v1/chat/completions",
            "customized_body": True,
            "streaming_ctrl": {
                "ctrl_mode": "body_param",
                "ctrl_key": "stream",
                "res_content_type": "text/event-stream; charset=utf-8",
            },
        },
    ),
    (
        "path: /p\n    streaming_ctrl: {ctrl_mode: header_param, ctrl_key: , res_content_type: }",
        {"path": "/p", "streaming_ctrl": {"ctrl_mode": "header_param"}},
    ),
]


@pytest.mark.parametrize(("text", "want"), CUSTOMIZED)
def test_customized_http(run: Run, text: str, want: dict[str, Any]) -> None:
    outcome = run(server_of(customized_predict_http=f"\n    {text}"))
    assert outcome.status == 0, outcome.report
    assert outcome.config["grps"]["customized_predict_http"] == want


def model_of(**changes: str) -> str:
    """inference.yml with one model that differs from the template like this."""
    text = MODEL
    for key, value in changes.items():
        text = re.sub(rf"(?m)^(\s*(?:- )?{key}:).*$", rf"\1 {value}", text)
        text += "" if f"{key}:" in text else f"    {key}: {value}\n"
    return f"models:\n{text}{DAG}"


MODELS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "a device": ({"device": "gpu:1"}, {"device": "cuda:1"}),
    "any GPU": ({"device": "cuda"}, {"device": "cuda"}),
    "its own device": ({"device": "original", "inp_device": "gpu"}, {"device": "auto"}),
    "batches": ({"type": "dynamic"}, {"max_batch_size": 16, "max_queue_delay_us": 1000}),
    "arguments": (
        {"inferer_args": "{k: 1, t: true, customized_op_paths: [], streams: 2}"},
        {"parameters": {"k": 1, "t": True}},
    ),
    "an ONNX file": ({"inferer_type": "customized", "inferer_path": "data/model.onnx"}, {}),
    "a SavedModel": (
        {"inferer_type": "tensorflow", "inferer_path": "./data/saved"},
        {"backend": "tensorflow", "path": "data/saved"},
    ),
    "a SavedModel with its version": (
        {"inferer_type": "tensorflow", "inferer_path": "data/versions/3"},
        {"backend": "tensorflow", "path": "data/versions/3"},
    ),
    "SavedModels in versions": (
        {"inferer_type": "tensorflow", "inferer_path": "data/versions"},
        {"backend": "tensorflow", "path": "data/versions", "versions": "latest"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_models(run: Run, case: str) -> None:
    changes, differs = MODELS[case]
    outcome = run(SERVER, model_of(**changes))
    assert outcome.status == 0, outcome.report
    usual = {"backend": "onnx", "path": "data", "versions": "none", "device": "cpu", "max_batch_size": 0}
    usual |= {"max_queue_size": 65536, "grps": {"version": "1.0.0"}}
    want = usual | differs
    assert outcome.config["models"]["your_model"] == want | {"path": str(Path.cwd() / want["path"])}


@pytest.mark.parametrize("version", ["1.10", "1e3", "0x10", "1", "true", "2020-01-01", '"1.0"'])
def test_a_version_is_text(run: Run, version: str) -> None:
    text = version.strip('"')
    outcome = run(SERVER, model_of(version=version).replace("your_model-1.0.0", f"your_model-{text}"))
    assert outcome.config["models"]["your_model"]["grps"] == {"version": text}
    assert outcome.config["grps"]["default_model"] == f"your_model-{text}"


def test_two_versions_of_a_name(run: Run) -> None:
    outcome = run(SERVER, "models:\n" + MODEL + MODEL.replace("1.0.0", "2.0.0") + DAG)
    models = outcome.config["models"]
    assert models["your_model"]["grps"] == {"version": "1.0.0"}
    assert models["your_model-2.0.0"]["grps"] == {"version": "2.0.0", "name": "your_model"}


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "torch": ({"inferer_path": "data/lone.pt"}, "inferer_path: torch models of this form are not run here; export it"),
    "tensorrt": ({"inferer_type": "tensorrt", "inferer_path": "data/engine.trt"}, "copy the ONNX file that the engine"),
    "tensorflow": ({"inferer_type": "tensorflow", "inferer_path": "data/lone.pt"}, "convert it: python -m tf2onnx"),
    "a class": (
        {"inferer_type": "customized", "inferer_name": "Mine", "inferer_path": ""},
        "with -o FILE a class to be written lies beside the YAML",
    ),
    "another type": ({"inferer_type": "onnx"}, "found onnx, expected torch, tensorflow, tensorrt, customized"),
    "another device": ({"device": "tpu"}, "found tpu, expected cpu, cuda"),
    "no path": ({"inferer_path": ""}, "inferer_path: is blank"),
    "batches of none": ({"type": "dynamic", "max_batch_size": "0"}, "found 0, expected at least 1"),
    "no number": ({"type": "dynamic", "batch_timeout_us": "soon"}, "found soon, expected a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_are_refused_stand_in_comments(run: Run, case: str) -> None:
    changes, text = REFUSED[case]
    outcome = run(SERVER, model_of(**changes))
    assert outcome.status == 1
    assert text in outcome.said("NOT IMPORTED")
    assert "see there" in outcome.said("dag is refused")
    assert outcome.config["models"] is None
    assert "# your_model: not imported: " in outcome.yaml
    assert "default_model" not in outcome.yaml
    assert outcome.report[-2:] == ["0 of 1 models imported", "1 thing refused; the lines above say what to do"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"converter_type": "customized", "converter_name": "Mine"}, "do its work with preprocess"),
        ({"inferer_args": "{customized_op_paths: [a.so]}"}, "export without them"),
    ],
)
def test_parts_that_are_refused(run: Run, changes: dict[str, str], text: str) -> None:
    outcome = run(SERVER, model_of(**changes))
    assert (outcome.status, list(outcome.config["models"])) == (1, ["your_model"])
    assert "is refused" in outcome.said(text)


# --------------------------------------------------------------------------------------------------------- TorchScript


NET = """\
class Net(Module):
  __parameters__ = ["weight", ]
  training : bool
  def forward(self: __torch__.Net,
    {arguments}) -> {result}:
    return x
  def other(self: __torch__.Net) -> int:
    return 1
"""


def save_script(arguments: str, result: str, module: str = "__torch__", name: str = "Net") -> None:
    """lone.pt as torch.jit.save lays it out, with the parts that the importer reads."""
    pickle = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"q\x00)\x81}q\x01b."
    with zipfile.ZipFile("data/lone.pt", "w") as archive:
        archive.writestr("lone/data.pkl", pickle)
        text = NET.format(arguments=arguments, result=result).replace("Net", name)
        archive.writestr(f"lone/code/{module.replace('.', '/')}.py", "class Other(Module):\n  pass\n" + text)


FORWARDS: list[tuple[str, str, list[dict[str, Any]], list[str]]] = [
    ("x: Tensor", "Tensor", [{"name": "x", "datatype": "FP32"}], ["output"]),
    (
        "ids: Tensor,\n    mask: Optional[Tensor]=None",
        "Tuple[Tensor, Tensor]",
        [{"name": "ids", "datatype": "FP32"}, {"name": "mask", "datatype": "FP32", "optional": True}],
        ["output__0", "output__1"],
    ),
    (
        "x: Tensor,\n    n: int=3,\n    on: bool,\n    f: float",
        "Tensor",
        [
            {"name": "x", "datatype": "FP32"},
            {"name": "n", "datatype": "INT64", "shape": [1], "optional": True},
            {"name": "on", "datatype": "BOOL", "shape": [1]},
            {"name": "f", "datatype": "FP32", "shape": [1]},
        ],
        ["output"],
    ),
]


@pytest.mark.parametrize(("arguments", "result", "inputs", "outputs"), FORWARDS)
@pytest.mark.parametrize("place", [("__torch__", "Net"), ("__torch__.nets.___torch_mangle_3", "Net2")])
def test_torch_script_is_served_as_it_is(
    run: Run,
    arguments: str,
    result: str,
    inputs: list[dict[str, Any]],
    outputs: list[str],
    place: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Names are read from the file, which says no datatypes."""
    save_script(arguments, result, *place)
    outcome = run(SERVER, model_of(inferer_path="data/lone.pt", type="dynamic"))
    assert outcome.status == 0, outcome.report
    entry = outcome.config["models"]["your_model"]
    assert {key: entry[key] for key in ("backend", "file", "versions", "device", "max_batch_size")} == {
        "backend": "torch", "file": "lone.pt", "versions": "none", "device": "cpu",
        "max_batch_size": 0 if "n: int" in arguments else 16,
    }  # fmt: skip
    assert ("max_queue_delay_us" in entry) is ("n: int" not in arguments)
    assert entry["inputs"] == inputs
    assert entry["outputs"] == [{"name": name, "datatype": "FP32"} for name in outputs]
    assert "pip install 'torch>=2.9'" in outcome.said("correct those that are not")
    Path("gateway.yaml").write_text(outcome.yaml)
    assert (main(["check", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "result"),
    [("x: List[Tensor]", "Tensor"), ("x: Tensor", "Dict[str, Tensor]"), ("x: Tensor", "int"), ("", "Tensor")],
)
def test_torch_script_of_another_form_is_refused(run: Run, arguments: str, result: str) -> None:
    save_script(arguments, result)
    outcome = run(SERVER, model_of(inferer_path="data/lone.pt"))
    assert outcome.status == 1
    assert "export it once" in outcome.said("NOT IMPORTED")


@pytest.mark.parametrize("files", [{}, {"a/data.pkl": b"\x80\x02}."}, {"a/data.pkl": b"\x80\x02cbuiltins\neval\n."}])
def test_a_zip_that_is_no_torch_script(run: Run, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile("data/lone.pt", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert run(SERVER, model_of(inferer_path="data/lone.pt")).status == 1


# ----------------------------------------------------------------------------------------------------- classes of grps


OF_CLASSES = {
    "device": "cpu",
    "inferer_type": "customized",
    "inferer_name": "your_inferer",
    "inferer_path": "",
    "converter_type": "customized",
    "converter_name": "your_converter",
}


def test_a_customized_model_is_a_class_to_be_written(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It passes the check and is loaded; what is written into it, no further import takes away."""
    changes = OF_CLASSES | {"inferer_path": "data/weights", "inferer_args": "{beams: 4}", "converter_args": "{k: v}"}
    outcome = run(SERVER, model_of(**changes, type="dynamic"), "-o", "gateway.yaml")
    assert outcome.status == 0, outcome.report
    program = "gateway-models/your_model.py:YourInferer"
    assert f"-> {program}: a class that is to be written" in outcome.said("inferer_name")
    config = yaml.safe_load(Path("gateway.yaml").read_text())
    entry = config["models"]["your_model"]
    assert (entry["backend"], entry["path"], entry["max_batch_size"]) == ("python", program, 0)
    assert entry["parameters"] == {"inferer_path": "data/weights", "beams": 4, "converter_args": {"k": "v"}}
    assert (entry["grps"]["version"], config["grps"]) == ("1.0.0", {"default_model": "your_model-1.0.0"})
    assert (main(["check", "--load", "gateway.yaml"]), capsys.readouterr().err) == (0, "")
    file = Path("gateway-models/your_model.py")
    file.write_text(WRITTEN_CLASS)
    again = run(SERVER, model_of(**OF_CLASSES), "-o", "gateway.yaml")
    assert "gateway-models/your_model.py: is there already, and stays as it is" in again.report
    assert file.read_text() == WRITTEN_CLASS


WRITTEN_CLASS = """
import numpy as np

class YourInferer:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        said = b"you said " + inputs["text"][0] if "text" in inputs else b""
        return {"said": np.array([said], object), "numbers": inputs.get("tensor", np.zeros(0, np.float32)) * 2}
"""
TENSOR = {"dtype": "DT_FLOAT32", "shape": [2], "flat_float32": [1, 2]}
ASKED: list[tuple[dict[str, Any], str, str, Any]] = [
    ({"str_data": "hi"}, "", "str_data", "you said hi"),
    ({"gtensors": {"tensors": [TENSOR]}}, "", "gtensors", [2, 4]),
    ({"gtensors": {"tensors": [TENSOR | {"name": "tensor"}]}}, "", "gtensors", [2, 4]),
    ({"ndarray": [[1, 2]]}, "", "gtensors", [2, 4]),
    ({"ndarray": [[1, 2]]}, "?return-ndarray=true", "ndarray", [[2, 4]]),
]


def test_a_written_class_answers_text_and_tensors(run: Run, tmp_path: Path) -> None:
    """As one model of grps takes any message: text is answered in text, tensors in tensors."""
    assert run(SERVER, model_of(**OF_CLASSES), "-o", "gateway.yaml").status == 0
    Path("gateway-models/your_model.py").write_text(WRITTEN_CLASS)
    with Server(tmp_path / "gateway.yaml") as server:
        for body, query, kind, wanted in ASKED:
            url = f"{server.url}/grps/v1/infer/predict{query}"
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                told = json.load(answer)
            found = told[kind]
            if kind == "gtensors":
                [tensor] = found["tensors"]
                assert tensor["name"] == "numbers"
                found = tensor["flat_float32"]
            assert (found, {*told}) == (wanted, {"status", kind})


def test_the_templates_of_a_project_of_grps(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """As `grpst create` lays them out, in Python as in C++; with a customized path; two models in a chain."""
    customized = {"customized_predict_http": "{path: /custom_predict, customized_body: true}"}
    chain = "    - {name: node-2, type: model, model: your_model2-1.0.0}\n"
    one = model_of(**OF_CLASSES | {"device": "cuda", "inferer_args": "{customized_op_paths: }"})
    first = model_of(**OF_CLASSES).removesuffix(DAG)
    two = first + first.removeprefix("models:\n").replace("your_model", "your_model2") + DAG + chain
    for server, inference, status, models in (
        (SERVER, one, 0, ["your_model"]),
        (SERVER.replace("http+grpc #", "http+brpc #"), one, 1, ["your_model"]),
        (server_of(**customized), one, 0, ["your_model"]),
        (SERVER, two, 1, ["your_model", "your_model2"]),
    ):
        outcome = run(server, inference, "-o", "gateway.yaml")
        assert outcome.status == status, outcome.report
        assert list(yaml.safe_load(Path("gateway.yaml").read_text())["models"]) == models
        assert (main(["check", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("inferer", "name"),
    [
        ("your_inferer", "YourInferer"),
        ("MyModel", "MyModel"),
        ("3d-net", "Model3dNet"),
        ("模型", "Model"),
        ("", "Model"),
    ],
)
def test_the_class_of_an_inferer(inferer: str, name: str) -> None:
    assert class_name(inferer) == name
    scope: dict[str, Any] = {}
    exec(class_text('m"""\n{x}', inferer, ""), scope)  # noqa: S102
    assert isinstance(scope[name], type)


def test_a_chain_is_refused_with_the_ensemble_that_it_would_be(run: Run) -> None:
    second = "    - {name: node-2, type: model, model: other-2}\n"
    models = MODEL + MODEL.replace("your_model", "other").replace("1.0.0", "2")
    outcome = run(SERVER, f"models:\n{models}{DAG}{second}")
    assert (outcome.status, len(outcome.config["models"])) == (1, 2)
    said = outcome.said("your_model-1.0.0 -> other-2")
    assert "{backend: ensemble, inputs: [...], outputs: [...], steps: [{model: your_model, " in said
    assert said.endswith("then grps: {default_model: your_dag}")


def test_unknown_keys_are_told(run: Run) -> None:
    outcome = run(SERVER + "max_concurency: 3\n", INFERENCE + "  kind: 1\n")
    assert outcome.status == 0
    assert outcome.said("max_concurency") == (
        "conf/server.yml:16: max_concurency is not known and passed over; did you mean max_concurrency?"
    )
    assert outcome.said("dag.kind").startswith("conf/inference.yml:24: dag.kind is not known")


WRONG: list[tuple[str, str, str]] = [
    ("", INFERENCE, "conf/server.yml: expected a mapping"),
    ("a: [", INFERENCE, "conf/server.yml:1: expected the node content"),
    ("a: 1", INFERENCE, "conf/server.yml:1: there is no interface"),
    (server_of(framework="thrift"), INFERENCE, "interface.framework: found thrift, expected http, http+grpc, http+br"),
    (server_of(port="7080,7081"), INFERENCE, "interface.port: 2 ports for http"),
    (server_of(framework="http+grpc", port="80,80"), INFERENCE, "interface.port: the ports must differ"),
    (server_of(port="0"), INFERENCE, 'interface.port: found "0", expected ports as in "7080,7081"'),
    (server_of(port="[80]"), INFERENCE, "interface.port: expected a text"),
    (server_of(host="a b"), INFERENCE, "interface.host: found a b, expected an address"),
    (server_of(customized_predict_http="{path: }"), INFERENCE, 'http.path: found "", expected a path of its own'),
    (server_of(customized_predict_http="{path: /grps/v1/x}"), INFERENCE, "expected a path of its own"),
    (server_of(customized_predict_http="{path: /a, customized_body: 2}"), INFERENCE, "expected true or false"),
    (server_of(customized_predict_http="[1]"), INFERENCE, "customized_predict_http: expected a mapping"),
    (SERVER, DAG, "models: there are none"),
    (SERVER, f"models: 5\n{DAG}", "models: expected a list"),
    (SERVER, f"models: [x]\n{DAG}", "models[0]: expected a mapping"),
    (SERVER, f"models: [{{name: a}}]\n{DAG}", "models[0]: a model needs name and version"),
    (SERVER, f"models:\n{MODEL}{MODEL}{DAG}", "models[1]: your_model-1.0.0 stands there already"),
    (SERVER, f"models:\n{MODEL}", "there is no dag"),
    (SERVER, INFERENCE.replace("sequential", "graph"), "dag.type: found graph, expected sequential"),
    (SERVER, INFERENCE.replace("your_model-1.0.0", "your_model"), "there is no model your_model; expected name-ver"),
    (SERVER, INFERENCE.replace("type: model", "type: dag"), "dag.nodes[0].type: found dag, expected model"),
    (SERVER, f"models:\n{MODEL}dag: {{type: sequential}}", "dag.nodes: there are none"),
    (SERVER, "a: &a [*a]", "conf/inference.yml:1: "),
    (SERVER, "a: " + "[" * 30 + "]" * 30, "too deep or too large"),
    (SERVER, "a: " + "[" * 5000, "conf/inference.yml"),
]


@pytest.mark.parametrize(("server", "inference", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_files_with_which_nothing_can_start(run: Run, server: str, inference: str, text: str) -> None:
    outcome = run(server, inference)
    assert (outcome.status, outcome.yaml) == (1, "")
    (line,) = outcome.report
    assert text in line


def test_files_that_are_not_there(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "grps", "nowhere.yml", "conf/inference.yml"]) == 1
    assert capsys.readouterr().err == "nowhere.yml: no such file or directory\n"


@given(st.text(max_size=200) | st.binary(max_size=100))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "any.yml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    with pytest.raises(ValueError, match=r"any\.yml"):
        read_server(file, file)
