"""What stands before and after a network: photographs in, an answer out. Two classes of an ensemble, see photo.yaml.

`context.xp` is NumPy, or on a GPU CuPy, and arrays are that module's: the same lines run on both. On a GPU an
ensemble's tensors stay there between its steps, so a photograph goes in once, and two numbers come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorgate import ModelContext, ModelRequest

SIDE = 8  # what the network sees


class Prepare:
    """UINT8 `photo` [n, height, width, 3], dark ink on light paper -> FP32 `image` [n, 8, 8], 0 paper to 16 ink."""

    def __init__(self, context: ModelContext) -> None:
        self.xp = context.xp
        self.weights = self.xp.array([0.299, 0.587, 0.114], dtype="float32")  # of red, green and blue

    def infer(self, inputs: Mapping[str, Any], request: ModelRequest) -> Mapping[str, Any]:
        """Grey, cut to a multiple of 8, and then each pixel the mean of its block."""
        photo = inputs["photo"]
        rows, height, width, _ = photo.shape
        if min(height, width) < SIDE:
            raise ValueError(f"a photo of {height} x {width} is smaller than {SIDE} x {SIDE}")
        tall, wide = height // SIDE, width // SIDE
        grey = (photo[:, : tall * SIDE, : wide * SIDE].astype("float32") * self.weights).sum(axis=-1)
        blocks = grey.reshape(rows, SIDE, tall, SIDE, wide)
        means = blocks.sum(axis=(2, 4)) / (tall * wide)
        return {"image": ((255 - means) / 255 * 16).astype("float32")}


class Decide:
    """FP32 `scores` [n, 10] -> INT64 `digit` [n, 1], and FP32 `margin` [n, 1] by which it beat the second best."""

    def __init__(self, context: ModelContext) -> None:
        self.xp = context.xp

    def infer(self, inputs: Mapping[str, Any], request: ModelRequest) -> Mapping[str, Any]:
        """Of ten numbers each, the place of the largest."""
        scores = inputs["scores"]
        best = self.xp.sort(scores, axis=1)
        return {
            "digit": self.xp.argmax(scores, axis=1).reshape(-1, 1).astype("int64"),
            "margin": best[:, -1:] - best[:, -2:-1],
        }
