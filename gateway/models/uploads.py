"""Files of a model that came with the call that loads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

MAX_FILES: Final = 1024
MAX_BYTES: Final = 2 << 30
_MAX_PARTS: Final = 16
_PROGRAMS: Final = re.compile(r"\.(py|pyc|pyo|pyw|pyd|pth|so|dll|dylib)$|\.so\.", re.IGNORECASE)

Upload: TypeAlias = "TemporaryDirectory[str]"
"""A private folder of one load's files. Whoever holds it cleans it up once nothing reads from it any more."""


def store(files: Mapping[str, bytes]) -> Upload:
    """Contents by path below the model's folder -> a folder that holds them, for this user's eyes only.

    Raises ValueError for paths that lead elsewhere, and for too much.
    """
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
        raise ValueError(f"more than {MAX_FILES} files or {MAX_BYTES} bytes")
    places = {name: _checked(name) for name in files}
    upload = TemporaryDirectory(prefix="tensorgate-upload-")
    try:
        for name, content in files.items():
            place = Path(upload.name, places[name])
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    except OSError as error:
        upload.cleanup()
        raise ValueError(f"file '{name}' cannot be stored: {error.strerror}") from None
    return upload


def first_program(names: Iterable[str]) -> str | None:
    """The first file, if any, that Python or the system's loader would take for a program."""
    return next((name for name in names if _PROGRAMS.search(name)), None)


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and str(path) == name and not path.is_absolute()
    if not plain or ".." in path.parts or not 0 < len(path.parts) <= _MAX_PARTS:
        raise ValueError(f"file path '{name}' does not lie below the model's folder")
    return path
