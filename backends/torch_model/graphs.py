"""Runs recorded as CUDA graphs: one launch for all of a model's kernels, which small batches spend their time on.

A graph runs on the memory that it was recorded with. So inputs are copied into that, and outputs out of it: the next
run writes there again, while what this one gave may still be on its way to the host.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorgate.backends.torch_model.names import leaves

log = logging.getLogger(__name__)

_MAX_GRAPHS: Final = 32
_RUNS_BEFORE: Final = 3  # libraries choose their kernels and take their memory, which a recording must not see
_recording: Final = threading.Lock()  # of all that a process does on its GPUs, one thing may be recorded at a time

Call = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    graph: Any
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class CudaGraphs:
    """A program's call, recorded once for each combination of shapes; those used last are kept.

    Called on the stream on which it records, by one thread at a time. What cannot be recorded runs as it would without.
    """

    def __init__(self, torch: Any, call: Call, model: str) -> None:
        self._torch = torch
        self._call = call
        self._model = model
        self._graphs: OrderedDict[tuple[Any, ...], _Graph | None] = OrderedDict()
        self._pool = torch.cuda.graph_pool_handle()

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """The program's results, as a mapping by their own names."""
        key = tuple([(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()])
        if key not in self._graphs:
            self._graphs[key] = self._record(tensors)
            if len(self._graphs) > _MAX_GRAPHS:
                self._torch.cuda.current_stream().synchronize()  # it may still be running
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        found = self._graphs[key]
        if found is None:
            return self._call(tensors)
        for name, tensor in tensors.items():
            found.inputs[name].copy_(tensor)
        found.graph.replay()
        return {name: tensor.clone() for name, tensor in found.outputs.items()}

    def _record(self, tensors: Mapping[str, Any]) -> _Graph | None:
        """None where the program waits for the GPU, or does something else that no recording can hold."""
        torch = self._torch
        stream = torch.cuda.current_stream()
        inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        for _ in range(_RUNS_BEFORE):
            self._call(inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            with _recording, torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
                outputs = dict(leaves(self._call(inputs)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            log.warning("model %s cannot be recorded as a CUDA graph: %s", self._model, str(error).partition("\n")[0])
            return None
        return _Graph(graph, inputs, outputs)
