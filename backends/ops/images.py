"""Images of different sizes in one batch, and what the operators on images share.

A batch of images is one array [N, H, W, C], as everything else is. Where its images differ in size it is *ragged*: an
object array [N] on the host, whose elements are the images [H, W, C], each on the model's device. `decode_image` makes
such batches; `resize`, `center_crop` and `pad` take them, and give a plain array as soon as all sizes agree. Nothing
else takes them: `backends.ops.fusion` sets a check before whatever else wants the tensor.
"""

from __future__ import annotations

import functools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from pydantic import Field

from tensorgate.backends.ops.tensor_op import TensorOp
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import BYTES, Array, TensorSpec

T = TypeVar("T")
R = TypeVar("R")
Layout = Literal["NHWC", "NCHW"]
Size = tuple[int, int]
"""Height, width."""
Length = Annotated[int, Field(ge=1, le=65536)]

LAYOUT: Any = Field("NHWC", description="Order of its last three axes: channels last (NHWC) or first (NCHW).")
_AXES: Final[Mapping[Layout, Size]] = {"NHWC": (-3, -2), "NCHW": (-2, -1)}
_MAX_THREADS: Final = 8


def is_ragged(array: Array) -> bool:
    """Whether the images of a batch differ in size."""
    return bool(array.dtype == BYTES)


def joined(images: Sequence[Array], xp: Any) -> Array:
    """Images [H, W, C] of one dtype and one C -> [N, H, W, C] where all sizes agree, else ragged."""
    if len({image.shape for image in images}) == 1:
        return xp.stack(images) if len(images) > 1 else images[0][None]
    ragged = np.empty(len(images), object)
    for row, image in enumerate(images):
        ragged[row] = image
    return ragged


def each(array: Array, work: Callable[[Array], Array], xp: Any) -> Array:
    """Do to a batch, or to every image of a ragged one as to a batch of one, what keeps the number of images."""
    if not is_ragged(array):
        return work(array)
    return joined(spread(lambda image: work(image[None])[0], list(array), pays=xp is np), xp)


def size_in(shape: tuple[int, ...], layout: Layout) -> Size:
    """Height and width of a shape, or those that a specification says, -1 where it leaves them open."""
    h, w = _AXES[layout]
    return shape[h], shape[w]


def with_size(shape: tuple[int, ...], layout: Layout, size: Size) -> tuple[int, ...]:
    """The shape with another height and width."""
    changed = list(shape)
    for axis, length in zip(_AXES[layout], size, strict=True):
        changed[axis] = length
    return tuple(changed)


def across(layout: Layout, height: T, width: T, other: T, rank: int) -> list[T]:
    """One thing per axis: that of the height, of the width, and the other everywhere else."""
    things = [other] * rank
    for axis, thing in zip(_AXES[layout], (height, width), strict=True):
        things[axis] = thing
    return things


class ImageOp(TensorOp):
    """Images -> images of another size, on the same device; those of different sizes -> one array where they are of
    one size then.
    """

    ragged = "takes"
    takes_objects = True

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._layout: Layout = options.layout

    def after(self, spec: TensorSpec) -> TensorSpec:
        if spec.dtype == BYTES:
            raise ValueError(f"{self._op}: '{spec.name}' is BYTES; decode_image makes images of them")
        if spec.shape is not None and len(spec.shape) < 3:
            raise ValueError(
                f"{self._op}: '{spec.name}' of shape {list(spec.shape)} has not the three axes of an image"
            )
        self.check(spec)
        if spec.shape is None:
            return spec
        size = self.size_after(size_in(spec.shape, self._layout))
        return replace(spec, shape=with_size(spec.shape, self._layout, size))

    def check(self, spec: TensorSpec) -> None:
        """Raises ValueError for images that it cannot work on."""

    @abstractmethod
    def size_after(self, old: Size) -> Size:
        """The size of images of this size afterwards; -1 where it is not known. Raises ValueError."""

    def compute(self, array: Array, xp: Any) -> Array:
        return each(array, lambda images: self.of_one_size(images, xp), xp)

    @abstractmethod
    def of_one_size(self, images: Array, xp: Any) -> Array:
        """Images [..., H, W, C], or with channels first, at their size afterwards."""


def spread(work: Callable[[T], R], items: Sequence[T], *, pays: bool = True) -> list[R]:
    """Do something that releases the interpreter to each item, several at a time if there are several and it `pays`."""
    if not pays or len(items) < 2:
        return [work(item) for item in items]
    return list(_threads().map(work, items))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """The threads that all models share."""
    return ThreadPoolExecutor(min(_MAX_THREADS, len(os.sched_getaffinity(0))), thread_name_prefix="images")


class SameSize(Op):
    """A check before a step that takes no images of different sizes. `step` is its name, "" for the model itself."""

    def __init__(self, names: Iterable[str], step: str) -> None:
        self._names = tuple(names)
        self._step = step

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        return specs

    def __call__(self, tensors: Mapping[str, Array], xp: Any) -> Mapping[str, Array]:
        for name in self._names:
            if is_ragged(tensors[name]):
                sizes = sorted({image.shape for image in tensors[name]})
                taker = f"step '{self._step}'" if self._step else "the model"
                raise InvalidArgument(
                    f"the images of '{name}' differ in size ({', '.join(map(str, map(list, sizes[:3])))}), and {taker} "
                    "takes them of one size: send such ones, or have the model's preprocess resize or crop them before"
                )
        return tensors
