"""`serve` without a configuration: what files and folders are, and what is said of those that are nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorgate.gateway import app
from tensorgate.gateway.cli.from_files import NoModel, is_configuration, yaml_of
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import load_config

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "config/demo/models/digits"
TORCH = b"PK"
SCORER = """
import numpy as np

class Other:
    pass

class Scorer:
    inputs = {"x": ("FP32", [-1, 4])}
    outputs: dict = {"y": ("FP32", (-1,))}
    max_batch_size = 8

    def infer(self, inputs, request):
        return {"y": inputs["x"].sum(-1)}
"""
TRITON = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 4\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something of everything."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DIGITS, "digits")
    shutil.copytree(DIGITS, "repository/digits")
    shutil.copytree(DIGITS, "named/net", ignore=shutil.ignore_patterns("2"))
    Path("repository/digits/config.pbtxt").write_text(CONFIG)
    Path("named/net/1/model.onnx").rename("named/net/1/weights.onnx")
    shutil.copy(DIGITS / "1/model.onnx", "Net v2.onnx")
    for name in ("net.pt2", "old.pt", "saved/saved_model.pb", "versions/7/saved_model.pb", "flat/model.onnx"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(TORCH)
    Path("scorer.py").write_text(SCORER)
    Path("triton.py").write_text(TRITON)
    return tmp_path


def entries(*paths: str) -> Any:
    said = yaml.safe_load(yaml_of(paths, ["listen: {}"], Path.cwd()))
    return said.get("repositories") or said["models"]


ONNX = {"backend": "onnx", "max_batch_size": "auto"}
SAVED_MODEL = {"backend": "tensorflow", "max_batch_size": "auto"}
X = [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
Y = [{"name": "y", "datatype": "FP32", "shape": [-1]}]
SERVED = {
    "Net v2.onnx": {"Net_v2": ONNX | {"path": "Net v2.onnx"}},
    "digits": {"digits": ONNX | {"path": "digits"}},
    "./digits/": {"digits": ONNX | {"path": "digits"}},
    "digits/2": {"digits": ONNX | {"path": "digits/2", "versions": "none"}},
    "digits/2/model.onnx": {"digits": ONNX | {"path": "digits/2/model.onnx"}},
    "eights=digits": {"eights": ONNX | {"path": "digits"}},
    "named/net": {"net": ONNX | {"path": "named/net", "file": "weights.onnx"}},
    "flat": {"flat": ONNX | {"path": "flat", "versions": "none"}},
    "net.pt2": {"net": {"backend": "torch", "path": "net.pt2", "max_batch_size": "auto"}},
    "old.pt": {"old": {"backend": "torch", "path": "old.pt", "max_batch_size": "auto"}},
    "saved": {"saved": SAVED_MODEL | {"path": "saved", "versions": "none"}},
    "versions": {"versions": SAVED_MODEL | {"path": "versions"}},
    "scorer.py": {
        "scorer": {"backend": "python", "path": "scorer.py:Scorer", "inputs": X, "outputs": Y, "max_batch_size": 8}
    },
    "s=scorer.py:Scorer": {
        "s": {"backend": "python", "path": "scorer.py:Scorer", "inputs": X, "outputs": Y, "max_batch_size": 8}
    },
    "triton.py": {"triton": {"backend": "triton_python", "path": "triton.py"}},
}


@pytest.mark.parametrize("path", SERVED)
def test_what_a_path_is(path: str, folder: Path) -> None:
    assert entries(path) == SERVED[path]
    assert not is_configuration(path)


def test_a_folder_of_models_is_a_repository(folder: Path) -> None:
    assert entries("repository") == [str(folder / "repository")]
    assert entries("repository/digits")["digits"]["backend"] == "onnx"
    assert entries("repository/digits")["digits"]["max_batch_size"] == 4
    assert entries("digits", "net=Net v2.onnx").keys() == {"digits", "net"}


@pytest.mark.parametrize("path", ["gateway.yaml", "x/y.yml", "gateway.json", "config", "/etc/hosts"])
def test_what_is_a_configuration(path: str, folder: Path) -> None:
    assert is_configuration(path)


REFUSED: list[tuple[list[str], str]] = [
    (["none.onnx"], "none.onnx: no such file or folder"),
    (["x=none"], "none: no such file or folder"),
    (["digits", "repository/digits"], "there is a model digits already; give it another name: NAME=repository/digits"),
    (["empty"], "empty: found nothing; expected a model.onnx"),
    (["odd"], "odd: found a.bin, b.bin, c.bin, d.bin, e.bin and 1 more; expected"),
    (["mlserver"], "mlserver: it is MLServer's: tensorgate import mlserver mlserver -o gateway.yaml"),
    (["grps"], "tensorgate import grps grps/server.yml grps/inference.yml"),
    (["x=scorer.py:Nobody"], "found Scorer; name the class, which has a method infer: scorer.py:Nobody"),
    (["scorer.py:Other"], "does not say what it takes and gives\n\na class says its tensors where"),
    (["wrong.py"], "wrong.py:Wrong.inputs: x: expected a datatype (BOOL, "),
    (["wrong.py:Kind"], "wrong.py:Kind.inputs: expected names with datatype and shape"),
    (["nothing.py"], "found no class; name the class"),
    (["broken.py"], "broken.py: invalid syntax"),
    (["x=notes.txt"], "notes.txt: what kind of model is it? expected a model.onnx"),
    (["broken"], "broken: config.pbtxt:1:"),
]


@pytest.mark.parametrize(("paths", "words"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_cannot_be_served_says_why(
    paths: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("empty", "odd", "mlserver", "grps", "broken"):
        Path(place).mkdir()
    for name in "abcdef":
        Path(f"odd/{name}.bin").touch()
    for name in ("mlserver/model-settings.json", "grps/inference.yml", "nothing.py", "notes.txt"):
        Path(name).touch()
    Path("broken/config.pbtxt").write_text("}")
    kinds = 'class Wrong:\n    inputs = {"x": "FP32"}\n    outputs = {}\n    def infer(self): ...\n'
    Path("wrong.py").write_text(kinds + 'class Kind:\n    inputs = ["x"]\n    outputs = {}\n')
    Path("broken.py").write_text("class :")
    with pytest.raises(NoModel) as error:
        yaml_of(paths, [], folder)
    assert words in str(error.value)
    assert main(["serve", *paths]) == 1
    assert words in capsys.readouterr().err


def test_what_is_written_passes_the_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy").mkdir()
    paths = ["Net v2.onnx", "digits", "scorer.py", "named/net"]
    (folder / "deploy/gateway.yaml").write_text(yaml_of(paths, [], folder / "deploy"))
    assert main(["check", "deploy/gateway.yaml", "--load"]) == 0, capsys.readouterr()
    config = load_config(folder / "deploy/gateway.yaml", app.registries())
    assert set(config.models) == {"Net_v2", "digits", "scorer", "net"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.yaml", "net.pt2"], "serve takes one configuration alone; a.yaml is one"),
        (["a.yaml", "--write-config", "b.yaml"], "--write-config is for models without one"),
        (["digits", "--write-config", "there.yaml"], "there.yaml is there already, and is not written over"),
        (["digits", "--write-config", "no/where.yaml"], "no/where.yaml: no such file or directory"),
    ],
)
def test_what_does_not_go_together(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.yaml").touch()
    assert main(["serve", *arguments]) == 1
    assert words in capsys.readouterr().err
