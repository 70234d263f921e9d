"""pb_utils.Tensor"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgate.backends.triton_python import dlpack
from tensorgate.backends.triton_python.datatypes import as_bytes, is_text, numpy_to_triton_type
from tensorgate.backends.triton_python.errors import TritonModelException
from tensorgate.gateway.contract.tensor import Array


class TritonTensor:
    """A named array. Inputs are on the host; what `from_dlpack` takes may be on a GPU.

    Unlike Triton's, a BF16 tensor has an `as_numpy()` too: an array of ml_dtypes.bfloat16.
    """

    __slots__ = ("_array", "_foreign", "_name")

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a tensor's name is text, not {type(name).__name__}")
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"Tensor '{name}' is made of a NumPy array, not of {type(numpy_array).__name__}")
        numpy_to_triton_type(numpy_array.dtype.newbyteorder("="))
        self._name = name
        self._array: Array = numpy_array
        self._foreign = False

    @classmethod
    def holding(cls, name: str, array: Array, *, foreign: bool = True) -> TritonTensor:
        """A tensor over this array. A `foreign` one is copied when the model looks at it, unless it is nobody's."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = array
        tensor._foreign = foreign
        return tensor

    @classmethod
    def input(cls, name: str, array: Array) -> TritonTensor:
        """A caller's tensor, on the host wherever it was."""
        return cls.holding(name, array if isinstance(array, np.ndarray) else array.get())

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        """The array, which the model may write to."""
        if not self.is_cpu():
            raise TypeError(f"Tensor '{self._name}' is stored in GPU and cannot be converted to NumPy.")
        if self._foreign:
            if not (self._array.flags.writeable and self._array.flags.owndata):
                self._array = self._array.copy()
            self._foreign = False
        return self._array

    def owned(self) -> Array:
        """A copy on the host, in C order: the tensor's memory may change at once."""
        array = self._array if self.is_cpu() else self._array.get()
        if is_text(array.dtype):
            return as_bytes(array)
        return np.array(array, array.dtype.newbyteorder("="), order="C", copy=True)

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        return numpy_to_triton_type(self._array.dtype.newbyteorder("="))

    def is_cpu(self) -> bool:
        return isinstance(self._array, np.ndarray)

    def to_dlpack(self) -> Any:
        """A capsule over this tensor's memory."""
        return dlpack.to_capsule(self.as_numpy()) if self.is_cpu() else self._array.toDlpack()

    def __dlpack__(self, *, stream: Any = None, **wishes: Any) -> Any:
        return dlpack.to_capsule(self.as_numpy()) if self.is_cpu() else self._array.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU if self.is_cpu() else self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(name: str, dlpack_tensor: Any) -> TritonTensor:
        """A tensor over another framework's memory: of a capsule, or of what can make one.

        Raises TritonModelException for anything else.
        """
        try:
            array = dlpack.from_anything(dlpack_tensor)
        except ValueError as error:
            raise TritonModelException(f"no DLPack tensor: {error}") from None
        numpy_to_triton_type(array.dtype)
        return TritonTensor.holding(name, array, foreign=False)
