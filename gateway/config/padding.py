"""What a model's part of the configuration may say of rows and lengths that are added to batches."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from tensorgate.gateway.config.values import Section, refuse
from tensorgate.gateway.contract.backend import Cut, RaggedInput


class RaggedInputConfig(Section):
    """An input whose length differs from request to request."""

    axes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Along which axes; 0 is the batch dimension. Empty: all that vary."""
    value: float | str | None = None
    """What it is filled up with; null: 0, or empty text."""
    to_multiple_of: int = Field(default=1, ge=1, le=1 << 20)
    """Lengths are rounded up to a multiple of this."""


class CutConfig(Section):
    """An output that is as long as an input: each request gets its own length of it."""

    output: str = Field(min_length=1)
    """The output's name."""
    axis: int = Field(default=1, ge=1)
    """Along which axis."""
    to: str = Field(pattern=r"^.+\.[1-9][0-9]?$")
    """The input and its axis, ids.1 for example."""

    def cut(self) -> Cut:
        """As the pipeline takes it."""
        name, _, axis = self.to.rpartition(".")
        return Cut(self.output, self.axis, name, int(axis))


class RaggedConfig(Section):
    """Requests of different lengths in one batch: all become as long as the longest, and what differs by more than half
    beyond 1024 runs apart. For models that mask what was added, or compute every element by itself.
    """

    inputs: dict[str, RaggedInputConfig] = Field(min_length=1)
    """An input -> how it is filled up; "*" stands for every input that varies and is not named."""
    cut: tuple[CutConfig, ...] = ()
    """Outputs that are cut back."""

    @field_validator("cut")
    @classmethod
    def _cut_to_what_is_ragged(cls, cuts: tuple[CutConfig, ...], info: ValidationInfo) -> tuple[CutConfig, ...]:
        inputs = info.data.get("inputs")
        for index, each in enumerate(cuts):
            cut = each.cut()
            one = None if inputs is None else inputs.get(cut.input, inputs.get("*"))
            if inputs is not None and (one is None or (one.axes and cut.input_axis not in one.axes)):
                raise refuse(index, "to", text=f'"{each.to}" is not a ragged axis of one of these inputs')
        return cuts

    def ragged(self) -> dict[str, RaggedInput]:
        """As the pipeline takes it."""
        return {name: RaggedInput(one.axes, one.value, one.to_multiple_of) for name, one in self.inputs.items()}
