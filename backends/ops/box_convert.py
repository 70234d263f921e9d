"""What the four numbers of boxes mean, and in which unit: center and size -> corners, and back.

Source: torchvision.ops.box_convert, and what heads of detectors give: cxcywh, before or behind a sigmoid, in pixels of
the network's input or in parts of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tensorgate.backends.ops.checks import floating, widened
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array, TensorSpec

BoxLayout = Literal["xyxy", "yxyx", "xywh", "cxcywh"]
_ORDER = {"xyxy": (0, 1, 2, 3), "yxyx": (1, 0, 3, 2), "xywh": (0, 1, 2, 3), "cxcywh": (0, 1, 2, 3)}


class BoxConvertOptions(RenamingOptions):
    """Boxes in another layout: center and size, corner and size, or two corners; and in another unit.

    Example: {op: box_convert, input: boxes, from_layout: cxcywh, to_layout: xyxy, divide: [640, 640]}
    """

    op: Literal["box_convert"]
    input: str = Field(description="Name of the boxes [..., 4], floating.")
    from_layout: BoxLayout = Field(
        "cxcywh",
        description="What the numbers are: corners, x or y first, a corner and the size, the center and the size.",
    )
    to_layout: BoxLayout = Field("xyxy", description="What they are afterwards.")
    sigmoid: bool = Field(False, description="Whether the numbers go through a sigmoid before.")
    divide: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = Field(
        (1.0, 1.0),
        description="[width, height] by which x and y are divided: of the network's input gives parts of it.",
    )
    multiply: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = Field(
        (1.0, 1.0), description="[width, height] by which they are multiplied: parts become pixels."
    )


class BoxConvert(TensorOp):
    """FP16, FP32 or FP64 [..., 4] -> the same, on the same device; FP16 is computed in FP32."""

    def __init__(self, options: BoxConvertOptions) -> None:
        super().__init__(options)
        self._layouts = options.from_layout, options.to_layout
        self._sigmoid = options.sigmoid
        self._factors = tuple(m / d for m, d in zip(options.multiply, options.divide, strict=True))

    def after(self, spec: TensorSpec) -> TensorSpec:
        floating(self._op, spec)
        if spec.shape is not None and (not spec.shape or spec.shape[-1] not in (-1, 4)):
            raise ValueError(f"box_convert: '{self._input}' has shape {list(spec.shape)}, expected [..., 4]")
        return spec

    def compute(self, array: Array, xp: Any) -> Array:
        if not array.ndim or array.shape[-1] != 4:
            raise InvalidArgument(f"box_convert: '{self._input}' has shape {list(array.shape)}, expected [..., 4]")
        before, behind = self._layouts
        wide = widened(array)
        if self._sigmoid:
            wide = 1 / (1 + xp.exp(-wide))
        a, b, c, d = (wide[..., index] for index in _ORDER[before])
        factor_x, factor_y = (wide.dtype.type(factor) for factor in self._factors)
        a, b, c, d = a * factor_x, b * factor_y, c * factor_x, d * factor_y
        if before == "cxcywh":
            a, b, c, d = a - c / 2, b - d / 2, a + c / 2, b + d / 2
        elif before == "xywh":
            c, d = a + c, b + d
        if behind == "cxcywh":
            a, b, c, d = (a + c) / 2, (b + d) / 2, c - a, d - b
        elif behind == "xywh":
            c, d = c - a, d - b
        numbers = (a, b, c, d)
        result = xp.stack([numbers[index] for index in _ORDER[behind]], axis=-1)
        return result.astype(array.dtype, copy=False)


KIND = OpKind(BoxConvertOptions, BoxConvert)
