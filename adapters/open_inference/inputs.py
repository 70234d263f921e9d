"""The `inputs` of Open Inference V2's infer, in JSON and as raw bytes -> arrays on the host: what each declares, and
its data.

What a message can only get wrong against the model's own declarations is told after everything else has been looked
at: such complaints wait in `Inputs.late`, and a stand-in array of the declared dtype and shape takes the data's place.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.cuts import Cuts
from tensorgate.adapters.open_inference import raw
from tensorgate.adapters.open_inference.errors import shape_text, with_id
from tensorgate.adapters.open_inference.parameters import WRONG_TYPE, array, fields_of, member, text, unsigned
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, InvalidArgument
from tensorgate.gateway.contract.memory import Memory
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, Array

_INT64_MAX: Final = 2**63 - 1
_EMPTY: Final = memoryview(b"")
MAX_RANK: Final = 64
"""NumPy's."""
_INDEX_BYTES: Final = 4
_QUICK_BYTES: Final = 1 << 20
"""More than that is not copied out of shared memory on the event loop."""
_WRONG_LEAF: Final = {
    "b": WRONG_TYPE["boolean"],
    "u": WRONG_TYPE["unsigned"],
    "i": WRONG_TYPE["signed"],
    "f": WRONG_TYPE["double"],
    "O": f"Unable to parse JSON bytes array: {WRONG_TYPE['string']}",
}
_SOURCES: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)


