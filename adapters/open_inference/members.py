"""Members of a JSON body, each of the type that it must have, or Triton's words for what is wrong with it."""

from __future__ import annotations

from typing import Any, Final

from tensorgate.adapters.json.body import ARRAY, OBJECT
from tensorgate.gateway.contract.errors import InvalidArgument

_MAX_TENSORS: Final = 4096


def fields_of(value: Any) -> list[str]:
    """The keys of an object; none, if the value is no object."""
    return [*value] if isinstance(value, OBJECT) else []


def member(value: Any, fields: list[str], key: str) -> Any:
    """A required member.

    `fields` are the object's keys: to ask simdjson for one that is absent costs an error.
    """
    if key not in fields:
        raise InvalidArgument(f"Unable to parse '{key}': attempt to access non-existing object member '{key}'")
    return value[key]


def text(value: Any, what: str) -> str:
    if type(value) is str:
        return value
    raise InvalidArgument(f"{what}: attempt to access JSON non-string as string")


def boolean(value: Any, what: str) -> bool:
    if type(value) is bool:
        return value
    raise InvalidArgument(f"{what}: attempt to access JSON non-boolean as boolean")


def unsigned(value: Any, what: str) -> int:
    if type(value) is int and 0 <= value < 2**64:
        return value
    raise InvalidArgument(f"{what}: attempt to access JSON non-unsigned-integer as unsigned-integer")


def array(value: Any, what: str) -> Any:
    if isinstance(value, ARRAY):
        return value
    raise InvalidArgument(f"{what}: attempt to access JSON non-array as array")


def short_array(value: Any, what: str) -> Any:
    """An array whose elements are read one by one, each for microseconds; no model has as many tensors as the bound."""
    if len(array(value, what)) > _MAX_TENSORS:
        raise InvalidArgument(f"{what}: more than {_MAX_TENSORS} elements")
    return value
