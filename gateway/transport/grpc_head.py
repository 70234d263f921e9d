"""What the headers of a gRPC call say. Sources: gRPC over HTTP/2; RFC 9113 for what headers must be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tensorgate.gateway.contract.call import Reply, combined
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.transport.grpc_exchange import Handler, Handlers
from tensorgate.gateway.wire.grpc_messages import CODINGS

_TIMEOUT: Final = re.compile("([0-9]{1,8})([HMSmun])")
_UNITS: Final[Mapping[str, float]] = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_OF_THE_TRANSPORT: Final = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})
_NOT_HTTP2: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_NAMES: Final = re.compile(r"(?:[!#$%&'*+\-.^_`|~0-9a-z]+,)*")
"""Any number of names, with a comma after each."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH: Final = re.compile("[0-9]{1,15}")
_PSEUDO: Final = frozenset({":method", ":path", ":scheme", ":authority"})


@dataclass(frozen=True, slots=True)
class CallHead:
    """What the headers of a call say."""

    handler: Handler | None
    metadata: Mapping[str, str]
    timeout: float | None = None
    """In seconds."""
    coding: str = ""
    """What compresses its messages."""
    refusal: Reply | None = None
    """The answer to a call that cannot be taken."""
    status: str = "200"
    """The HTTP status of the answer to a request that is not gRPC's."""
    length: int | None = None
    """How many bytes all of its data have, as the headers say."""

    def admits(self) -> bool:
        """A large message of this call may be kept."""
        return self.handler is None or self.handler.admits is None or self.handler.admits(self.metadata)


MALFORMED_HEAD: Final = CallHead(None, NOTHING)


def read_call_head(headers: list[tuple[str, str]] | None, handlers: Handlers, max_bytes: int) -> CallHead:
    """Read a call's headers; None stands for more than `max_bytes` of them."""
    if headers is None:
        text = f"received metadata is larger than max ({max_bytes} bytes)"
        return CallHead(None, NOTHING, refusal=Reply(b"", grpc_code=Code.RESOURCE_EXHAUSTED, message=text))
    pseudo = {name: value for name, value in headers if name.startswith(":")}
    fields = dict(headers[len(pseudo) :])
    if len(pseudo) + len(fields) < len(headers):
        fields = combined(headers[len(pseudo) :])
    if headers[: len(pseudo)] != [*pseudo.items()] or not _is_well_formed(pseudo, fields, headers):
        return MALFORMED_HEAD
    if pseudo[":method"] != "POST":
        return CallHead(None, NOTHING, status="405")
    if not fields.get("content-type", "").startswith("application/grpc"):
        return CallHead(None, NOTHING, status="415")
    handler = handlers.get(pseudo[":path"])
    if handler is None:
        return CallHead(None, NOTHING, refusal=Reply(b"", grpc_code=Code.UNIMPLEMENTED, message="Method not found!"))
    coding = fields.get("grpc-encoding", "")
    if coding not in CODINGS:
        text = f"Compression algorithm '{coding}' is not supported"
        return CallHead(None, NOTHING, refusal=Reply(b"", grpc_code=Code.UNIMPLEMENTED, message=text))
    timeout = None
    if (wanted := fields.get("grpc-timeout")) is not None:
        if (found := _TIMEOUT.fullmatch(wanted)) is None:
            return MALFORMED_HEAD
        timeout = int(found[1]) * _UNITS[found[2]]
    metadata = {name: value for name, value in fields.items() if name not in _OF_THE_TRANSPORT}
    length = fields.get("content-length")
    return CallHead(handler, metadata, timeout, coding, length=None if length is None else int(length))


def _is_well_formed(pseudo: Mapping[str, str], fields: Mapping[str, str], headers: list[tuple[str, str]]) -> bool:
    """HTTP/2 allows such headers."""
    if not {":method", ":path", ":scheme"} <= pseudo.keys() <= _PSEUDO or not _NOT_HTTP2.isdisjoint(fields):
        return False
    if fields.get("te", "trailers") != "trailers" or not _LENGTH.fullmatch(fields.get("content-length", "0")):
        return False
    authority = pseudo.get(":authority")
    if not pseudo[":path"] or (authority is not None and fields.get("host", authority) != authority):
        return False
    are_names = _NAMES.fullmatch("".join(f"{name}," for name in fields)) is not None
    return are_names and _CONTROLS.search("".join(value for _, value in headers)) is None


def are_trailers(headers: list[tuple[str, str]] | None) -> bool:
    """Such headers may come behind the messages."""
    return headers is not None and not any(name.startswith(":") for name, _ in headers)
