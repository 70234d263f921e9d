"""A model's queue, priorities and sequences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from tensorgate.gateway.config.values import refuse
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

_LEVEL: Final = re.compile(r"[1-9][0-9]{0,19}")
_ID_DATATYPES: Final = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")


class QueueConfig(Options):
    """What becomes of requests that wait long."""

    timeout_us: int = Field(default=0, ge=0)
    """How long a request may wait, in microseconds; 0: as long as it takes."""
    timeout_action: Literal["reject", "delay"] = "reject"
    """reject: who has waited too long is refused; delay: lets all others pass (not in a sequence, which keeps its
    order)."""
    allow_timeout_override: bool = False
    """Whether a request may shorten its wait: V2's `timeout`."""


class LevelConfig(QueueConfig):
    """How requests of one priority wait, in place of the model's `queue`."""

    max_queue_size: int | None = Field(default=None, ge=1)
    """How many of them may wait; null is the model's max_queue_size."""


class PrioritiesConfig(Options):
    """Priorities: 1 is the highest, and goes first. A queue is as long for each as for a model without."""

    levels: int = Field(ge=1, lt=2**64)
    """How many there are."""
    default: int = Field(ge=1)
    """That of requests that name none, or none of these."""
    queue_policies: dict[str, LevelConfig] = Field(default_factory=dict)
    """A priority, in quotes -> how its requests wait, where that differs from the model's `queue`."""

    @field_validator("default")
    @classmethod
    def _default_is_a_level(cls, default: int, info: ValidationInfo) -> int:
        levels = info.data.get("levels", default)
        if default > levels:
            raise ValueError(f"there are {levels} levels")
        return default

    @field_validator("queue_policies")
    @classmethod
    def _policies_are_of_levels(cls, policies: dict[str, LevelConfig], info: ValidationInfo) -> dict[str, LevelConfig]:
        levels = info.data.get("levels", 0)
        for level in policies:
            if levels and not (_LEVEL.fullmatch(level) and int(level) <= levels):
                raise refuse(level, text=f"no priority; there are {levels}, from 1 on")
        return policies


class ControlConfig(Options):
    """An input that tells the model where in which sequence a request is. Callers neither see nor send it."""

    input: str = Field(min_length=1)
    """The input's name."""
    kind: Literal["start", "ready", "end", "correlation_id"]
    """What it tells: whether the request is the first, is one at all, is the last; or the id of its sequence."""
    datatype: Literal[tuple(DTYPES)] = "INT32"  # type: ignore[valid-type]
    """The input's datatype."""
    values: tuple[float, float] = (0, 1)
    """What no and yes are called."""

    @field_validator("datatype")
    @classmethod
    def _carries_its_kind(cls, datatype: str, info: ValidationInfo) -> str:
        if info.data.get("kind") == "correlation_id" and datatype not in _ID_DATATYPES:
            raise ValueError(f"a correlation id is one of {', '.join(_ID_DATATYPES)}")
        if info.data.get("kind") != "correlation_id" and datatype == "BYTES":
            raise ValueError("yes and no are numbers")
        return datatype


class StateConfig(Options):
    """An output of each step of a sequence that is an input of its next. Callers neither see nor send it."""

    input: str = Field(min_length=1)
    """The input's name."""
    output: str = Field(min_length=1)
    """The output's name."""
    datatype: Literal[tuple(DTYPES)]  # type: ignore[valid-type]
    """The datatype of both."""
    shape: tuple[Annotated[int, Field(ge=-1)], ...]
    """The shape of the first step's, batch dimension included; -1 counts as 1."""
    initial: Annotated[
        Annotated[FileRef, Existing("file")] | None,
        BeforeValidator(lambda value: None if value == "zero" else value),
    ] = None
    """The first step's: zero, or a file with its raw bytes, little-endian."""


class SequencesConfig(Options):
    """A model whose requests come in sequences, each run in order on one instance.

    An instance keeps max_batch_size sequences at a time, at least one; others wait for one that ends or expires.
    """

    max_idle_us: int = Field(default=1_000_000, ge=1)
    """How long a sequence may be without requests before it is forgotten, in microseconds."""
    controls: tuple[ControlConfig, ...] = ()
    """Inputs that the gateway adds."""
    states: tuple[StateConfig, ...] = ()
    """What the gateway remembers from one request of a sequence to the next."""

    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs that callers do not send, of any shape."""
        return (
            *(TensorSpec(control.input, DTYPES[control.datatype]) for control in self.controls),
            *(TensorSpec(state.input, DTYPES[state.datatype]) for state in self.states),
        )

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs that callers do not see."""
        return tuple(TensorSpec(state.output, DTYPES[state.datatype]) for state in self.states)

    def refuse_declared(self, key: Literal["input", "output"], names: Sequence[str]) -> None:
        """Raise a ValidationError if a tensor of these names, which callers send or see, is a control or state."""
        for place, tensors in (("controls", self.controls), ("states", self.states)):
            for index, tensor in enumerate(tensors):
                name = getattr(tensor, key, "")
                if name in names:
                    raise refuse(place, index, key, text=f'"{name}" stands already among {key}s')

    @field_validator("controls", "states")
    @classmethod
    def _inputs_differ(
        cls, tensors: tuple[ControlConfig | StateConfig, ...], info: ValidationInfo
    ) -> tuple[ControlConfig | StateConfig, ...]:
        taken = [control.input for control in info.data.get("controls", ())]
        for index, tensor in enumerate(tensors):
            if tensor.input in taken:
                raise refuse(index, "input", text=f'"{tensor.input}" stands already among controls and states')
            taken.append(tensor.input)
        return tensors
