"""Classifications and regressions as messages, written by hand: protobuf takes a microsecond for each class.

Every score and value is there, also where it is 0 and protobuf would leave it out: to a reader that is the same.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

import numpy as np

from tensorgate.adapters.protobuf.wire_format import varint
from tensorgate.adapters.tf_serving.classify_regress import Classified
from tensorgate.adapters.tf_serving.tensors import Tensor

_FIRST: Final = b"\x0a"
"""The tag of field 1 of a message, text or list."""
_SCORE: Final = b"\x15"
_VALUE: Final = b"\x0a\x05\x0d"
"""An element of RegressionResult.regressions as far as its four bytes."""
_FLOAT: Final = np.dtype("<f4")
_FLOAT_BYTES: Final = 4


def field(tag: bytes, content: bytes) -> bytes:
    """A field that has a length."""
    return tag + varint(len(content)) + content


def classification_result(found: Classified) -> bytes:
    """A ClassificationResult. Its labels are text: bytes that are none come as U+FFFD."""
    rows, columns = found.shape
    heads = _heads(found)
    scores = _raw(np.zeros((rows, columns), _FLOAT) if found.scores is None else found.scores)
    parts: list[Any] = [b""] * (2 * columns)
    lists = []
    for row_heads, row_scores in zip(heads, scores, strict=True):
        parts[::2] = row_heads
        parts[1::2] = row_scores
        lists.append(field(_FIRST, b"".join(parts)))
    return b"".join(lists)


def _raw(scores: Tensor) -> list[list[bytes]]:
    """float32 [rows, columns] -> the four bytes of each, row by row."""
    rows: list[list[bytes]] = np.ascontiguousarray(scores, _FLOAT).view("V4").tolist()
    return rows


def _heads(found: Classified) -> list[list[bytes]]:
    """The message of every class as far as its score."""
    rows, columns = found.shape
    if isinstance(found.labels, tuple):
        known = found.labels[:columns]
        return [[_head(label.encode()) for label in (*known, *[""] * (columns - len(known)))]] * rows
    texts = found.labels.tolist()
    heads = {label: _head(label.decode("utf-8", "replace").encode()) for label in {*chain.from_iterable(texts)}}
    return [[heads[label] for label in row] for row in texts]


def _head(label: bytes) -> bytes:
    text = field(_FIRST, label) if label else b""
    return _FIRST + varint(len(text) + len(_SCORE) + _FLOAT_BYTES) + text + _SCORE


def regression_result(values: Tensor) -> bytes:
    """float32 [Examples] -> a RegressionResult."""
    messages = np.empty((values.size, len(_VALUE) + _FLOAT_BYTES), np.uint8)
    messages[:, : len(_VALUE)] = np.frombuffer(_VALUE, np.uint8)
    messages[:, len(_VALUE) :] = np.ascontiguousarray(values, _FLOAT).view(np.uint8).reshape(-1, _FLOAT_BYTES)
    return messages.tobytes()
