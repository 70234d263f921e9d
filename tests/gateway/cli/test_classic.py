"""`tensorgate import FILE`: what is compared, what is said of it, and what is written; and what is refused unread.

The libraries are stood in for here by a few lines of NumPy; tests/system/heavy/test_classic.py has them.
"""

import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import helper

from tensorgate.backends.classic.backend import ClassicBackend, ClassicOptions
from tensorgate.backends.classic.library import ClassicModel, labels_of, read
from tensorgate.gateway.app import registries
from tensorgate.gateway.cli.classic import verb
from tensorgate.gateway.cli.classic.conversion import NotConverted, _in_fp32
from tensorgate.gateway.cli.classic.proof import compare
from tensorgate.gateway.cli.classic.rows import MISSING, make_rows, thresholds_of
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

THRESHOLD = 0.1
FP32 = np.dtype(np.float32)


def tree(threshold: float = float(np.nextafter(np.float32(THRESHOLD), np.float32(0)))) -> onnx.ModelProto:
    """x[0] <= threshold: 1, else 2; missing: 1. FP32's 0.1 is more than 0.1."""
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["prediction"],
        domain="ai.onnx.ml",
        nodes_falsenodeids=[2, 0, 0],
        nodes_featureids=[0, 0, 0],
        nodes_missing_value_tracks_true=[1, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_nodeids=[0, 1, 2],
        nodes_treeids=[0, 0, 0],
        nodes_truenodeids=[1, 0, 0],
        nodes_values=[threshold, 0.0, 0.0],
        target_ids=[0, 0],
        target_nodeids=[1, 2],
        target_treeids=[0, 0],
        target_weights=[1.0, 2.0],
        n_targets=1,
    )
    x, y = (helper.make_tensor_value_info(*each) for each in (("x", 1, ["N", 2]), ("prediction", 1, ["N", 1])))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    made: onnx.ModelProto = helper.make_model(helper.make_graph([node], "tree", [x], [y]), opset_imports=opsets)
    made.ir_version = 9
    return made


def predict(x: Any) -> Mapping[str, Any]:
    return {"prediction": np.where(x[:, 0].astype(np.float64) > THRESHOLD, 2.0, 1.0)}


MODEL = ClassicModel("LightGBM", "regression", 2, predict, None, is_double=True)


# ------------------------------------------------------------------------------------------------------------- refusals


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read(path)
    return str(caught.value)


