"""BYTES tensors of Triton's classification extension: the best classes of an output as `VALUE:INDEX` or
`VALUE:INDEX:LABEL`.

Integers are decimal; floats have exactly six decimals, as C's %f writes them. The answer's shape is [rows, n], or [n]
of a model without batch dimension; with no element at all it is [0]. Source: Triton's classification extension.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from tensorgate.adapters.json.texts import PIECE
from tensorgate.gateway.contract.canonical import TopK
from tensorgate.gateway.contract.tensor import BYTES, Array

_FLOAT: Final = b"%f:%d%b"
_INTEGER: Final = b"%d:%d%b"


def class_texts(best: TopK, labels: tuple[str, ...]) -> Array:
    """The best classes -> object array of bytes. Label i names index i, unless it is empty or there are not so many."""
    values, indices = best.values, best.indices
    if not values.size:
        return np.empty(0, BYTES)
    form = _FLOAT if values.dtype.kind == "f" else _INTEGER
    suffixes = _suffixes(labels)
    texts = np.empty(values.size, BYTES)
    flat, places = values.ravel(), indices.ravel()
    for at in range(0, texts.size, PIECE):
        numbers, some = flat[at : at + PIECE], places[at : at + PIECE]
        ends = suffixes[np.minimum(some, len(suffixes) - 1)]
        each = zip(numbers.tolist(), some.tolist(), ends.tolist(), strict=True)
        texts[at : at + PIECE] = [form % one for one in each]
    return texts.reshape(values.shape)


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=64)
def _suffixes(labels: tuple[str, ...]) -> Array:
    """Label i -> ":label", or nothing for an empty one; the last element, nothing, stands for all indices beyond."""
    suffixes = np.empty(len(labels) + 1, BYTES)
    suffixes[:] = [*[f":{label}".encode() if label else b"" for label in labels], b""]
    return suffixes
