"""What callers see of a model: its own specifications, those that the YAML declares, and what operators make of them.

All of it happens when a model is loaded, and what does not fit is an error then, not with the first request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.canonical import TensorSpec
from gateway.ports import LoadedModel, ModelSource, Op

Specs = Mapping[str, TensorSpec]


def with_rows(source: ModelSource, max_batch_size: int) -> ModelSource:
    """The source with whole shapes: those that were declared before it was known whether there is a batch dimension
    get it in front, if there is.
    """
    if source.max_batch_size != "auto" or not max_batch_size:
        return source
    inputs, outputs = (
        tuple(replace(spec, shape=None if spec.shape is None else (-1, *spec.shape)) for spec in specs)
        for specs in (source.inputs, source.outputs)
    )
    return replace(source, inputs=inputs, outputs=outputs)


def input_specs(source: ModelSource, backend: LoadedModel, preprocess: Sequence[Op]) -> tuple[Specs, Specs]:
    """What callers see, and what is required of them: the declared inputs, or the model's own where nothing is
    declared.

    The operators are tried on the specifications, and what they give must be what the model takes.
    """
    takes = {spec.name: spec for spec in backend.inputs}
    seen = {spec.name: spec for spec in source.inputs} or takes
    given: Specs = seen
    for op in preprocess:
        given = op.specs(given)
    for name, spec in takes.items():
        if name not in given:
            if spec.optional:
                continue
            raise ValueError(f"the model takes an input '{name}', but got {_listed(given)} (see inputs and preprocess)")
        _fits(f"input '{name}'", given[name], spec)
    for name in given:
        if name not in takes:
            raise ValueError(f"the model takes {_listed(takes)}, but no input '{name}' (see inputs and preprocess)")
    return seen, (seen if preprocess else takes)


def output_specs(source: ModelSource, backend: LoadedModel, postprocess: Sequence[Op]) -> Specs:
    given: Specs = {spec.name: spec for spec in backend.outputs}
    for op in postprocess:
        given = op.specs(given)
    if not source.outputs:
        return given
    for spec in source.outputs:
        if spec.name not in given:
            raise ValueError(f"outputs declares '{spec.name}', but the model gives {_listed(given)}")
        _fits(f"output '{spec.name}'", given[spec.name], spec)
    return {
        spec.name: replace(spec, shape=spec.shape if spec.shape is not None else given[spec.name].shape)
        for spec in source.outputs
    }


def _fits(what: str, given: TensorSpec, wanted: TensorSpec) -> None:
    """Both ends of a joint agree in dtype, rank, and every dimension that neither leaves open."""
    if given.dtype != wanted.dtype:
        raise ValueError(f"{what} is {given.datatype} at one end and {wanted.datatype} at the other")
    if given.shape is None or wanted.shape is None:
        return
    agree = len(given.shape) == len(wanted.shape) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(given.shape, wanted.shape, strict=True)
    )
    if not agree:
        raise ValueError(f"{what} has shape {list(given.shape)} at one end and {list(wanted.shape)} at the other")


def _listed(specs: Specs) -> str:
    return ", ".join(f"'{name}'" for name in specs) or "nothing"