class Program:
    """What a pickle may do while it is read."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("it was read",)


PICKLES = {
    "model.pkl": pickle.dumps(Program()),
    "model.joblib": zlib.compress(pickle.dumps(Program())),
    "model.skops": pickle.dumps(Program(), 2),
    "model.json": pickle.dumps(Program(), 4),
    "model.sav": pickle.dumps(Program(), 0),
    "model.txt": zlib.compress(pickle.dumps(Program()), 1),
    "model.ubj": pickle.dumps(Program()),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_refused_with_the_remedy(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(tmp_path / name, PICKLES[name])
    assert text.startswith(f"{tmp_path / name} is a pickle, or a joblib file, which is a program")
    assert 'skops.io.dump(model, "model.skops")' in text
    assert main(["import", str(tmp_path / name), "--trusted", "--output", str(tmp_path / "models")]) == 2
    assert "skops.io.dump" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


OTHERS = {
    "model.skops": b"not a zip",
    "model.json": b"[1]",
    "model.txt": b"once upon a time",
    "model.onnx": b"\x08\x09",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_refused(tmp_path: Path, name: str) -> None:
    assert "expected a model of XGBoost (.json, .ubj)" in refused(tmp_path / name, OTHERS[name])


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, content, library in (
        ("m.ubj", b"{", "xgboost"),
        ("m.txt", b"tree\n", "lightgbm"),
        ("m.skops", b"PK\x03\x04", "skops"),
    ):
        monkeypatch.setitem(__import__("sys").modules, library, None)
        assert f"it needs {library}: pip install" in refused(tmp_path / file, content)


# --------------------------------------------------------------------------------------------------------- rows, proofs


def test_rows_meet_every_threshold_and_its_neighbours() -> None:
    thresholds = thresholds_of(tree(float(np.float32(0.1))))
    assert {feature: values.tolist() for feature, values in thresholds.items()} == {0: [float(np.float32(0.1))]}
    rows = make_rows(2, thresholds, {1: (3.0, 5.0)}, FP32, missing=True)
    at = np.float32(0.1)
    near = (at, np.nextafter(at, FP32.type(-np.inf)), np.nextafter(at, FP32.type(np.inf)))
    assert all((rows.x[:, 0] == each).any() for each in near)
    assert rows.thresholds == 3
    assert np.isnan(rows.x[-MISSING:]).any(axis=0).all()
    assert not np.isnan(rows.x[:-MISSING]).any()
    assert set(rows.x[:-MISSING, 1].tolist()) == {3.0, 5.0}
    again = make_rows(2, thresholds, {1: (3.0, 5.0)}, FP32, missing=True)
    assert np.array_equal(rows.x, again.x, equal_nan=True)
    assert make_rows(2, {}, {}, np.dtype(np.float64), missing=False).about() == "2048 rows"


PROBABILITIES = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
LABELS = np.array([0, 0, 1])
PROOFS: dict[str, tuple[Any, Any, bool, str]] = {
    "the same": ({"label": LABELS}, {"label": LABELS}, True, "label: the same bits in all rows"),
    "texts": ({"label": labels_of(["a", "b"], LABELS)}, {"label": np.array(["a", "a", "b"])}, True, "the same bits"),
    "another label": (
        {"label": LABELS, "probabilities": PROBABILITIES},
        {"label": np.array([1, 0, 1]), "probabilities": PROBABILITIES},
        False,
        "label: the same bits in 2 rows of 3; row 0 differs most: 1 for 0",
    ),
    "a tie": (
        {"label": LABELS, "probabilities": PROBABILITIES},
        {"label": np.array([0, 1, 1]), "probabilities": PROBABILITIES},
        False,
        "row 1 differs most: 1 for 0 (1 are ties of two classes)",
    ),
    "rounded": ({"prediction": np.array([1.0, 2.0])}, {"prediction": np.array([[1], [2.000001]])}, True, "1 rows of 2"),
    "too far": ({"prediction": np.array([1.0, 2.0])}, {"prediction": np.array([1, 2.0001])}, False, "(5e-05 relative)"),
    "near zero": ({"prediction": np.array([1.0, 0.0])}, {"prediction": np.array([1.0, 1e-6])}, True, "1e-06 for 0"),
    "nowhere": ({"prediction": np.array([1.0])}, {"prediction": np.array([np.nan])}, False, "nan for 1"),
    "both nowhere": ({"prediction": np.array([np.nan])}, {"prediction": np.array([np.nan])}, True, "all rows"),
}


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@pytest.mark.parametrize("case", PROOFS)
def test_proofs(case: str) -> None:
    want, got, holds, line = PROOFS[case]
    proof = compare(want, got, 1e-5)
    assert proof.holds is holds
    assert line in proof.outputs[0].line()
    assert [*proof.lines()][-1].startswith("holds" if holds else "fails")


def test_ties_may_be_allowed_and_outputs_may_not_be_missing() -> None:
    want, got, *_ = PROOFS["a tie"]
    assert compare(want, got, 1e-5, allow_ties=True).holds
    want, got, *_ = PROOFS["another label"]
    assert not compare(want, got, 1e-5, allow_ties=True).holds
    with pytest.raises(ValueError, match="no output label"):
        compare(want, {}, 1e-5)
    with pytest.raises(ValueError, match=r"shape \[2, 2\], and the library's has \[3\]"):
        compare({"label": LABELS}, {"label": np.zeros((2, 2))}, 1e-5)


def test_thresholds_of_lightgbm_become_the_largest_fp32_below() -> None:
    text = "tree\ntree_sizes=100 20\nthreshold=0.1 0.25 -1.0000000180025095e-35 -0.1\nleaf_value=0.1\n"
    head, line, leaves = _in_fp32(text).splitlines()
    assert (head, leaves) == ("tree", "leaf_value=0.1")
    found = [float(each) for each in line.removeprefix("threshold=").split()]
    assert found == [float(np.float32(each)) for each in found]
    below = [float(np.nextafter(np.float32(each), np.float32(-1))) for each in (0.1, -1e-35)]
    assert found == [below[0], 0.25, below[1], float(np.float32(-0.1))]
    assert found[3] < -0.1 < float(np.nextafter(np.float32(found[3]), np.float32(1)))


# ------------------------------------------------------------------------------------------------------------- the verb


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "score.txt"
    made.write_text("tree\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "read", lambda path, trusted: MODEL)
    monkeypatch.setattr(verb, "to_onnx", lambda model, datatype: tree())
    return made


def test_what_proves_right_is_written_as_onnx(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"{file}: LightGBM, regression, 2 features\nFP32: compared over 2563 rows, 3 at thresholds" in said
    assert "  prediction: the same bits in all rows\n  holds: labels are equal, numbers within 1e-05\n" in said
    config = file.with_name("gateway.yaml")
    config.write_text(said[said.index("models:") :])
    entry = load_config(config, registries()).models["score"]
    assert (entry.backend, entry.max_batch_size, entry.path) == ("onnx", 256, entry.path)
    assert [each.shape for each in (*entry.inputs, *entry.outputs)] == [(-1, 2), (-1, 1)]
    assert main(["check", "--load", str(config)]) == 0
    own = yaml.safe_load((file.parent / "models/score/model.yaml").read_text())
    assert own["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert main(["import", str(file)]) == 0  # again is another version
    assert sorted(each.name for each in (file.parent / "models/score").iterdir()) == ["1", "2", "model.yaml"]


def test_what_does_not_is_computed_by_its_library(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "to_onnx", lambda model, datatype: tree(float(np.float32(THRESHOLD))))
    assert main(["import", str(file), "--datatype", "FP32"]) == 1
    told = capsys.readouterr()
    assert "differs most: 1 for 2 (0.5 relative)\n  fails:" in told.out
    assert "and not before its entry says trusted: true" in told.err
    entry = yaml.safe_load((file.parent / "models/score/model.yaml").read_text())
    assert (entry["backend"], entry["process"], entry["trusted"]) == ("classic", "own", False)
    assert (file.parent / "models/score/1/model.txt").read_text() == "tree\n"
    assert main(["import", str(file), "--datatype", "FP32", "--trusted"]) == 0
    assert "    trusted: true\n" in capsys.readouterr().out

    def refuse(model: Any, datatype: str) -> Any:
        raise NotConverted("not this one")

    monkeypatch.setattr(verb, "to_onnx", refuse)
    assert main(["import", str(file), "--name", "other", "--trusted"]) == 0
    assert "FP64: not converted: not this one" in capsys.readouterr().out
    assert main(["import", str(file), "--own"]) == 1
    assert "computed by its library" not in capsys.readouterr().err


def test_rows_without_missing_values_may_be_told_apart(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def up(x: Any) -> Mapping[str, Any]:
        return {"prediction": np.where(x[:, 0].astype(np.float64) <= THRESHOLD, 1.0, 2.0)}

    monkeypatch.setattr(verb, "read", lambda path, trusted: ClassicModel("XGBoost", "", 2, up, None))
    assert main(["import", str(file)]) == 1
    assert "it holds for rows that have all their values: --no-missing, if yours do" in capsys.readouterr().out
    assert main(["import", str(file), "--no-missing"]) == 0


def test_classes_have_their_names(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = ("dog", "cat")

    def classify(x: Any) -> Mapping[str, Any]:
        some = np.stack([x[:, 0], 1 - x[:, 0]], 1)
        return {"label": labels_of(classes, some.argmax(1)), "probabilities": some}

    model = ClassicModel("scikit-learn", "Some", 2, classify, None, classes)
    monkeypatch.setattr(verb, "read", lambda path, trusted: model)
    assert main(["import", str(file), "--own", "--trusted"]) == 0
    place = file.parent / "models/score"
    assert (place / "labels.txt").read_text() == "dog\ncat\n"
    assert yaml.safe_load((place / "model.yaml").read_text())["class_labels"] == {"probabilities": "labels.txt"}
    assert "2 classes: dog, cat" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------- the backend


def source(path: Path, **options: Any) -> ModelSource:
    inputs, outputs = (
        TensorSpec(name, DTYPES["FP64"], shape) for name, shape in (("x", (-1, 2)), ("prediction", (-1,)))
    )
    return ModelSource("m", 1, path, "cpu", (inputs,), (outputs,), 8, ClassicOptions(**options))


def test_the_library_answers_in_the_declared_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorgate.backends.classic.backend.read", lambda path, trusted: MODEL)
    with pytest.raises(ValueError, match=r"no model\.ubj or "):
        ClassicBackend(source(tmp_path, trusted=True))
    (tmp_path / "model.txt").write_text("tree\n")
    with pytest.raises(ValueError, match="say trusted: true if you know where it comes from"):
        ClassicBackend(source(tmp_path))
    backend = ClassicBackend(source(tmp_path, trusted=True))
    (answer,) = backend.infer({"x": np.array([[0.1, 0.0], [0.2, 0.0]])}, (), ())
    assert answer["prediction"].tolist() == [1.0, 2.0]
    with pytest.raises(InvalidArgument, match="3 features in a row, and the model has 2"):
        next(backend.infer({"x": np.zeros((1, 3))}, (), ()))
