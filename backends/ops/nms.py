"""Keep the box with the best score of those that overlap: non-maximum suppression, image by image.

In each image the best candidate is taken, those that overlap it by more than `iou_threshold` are dropped, and so on.
Of equal scores the lower index goes first. A candidate is a box, or a box and a class where the scores have classes.

    boxes [N, B, 4], scores [N, B] or [N, C, B]
    -> the best M candidates of each image, sorted                  [N, M]
    -> which of them overlap, all against all                       [N, M, M]
    -> at most `max_output` turns, each for all images at once      [N, max_output]

On the host that is arithmetic on whole arrays, on a GPU the last two are one kernel. What is returned has a fixed size,
padded behind `counts`, so that the rows of requests stay rows. Source: ONNX NonMaxSuppression, torchvision's
batched_nms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops import nms_cuda
from tensorgate.backends.ops.best_classes import best_indices
from tensorgate.backends.ops.checks import dense, floating, integral, one, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Array, Tensors, TensorSpec

_PAIRS: Final = 1 << 22
"""How many pairs of candidates are compared at a time, so that a large batch needs no more memory than a small one."""


class NmsOutputs(Options):
    """What the results are called; null: not wanted."""

    boxes: str | None = Field(
        default="boxes", description="The boxes [N, max_output, 4] as they came; 0 behind the last."
    )
    scores: str | None = Field(
        default="scores", description="Their scores [N, max_output], best first; 0 behind the last."
    )
    classes: str | None = Field(
        default="classes", description="Their classes [N, max_output], INT32, where there are any; -1 behind the last."
    )
    indices: str | None = Field(
        default="indices", description="Which of the B boxes they are [N, max_output], INT32; -1 behind the last."
    )
    counts: str | None = Field(default="counts", description="How many there are [N], INT32.")


class NmsOptions(Options):
    """Non-maximum suppression: the best of boxes that overlap, a fixed number per image, padded.

    Example: {op: nms, boxes: boxes, scores: scores, layout: xyxy, iou_threshold: 0.5, max_output: 100}
    """

    op: Literal["nms"]
    boxes: str = Field(description="Name of the boxes [N, B, 4], floating.")
    scores: str = Field(description="Name of the scores [N, B], or [N, C, B] with C classes, floating.")
    classes: str | None = Field(
        None,
        description="Name of the class of each box [N, B], integers, where scores is [N, B]; null: there are none.",
    )
    layout: Literal["xyxy", "yxyx", "cxcywh"] = Field(
        "xyxy", description="What the four numbers are: two corners, with x or y first, or center, width and height."
    )
    iou_threshold: float = Field(0.5, ge=0, le=1, description="Boxes overlap whose intersection over union is above.")
    score_threshold: float | None = Field(
        None, allow_inf_nan=False, description="Only scores above it are candidates; null: all but NaN."
    )
    max_output: int = Field(100, ge=1, le=10_000, description="How many are kept per image at most.")
    max_candidates: int = Field(
        1000, ge=1, le=nms_cuda.MAX_CANDIDATES, description="How many of the best candidates of an image are looked at."
    )
    class_aware: bool = Field(
        True, description="Whether only boxes of the same class suppress each other; false: a box has its best class."
    )
    outputs: NmsOutputs = Field(default=NmsOutputs(), description="What the results are called.")

    @model_validator(mode="after")
    def _names_differ(self) -> NmsOptions:
        names = [name for name in self.outputs.model_dump().values() if name is not None]
        if not names or len({*names}) < len(names):
            raise ValueError("outputs needs one name at least, and no name twice")
        return self


class Nms(Op):
    """Results on the same device; boxes and scores keep their dtype."""

    def __init__(self, options: NmsOptions) -> None:
        self._options = options
        self._old = tuple(name for name in (options.boxes, options.scores, options.classes) if name is not None)
        self._names: dict[str, str | None] = options.outputs.model_dump()

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        options = self._options
        boxes, scores = one("nms", options.boxes, specs), one("nms", options.scores, specs)
        for spec in (boxes, scores):
            floating("nms", spec)
        rank = len(_shape(scores))
        if len(_shape(boxes)) != 3 or _shape(boxes)[2] not in (-1, 4):
            raise ValueError(f"nms: '{boxes.name}' has shape {list(_shape(boxes))}, expected [N, B, 4]")
        if rank not in (2, 3):
            raise ValueError(f"nms: '{scores.name}' has shape {list(_shape(scores))}, expected [N, B] or [N, C, B]")
        fits = [(_shape(scores)[0], _shape(boxes)[0], "images"), (_shape(scores)[-1], _shape(boxes)[1], "boxes")]
        for left, right, what in fits:
            if left != right and -1 not in (left, right):
                raise ValueError(f"nms: '{scores.name}' has scores of {left} {what}, '{boxes.name}' has {right}")
        if options.classes is not None:
            classes = one("nms", options.classes, specs)
            integral("nms", classes)
            if rank == 3 or len(_shape(classes)) != 2:
                raise ValueError(f"nms: '{classes.name}' and '{scores.name}' must both be [N, B]")
        return replaced("nms", specs, self._old, self._made(boxes, scores, rank == 3 or options.classes is not None))

    def _made(self, boxes: TensorSpec, scores: TensorSpec, classes: bool) -> list[TensorSpec]:
        rows, kept, int32 = _shape(boxes)[0], self._options.max_output, DTYPES["INT32"]
        made = {
            "boxes": (boxes.dtype, (rows, kept, 4)),
            "scores": (scores.dtype, (rows, kept)),
            "classes": (int32, (rows, kept)),
            "indices": (int32, (rows, kept)),
            "counts": (int32, (rows,)),
        }
        if not classes:
            del made["classes"]
        return [TensorSpec(name, *made[key]) for key in made if (name := self._names[key]) is not None]

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        options = self._options
        boxes, scores = dense("nms", options.boxes, tensors), dense("nms", options.scores, tensors)
        classes = None if options.classes is None else dense("nms", options.classes, tensors)
        _check(boxes, scores, classes)
        batch, count = boxes.shape[0], boxes.shape[1]
        if scores.ndim == 3:
            classes_of = scores.shape[1]
            if not options.class_aware and classes_of:
                ranked = xp.where(xp.isnan(scores), scores.dtype.type(-np.inf), scores)
                classes = ranked.argmax(axis=1)
                scores = xp.take_along_axis(scores, classes[:, None], axis=1)[:, 0]
        flat = scores.reshape(batch, scores.size // batch if batch else 0)
        order, valid = self._candidates(flat, xp)
        box_of = order % count if count else order
        if classes is not None:
            class_of = xp.take_along_axis(classes, box_of, axis=1)
        elif scores.ndim == 3:
            class_of = order // count if count else order
        else:
            class_of = None
        chosen = xp.take_along_axis(boxes, box_of[:, :, None], axis=1)
        picks, taken = self._select(chosen, class_of if options.class_aware else None, valid, xp)
        results = {
            "boxes": (chosen, 0),
            "scores": (xp.take_along_axis(flat, order, axis=1), 0),
            "classes": (class_of, -1),
            "indices": (box_of, -1),
        }
        new = {}
        for key, (values, padding) in results.items():
            name = self._names[key]
            if name is not None and values is not None:
                new[name] = _gathered(values, picks, taken, padding, xp)
        if (name := self._names["counts"]) is not None:
            new[name] = taken.sum(axis=1).astype(np.int32)
        return put(tensors, self._old, new)

    def _candidates(self, scores: Array, xp: Any) -> tuple[Array, Array]:
        """[N, K] -> where the best are, best first, and which of these count: both [N, M]."""
        min_score = self._options.score_threshold
        counts = scores > scores.dtype.type(min_score) if min_score is not None else ~xp.isnan(scores)
        count = min(self._options.max_candidates, scores.shape[1])
        if xp is np and counts.size:  # on a GPU this would wait for it
            count = min(count, int(counts.sum(axis=1).max()))
        order = best_indices(xp.where(counts, scores, scores.dtype.type(np.nan)), count, xp)
        return order, xp.take_along_axis(counts, order, axis=1)

    def _select(self, boxes: Array, classes: Array | None, valid: Array, xp: Any) -> tuple[Array, Array]:
        """Sorted candidates [N, M, 4] -> which are kept, in order, and how far that goes: both [N, max_output]."""
        batch, candidates = valid.shape
        picks = xp.zeros((batch, self._options.max_output), np.int64)
        taken = xp.zeros((batch, self._options.max_output), bool)
        if xp is not np:
            if batch and candidates:
                corners = _corners(boxes, self._options.layout, xp)
                nms_cuda.select(corners, classes, valid, self._options.iou_threshold, picks, taken, xp)
            return picks, taken
        step = max(1, _PAIRS // max(1, candidates * candidates))
        for start in range(0, batch if candidates else 0, step):
            part = slice(start, start + step)
            overlap = self._overlap(boxes[part], None if classes is None else classes[part])
            self._turns(overlap, valid[part].copy(), picks[part], taken[part])
        return picks, taken

    def _overlap(self, boxes: Array, classes: Array | None) -> Array:
        """[N, M, 4] -> whether two suppress each other, [N, M, M]; each itself, too."""
        x0, y0, x1, y1 = _corners(boxes, self._options.layout, np)
        area = (x1 - x0) * (y1 - y0)
        width = np.minimum(x1[:, :, None], x1[:, None]) - np.maximum(x0[:, :, None], x0[:, None])
        height = np.minimum(y1[:, :, None], y1[:, None]) - np.maximum(y0[:, :, None], y0[:, None])
        common = np.maximum(width, 0) * np.maximum(height, 0)
        union = area[:, :, None] + area[:, None] - common
        overlap = common / np.where(union > 0, union, 1) > area.dtype.type(self._options.iou_threshold)
        if classes is not None:
            overlap &= classes[:, :, None] == classes[:, None]
        overlap |= np.eye(overlap.shape[1], dtype=bool)
        return overlap

    def _turns(self, overlap: Array, alive: Array, picks: Array, taken: Array) -> None:
        """Fill picks and taken, a column per turn, for all images at once."""
        images = np.arange(len(alive))
        for turn in range(min(picks.shape[1], alive.shape[1])):
            if not alive.any():
                return
            first = alive.argmax(axis=1)  # of candidates in order, the best that is left
            picks[:, turn] = first
            taken[:, turn] = alive[images, first]
            alive &= ~overlap[images, first]


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    if spec.shape is None:
        raise ValueError(f"nms: nothing says the shape of '{spec.name}'; declare it, or reshape it before")
    return spec.shape


def _check(boxes: Array, scores: Array, classes: Array | None) -> None:
    wanted = boxes.shape[:2]
    fits = boxes.ndim == 3 and boxes.shape[2] == 4 and scores.ndim in (2, 3)
    fits = fits and (scores.shape[0], scores.shape[-1]) == wanted and (classes is None or classes.shape == wanted)
    if not fits:
        shapes = [list(array.shape) for array in (boxes, scores, classes) if array is not None]
        raise InvalidArgument(f"nms needs boxes [N, B, 4] and a score for each, got shapes {shapes}")


def _corners(boxes: Array, layout: str, xp: Any) -> tuple[Array, Array, Array, Array]:
    """[N, M, 4] -> the lower and the upper corner, x0, y0, x1, y1, each [N, M], in FP32 or FP64."""
    wide = boxes.astype(np.float32) if boxes.dtype == np.float16 else boxes
    a, b, c, d = (wide[..., index] for index in range(4))
    if layout == "cxcywh":
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    if layout == "yxyx":
        a, b, c, d = b, a, d, c
    return xp.minimum(a, c), xp.minimum(b, d), xp.maximum(a, c), xp.maximum(b, d)


def _gathered(values: Array, picks: Array, taken: Array, padding: int, xp: Any) -> Array:
    """[N, M, ...] -> [N, max_output, ...], the kept ones in order, then padding."""
    if values.dtype.kind != "f":
        values = values.astype(np.int32)
    if not values.shape[1]:
        return xp.full((*picks.shape, *values.shape[2:]), padding, values.dtype)
    tail = (1,) * (values.ndim - 2)
    kept = xp.take_along_axis(values, picks.reshape((*picks.shape, *tail)), axis=1)
    return xp.where(taken.reshape((*taken.shape, *tail)), kept, values.dtype.type(padding))


KIND = OpKind(NmsOptions, Nms)
