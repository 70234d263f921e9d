"""`tensorgate import mlserver`: trees of settings as people write them, and what becomes of them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_outcome import Outcome
from onnx import TensorProto, helper

from tensorgate import Server
from tensorgate.adapters.importers.mlserver_config import read_server
from tensorgate.gateway.cli.main import main

X = {"name": "x", "datatype": "FP64", "shape": [-1, 2]}
PREDICT = {"name": "predict", "datatype": "INT64", "shape": [-1, 1]}
SKLEARN = {
    "name": "iris",
    "implementation": "mlserver_sklearn.SKLearnModel",
    "parameters": {"uri": "./model.joblib"},
    "inputs": [X],
    "outputs": [PREDICT],
}


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Imports a folder with these models, each in a folder of its own beside the files that it names."""
    monkeypatch.chdir(tmp_path)

    def go(*models: dict[str, Any], server: Any = None, files: tuple[str, ...] = (), trusted: bool = False) -> Outcome:
        for index, model in enumerate(models):
            folder = tmp_path / f"models/m{index}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model-settings.json").write_text(json.dumps(model))
            for name in ("model.joblib", "model.bst", *files):
                (folder / name).touch()
        if server is not None:
            (tmp_path / "models/settings.json").write_text(json.dumps(server))
        status = main(["import", "mlserver", "models", "-o", "gateway.yaml", *(["--trusted"] if trusted else [])])
        written = Path("gateway.yaml")
        text = written.read_text() if written.exists() else ""
        return Outcome(status, text, capsys.readouterr().err.splitlines())

    return go


