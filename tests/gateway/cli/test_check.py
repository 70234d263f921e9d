"""`tensorgate check` without loading: every misfit with its file, line and key, in the words of a load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tensorgate.gateway import app
from tensorgate.gateway.app import dry_run_load, registries
from tensorgate.gateway.cli import device_report
from tensorgate.gateway.cli.check import misfits
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.metrics import Gpu

KINDS = registries()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models: image FP32 [n, 3] -> logits FP32 [n, 2], in two versions; label INT64 [n] -> twice it."""
    weights = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])
    node = helper.make_node("MatMul", ["image", "w"], ["logits"])
    save(tmp_path / "linear" / "1", helper.make_graph([node], "g", [image], [logits], [weights]))
    save(tmp_path / "linear" / "2", helper.make_graph([node], "g", [image], [logits], [weights]))
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])
    twice = helper.make_tensor_value_info("twice", TensorProto.INT64, ["n"])
    node = helper.make_node("Add", ["label", "label"], ["twice"])
    save(tmp_path / "double" / "1", helper.make_graph([node], "g", [label], [twice]))
    (tmp_path / "model.py").write_text("raise RuntimeError('a check runs nothing')\n")
    return tmp_path


def save(folder: Path, graph: onnx.GraphProto) -> None:
    folder.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, folder / "model.onnx")


def check(folder: Path, text: str) -> list[str]:
    """The lines of `check`, without the file's own path."""
    file = folder / "gateway.yaml"
    file.write_text(dedent(text))
    return [str(problem).removeprefix(f"{file}:") for _, problem in misfits(load_config(file, KINDS), file, KINDS)]


def linear(rest: str) -> str:
    head = "models:\n  m:\n    backend: onnx\n    path: linear\n    versions: all\n    max_batch_size: 8\n"
    return head + "".join(f"    {line}\n" for line in dedent(rest).strip().splitlines())


MISFITS: dict[str, tuple[str, str]] = {
    "an op on a tensor that is not there": (
        "preprocess:\n  - {op: cast, input: image, to: FP32}\n  - {op: sigmoid, input: img}",
        "9:9: models.m.preprocess[1]: sigmoid: there is no tensor 'img' at this point, but image",
    ),
    "an op on another dtype": (
        "postprocess: [{op: one_hot, input: logits, depth: 3}]",
        "7:19: models.m.postprocess[0]: one_hot: 'logits' is FP32, expected integers; cast it to INT64 first",
    ),
    "another axis": (
        "postprocess: [{op: argmax, input: logits, axis: 2}]",
        "7:19: models.m.postprocess[0]: argmax: 'logits' of shape [-1, 2] has no axis 2",
    ),
    "across the rows": (
        "postprocess: [{op: softmax, input: logits, axis: -2}]",
        "7:19: models.m.postprocess[0]: axis 0 of 'logits' is the batch dimension, whose rows may be different "
        "callers'",
    ),
    "without rows": (
        "postprocess: [{op: argmax, input: logits}, {op: one_hot, input: logits, depth: 3, axis: 0}]",
        "7:48: models.m.postprocess[1]: 'logits' would have shape [3, -1], without the batch dimension",
    ),
    "an input of another dtype": (
        "inputs:\n  - {name: image, datatype: UINT8, shape: [-1, 3]}",
        "7:5: models.m.inputs: input 'image' is UINT8 at one end and FP32 at the other; a cast in preprocess would "
        "change it",
    ),
    "preprocessing that does not lead to the model": (
        "inputs: [{name: x, datatype: FP32, shape: [-1, 3]}]\npreprocess: [{op: sigmoid, input: x}]",
        "8:5: models.m.preprocess: the model takes an input 'image', but got 'x' (see inputs and preprocess)",
    ),
    "an input of another size": (
        "inputs: [{name: image, datatype: FP32, shape: [-1, 4]}]",
        "7:5: models.m.inputs: input 'image' has shape [-1, 4] at one end and [-1, 3] at the other",
    ),
    "an output that is not there": (
        "outputs:\n  - {name: logits, datatype: FP32}\n  - {name: scores, datatype: FP32}",
        "9:9: models.m.outputs[1]: outputs declares 'scores', but the model gives 'logits'",
    ),
    "an output of another dtype": (
        "outputs: [{name: logits, datatype: INT32}]",
        "7:15: models.m.outputs[0]: output 'logits' is FP32 at one end and INT32 at the other; a cast in postprocess "
        "would change it",
    ),
    "an op that cannot be made": (
        "postprocess: [{op: one_hot, input: logits, depth: 2, on_value: 300, datatype: UINT8}]",
        "7:19: models.m.postprocess[0]: one_hot: 300 is no UINT8",
    ),
    "a signature": (
        "signatures: {s: {method: classify, scores: nothing}}",
        "2:3: models.m: signature s names an output that the model does not have: nothing",
    ),
    "another file": ("file: other.onnx", "2:3: models.m: no such file: "),
}


