"""Many tensors in one piece of memory, so that one copy carries all of them.

    |x: 64 x 3 x 224 x 224 float32      |..|mask: 64 int8|..........|ids: 64 x 16 int64 |
    0                            offset, a multiple of 256        offset              nbytes

Every tensor begins where the kernels of any library may begin to read: CUDA's own allocations are aligned so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.gateway.contract.tensor import Array

ALIGNMENT: Final = 256
_LEAST: Final = 4096


class Piece(NamedTuple):
    """One tensor's place: its elements lie in C order."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class Layout:
    """Tensors one behind another."""

    def __init__(self, tensors: Iterable[tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self.pieces: list[Piece] = []
        self.nbytes = 0
        for dtype, shape in tensors:
            piece = Piece(-(-self.nbytes // ALIGNMENT) * ALIGNMENT, dtype, shape)
            self.pieces.append(piece)
            self.nbytes = piece.offset + piece.nbytes

    def views(self, memory: Array) -> list[Array]:
        """The tensors in host memory, an array of bytes; each keeps all of it alive."""
        return [np.ndarray(shape, dtype, memory, offset) for offset, dtype, shape in self.pieces]


def size_class(nbytes: int) -> int:
    """A size that is at most a quarter larger, four for each power of two: pools of memory keep what they ever gave
    by its size, and batches come in any.
    """
    if nbytes <= _LEAST:
        return _LEAST
    step = 1 << (nbytes - 1).bit_length() - 3
    return -(-nbytes // step) * step
