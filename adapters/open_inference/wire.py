"""What a request says of the form of its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""How many bytes of a body are JSON; binary tensors follow them. Counted before any compression."""


@dataclass(frozen=True, slots=True)
class Wire:
    """`binary` names the outputs that go out as bytes behind the JSON, `coding` is the compression of the whole: gzip,
    deflate or "".
    """

    binary: frozenset[str] = frozenset()
    coding: str = ""


PLAIN: Final = Wire()


@dataclass(frozen=True, slots=True)
class StreamWire:
    """What a request of a stream says of its replies: `ends` asks for a message after a decoupled model's last answer,
    which names the version as the request did.
    """

    ends: bool
    version: str
