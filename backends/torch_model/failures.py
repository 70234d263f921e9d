"""What torch raises, as errors that callers may see: its last line, without where in whose code it was.

Lack of memory and a failed GPU leave as they are: whoever keeps the model has to know them.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.errors import GatewayError, InvalidArgument, ModelFailed

_MAX_CHARACTERS: Final = 1024  # the text may quote what was sent
_SAID: Final = re.compile(
    r"^(?:builtins\.)?(?:RuntimeError: )?(?=[A-Za-z.]*(?:Error|Exception): )|^RuntimeError: ", re.MULTILINE
)
_WHERE: Final = re.compile(
    r"\n\s*(?:Exception raised from |C\+\+ CapturedTraceback|While executing |Original traceback)"
)
_FILE: Final = re.compile(r"^\s*File \".*|^Traceback of TorchScript.*|^\s*~+.*|^\s*at .*", re.MULTILINE)


def told(torch: Any, error: Exception) -> Exception:
    """What to raise in its place."""
    passed = (GatewayError, torch.OutOfMemoryError, getattr(torch, "AcceleratorError", GatewayError))
    text = str(error)
    if isinstance(error, passed) or text.startswith("CUDA error"):
        return error
    if text.startswith("Expected input at "):  # an exported program's own check of its inputs
        return InvalidArgument(plain(text))
    return ModelFailed(plain(text) or type(error).__name__)


def plain(text: str) -> str:
    """What happened, in one line. TorchScript tells first where, and at its end what."""
    text = text[-4 * _MAX_CHARACTERS :] if "TorchScript" in text[:200] else text[: 4 * _MAX_CHARACTERS]
    text = _WHERE.split(text, maxsplit=1)[0]
    said = list(_SAID.finditer(text))
    if said:
        text = text[said[-1].end() :]
    line = " ".join([part for part in map(str.strip, _FILE.sub("", text).splitlines()) if part])
    return line if len(line) <= _MAX_CHARACTERS else line[:_MAX_CHARACTERS] + "..."
