"""Arrays <-> torch's tensors over the same memory: NumPy's on the host, CuPy's by DLPack on a GPU.

DLPack orders both libraries' work on the stream that both of them run on, so nothing waits. What one of them does not
know (BF16, unsigned integers, BOOL) goes as integers of its size, which costs nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tensorgate.backends.execution.device import CudaDevice, Device
from tensorgate.gateway.contract.errors import ModelFailed
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Array, TensorSpec

_TORCH_NAMES: Final = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
_CARRIERS: Final = {"BOOL": "uint8", "UINT16": "int16", "UINT32": "int32", "UINT64": "int64", "BF16": "int16"}


class TensorBridge:
    """What goes in and comes out of torch on one device."""

    def __init__(self, torch: Any, device: Device) -> None:
        self._torch = torch
        self._device = device
        self.place = torch.device("cuda", device.index) if isinstance(device, CudaDevice) else torch.device("cpu")
        self._on_host = self.place.type == "cpu"
        self.dtypes = {DTYPES[name]: getattr(torch, own) for name, own in _TORCH_NAMES.items()}
        self._datatypes = {own: dtype for dtype, own in self.dtypes.items()}
        self._carriers = {
            DTYPES[name]: (np.dtype(carrier), getattr(torch, carrier)) for name, carrier in _CARRIERS.items()
        }

    def dtype_of(self, tensor: Any) -> np.dtype[Any]:
        """Raises ValueError for what no dialect can carry."""
        if tensor.dtype not in self._datatypes:
            raise ValueError(f"{str(tensor.dtype).removeprefix('torch.')}, which no dialect can carry")
        return self._datatypes[tensor.dtype]

    def given(self, array: Array, *, copy: bool) -> Any:
        """A tensor over the array's memory, or over a copy, for a program that writes to it."""
        if not array.size:
            return self._torch.empty(array.shape, dtype=self.dtypes[array.dtype], device=self.place)
        if not array.flags.c_contiguous or (self._on_host and not array.flags.aligned):
            array, copy = array.copy(), False
        own = self.dtypes[array.dtype]
        carrier = self._carriers.get(array.dtype)
        if carrier is not None:
            array = array.view(carrier[0])
        tensor = self._torch.from_numpy(array) if self._on_host else self._torch.from_dlpack(array)
        if carrier is not None:
            tensor = tensor.view(own)
        return tensor.clone() if copy else tensor

    def taken(self, spec: TensorSpec, tensor: Any) -> Array:
        """An array over the tensor's memory. Raises ModelFailed where it is not what is declared."""
        if not isinstance(tensor, self._torch.Tensor):
            raise ModelFailed(f"output '{spec.name}' is no tensor, but {type(tensor).__name__}")
        if tensor.dtype is not self.dtypes[spec.dtype]:
            name = str(tensor.dtype).removeprefix("torch.")
            raise ModelFailed(f"output '{spec.name}' is {name}, but {spec.datatype} is declared")
        tensor = tensor.detach()
        if tensor.device != self.place:
            tensor = tensor.to(self.place)
        tensor = tensor.contiguous()
        shape = tuple(tensor.shape)
        if not tensor.numel():
            return self._device.xp.empty(shape, spec.dtype)
        carrier = self._carriers.get(spec.dtype)
        if carrier is not None:
            tensor = tensor.view(carrier[1])
        array = tensor.numpy() if self._on_host else self._device.xp.from_dlpack(tensor)
        return array if carrier is None else array.view(spec.dtype)


def check_specs(specs: tuple[TensorSpec, ...]) -> None:
    """Raises ValueError for text, which torch does not have."""
    for spec in specs:
        if spec.dtype == BYTES:
            raise ValueError(f"'{spec.name}' is BYTES, but a tensor of torch has no text: decode it in a step before")
