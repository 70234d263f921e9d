"""What callers see of a model: its own specifications, those that the YAML declares, and what operators make of them.

It happens when a model is loaded, and what does not fit is an error then, not with the first request; and in the same
words when a configuration is checked, with what can be told of a model without loading it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tensorgate.gateway.contract.backend import Described, LoadedModel, ModelSource
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import BYTES, TensorSpec

Specs = Mapping[str, TensorSpec]
DEFAULT_MAX_BATCH_SIZE: Final = 4
NO_OPERATORS: Final = "this backend takes requests as they are: preprocess and postprocess have no place here"


class Misfit(ValueError):
    """What does not fit. `key` leads to it in the model's entry of the YAML: ("preprocess", 1)."""

    def __init__(self, key: tuple[str | int, ...], text: str) -> None:
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in key)
        super().__init__(f"{where.removeprefix('.')}: {text}")
        self.key = key
        self.text = text


def make_ops(kinds: Mapping[str, OpKind], steps: Sequence[Any], key: str) -> list[Op]:
    """The operators of a list in the YAML. Raises Misfit."""
    ops = []
    for index, step in enumerate(steps):
        try:
            ops.append(kinds[step.op].make(step))
        except (ValueError, ImportError, OSError) as error:
            raise Misfit((key, index), str(error)) from None
    return ops


def max_batch_size(source: ModelSource, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """The wanted size, or what "auto" is for this file. Raises ValueError where the file cannot have the wanted one.

    A model can batch if the first dimension of every input and output varies. A tensor of unknown rank shows nothing:
    it does not forbid a batch size that is asked for, and does not suggest one. Source: Triton's completion of ONNX and
    TensorFlow models.
    """
    specs = (*inputs, *outputs)
    if source.max_batch_size == "auto":
        return DEFAULT_MAX_BATCH_SIZE if all(spec.shape and spec.shape[0] < 0 for spec in specs) else 0
    fixed = [spec for spec in specs if spec.shape is not None and spec.shape[:1] != (-1,)]
    if source.max_batch_size and fixed:
        if not (source.inputs and source.outputs):
            raise ValueError(
                f"autofill failed for model '{source.name}': model does not support batching while non-zero "
                f"max_batch_size is specified (tensor '{fixed[0].name}' has shape {_shape_text(fixed[0])} in its file)"
            )
        raise ValueError(
            f"model '{source.name}', tensor '{fixed[0].name}': for the model to support batching the shape should have "
            f"at least 1 dimension and the first dimension must be -1; but shape expected by the model is "
            f"{_shape_text(fixed[0])}"
        )
    return source.max_batch_size


def _shape_text(spec: TensorSpec) -> str:
    return str(list(spec.shape or ())).replace(" ", "")


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


def input_specs(source: ModelSource, backend: LoadedModel | Described, preprocess: Sequence[Op]) -> tuple[Specs, Specs]:
    """What callers see, and what is required of them: the declared inputs, or the model's own where nothing is
    declared.

    The operators are tried on the specifications, and what they give must be what the model takes.
    """
    takes = {spec.name: spec for spec in backend.inputs}
    seen = {spec.name: spec for spec in source.inputs} or takes
    given = through(preprocess, "preprocess", seen, backend.max_batch_size > 0)
    key = ("preprocess",) if preprocess else ("inputs",)
    for name, spec in takes.items():
        if name not in given:
            if spec.optional:
                continue
            text = f"the model takes an input '{name}', but got {listed(given)} (see inputs and preprocess)"
            raise Misfit(key, text)
        _fits(key, f"input '{name}'", given[name], spec)
    for name in given:
        if name not in takes:
            text = f"the model takes {listed(takes)}, but no input '{name}' (see inputs and preprocess)"
            raise Misfit(key, text)
    return seen, (seen if preprocess else takes)


def carried_inputs(backend: LoadedModel | Described, postprocess: Sequence[Op]) -> tuple[str, ...]:
    """The model's inputs that steps after it work on, too. They do not reach callers."""
    wanted = {name for op in postprocess for name in op.from_inputs}
    wanted -= {spec.name for spec in backend.outputs}
    return tuple(spec.name for spec in backend.inputs if spec.name in wanted)


def specs_behind(backend: LoadedModel | Described, postprocess: Sequence[Op]) -> Specs:
    """What the first step after the model finds: its outputs, and what is carried."""
    carried = carried_inputs(backend, postprocess)
    return {spec.name: spec for spec in (*backend.outputs, *(each for each in backend.inputs if each.name in carried))}


def output_specs(source: ModelSource, backend: LoadedModel | Described, postprocess: Sequence[Op]) -> Specs:
    """What callers get: what the operators make of the model's own outputs, of these the declared ones."""
    before = specs_behind(backend, postprocess)
    carried = carried_inputs(backend, postprocess)
    given = through(postprocess, "postprocess", before, backend.max_batch_size > 0)
    given = {name: spec for name, spec in given.items() if name not in carried}
    if not source.outputs:
        return given
    for index, spec in enumerate(source.outputs):
        key = ("outputs", index)
        if spec.name not in given:
            raise Misfit(key, f"outputs declares '{spec.name}', but the model gives {listed(given)}")
        _fits(key, f"output '{spec.name}'", given[spec.name], spec)
    return {
        spec.name: replace(spec, shape=spec.shape if spec.shape is not None else given[spec.name].shape)
        for spec in source.outputs
    }


def through(ops: Sequence[Op], key: str, specs: Specs, batched: bool) -> Specs:
    """The specifications after all operators of the list `key`. Raises Misfit naming the one that cannot work."""
    for index, op in enumerate(ops):
        try:
            after = op.specs(specs)
            if batched:
                _keeps_rows(op, specs, after)
        except ValueError as error:
            raise Misfit((key, index), str(error)) from None
        specs = after
    return specs


def _keeps_rows(op: Op, before: Specs, after: Specs) -> None:
    """Rows of several callers share a batch: an operator must leave each where it is, and to itself."""
    found = op.along(before)
    if found is not None and found[1] == 0:
        raise ValueError(f"axis 0 of '{found[0]}' is the batch dimension, whose rows may be different callers'")
    if all(spec.shape is None or spec.shape[:1] == (-1,) for spec in before.values()):
        for spec in after.values():
            if spec.shape is not None and spec.shape[:1] != (-1,):
                raise ValueError(f"'{spec.name}' would have shape {list(spec.shape)}, without the batch dimension")


def _fits(key: tuple[str | int, ...], what: str, given: TensorSpec, wanted: TensorSpec) -> None:
    """Raises Misfit unless both ends of an edge agree."""
    difference = disagreement(given, wanted)
    if given.dtype != wanted.dtype and BYTES not in (given.dtype, wanted.dtype):
        difference += f"; a cast {'in postprocess' if key[0] == 'outputs' else 'in preprocess'} would change it"
    if difference:
        raise Misfit(key, f"{what} {difference}")


def disagreement(given: TensorSpec, wanted: TensorSpec) -> str:
    """Empty if both ends of an edge agree in dtype, rank, and every dimension that neither leaves open."""
    if given.dtype != wanted.dtype:
        return f"is {given.datatype} at one end and {wanted.datatype} at the other"
    if given.shape is None or wanted.shape is None:
        return ""
    agree = len(given.shape) == len(wanted.shape) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(given.shape, wanted.shape, strict=True)
    )
    return "" if agree else f"has shape {list(given.shape)} at one end and {list(wanted.shape)} at the other"


def listed(specs: Specs) -> str:
    """The names of tensors, for an error's text."""
    return ", ".join(f"'{name}'" for name in specs) or "nothing"
