"""The small values of the configuration, and the annotations that check them.

Validators raise ValueError with a whole remark, or with "expected …", to which `messages` adds what was found. The
validation's context is the path of the YAML file; without one, relative paths start at the working directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options

MAX_VERSION: Final = 2**63 - 1
"""The highest version that callers can ask for; the lowest is 0."""


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of the versions on disk are served: those `named`, else the `latest` highest, else (0) all. `flat`: there
    are no version folders, the path is the model itself, version 1.
    """

    latest: int = 0
    named: tuple[int, ...] = ()
    flat: bool = False

    def choose(self, available: Iterable[int]) -> tuple[int, ...]:
        """Those of the available versions that are wanted, ascending."""
        found = sorted(set(available))
        if self.named:
            return tuple(version for version in found if version in self.named)
        return tuple(found[-self.latest :])  # of 0, all

    def plain(self) -> str | list[int] | dict[str, int]:
        """The value as written in YAML."""
        if self.flat:
            return "none"
        if self.named:
            return list(self.named)
        return {0: "all", 1: "latest"}.get(self.latest) or {"latest": self.latest}

    @classmethod
    def parse(cls, value: Any) -> VersionPolicy:
        """The policy of a YAML value. Raises ValueError."""
        match value:
            case "latest":
                return cls(latest=1)
            case "all":
                return cls()
            case "none":
                return cls(named=(1,), flat=True)
            case {"latest": latest, **rest} if type(latest) is int and latest >= 1 and not rest:
                return cls(latest=latest)
            case [_, *_] if all(type(version) is int and 0 <= version <= MAX_VERSION for version in value):
                return cls(named=tuple(sorted(set(value))))
        raise ValueError("expected latest, all, none, a list of versions like [1, 3], or {latest: 2}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        plain = core_schema.plain_serializer_function_ser_schema(cls.plain)
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=plain)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        version = {"type": "integer", "minimum": 0, "maximum": MAX_VERSION}
        count = {"type": "integer", "minimum": 1}
        latest = {"type": "object", "properties": {"latest": count}, "required": ["latest"]}
        return {
            "anyOf": [
                {"enum": ["latest", "all", "none"]},
                {"type": "array", "items": version, "minItems": 1},
                latest | {"additionalProperties": False},
            ]
        }


