"""Files and folders that the YAML names: resolved relative to it, and checked to exist when it is read."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import GetCoreSchemaHandler, SerializationInfo, ValidationInfo
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file or folder that the YAML names: `written` as in the YAML, `path` absolute, `member` the Class of
    `file.py:Class`.
    """

    written: str
    path: Path
    member: str = ""

    @property
    def absolute(self) -> str:
        """As it could be written in a YAML file anywhere."""
        return f"{self.path}:{self.member}" if self.member else str(self.path)


ABSOLUTE: Final = "absolute paths"
"""The context for which files are written with absolute paths, else as in the YAML."""


def _plain(file: FileRef, info: SerializationInfo) -> str:
    return file.absolute if info.context == ABSOLUTE else file.written


@dataclass(frozen=True, slots=True)
class Existing:
    """Annotation of a FileRef: a path relative to the YAML file (the validation's context) that exists; `new`: a file
    to write, whose folder exists.
    """

    kind: Literal["any", "file", "folder", "member", "new"]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(min_length=1, strict=True)
        written = core_schema.plain_serializer_function_ser_schema(_plain, info_arg=True)
        return core_schema.with_info_after_validator_function(self._locate, text, serialization=written)

    def _locate(self, written: str, info: ValidationInfo) -> FileRef:
        folder = info.context.parent if isinstance(info.context, Path) else Path()
        name, member = written, ""
        if self.kind == "member" and (split := re.fullmatch(r"(.+):([^\W\d][\w.]*)", written)):
            name, member = split.groups()
        try:
            path = (folder / Path(name).expanduser()).absolute()
        except RuntimeError:
            raise ValueError(f"whose home is {name.partition('/')[0]}? Write the whole path") from None
        if self.kind == "new":
            if path.is_dir() or not path.parent.is_dir():
                raise ValueError(f"expected the name of a file in a folder that exists: {path}")
            return FileRef(written, path)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise ValueError(f"{(error.strerror or 'unreadable').lower()}: {path}") from None
        if self.kind == "file" and stat.S_ISDIR(mode):
            raise ValueError(f"a directory, expected a file: {path}")
        if self.kind == "file" and not stat.S_ISREG(mode):  # a pipe or a device may never end
            raise ValueError(f"not a regular file: {path}")
        if self.kind == "folder" and not stat.S_ISDIR(mode):
            raise ValueError(f"not a directory: {path}")
        return FileRef(written, path, member)
