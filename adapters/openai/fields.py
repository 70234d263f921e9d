"""The members of a JSON body, checked one by one: a wrong one is refused by its name, in `param` of the error."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from tensorgate.adapters.inflate import inflate
from tensorgate.adapters.json.body import is_deeper
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.dialect import INLINE_DECODE_MAX_JSON_BYTES
from tensorgate.gateway.contract.errors import ErrorReason, InvalidArgument, MalformedJson

MAX_DEPTH: Final = 100
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_NAMES: Final = {str: "a string", int: "an integer", float: "a number", bool: "a boolean", list: "an array"}
_SCHEMA: Final = {str: "Input should be a valid string", int: "Input should be a valid integer"}
_SHOWN: Final = 40


class BadField(InvalidArgument):
    """A member of the body is missing, of a wrong type, or asks for what the model cannot do."""

    def __init__(
        self, text: str, param: str | None = None, code: str | None = None, by_schema: str | None = None
    ) -> None:
        super().__init__(text, ErrorReason.UNSUPPORTED if code == UNSUPPORTED else None)
        self.param = param
        self.code_text = code
        self.by_schema = by_schema or text
        """What a server says of it that checks bodies by a schema."""


EMPTY: Final = "Value should have at least 1 item after validation, not 0"
UNSUPPORTED: Final = "unsupported_parameter"
MISSING: Final = "missing_required_parameter"
INVALID: Final = "invalid_value"
WRONG_TYPE: Final = "invalid_type"
UNKNOWN: Final = "unknown_parameter"


class Fields:
    """The JSON object of a request. Members that are null count as left out."""

    def __init__(self, members: Mapping[str, Any], within: str = "") -> None:
        self.members = {name: value for name, value in members.items() if value is not None}
        self._nulls = members.keys() - self.members.keys()
        self._within = within

    def path(self, name: str) -> str:
        """A member as errors call it."""
        return f"{self._within}.{name}" if self._within else name

    def needed(self, name: str) -> Any:
        """Raises BadField where it is missing."""
        try:
            return self.members[name]
        except KeyError:
            by_schema = _SCHEMA[str] if name in self._nulls else "Field required"
            text = f"Missing required parameter: '{self.path(name)}'."
            raise BadField(text, self.path(name), MISSING, by_schema) from None

    def wrong_type(self, name: str, wanted: str) -> BadField:
        """What is raised for a member that is something else."""
        got = kind_of(self.members.get(name))
        return BadField(
            f"Invalid type for '{self.path(name)}': expected {wanted}, but got {got} instead.",
            self.path(name),
            WRONG_TYPE,
            next((text for kind, text in _SCHEMA.items() if wanted.startswith(_NAMES[kind])), None),
        )

    def text(self, name: str, default: str | None = None) -> str:
        """A string; needed where there is no default."""
        value = self.needed(name) if default is None else self.members.get(name, default)
        if not isinstance(value, str):
            raise self.wrong_type(name, _NAMES[str])
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.members.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong_type(name, _NAMES[bool])
        return value

    def whole(self, name: str, least: int, most: int = (1 << 63) - 1) -> int | None:
        """An integer within bounds; None where it is left out."""
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong_type(name, _NAMES[int])
        self._check_bounds(name, value, least, most)
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong_type(name, _NAMES[float])
        self._check_bounds(name, value, least, most)
        return float(value)

    def texts(self, name: str) -> list[str]:
        """A string, or a list of strings; empty where it is left out."""
        value = self.members.get(name)
        if value is None:
            return []
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong_type(name, "a string or an array of strings")
        return value

    def object(self, name: str) -> Fields | None:
        """An object; None where it is left out."""
        value = self.members.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong_type(name, "an object")
        return Fields(value, self.path(name))

    def _check_bounds(self, name: str, value: float, least: float, most: float) -> None:
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            by_schema = f"{'greater' if value < least else 'less'} than or equal to {least if value < least else most}"
            raise BadField(
                f"Invalid value for '{self.path(name)}': expected {bound}, but got {value} instead.",
                self.path(name),
                INVALID,
                f"Input should be {by_schema}",
            )


def kind_of(value: Any) -> str:
    """What a value of JSON is, for people."""
    if value is None:
        return "null"
    return _NAMES.get(type(value), "an object")


def shown(value: Any) -> str:
    """The beginning of a value, for people."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def read(call: Call) -> Fields:
    """The body's JSON object. Raises MustOffload on the event loop for a long one, MalformedJson, BadField,
    BodyTooLarge.
    """
    if len(call.body) > INLINE_DECODE_MAX_JSON_BYTES and not call.in_thread:
        raise MustOffload
    body = _plain_body(call)
    depth = call.max_json_depth or MAX_DEPTH
    if is_deeper(body, depth):
        raise MalformedJson("nested too deep", max_depth=depth)
    try:
        members = orjson.loads(body)
    except ValueError as error:
        raise MalformedJson(str(error)) from None
    if not isinstance(members, dict):
        raise BadField(f"The body must be a JSON object, but is {kind_of(members)}.", None, WRONG_TYPE)
    fields = Fields(members)
    model = fields.members.get("model")
    if isinstance(model, str):
        call.notes["model"] = model
    return fields


def _plain_body(call: Call) -> bytes:
    coding = call.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return bytes(call.body)
    if coding not in _WINDOW_BITS:
        raise BadField(f"The content encoding '{coding[:_SHOWN]}' is not supported: use gzip or deflate.")
    try:
        return bytes(inflate(call.body, _WINDOW_BITS[coding], call.max_body_bytes))
    except zlib.error as error:
        raise InvalidArgument(f"The {coding} body cannot be inflated: {error}") from None
