"""What passes between the gateway and a model of sequences, and no caller sees: controls, and states.

A control tells the model where in which sequence a request is. A state is an output of one step that is an input of
the next. Source: Triton, control inputs and implicit state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, Array, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """An input that tells the model where in which sequence it is. `values` are what no and yes are called."""

    input: str
    kind: Literal["start", "ready", "end", "correlation_id"]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    values: tuple[float, float] = (0, 1)

    def array(self, value: float | bytes) -> Array:
        """The input with this value. Raises OverflowError."""
        return frozen(np.full(self.shape, np.array(value, self.dtype)))


@dataclass(frozen=True, slots=True, eq=False)
class SequenceState:
    """An output of each step that is an input of the next; `initial` is that of the first."""

    input: str
    output: str
    initial: Array


@dataclass(frozen=True, slots=True, eq=False)
class SequencePolicy:
    """How a model keeps sequences. Its controls and states are no caller's business. `batches_own_state`: requests of
    several sequences may share a run, though the model keeps their states itself.
    """

    max_idle_us: int = 1_000_000
    controls: tuple[Control, ...] = ()
    states: tuple[SequenceState, ...] = ()
    batches_own_state: bool = False

    @property
    def sequence_inputs(self) -> frozenset[str]:
        """The inputs that no caller sends."""
        return frozenset([each.input for each in self.controls] + [each.input for each in self.states])

    def visible(self, computation: Computation) -> Computation:
        """What callers see of it, and must send."""
        outputs = {state.output for state in self.states}
        return replace(
            computation,
            inputs=tuple(spec for spec in computation.inputs if spec.name not in self.sequence_inputs),
            outputs=tuple(spec for spec in computation.outputs if spec.name not in outputs),
            required=tuple(spec for spec in computation.required if spec.name not in self.sequence_inputs),
        )

    def first_inputs(self) -> Tensors:
        """The hidden inputs of some sequence's only request."""
        return {**self.flags(start=True, end=True), **self.identity(1), **self.initial_states()}

    def flags(self, *, start: bool, end: bool) -> Tensors:
        """The controls that say where in a sequence a request is."""
        public_error = {"start": start, "ready": True, "end": end}
        return {
            control.input: control.array(control.values[public_error[control.kind]])
            for control in self.controls
            if control.kind in public_error
        }

    def identity(self, sequence: int | str) -> Tensors:
        """The controls that say which sequence it is. Raises ValueError if the id is no value of their datatype."""
        return {
            control.input: _identity(control, sequence) for control in self.controls if control.kind == "correlation_id"
        }

    def initial_states(self) -> Tensors:
        return {state.input: state.initial for state in self.states}


def _identity(control: Control, sequence: int | str) -> Array:
    if control.dtype == BYTES:
        return control.array(str(sequence).encode())
    try:
        if isinstance(sequence, int):
            return control.array(sequence)
    except OverflowError:
        pass
    raise ValueError(DATATYPES[control.dtype])


def frozen(array: Array) -> Array:
    """Many requests share it: a model may not write into it."""
    array.flags.writeable = False
    return array
