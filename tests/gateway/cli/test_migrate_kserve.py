"""`tensorgate import kserve`: InferenceServices as people write them, and what becomes of them."""

from __future__ import annotations

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

from tensorgate.adapters.importers.kserve_config import read_services
from tensorgate.gateway.cli.main import main

Run = Callable[..., Outcome]


def service(predictor: Any, name: str = "m", **more: Any) -> dict[str, Any]:
    kind = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    return kind | {"metadata": {"name": name}, "spec": {"predictor": predictor} | more}


def model(kind: str, uri: str | None, **more: Any) -> dict[str, Any]:
    return {"model": {"modelFormat": {"name": kind}} | ({"storageUri": uri} if uri else {}) | more}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Imports documents, in a folder with: onnx/model.onnx, saved/1/model.onnx, sk/model.joblib, boost/model.bst,
    torch/model.pt, empty, and a Triton repository of the model `add`.
    """
    monkeypatch.chdir(tmp_path)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    program = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for file in ("onnx/model.onnx", "saved/1/model.onnx", "triton/add/1/model.onnx"):
        (tmp_path / file).parent.mkdir(parents=True)
        onnx.save(program, tmp_path / file)
    for file in ("sk/model.joblib", "boost/model.bst", "torch/model.pt", "empty/nothing"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()

    def go(*documents: Any) -> Outcome:
        text = yaml.safe_dump_all(documents, sort_keys=False).replace("HERE", f"file://{tmp_path}")
        Path("service.yaml").write_text(text)
        status = main(["import", "kserve", "service.yaml", "-o", "gateway.yaml"])
        written = Path("gateway.yaml")
        text = written.read_text() if written.exists() else ""
        return Outcome(status, text, capsys.readouterr().err.splitlines())

    return go


PREDICTORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "onnx": (model("onnx", "HERE/onnx"), {"backend": "onnx", "path": "onnx", "versions": "none"}),
    "a file": (
        model("onnx", "HERE/onnx/model.onnx"),
        {"backend": "onnx", "path": "onnx", "versions": "none"},
    ),
    "onnx beside": (model("sklearn", "HERE/onnx"), {"backend": "onnx", "path": "onnx", "versions": "none"}),
    "tensorflow": (model("tensorflow", "HERE/saved"), {"backend": "onnx", "path": "saved", "versions": "latest"}),
    "the older form": (
        {"tensorflow": {"storageUri": "HERE/saved"}},
        {"backend": "onnx", "path": "saved", "versions": "latest"},
    ),
    "torch": (
        model("pytorch", "HERE/torch"),
        {"backend": "torch", "path": "torch", "file": "model.pt", "versions": "none"},
    ),
    "a GPU": (
        model("onnx", "HERE/onnx", resources={"limits": {"nvidia.com/gpu": 1}}),
        {"backend": "onnx", "path": "onnx", "versions": "none", "device": "cuda"},
    ),
    "GPUs": (
        model("onnx", "HERE/onnx", resources={"requests": {"nvidia.com/gpu": "2"}}),
        {"backend": "onnx", "path": "onnx", "versions": "none", "device": "all"},
    ),
    "a batcher": (
        model("onnx", "HERE/onnx") | {"batcher": {"maxBatchSize": 8, "maxLatency": 50}},
        {"backend": "onnx", "path": "onnx", "versions": "none", "max_batch_size": 8, "max_queue_delay_us": 50000},
    ),
    "a claim": (
        model("onnx", "pvc://models/a"),
        {"backend": "onnx", "path": "/mnt/pvc/models/a", "versions": "none"},
    ),
}


@pytest.mark.parametrize("case", PREDICTORS)
def test_predictors(run: Run, tmp_path: Path, case: str) -> None:
    predictor, wanted = PREDICTORS[case]
    outcome = run(service(predictor))
    assert outcome.status == 0, outcome.report
    path = {"path": str(tmp_path / wanted["path"])}  # an absolute one stays
    usual = {"max_batch_size": 0, "max_queue_size": 65536}
    assert outcome.config["models"] == {"m": usual | wanted | path}


@pytest.mark.parametrize(
    ("kind", "folder", "name"),
    [("sklearn", "sk", "Sklearn"), ("xgboost", "boost", "Xgboost"), ("lightgbm", "boost", "Lightgbm")],
)
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_tables(
    run: Run, capsys: pytest.CaptureFixture[str], kind: str, folder: str, name: str, old: bool, version: str
) -> None:
    """v1 answers a list of numbers, v2 a column."""
    uri = f"HERE/{folder}"
    predictor = {kind: {"storageUri": uri, "protocolVersion": version}}
    outcome = run(service(predictor if old else model(kind, uri, protocolVersion=version)))
    assert outcome.status == 0, outcome.report
    entry = outcome.config["models"]["m"]
    assert entry["path"] == f"gateway-models/tabular_models.py:{name}Model"
    assert (entry["parameters"]["column"], entry["parameters"]["trusted"]) == (version == "v2", False)
    assert (main(["check", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("versions", "dialects", "grpc"),
    [
        (["v1"], ["tf_serving"], False),
        (["v2"], ["open_inference"], False),
        (["v1", "grpc-v2"], ["open_inference", "tf_serving"], True),
        ([None], ["tf_serving"], False),
    ],
)
def test_protocols(run: Run, versions: list[str | None], dialects: list[str], grpc: bool) -> None:
    documents = [
        service(model("onnx", "HERE/onnx", **({"protocolVersion": each} if each else {})), f"m{index}")
        for index, each in enumerate(versions)
    ]
    listen = run(*documents).config["listen"]
    assert listen["http"] == [{"bind": "0.0.0.0:8080", "dialects": dialects}]
    assert listen.get("grpc") == ([{"bind": "0.0.0.0:8081", "dialects": dialects}] if grpc else None)


def test_a_repository_of_triton(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(service(model("triton", "HERE/triton")))
    assert (outcome.status, list(outcome.config["models"])) == (0, ["add"])
    assert outcome.config["listen"]["http"][0]["dialects"] == ["open_inference"]
    assert (main(["check", "--load", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


def test_a_canary_is_a_share_of_a_route(run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The document before is the revision that the rest of the traffic goes to."""
    before = service(model("tensorflow", "HERE/saved"))
    outcome = run(before, service(model("onnx", "HERE/onnx") | {"canaryTrafficPercent": 10, "timeout": 5}))
    assert outcome.status == 0, outcome.report
    assert {name: entry["path"] for name, entry in outcome.config["models"].items()} == {
        "m-previous": str(tmp_path / "saved"),
        "m-canary": str(tmp_path / "onnx"),
    }
    targets = [{"model": "m-previous", "weight": 90}, {"model": "m-canary", "weight": 10}]
    assert outcome.config["routes"] == {"m": {"targets": targets, "timeout_ms": 5000}}
    assert (main(["check", "--load", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


def test_a_canary_without_what_was_before(run: Run) -> None:
    outcome = run(service(model("onnx", "HERE/onnx") | {"canaryTrafficPercent": 10}))
    assert (outcome.status, list(outcome.config["models"])) == (1, ["m"])
    assert "put its document before this one" in outcome.said("canaryTrafficPercent is refused")
    assert run(service(model("onnx", "HERE/onnx") | {"canaryTrafficPercent": 100})).status == 0


def test_bounds_are_those_of_a_route(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(service(model("onnx", "HERE/onnx") | {"timeout": 60, "containerConcurrency": 4}))
    assert (outcome.status, list(outcome.config["models"])) == (0, ["m-model"])
    route = {"targets": [{"model": "m-model"}], "timeout_ms": 60000, "max_concurrent": 4}
    assert outcome.config["routes"] == {"m": route}
    assert (main(["check", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


def test_processors_are_those_of_all_models(run: Run) -> None:
    cpus = ({"limits": {"cpu": "1500m"}}, {"requests": {"cpu": 1}}, {"limits": {"memory": "1Gi"}})
    outcome = run(*(service(model("onnx", "HERE/onnx", resources=each), f"m{i}") for i, each in enumerate(cpus)))
    assert outcome.config["cpu"] == {"threads": 3}
    assert outcome.said("memory is ignored").startswith("m2: ")


REFUSED: dict[str, tuple[Any, str]] = {
    "a store": (model("onnx", "gs://b/m"), "gcloud storage cp -r gs://b/m DIR"),
    "another": (model("onnx", "s3://b/m"), "aws s3 cp --recursive s3://b/m DIR"),
    "credentials": (model("onnx", None, storage={"key": "k"}), "copy the model here and write storageUri: file:///DIR"),
    "nowhere": (model("onnx", None), "there is no storageUri"),
    "an archive of TorchServe": (model("pytorch", "HERE/empty"), "put model.pt (TorchScript) or model.onnx"),
    "huggingface": (model("huggingface", "hf://org/m"), "hf://org/m is not on this machine"),
    "huggingface here": (model("huggingface", "HERE/empty"), "behind backend: remote"),
    "pmml": ({"pmml": {"storageUri": "HERE/empty"}}, "convert it to ONNX"),
    "an unknown format": (model("mine", "HERE/empty"), "the format mine is not run here: put model.onnx"),
    "no file": (model("sklearn", "HERE/empty"), "has none of model.joblib, model.pickle, model.pkl"),
    "no format": ({"minReplicas": 1}, "expected model.modelFormat.name, or one of sklearn"),
    "a container": ({"containers": [{"image": "i"}]}, "backend: remote"),
    "no predictor": (None, "there is no predictor"),
    "a protocol": (model("onnx", "HERE/onnx", protocolVersion="v3"), "found v3, expected v1, v2"),
    "processors": (model("onnx", "HERE/onnx", resources={"limits": {"cpu": "two"}}), "found two, expected processors"),
    "a share": (model("onnx", "HERE/onnx") | {"canaryTrafficPercent": 101}, "found 101, expected at most 100"),
    "an empty repository": (model("triton", "HERE/none"), "copy or mount the repository here"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_services_that_are_refused(run: Run, case: str) -> None:
    predictor, text = REFUSED[case]
    outcome = run(service(predictor), service(model("onnx", "HERE/onnx"), "other"))
    assert (outcome.status, list(outcome.config["models"])) == (1, ["other"])
    assert text in outcome.said("NOT IMPORTED")
    assert "# m: not imported: " in outcome.yaml


def test_parts_that_are_not_done(run: Run) -> None:
    predictor = model("onnx", "HERE/onnx", args=["--a"], env=[], runtime="r", new=1) | {"minReplicas": 1, "newer": 2}
    outcome = run(service(predictor, transformer={"containers": []}, explainer={"art": {}}))
    assert (outcome.status, list(outcome.config["models"])) == (1, ["m"])
    assert "in a python model before the predictor" in outcome.said("spec.transformer is refused")
    assert "let KServe's explainer ask this server" in outcome.said("spec.explainer is refused")
    for words in ("model.args is ignored", "model.runtime is ignored", "minReplicas is ignored"):
        assert outcome.said(words)
    for words in ("model.new", "predictor.newer"):
        assert outcome.said(words).endswith("is not known and passed over")


@pytest.mark.parametrize(("kind", "verb"), [("tensorflow", "import tf-serving"), ("triton", "--from-command-line")])
def test_arguments_of_the_old_program(run: Run, kind: str, verb: str) -> None:
    place = {"tensorflow": "HERE/saved", "triton": "HERE/triton"}[kind]
    assert verb in run(service(model(kind, place, args=["--x"]))).said("model.args is ignored")


def test_other_documents(run: Run) -> None:
    """A List, as kubectl prints several; what is no InferenceService is told."""
    documents = {"kind": "List", "items": [service(model("onnx", "HERE/onnx")), {"kind": "Secret"}]}
    outcome = run({"kind": "ServingRuntime"}, documents)
    assert (outcome.status, list(outcome.config["models"])) == (0, ["m"])
    assert outcome.said("ServingRuntime is ignored: it is no InferenceService")
    assert outcome.said("Secret is ignored")
    assert run({"kind": "Secret"}).report == ["service.yaml: there is no InferenceService in it"]
    assert run(service({}, "")).report == ["service.yaml:1: an InferenceService needs metadata.name"]


@given(st.text(max_size=200) | st.binary(max_size=100))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    with pytest.raises(ValueError, match=r"any\.yaml"):
        read_services(file)
