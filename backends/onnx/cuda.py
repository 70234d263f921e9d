"""ONNX Runtime's sessions on a GPU: CuPy arrays in and out by their addresses, on the instance's stream.

Nothing waits here. The session enqueues its kernels behind what made the inputs and returns; what takes the outputs
is enqueued behind them. ONNX Runtime allocates the outputs, since only it knows their shapes, and they live as long as
the arrays that are views of them: each batch has its own.

With `cuda_graph` the kernels of a run are recorded once for each combination of shapes and started together from then
on, which saves the host most of its work. A recording knows addresses, not arrays, so it has buffers of its own, and
inputs and outputs are copied there and from there on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.backends.execution.device import CudaDevice
from tensorgate.gateway.contract.tensor import DTYPES, Array, Tensors

BF16_ELEMENT_TYPE: Final = 16  # onnx.TensorProto.BFLOAT16, which NumPy has no type number for
_NO_GRAPH: Final = "-1"
_MAX_GRAPHS: Final = 32
"""Recordings are kept as long as the session; further shapes run without."""

Key = tuple[Any, ...]


class Recording(NamedTuple):
    """The buffers of one combination of shapes and outputs, bound for good."""

    binding: Any
    options: Any
    inputs: dict[str, Array]
    outputs: dict[str, Array]


class CudaSession:
    """A session, its inputs and outputs on `device`. Under the device's lock, on its stream.

    `make_options` is onnxruntime.RunOptions, `dtypes` translates its types, "tensor(float)" and so on.
    """

    def __init__(
        self,
        session: Any,
        device: CudaDevice,
        make_options: Callable[[], Any],
        dtypes: Mapping[str, np.dtype[Any]],
        *,
        graphs: bool,
    ) -> None:
        self._session = session
        self._device = device
        self._make_options = make_options
        self._dtypes = dtypes
        self._plain = self._options(_NO_GRAPH if graphs else "")
        self._graphs = graphs
        self._recordings: dict[Key, Recording | None] = {}

    def run(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        """The outputs as arrays of this batch alone. Raises what ONNX Runtime raises."""
        if not self._graphs:
            return self._run_plain(tensors, outputs)
        key = (*outputs, *[(name, array.dtype, array.shape) for name, array in tensors.items()])
        if key in self._recordings:
            recording = self._recordings[key]
            return self._run_plain(tensors, outputs) if recording is None else self._replay(recording, tensors)
        results = self._run_plain(tensors, outputs)
        if len(self._recordings) < _MAX_GRAPHS:
            self._recordings[key] = self._prepare(tensors, results)
        return results

    def _run_plain(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        binding = self._session.io_binding()
        arrays = {name: self._device.contiguous(self._device.put(array)) for name, array in tensors.items()}
        for name, array in arrays.items():
            self._bind(binding.bind_input, name, array)
        for name in outputs:
            binding.bind_output(name, "cuda", self._device.index)
        self._session.run_with_iobinding(binding, self._plain)
        return {name: self._taken(value) for name, value in zip(outputs, binding.get_outputs(), strict=True)}

    def _replay(self, recording: Recording, tensors: Tensors) -> Tensors:
        for name, buffer in recording.inputs.items():
            self._copy(buffer, self._device.contiguous(self._device.put(tensors[name])))
        self._session.run_with_iobinding(recording.binding, recording.options)
        results = {}
        for name, buffer in recording.outputs.items():
            results[name] = self._empty(buffer.shape, buffer.dtype)
            self._copy(results[name], buffer)
        return results

    def _prepare(self, tensors: Tensors, results: Tensors) -> Recording | None:
        """ONNX Runtime records when it first runs so, in each thread anew. None where something is empty: its address
        would mean nothing.
        """
        if not all(array.nbytes for array in (*tensors.values(), *results.values())):
            return None
        binding = self._session.io_binding()
        into, out = (
            {name: self._empty(array.shape, array.dtype) for name, array in arrays.items()}
            for arrays in (tensors, results)
        )
        for name, buffer in into.items():
            self._bind(binding.bind_input, name, buffer)
        for name, buffer in out.items():
            self._bind(binding.bind_output, name, buffer)
        return Recording(binding, self._options(str(len(self._recordings) + 1)), into, out)

    def _bind(self, bind: Callable[..., None], name: str, array: Array) -> None:
        element = BF16_ELEMENT_TYPE if array.dtype == DTYPES["BF16"] else array.dtype
        bind(name, "cuda", self._device.index, element, array.shape, array.data.ptr)

    def _taken(self, value: Any) -> Array:
        """A result as an array on the same memory, which lives as long as the array."""
        xp, shape, dtype = self._device.xp, tuple(value.shape()), self._dtypes[value.data_type()]
        nbytes = dtype.itemsize * math.prod(shape)
        if not nbytes:
            return self._empty(shape, dtype)
        memory = xp.cuda.UnownedMemory(value.data_ptr(), nbytes, value, self._device.index)
        return xp.ndarray(shape, dtype, xp.cuda.MemoryPointer(memory, 0))

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """New memory of the stream's own; made from an address, so that CuPy need not know the dtype."""
        xp = self._device.xp
        return xp.ndarray(shape, dtype, xp.cuda.alloc(max(1, dtype.itemsize * math.prod(shape))))

    def _copy(self, target: Array, source: Array) -> None:
        runtime = self._device.xp.cuda.runtime
        runtime.memcpyAsync(
            target.data.ptr,
            source.data.ptr,
            source.nbytes,
            runtime.memcpyDeviceToDevice,
            self._device.stream_pointer,
        )

    def _options(self, graph: str) -> Any:
        options = self._make_options()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")  # the stream keeps the order
        if graph:
            options.add_run_config_entry("gpu_graph_id", graph)
        return options
