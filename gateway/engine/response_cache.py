"""Answers that are given again to requests that are equal, without the model.

One cache for all models that want it, bounded in bytes; what was used longest ago leaves first. A request is equal to
another if the same loaded version got the same inputs bit by bit, parameters, signature and wanted outputs, and both
callers take a stream or neither: the whole of that is the key and is compared, no digest stands for it, so that nobody
can be given another's answer. What is left out tells how a request waits, not what it computes: id, priority, deadline.
An entry is stale once its version is unloaded, or after `ttl_seconds`. Everything happens on the event loop.
Source: Triton's response cache, for what it counts.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, TopK
from tensorgate.gateway.contract.tensor import BYTES, DEFAULT_SIGNATURE, Array, bytes_of

Key: TypeAlias = tuple[Hashable, ...]

_ENTRY_BYTES: Final = 1024
"""What Python keeps around an entry's tensors, about."""


@dataclass(slots=True, eq=False)
class _Entry:
    response: InferResponse
    nbytes: int
    expires: float


class ResponseCache:
    """`max_bytes` bounds keys and answers together, `max_entry_bytes` either of them in one entry; an answer may be
    given for `ttl_seconds`, 0: for ever.
    """

    def __init__(self, max_bytes: int = 64 << 20, max_entry_bytes: int = 1 << 20, ttl_seconds: float = 0.0) -> None:
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self.nbytes = 0
        self.evictions = 0
        self.bound(max_bytes, max_entry_bytes, ttl_seconds)

    def bound(self, max_bytes: int, max_entry_bytes: int, ttl_seconds: float) -> None:
        """Other bounds, from now on; what is there already lives as long as it was meant to."""
        self.max_bytes = max_bytes
        self._max_entry_bytes = min(max_entry_bytes, max_bytes)
        self._ttl_seconds = ttl_seconds
        self._shrink()

    @property
    def entries(self) -> int:
        """How many answers it holds."""
        return len(self._entries)

    def key(self, owner: object, request: InferRequest) -> Key | None:
        """What a request to the version `owner` is known by; None if it is never answered from here: one of a sequence,
        one with tensors in memory that its caller shares or on a device, one that is too large.
        """
        if request.sequence is not None or request.into is not None or request.on_device:
            return None
        nbytes = bytes_of(request.inputs)
        if nbytes is None or nbytes > self._max_entry_bytes:
            return None
        return (
            owner,
            "" if request.signature == DEFAULT_SIGNATURE else request.signature,  # some dialects always name one
            request.stream,
            tuple([(output.name, output.top_k) for output in request.outputs]),
            tuple([(name, type(value), value) for name, value in sorted(request.parameters.items())]),
            *[(name, array.dtype.str, array.shape, _content(array)) for name, array in sorted(request.inputs.items())],
        )

    def get(self, key: Key) -> InferResponse | None:
        """The answer to an equal request, if there is one. Its arrays are everybody's, and read-only."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= time.monotonic():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.response

    def put(self, key: Key, response: InferResponse, request: InferRequest) -> None:
        """Keep a copy of an answer: its arrays may be rows of a whole batch, which must not stay for their sake."""
        nbytes = bytes_of({**response.outputs, **{name: best.values for name, best in response.classes.items()}})
        if nbytes is None or nbytes > self._max_entry_bytes:
            return
        if key in self._entries:
            self._drop(key)
        copy = InferResponse(
            {name: _kept(array) for name, array in response.outputs.items()},
            response.parameters,
            response.final,
            {name: TopK(_kept(best.values), _kept(best.indices)) for name, best in response.classes.items()},
        )
        total = nbytes + (bytes_of(request.inputs) or 0) + _ENTRY_BYTES
        expires = time.monotonic() + self._ttl_seconds if self._ttl_seconds else float("inf")
        self._entries[key] = _Entry(copy, total, expires)
        self.nbytes += total
        self._shrink()

    def forget(self, owner: object) -> None:
        """A version is unloaded: nobody will ask for its answers again."""
        for key in [key for key in self._entries if key[0] is owner]:
            self._drop(key)

    def _shrink(self) -> None:
        while self.nbytes > self.max_bytes:
            self._drop(next(iter(self._entries)))
            self.evictions += 1

    def _drop(self, key: Key) -> None:
        self.nbytes -= self._entries.pop(key).nbytes


def _content(array: Array) -> Hashable:
    return array.tobytes() if array.dtype != BYTES else tuple(array.reshape(-1).tolist())


def _kept(array: Array) -> Array:
    kept = np.array(array, order="C")
    kept.flags.writeable = False
    return kept
