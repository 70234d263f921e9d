"""JSON bodies of Triton's trace and logging extensions <-> settings: they are read, and changed by the keys that a body
has.

Of the values, types are checked here; what they may be, the gateway knows. Unknown keys are ignored. Source: Triton's
HTTP server; the texts are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.body import OBJECT
from tensorgate.adapters.open_inference.errors import JSON_HEADERS, encode_error
from tensorgate.adapters.open_inference.parameters import WRONG_TYPE, array, text
from tensorgate.adapters.open_inference.request import max_depth
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelNotFound, Unsupported
from tensorgate.gateway.contract.questions import LogSettings, TraceSettings

_NUMBERS: Final = ("trace_rate", "trace_count", "log_frequency")
_MAX_LEVELS: Final = 16
_LOG_TYPES: Final[Mapping[str, tuple[type[Any], str]]] = {
    **dict.fromkeys(("log_info", "log_warning", "log_error"), (bool, WRONG_TYPE["boolean"])),
    "log_verbose_level": (int, WRONG_TYPE["unsigned"]),
    "log_format": (str, WRONG_TYPE["string"]),
}
"""Setting -> its type, and what is said of another."""


def _members(call: Call, keys: Iterable[str]) -> Mapping[str, Any]:
    """Those members of the body that have these names. Raises MalformedJson, InvalidArgument."""
    document = json_body.read(bytes(call.body), max_depth(call))
    if not isinstance(document, OBJECT):
        raise InvalidArgument("attempt to get members for non-object")
    return {key: document[key] for key in keys if key in document}


# --------------------------------------------------------------------------------------------------------------- trace


def decode_trace(call: Call, resolve: Resolve) -> TraceSettings:
    return TraceSettings(call.args.get("model", ""))


def decode_trace_update(call: Call, resolve: Resolve) -> TraceSettings:
    """Raises MalformedJson, InvalidArgument, Unsupported."""
    members = _members(call, ("trace_file", "trace_level", *_NUMBERS))
    if "trace_file" in members:
        if "model" in call.args:
            resolve(ModelRef(call.args["model"]))  # Triton looks for the model first
        raise Unsupported("trace file location can not be updated through network protocol")
    changes: dict[str, tuple[str, ...] | None] = {}
    if "trace_level" in members:
        changes["trace_level"] = _levels(members["trace_level"])
    for key in _NUMBERS:
        if key in members:
            changes[key] = None if members[key] is None else (text(members[key], ""),)
    return TraceSettings(call.args.get("model", ""), changes)


def _levels(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if len(array(value, "")) > _MAX_LEVELS:
        raise InvalidArgument(f"Unable to parse 'trace_level': more than {_MAX_LEVELS} levels")
    return tuple([text(level, "") for level in value])


def encode_trace(settings: Mapping[str, tuple[str, ...]], question: TraceSettings) -> Reply:
    """The level is a list, every other value a text."""
    shown = {key: values if key == "trace_level" else values[0] for key, values in settings.items()}
    return Reply(orjson.dumps(shown), 200, JSON_HEADERS)


def encode_trace_error(error: GatewayError, call: Call) -> Reply:
    """A model that is not there is an invalid argument here, in words of its own."""
    if isinstance(error, ModelNotFound):
        error = InvalidArgument(f"Request for unknown model : {error.name}")
    return encode_error(error, call)


# ------------------------------------------------------------------------------------------------------------- logging


def decode_logging_update(call: Call, resolve: Resolve) -> LogSettings:
    """null leaves a setting as it is. Raises MalformedJson, InvalidArgument, Unsupported."""
    members = _members(call, ("log_file", *_LOG_TYPES))
    if members.get("log_file") is not None:
        raise Unsupported("log file location can not be updated through network protocol")
    changes: dict[str, bool | int | str] = {}
    for key, (kind, complaint) in _LOG_TYPES.items():
        value = members.get(key)
        if value is not None:
            if type(value) is not kind or (type(value) is int and not 0 <= value < 2**32):
                raise InvalidArgument(complaint)
            changes[key] = value
    return LogSettings(changes)


def encode_logging(settings: Mapping[str, bool | int | str], question: LogSettings) -> Reply:
    return Reply(orjson.dumps(settings), 200, JSON_HEADERS)
