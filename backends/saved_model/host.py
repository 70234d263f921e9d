"""The functions of a SavedModel on the CPU, as TensorFlow Serving itself runs them: a session over the graph.

A callable of the session, made once for a function and the outputs that are wanted of it, costs a few microseconds per
call; the same function as eager Python calls it costs thirty times that. NumPy arrays go in and come out, and of a
graph that is not one function only what the wanted outputs need is computed.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tensorgate.backends.saved_model.failures import public_error
from tensorgate.backends.saved_model.ranks import operations_of
from tensorgate.gateway.contract.tensor import BYTES, Array, Tensors

_MAX_CALLABLES: Final = 64  # callers choose outputs freely, and each choice is a graph of its own
_CALLING_THREAD: Final = -1  # RunOptions.inter_op_thread_pool

Run = Callable[..., list[Any]]
Key = tuple[str, tuple[str, ...]]


class HostFunctions:
    """One session with its own copy of the variables. Several threads may run it at once.

    `definitions` are the model's SignatureDefs, `operations` what its graph is made of. Raises what TensorFlow raises.
    """

    def __init__(self, tensorflow: Any, path: Path, tags: Sequence[str], intra: int, inter: int) -> None:
        v1 = tensorflow.compat.v1
        config = v1.ConfigProto(
            device_count={"GPU": 0},
            allow_soft_placement=True,
            intra_op_parallelism_threads=intra,
            inter_op_parallelism_threads=0 if inter == 1 else inter,  # who needs none leaves them to others
        )
        messages = importlib.import_module("tensorflow.core.protobuf.config_pb2")
        self._options = messages.CallableOptions
        self._run_options = messages.RunOptions(inter_op_thread_pool=_CALLING_THREAD if inter == 1 else 0)
        self._callables: OrderedDict[Key, tuple[Run, list[str]]] = OrderedDict()
        self._lock = threading.Lock()
        graph = tensorflow.Graph()
        with graph.as_default():
            self._session = v1.Session(graph=graph, config=config)
            try:
                loaded = v1.saved_model.load(self._session, list(tags), str(path))
            except BaseException:
                self._session.close()
                raise
        self.definitions: Mapping[str, Any] = dict(loaded.signature_def)
        self.operations = operations_of(loaded)

    def run(self, name: str, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        """Call the function of a signature: its inputs by their keys -> these outputs by theirs."""
        try:
            call, inputs = self._callable(name, tuple(outputs))
            results = call(*[tensors[key] for key in inputs])
        except Exception as error:
            raise public_error(error) from error
        return {key: host_array(result) for key, result in zip(outputs, results, strict=True)}

    def close(self) -> None:
        """The variables go with the session, once nothing refers to it."""
        self._callables.clear()
        self._session.close()
        del self._session

    def _callable(self, name: str, outputs: tuple[str, ...]) -> tuple[Run, list[str]]:
        key = (name, outputs)
        with self._lock:
            found = self._callables.get(key)
            if found is None:
                found = self._callables[key] = self._make(name, outputs)
                if len(self._callables) > _MAX_CALLABLES:
                    self._callables.popitem(last=False)
            else:
                self._callables.move_to_end(key)
            return found

    def _make(self, name: str, outputs: tuple[str, ...]) -> tuple[Run, list[str]]:
        """TensorFlow cuts the graph down to what is needed, and optimizes it: milliseconds, or seconds for a large
        one.
        """
        definition = self.definitions[name]
        inputs = sorted(definition.inputs)
        options = self._options(
            feed=[definition.inputs[key].name for key in inputs],
            fetch=[definition.outputs[key].name for key in outputs],
            run_options=self._run_options,
        )
        return self._session._make_callable_from_options(options), inputs  # public ones take several times as long


def host_array(result: Any) -> Array:
    """What TensorFlow gives, as an array: its scalars come as NumPy's, and a scalar of text as bytes."""
    if isinstance(result, np.ndarray):
        return result
    return np.array(result, BYTES if isinstance(result, bytes) else None)
