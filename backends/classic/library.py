"""A file that XGBoost, LightGBM or scikit-learn (by skops) has written -> a model that predicts.

All have the same form here: rows of numbers [N, features] go in; a regressor gives `prediction`, a classifier `label`
and, where it knows them, `probabilities` [N, classes]. Each file has one reader, which its name and beginning choose.
Pickles, which are programs, are refused and never read.
"""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.contract.tensor import Array

INPUT: Final = "x"
PREDICTION: Final = "prediction"
LABEL: Final = "label"
PROBABILITIES: Final = "probabilities"

_PICKLES: Final = (".pkl", ".pickle", ".joblib", ".sav", ".p")
_PICKLE_BEGINS: Final = re.compile(rb"\x80[\x02-\x05]|\x1f\x8b|x[\x01\x5e\x9c\xda]|BZh|\xfd7zXZ|ZF|\(dp|ccopy_reg")
"""A pickle of protocol 2 and later, what joblib may compress it with, and two beginnings of older ones."""
_ZIP: Final = b"PK\x03\x04"
_REMEDY: Final = """\
{path} is a pickle, or a joblib file, which is a program: it could do whatever the server can, and is not read here.
Write the model anew where you trust it, with `pip install skops`:

    import joblib, skops.io
    model = joblib.load("{name}")
    skops.io.dump(model, "{stem}.skops")          # XGBoost: model.save_model("{stem}.ubj"); LightGBM:
                                                  # model.booster_.save_model("{stem}.txt")
"""

_COMPILED: Final = frozenset(
    (
        "sklearn._loss._loss.CyHalfBinomialLoss",
        "sklearn._loss._loss.CyHalfMultinomialLoss",
        "sklearn._loss._loss.CyHalfSquaredError",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.metrics._dist_metrics.EuclideanDistance64",
        "sklearn.neighbors._ball_tree.BallTree",
        "sklearn.neighbors._kd_tree.KDTree",
        "sklearn.tree._tree.Tree",
    )
)
"""Types that skops asks about, and that run nothing of the file's: they take its arrays over as they are."""

Predict: TypeAlias = Callable[[Array], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class ClassicModel:
    """A model that its library has read. `source` is the library's own object, `classes` are a classifier's, in the
    order of its probabilities; without them it is a regressor. `categories` are the values of the features that have
    such. `is_double` says that the library computes with FP64.
    """

    library: str
    kind: str
    features: int
    predict: Predict
    source: Any
    classes: tuple[Any, ...] = ()
    categories: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    is_double: bool = False

    @property
    def has_texts(self) -> bool:
        """Whether labels are texts."""
        return any(isinstance(each, str) for each in self.classes)


def read(path: Path, *, trusted: bool = False) -> ClassicModel:
    """The model in a file; call it in a thread. `trusted`: types of scikit-learn's that hold arrays in C are read, too,
    which a wrong file may make crash.

    Raises ValueError naming the remedy, OSError, or what the library raises.
    """
    with path.open("rb") as file:
        begins = file.read(64)
    suffix = path.suffix.lower()
    if suffix in _PICKLES or _PICKLE_BEGINS.match(begins):
        raise ValueError(_REMEDY.format(path=path, name=path.name, stem=path.stem))
    if suffix == ".skops" and begins.startswith(_ZIP):
        return _skops(path, trusted=trusted)
    if suffix == ".ubj" or (suffix == ".json" and begins.lstrip().startswith(b"{")):
        return _xgboost(path)
    if suffix == ".txt" and begins.startswith(b"tree"):
        return _lightgbm(path)
    raise ValueError(
        f"{path}: expected a model of XGBoost (.json, .ubj), of LightGBM (.txt, whose first line is tree), or of "
        "scikit-learn by skops (.skops)"
    )


def labels_of(classes: Sequence[Any], chosen: Array) -> Array:
    """Classes by number, as INT64 or BYTES."""
    if any(isinstance(each, str) for each in classes):
        names = np.empty(len(classes), np.object_)
        names[:] = [str(each).encode() for each in classes]
        return np.asarray(names[chosen])
    return np.array([int(each) for each in classes], np.int64)[chosen]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"it needs {name.partition('.')[0]}: {install_command('classic')}") from error


# ------------------------------------------------------------------------------------------------------------- XGBoost


def _xgboost(path: Path) -> ClassicModel:
    """A booster, or what XGBClassifier and its like have saved: by the objective, one or the other."""
    xgboost = _library("xgboost")
    booster = xgboost.Booster()
    try:
        booster.load_model(path)
    except xgboost.core.XGBoostError as error:
        raise ValueError(f"{path} is no model of XGBoost: {str(error).strip().splitlines()[-1]}") from None
    objective = json.loads(booster.save_config())["learner"]["learner_train_param"]["objective"]
    classifies = objective in ("binary:logistic", "multi:softprob", "multi:softmax")
    made = (xgboost.XGBClassifier if classifies else xgboost.XGBRegressor)(n_jobs=1)
    made.load_model(path)
    features = booster.num_features()
    categories = _xgboost_categories(booster)
    if not classifies:
        return ClassicModel(
            "XGBoost", objective, features, lambda x: {PREDICTION: made.predict(x)}, made, (), categories
        )
    classes = tuple(range(int(made.n_classes_)))

    def classify(x: Array) -> Mapping[str, Array]:
        probabilities = made.predict_proba(x)
        return {LABEL: labels_of(classes, probabilities.argmax(1)), PROBABILITIES: probabilities}

    return ClassicModel("XGBoost", objective, features, classify, made, classes, categories)