class Declared(NamedTuple):
    """What an input says of itself; `elements` is their number."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    elements: int


class Inputs:
    """Reads the inputs of one request, in the order of the message. `in_memory`: a tensor of it, in or out, lies in
    shared memory.
    """

    in_memory = False
    _copied = 0

    def __init__(self, call: Call, model: str, cuts: Cuts | None = None) -> None:
        """`cuts` has the arrays that were cut out of the message."""
        self.arrays: dict[str, Array] = {}
        self.late: list[GatewayError] = []
        self._call = call
        self._model = model
        self._cuts = cuts
        self._tail = _EMPTY

    def read(self, items: Any, tail: memoryview = _EMPTY) -> None:
        """A JSON array of inputs, and the binary data behind the JSON -> `arrays`, by name.

        Raises InvalidArgument, RegionNotFound, RegionRange, MustOffload.
        """
        self._tail = tail
        for item in items:
            fields = fields_of(item)
            source = _source(item, fields)
            declared = _declared(item, fields)
            self.check_new(declared.name)
            self.arrays[declared.name] = self._data(item, source, declared)
        if self._tail:
            self.refuse_more()

    def check_new(self, name: str) -> None:
        """Raises InvalidArgument if an input of that name has been read."""
        if name in self.arrays:
            raise InvalidArgument(with_id(self._call, f"input '{name}' already exists in request"))

    def check_new_output(self, name: str, outputs: Container[str]) -> None:
        """Raises InvalidArgument if that output is one of these, which were requested before."""
        if name in outputs:
            raise InvalidArgument(with_id(self._call, f"output '{name}' already exists in request"))

    def refuse_more(self) -> NoReturn:
        """There is data that belongs to no input."""
        raise InvalidArgument(f"unexpected additional input data for model '{self._model}'")

    def _data(self, item: Any, source: str, declared: Declared) -> Array:
        if source == "data":
            return self._from_member(item, declared)
        if source == "binary_data_size":
            size = unsigned(item["parameters"][source], f"Unable to parse '{source}'")
            return self.from_raw(self._take(size, declared.name), declared)
        parameters = item["parameters"]
        return self.from_memory(self.memory_named(parameters, fields_of(parameters)), declared)

    def _take(self, size: int, name: str) -> memoryview:
        """The next `size` bytes of the tail."""
        missing = size - len(self._tail)
        if missing > 0:
            raise InvalidArgument(
                f"unexpected size for input '{name}', expecting {missing} additional bytes for model '{self._model}'",
                ErrorReason.SHAPE,
            )
        data, self._tail = self._tail[:size], self._tail[size:]
        return data

    def from_raw(self, data: memoryview, declared: Declared) -> Array:
        """Raw bytes -> array; what is wrong with them waits in `late`."""
        name, dtype, shape, count = declared
        try:
            if dtype == BYTES:
                return raw.strings_of(data, shape, count, name, self._model)
            return raw.numbers_of(data, dtype, shape, count)
        except raw.WrongSize as error:
            return self._missized(declared, error.want, error.got)
        except raw.WrongCount as error:
            return self._miscounted(declared, error.got)
        except InvalidArgument as error:
            return self._postpone(error, declared)
        except raw.CutLength as error:
            return self._postpone(InvalidArgument(with_id(self._call, str(error))), declared)

    def from_memory(self, memory: Memory, declared: Declared) -> Array:
        """Shared memory -> array: a view, on the GPU if the memory is there. Others may change it at any time.

        What is looked at more than once must not change: BYTES are copied before they are read, and so are integers of
        four bytes and more, which a model takes for counts, shapes and indices. Raises MustOffload on the event loop
        if there is much to copy.
        """
        name, dtype, shape, count = declared
        size = memory.nbytes
        if dtype == BYTES:
            self._copy(size)
            if self._copied > self._call.max_body_bytes:
                raise InvalidArgument(
                    f"input '{name}' makes more than {self._call.max_body_bytes} bytes of text in shared memory"
                )
            return self.from_raw(memoryview(memory.tobytes()), declared)
        if size != count * dtype.itemsize:
            return self._missized(declared, count * dtype.itemsize, size)
        are_indices = dtype.kind in "iu" and dtype.itemsize >= _INDEX_BYTES
        if not isinstance(memory, memoryview):
            return memory.array(dtype, shape, copy=are_indices) if count else np.empty(shape, dtype)
        if dtype.kind == "b":
            self._copy(size)
        elif are_indices:
            self._copy(size)
            memory = memoryview(memory.tobytes())
        return self.from_raw(memory, declared)

    def memory_named(self, parameters: Any, given: list[str], *, writable: bool = False) -> Memory:
        """What the parameters of an input or output name; `given` are their keys.

        Raises InvalidArgument, RegionNotFound, RegionRange.
        """
        name = text(parameters["shared_memory_region"], "Unable to parse 'shared_memory_region'")
        offset, size = (
            unsigned(parameters[key], f"Unable to parse '{key}'") if key in given else 0
            for key in ("shared_memory_offset", "shared_memory_byte_size")
        )
        return self.memory(name, offset, size, writable=writable)

    def memory(self, region: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        """A part of a region that this request names. Raises RegionNotFound, RegionRange."""
        self.in_memory = True
        return self._call.regions.view(region, offset, byte_size, writable=writable)

    def _copy(self, size: int) -> None:
        """Count what is copied out of shared memory."""
        self._copied += size
        if self._copied > _QUICK_BYTES and not self._call.in_thread:
            raise MustOffload

    def _from_member(self, item: Any, declared: Declared) -> Array:
        """Of an empty tensor, data is not looked at."""
        if not declared.elements:
            return np.empty(declared.shape, declared.dtype)
        return self.from_json(array(item["data"], "Unable to parse 'data'"), declared)

    def from_json(self, data: Any, declared: Declared) -> Array:
        """A JSON array -> array; strings of the wrong number are told of in `late`. Raises InvalidArgument."""
        _, dtype, shape, count = declared
        self._check_json_can_carry(declared)
        cut = None if self._cuts is None else self._cuts.numbers(data, dtype)
        flat = _leaves(data, dtype) if cut is None else cut
        if flat.size == count:
            return flat.reshape(shape)
        if dtype == BYTES:
            return self._miscounted(declared, flat.size)
        raise InvalidArgument(
            "Unable to parse 'data': Shape does not match true shape of 'data' field", ErrorReason.SHAPE
        )

    def _check_json_can_carry(self, declared: Declared) -> None:
        name, dtype, _, count = declared
        if dtype.itemsize == 2 and dtype.kind not in "iu":
            raise InvalidArgument(
                f"receiving {DATATYPES[dtype]} data via JSON is not supported. "
                f"Please use the binary data format for input {name}",
                ErrorReason.DTYPE,
            )
        size, limit = count * dtype.itemsize, self._call.max_body_bytes
        if size > limit and dtype != BYTES:
            raise InvalidArgument(
                f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
                f"{limit} bytes. Use --http-max-input-size to increase the limit.",
                ErrorReason.TOO_LARGE,
            )

    def _missized(self, declared: Declared, want: int, got: int) -> Array:
        where = f"for input '{declared.name}' for model '{self._model}'"
        complaint = f"input byte size mismatch {where}. Expected {want}, got {got}"
        return self._postpone(InvalidArgument(with_id(self._call, complaint), ErrorReason.SHAPE), declared)

    def _miscounted(self, declared: Declared, got: int) -> Array:
        """Strings are counted when all else about the request is known to be right."""
        where = f"for inference input '{declared.name}' for model '{self._model}'"
        if got < declared.elements:
            complaint = f"expected {declared.elements} string elements {where}, got {got}"
        else:
            complaint = f"unexpected number of string elements {got} {where}, expecting {declared.elements}"
        return self._postpone(InvalidArgument(with_id(self._call, complaint), ErrorReason.SHAPE), declared)

    def _postpone(self, complaint: GatewayError, declared: Declared) -> Array:
        self.late.append(complaint)
        return np.broadcast_to(np.zeros((), declared.dtype), declared.shape)


def _source(item: Any, fields: list[str]) -> str:
    """Where an input's data is: exactly one of three places."""
    parameters = fields_of(item["parameters"]) if "parameters" in fields else []
    places = ["data"] if "data" in fields else []
    places += [place for place in ("binary_data_size", "shared_memory_region") if place in parameters]
    if len(places) != 1:
        found = "".join(f" '{place}'" for place in places)
        raise InvalidArgument(f"{_SOURCES} set{found}" if found else f"{_SOURCES} no field is set")
    return places[0]


