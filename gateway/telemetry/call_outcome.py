"""What became of one call, told once when it is over: metrics, the access log and spans read this and nothing else."""

from __future__ import annotations

from typing import Any

from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import Code


class CallOutcome:
    """One call, filled in while it is answered: what has not been reached keeps its first value."""

    __slots__ = (
        "begun",
        "call",
        "code",
        "endpoint",
        "error_kind",
        "has_replied",
        "model_seconds",
        "question",
        "reply_code",
        "seconds",
    )

    def __init__(self, endpoint: Endpoint, call: Call, begun: float) -> None:
        self.endpoint = endpoint
        self.call = call
        self.begun = begun
        """When the call came, in seconds of time.perf_counter()."""
        self.question: Any = None
        """What the call asked; None if it could not be read."""
        self.code = self.reply_code = Code.CANCELLED
        """Of what kind the call's error is, and of what kind the caller was told that it is. OK after the last answer,
        CANCELLED for a call that was ended from outside."""
        self.error_kind = ""
        """The class name of the error, "" where there is none."""
        self.seconds = 0.0
        """How long the call took; set once it is over."""
        self.model_seconds = 0.0
        """From the submission of an inference to the model's last answer; 0 where that did not come."""
        self.has_replied = False
        """Whether an answer of a model has been sent."""
