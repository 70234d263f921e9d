"""Sequences of requests."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.message import InvalidArgument


class SequenceIdMissing(InvalidArgument):
    """The model keeps sequences apart, and the request does not say to which one it belongs."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' takes requests of sequences only, and this one has no sequence id")
        self.model = model


class SequenceNotStarted(InvalidArgument):
    """No such sequence is alive: it has not been started, has ended, or was idle for too long."""

    def __init__(self, sequence: int | str, model: str) -> None:
        super().__init__(f"sequence {sequence} of model '{model}' has not been started")
        self.sequence = sequence
        self.model = model


class SequenceBatch(InvalidArgument):
    """A request of a sequence is one step of it, so that it has one row."""

    def __init__(self, model: str) -> None:
        super().__init__(f"a request of a sequence has one row, model '{model}' takes no more at once")
        self.model = model


class SequenceIdMismatch(InvalidArgument):
    """The model is handed the sequence's id as a number of `datatype`, and this one is none."""

    def __init__(self, sequence: int | str, datatype: str, model: str) -> None:
        super().__init__(f"sequence id {sequence} does not fit model '{model}', which takes it as {datatype}")
        self.sequence = sequence
        self.datatype = datatype
        self.model = model