def _declared(item: Any, fields: list[str]) -> Declared:
    name = text(member(item, fields, "name"), "Unable to parse 'name'")
    datatype = text(member(item, fields, "datatype"), "Unable to parse 'datatype'")
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise InvalidArgument(f"invalid datatype for input {name}", ErrorReason.DTYPE)
    shape = tuple(array(member(item, fields, "shape"), "Unable to parse 'shape'"))
    for size in shape:
        if type(size) is not int or size < 0:
            unsigned(size, "Unable to parse 'shape'")
    return Declared(name, dtype, shape, elements_of(name, dtype, shape))


def elements_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """The number of elements of a claimed shape, in Python's integers, before anything is allocated for it."""
    problem = f"invalid shape for input '{name}': shape"
    if len(shape) > MAX_RANK:
        raise InvalidArgument(
            f"{problem} has {len(shape)} dimensions, at most {MAX_RANK} are possible", ErrorReason.SHAPE
        )
    count = math.prod(shape)
    extent = count or math.prod([size for size in shape if size])
    if extent > _INT64_MAX:
        raise InvalidArgument(
            f"{problem} {shape_text(shape)} causes total element count to exceed maximum size of {_INT64_MAX}",
            ErrorReason.SHAPE,
        )
    if extent * dtype.itemsize > _INT64_MAX:
        raise InvalidArgument(
            f"byte size overflow for input '{name}': {extent} elements of {dtype.itemsize} bytes exceed {_INT64_MAX}",
            ErrorReason.SHAPE,
        )
    return count


def _leaves(data: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        return json_body.numbers(data, dtype)
    except json_body.OutOfRange as error:
        if dtype.itemsize < 8 and (error.leaf >= 0 or dtype.kind == "i"):
            problem = f"{error.leaf} is out of range for {DATATYPES[dtype]}"
        else:
            problem = _WRONG_LEAF[dtype.kind]
    except json_body.WrongLeaf:
        problem = _WRONG_LEAF[dtype.kind]
    raise InvalidArgument(problem if dtype == BYTES else f"Unable to parse 'data': {problem}", ErrorReason.DTYPE)
