"""Steps that multiply, add, cast and order axes anew, as one pass over a tensor.

Every such step is an `Affine`: y = x * scale + shift with the axes in another order, one pair of numbers for all or one
per entry of one axis, rounded to the result's dtype at the end. What several of them do one after the other may be an
Affine again (`then`): `backends.ops.fusion` makes one step of them.

How exact: with numbers of dtype F, float32 or float64, a result differs from the true x * scale + shift by at most
2 eps(F) * (|x * scale| + |shift|), and by the rounding to its own dtype; so does a run of steps that became one.
Integers that F holds, and moves alone, are exact. Steps become one only where that is provable: see `then`.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

import numpy as np

from tensorgate.backends.ops import affine_cuda
from tensorgate.backends.ops.checks import here
from tensorgate.backends.ops.tensor_op import TensorOp
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import DTYPES, Array, TensorSpec

DType = np.dtype[Any]
_FP32: Final = np.dtype(np.float32)
_FP64: Final = np.dtype(np.float64)
_NONE: Final = np.zeros(0)
_BLOCK_BYTES: Final = 768 << 10
"""What a core's own cache holds beside the source."""
_FEW: Final = 64
_SAFE: Final = 2.0**60
"""Numbers up to this, and inputs too, neither overflow nor vanish in float32 on the way."""


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """y = (x * scale + shift).transpose(order) in `dtype`; `compute` is what that is done in, None if nothing is
    computed.

    `scale` and `shift` are float64, [1] or [entries of `axis`]; the axis is the result's, from the front. `order` None:
    the axes stay.
    """

    dtype: DType
    order: tuple[int, ...] | None = None
    compute: DType | None = None
    scale: Array = field(default_factory=lambda: _NONE)
    shift: Array = field(default_factory=lambda: _NONE)
    axis: int = 0

    def then(self, source: DType, after: Affine) -> Affine | None:
        """This step on a tensor of dtype `source`, and another after it, as one; None if that might differ."""
        moves = after.compute is None and after.dtype == self.dtype
        if not moves and not (holds(self.dtype, source) if self.compute is None else self.dtype == self.compute):
            return None  # what is between the two is rounded
        order, axis = self.order, self.axis
        if after.order is not None:
            order = after.order if order is None else tuple(order[each] for each in after.order)
            axis = after.order.index(axis)
        if after.compute is None:
            if self.compute is not None and after.dtype.kind != "f":
                return None  # the last bit of a sum may decide which integer it becomes
            return replace(self, dtype=after.dtype, order=order, axis=axis)
        if self.compute is None:
            return replace(after, order=order) if holds(after.compute, source) else None
        if self.compute != after.compute or (len(self.scale) > 1 and len(after.scale) > 1 and axis != after.axis):
            return None
        scale, shift = self.scale * after.scale, self.shift * after.scale + after.shift
        if not all(map(_is_safe, (self, after, replace(after, scale=scale, shift=shift)))):
            return None
        axis = axis if len(self.scale) > 1 else after.axis
        return Affine(after.dtype, order, self.compute, scale, shift, axis)


def holds(dtype: DType, source: DType) -> bool:
    """Whether every number of the source is one of this dtype, which NumPy's own rule does not promise."""
    if dtype == source or source.kind == "b":
        return True
    if dtype.kind == "f" and source.kind in "iu":
        return source.itemsize * 8 - (source.kind == "i") <= np.finfo(dtype).nmant + 1
    return dtype.kind in "iuf" and source.kind in "iuf" and np.can_cast(source, dtype, "safe")


def _is_safe(step: Affine) -> bool:
    scale, shift = np.abs(step.scale), np.abs(step.shift)
    return bool((scale >= 1 / _SAFE).all() and (scale <= _SAFE).all() and (shift <= _SAFE).all())


