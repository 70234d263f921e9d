"""The functions of a SavedModel on a GPU: CuPy arrays go in and come out by DLPack, which copies nothing.

TensorFlow orders its work on streams of its own, so both hand-overs wait: for the instance's stream before the call,
for the whole GPU after it. Text goes by the host, since no GPU holds it. Memory that begins where TensorFlow's may not,
with which its kernels would end the process, is copied on the device first.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tensorgate.backends.execution.device import CudaDevice, Device
from tensorgate.backends.saved_model.failures import public_error
from tensorgate.backends.saved_model.host import host_array
from tensorgate.backends.saved_model.ranks import operations_of
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Array, Tensors

_ALIGNMENT: Final = 64  # EIGEN_MAX_ALIGN_BYTES


class DeviceFunctions:
    """The model as eager Python functions on one device, `place` as TensorFlow calls it: "GPU:0".

    `definitions` are the model's SignatureDefs, `operations` what its graph is made of. Raises what TensorFlow raises.
    """

    def __init__(self, tensorflow: Any, path: Path, tags: Sequence[str], device: Device, place: str) -> None:
        self._tensorflow = tensorflow
        self._device = device
        self._place = place
        self._by_host = (
            (BYTES,) if isinstance(device, CudaDevice) else (BYTES, DTYPES["BF16"])
        )  # NumPy does not export it
        with tensorflow.device(place):
            self._loaded = tensorflow.saved_model.load(str(path), tags=list(tags))
        loader = importlib.import_module("tensorflow.python.saved_model.loader_impl")
        graphs = loader.parse_saved_model(str(path)).meta_graphs
        (graph,) = [graph for graph in graphs if set(graph.meta_info_def.tags) == set(tags)]
        self.definitions: Mapping[str, Any] = dict(graph.signature_def)
        self.operations = operations_of(graph)

    def run(self, name: str, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        """Call the function of a signature: its inputs by their keys -> these outputs by theirs."""
        ready = {key: self._ready(array) for key, array in tensors.items()}
        self._device.finish()
        try:
            with self._tensorflow.device(self._place):
                results = self._loaded.signatures[name](**{key: self._given(array) for key, array in ready.items()})
        except Exception as error:
            raise public_error(error) from error
        self._device.finish_all()  # also what nobody asked for must have read its inputs before they are freed
        return {key: self._taken(results[key]) for key in outputs}

    def close(self) -> None:
        """The variables go with the functions, once nothing refers to those."""
        del self._loaded

    def _ready(self, array: Array) -> Array:
        """As TensorFlow may have it, once the instance's stream has come so far."""
        if array.dtype in self._by_host:
            return array
        array = self._device.xp.ascontiguousarray(array).reshape(array.shape)  # the first makes a vector of a scalar
        return array.copy() if _address(array) % _ALIGNMENT else array

    def _given(self, array: Array) -> Any:
        if array.dtype in self._by_host or _address(array) % _ALIGNMENT:  # NumPy begins its memory anywhere
            return self._tensorflow.constant(array)
        return self._tensorflow.experimental.dlpack.from_dlpack(array.__dlpack__())

    def _taken(self, tensor: Any) -> Array:
        """TensorFlow keeps some results on the host: shapes, small integers, text."""
        if tensor.dtype.as_numpy_dtype in self._by_host or not tensor.device.endswith(self._place):
            return self._device.put(host_array(tensor.numpy()))
        return self._device.xp.from_dlpack(Export(tensor))


class Export:
    """A tensor that is ready, as DLPack's protocol wants it: TensorFlow's own refuses the stream that CuPy names."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **wanted: Any) -> Any:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._tensor.__dlpack_device__()
        return device


def _address(array: Array) -> int:
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])