def test_a_model_of_scikit_learn(run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outcome = run(SKLEARN)
    assert outcome.status == 0, outcome.report
    assert outcome.config == {
        "listen": {
            "http": [{"bind": "0.0.0.0:8080", "dialects": ["open_inference"]}],
            "grpc": [{"bind": "0.0.0.0:8081", "dialects": ["open_inference"]}],
            "metrics": {"bind": "0.0.0.0:8082"},
        },
        "server_name": "mlserver",
        "models": {
            "iris": {
                "backend": "python",
                "path": "gateway-models/tabular_models.py:SklearnModel",
                "max_batch_size": 0,
                "max_queue_size": 65536,
                "inputs": [X],
                "outputs": [PREDICT],
                "parameters": {
                    "file": str(tmp_path / "models/m0/model.joblib"),
                    "outputs": {"predict": "INT64"},
                    "column": True,
                    "trusted": False,
                },
            }
        },
    }
    assert "pip install scikit-learn joblib" in outcome.said("trusted: true")
    assert (main(["check", "gateway.yaml"]), capsys.readouterr().err) == (0, "")
    assert main(["check", "--load", "gateway.yaml"]) == 2
    assert "may run code when it is read: parameters need trusted: true" in capsys.readouterr().err


LIBRARIES = {
    "joblib": "class Model:\n    def predict(self, rows):\n        return rows.sum(1).astype(int)\n"
    "def load(file):\n    return Model()\n",
    "xgboost": "class XGBRegressor:\n    def load_model(self, file):\n        raise TypeError('a classifier')\n"
    "class XGBClassifier:\n    def load_model(self, file):\n        assert file.name == 'model.bst'\n"
    "    def predict(self, rows):\n        return rows.sum(1)\n",
    "lightgbm": "class Booster:\n    def __init__(self, model_file):\n        assert model_file.endswith('model.bst')\n"
    "    def predict(self, rows):\n        return rows.sum(1)\n",
}
"""What stands for each library: it adds up the features of a row."""


@pytest.mark.parametrize(
    ("implementation", "library", "uri"),
    [
        ("mlserver_sklearn.SKLearnModel", "joblib", "./model.joblib"),
        ("mlserver_sklearn.SKLearnModel", "joblib", "."),
        ("mlserver_xgboost.XGBoostModel", "xgboost", "model.bst"),
        ("mlserver_lightgbm.LightGBMModel", "lightgbm", "."),
    ],
)
def test_what_is_trusted_answers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, implementation: str, library: str, uri: str
) -> None:
    """As MLServer's NumpyCodec does: a number per row is a column."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / f"{library}.py").write_text(LIBRARIES[library])
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    monkeypatch.delitem(__import__("sys").modules, library, raising=False)
    outcome = run(SKLEARN | {"implementation": implementation, "parameters": {"uri": uri}}, trusted=True)
    assert outcome.status == 0, outcome.report
    tensor = {"name": "x", "datatype": "FP64", "shape": [2, 2], "data": [1, 2, 3, 4]}
    with Server(tmp_path / "gateway.yaml") as server:
        body = json.dumps({"inputs": [tensor]}).encode()
        with urllib.request.urlopen(f"{server.url}/v2/models/iris/infer", body, timeout=30) as answer:  # noqa: S310
            [output] = json.load(answer)["outputs"]
    assert output == {"name": "predict", "datatype": "INT64", "shape": [2, 1], "data": [3, 7]}


def test_an_onnx_file_beside_is_run_in_its_place(run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    (tmp_path / "models/m0").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "models/m0/model.onnx")
    outcome = run({"implementation": "my.Runtime", "max_batch_size": 8, "max_batch_time": 0.25})
    assert outcome.status == 0, outcome.report
    assert outcome.config["models"] == {
        "m0": {
            "backend": "onnx",
            "path": str(tmp_path / "models/m0"),
            "versions": "none",
            "max_batch_size": 8,
            "max_queue_delay_us": 250_000,
            "max_queue_size": 65536,
        }
    }
    assert not Path("gateway-models").exists()
    assert (main(["check", "--load", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a class of one's own": ({"implementation": "mine.Model"}, "write its load and predict as a class"),
    "no class": ({"implementation": None}, "implementation: nothing is a runtime of MLServer's alone"),
    "catboost": ({"implementation": "mlserver_catboost.CatboostModel"}, "format='onnx'"),
    "mlflow": ({"implementation": "mlserver_mlflow.MLflowRuntime"}, "mlflow.pyfunc"),
    "huggingface": ({"implementation": "mlserver_huggingface.HuggingFaceRuntime"}, "vLLM behind backend: remote"),
    "a store": ({"parameters": {"uri": "s3://b/m"}}, "aws s3 cp --recursive s3://b/m DIR"),
    "nothing there": ({"parameters": {"uri": "none.joblib"}}, "is not there; copy it here"),
    "a time that is none": ({"max_batch_size": 8, "max_batch_time": "soon"}, "found soon, expected seconds"),
    "no mapping": ({"parameters": [1]}, "parameters: expected a mapping"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_are_refused(run: Run, case: str) -> None:
    changes, text = REFUSED[case]
    outcome = run(SKLEARN | changes, {**SKLEARN, "name": "other"})
    assert outcome.status == 1
    assert text in outcome.said("NOT IMPORTED")
    assert list(outcome.config["models"]) == ["other"]


def test_what_a_model_says_beside(run: Run) -> None:
    model = {
        "implementation": "mlserver_sklearn.SKLearnModel",
        "platform": "sklearn",
        "parameters": {"version": "v1", "content_type": "pd", "extra": {"predict_fn": "predict_proba"}, "new": 1},
    }
    outcome = run(model, SKLEARN | {"parallel_workers": 2, "warm_workers": True})
    assert outcome.status == 1
    entry = outcome.config["models"]["m0"]
    assert entry["inputs"] == [{"name": "input-0", "datatype": "FP64"}]
    assert entry["parameters"]["outputs"] == {"predict_proba": "FP64"}
    for words in ("inputs are not declared", "outputs are not declared", "parameters.version is ignored"):
        assert outcome.said(words).startswith("m0: models/m0/model-settings.json:1: ")
    assert "convert them in a class of your own" in outcome.said("content_type is refused")
    assert outcome.said("parameters.new").endswith("is not known and passed over")
    assert outcome.said("parallel_workers").startswith("iris: ")


def test_json_as_programs_write_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tabs, letters beyond 16 bits, and the one model in the folder itself, which names it."""
    run(SKLEARN | {"name": "\N{GRINNING FACE}"})
    assert list(yaml.safe_load(Path("gateway.yaml").read_text())["models"]) == ["\N{GRINNING FACE}"]
    file = tmp_path / "models/m0/model-settings.json"
    file.write_text(json.dumps({**SKLEARN, "name": None, "platform": "\ud800"}, indent="\t"))
    monkeypatch.chdir(file.parent)
    assert main(["import", "mlserver", ".", "-o", "gateway.yaml"]) == 0
    assert list(yaml.safe_load(Path("gateway.yaml").read_text())["models"]) == ["m0"]


