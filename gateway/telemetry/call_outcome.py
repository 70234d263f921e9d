"""What became of one call, told once when it is over: metrics, the access log and spans read this and nothing else."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Endpoint, TokenMeter
from tensorgate.gateway.contract.engine import TakesPieces
from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.telemetry.call_record import CallRecord

INFERENCES: Final = frozenset(
    ("infer", "stream_infer", "generate", "generate_stream", "classify", "regress", "multi_inference")
)
"""The methods of calls that count as a model's although they have never reached it."""


class FailureKind(NamedTuple):
    """What kind of error a call ended with."""

    error: str
    """The class name of the error, "" where there is none."""
    reason: ErrorReason


CALLER_LEFT: Final = FailureKind("", ErrorReason.CANCELLED)


class CallOutcome:
    """One call, filled in while it is answered: what has not been reached keeps the value of the class."""

    # No __init__: that would be one more call for each request.
    endpoint: Endpoint
    call: Call
    begun: float
    """When the call came, in seconds of time.perf_counter()."""
    call_record: CallRecord | None = None
    """What becomes of the call, where somebody wants to know; the observer takes it away."""
    question: Any = None
    """What the call asked; None if it could not be read."""
    forwarded: ModelView | None = None
    """The model whose server answered the call, unread."""
    code = Code.CANCELLED
    """Of what kind the call's error is: OK after the last answer, CANCELLED for a call that was ended from outside."""
    reply_code = Code.CANCELLED
    """Of what kind the caller was told that the error is."""
    failure = CALLER_LEFT
    """Of what kind the error is, where `code` is not OK."""
    error_text = ""
    """What the error says, as far as callers may know."""
    named: tuple[str, int | str] = ("", "")
    """The model that a call which failed is about, by its public name, and its version; "" for what is not known."""
    counted: Any = None
    """What monitoring counts of a call that another process has answered."""
    seconds = 0.0
    """How long the call took; set once it is over."""
    model_seconds = 0.0
    """From the submission of an inference to the model's last answer; 0 where that did not come."""
    answered = 0.0
    """When the model had given its last answer, in seconds of time.perf_counter()."""
    meter: TokenMeter | None = None
    """Counts the tokens of a call that another server answers."""
    seen_by: TakesPieces | None = None
    """Who sees the answer of another server pass, beside the meter."""
    recorded: Any = None
    """What is kept of a call that is recorded: see recording.recorder.CallRecording."""
