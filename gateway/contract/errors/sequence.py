"""The request does not fit its sequence."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.failure import Cancelled
from tensorgate.gateway.contract.errors.message import InvalidArgument
from tensorgate.gateway.contract.errors.reasons import ErrorReason


class SequenceIdMissing(InvalidArgument):
    """The model takes sequences only, and the request has no sequence id."""

    error_reason = ErrorReason.SEQUENCE

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' takes requests of sequences only, and this one has no sequence id")
        self.model = model


class SequenceNotStarted(InvalidArgument):
    """The sequence is not active: it was not started, has ended, or was idle for too long."""

    error_reason = ErrorReason.SEQUENCE

    def __init__(self, sequence: int | str, model: str) -> None:
        super().__init__(f"sequence {sequence} of model '{model}' has not been started")
        self.sequence = sequence
        self.model = model


class SequenceCancelled(Cancelled):
    """An earlier request of the sequence was cancelled while both waited."""

    def __init__(self, sequence: int | str, model: str) -> None:
        super().__init__(f"sequence {sequence} of model '{model}' was cancelled")
        self.sequence = sequence
        self.model = model


class SequenceBatch(InvalidArgument):
    """The request has several rows, but a step of a sequence has one."""

    error_reason = ErrorReason.SEQUENCE

    def __init__(self, model: str) -> None:
        super().__init__(f"a request of a sequence has one row, model '{model}' takes no more at once")
        self.model = model


class SequenceIdMismatch(InvalidArgument):
    """The model takes the sequence id as a tensor of `datatype`, which cannot hold this id."""

    error_reason = ErrorReason.SEQUENCE

    def __init__(self, sequence: int | str, datatype: str, model: str) -> None:
        super().__init__(f"sequence id {sequence} does not fit model '{model}', which takes it as {datatype}")
        self.sequence = sequence
        self.datatype = datatype
        self.model = model
