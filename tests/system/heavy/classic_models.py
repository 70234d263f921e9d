"""Trains models with XGBoost, LightGBM and scikit-learn, and writes each as its library does, with rows and answers.

Runs in .venv-classic, in an empty folder: NAME.ubj, .json, .txt or .skops, and NAME.npz with rows `x` and the library's
own `answers`. Then imports each as the words of standard input say, JSON of {file: [word, …]}, and writes JSON of
{file: [exit status, what was said]}.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import skops.io
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from tensorgate.gateway.cli.main import main

Array = Any
RANDOM = np.random.default_rng(7)
ROWS = 600
COPIES = {
    "xgb_regressor.ubj": "xgb_own.ubj",
    "xgb_dart.ubj": "xgb_dart_2.ubj",
    "sk_boosting.skops": "sk_boosting_2.skops",
    "lgb_zero_missing.txt": "lgb_zero_missing_2.txt",
}
"""Of which two things are tried."""


def rows(*, missing: bool = False, categories: bool = False) -> Array:
    x = RANDOM.normal(size=(ROWS, 5)) * [1, 10, 0.01, 1, 1000]
    if categories:
        x[:, 3] = RANDOM.integers(0, 6, ROWS)
    if missing:
        x[RANDOM.random(x.shape) < 0.1] = np.nan
    return x


def targets(x: Array) -> tuple[Array, Array, Array]:
    """For a regressor, two classes and three of them."""
    known = np.nan_to_num(x)
    number = known[:, 0] * 3 + known[:, 1] / 5 + np.sin(known[:, 3] * 2) + 7
    return number, (number > 7).astype(int), np.digitize(number, [5, 9])


def write(name: str, save: Callable[[str], Any], predict: Callable[[Array], Array], x: Array) -> None:
    save(name)
    np.savez(Path(name).with_suffix(".npz"), x=x, answers=predict(x))


def of_xgboost() -> None:
    plain, holes, kinds = rows(), rows(missing=True), rows(categories=True)
    for name, x, which, made in (
        ("xgb_regressor.ubj", plain, 0, xgboost.XGBRegressor(n_estimators=25)),
        ("xgb_binary.json", plain, 1, xgboost.XGBClassifier(n_estimators=25)),
        ("xgb_multiclass.ubj", plain, 2, xgboost.XGBClassifier(n_estimators=10)),
        ("xgb_missing.ubj", holes, 1, xgboost.XGBClassifier(n_estimators=25)),
        ("xgb_dart.ubj", plain, 0, xgboost.XGBRegressor(n_estimators=10, booster="dart", rate_drop=0.5)),
        ("xgb_poisson.ubj", plain, 1, xgboost.XGBRegressor(n_estimators=10, objective="count:poisson")),
        ("xgb_linear.ubj", plain, 0, xgboost.XGBRegressor(n_estimators=10, booster="gblinear")),
    ):
        made.fit(x.astype(np.float32), targets(x)[which])
        answer = made.predict_proba if isinstance(made, xgboost.XGBClassifier) else made.predict
        write(name, made.save_model, answer, x.astype(np.float32))
    frame = xgboost.DMatrix(kinds, targets(kinds)[0], feature_types=["q", "q", "q", "c", "q"], enable_categorical=True)
    booster = xgboost.train({"max_cat_to_onehot": 1}, frame, 10)
    x = kinds.astype(np.float32)
    write("xgb_categories.ubj", booster.save_model, lambda x: booster.predict(_like(x)), x)
    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(plain, targets(plain)[1]), 10)

    def both(x: Array) -> Array:
        said = booster.predict(xgboost.DMatrix(x))
        return np.stack([1 - said, said], 1)

    write("xgb_booster.json", booster.save_model, both, plain.astype(np.float32))


def _like(x: Array) -> Any:
    return xgboost.DMatrix(x, feature_types=["q", "q", "q", "c", "q"], enable_categorical=True)


def of_lightgbm() -> None:
    plain, holes, kinds = rows(), rows(missing=True), rows(categories=True)
    for name, x, which, parameters, categories in (
        ("lgb_regressor.txt", plain, 0, {"objective": "regression"}, "auto"),
        ("lgb_binary.txt", plain, 1, {"objective": "binary"}, "auto"),
        ("lgb_multiclass.txt", plain, 2, {"objective": "multiclass", "num_class": 3}, "auto"),
        ("lgb_missing.txt", holes, 0, {"objective": "regression"}, "auto"),
        ("lgb_zero_missing.txt", np.nan_to_num(holes), 0, {"zero_as_missing": True}, "auto"),
        ("lgb_categories.txt", kinds, 0, {"objective": "regression", "min_data_per_group": 1}, [3]),
    ):
        data = lightgbm.Dataset(x, targets(x)[which], categorical_feature=categories)
        booster = lightgbm.train({"verbose": -1, **parameters}, data, 20)
        x = x.astype(np.float32)
        said = booster.predict(x)
        answer = np.stack([1 - said, said], 1) if parameters.get("objective") == "binary" else said
        write(name, booster.save_model, lambda x, answer=answer: answer, x)


def of_sklearn() -> None:
    plain, holes, kinds = rows(), rows(missing=True), rows(categories=True)
    names = np.array(["low", "middle", "high"])
    pairs: list[tuple[str, Array, Any, Any]] = [
        ("sk_tree", plain, targets(plain)[0], DecisionTreeRegressor()),
        ("sk_forest", plain, targets(plain)[0], RandomForestRegressor(20)),
        ("sk_forest_names", plain, names[targets(plain)[2]], RandomForestClassifier(20)),
        ("sk_tree_numbers", plain, targets(plain)[2] * 10 + 3, DecisionTreeClassifier(max_depth=4)),
        ("sk_boosting", plain, targets(plain)[1], GradientBoostingClassifier(n_estimators=20)),
        ("sk_linear", plain, targets(plain)[0], make_pipeline(StandardScaler(), LinearRegression())),
        ("sk_logistic", plain, targets(plain)[2], make_pipeline(StandardScaler(), LogisticRegression())),
        ("sk_svc", plain, targets(plain)[1], make_pipeline(StandardScaler(), SVC())),
        ("sk_neighbours", plain, targets(plain)[1], make_pipeline(StandardScaler(), KNeighborsClassifier())),
        ("sk_missing", holes, targets(holes)[0], HistGradientBoostingRegressor(max_iter=20)),
        (
            "sk_categories",
            kinds,
            targets(kinds)[0],
            make_pipeline(
                ColumnTransformer([("kind", OneHotEncoder(handle_unknown="ignore"), [3])], remainder="passthrough"),
                LinearRegression(),
            ),
        ),
    ]
    for name, x, y, made in pairs:
        made.fit(x, y)
        answer = getattr(made, "predict_proba", made.predict)
        write(f"{name}.skops", lambda file, made=made: skops.io.dump(made, file), answer, x)
    Path("sk_tree.pkl").write_bytes(pickle.dumps(pairs[0][3]))
    skops.io.dump(Foreign().fit(plain, targets(plain)[0]), "sk_foreign.skops")


class Foreign(LinearRegression):  # type: ignore[misc]
    """A type that skops does not know."""


def imported(file: str, words: list[str]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["import", file, *words])
    return status, said.getvalue()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    of_xgboost()
    of_lightgbm()
    of_sklearn()
    for first, second in COPIES.items():
        shutil.copy(first, second)
        shutil.copy(Path(first).with_suffix(".npz"), Path(second).with_suffix(".npz"))
    wanted = json.load(sys.stdin)
    sys.stdout.write(json.dumps({file: imported(file, words) for file, words in wanted.items()}))
