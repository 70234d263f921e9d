"""What a model runs before it is ready."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tensorgate.gateway.config.values import Section
from tensorgate.gateway.contract.files import Existing, FileRef


class WarmupInput(Section):
    """One input of a sample."""

    data: Literal["ones", "zeros", "random"] = "ones"
    """What it is filled with; random: numbers from 0 to 1, integers to 9, the same at every start."""
    file: Annotated[FileRef, Existing("file")] | None = None
    """A file to read it from, in place of data: .npy, .json, or any other with its bytes as they are."""
    shape: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """The shape of one row, or the whole shape without a batch dimension; null: as it is declared, 1 where it
    varies."""


class WarmupSample(Section):
    """A request that a model runs before it is ready, in each of its instances."""

    name: str = ""
    """What the sample is called where it fails."""
    batch_size: int = Field(default=1, ge=1)
    """How many rows it has; each is the same."""
    count: int = Field(default=1, ge=1, le=100_000)
    """How often it runs."""
    inputs: dict[str, WarmupInput] = Field(default_factory=dict)
    """Its inputs; those that are not named are as in the model's example, or ones."""
