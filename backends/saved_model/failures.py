"""What TensorFlow raises, as errors that callers may see.

Its texts name nodes of the graph, and in eager functions where in somebody's Python they come from: that is taken out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tensorgate.gateway.contract.errors import (
    AlreadyExists,
    Cancelled,
    Code,
    Exhausted,
    GatewayError,
    InvalidArgument,
    ModelFailed,
    NotFound,
    Unavailable,
    Unsupported,
)

_MAX_CHARACTERS: Final = 1024  # the text may quote what was sent
_KINDS: Final[Mapping[int, Callable[[str], GatewayError]]] = {
    Code.CANCELLED: Cancelled,
    Code.INVALID_ARGUMENT: InvalidArgument,
    Code.NOT_FOUND: NotFound,
    Code.ALREADY_EXISTS: AlreadyExists,
    Code.RESOURCE_EXHAUSTED: Exhausted,
    Code.OUT_OF_RANGE: InvalidArgument,
    Code.UNIMPLEMENTED: Unsupported,
    Code.UNAVAILABLE: Unavailable,
}
_WHERE: Final = re.compile(
    r"^Graph execution error:$|^Detected at node .*|^<stack traces unavailable>$|^\d+ root error\(s\) found\.$"
    r"|^ +File \".*(?:\n {4,}.*)?|^Node: '.*'$|^\s*\[\[.*",
    re.MULTILINE,
)
_FUNCTION: Final = re.compile(r"\{\{function_node [^}]*\}\} ?|\{\{node [^}]*\}\} ?| ?\[Op:[^\]]*\]")
_FIRST_ROOT: Final = re.compile(r"^ *\(0\) ?(?:[A-Z_]+: )?", re.MULTILINE)
_FURTHER_ROOTS: Final = re.compile(r"^ *\(1\) |^\d+ successful operations\.", re.MULTILINE)


def public_error(error: Exception) -> GatewayError:
    """TensorFlow's codes are gRPC's. An error whose text quotes bytes that are no UTF-8 loses its code on the way to
    Python; what it quotes is what a caller sent.
    """
    if isinstance(error, UnicodeDecodeError):
        return InvalidArgument(plain(error.object.decode(errors="replace")))
    kind = _KINDS.get(getattr(error, "error_code", Code.INTERNAL), ModelFailed)
    return kind(plain(getattr(error, "message", None) or str(error)) or type(error).__name__)


def plain(text: str) -> str:
    """What happened, without where in the graph, in one line; of several failures at once, the first."""
    text = text[: 4 * _MAX_CHARACTERS]
    text = _FIRST_ROOT.sub("", _FURTHER_ROOTS.split(text, maxsplit=1)[0])
    text = _FUNCTION.sub("", _WHERE.sub("", text))
    line = " ".join([part for part in map(str.strip, text.splitlines()) if part])
    return line if len(line) <= _MAX_CHARACTERS else line[:_MAX_CHARACTERS] + "..."
