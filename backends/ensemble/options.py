"""What the YAML may say of an ensemble, and whether it fits: itself, and the models that it names.

An edge is a tensor of the ensemble that goes into a model, or comes out of one: both ends agree in datatype, rank, and
every dimension that neither leaves open. Edges are looked at when a configuration is checked. When it is served nothing
is checked before a request comes: its models come and go by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from tensorgate.backends.execution.spec_inference import disagreement, listed
from tensorgate.gateway.contract.backend import ConfigProblem, Described, FindModel, ModelSource
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import TensorSpec


class EnsembleStep(Options):
    """One model of an ensemble."""

    model: str = Field(min_length=1, description="Which model.")
    version: int | None = Field(None, ge=1, description="Which version; null is the highest that is ready.")
    inputs: dict[str, str] = Field(description="The model's input -> the ensemble's tensor that goes into it.")
    outputs: dict[str, str] = Field(description="The model's output -> the ensemble's tensor that it becomes.")


class EnsembleOptions(Options):
    """What the YAML may say of an ensemble."""

    path: None = Field(None, description="An ensemble has no file.")
    steps: tuple[EnsembleStep, ...] = Field(min_length=1, description="The models, in any order: tensors connect them.")
    decoupled: bool = Field(False, description="Whether it answers zero to many times, as one of its models does.")
    in_flight: int = Field(128, ge=1, description="How many requests may be on their way through it.")


def describe(source: ModelSource) -> Described:
    """What the YAML declares. Raises ValueError where the steps do not make it."""
    options: EnsembleOptions = source.options
    if not source.inputs or not source.outputs:
        raise ValueError("an ensemble needs its inputs and outputs declared")
    if not isinstance(source.max_batch_size, int):
        raise ValueError("an ensemble's max_batch_size must be a number: it has no file that could tell")
    _check(options.steps, {spec.name for spec in source.inputs}, {spec.name for spec in source.outputs})
    return Described(source.inputs, source.outputs, source.max_batch_size, options.decoupled)


def _check(steps: Sequence[EnsembleStep], inputs: set[str], outputs: set[str]) -> None:
    """Every tensor is made once, before it is needed, and every output is made."""
    made = set(inputs)
    for step in steps:
        for tensor in step.outputs.values():
            if tensor in made:
                raise ValueError(f"tensor '{tensor}' is made twice: each has one source")
            made.add(tensor)
    for step in steps:
        for tensor in step.inputs.values():
            if tensor not in made:
                raise ValueError(f"step '{step.model}' needs the tensor '{tensor}', which nothing makes")
    for tensor in sorted(outputs - made):
        raise ValueError(f"no step makes the output '{tensor}'")
    known, waiting = set(inputs), list(steps)
    while waiting:
        able = [step for step in waiting if known.issuperset(step.inputs.values())]
        if not able:
            raise ValueError(f"these steps wait for each other: {', '.join(step.model for step in waiting)}")
        known |= {tensor for step in able for tensor in step.outputs.values()}
        waiting = [step for step in waiting if step not in able]


def check_edges(source: ModelSource, find: FindModel) -> Iterator[ConfigProblem]:
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


def _step(step: EnsembleStep, model: Described, made: Mapping[str, TensorSpec]) -> Iterator[ConfigProblem]:
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
