"""Models of scikit-learn, XGBoost and LightGBM -> entries of the backend python, and the classes that run them.

Their files are programs, or are read by libraries that trust them: a joblib file is a pickle. So the classes load
nothing unless `trusted: true` stands in the parameters of a model. An ONNX file that lies beside is run in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WELL_KNOWN_FILES: Final[Mapping[str, Sequence[str]]] = {
    "sklearn": ("model.joblib", "model.pickle", "model.pkl"),
    "xgboost": ("model.bst", "model.json", "model.ubj"),
    "lightgbm": ("model.bst", "model.txt"),
}
"""Kind -> the names of files that servers look for."""
TABULAR_CLASSES: Final = {"sklearn": "SklearnModel", "xgboost": "XgboostModel", "lightgbm": "LightgbmModel"}
TABULAR_FILE: Final = "tabular_models.py"
_ONNX: Final = "model.onnx"
_INSTALL: Final = {"sklearn": "scikit-learn joblib", "xgboost": "xgboost", "lightgbm": "lightgbm"}

TABULAR_TEXT: Final = '''\
"""Models of scikit-learn, XGBoost and LightGBM: classes of the backend python.

In the YAML, `parameters` of such a model are: `file`, where it lies; `outputs`, the methods whose results callers get,
each with its datatype; `column`, whether a result of one number per row has the shape [rows, 1]; and `trusted`, without
which nothing is loaded. A joblib file is a pickle, which runs whatever its author wrote when it is read.
"""

from pathlib import Path

import numpy as np
from tensorgate import InvalidArgument, ModelContext, ModelRequest

DTYPES = {"FP32": np.float32, "FP64": np.float64, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}


class _TabularModel:
    def __init__(self, context: ModelContext):
        file = Path(context.parameters["file"])
        if context.parameters.get("trusted") is not True:
            raise ValueError(f"{file.name} may run code when it is read: parameters need trusted: true if it is to be")
        self.outputs = context.parameters["outputs"]
        self.column = context.parameters.get("column", False)
        self.model = self.load(file)

    def infer(self, inputs, request: ModelRequest):
        """One input, rows of features -> the result of each method."""
        [rows] = inputs.values()
        return {name: self.result(name, datatype, rows) for name, datatype in self.outputs.items()}

    def result(self, name, datatype, rows):
        method = getattr(self.model, name, None)
        if method is None:
            raise InvalidArgument(f"{type(self.model).__name__} has no {name}")
        found = np.asarray(method(rows))
        if datatype == "BYTES":
            found = np.vectorize(lambda value: str(value).encode(), otypes=[object])(found)
        else:
            found = found.astype(DTYPES[datatype], copy=False)
        return found[:, np.newaxis] if self.column and found.ndim == 1 else found


class SklearnModel(_TabularModel):
    def load(self, file):
        import joblib

        return joblib.load(file)


class XgboostModel(_TabularModel):
    def load(self, file):
        import xgboost

        try:
            model = xgboost.XGBRegressor()
            model.load_model(file)
        except TypeError:  # of a classifier
            model = xgboost.XGBClassifier()
            model.load_model(file)
        return model


class LightgbmModel(_TabularModel):
    def load(self, file):
        import lightgbm

        return lightgbm.Booster(model_file=str(file))
'''


@dataclass(frozen=True, slots=True)
class TabularModel:
    """A model of one of these kinds. `programs` is the folder beside the YAML that gets the classes, "" where there is
    none; `column`: a result of one number per row is [rows, 1] to callers.
    """

    kind: str
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    programs: str
    trusted: bool
    column: bool = False


def onnx_beside(path: Path) -> Path | None:
    """The ONNX file in a folder, or beside a file."""
    places = [path / _ONNX] if path.is_dir() else [path.with_suffix(".onnx"), path.with_name(_ONNX)]
    return next((place for place in places if place.is_file()), None)


def onnx_entry(file: Path) -> dict[str, Any]:
    """An entry whose tensors the ONNX file tells."""
    named = {} if file.name == _ONNX else {"file": file.name}
    return {"backend": "onnx", "path": str(file.parent), "versions": "none"} | named


def tabular_entry(model: TabularModel, path: Path) -> tuple[dict[str, Any], str]:
    """The entry, and what is to be said of it. Raises ValueError with a remedy."""
    known = WELL_KNOWN_FILES[model.kind]
    file = next((path / name for name in known if (path / name).is_file()), None) if path.is_dir() else path
    if file is None:
        raise ValueError(f"{path} has none of {', '.join(known)}; name the file")
    if not model.programs:
        raise ValueError("its class lies beside the YAML; say where that is with -o FILE")
    entry = {
        "backend": "python",
        "path": f"{model.programs}/{TABULAR_FILE}:{TABULAR_CLASSES[model.kind]}",
        "inputs": [dict(each) for each in model.inputs],
        "outputs": [dict(each) for each in model.outputs],
        "parameters": {
            "file": str(file),
            "outputs": {each["name"]: each["datatype"] for each in model.outputs},
            "column": model.column,
            "trusted": model.trusted,
        },
    }
    install = f"needs pip install {_INSTALL[model.kind]}"
    trust = "" if model.trusted else "; it is loaded once parameters say trusted: true, since that may run code of it"
    return entry, f"{install}{trust}"
