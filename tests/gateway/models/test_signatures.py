"""Signatures of YAML, fitted to what a model takes and gives."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tensorgate.gateway.config import SignatureConfig
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import DTYPES, Signature, TensorSpec
from tensorgate.gateway.models.signatures import EXAMPLES, signature


def tensors(**table: tuple[str, tuple[int, ...] | None]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, DTYPES[datatype], shape) for name, (datatype, shape) in table.items())


IMAGE, DEPTH, TEXT = tensors(image=("FP32", (-1, 8, 8)), depth=("INT64", (-1,)), text=("BYTES", None))
SCORES, NAMES, VALUE, WIDE = tensors(
    scores=("FP32", (-1, 10)), names=("BYTES", (-1, 10)), value=("FP32", (-1,)), wide=("FP64", (-1,))
)
LABELS = {"scores": ("zero", "one")}


def fit(config: dict[str, Any], inputs: list[TensorSpec], outputs: list[TensorSpec]) -> Signature:
    computation = Computation((), tuple(inputs), tuple(outputs), tuple(inputs), 4, "paper", "cpu")
    return signature("s", SignatureConfig.model_validate(config), computation, LABELS)


def test_predict_shows_what_it_names() -> None:
    names = {"inputs": {"a": "image"}, "outputs": {"b": "value"}}
    assert fit(names, [IMAGE], [SCORES, VALUE]) == Signature("s", {"a": IMAGE}, {"b": VALUE})
    everything = Signature("s", {"image": IMAGE, "text": TEXT}, {"value": VALUE})
    assert fit({}, [IMAGE, TEXT], [VALUE]) == everything


def test_features_become_inputs() -> None:
    config = {"method": "classify", "inputs": {"a": "image", "b": "depth"}, "scores": "scores", "classes": "names"}
    fitted = fit(config, [IMAGE, DEPTH], [SCORES, NAMES])
    assert (fitted.inputs, fitted.features) == (EXAMPLES, {"a": IMAGE, "b": DEPTH})
    assert fitted.outputs == {"classes": NAMES, "scores": replace(SCORES, labels=("zero", "one"))}
    assert fitted.method == "tensorflow/serving/classify"


@pytest.mark.parametrize("config", [{"method": "regress"}, {"method": "regress", "outputs": {"outputs": "value"}}])
def test_the_output_of_a_regression(config: dict[str, Any]) -> None:
    fitted = fit(config, [DEPTH], [VALUE] if len(config) == 1 else [SCORES, VALUE])
    assert fitted == Signature(
        "s", EXAMPLES, {"outputs": VALUE}, "tensorflow/serving/regress", features={"depth": DEPTH}
    )


def test_a_model_that_reads_examples_itself() -> None:
    fitted = fit({"method": "classify", "examples": "text", "classes": "names"}, [TEXT], [NAMES])
    assert (fitted.inputs, fitted.features) == ({"inputs": TEXT}, None)


def test_an_optional_input_may_be_left_out() -> None:
    assert fit({"inputs": {"a": "image"}}, [IMAGE, replace(TEXT, optional=True)], [VALUE]).inputs == {"a": IMAGE}


MISFITS: list[tuple[dict[str, Any], list[TensorSpec], list[TensorSpec], str]] = [
    ({"inputs": {"a": "q"}}, [IMAGE], [VALUE], "names an input that the model does not have: q"),
    ({"outputs": {"a": "q"}}, [IMAGE], [VALUE], "names an output that the model does not have: q"),
    ({"inputs": {"a": "image", "b": "image"}}, [IMAGE], [VALUE], "names an input twice: image"),
    ({"inputs": {"a": "image"}}, [IMAGE, TEXT], [VALUE], "lacks an input that the model needs: text"),
    ({"method": "classify", "scores": "q"}, [IMAGE], [SCORES], "names an output that the model does not have: q"),
    ({"method": "classify", "classes": "q"}, [IMAGE], [SCORES], "names an output that the model does not have: q"),
    (
        {"method": "classify", "scores": "wide"},
        [IMAGE],
        [WIDE],
        "needs an output of datatype FP32, but wide is FP64",
    ),
    (
        {"method": "classify", "classes": "wide"},
        [IMAGE],
        [WIDE],
        "needs an output of datatype BYTES, but wide is FP64",
    ),
    ({"method": "regress"}, [IMAGE], [WIDE], "needs an output of datatype FP32, but wide is FP64"),
    (
        {"method": "regress"},
        [IMAGE],
        [VALUE, SCORES],
        "must say which output is the regression's, as outputs: {outputs: NAME}",
    ),
    ({"method": "regress", "outputs": {"outputs": "q"}}, [IMAGE], [VALUE], "names an output that the model does not"),
    (
        {"method": "regress", "examples": "image"},
        [IMAGE],
        [VALUE],
        "needs an input of datatype BYTES, but image is FP32",
    ),
    ({"method": "regress", "examples": "text"}, [TEXT, IMAGE], [VALUE], "lacks an input that the model needs: image"),
    ({"method": "regress", "examples": "q"}, [TEXT], [VALUE], "names an input that the model does not have: q"),
    (
        {"method": "regress", "examples": "text"},
        [replace(TEXT, shape=(-1, 1))],
        [VALUE],
        "cannot take Examples: the input text is no list of strings",
    ),
    (
        {"method": "regress"},
        [replace(IMAGE, shape=())],
        [VALUE],
        "cannot take Examples: the input image has no dimension for them",
    ),
    (
        {"method": "regress"},
        [replace(IMAGE, shape=(-1, 8, -1))],
        [VALUE],
        "cannot take Examples: of each row of the input image only the first dimension may vary",
    ),
]


@pytest.mark.parametrize(("config", "inputs", "outputs", "text"), MISFITS, ids=[text for *_, text in MISFITS])
def test_what_a_model_cannot_do(
    config: dict[str, Any], inputs: list[TensorSpec], outputs: list[TensorSpec], text: str
) -> None:
    with pytest.raises(ValueError, match=f"^signature s {text.replace('{', r'.').replace('}', r'.')}"):
        fit(config, inputs, outputs)


def test_an_empty_name_is_none() -> None:
    with pytest.raises(ValidationError):
        SignatureConfig.model_validate({"method": "classify", "scores": ""})


@pytest.mark.parametrize(
    ("default", "spec", "values"),
    [
        (0.5, ("FP32", (-1,)), np.float32([0.5])),
        (3, ("FP32", (-1, 2)), np.float32([3, 3])),
        ((1.0, 2.0), ("FP64", (-1, 2)), np.float64([1, 2])),
        ((1, 2, 3), ("UINT8", (-1, -1)), np.uint8([1, 2, 3])),
        (True, ("BOOL", (-1,)), np.bool_([True])),
        ("é", ("BYTES", (-1,)), np.array(["é".encode()], np.object_)),
    ],
)
def test_defaults_of_features(default: Any, spec: tuple[str, Any], values: Any) -> None:
    (x,) = tensors(x=spec)
    found = fit({"method": "regress", "inputs": {"a": "x"}, "defaults": {"a": default}}, [x], [VALUE]).defaults
    assert found.keys() == {"a"}
    np.testing.assert_array_equal(np.asarray(found["a"]), values, strict=True)


@pytest.mark.parametrize(
    ("defaults", "text"),
    [
        ({"x": (1.0, 2.0)}, "has 2 values as the default of x, and a row has 3"),
        ({"x": "a"}, "has a default of x that is no number"),
        ({"n": 0.5}, "has a default of n that is no whole number"),
        ({"n": 256}, "has a default of n that is beyond UINT8"),
        ({"n": 2**70}, "has a default of n that is beyond UINT8"),
        ({"t": 1}, "has a default of t that is no text"),
        ({"y": 1}, "has a default for what is no feature: y"),
    ],
)
def test_wrong_defaults_of_features(defaults: dict[str, Any], text: str) -> None:
    inputs = tensors(x=("FP32", (-1, 3)), n=("UINT8", (-1,)), t=("BYTES", (-1,)))
    with pytest.raises(ValueError, match=text):
        fit({"method": "regress", "defaults": defaults}, [*inputs], [VALUE])


@pytest.mark.parametrize(
    "config",
    [
        {"defaults": {"x": 1}},
        {"method": "regress", "examples": "x", "defaults": {"x": 1}},
        {"method": "regress", "inputs": {"a": "x"}, "defaults": {"x": 1}},
    ],
    ids=["predict", "the model reads Examples", "no such feature"],
)
def test_defaults_of_what_has_no_features(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SignatureConfig.model_validate(config)
