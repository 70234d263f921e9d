"""inference.ModelInferRequest.inputs and raw_input_contents -> arrays on the host: raw contents, typed contents, or
shared memory.

Source: Triton's gRPC server; the texts are its own. Triton takes each integer datatype from one field only; the
protocol's own examples use others, so any integer field will do if its values fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tensorgate.adapters.json import texts
from tensorgate.adapters.open_inference.errors import shape_text
from tensorgate.adapters.open_inference.inputs import MAX_RANK, Declared, Inputs, elements_of
from tensorgate.adapters.open_inference.proto_parameters import region_of
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.errors import ErrorReason, InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, Array

_NO_DATATYPE: Final = np.dtype("V1")
"""Stands for a datatype that does not exist: no model declares it, so the mismatch is told in its turn."""
CONTENTS: Final[Mapping[str, str]] = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
"""A field of InferTensorContents -> the datatype of its values."""
_INTEGERS: Final = "iu"


class MessageInputs(Inputs):
    """Reads the inputs of one message, in their order."""

    def __init__(self, call: Call, model: str, raw: Sequence[Buffer]) -> None:
        super().__init__(call, model)
        self._raw: Iterator[Buffer] = iter(raw)
        self._has_raw = len(raw) > 0

    def read_messages(self, items: Sequence[Any]) -> None:
        """InferInputTensor messages -> `arrays`, by name. Raises InvalidArgument, NotFound."""
        for item in items:
            declared = _declared(item)
            self.check_new(declared.name)
            self.arrays[declared.name] = self._content(item, declared)
        if next(self._raw, None) is not None:  # Triton drops what is left over, and with it what a client has mixed up
            self.refuse_more()

    def _content(self, item: Any, declared: Declared) -> Array:
        where = f"'{declared.name}' for model '{self._model}'"
        has_contents = item.HasField("contents")
        region = region_of(item.parameters, declared.name) if item.parameters else None
        if region is not None:
            if has_contents:
                raise InvalidArgument(
                    f"unexpected 'content' provided when using shared memory for input tensor {where}"
                )
            memory = self.memory(*region)
            return _stand_in(declared) if declared.dtype == _NO_DATATYPE else self.from_memory(memory, declared)
        if has_contents:
            if self._has_raw:
                raise InvalidArgument(f"contents field must not be specified when using raw_input_contents for {where}")
            return self._from_contents(item.contents, declared)
        data = next(self._raw, None)
        if data is None:
            raise InvalidArgument(f"unable to find data for input tensor {where} in request.")
        return _stand_in(declared) if declared.dtype == _NO_DATATYPE else self.from_raw(memoryview(data), declared)

    def _from_contents(self, contents: Any, declared: Declared) -> Array:
        if declared.dtype == _NO_DATATYPE:
            return _stand_in(declared)
        fields = contents.ListFields()
        if len(fields) > 1:
            raise InvalidArgument(f"{self._unexpected(declared)}, binary data was already supplied.")
        values: Sequence[Any] = ()
        dtype = declared.dtype
        if fields:
            ((field, values),) = fields
            dtype = self._dtype_of(field.name, declared)
        return self._strings(values, declared) if dtype == BYTES else self._numbers(values, dtype, declared)

    def _dtype_of(self, field: str, declared: Declared) -> np.dtype[Any]:
        """Of a field's values, which must be that of the input, or an integer where that is one."""
        dtype = DTYPES[CONTENTS[field]]
        if dtype != declared.dtype and not (dtype.kind in _INTEGERS and declared.dtype.kind in _INTEGERS):
            raise InvalidArgument(
                f"{self._unexpected(declared)} of type '{CONTENTS[field]}', "
                f"expected datatype '{DATATYPES[declared.dtype]}'"
            )
        return dtype

    def _numbers(self, values: Sequence[Any], dtype: np.dtype[Any], declared: Declared) -> Array:
        """Values of a field, which are of this dtype, as the input's."""
        count, itemsize = declared.elements, declared.dtype.itemsize
        if len(values) != count:
            return self._missized(declared, count * itemsize, len(values) * itemsize)
        if not count:
            return np.empty(declared.shape, declared.dtype)
        array = np.array(values, dtype)
        if dtype != declared.dtype:
            self._check_range(array, declared)
        return array.astype(declared.dtype, copy=False).reshape(declared.shape)

    def _check_range(self, array: Array, declared: Declared) -> None:
        limits = np.iinfo(declared.dtype)
        for extreme in (int(array.min()), int(array.max())):
            if not limits.min <= extreme <= limits.max:
                raise InvalidArgument(
                    f"{self._unexpected(declared)}: {extreme} is out of range for {DATATYPES[declared.dtype]}"
                )

    def _strings(self, values: Sequence[bytes], declared: Declared) -> Array:
        if len(values) != declared.elements:
            return self._miscounted(declared, len(values))
        return texts.array_of(values).reshape(declared.shape)

    def _unexpected(self, declared: Declared) -> str:
        return f"unexpected explicit tensor data for input tensor '{declared.name}' for model '{self._model}'"


def _declared(item: Any) -> Declared:
    name, sizes = item.name, item.shape
    dtype = DTYPES.get(item.datatype, _NO_DATATYPE)
    shape = tuple(sizes[: MAX_RANK + 1])
    if shape and min(shape) < 0:
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {shape_text(shape)} has a negative dimension", ErrorReason.SHAPE
        )
    return Declared(name, dtype, shape, elements_of(name, dtype, shape))


def _stand_in(declared: Declared) -> Array:
    return np.broadcast_to(np.zeros((), declared.dtype), declared.shape)
