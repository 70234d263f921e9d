"""The base of everything that YAML sets."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Base of everything that YAML sets: immutable, no unknown keys, no coercion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
