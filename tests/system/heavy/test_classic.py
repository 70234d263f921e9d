"""Models that XGBoost, LightGBM and scikit-learn have trained: imported, proven, and served with their own answers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from client_scripts import environment
from serving import ROOT, Gateway, running

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-classic/bin/python"
SCRIPT = Path(__file__).parent / "classic_models.py"
WITHIN_S = 240.0
ROWS = 64

NOT_TRUSTED = ["--output", "untrusted"]
TRUSTED = ["--trusted"]
CONVERTED: dict[str, list[str]] = {
    "xgb_regressor.ubj": [],
    "xgb_binary.json": [],
    "xgb_multiclass.ubj": [],
    "xgb_missing.ubj": [],
    "xgb_poisson.ubj": [],
    "xgb_categories.ubj": [],
    "xgb_booster.json": [],
    "lgb_regressor.txt": [],
    "lgb_binary.txt": [],
    "lgb_multiclass.txt": [],
    "lgb_missing.txt": [],
    "lgb_categories.txt": [],
    "sk_tree.skops": TRUSTED,
    "sk_forest.skops": TRUSTED,
    "sk_forest_names.skops": ["--trusted", "--allow-ties"],
    "sk_tree_numbers.skops": TRUSTED,
    "sk_boosting.skops": TRUSTED,
    "sk_linear.skops": [],
    "sk_logistic.skops": [],
    "sk_svc.skops": [],
    "sk_neighbours.skops": TRUSTED,
    "sk_categories.skops": [],
}
"""File -> words, of those that become ONNX."""
OWN = {
    "xgb_dart.ubj": TRUSTED,
    "xgb_linear.ubj": TRUSTED,
    "lgb_zero_missing.txt": TRUSTED,
    "sk_missing.skops": TRUSTED,
    "xgb_own.ubj": ["--own", *TRUSTED],
}
"""Of those that their libraries compute."""
REFUSED = {
    "sk_foreign.skops": (TRUSTED, 2, "needs types that may run code of their own: __main__.Foreign"),
    "sk_tree.pkl": (TRUSTED, 2, "is a pickle, or a joblib file, which is a program"),
    "sk_boosting_2.skops": ([], 2, "sklearn.tree._tree.Tree; say trusted"),
    "xgb_dart_2.ubj": (NOT_TRUSTED, 1, "and not before its entry says trusted: true"),
    "lgb_zero_missing_2.txt": (NOT_TRUSTED, 1, "  fails: labels are equal, numbers within 1e-05"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder with models, and file -> (exit status, what was said)."""
    if not PYTHON.exists():
        pytest.fail("scikit-learn and its like are not installed: say `make test-system`", pytrace=False)
    folder = tmp_path_factory.mktemp("classic")
    words = {**CONVERTED, **OWN, **{file: words for file, (words, _, _) in REFUSED.items()}}
    done = subprocess.run(
        [PYTHON, SCRIPT],
        cwd=folder,
        env=environment(),
        input=json.dumps(words),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@contextmanager
def served(folder: Path, repository: str) -> Iterator[Gateway]:
    file = folder / f"{repository}.yaml"
    text = {"listen": {"http": [{"bind": "127.0.0.1:0"}], "grpc": []}, "repositories": [repository]}
    file.write_text(yaml.safe_dump(text | {"readiness": "lenient"}))
    with running(file, python=PYTHON) as gateway:
        yield gateway
        assert gateway.stop() == 0


def ask(gateway: Gateway, name: str, datatype: str, x: Any) -> dict[str, Any]:
    """Rows as bytes, which may be NaN -> outputs by name."""
    content = np.ascontiguousarray(x, {"FP32": np.float32, "FP64": np.float64}[datatype]).tobytes()
    tensor: dict[str, Any] = {"name": "x", "shape": list(x.shape), "datatype": datatype}
    tensor["parameters"] = {"binary_data_size": len(content)}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = gateway.request("POST", f"/v2/models/{name}/infer", head + content, headers)
    assert answer.status == 200, answer.body
    return {each["name"]: np.reshape(each["data"], each["shape"]) for each in answer.json["outputs"]}


@pytest.mark.timeout(300)
def test_what_becomes_of_each(world: Any) -> None:
    folder, found = world
    for file in CONVERTED:
        status, said = found[file]
        assert (status, "  holds: labels are equal" in said) == (0, True), said
        assert (folder / "models" / file.partition(".")[0] / "1/model.onnx").is_file()
    for file in OWN:
        status, said = found[file]
        assert status == 0, said
        entry = yaml.safe_load((folder / "models" / file.partition(".")[0] / "model.yaml").read_text())
        assert (entry["backend"], entry["process"], entry["trusted"]) == ("classic", "own", True)
    for file, (_, status, text) in REFUSED.items():
        assert found[file][0] == status, found[file]
        assert text in found[file][1]
    assert not (folder / "models/sk_foreign").exists()
    assert "1 features with the categories that are known" in found["xgb_categories.ubj"][1]
    assert "ties of two classes" in found["sk_forest_names.skops"][1]


@pytest.mark.timeout(300)
def test_each_is_served_with_its_own_answers(world: Any) -> None:
    folder, _ = world
    with served(folder, "models") as gateway:
        for file in (*CONVERTED, *OWN):
            name = file.partition(".")[0]
            entry = yaml.safe_load((folder / "models" / name / "model.yaml").read_text())
            of = np.load(folder / f"{name}.npz")
            datatype = entry["inputs"][0]["datatype"]
            answers = ask(gateway, name, datatype, of["x"][:ROWS])
            want = of["answers"][:ROWS]
            numbers = answers.get("probabilities", answers.get("prediction", answers.get("label")))
            size = np.sqrt(np.mean(np.square(want)))
            assert np.abs(numbers.reshape(want.shape) - want).max() <= 2e-5 * size, name
        labels = ask(gateway, "sk_forest_names", "FP32", np.load(folder / "sk_forest_names.npz")["x"][:ROWS])["label"]
        assert set(labels.tolist()) == {"low", "middle", "high"}
        wrong = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
        for name in ("xgb_dart", "xgb_regressor"):
            assert gateway.post(f"/v2/models/{name}/infer", wrong).status == 400
        row = {"name": "x", "shape": [1, 5], "datatype": "FP64", "data": [1, 2, 3, 4, 5]}
        classes: dict[str, Any] = {"inputs": [row]}
        classes["outputs"] = [{"name": "probabilities", "parameters": {"classification": 1}}]
        (best,) = gateway.post("/v2/models/sk_logistic/infer", classes).json["outputs"][0]["data"]
        assert best.rpartition(":")[2] in ("0", "1", "2")


def test_what_is_not_trusted_is_not_loaded(world: Any) -> None:
    folder, _ = world
    with served(folder, "untrusted") as gateway:
        (status,) = gateway.get("/v1/models/xgb_dart_2").json["model_version_status"]
        assert status["state"] == "END"
        assert "say trusted: true if you know where it comes from" in status["status"]["error_message"]


def test_what_the_page_shows_is_what_happens(tmp_path: Path) -> None:
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    script, shown = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    path = {"PATH": f"{PYTHON.parent}:{environment()['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=environment() | path,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    for line, wanted in zip(said, shown.splitlines(), strict=False):
        assert re.fullmatch(".*".join(map(re.escape, wanted.removeprefix("# ").split("…"))), line)
    assert said[-1].endswith(": ok, 1 models")