def _xgboost_categories(booster: Any) -> Mapping[int, tuple[float, ...]]:
    """Categories are whole numbers from 0 on; the largest by which a tree tells rows apart is the last that is known.

    Source: XGBoost's JSON form, feature_types c; a node's categories are a segment of its tree's.
    """
    kinds = booster.feature_types or ()
    most = {number: 0 for number, kind in enumerate(kinds) if kind == "c"}
    if not most:
        return {}
    model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]
    for tree in model["trees"]:
        segments = zip(tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True)
        for node, begin, size in segments:
            feature = tree["split_indices"][node]
            most[feature] = max([most[feature], *tree["categories"][begin : begin + size]])
    return {feature: tuple(map(float, range(last + 1))) for feature, last in most.items()}


# ------------------------------------------------------------------------------------------------------------ LightGBM


def _lightgbm(path: Path) -> ClassicModel:
    lightgbm = _library("lightgbm")
    try:
        booster = lightgbm.Booster(model_file=str(path))
    except lightgbm.basic.LightGBMError as error:
        raise ValueError(f"{path} is no model of LightGBM: {error}") from None
    text = path.read_text(encoding="utf-8")
    found = re.search(r"^objective=(\w+)", text, re.MULTILINE)
    objective = found[1] if found else "none"
    features = booster.num_feature()
    categories = _lightgbm_categories(text)
    if objective not in ("binary", "multiclass", "multiclassova"):

        def regress(x: Array) -> Mapping[str, Array]:
            return {PREDICTION: booster.predict(x, num_threads=1)}

        return ClassicModel("LightGBM", objective, features, regress, booster, (), categories, is_double=True)
    classes = tuple(range(2 if objective == "binary" else booster.num_model_per_iteration()))

    def classify(x: Array) -> Mapping[str, Array]:
        said = booster.predict(x, num_threads=1)
        probabilities = np.stack([1 - said, said], 1) if objective == "binary" else said
        return {LABEL: labels_of(classes, probabilities.argmax(1)), PROBABILITIES: probabilities}

    return ClassicModel("LightGBM", objective, features, classify, booster, classes, categories, is_double=True)


def _lightgbm_categories(text: str) -> Mapping[int, tuple[float, ...]]:
    """Source: LightGBM's text form, feature_infos: [min:max] of a number, 0:1:2 of categories, none of neither."""
    found = re.search(r"^feature_infos=(.*)$", text, re.MULTILINE)
    infos = found[1].split() if found else []
    known = {number: info for number, info in enumerate(infos) if info[0] != "[" and info != "none"}
    return {number: tuple(float(each) for each in info.split(":")) for number, info in known.items()}


# -------------------------------------------------------------------------------------------------------- scikit-learn


def _skops(path: Path, *, trusted: bool) -> ClassicModel:
    """Only of types that skops itself holds to be safe, and if the file is trusted of those in _COMPILED."""
    skops = _library("skops.io")
    unsafe = set(skops.get_untrusted_types(file=path))
    compiled = sorted(unsafe.intersection(_COMPILED))
    if foreign := sorted(unsafe.difference(_COMPILED)):
        raise ValueError(
            f"{path} needs types that may run code of their own: {', '.join(foreign)}; make the model of "
            "scikit-learn's own types, or serve it with a class of yours (backend: python)"
        )
    if compiled and not trusted:
        raise ValueError(
            f"{path} needs types of scikit-learn that hold arrays in C, which a wrong file may make crash: "
            f"{', '.join(compiled)}; say trusted if you know where it comes from: import --trusted"
        )
    made = skops.load(path, trusted=compiled)
    kind = type(made).__name__
    features = getattr(made, "n_features_in_", None)
    if not hasattr(made, "predict") or not isinstance(features, int):
        raise ValueError(f"{path} holds {kind}, and no trained estimator with predict that takes rows of numbers")
    classes = getattr(made, "classes_", None) if hasattr(made, "predict_proba") or hasattr(made, "classes_") else None
    categories = _sklearn_categories(made)
    if classes is None:
        predict = _quiet(_regress(made))
        return ClassicModel("scikit-learn", kind, features, predict, made, (), categories, is_double=True)
    if not isinstance(classes, np.ndarray):
        raise ValueError(f"{path} holds {kind} with several outputs of classes; serve it with a class of yours")
    known = tuple(classes.tolist())
    predict = _quiet(_classify(made, known))
    return ClassicModel("scikit-learn", kind, features, predict, made, known, categories, is_double=True)


def _sklearn_categories(made: Any) -> Mapping[int, tuple[float, ...]]:
    """Those of encoders of columns at the beginning of a pipeline."""
    first = made.steps[0][1] if hasattr(made, "steps") else made
    found: dict[int, tuple[float, ...]] = {}
    for _, encoder, columns in getattr(first, "transformers_", ()):
        for column, values in zip(columns, getattr(encoder, "categories_", ()), strict=False):
            if isinstance(column, (int, np.integer)) and values.dtype.kind in "iuf":
                found[int(column)] = tuple(values[np.isfinite(values)].tolist())
    return found


def _regress(made: Any) -> Predict:
    return lambda x: {PREDICTION: made.predict(x)}


def _classify(made: Any, classes: tuple[Any, ...]) -> Predict:
    numbers = {each: number for number, each in enumerate(classes)}

    def classify(x: Array) -> Mapping[str, Array]:
        chosen = np.array([numbers[each] for each in made.predict(x).tolist()], np.int64)
        answer = {LABEL: labels_of(classes, chosen)}
        if hasattr(made, "predict_proba"):
            answer[PROBABILITIES] = made.predict_proba(x)
        return answer

    return classify


def _quiet(predict: Predict) -> Predict:
    """A model that was trained on named columns warns of rows without names."""

    def predict_quietly(x: Array) -> Mapping[str, Array]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*valid feature names")
            return predict(x)

    return predict_quietly
