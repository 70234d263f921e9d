"""What models' code raises, in the log: with its traceback, and whose request it was.

A model that fails with every request must not fill the disk: of each kind of exception in a model one is told a minute,
and how many were left out since.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed, Unknown, text_of

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
MAX_KINDS: Final = 1024
"""Models with kinds of exceptions that are remembered; a model may make new ones without end."""


@dataclass(slots=True)
class _Told:
    """Of one kind of exception in one model: when the last was logged, and how many were not since."""

    at: float
    left_out: int = 0


class FailureLog:
    """Failures of all models. In any thread; `clock` tells seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str], _Told] = {}
        self._lock = threading.Lock()

    def note(self, error: GatewayError, request: InferRequest) -> None:
        """An error that is a request's outcome: the log has it if its model's code has failed, and not what the caller
        did wrong. A part's failure is told with the part: of what is composed of it, the text is enough.
        """
        if error.is_logged or not isinstance(error, (ModelFailed, Unknown)):
            return
        view = request.view
        name = getattr(getattr(view, "handle", None), "name", view.name)
        cause = error.__cause__
        left_out = self._admit(name, type(error if cause is None else cause).__qualname__)
        if left_out is None:
            return
        log.error(
            "model %s version %s failed%s: %s%s",
            name,
            getattr(view, "version", "?"),
            _whose(request),
            text_of(error),
            f" ({left_out} more since the last were left out)" if left_out else "",
            exc_info=None if cause is None or isinstance(cause, GatewayError) else cause,
        )

    def _admit(self, model: str, kind: str) -> int | None:
        """How many were left out before this one; None if it is, too."""
        now = self._clock()
        with self._lock:
            told = self._told.get((model, kind))
            if told is None:
                if len(self._told) >= MAX_KINDS:
                    self._told.clear()
                self._told[model, kind] = _Told(now)
                return 0
            if now - told.at < INTERVAL_S:
                told.left_out += 1
                return None
            left_out = told.left_out
            told.at, told.left_out = now, 0
            return left_out


def _whose(request: InferRequest) -> str:
    """By the id that the answer's headers have, and by the dialect's own; callers choose both."""
    ids = dict.fromkeys(each for each in (request.cancellation.request_id, request.id) if each)
    return f", request {', '.join(map(repr, ids))}" if ids else ""


FAILURES: Final = FailureLog()
"""The process's."""
