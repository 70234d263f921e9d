"""Who may change what a running server does: which models are loaded, and by whose word."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tensorgate.gateway.config.values import Section
from tensorgate.gateway.contract.files import Existing, FileRef

EVERYTHING = "*"


class ModelControl(Section):
    """Which models are loaded, and who decides. Source: Triton's model control modes."""

    mode: Literal["none", "poll", "explicit"] = "none"
    """none: all are loaded at start, and stay; poll: what changes on disk is followed; explicit: callers load and
    unload."""
    load: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Of mode explicit: the models that are loaded at start; "*" is all."""
    poll_seconds: float = Field(default=15, gt=0, allow_inf_nan=False)
    """Of mode poll: how often the disk is looked at."""
    allow_uploads: bool = False
    """Of mode explicit: whether a load may bring the model's files with it. Ports that others reach need admin or auth
    for that."""
    trusted: bool = False
    """Whether those files may be programs: Python, shared libraries, models of the backends python, triton_python,
    tensorflow and torch. Who may upload them has all that the server's user may do."""

    model_roots: tuple[Annotated[FileRef, Existing("folder")], ...] = ()
    """Of modes poll and explicit: the folders below which the models may lie that TensorFlow Serving's callers list in
    a reload, which replaces all that is served; without any, reloads are refused."""

    @field_validator("load")
    @classmethod
    def _explicit_only(cls, load: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if load and info.data.get("mode", "explicit") != "explicit":
            raise ValueError("only mode explicit chooses the models to load")
        return load

    @field_validator("model_roots")
    @classmethod
    def _for_callers(cls, roots: tuple[FileRef, ...], info: ValidationInfo) -> tuple[FileRef, ...]:
        if roots and info.data.get("mode") == "none":
            raise ValueError("mode none lets nobody reload")
        return roots

    def chosen(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those that are loaded at start, of all there are; one that is named need not be there."""
        if self.mode != "explicit" or EVERYTHING in self.load:
            return (*names, *(name for name in self.load if name not in names and name != EVERYTHING))
        return tuple(dict.fromkeys(self.load))


class Reload(Section):
    """When the configuration is read anew, beside SIGHUP and POST /admin/reload."""

    watch: bool = False
    """Whether it is followed: read anew whenever the file has become another."""
    poll_seconds: float = Field(default=1, gt=0, allow_inf_nan=False)
    """How often the file is looked at; it is read once it has been the same twice."""


class Admin(Section):
    """Who may call what changes the server's state: load, unload, online, log settings and their like."""

    header: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    """The HTTP header, or the gRPC metadata, that such calls must carry."""
    value_env: str | None = Field(default=None, min_length=1)
    """The environment variable that holds its value."""
    value_file: Annotated[FileRef, Existing("file")] | None = None
    """The file that holds its value, in place of a variable."""

    @model_validator(mode="after")
    def _has_a_value(self) -> Admin:
        if (self.value_env is None) == (self.value_file is None):
            raise ValueError("needs value_env or value_file, one of them")
        if not self.value():
            raise ValueError(f"the value of {self.header} is empty: {self._source}")
        if not self.value().isascii():
            raise ValueError(f"the value of {self.header} is not ASCII, which headers need: {self._source}")
        return self

    @property
    def _source(self) -> str:
        return self.value_env or (self.value_file.written if self.value_file else "")

    def value(self) -> bytes:
        """The value that callers must send. Kept out of every dump of the configuration."""
        if self.value_file is not None:
            return self.value_file.path.read_bytes().strip()
        return os.environ.get(self.value_env or "", "").strip().encode()
