"""A model that its library has read -> ONNX, by the converters of skl2onnx and onnxmltools."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from typing import Any, Final

import numpy as np

from tensorgate.backends.classic.library import INPUT, LABEL, PREDICTION, PROBABILITIES, ClassicModel
from tensorgate.gateway.contract.extras import install_command

_NAMES: Final = {
    "variable": PREDICTION,
    "label": LABEL,
    "output_label": LABEL,
    "probabilities": PROBABILITIES,
    "output_probability": PROBABILITIES,
}
"""What the converters call an output -> what it is called here."""
TREES: Final = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")
_ZERO: Final = np.float32(1e-35)
_OPSETS: Final = {"": 18, "ai.onnx.ml": 3}


class NotConverted(Exception):
    """Why there is no ONNX of a model."""


def to_onnx(model: ClassicModel, datatype: str) -> Any:
    """The ONNX model, an onnx.ModelProto, whose input is FP32 or FP64. Raises NotConverted; ValueError for what is not
    installed.
    """
    try:
        skl2onnx = importlib.import_module("skl2onnx")
        onnxmltools = importlib.import_module("onnxmltools")
    except ModuleNotFoundError as error:
        raise ValueError(f"it needs {error.name}: {install_command('classic')}") from None
    types = skl2onnx.common.data_types if model.library == "scikit-learn" else onnxmltools.convert.common.data_types
    kind = types.FloatTensorType if datatype == "FP32" else types.DoubleTensorType
    inputs = [(INPUT, kind([None, model.features]))]
    logging.disable(logging.WARNING)  # they tell of their progress
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = _convert(skl2onnx, onnxmltools, model, inputs)
    except Exception as error:  # they raise whatever they meet
        lines = str(error).strip().splitlines() or [""]
        raise NotConverted(f"{type(error).__name__}: {lines[0][:300]}") from None
    finally:
        logging.disable(logging.NOTSET)
    _rename(made, model)
    if model.library == "scikit-learn":
        _lead_missing(made, model.source)
    return made


def _convert(skl2onnx: Any, onnxmltools: Any, model: ClassicModel, inputs: Any) -> Any:
    if model.library == "XGBoost":
        return onnxmltools.convert_xgboost(model.source, initial_types=inputs)
    if model.library == "LightGBM":
        source = type(model.source)(model_str=_in_fp32(model.source.model_to_string()))
        return onnxmltools.convert_lightgbm(source, initial_types=inputs, zipmap=False)
    options = {id(model.source): {"zipmap": False}} if hasattr(model.source, "predict_proba") else None
    return skl2onnx.convert_sklearn(model.source, initial_types=inputs, options=options, target_opset=_OPSETS)


def _rename(made: Any, model: ClassicModel) -> None:
    """Give the outputs their names, with any number of rows, and drop those that the library does not answer with."""
    graph = made.graph
    wanted = model.predict(np.zeros((1, model.features), np.float32)).keys()
    for output in [*graph.output]:
        alone = not model.classes and len(graph.output) == 1
        name = PREDICTION if alone else _NAMES.get(output.name, output.name)
        if name not in wanted:
            graph.output.remove(output)
            continue
        renamed = {output.name: name} | ({name: f"inner_{name}"} if name != output.name else {})
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [renamed.get(each, each) for each in names]
        output.name = name
        if dimensions := output.type.tensor_type.shape.dim:
            dimensions[0].dim_param = "N"
    if not graph.output:
        raise NotConverted("it has none of the library's outputs")


def _lead_missing(made: Any, source: Any) -> None:
    """Have trees lead rows whose value is missing where scikit-learn's do; the converter leads all of them right.

    Source: sklearn.tree, missing_go_to_left of each node; the numbers of trees and nodes are those of ONNX.
    """
    last = source.steps[-1][1] if hasattr(source, "steps") else source
    forest = [last] if hasattr(last, "tree_") else getattr(last, "estimators_", ())
    trees = [each.tree_ for each in forest if hasattr(each, "tree_")]
    nodes = [node for node in made.graph.node if node.op_type in TREES]
    if len(nodes) != 1 or not trees or len(trees) != len(forest):
        return
    given = {each.name: each for each in nodes[0].attribute}
    missing = given.get("nodes_missing_value_tracks_true")
    if missing is not None:
        numbers = zip(given["nodes_treeids"].ints, given["nodes_nodeids"].ints, strict=True)
        missing.ints[:] = [int(trees[tree].missing_go_to_left[node]) for tree, node in numbers]


def _in_fp32(text: str) -> str:
    """A LightGBM model -> one that goes the same way for every FP32 input, and whose thresholds are FP32.

    Its trees compare x <= t in FP64. For x in FP32 that is x <= the largest FP32 up to t, and the converter would take
    the nearest, which may be larger. An x of at most _ZERO is 0 to LightGBM, and so lies above the threshold -_ZERO.
    Source: LightGBM's text form, which without tree_sizes is read tree by tree; its kZeroThreshold.
    """

    def rounded(line: re.Match[str]) -> str:
        exact = np.array(line[1].split(), np.float64)
        near = exact.astype(np.float32)
        near = np.where((near > exact) | (near == -_ZERO), np.nextafter(near, np.float32(-np.inf)), near)
        return "threshold=" + " ".join(f"{each:.17g}" for each in near.astype(np.float64).tolist())

    text = re.sub(r"^tree_sizes=.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^threshold=(.*)$", rounded, text, flags=re.MULTILINE)
