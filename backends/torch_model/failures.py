"""What torch raises, as errors that callers may see: its last line, without where in whose code it was."""

from __future__ import annotations

import re
from typing import Final

from tensorgate.backends.execution.failures import failure_of
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument

_MAX_CHARACTERS: Final = 1024  # the text may quote what was sent
_MESSAGE: Final = re.compile(
    r"^(?:builtins\.)?(?:RuntimeError: )?(?=[A-Za-z.]*(?:Error|Exception): )|^RuntimeError: ", re.MULTILINE
)
_WHERE: Final = re.compile(
    r"\n\s*(?:Exception raised from |C\+\+ CapturedTraceback|While executing |Original traceback)"
)
_FILE: Final = re.compile(r"^\s*File \".*|^Traceback of TorchScript.*|^\s*~+.*|^\s*at .*", re.MULTILINE)
_OWN_CHECK: Final = "Expected input at "


def public_error(error: Exception, model: str) -> GatewayError:
    """An exported program checks its inputs' sizes: what it says then is about what was sent."""
    text = str(error)
    if text.startswith(_OWN_CHECK):
        return InvalidArgument(plain(text))
    return failure_of(error, model, plain(text))


def plain(text: str) -> str:
    """What happened, in one line. TorchScript tells first where, and at its end what."""
    text = text[-4 * _MAX_CHARACTERS :] if "TorchScript" in text[:200] else text[: 4 * _MAX_CHARACTERS]
    text = _WHERE.split(text, maxsplit=1)[0]
    messages = list(_MESSAGE.finditer(text))
    if messages:
        text = text[messages[-1].end() :]
    line = " ".join([part for part in map(str.strip, _FILE.sub("", text).splitlines()) if part])
    return line if len(line) <= _MAX_CHARACTERS else line[:_MAX_CHARACTERS] + "..."
