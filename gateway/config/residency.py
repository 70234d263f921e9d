"""Which models are in memory: all from the start on, or those that somebody asks for, as long as there is room."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from tensorgate.gateway.config.values import DEVICE, ByteSize, Duration, PublicName, refuse
from tensorgate.gateway.contract.options import Options

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""As `time.struct_time.tm_wday` counts them."""
Pattern = Annotated[str, Field(min_length=1)]
"""A name; * stands for any characters, ? for one."""


class PrefetchConfig(Options):
    """Models that are loaded before anybody asks, at a time of the day."""

    models: tuple[PublicName, ...] = Field(min_length=1)
    """Their names."""
    at: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    """When, in the time zone of the server: "07:30", in quotes."""
    days: tuple[Day, ...] = DAYS
    """On which days."""


class Residency(Options):
    """Which models are in memory. Without on_demand all are, from the start on, and nothing here applies."""

    on_demand: bool | tuple[Pattern, ...] = False
    """Which models are loaded only when somebody asks for them: true: all; or their names, where * stands for any
    characters. They make way for others where memory is short."""
    pin: tuple[Pattern, ...] = ()
    """Which of those are loaded at the start nevertheless, and stay."""
    max_resident_bytes: dict[Annotated[str, Field(pattern=f"^({DEVICE})$")], ByteSize] = Field(default_factory=dict)
    """cpu, or cuda:N -> how much the models that are loaded on demand may hold there, together with those that are
    pinned: {cpu: 16GiB, "cuda:0": 60GiB}. What is not named has no bound."""
    keep: Duration | None = None
    """How long a model that nobody asks for stays, as in 10m; null: until its room is needed."""
    wait: Duration = 30.0
    """How long a caller waits for a model that is being loaded, within his own deadline; then he is told when to ask
    again. 0: he is told at once, and the model is loaded meanwhile."""
    loads_at_once: int = Field(default=2, ge=1, le=64)
    """How many models may be loaded at the same time."""
    neighbours: dict[PublicName, tuple[PublicName, ...]] = Field(default_factory=dict)
    """A model -> those that are loaded after it, for whoever asks for it is about to ask for them. They never push out
    a model that was used since."""
    prefetch: tuple[PrefetchConfig, ...] = ()
    """Models that are loaded before anybody asks, at times of the day."""

    @field_validator("pin", "max_resident_bytes", "neighbours", "prefetch")
    @classmethod
    def _of_models_on_demand(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("on_demand", True) is False:
            raise ValueError("without on_demand all models are in memory; add on_demand: true beside it")
        return value

    @field_validator("max_resident_bytes")
    @classmethod
    def _of_one_device(cls, bounds: dict[str, int]) -> dict[str, int]:
        if "cuda" in bounds:
            raise refuse("cuda", text="which GPU? Write cuda:0")
        return bounds

    def is_on_demand(self, name: str) -> bool:
        """Whether a model of that name is loaded when somebody asks for it."""
        return _matches(name, self.on_demand) and not self.is_pinned(name)

    def is_pinned(self, name: str) -> bool:
        """Whether it is among those that stay."""
        return _matches(name, self.pin)


class ModelResidency(Options):
    """How a model is held that is loaded on demand, where that differs from the section `residency` of the file."""

    pin: bool = False
    """Whether it is loaded at the start, and stays. In this file alone: in a repository, name it in residency.pin."""
    keep: Duration | None = None
    """How long it stays while nobody asks for it; null: as the section says."""
    wait: Duration | None = None
    """How long callers wait for it; null: as the section says."""


def _matches(name: str, patterns: bool | tuple[str, ...]) -> bool:
    return patterns if isinstance(patterns, bool) else any(fnmatchcase(name, pattern) for pattern in patterns)
