"""What the headers of a gRPC call say. Sources: gRPC over HTTP/2; RFC 9113 for what headers must be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.canonical import NOTHING
from gateway.errors import Code
from gateway.grpc_exchange import Handler, Handlers
from gateway.grpc_messages import CODINGS
from gateway.ports import Reply

_TIMEOUT: Final = re.compile("([0-9]{1,8})([HMSmun])")
_UNITS: Final[Mapping[str, float]] = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_OF_THE_TRANSPORT: Final = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})
_NOT_HTTP2: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_UPPER: Final = re.compile("[A-Z]")


@dataclass(frozen=True, slots=True)
class Head:
    """What the headers of a call say. `refusal` answers one that cannot be taken, `status` one that is not gRPC's."""

    handler: Handler | None
    metadata: Mapping[str, str]
    timeout: float | None = None
    coding: str = ""
    refusal: Reply | None = None
    status: str = "200"


MALFORMED: Final = Head(None, NOTHING)


def read_head(said: list[tuple[str, str]] | None, handlers: Handlers, most: int) -> Head:
    """What a call's headers come to; None stands for too many of them."""
    if said is None:
        text = f"received metadata is larger than max ({most} bytes)"
        return Head(None, NOTHING, refusal=Reply(b"", grpc_code=Code.RESOURCE_EXHAUSTED, message=text))
    pseudo = {name: value for name, value in said if name.startswith(":")}
    rest = [(name, value) for name, value in said if not name.startswith(":")]
    all_once = len(pseudo) + len(rest) == len(said) and said[: len(pseudo)] == [*pseudo.items()]
    if not all_once or not {":method", ":path", ":scheme"} <= pseudo.keys():
        return MALFORMED
    if any(_UPPER.search(name) or name in _NOT_HTTP2 or not name for name, _ in rest):
        return MALFORMED
    fields = dict(rest)
    if pseudo[":method"] != "POST":
        return Head(None, NOTHING, status="405")
    if not fields.get("content-type", "").startswith("application/grpc"):
        return Head(None, NOTHING, status="415")
    handler = handlers.get(pseudo[":path"])
    if handler is None:
        return Head(None, NOTHING, refusal=Reply(b"", grpc_code=Code.UNIMPLEMENTED, message="Method not found!"))
    coding = fields.get("grpc-encoding", "")
    if coding not in CODINGS:
        text = f"Compression algorithm '{coding}' is not supported"
        return Head(None, NOTHING, refusal=Reply(b"", grpc_code=Code.UNIMPLEMENTED, message=text))
    timeout = None
    if (wanted := fields.get("grpc-timeout")) is not None:
        if (found := _TIMEOUT.fullmatch(wanted)) is None:
            return MALFORMED
        timeout = int(found[1]) * _UNITS[found[2]]
    metadata = {name: value for name, value in rest if name not in _OF_THE_TRANSPORT and not name.endswith("-bin")}
    return Head(handler, metadata, timeout, coding)