def test_two_models_of_one_name(run: Run) -> None:
    outcome = run(SKLEARN, SKLEARN)
    assert (outcome.status, list(outcome.config["models"])) == (1, ["iris"])
    assert "iris stands in another file, too; rename one" in outcome.said("NOT IMPORTED")


SERVERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"host": "127.0.0.1", "http_port": 9080, "metrics_endpoint": None, "server_name": "mine"},
        {
            "listen": {
                "http": [{"bind": "127.0.0.1:9080", "dialects": ["open_inference"]}],
                "grpc": [{"bind": "127.0.0.1:8081", "dialects": ["open_inference"]}],
            },
            "server_name": "mine",
        },
    ),
    ({"grpc_max_message_length": 1000}, {"limits": {"max_binary_bytes": 1000}}),
    ({"load_models_at_startup": False}, {"model_control": {"mode": "explicit"}}),
    ({"tracing_server": "c:4317"}, {"opentelemetry": {"endpoint": "http://c:4317", "protocol": "grpc", "ratio": 1}}),
    ({"parallel_workers": 4, "debug": True, "kafka_enabled": False, "root_path": ""}, {}),
]


@pytest.mark.parametrize(("settings_json", "differs"), SERVERS)
def test_settings(run: Run, settings_json: dict[str, Any], differs: dict[str, Any]) -> None:
    usual = run(SKLEARN).config
    outcome = run(SKLEARN, server=settings_json)
    assert outcome.status == 0, outcome.report
    assert outcome.config == usual | differs
    ignored = [name for name in ("parallel_workers", "debug") if name in settings_json]
    assert all("is ignored" in outcome.said(f" {name} ") for name in ignored)


def test_origins_of_the_web(run: Run) -> None:
    cors = {"allow_origins": ["https://a.example"], "allow_headers": ["*", "X-A"], "max_age": 5, "allow_methods": []}
    outcome = run(SKLEARN, server={"cors_settings": cors})
    assert outcome.config["listen"]["http"][0]["cors"] == {
        "origins": ["https://a.example"], "headers": ["X-A"], "max_age_seconds": 5
    }  # fmt: skip


def test_settings_that_are_refused(run: Run) -> None:
    server = {"kafka_enabled": True, "kafka_servers": "k:9092", "root_path": "/ml", "metrics_endpoint": "/prom"}
    outcome = run(SKLEARN, server=server | {"model_repository_implementation": "a.B", "new": 1})
    assert outcome.status == 1
    for name in ("kafka_enabled", "kafka_servers", "root_path", "metrics_endpoint", "model_repository_implementation"):
        assert outcome.said(f"{name} is refused: ")
    assert outcome.said(" new ").endswith("is not known and passed over")


def test_nothing_to_import(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["import", "mlserver", str(tmp_path)]) == 1
    assert "there is no model-settings.json in it or below it" in capsys.readouterr().err
    assert main(["import", "mlserver", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.endswith("nowhere: no such folder\n")


def test_without_a_place_for_classes(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(SKLEARN)
    assert main(["import", "mlserver", "models"]) == 1
    assert "say where that is with -o FILE" in capsys.readouterr().err


@given(st.text(max_size=200) | st.binary(max_size=100))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "model-settings.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    [model] = read_server(tmp_path).models
    assert model.error
