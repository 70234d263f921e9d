"""What the engine and a model's own process say to each other, and the process that such are forked from."""

from __future__ import annotations

from typing import TypeAlias

from tensorgate.gateway.crossing.messages import (
    Classes,
    Failure,
    Hello,
    Message,
    ModelProgram,
    Release,
    SignatureSpec,
    Spec,
    Tensors,
)

# ------------------------------------------------------------------------------------------------- engine to the model


class StartModel(Message, tag=50):
    """What one instance is to be. The first message."""

    program: ModelProgram
    max_memory_bytes: int = 0
    """0: no limit."""


class RunRequest(Message):
    """One request of a batch. See canonical.InferRequest."""

    inputs: Tensors
    id: str
    outputs: tuple[tuple[str, int], ...]
    """(name, top_k)"""
    parameters: dict[str, bool | int | float | str]
    signature: str = ""
    priority: int = 0
    sequence: tuple[int | str, bool, bool] | None = None
    """(id, start, end)"""
    deadline: float | None = None
    stream: bool = False
    request_id: str = ""
    trial: bool = False


class RunBatch(Message, tag=51):
    """Requests that share a run, by the executor of this number."""

    run: int
    executor: int
    requests: tuple[RunRequest, ...]


class LeaveRun(Message, tag=52):
    """Nobody waits for this request of a run any more; -1: nobody takes further answers of the run."""

    run: int
    request: int


class RunCredit(Message, tag=53):
    """So many more answers of a decoupled model may come."""

    run: int
    answers: int


class StopModel(Message, tag=54):
    """Close the model and end."""


# ------------------------------------------------------------------------------------------------- model to the engine


class ModelStarted(Message, tag=60):
    """See execution.Computation and execution.Executor."""

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    required: tuple[Spec, ...]
    signatures: tuple[SignatureSpec, ...]
    max_batch_size: int
    platform: str
    device: str
    executors: int
    decoupled: bool
    merges: bool
    any_shape: bool
    sees_requests: bool
    pure: bool
    ragged: dict[str, tuple[int, ...]]


class StartFailed(Message, tag=61):
    """`kind` is the builtin exception that says why, "" for any other."""

    kind: str
    text: str


class RunAnswer(Message, tag=64):
    """See canonical.InferResponse."""

    outputs: Tensors
    parameters: dict[str, bool | int | float | str]
    final: bool
    classes: dict[str, Classes]


class RunFailure(Message, tag=65):
    """An error in the place of a response."""

    failure: Failure


class RunStep(Message, tag=62):
    """One response or error for each request of a run. `took`: stages, and their seconds, since the last step."""

    run: int
    outcomes: tuple[RunAnswer | RunFailure, ...]
    took: tuple[tuple[str, float], ...]
    last: bool
    """Whether the run has ended with it."""


class RunEnd(Message, tag=63):
    """The end of a run; with a failure, of all its requests."""

    run: int
    failure: Failure | None = None


ToModel: TypeAlias = Hello | Release | StartModel | RunBatch | LeaveRun | RunCredit | StopModel
FromModel: TypeAlias = Hello | Release | ModelStarted | StartFailed | RunStep | RunEnd


# ------------------------------------------------------------------------------------ engine and the template of models


class ForkModel(Message, tag=70):
    """Fork a process. Two descriptors come along: its connection, and where its standard output and errors go."""

    number: int


class KillModel(Message, tag=71):
    """End the process of this number, now."""

    number: int


class ModelForked(Message, tag=72):
    """The process of this number is there."""

    number: int
    pid: int


class ModelEnded(Message, tag=73):
    """The process of this number has ended: its exit status, or minus a signal's number."""

    number: int
    status: int