@pytest.mark.parametrize("case", MISFITS)
def test_misfit(folder: Path, case: str) -> None:
    text, wanted = MISFITS[case]
    lines = check(folder, linear(text))
    assert len(lines) == (2 if case == "another file" else 1)  # of two versions what is the same is told once
    assert lines[0].startswith(wanted) if case == "another file" else lines == [wanted]
    loading = dry_run_load(load_config(folder / "gateway.yaml", KINDS), KINDS)
    assert loading[0][1].startswith("m version 1: " + wanted.partition(": models.m")[2].lstrip(".: "))


VERSIONS: dict[str, tuple[str, list[str]]] = {
    "a label of no version": (
        "{backend: onnx, path: linear, versions: all, labels: {old: 1, new: 3}}",
        ["2:68: models.m.labels.new: no version 3 is served, but 1, 2"],
    ),
    "a label of a version that is not chosen": (
        "{backend: onnx, path: linear, labels: {old: 1, new: 2}}",
        ["2:45: models.m.labels.old: no version 1 is served, but 2"],
    ),
    "a label of a model without version folders": (
        "{backend: onnx, path: linear/1, versions: none, labels: {old: 1}}",
        [],
    ),
    "an empty folder": (
        "{backend: onnx, path: empty}",
        ["2:22: models.m.path: no version to load in {}/empty: the folder is empty, expected folders with whole "
         "numbers as names, like 1/"],
    ),
    "a model that lies there itself": (
        "{backend: onnx, path: linear/2, labels: {new: 1}}",
        ["2:22: models.m.path: no version to load in {}/linear/2: found model.onnx, expected folders with whole "
         "numbers as names, like 1/; versions: none takes the folder itself for the model"],
    ),
    "folders by other names": (
        "{backend: onnx, path: many}",
        ["2:22: models.m.path: no version to load in {}/many: found v1/, v2/, v3/, v4/, v5/ and 1 more, expected "
         "folders with whole numbers as names, like 1/; versions: none takes the folder itself for the model"],
    ),
    "versions that nobody wants": (
        "{backend: onnx, path: linear, versions: [7, 9]}",
        ["2:22: models.m.path: no version to load in {}/linear: found 1, 2, but versions names 7, 9"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VERSIONS)
def test_versions_that_are_not_there(folder: Path, case: str) -> None:
    """What a load says of it, too; to callers it tells no more than that there is none."""
    (folder / "empty").mkdir()
    for number in range(1, 7):
        (folder / "many" / f"v{number}").mkdir(parents=True)
    model, wanted = VERSIONS[case]
    told = [line.replace("{}", str(folder)) for line in wanted]
    assert check(folder, f"models:\n  m: {model}\n") == told
    loading = dry_run_load(load_config(folder / "gateway.yaml", KINDS), KINDS)
    said = [line.partition("no version to load")[2] for line in told]
    assert [error.partition("no version to load")[2] for _, error in loading] == [each for each in said if each]


def test_what_is_loaded_later_may_still_be_empty(folder: Path) -> None:
    (folder / "empty").mkdir()
    models = "models: {m: {backend: onnx, path: empty}}\n"
    assert check(folder, models + "model_control: {mode: explicit}\n") == []
    assert len(check(folder, models + "model_control: {mode: explicit, load: ['*']}\n")) == 1


def test_what_fits(folder: Path) -> None:
    text = linear(
        """
        inputs: [{name: pixels, datatype: UINT8, shape: [-1, 3]}]
        outputs: [{name: best, datatype: INT64, shape: [-1]}]
        preprocess:
          - {op: cast, input: pixels, to: FP32}
          - {op: rename, names: {pixels: image}}
        postprocess:
          - {op: softmax, input: logits, output: scores}
          - {op: argmax, input: scores, output: best}
        """
    )
    assert check(folder, text) == []
    assert dry_run_load(load_config(folder / "gateway.yaml", KINDS), KINDS) == []


STEPS: dict[str, tuple[str, list[str]]] = {
    "all is well": (
        """
        - {model: linear, inputs: {image: a}, outputs: {logits: b}}
        - {model: double, inputs: {label: label}, outputs: {twice: t}}
        """,
        [],
    ),
    "no such model": (
        "- {model: other, inputs: {image: a}, outputs: {logits: b}}\n"
        "- {model: linear, version: 7, inputs: {image: a}, outputs: {logits: t}}",
        [
            "12:9: models.e.steps[0].model: there is no model 'other'",
            "13:9: models.e.steps[1].model: there is no model 'linear' of version 7",
        ],
    ),
    "no such tensors": (
        "- {model: linear, inputs: {picture: a}, outputs: {scores: b}}\n"
        "- {model: double, inputs: {label: label}, outputs: {twice: t}}",
        [
            "12:35: models.e.steps[0].inputs.picture: model 'linear' takes 'image', but no input 'picture'",
            "12:24: models.e.steps[0].inputs: model 'linear' takes an input 'image', too",
            "12:58: models.e.steps[0].outputs.scores: model 'linear' gives 'logits', but no output 'scores'",
        ],
    ),
    "joints that do not fit": (
        "- {model: linear, inputs: {image: label}, outputs: {logits: t}}\n"
        "- {model: double, inputs: {label: t}, outputs: {twice: b}}",
        [
            "12:34: models.e.steps[0].inputs.image: 'label' is INT64 at one end and FP32 at the other, the input "
            "'image' of model 'linear'",
            "13:34: models.e.steps[1].inputs.label: 't' is FP32 at one end and INT64 at the other, the input 'label' "
            "of model 'double'",
            "10:17: models.e.outputs[0]: output 'b' is INT64 at one end and FP32 at the other",
            "10:67: models.e.outputs[1]: output 't' is FP32 at one end and INT64 at the other",
        ],
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_ensemble(folder: Path, case: str) -> None:
    steps, wanted = STEPS[case]
    text = (
        "models:\n"
        "  linear: {backend: onnx, path: linear, max_batch_size: 8}\n"
        "  double: {backend: onnx, path: double, max_batch_size: 8}\n"
        "  e:\n"
        "    backend: ensemble\n"
        "    max_batch_size: 8\n"
        "    inputs:\n"
        "      - {name: a, datatype: FP32, shape: [-1, 3]}\n"
        "      - {name: label, datatype: INT64, shape: [-1]}\n"
        "    outputs: [{name: b, datatype: FP32, shape: [-1, 2]}, {name: t, datatype: INT64, shape: [-1]}]\n"
        "    steps:\n"
    ) + "".join(f"      {line}\n" for line in dedent(steps).strip().splitlines())
    lines = check(folder, text)
    assert [line.partition(": ")[2] for line in lines] == [line.partition(": ")[2] for line in wanted]
    assert [line.partition(":")[0] for line in lines] == [line.partition(":")[0] for line in wanted]


def test_declared_models(folder: Path) -> None:
    """Of a python model nothing but its declaration is looked at; a remote server is not asked."""
    text = """\
        models:
          a: {backend: python, path: "model.py:M", inputs: [{name: x, datatype: FP32}]}
          b:
            backend: python
            path: model.py:M
            inputs: [{name: x, datatype: FP32, shape: [-1]}]
            outputs: [{name: y, datatype: FP32, shape: [-1]}]
            postprocess: [{op: argmax, input: x}]
          c:
            backend: remote
            upstream: {dialect: grps, address: "nowhere:1"}
            inputs: [{name: x, datatype: FP32, shape: [-1]}]
            outputs: [{name: y, datatype: FP32, shape: [-1]}]
            preprocess: [{op: sigmoid, input: x}]
          d: {backend: remote, upstream: {dialect: open_inference, address: "nowhere:1"}}
        """
    assert check(folder, text) == [
        "2:3: models.a: a python model needs its inputs and outputs declared, for the class does not tell them: "
        "inputs: [{name: x, datatype: FP32, shape: [-1]}], and outputs likewise",
        "8:19: models.b.postprocess[0]: argmax: there is no tensor 'x' at this point, but y",
        "14:5: models.c.preprocess: this backend takes requests as they are: preprocess and postprocess have no place "
        "here",
    ]


def test_a_repository(folder: Path) -> None:
    models = folder / "models" / "m"
    models.mkdir(parents=True)
    (models / "model.yaml").write_text("backend: onnx\npath: ../../linear\npreprocess:\n  - {op: sigmoid, input: x}\n")
    (folder / "models" / "broken").mkdir()
    file = folder / "gateway.yaml"
    file.write_text("repositories: [models]\n")
    found = [str(problem) for _, problem in misfits(load_config(file, KINDS), file, KINDS)]
    assert found[0].startswith(f"{file}: models.broken: ")
    assert found[1:] == [
        f"{models}/model.yaml:4:5: preprocess[0]: sigmoid: there is no tensor 'x' at this point, but image"
    ]


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "gateway.yaml"
    file.write_text(linear("preprocess: [{op: sigmoid, input: x}]"))
    for arguments in (["check", str(file)], ["check", "--load", str(file)]):
        assert main(arguments) == 2
        told = capsys.readouterr()
        assert told.err.count("\n") == 1
        assert told.err.startswith(f"{file}:7:18: models.m.preprocess[0]: sigmoid: there is no tensor 'x'")
        assert told.out == f"{file}: models fail to load, 1 models\n"
    file.write_text(linear("preprocess: [{op: sigmoid, input: image}]"))
    assert main(["check", str(file)]) == 0


def test_what_is_there_of_cuda(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine with two GPUs, one in parts; and of one without."""
    assert main(["check"]) == 2
    assert "needs a configuration, or --device" in capsys.readouterr().err
    file = folder / "gateway.yaml"
    models = "models:\n"
    for number, device in enumerate(["auto", "all", '"cuda:*"', "[cuda, cpu]", "cuda:2", "cpu"]):
        models += f"  m{number}: {{backend: onnx, path: linear, device: {device}}}\n"
    file.write_text(models)
    facts = {
        "cuda_devices": lambda: 2,
        "driver_problem": lambda: "",
        "driver_version": lambda: "580.1 for CUDA 13.0",
        "mig_mode": lambda name: "on",
        "read_gpu": lambda name: Gpu(name, "GPU-1", "H100", 80 << 30, 8 << 30) if name == "cuda:0" else None,
    }
    for name, fact in facts.items():
        monkeypatch.setattr(device_report, name, fact)
    problem = ""
    onnx_kind = replace(KINDS.backends["onnx"], gpu_problem=lambda: problem)
    kinds = replace(KINDS, backends={**KINDS.backends, "onnx": onnx_kind})
    monkeypatch.setattr(app, "registries", lambda: kinds)
    assert main(["check", "--device", str(file)]) == 0
    told = capsys.readouterr().out
    problem = "the driver is missing"
    assert main(["check", "--device", str(file)]) == 0
    without = capsys.readouterr().out
    assert "driver: 580.1 for CUDA 13.0\n" in told
    assert f"package: onnxruntime {onnxruntime.__version__}\n" in told
    assert "cuda:0: H100, GPU-1, 72.0 of 80.0 GiB free, MIG on\ncuda:1: says nothing of itself\n" in told
    assert "backend onnx: can use GPUs\n" in told
    assert "backend onnx: the driver is missing\n" in without
    assert [line.partition("device ")[2] for line in told.splitlines() if line.startswith("model ")] == [
        "auto -> cuda:0",
        "all -> cuda:0, cuda:1",
        "cuda:* -> cuda:0, cuda:1",
        "cuda, cpu -> cuda:0, cpu",
        "cuda:2 -> fails: there is no cuda:2",
        "cpu -> cpu",
    ]
    assert [line.partition("-> ")[2] for line in without.splitlines() if line.startswith("model ")] == [
        "cpu",
        "cpu",
        *["fails: the driver is missing"] * 3,
        "cpu",
    ]
