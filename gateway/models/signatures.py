"""A configured signature, fitted to the loaded model. Source: TensorFlow's SignatureDef."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tensorgate.gateway.config import SignatureConfig
from tensorgate.gateway.config.model import REGRESSION, FeatureValue
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import BYTES, Array, Signature, Tensors, TensorSpec

EXAMPLES: Final = {"inputs": TensorSpec("input_example_tensor", BYTES, (-1,))}
"""The input of a signature whose callers send tf.Examples, named as TensorFlow's exporters do."""

Specs = Mapping[str, TensorSpec]


def signature(
    name: str, config: SignatureConfig, computation: Computation, labels: Mapping[str, tuple[str, ...]]
) -> Signature:
    """Empty inputs or outputs of the configuration stand for all, by the model's own names; `labels` name the classes
    of outputs. Raises ValueError naming what the model lacks, or what does not fit the method.
    """
    try:
        return _signature(name, config, computation, labels)
    except ValueError as error:
        raise ValueError(f"signature {name} {error}") from None


def _signature(
    name: str, config: SignatureConfig, computation: Computation, labels: Mapping[str, tuple[str, ...]]
) -> Signature:
    takes = {spec.name: spec for spec in computation.inputs}
    gives = {spec.name: replace(spec, labels=labels.get(spec.name, ())) for spec in computation.outputs}
    method = f"tensorflow/serving/{config.method}"
    outputs = _outputs(config, gives)
    if config.examples is not None:
        serialized = _inputs({"inputs": config.examples}, takes)
        _expect("input", serialized["inputs"], "BYTES")
        if len(serialized["inputs"].shape or (-1,)) != 1:
            raise ValueError(f"cannot take Examples: the input {config.examples} is no list of strings")
        return Signature(name, serialized, outputs, method)
    inputs = _inputs(config.inputs or {name: name for name in takes}, takes)
    if config.method == "predict":
        return Signature(name, inputs, outputs, method)
    for spec in inputs.values():
        _check_rows(spec)
    return Signature(name, EXAMPLES, outputs, method, features=inputs, defaults=_defaults(config, inputs))


def _inputs(names: Mapping[str, str], takes: Specs) -> dict[str, TensorSpec]:
    """The model's inputs by the caller's names. Raises ValueError for one named twice, or a required one not named."""
    chosen = _chosen("input", names, takes)
    seen = set()
    for inner in names.values():
        if inner in seen:
            raise ValueError(f"names an input twice: {inner}")
        seen.add(inner)
    lacking = [inner for inner, spec in takes.items() if inner not in seen and not spec.optional]
    if lacking:
        raise ValueError(f"lacks an input that the model needs: {lacking[0]}")
    return chosen


def _outputs(config: SignatureConfig, gives: Specs) -> dict[str, TensorSpec]:
    if config.method == "predict":
        return _chosen("output", config.outputs or {name: name for name in gives}, gives)
    if config.method == "regress":
        return _regression(config, gives)
    named = {"classes": config.classes, "scores": config.scores}
    outputs = _chosen("output", {outer: inner for outer, inner in named.items() if inner is not None}, gives)
    for outer, spec in outputs.items():
        _expect("output", spec, "BYTES" if outer == "classes" else "FP32")
    return outputs


def _regression(config: SignatureConfig, gives: Specs) -> dict[str, TensorSpec]:
    if not config.outputs and len(gives) != 1:
        raise ValueError(f"must say which output is the regression's, as outputs: {{{REGRESSION}: NAME}}")
    outputs = _chosen("output", config.outputs or {REGRESSION: next(iter(gives))}, gives)
    _expect("output", outputs[REGRESSION], "FP32")
    return outputs


def _chosen(what: str, names: Mapping[str, str], specs: Specs) -> dict[str, TensorSpec]:
    unknown = sorted(set(names.values()) - specs.keys())
    if unknown:
        raise ValueError(f"names an {what} that the model does not have: {unknown[0]}")
    return {outer: specs[inner] for outer, inner in names.items()}


def _expect(what: str, spec: TensorSpec, datatype: str) -> None:
    if spec.datatype != datatype:
        raise ValueError(f"needs an {what} of datatype {datatype}, but {spec.name} is {spec.datatype}")


def _defaults(config: SignatureConfig, features: Specs) -> Tensors:
    """Features -> the values, flat and in the input's dtype, of Examples that lack them."""
    unknown = sorted(config.defaults.keys() - features.keys())
    if unknown:
        raise ValueError(f"has a default for what is no feature: {unknown[0]}")
    return {name: _default(name, value, features[name]) for name, value in config.defaults.items()}


def _default(name: str, value: FeatureValue | tuple[FeatureValue, ...], spec: TensorSpec) -> Array:
    values = value if isinstance(value, tuple) else (value,)
    text = spec.dtype == BYTES
    if any(isinstance(each, str) is not text for each in values):
        raise ValueError(f"has a default of {name} that is {'no text' if text else 'no number'}")
    if spec.dtype.kind in "iub" and any(isinstance(each, float) for each in values):
        raise ValueError(f"has a default of {name} that is no whole number")
    rest = (-1,) if spec.shape is None else spec.shape[1:]
    if -1 not in rest:
        size = math.prod(rest)
        if len(values) != size and isinstance(value, tuple):
            raise ValueError(f"has {len(values)} values as the default of {name}, and a row has {size}")
        values = values * (size // len(values))
    if text:
        found = np.empty(len(values), np.object_)
        found[:] = [str(each).encode() for each in values]
        return found
    if spec.dtype.kind not in "iub":
        return np.array(values, np.float32).astype(spec.dtype)
    numbers = [int(each) for each in values]
    low, high = (0, 1) if spec.dtype.kind == "b" else (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max)
    if not all(low <= number <= min(high, np.iinfo(np.int64).max) for number in numbers):
        raise ValueError(f"has a default of {name} that is beyond {spec.datatype}")
    return np.array(numbers, np.int64).astype(spec.dtype)


def _check_rows(spec: TensorSpec) -> None:
    """Features of an Example are flat lists: only the first dimension of a row may vary."""
    if spec.shape == ():
        raise ValueError(f"cannot take Examples: the input {spec.name} has no dimension for them")
    if spec.shape is not None and -1 in spec.shape[2:]:
        raise ValueError(
            f"cannot take Examples: of each row of the input {spec.name} only the first dimension may vary"
        )