class Pass:
    """An Affine that runs: [...] -> the same sizes in its order, on the same device, contiguous."""

    def __init__(self, name: str, step: Affine) -> None:
        self._name = name
        self._step = step
        self._factors = functools.lru_cache(maxsize=16)(self._make_factors)

    def __call__(self, array: Array, xp: Any) -> Array:
        step = self._step
        view = array if step.order is None else array.transpose(step.order)
        if step.compute is None:
            return view.astype(step.dtype, order="C", copy=False)
        channels = len(step.scale)
        if channels > 1 and (not 0 <= step.axis < view.ndim or view.shape[step.axis] != channels):
            raise InvalidArgument(
                f"'{self._name}' has shape {list(array.shape)}, of which one axis must have {channels} entries, "
                "a mean and a std each"
            )
        if xp is not np:
            factors = functools.partial(self._factors, here(xp), xp, (-1,))
            return affine_cuda.run(array, step.order, step.dtype, step.axis, channels, factors, xp)
        return self._on_host(view)

    def _on_host(self, view: Array) -> Array:
        """Block by block, so that what one pass has written is still in the cache for the next."""
        step = self._step
        compute = step.compute or _FP32
        out = np.empty(view.shape, step.dtype)
        scales, shifts = bool((step.scale != 1).any()), bool((step.shift != 0).any())
        for at in blocks(view.shape, compute.itemsize):
            part = out[at] if step.dtype == compute else np.empty(out[at].shape, compute)
            np.copyto(part, view[at], casting="unsafe")
            row, scale, shift = self._row(part, at, compute)
            if scales:
                row *= scale
            if shifts:
                row += shift
            if part.dtype != out.dtype:
                out[at] = part
        return out

    def _row(self, part: Array, at: tuple[slice, ...], compute: DType) -> tuple[Array, Array, Array]:
        """A block, and factors that it can be multiplied with. A short last axis is joined with the one before, for
        NumPy is slow in short loops.
        """
        step, rank = self._step, part.ndim
        if len(step.scale) == 1:
            return part, *self._factors(None, np, (1,) * rank, 1)
        if step.axis == rank - 1 >= 2 and len(step.scale) <= _FEW:
            width = part.shape[-2]
            return part.reshape(*part.shape[:-2], -1), *self._factors(None, np, (-1,), width)
        shape = [1] * rank
        shape[step.axis] = len(step.scale)
        own = (slice(None),) * step.axis + (at[step.axis],)
        scale, shift = self._factors(None, np, tuple(shape), 1)
        return part, scale[own], shift[own]

    def _make_factors(self, place: Any, xp: Any, shape: tuple[int, ...], times: int) -> tuple[Array, Array]:
        """Scale and shift on their device, in what is computed in, repeated so many times, and of this shape."""
        scale, shift = (each.astype(self._step.compute) for each in (self._step.scale, self._step.shift))
        return xp.asarray(np.tile(scale, times).reshape(shape)), xp.asarray(np.tile(shift, times).reshape(shape))


def blocks(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Cut an array into contiguous parts of at most _BLOCK_BYTES, or of one element."""
    axis = 0
    while axis < len(shape) and prod(shape[axis + 1 :]) * itemsize > _BLOCK_BYTES:
        axis += 1
    if 0 in shape or axis == len(shape):
        if 0 not in shape:
            yield ()
        return
    step = max(1, _BLOCK_BYTES // (prod(shape[axis + 1 :]) * itemsize))
    rest = (slice(None),) * (len(shape) - axis - 1)
    for front in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*(slice(each, each + 1) for each in front), slice(start, start + step), *rest)


class AffineOp(TensorOp):
    """Base of operators that are an Affine on one tensor."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._passes = functools.cache(lambda dtype, rank: Pass(self.tensor, self.affine(dtype, rank)))

    @abstractmethod
    def affine(self, dtype: DType, rank: int) -> Affine:
        """What it does to a tensor of this dtype and number of axes, of which its `specs` has approved."""

    def compute(self, array: Array, xp: Any) -> Array:
        return self._passes(array.dtype, array.ndim)(array, xp)


class Linear(AffineOp):
    """x * scale + shift, floating afterwards: one multiplication and one addition per element, on the same device; in
    float32, or in float64 where the tensor is FP64 or of more than 16-bit integers, rounded to the datatype at the end.
    """

    def __init__(self, options: Any, scale: Array, shift: Array, along: int = 0) -> None:
        super().__init__(options)
        self._scale, self._shift, self._along = scale, shift, along
        self._to = None if options.to is None else DTYPES[options.to]

    def after(self, spec: TensorSpec) -> TensorSpec:
        if spec.dtype.kind not in "fiu" or (self._to is None and spec.dtype.kind != "f"):
            way_out = "cast it to FP32 first, or for integers say to: FP32 here"
            raise ValueError(f"{self._op}: '{spec.name}' is {spec.datatype}; {way_out}")
        return replace(spec, dtype=self._to or spec.dtype)

    def affine(self, dtype: DType, rank: int) -> Affine:
        to = self._to or dtype
        wide = _FP64 in (dtype, to) or not holds(_FP32, dtype)
        axis = self._along + rank * (self._along < 0) if len(self._scale) > 1 else 0
        return Affine(to, None, _FP64 if wide else _FP32, self._scale, self._shift, axis)