@dataclass(frozen=True, slots=True)
class OneOfNames:
    """Annotation of a str: one of these."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(list(self.names))


@dataclass(frozen=True, slots=True)
class OneOfClasses:
    """Annotation of an Options: an object of the class that its key `by` names."""

    by: str
    classes: Mapping[str, type[Options]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {name: handler.generate_schema(kind) for name, kind in self.classes.items()}
        return core_schema.tagged_union_schema(choices, discriminator=self.by)


NAME = r"[^/\x00-\x1f\x7f-\x9f]+"
BIND = r"(?:\[([^\[\]\s]+)\]|([A-Za-z0-9_.-]+)):([0-9]{1,5})"
UNIX = "unix:"
_UNIX_BIND = rf"{UNIX}/[^\x00-\x1f\x7f]+"
_MAX_UNIX_BYTES: Final = 107
"""The longest path of a Unix socket. Source: unix(7), sun_path with its end."""
_UNITS: Final = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
BYTE_SIZE = r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(B|KiB|MiB|GiB|TiB)"
_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_SECONDS: Final = 1e9
DURATION = r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|s|m|h|d)"
DEVICE = r"cpu|cuda(:[0-9]{1,4})?"
PLACEMENT = rf"auto|all|cuda:\*|{DEVICE}"


def _check_name(name: str) -> str:
    if re.fullmatch(NAME, name) is None:
        raise ValueError("expected a name, not empty, without / and control characters")
    return name


def _check_placement(placement: Any) -> str | tuple[str, ...]:
    if isinstance(placement, str) and re.fullmatch(PLACEMENT, placement):
        return placement
    if not isinstance(placement, (list, tuple)):
        raise ValueError("expected auto, all, cpu, cuda, cuda:N, cuda:* or a list of devices")
    if not placement or not all(isinstance(each, str) and re.fullmatch(DEVICE, each) for each in placement):
        raise ValueError("expected a list of cpu, cuda or cuda:N, one at least")
    return tuple(placement)


def _parse_size(size: Any) -> int:
    if type(size) is int and 0 < size < 2**63:
        return size
    split = re.fullmatch(BYTE_SIZE, size) if isinstance(size, str) else None
    if split is None or not (found := int(float(split[1]) * _UNITS[split[2]])):
        raise ValueError("expected a number of bytes, or text like 2GiB or 512MiB")
    return found


def _parse_duration(duration: Any) -> float:
    if type(duration) in (int, float) and 0 <= duration < _MAX_SECONDS:
        return float(duration)
    split = re.fullmatch(DURATION, duration) if isinstance(duration, str) else None
    if split is None or (found := float(split[1]) * _SECONDS[split[2]]) >= _MAX_SECONDS:
        raise ValueError("expected a number of seconds, or text like 30s, 10m or 2h")
    return found


def parse_bind(bind: Any) -> tuple[str, int]:
    """HOST:PORT, an IPv6 host in brackets -> (host without brackets, port). Raises ValueError."""
    split = re.fullmatch(BIND, bind) if isinstance(bind, str) else None
    if split is None or int(split[3]) > 65535:
        raise ValueError('expected HOST:PORT in quotes, like "0.0.0.0:8000" or "[::]:8000"')
    host = split[1] or split[2]
    if split[1] or not host.strip("0123456789."):
        try:
            ip_address(host)
        except ValueError:
            raise ValueError(f"expected HOST:PORT in quotes; {host} is no IP address") from None
    return host, int(split[3])


def socket_path(bind: Any) -> Path | None:
    """The path of a Unix socket, unix:/PATH; None for any other address."""
    return Path(bind.removeprefix(UNIX)) if isinstance(bind, str) and bind.startswith(UNIX) else None


def _check_bind(bind: Any) -> Any:
    if (path := socket_path(bind)) is None:
        parse_bind(bind)
    elif not path.is_absolute():
        raise ValueError("expected an absolute path after unix:")
    elif len(os.fsencode(path)) > _MAX_UNIX_BYTES:
        raise ValueError(f"the path of a Unix socket has {_MAX_UNIX_BYTES} bytes at most")
    return bind


ByteSize = Annotated[
    int,
    PlainValidator(_parse_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^{BYTE_SIZE}$"}]}),
]
"""A number of bytes, or text with a unit of 1024s."""

Duration = Annotated[
    float,
    PlainValidator(_parse_duration),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{DURATION}$"}]}),
]
"""A number of seconds, or text with a unit."""

PublicName = Annotated[str, AfterValidator(_check_name)]
"""A name under which callers reach a model: paths of every dialect can carry it."""

PUBLIC_NAMES: Final[dict[str, JsonValue]] = {"propertyNames": {"pattern": f"^{NAME}$"}}
"""What the JSON schema says of a mapping with such names as keys."""

CustomOp = Annotated[FileRef, Existing("member")]
"""file.py:Class"""

Bind = Annotated[str, BeforeValidator(_check_bind), Field(json_schema_extra={"pattern": f"^({BIND}|{_UNIX_BIND})$"})]
"""HOST:PORT, an IPv6 host in brackets; or unix:/PATH."""

Placement = Annotated[
    str | tuple[str, ...],
    PlainValidator(_check_placement),
    PlainSerializer(lambda placement: placement),  # pydantic's own warns of a tuple that it writes as JSON
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^({PLACEMENT})$"},
                {"type": "array", "items": {"type": "string", "pattern": f"^({DEVICE})$"}, "minItems": 1},
            ]
        }
    ),
]
"""One device or several; a device that is named twice has twice as many instances."""


def refuse(*loc: str | int, text: str) -> ValidationError:
    """A remark about a part of the value under validation, for a validator to raise."""
    remark = PydanticCustomError("value_error", "{text}", {"text": text})
    return ValidationError.from_exception_data("", [InitErrorDetails(type=remark, loc=loc, input=None)])
