"""Whether the steps of an ensemble fit the models that they name, found when a configuration is checked.

A joint is a tensor of the ensemble that goes into a model, or comes out of one: both ends agree in datatype, rank, and
every dimension that neither leaves open. When it is served nothing is checked before a request comes: its models come
and go by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensorgate.backends.execution.spec_inference import disagreement, listed
from tensorgate.gateway.contract.backend import Described, Joint, ModelSource
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.tensor import TensorSpec

Find = Callable[[str, int | None], Described | None]


def joints(source: ModelSource, find: Find) -> Iterator[Joint]:
    """What does not fit, with its place below `steps`, or below `outputs`."""
    models: list[Described | None] = []
    for index, step in enumerate(source.options.steps):
        try:
            models.append(find(step.model, step.version))
        except ModelNotFound:
            models.append(None)
            version = "" if step.version is None else f" of version {step.version}"
            yield ("steps", index, "model"), f"there is no model '{step.model}'{version}"
    made = _made(source, models)
    for index, (step, model) in enumerate(zip(source.options.steps, models, strict=True)):
        if model is not None:
            for key, text in _step(step, model, made):
                yield ("steps", index, *key), text
    for index, spec in enumerate(source.outputs):
        if spec.name in made and (difference := disagreement(made[spec.name], spec)):
            yield ("outputs", index), f"output '{spec.name}' {difference}"


def _made(source: ModelSource, models: list[Described | None]) -> dict[str, TensorSpec]:
    """The ensemble's tensors, as far as it is known what makes them."""
    made = {spec.name: spec for spec in source.inputs}
    for step, model in zip(source.options.steps, models, strict=True):
        gives = {spec.name: spec for spec in model.outputs} if model is not None else {}
        made |= {tensor: gives[name] for name, tensor in step.outputs.items() if name in gives}
    return made


def _step(step: Any, model: Described, made: Mapping[str, TensorSpec]) -> Iterator[Joint]:
    takes = {spec.name: spec for spec in model.inputs}
    gives = {spec.name: spec for spec in model.outputs}
    for name, tensor in step.inputs.items():
        if name not in takes:
            yield ("inputs", name), f"model '{step.model}' takes {listed(takes)}, but no input '{name}'"
        elif tensor in made and (difference := disagreement(made[tensor], takes[name])):
            yield ("inputs", name), f"'{tensor}' {difference}, the input '{name}' of model '{step.model}'"
    for name, spec in takes.items():
        if name not in step.inputs and not spec.optional:
            yield ("inputs",), f"model '{step.model}' takes an input '{name}', too"
    for name in step.outputs:
        if name not in gives:
            yield ("outputs", name), f"model '{step.model}' gives {listed(gives)}, but no output '{name}'"
