"""One recorded call: a line of JSON. docs/record.md describes it for readers of other languages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

VERSION: Final = 1


class RecordedReply(msgspec.Struct, omit_defaults=True):
    """A reply: over HTTP with a status, over gRPC with a code."""

    after_s: float
    """Seconds since the call."""
    status: int = 200
    code: int = 0
    message: str = ""
    """The text of the gRPC status."""
    headers: Mapping[str, str] = {}
    text: str | None = None
    """The body, where it is UTF-8 text; else `data`."""
    data: bytes | None = None
    """In JSON as Base64."""
    left_out_bytes: int = 0
    """The length of a body that was too long to be kept."""


class RecordedCall(msgspec.Struct, omit_defaults=True):
    """A call and its replies."""

    v: int
    time: float
    """When it came, in seconds since 1970."""
    dialect: str
    transport: str
    """http or grpc."""
    stream: str
    """unary, single, server or bidi: see `Endpoint.stream`. Each message of a bidi stream is a call of its own."""
    method: str
    target: str
    """HTTP's request target, or the full name of the gRPC method."""
    headers: Mapping[str, str]
    """Without those that are redacted."""
    seconds: float
    """How long it took in all."""
    ended: str
    """The name of the gRPC code that stands for its end: OK, INVALID_ARGUMENT, CANCELLED, …"""
    replies: Sequence[RecordedReply] = ()
    text: str | None = None
    data: bytes | None = None
    left_out_bytes: int = 0
    deadline_s: float | None = None
    """How long the caller would have waited."""
    listener: str = ""
    caller: str | None = None
    model: str = ""
    version: int = 0
    request_id: str = ""


_decoder: Final = msgspec.json.Decoder(RecordedCall)


def body_of(part: RecordedCall | RecordedReply) -> bytes | None:
    """The body of a call or reply; None if it was not kept."""
    if part.left_out_bytes:
        return None
    if part.text is not None:
        return part.text.encode()
    return part.data or b""


def read_files(files: Sequence[Path]) -> Iterator[RecordedCall]:
    """All calls of recorded files, file by file. The last line of a file may be cut off.

    Raises ValueError naming the file and line of what is no recorded call; OSError.
    """
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    call = _decoder.decode(line)
                except msgspec.MsgspecError as error:
                    if not line.endswith(b"\n"):  # who wrote it was killed meanwhile
                        break
                    raise ValueError(f"{file}:{number}: no recorded call: {error}") from None
                if call.v != VERSION:
                    raise ValueError(f"{file}:{number}: a recording of version {call.v}, this program reads {VERSION}")
                yield call
