"""What the models of these worlds compute, by NumPy, and by nothing of the gateway.

Formulas are exact in every datatype: small whole numbers, quarters in floats. What belongs to the request and not to
its tensors, signature and parameters, is added to every output, and every row carries numbers of its own, so that an
answer made of somebody else's request is visibly another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import ml_dtypes
import numpy as np

DTYPES: Final[Mapping[str, Any]] = {
    "BOOL": np.bool_,
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
BAD: Final = 99
"""A model with a fault shows it where this stands in its first input."""

Arrays = Mapping[str, Any]


class Refused(Exception):
    """The model gives no answer to that. `answers` come before, of a stream."""

    def __init__(self, why: str = "", answers: Sequence[Arrays] = ()) -> None:
        super().__init__(why)
        self.answers = list(answers)


@dataclass(frozen=True, slots=True)
class Tensor:
    """As the YAML declares it: `shape` is whole, batch dimension included, -1 where it varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def yaml(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}
        return told | ({"optional": True} if self.optional else {})


@dataclass(frozen=True, slots=True)
class Output(Tensor):
    """`form`: same, scale * first + weights * others + bias everywhere; first, column 0 of that; sum, of each row of
    the first input, times scale, plus bias; picked, those of `same` whose first input is above 2; echo, the input `of`;
    fan, column 0 times 1, 2 and -1, plus bias; id, the request's.
    """

    form: str = "same"
    scale: int = 1
    bias: int = 0
    weights: tuple[int, ...] = ()
    of: int = 0

    @property
    def formula(self) -> dict[str, Any]:
        """For the model's own code."""
        names = ("name", "datatype", "form", "scale", "bias", "of")
        return {name: getattr(self, name) for name in names} | {"weights": list(self.weights)}


@dataclass(frozen=True, slots=True)
class Step:
    """Of an ensemble: as in the YAML."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """A signature: `bonus` is what the model adds under it; names are the caller's -> the model's, empty is all."""

    method: str = "predict"
    bonus: int = 0
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Model:
    """`flow`: once, generator, async, async_generator; with `answers` other than 1 the generators give so many.

    `scaled` inputs and outputs are those that an operator doubles and adds 1 to, `renamed` the outputs that one gives
    another name; specs are those that callers see. `fault` is what it does wrong where the first input has BAD.
    `callers` leads those who have a key elsewhere, everybody else to `behind`.
    """

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Output, ...]
    flow: str = "once"
    answers: int = 1
    max_batch_size: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    signatures: Mapping[str, View] = field(default_factory=dict)
    adds: bool = False
    fault: str = ""
    scaled_inputs: tuple[str, ...] = ()
    scaled_outputs: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ragged: bool = False
    steps: tuple[Step, ...] = ()
    behind: str = ""
    callers: Mapping[str, str] = field(default_factory=dict)
    upstream: str = ""

    @property
    def decoupled(self) -> bool:
        return "generator" in self.flow

    def spec(self, output: str) -> Output:
        return next(each for each in self.outputs if each.name == output)


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request the models see, besides its tensors."""

    signature: str = "serving_default"
    add: int = 0
    id: str = ""
    caller: str = ""


def answers(models: Mapping[str, Model], model: Model, inputs: Arrays, asked: Asked) -> list[Arrays]:
    """All answers, each with all outputs, by their public names. Raises Refused."""
    if model.kind in ("route", "remote"):
        behind = models[model.callers.get(asked.caller, model.behind)]
        if model.upstream and not model.upstream.startswith("open_inference"):
            asked = replace(asked, add=0)  # no other dialect has parameters
        return answers(models, behind, inputs, asked)
    if model.kind == "ensemble":
        return _ensemble(models, model, model.steps, dict(inputs), asked)
    inputs = {name: _doubled(array) if name in model.scaled_inputs else array for name, array in inputs.items()}
    told: list[Arrays] = []
    bad = bool(model.fault) and _has_bad(inputs[model.inputs[0].name])
    for number in range(model.answers):
        if bad and (not model.decoupled or number or model.answers == 1):
            raise Refused(model.fault, told)
        try:
            told.append(_answer(model, inputs, asked, number))
        except IndexError as error:  # a first column of none
            raise Refused("raise", told) from error
    return told


