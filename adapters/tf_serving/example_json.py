"""tf.Examples in the JSON of TensorFlow Serving's REST API, {feature: value or list of values} -> features.

The kind of a feature follows the literals, not the model: 1 is an int64, 1.0 a float, a string bytes, and a list has
one kind throughout. All of that is checked before the model is known.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import numpy as np

from tensorgate.adapters.json.body import ARRAY, OBJECT, OutOfRange, as_double, length, members, numbers
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.example_tensors import KIND_DTYPES, Column, Examples, Feature, Kind, merge
from tensorgate.adapters.tf_serving.json_text import utf8
from tensorgate.adapters.tf_serving.tensors import decode_base64, is_base64, json_type
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import DTYPES

Value: TypeAlias = Any
"""A feature's values: a float, int or bytes; a list of these, an array of many numbers, or None for no kind."""

_Example: Final = message("tensorflow.Example")
_KINDS: Final[dict[type, Kind]] = {float: "float", int: "int64", bool: "int64", bytes: "bytes"}
_FEW: Final = 32
"""More numbers than that are kept as an array."""
_CHUNK: Final = 1 << 16
_MAX_FEATURES: Final = 1 << 20
"""Of one Example: each costs a microsecond."""
_INT64: Final = np.iinfo(np.int64)
_UINT64: Final = np.iinfo(np.uint64)


class JsonExamples(Examples):
    """Examples as `read_example` reads them."""

    def __init__(self, examples: list[dict[str, Value]], context: dict[str, Value] | None = None) -> None:
        self._examples = examples
        self._context = context or {}

    def __len__(self) -> int:
        return len(self._examples)

    def columns(self, names: Collection[str]) -> list[Column]:
        shared = self._context
        return [[_feature(example.get(name, shared.get(name))) for example in self._examples] for name in names]

    def serialized(self) -> list[bytes]:
        return merge(_serialize(self._context), [_serialize(example) for example in self._examples])


def read_example(value: Any) -> dict[str, Value]:
    """An object of JSON -> the values of each feature; of repeated features the last counts. Raises InvalidArgument."""
    if not isinstance(value, OBJECT):
        raise InvalidArgument(f"Example must be JSON object but got JSON {json_type(value)}")
    if len(value) > _MAX_FEATURES:
        raise InvalidArgument(f"Example has more than {_MAX_FEATURES} features")
    return {name: _read(name, content) for name, content in members(value)}


def _read(name: str, content: Any) -> Value:
    kind = type(content)
    if kind is float:
        return content
    if kind is str:
        return utf8(content)
    if isinstance(content, ARRAY):
        return _read_list(name, content)
    return _read_element(name, content, None)


def _read_list(name: str, array: Any) -> Value:
    if length(array) >= _FEW:
        return _read_many(name, array)
    values = [*array]
    types = {*map(type, values)}
    if types == {float} or (types == {int} and min(values) >= _INT64.min and max(values) <= _INT64.max):
        return values
    return _read_elements(name, values) or None


def _read_many(name: str, array: Any) -> Value:
    types = _types(array)
    if types == {float}:
        return numbers(array, DTYPES["FP32"])
    if types == {int}:
        with suppress(OutOfRange):
            return numbers(array, DTYPES["INT64"])
    return _read_mixed(name, array)


def _read_mixed(name: str, array: Any) -> Value:
    """Many values of several types, which may have one kind still: some at a time, the exact way where it must be."""
    elements = iter(array)
    kind: Kind | None = None
    parts: list[Any] = []
    while some := list(islice(elements, _CHUNK)):
        values = _of_one_kind(some, kind) or _read_elements(name, some, kind)
        kind = kind or _KINDS[type(values[0])]
        with np.errstate(over="ignore"):  # a float beyond the dtype's range is infinite
            parts.append(values if kind == "bytes" else np.array(values, KIND_DTYPES[kind]))
    return [*chain.from_iterable(parts)] if kind == "bytes" else np.concatenate(parts)


def _of_one_kind(elements: list[Any], kind: Kind | None) -> list[Any] | None:
    """Elements that plainly are of this kind, or of any one if it is None."""
    types = {*map(type, elements)}
    if types == {float} and kind in (None, "float"):
        return elements
    if types == {str} and kind in (None, "bytes"):
        return [utf8(text) for text in elements]
    if types <= {int, bool} and kind in (None, "int64"):
        return elements if min(elements) >= _INT64.min and max(elements) <= _INT64.max else None
    return None


def _types(array: Any) -> set[type]:
    """The types of the elements. Others may use the interpreter in between, if they are many."""
    elements = iter(array)
    types: set[type] = set()
    while some := {*map(type, islice(elements, _CHUNK))}:
        types |= some
    return types


def _read_elements(name: str, array: Any, kind: Kind | None = None) -> list[Any]:
    """The exact way, element by element, after others of that kind."""
    values: list[Any] = []
    for element in array:
        values.append(_read_element(name, element, kind))
        kind = kind or _KINDS[type(values[0])]
    return values


def _read_element(name: str, element: Any, kind: Kind | None) -> float | int | bytes:
    """One value; `kind` is that of the elements before it. Source: the order of the original's checks."""
    own = _element_kind(element)
    if own is None:
        raise InvalidArgument(f"Feature: {name} has element with unexpected JSON type: {json_type(element)}")
    if kind not in (None, own):
        raise InvalidArgument(f"Unexpected element type in feature: {name} expecting type: {kind}")
    if own == "bytes":
        return utf8(element) if isinstance(element, str) else decode_base64(element["b64"])
    if own == "float":
        return as_double(element)
    if element > _INT64.max:
        raise InvalidArgument(f"Feature: {name} has uint64_t element. Only int64_t is supported.")
    return int(element)


def _element_kind(element: Any) -> Kind | None:
    """An integer of more than 64 bits is a double in JSON."""
    if isinstance(element, str) or is_base64(element):
        return "bytes"
    if type(element) is int and not _INT64.min <= element <= _UINT64.max:
        return "float"
    return _KINDS.get(type(element))


def _kind_of(value: Value) -> Kind:
    if isinstance(value, np.ndarray):
        return "float" if value.dtype.kind == "f" else "int64"
    return _KINDS[type(value[0] if isinstance(value, list) else value)]


def _feature(value: Value) -> Feature | None:
    if value is None:
        return None
    return Feature(_kind_of(value), value if isinstance(value, (list, np.ndarray)) else (value,))


def _serialize(features: dict[str, Value]) -> bytes:
    example = _Example()
    for name, value in features.items():
        target = example.features.feature[utf8(name).decode("utf-8", "replace")]
        if (feature := _feature(value)) is not None:
            getattr(target, f"{feature.kind}_list").value.extend(feature.values)
    serialized: bytes = example.SerializeToString()
    return serialized
