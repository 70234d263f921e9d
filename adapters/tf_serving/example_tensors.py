"""tf.Examples -> the inputs of a model, as TensorFlow parses Examples: each feature is an input, each Example a row.

A feature has a kind, and the kind must be the input's own: floats for FP32 and other floating dtypes, int64s for
integers and BOOL (each value within its range), bytes for BYTES. A declared shape without its batch dimension is the
shape of a row; its first dimension may vary, if all Examples agree. Where no shape is declared a row is a list.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np

from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.tf_serving.data_types import TYPE_NAMES
from tensorgate.adapters.tf_serving.tensors import Shape, Tensor
from tensorgate.gateway.contract.errors import ErrorReason, InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Signature, Tensors, TensorSpec

Kind: TypeAlias = Literal["bytes", "float", "int64"]

_PARSED: Final[dict[Kind, str]] = {"bytes": "string", "float": "float", "int64": "int64"}
"""Kind -> the dtype that TensorFlow parses it to, as its texts call it."""
KIND_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {"float": DTYPES["FP32"], "int64": DTYPES["INT64"]}
"""Of arrays of their values."""
_FEW: Final = 32
"""Fewer values of a feature than that are quicker taken one by one."""
_AT_ONCE: Final = 1 << 13
"""Numbers that are gathered in a few tenths of a millisecond."""
_MAX_ELEMENTS: Final = 1 << 28
"""Of one input, and bytes of one where the model reads Examples: a context makes more of a request than it brings."""


class Feature(NamedTuple):
    """A feature that has a kind. `values` are float, int or bool, or bytes: a sequence, or an array of numbers."""

    kind: Kind
    values: Any


Column: TypeAlias = list[Feature | None]
"""One feature of every Example."""


class ExampleVectors(NamedTuple):
    """One feature of every Example, where each has `size` values of that kind: all of them, one Example's after the
    other's, in the dtype of the kind.
    """

    kind: Kind
    size: int
    flat: Tensor


class Examples(ABC):
    """The Examples of one request, with their context merged into each."""

    @abstractmethod
    def __len__(self) -> int: ...

    def vectors(self, names: Collection[str]) -> list[ExampleVectors] | None:
        """Some features of all Examples at once; None where only `columns` can tell."""
        return None

    @abstractmethod
    def columns(self, names: Collection[str]) -> list[Column]:
        """Some features of every Example; None where one is missing or has no kind. Raises InvalidArgument where a
        message is no Example.
        """

    @abstractmethod
    def serialized(self) -> list[bytes]:
        """Each Example as a message. Raises InvalidArgument where the context makes them too large."""


def merge(context: bytes, examples: list[bytes]) -> list[bytes]:
    """Each message with the context before it, which merges them: of features that are in both, the latter counts.

    Raises InvalidArgument.
    """
    if not context:
        return examples
    if len(context) * len(examples) > _MAX_ELEMENTS:
        raise InvalidArgument(f"The context has more than {_MAX_ELEMENTS} bytes in all Examples")
    return [context + example for example in examples]


def kind_of(dtype: np.dtype[Any]) -> Kind:
    """The kind of feature that an input of this dtype takes."""
    if dtype == BYTES:
        return "bytes"
    return "int64" if dtype.kind in "iub" else "float"


def model_inputs(signature: Signature, examples: Examples) -> Tensors:
    """By the model's names: an input per feature, or the Examples themselves where the model reads them.

    Raises InvalidArgument.
    """
    if signature.features is None:
        [spec] = signature.inputs.values()
        if spec.dtype != BYTES:
            raise InvalidArgument(
                f"Expects arg[0] to be {TYPE_NAMES[spec.dtype]} but string is provided", ErrorReason.DTYPE
            )
        return {spec.name: array_of(examples.serialized())}
    features = signature.features
    vectors = examples.vectors(features.keys())
    if vectors is not None:
        rows = len(examples)
        return {
            spec.name: _tensor(name, spec, [each.kind], [each.size], rows, each.flat)
            for (name, spec), each in zip(features.items(), vectors, strict=True)
        }
    tensors: dict[str, Tensor] = {}
    for (name, spec), column in zip(features.items(), examples.columns(features.keys()), strict=True):
        found = _complete(name, spec, column, signature.defaults.get(name))
        if found or not column:
            values = [feature.values for feature in found]
            kinds = [feature.kind for feature in found]
            tensors[spec.name] = _tensor(name, spec, kinds, [*map(len, values)], len(values), values)
    return tensors


def _complete(name: str, spec: TensorSpec, column: Column, default: Tensor | None) -> list[Feature]:
    """A column in which no feature is missing; nothing, if all are and the input is optional."""
    present = [feature for feature in column if feature is not None]
    if len(present) == len(column) or (not present and spec.optional and default is None):
        return present
    if default is not None:
        stand_in = Feature(kind_of(spec.dtype), default.tolist())
        return [stand_in if feature is None else feature for feature in column]
    raise InvalidArgument(
        f"Name: <unknown>, Feature: {name} (data type: {_PARSED[kind_of(spec.dtype)]}) is required but could not be"
        f" found.  Index: {column.index(None)}"
    )


def _tensor(name: str, spec: TensorSpec, kinds: list[Kind], sizes: list[int], rows: int, values: Any) -> Tensor:
    """One feature of every Example -> [Examples, *shape of a row]; `values` are each one's, or an array of all. Kinds
    and sizes are those of each Example, or the one of all.
    """
    expected = kind_of(spec.dtype)
    for index, kind in enumerate(kinds):
        if kind != expected:
            given = f"Data type: {_PARSED[kind]} but expected type: {_PARSED[expected]}"
            _refuse(name, index, f"Data types don't match. {given}")
    shape = _row_shape(name, spec, sizes, expected)
    size = math.prod(shape)
    if rows * size > _MAX_ELEMENTS:
        raise InvalidArgument(f"Feature: {name} has more than {_MAX_ELEMENTS} values in all Examples")
    flat = values if isinstance(values, np.ndarray) else _flat(expected, values, size)
    return _cast(name, flat, spec.dtype, size).reshape(rows, *shape)


def _row_shape(name: str, spec: TensorSpec, sizes: list[int], kind: Kind) -> Shape:
    """The shape of a row; the number of values must fit it in every Example."""
    rest = (-1,) if spec.shape is None else spec.shape[1:]
    if rest[:1] == (-1,):
        inner = math.prod(rest[1:])
        length, left = divmod(sizes[0], inner) if sizes and inner > 0 else (0, 0)
        if not left:
            rest = (length, *rest[1:])
    wanted = math.prod(rest) if min(rest, default=0) >= 0 else None
    for index, size in enumerate(sizes):
        if size != wanted:
            shape = f"[{','.join(['?' if length < 0 else str(length) for length in rest])}]"
            objection = f"Number of {kind} values != expected.  Values size: {size} but output shape: {shape}"
            _refuse(name, index, objection)
    return rest


def _flat(kind: Kind, rows: Sequence[Any], size: int) -> Tensor:
    """The values of all Examples, `size` of each, in the dtype of their kind."""
    if kind == "bytes":
        return array_of([*chain.from_iterable(rows)])
    if size < _FEW or not rows:
        return _gathered(kind, rows, size)
    return np.concatenate([np.asarray(row) for row in rows])


def _gathered(kind: Kind, rows: Sequence[Any], size: int) -> Tensor:
    """The values of Examples that have few: some at a time, since NumPy keeps the interpreter while it iterates."""
    flat = np.empty(len(rows) * size, KIND_DTYPES[kind])
    some = max(1, _AT_ONCE // max(1, size))
    with np.errstate(over="ignore"):  # a float beyond the dtype's range is infinite
        for at in range(0, len(rows), some):
            values = chain.from_iterable(rows[at : at + some])
            part = flat[at * size : (at + some) * size]
            part[:] = np.fromiter(values, flat.dtype, len(part))
    return flat


def _cast(name: str, flat: Tensor, dtype: np.dtype[Any], size: int) -> Tensor:
    """Numbers of a kind -> the input's dtype; integers must lie in its range. `size` values are one Example's."""
    if flat.dtype.kind == "i" and dtype != flat.dtype and flat.size:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if int(flat.min()) < low or int(flat.max()) > high:
            at = int(((flat < low) | (flat > min(high, np.iinfo(np.int64).max))).argmax())
            _refuse(name, at // size, f"Value out of range for {TYPE_NAMES[dtype]}: {flat[at]}")
    with np.errstate(over="ignore"):  # a float beyond the dtype's range is infinite
        return flat.astype(dtype, copy=False)


def _refuse(name: str, index: int, objection: str) -> NoReturn:
    """In the words of TensorFlow's parser."""
    raise InvalidArgument(f"Name: <unknown>, Key: {name}, Index: {index}.  {objection}")
