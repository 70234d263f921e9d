"""ONNX Runtime's sessions on a GPU: CuPy arrays in and out by their addresses, on the instance's stream.

Nothing waits here. The session enqueues its kernels behind what made the inputs and returns; what takes the outputs
is enqueued behind them. ONNX Runtime allocates the outputs, since only it knows their shapes, and they live as long as
the arrays that are views of them: each batch has its own.

With `cuda_graph` a run is recorded for each combination of shapes, and replayed from then on: see execution/graphs.py.
The session knows nothing of it. ONNX Runtime's own `enable_cuda_graph` is not asked for: it captures in CUDA's global
mode, so that any allocation in another thread fails and voids the capture; it keeps recordings per thread, while
batches come from several; a capture that fails leaves the session unable to run those shapes; each replay waits for the
GPU; and recordings are never given up. Source: ONNX Runtime, core/providers/cuda/cuda_graph.cc.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.backends.execution.device import CudaDevice
from tensorgate.backends.execution.graphs import Graphs, capture
from tensorgate.gateway.contract.tensor import DTYPES, Array, Tensors

BF16_ELEMENT_TYPE: Final = 16  # onnx.TensorProto.BFLOAT16, which NumPy has no type number for


class Recording(NamedTuple):
    """A run's graph, and the buffers of its own that it reads and writes."""

    graph: Any
    inputs: dict[str, Array]
    outputs: dict[str, Array]


class CudaSession:
    """A session, its inputs and outputs on `device`. Under the device's lock, on its stream.

    `make_options` is onnxruntime.RunOptions, `dtypes` translates its types, "tensor(float)" and so on. With `graphs`,
    recordings have `outputs`, all that the model gives: callers choose among them freely.
    """

    def __init__(
        self,
        session: Any,
        device: CudaDevice,
        make_options: Callable[[], Any],
        dtypes: Mapping[str, np.dtype[Any]],
        graphs: Graphs[Recording] | None = None,
        outputs: Sequence[str] = (),
    ) -> None:
        self._session = session
        self._device = device
        self._dtypes = dtypes
        self._options = make_options()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")  # the stream keeps the order
        self._graphs = graphs
        self._all = outputs

    def run(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        """The outputs as arrays of this batch alone. Raises what ONNX Runtime raises."""
        if self._graphs is None:
            return self._run_plain(tensors, outputs)
        arrays = {name: self._device.put(array) for name, array in tensors.items()}
        recording = None
        if all(array.nbytes for array in arrays.values()):  # the address of what is empty means nothing
            key = tuple([(name, array.dtype, array.shape) for name, array in arrays.items()])
            recording = self._graphs.find(key, lambda: self._record(arrays))
        if recording is not None:
            return self._replay(recording, arrays, outputs)
        results = self._run_plain(arrays, outputs)
        if not self._graphs:
            return results
        return {name: self._copy(self._empty(array), array) for name, array in results.items()}

    def _run_plain(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        binding = self._session.io_binding()
        arrays = {name: self._device.contiguous(self._device.put(array)) for name, array in tensors.items()}
        for name, array in arrays.items():
            self._bind(binding.bind_input, name, array)
        for name in outputs:
            binding.bind_output(name, "cuda", self._device.index)
        self._session.run_with_iobinding(binding, self._options)
        return {name: self._taken(value) for name, value in zip(outputs, binding.get_outputs(), strict=True)}

    def _replay(self, recording: Recording, arrays: Tensors, outputs: Sequence[str]) -> Tensors:
        for name, buffer in recording.inputs.items():
            self._copy(buffer, self._device.contiguous(arrays[name]))
        recording.graph.launch(self._device.stream)
        return {name: self._copy(self._empty(each), each) for name in outputs for each in (recording.outputs[name],)}

    def _record(self, arrays: Tensors) -> Recording:
        """Runs once more, from and to buffers of its own, before it is captured. Raises where it cannot be."""
        results = self._run_plain(arrays, self._all)
        if not all(array.nbytes for array in results.values()):
            raise ValueError("an output is empty")
        inputs, outputs = ({name: self._empty(each) for name, each in part.items()} for part in (arrays, results))
        del results
        binding = self._session.io_binding()
        for bind, buffers in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, buffer in buffers.items():
                self._bind(bind, name, buffer)
        for name, buffer in inputs.items():
            self._copy(buffer, self._device.contiguous(arrays[name]))
        run = functools.partial(self._session.run_with_iobinding, binding, self._options)
        run()
        try:
            return Recording(capture(self._device, run), inputs, outputs)
        except Exception:
            with contextlib.suppress(Exception):  # CUDA tells the failure once more, to whoever comes next
                run()
            raise

    def _bind(self, bind: Callable[..., None], name: str, array: Array) -> None:
        element = BF16_ELEMENT_TYPE if array.dtype == DTYPES["BF16"] else array.dtype
        bind(name, "cuda", self._device.index, element, array.shape, array.data.ptr)

    def _taken(self, value: Any) -> Array:
        """A result as an array on the same memory, which lives as long as the array."""
        xp, shape, dtype = self._device.xp, tuple(value.shape()), self._dtypes[value.data_type()]
        nbytes = dtype.itemsize * math.prod(shape)
        if not nbytes:
            return xp.ndarray(shape, dtype, xp.cuda.alloc(1))
        memory = xp.cuda.UnownedMemory(value.data_ptr(), nbytes, value, self._device.index)
        return xp.ndarray(shape, dtype, xp.cuda.MemoryPointer(memory, 0))

    def _empty(self, like: Array) -> Array:
        """New memory of the stream's own; made from an address, so that CuPy need not know the dtype."""
        xp = self._device.xp
        return xp.ndarray(like.shape, like.dtype, xp.cuda.alloc(max(1, like.nbytes)))

    def _copy(self, target: Array, source: Array) -> Array:
        runtime = self._device.xp.cuda.runtime
        if source.nbytes:
            runtime.memcpyAsync(
                target.data.ptr,
                source.data.ptr,
                source.nbytes,
                runtime.memcpyDeviceToDevice,
                self._device.stream_pointer,
            )
        return target
