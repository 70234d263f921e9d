"""Files and folders that the YAML names: resolved relative to it, and checked to exist when it is read.

A model may also lie on another machine: whether it exists there is known when it is loaded.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import GetCoreSchemaHandler, SerializationInfo, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.contract.locations import OBJECT_STORES, Location, is_url, parse_location, split_member


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file or folder that the YAML names: `written` as in the YAML, `path` absolute, `member` the Class of
    `file.py:Class`. `location` is where it lies on another machine; its path is nowhere on this one then.
    """

    written: str
    path: Path
    member: str = ""
    location: Location | None = None

    @property
    def absolute(self) -> str:
        """As it could be written in a YAML file anywhere."""
        if self.location is not None:
            return self.written
        return f"{self.path}:{self.member}" if self.member else str(self.path)


ABSOLUTE: Final = "absolute paths"
"""The context for which files are written with absolute paths, else as in the YAML."""


def _plain(file: FileRef, info: SerializationInfo) -> str:
    return file.absolute if info.context == ABSOLUTE else file.written


@dataclass(frozen=True, slots=True)
class Existing:
    """Annotation of a FileRef: a path relative to the YAML file (the validation's context) that exists; `new`: a file
    to write, whose folder exists; `kept`: a folder that is made when it is needed; `or_elsewhere`: or a URL.
    """

    kind: Literal["any", "file", "folder", "member", "new", "kept"]
    or_elsewhere: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(min_length=1, strict=True)
        written = core_schema.plain_serializer_function_ser_schema(_plain, info_arg=True)
        return core_schema.with_info_after_validator_function(self._locate, text, serialization=written)

    def _locate(self, written: str, info: ValidationInfo) -> FileRef:
        folder = info.context.parent if isinstance(info.context, Path) else Path()
        if is_url(written):
            return self._elsewhere(written)
        name, member = written, ""
        if self.kind == "member" and (split := re.fullmatch(r"(.+):([^\W\d][\w.]*)", written)):
            name, member = split.groups()
        try:
            path = (folder / Path(name).expanduser()).absolute()
        except RuntimeError:
            raise ValueError(f"whose home is {name.partition('/')[0]}? Write the whole path") from None
        self._check(path)
        return FileRef(written, path, member)

    def _check(self, path: Path) -> None:
        """Raises ValueError for what is not there, or is something else."""
        if self.kind == "kept":
            if path.exists() and not path.is_dir():
                raise ValueError(f"not a directory: {path}")
            return
        if self.kind == "new":
            if path.is_dir() or not path.parent.is_dir():
                raise ValueError(f"expected the name of a file in a folder that exists: {path}")
            return
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

    def _elsewhere(self, written: str) -> FileRef:
        if not self.or_elsewhere:
            raise ValueError("expected a path of this machine: only models and repositories may lie elsewhere")
        url, member = split_member(written) if self.kind == "member" else (written, "")
        if not url:
            raise ValueError("expected the URL of a file.py:Class")
        location = parse_location(url)
        if location.scheme in OBJECT_STORES and find_spec("obstore") is None:
            raise ValueError(f"{location.scheme}:// needs the package obstore: {install_command('stores')}")
        return FileRef(written, Path(url), member, location)


def tree_bytes(path: Path) -> int:
    """The size of a file, or of all files below a folder."""
    if path.is_dir():
        return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
    return path.stat().st_size
