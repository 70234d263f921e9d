"""JSON values of TensorFlow Serving's REST API -> arrays of the dtype that a signature says.

Two ways through the same values. The fast one hands whole arrays to `json_body.rectangle`, which takes digits straight
into NumPy. Where it refuses, the exact one walks value by value in the order of the original, which gives base64 and
mixed strings their bytes, and every objection its words.

The shape is the nesting along first elements, and is not compared with the declared one: only the model may refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import pybase64

from tensorgate.adapters.json.body import ARRAY, OBJECT, Ragged, WrongLeaf, as_double, first_branch, length, rectangle
from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.tf_serving.data_types import TYPE_NAMES
from tensorgate.adapters.tf_serving.json_text import show, utf8
from tensorgate.gateway.contract.canonical import InferResponse
from tensorgate.gateway.contract.errors import EncodingFailed, ErrorReason, InvalidArgument, Unsupported
from tensorgate.gateway.contract.tensor import BYTES, DTYPES

Tensor: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]

MAX_RANK: Final = 64  # NumPy's; the original stops at 254

WITHOUT_JSON: Final = frozenset({DTYPES["FP16"], DTYPES["BF16"], DTYPES["UINT16"]})
"""Dtypes that no JSON value becomes, and that no JSON value is made of."""

_LITERALS: Final = {DTYPES[name]: DTYPES["INT32"] for name in ("INT8", "UINT8", "INT16")}
"""Dtypes whose literals are read as another and then cut to their width: 300 as INT8 is 44, as in the original."""

READ_AS_THEY_ARE: Final = frozenset(
    {dtype for dtype in TYPE_NAMES if dtype.kind in "fiu"} - WITHOUT_JSON - _LITERALS.keys()
)
"""Dtypes whose values are the numbers that JSON says, each within its range or refused."""

_WHITE_SPACE: Final = re.compile(r"[ \t\n\v\f\r]+")


def output_of(response: InferResponse, name: str) -> Tensor:
    """A model may leave an output out; here every output of the signature has its place. Raises EncodingFailed."""
    tensor: Tensor | None = response.outputs.get(name)
    if tensor is None:
        raise EncodingFailed(f"The model gave no output {name}")
    return tensor


class RankTooLarge(InvalidArgument):
    """The original notices it last, when the tensor is whole, so its words stand alone."""

    error_reason = ErrorReason.SHAPE


def is_base64(value: Any) -> bool:
    """Whether a value is {"b64": "..."}: one key, of that name, a string. Any other object is a map of names."""
    # Asked for a key that is absent, simdjson raises an error inside: ten times the cost of reading the keys.
    return isinstance(value, OBJECT) and len(value) == 1 and [*value] == ["b64"] and isinstance(value["b64"], str)


def is_map(value: Any) -> bool:
    """Whether a value maps names of inputs."""
    return isinstance(value, OBJECT) and not is_base64(value)


def read_array(array: Any, dtype: np.dtype[Any], body: bytes) -> Tensor | None:
    """The fast way: a nested array -> array on the host, None where only the exact way can tell.

    `body` is the text that the array is part of; it is looked through once, so hand it over for few arrays only.
    """
    if dtype in WITHOUT_JSON:
        return None
    literal = _LITERALS.get(dtype, dtype)
    try:
        tensor = rectangle(array, literal, body)
    except (Ragged, WrongLeaf, ValueError):  # ValueError: more dimensions than NumPy has
        return None
    return tensor if literal is dtype else tensor.astype(dtype)


def read_tensor(name: str, value: Any, dtype: np.dtype[Any], body: bytes) -> Tensor:
    """A value, list or nested list -> array on the host, of rank 0 for a value."""
    tensor = read_array(value, dtype, body) if isinstance(value, ARRAY) else None
    if tensor is not None:
        return tensor
    shape, leaves = walk(name, value, dtype)
    return make_tensor(leaves, shape, dtype)


def walk(name: str, value: Any, dtype: np.dtype[Any]) -> tuple[Shape, list[Any]]:
    """The exact way: shape, and leaves in row-major order as Python values that `make_tensor` takes.

    Raises InvalidArgument, or Unsupported for a dtype that JSON cannot carry.
    """
    take = _TAKERS[dtype]
    if not isinstance(value, ARRAY):
        return (), [take(value)]
    shape = first_branch(value)
    if len(shape) > MAX_RANK:
        raise RankTooLarge(f"tensor parsing error: {name}")
    leaves: list[Any] = []
    _gather(value, 0, shape, take, leaves)
    return shape, leaves


def _gather(value: Any, level: int, shape: Shape, take: Callable[[Any], Any], leaves: list[Any]) -> None:
    """Add the leaves below a value that stands `level` lists deep. Source: the order of the original's checks."""
    if not isinstance(value, ARRAY):
        if level != len(shape):
            raise InvalidArgument(
                f"JSON Value: {show(value)} found at incorrect level: {level + 1} in the JSON DOM."
                f" Expected at level: {len(shape)}"
            )
        leaves.append(take(value))
        return
    if level >= len(shape):
        raise InvalidArgument(
            f"Encountered list at unexpected level: {level} expected < {len(shape)}", ErrorReason.SHAPE
        )
    if length(value) != shape[level]:
        raise InvalidArgument(
            f"Encountered list at unexpected size: {length(value)} at level: {level} expected size: {shape[level]}"
        )
    if level + 1 < len(shape):
        for item in value:
            _gather(item, level + 1, shape, take, leaves)
        return
    for item in value:  # the bottom, where the many are: what `_gather` does of one leaf, without the call
        if isinstance(item, ARRAY):
            raise InvalidArgument(
                f"Encountered list at unexpected level: {level + 1} expected < {len(shape)}", ErrorReason.SHAPE
            )
        leaves.append(take(item))


