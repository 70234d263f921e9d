"""Steps that become one, found when a model is loaded.

Steps that are an `Affine` on the same tensor, with none between that touches others in the same breath, are one pass
over memory instead of several: a cast, a scale, a normalize and a transpose are one kernel on a GPU. They become one
only where that is provably the same: see `backends.ops.affine`. Where images may differ in size, a check goes before
the step, or the model, that cannot take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensorgate.backends.ops.affine import Affine, AffineOp, Pass
from tensorgate.backends.ops.checks import given, name_of
from tensorgate.backends.ops.images import SameSize
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec

Specs = Mapping[str, TensorSpec]


class Fused(Op):
    """Several steps on one tensor, as one."""

    def __init__(self, parts: Sequence[AffineOp], step: Affine) -> None:
        self.parts = tuple(parts)
        self.tensor = parts[0].tensor
        self.step = step
        self._first = name_of(parts[0])
        self._run = Pass(self.tensor, step)

    def specs(self, specs: Specs) -> Specs:
        for part in self.parts:
            specs = part.specs(specs)
        return specs

    def __call__(self, tensors: Tensors, xp: object) -> Tensors:
        return {**tensors, self.tensor: self._run(given(self._first, self.tensor, tensors), xp)}


def fuse(ops: Iterable[Op], specs: Specs) -> tuple[Op, ...]:
    """Steps in as few passes as give the same results, with the checks that they need. `specs` are those before the
    first step, and all steps can work on them.
    """
    return tuple(_joined(_checked(ops, specs), specs))


def _joined(ops: Iterable[Op], specs: Specs) -> Iterable[Op]:
    """Steps on different tensors may change places, so that every tensor has a run of its own."""
    runs: dict[str, list[AffineOp]] = {}
    begun = specs
    for op in ops:
        if isinstance(op, AffineOp):
            runs.setdefault(op.tensor, []).append(op)
        else:
            for run in runs.values():
                yield from _as_few(run, begun[run[0].tensor])
            runs = {}
        specs = op.specs(specs)
        if not isinstance(op, AffineOp):
            yield op
            begun = specs
    for run in runs.values():
        yield from _as_few(run, begun[run[0].tensor])


def _as_few(run: Sequence[AffineOp], spec: TensorSpec) -> Iterable[Op]:
    """Steps on one tensor, each joined to those before it as long as it can be."""
    parts: list[AffineOp] = []
    step: Affine | None = None
    first = spec
    for op in run:
        own = None if spec.shape is None else op.affine(spec.dtype, len(spec.shape))
        longer = step.then(first.dtype, own) if step is not None and own is not None else None
        if longer is None:
            yield from _of(parts, step)
            parts, step, first = [], own, spec
        else:
            step = longer
        parts.append(op)
        spec = op.specs({spec.name: spec})[spec.name]
    yield from _of(parts, step)


def _of(parts: Sequence[AffineOp], step: Affine | None) -> Iterable[Op]:
    if len(parts) > 1 and step is not None:
        yield Fused(parts, step)
    else:
        yield from parts


def _checked(ops: Iterable[Op], specs: Specs) -> Iterable[Op]:
    """A check before each step that gets images which may differ in size, unless it takes such."""
    ragged: set[str] = set()
    for op in ops:
        kind = op.ragged
        if not kind:
            touched = sorted(name for name in ragged if _touches(op, specs, name))
            if touched:
                yield SameSize(touched, name_of(op))
                ragged.difference_update(touched)
        specs = op.specs(specs)
        ragged &= specs.keys()
        tensor = op.tensor
        if kind == "makes" or (kind and tensor in ragged):
            ragged.discard(tensor)
            if _may_differ(specs[tensor]):
                ragged.add(tensor)
        yield op
    if ragged:
        yield SameSize(sorted(ragged), "")


def _touches(op: Op, specs: Specs, name: str) -> bool:
    """Whether a step can not do without a tensor."""
    try:
        op.specs({other: spec for other, spec in specs.items() if other != name})
    except ValueError:
        return True
    return False


def _may_differ(spec: TensorSpec) -> bool:
    """Whether images of this specification can be of different sizes."""
    return spec.shape is None or -1 in spec.shape[1:]
