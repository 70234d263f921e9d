"""What a field of a message accepts in JSON: readers, which give Python's value or raise Unfit.

Source: the JSON mapping of protobuf as the Python server applies it (protobuf 3.20 to 7 agree on all of it).
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from tensorgate.adapters.json.body import ARRAY, OBJECT, members
from tensorgate.gateway.contract.tensor import DTYPES

Read: TypeAlias = Callable[[Any], Any]
Schema: TypeAlias = Mapping[str, tuple[str, Read]]
"""JSON key -> the field it sets and the field's reader."""

FLOAT_MAX: Final = {DTYPES[name]: float(np.finfo(DTYPES[name]).max) for name in ("FP32", "FP64")}


class Unfit(Exception):
    """A JSON value that its field does not accept, and the way to it from the message."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    @property
    def place(self) -> str:
        """gtensors.tensors[0].name"""
        return ".".join(self.path).replace(".[", "[")

    def below(self, name: str) -> Unfit:
        """Itself, with the way from one level further out."""
        self.path.insert(0, name)
        return self


# ------------------------------------------------------------------------------------------------------------- scalars


def refuse(reason: str) -> NoReturn:
    raise Unfit(reason)


def shown(leaf: Any) -> str:
    """A value in an error's text: short, and Python's own wherever it came from."""
    return "an object" if isinstance(leaf, OBJECT) else repr(leaf)[:40]


def string(value: Any) -> str:
    return value if isinstance(value, str) else refuse("expected a string")


def base64_bytes(value: Any) -> bytes:
    """Base64, standard or URL-safe, padded or not; characters of neither alphabet are dropped, but counted."""
    text = string(value).encode()
    try:
        return base64.urlsafe_b64decode(text + b"=" * (4 - len(text) % 4))
    except ValueError:
        refuse("not base64")


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and " " not in value:
        with contextlib.suppress(ValueError):
            return int(value)
    return refuse("expected an integer")


def integer_within(dtype: np.dtype[Any]) -> Read:
    limits = np.iinfo(dtype)

    def read(value: Any) -> int:
        number = _integer(value)
        return number if limits.min <= number <= limits.max else refuse(f"{number} is out of range")

    return read


def floating(limit: float) -> Read:
    """Floating numbers up to `limit`; texts are Python's, and may be beyond it. protobuf takes true and false for 1 and
    0 here, though not for integers.
    """

    def read(value: Any) -> float:
        if isinstance(value, str) and value != "nan":
            with contextlib.suppress(ValueError):
                return float(value)
        if not isinstance(value, (int, float)):
            refuse("expected a number")
        # Bare NaN and Infinity fail the comparison too: they have to be strings. So do integers that no double holds.
        return float(value) if -limit <= value <= limit else refuse("the number is not finite or too large")

    return read


def enum(numbers: Mapping[str, int]) -> Read:
    read_number = integer_within(DTYPES["INT32"])

    def read(value: Any) -> int:
        if not isinstance(value, str):
            return int(read_number(value))
        if value in numbers:
            return numbers[value]
        with contextlib.suppress(Unfit):  # a number may be written as text
            return int(read_number(value))
        return refuse(f"{shown(value)} is none of {', '.join(numbers)}")

    return read


# ---------------------------------------------------------------------------------------------------------- composites


def object_of(schema: Schema) -> Read:
    def read(value: Any) -> dict[str, Any]:
        return read_fields(value, schema) if isinstance(value, OBJECT) else refuse("expected an object")

    return read


def array(value: Any) -> Any:
    """An array of scalars, as it stands: read later, by `flat.flat_array`."""
    return value if isinstance(value, ARRAY) else refuse("expected an array")


def list_of(read_item: Read, max_items: int | None = None) -> Read:
    """Every element read by itself. `max_items` bounds lists of which none that makes sense is long."""

    def read(value: Any) -> list[Any]:
        items = []
        if max_items is not None and len(array(value)) > max_items:
            refuse(f"more than {max_items} elements")
        for index, item in enumerate(array(value)):
            try:
                items.append(read_item(item))
            except Unfit as unfit:
                raise unfit.below(f"[{index}]") from None
        return items

    return read


def map_of(read_value: Read) -> Read:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, OBJECT):
            refuse("expected an object")
        entries = {}
        for key, item in dict(members(value)).items():
            try:
                entries[key] = read_value(item)
            except Unfit as unfit:
                raise unfit.below(key) from None
        return entries

    return read


def known_members(value: Any, wanted: Container[str]) -> list[tuple[str, Any]]:
    """The members of a JSON object that are wanted, in order; of repeated keys the last one's value alone.

    simdjson looks a key up from the front and its items() copies whole arrays, so that is left to objects that do
    repeat a key.
    """
    if not isinstance(value, dict):
        keys = [key for key in value if key in wanted]
        if len(set(keys)) == len(keys):
            return [(key, value[key]) for key in keys]
    return [(key, item) for key, item in dict(members(value)).items() if key in wanted]


def read_fields(value: Any, schema: Schema) -> dict[str, Any]:
    """Known members by field name; null unsets, of several for one field the last wins, the unknown are ignored."""
    fields: dict[str, Any] = {}
    for key, item in known_members(value, schema):
        name, read = schema[key]
        if item is None:
            fields.pop(name, None)
            continue
        try:
            fields[name] = read(item)
        except Unfit as unfit:
            raise unfit.below(name) from None
    return fields