def make_tensor(leaves: list[Any], shape: Shape, dtype: np.dtype[Any]) -> Tensor:
    """Leaves of `walk` -> array, narrow integers cut to their width."""
    if dtype == BYTES:
        return array_of(leaves).reshape(shape)
    with np.errstate(over="ignore"):  # a float32 beyond its range is infinite
        wide = DTYPES["FP64"] if dtype.kind == "f" else _LITERALS.get(dtype, dtype)
        return np.array(leaves, wide).astype(dtype, copy=False).reshape(shape)


# ---------------------------------------------------------------------------------------------- one leaf of each dtype


def json_type(value: Any) -> str:
    """The type's name in RapidJSON, which has two for the truth values."""
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, OBJECT):
        return "Object"
    if isinstance(value, ARRAY):
        return "Array"
    return "String" if isinstance(value, str) else "Number"


def _refuse(value: Any, type_name: str) -> NoReturn:
    raise InvalidArgument(
        f"JSON Value: {show(value)} Type: {json_type(value)} is not of expected type: {type_name}", ErrorReason.DTYPE
    )


def _float_taker(type_name: str) -> Callable[[Any], float]:
    def take(value: Any) -> float:
        if type(value) is not float and type(value) is not int:
            _refuse(value, type_name)
        return as_double(value)

    return take


def _integer_taker(type_name: str, literal: np.dtype[Any]) -> Callable[[Any], int]:
    limits = np.iinfo(literal)

    def take(value: Any) -> int:
        if type(value) is int and limits.min <= value <= limits.max:
            return value
        _refuse(value, type_name)

    return take


def _take_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse(value, "bool")
    return value


def _take_string(value: Any) -> bytes:
    if isinstance(value, str):
        return utf8(value)
    if is_base64(value):
        return decode_base64(value["b64"])
    if isinstance(value, OBJECT):
        raise InvalidArgument(f"JSON Value: {show(value)} not formatted correctly for base64 data")
    _refuse(value, "string")


def decode_base64(text: str) -> bytes:
    """Standard alphabet; padding may be missing but not wrong; white space does not count. Source: Abseil."""
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        pass
    dense = _WHITE_SPACE.sub("", text)
    digits = dense.rstrip("=")
    padding = "=" * (-len(digits) % 4)
    if dense not in (digits, digits + padding):
        raise InvalidArgument("Unable to base64 decode")
    try:
        return pybase64.b64decode(digits + padding, validate=True)
    except ValueError:
        raise InvalidArgument("Unable to base64 decode") from None


def _unsupported_taker(type_name: str) -> Callable[[Any], NoReturn]:
    def take(value: Any) -> NoReturn:
        if isinstance(value, OBJECT):
            _refuse(value, type_name)
        raise Unsupported(f"Conversion of JSON Value: {show(value)} to type: {type_name}")

    return take


def _taker(dtype: np.dtype[Any], type_name: str) -> Callable[[Any], Any]:
    if dtype in WITHOUT_JSON:
        return _unsupported_taker(type_name)
    if dtype == BYTES:
        return _take_string
    if dtype.kind == "b":
        return _take_bool
    return _float_taker(type_name) if dtype.kind == "f" else _integer_taker(type_name, _LITERALS.get(dtype, dtype))


_TAKERS: Final = {dtype: _taker(dtype, type_name) for dtype, type_name in TYPE_NAMES.items()}
