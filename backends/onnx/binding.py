"""Small tensors through buffers that are bound to the session once.

`session.run` turns arrays into ONNX values and back on every call; that costs several times what a small model does.
With buffers bound for one combination of shapes and outputs, a call copies the inputs in and the outputs out, and
runs. What is large goes the usual way, where the conversion is small against the data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.gateway.contract.tensor import Array, Tensors

_MAX_BYTES: Final = 64 << 10
_MAX_BINDINGS: Final = 128  # a batch may have any number of rows

Key = tuple[Any, ...]


class Binding(NamedTuple):
    """One combination of shapes and outputs, with its buffers on the host."""

    io: Any
    inputs: list[tuple[str, memoryview]]
    outputs: list[tuple[str, Array]]


class Bindings:
    """The combinations that one session has seen last. One at a time, from one thread.

    Which shapes the outputs have is learned from a run of the usual kind. A model whose outputs change their shape
    while its inputs do not cannot be bound, and is not from then on.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._bindings: OrderedDict[Key, Binding | None] = OrderedDict()
        self._possible = True

    def run(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors | None:
        """The outputs, as arrays of the caller's own; None where these tensors have to go the usual way."""
        if not self._possible:
            return None
        binding = self._bindings.get(_key(tensors, outputs))
        if binding is None:
            return None
        for name, memory in binding.inputs:
            array = tensors[name]
            try:  # NumPy's own copy would let go of the interpreter, and wait for it
                memory[:] = memoryview(array).cast("B")
            except TypeError:  # strides
                memory[:] = array.tobytes()
        try:
            self._session.run_with_iobinding(binding.io)
        except Exception:  # the usual way finds out whether it is the binding or the model, and words it
            self._possible = False
            self._bindings.clear()
            return None
        results = {}
        for name, buffer in binding.outputs:
            results[name] = buffer.copy()
        return results

    def learn(self, tensors: Tensors, results: Tensors) -> None:
        """What the usual way has answered: the next tensors of these shapes may go through buffers."""
        if not self._possible:
            return
        key = _key(tensors, [*results])
        if key not in self._bindings:
            self._bindings[key] = self._bind(tensors, results)
            if len(self._bindings) > _MAX_BINDINGS:
                self._bindings.popitem(last=False)

    def _bind(self, tensors: Tensors, results: Tensors) -> Binding | None:
        """Buffers for these shapes, or None if they are too large, or hold nothing."""
        sizes = [array.nbytes for array in tensors.values()]
        if sum(sizes) > _MAX_BYTES or not all(sizes):
            return None
        if (
            not all(type(array) is np.ndarray for array in results.values())
            or sum(array.nbytes for array in results.values()) > _MAX_BYTES
        ):
            return None
        io = self._session.io_binding()
        into = [(name, np.empty_like(array, order="C")) for name, array in tensors.items()]
        out = [(name, np.empty_like(array)) for name, array in results.items()]
        for bind, buffers in ((io.bind_input, into), (io.bind_output, out)):
            for name, buffer in buffers:
                bind(name, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)
        return Binding(io, [(name, memoryview(buffer).cast("B")) for name, buffer in into], out)


def _key(tensors: Tensors, outputs: Sequence[str]) -> Key:
    parts: list[Any] = [*outputs]
    for name, array in tensors.items():
        parts += name, array.dtype, array.shape
    return tuple(parts)