def _ensemble(
    models: Mapping[str, Model], model: Model, steps: Sequence[Step], known: dict[str, Any], asked: Asked
) -> list[Arrays]:
    if not steps:
        return [{each.name: known[each.name] for each in model.outputs}]
    step, rest = steps[0], steps[1:]
    inputs = {name: known[tensor] for name, tensor in step.inputs.items() if tensor in known}
    # What follows a step runs under a request of its own, which keeps id and parameters and names no signature.
    asked = Asked(add=asked.add, id=asked.id, caller=asked.caller)
    told: list[Arrays] = []
    try:
        for answer in answers(models, models[step.model], inputs, asked):
            more = {tensor: answer[name] for name, tensor in step.outputs.items()}
            told += _ensemble(models, model, rest, {**known, **more}, asked)
    except Refused as error:
        raise Refused(str(error), told) from error
    return told


def _answer(model: Model, inputs: Arrays, asked: Asked, number: int) -> Arrays:
    view = model.signatures.get(asked.signature)
    bonus = (view.bonus if view else 0) + (asked.add if model.adds else 0) + number
    given = [inputs.get(each.name) for each in model.inputs]
    made = {each.name: _output(each, given, bonus, asked, model.max_batch_size > 0) for each in _raw(model)}
    made = {model.renamed.get(name, name): array for name, array in made.items()}
    return {name: _doubled(array) if name in model.scaled_outputs else array for name, array in made.items()}


def _raw(model: Model) -> list[Output]:
    """Outputs under the names that the model itself has for them."""
    before = {new: old for old, new in model.renamed.items()}
    return [
        Output(
            before.get(each.name, each.name),
            *(getattr(each, name) for name in Output.__dataclass_fields__ if name != "name"),
        )
        for each in model.outputs
    ]


def _output(output: Output, given: Sequence[Any], bonus: int, asked: Asked, batched: bool) -> Any:
    first = given[0]
    if output.form == "id":
        return _objects([asked.id.encode()])
    if output.form == "echo":
        return given[output.of]
    if output.form == "sum":
        # A row's sum is as wide as its elements, as in the models.
        wide = first.astype(np.float64 if first.dtype.kind == "f" else np.int64)
        return _narrow(wide.sum(axis=1, keepdims=True) * output.scale + output.bias + bonus, first.dtype)
    if output.form == "fan":
        wide = first[:, :1].astype(np.float64)
        return _narrow(wide * np.array([[1, 2, -1]]) + output.bias + bonus, np.float32)
    same = _same(output, given, bonus)
    if output.form == "first":
        return same[:, 0] if batched else same.reshape(-1)[:1]
    if output.form == "picked":
        return same[first > 2]
    return same


def _same(output: Output, given: Sequence[Any], bonus: int) -> Any:
    first, others = given[0], given[1:]
    if first.dtype == np.bool_:
        made = first ^ bool((output.bias + bonus) % 2)
        for other in others:
            made = made if other is None else made ^ other
        return made
    if first.dtype == np.object_:
        rows = [first, *[other for other in others if other is not None]]
        texts = [b",".join(each) for each in zip(*[array.ravel() for array in rows], strict=True)]
        return _objects([b"%d:" % (output.bias + bonus) + text for text in texts]).reshape(first.shape)
    with np.errstate(all="ignore"):
        wide = first.astype(np.float64 if first.dtype.kind not in "iu" else np.int64) * output.scale
        for weight, other in zip(output.weights, others, strict=False):
            if other is not None:
                wide = wide + other.astype(wide.dtype) * weight
        return _narrow(wide + output.bias + bonus, first.dtype)


def _narrow(wide: Any, dtype: Any) -> Any:
    with np.errstate(all="ignore"):
        return wide.astype(dtype)


def _objects(values: Sequence[bytes]) -> Any:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def _doubled(array: Any) -> Any:
    return (array.astype(np.float64) * 2 + 1).astype(array.dtype)


def _has_bad(array: Any) -> bool:
    return bool((array == (b"99" if array.dtype == np.object_ else BAD)).any())


def best_classes(array: Any, k: int, labels: Sequence[str], batched: bool) -> Any:
    """VALUE:INDEX[:LABEL] of the k best, as the classification extension writes them."""
    rows = array.reshape(array.shape[0], -1) if batched else array.reshape(1, -1)
    if not rows.size:
        return np.empty(0, np.object_)
    form = "%f" if array.dtype.kind == "f" else "%d"
    lines = []
    for row in rows:
        order = sorted(range(len(row)), key=lambda place: -row[place].item())[:k]
        texts = [f"{form % row[place].item()}:{place}" for place in order]
        ends = [f":{labels[place]}" if place < len(labels) and labels[place] else "" for place in order]
        lines.append([(text + end).encode() for text, end in zip(texts, ends, strict=True)])
    made = _objects([text for line in lines for text in line])
    return made.reshape(len(rows), -1) if batched else made
