"""A program's call as a CUDA graph: see execution/graphs.py. torch captures, since its allocator has to know: memory of
recordings is a pool of its own, which nothing else is given from.

A graph runs on the memory that it was recorded with. So inputs are copied into that, and outputs out of it: the next
run writes there again, while what this one gave may still be on its way to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorgate.backends.execution.device import CudaDevice
from tensorgate.backends.execution.graphs import Graphs
from tensorgate.backends.torch_model.names import leaves

Call = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    graph: Any
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class CudaGraphs:
    """A program's call, recorded for each combination of shapes. Called on the stream on which it records, under the
    device's lock. What cannot be recorded runs as it would without.
    """

    def __init__(self, torch: Any, call: Call, model: str, device: CudaDevice) -> None:
        self._torch = torch
        self._call = call
        self.graphs: Graphs[_Graph] = Graphs(model, device)
        self._pool = torch.cuda.graph_pool_handle()

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """The program's results, as a mapping by their own names."""
        key = tuple([(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()])
        found = self.graphs.find(key, lambda: self._record(tensors))
        if found is None:
            return self._call(tensors)
        for name, tensor in tensors.items():
            found.inputs[name].copy_(tensor)
        found.graph.replay()
        return {name: tensor.clone() for name, tensor in found.outputs.items()}

    def _record(self, tensors: Mapping[str, Any]) -> _Graph:
        """Raises where the program waits for the GPU, or does something else that no recording can hold."""
        torch = self._torch
        inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self._pool, torch.cuda.current_stream(), capture_error_mode="thread_local"):
            outputs = dict(leaves(self._call(inputs)))
        return _Graph(graph, inputs, outputs)
