"""What models' code raises, in the log: with its traceback, and whose request it was.

A model that fails with every request must not fill the disk: of each model some failures are told at once, then some of
every ten seconds, and how many were left out since.
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

BURST: Final = 5
INTERVAL_S: Final = 10.0


@dataclass(slots=True)
class _Window:
    """Of one model: since when, how many were logged in it, and how many were not since the last that was."""

    since: float
    logged: int = 0
    left_out: int = 0


class FailureLog:
    """Failures of all models. In any thread; `clock` tells seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._lock = threading.Lock()

    def note(self, error: GatewayError, request: InferRequest) -> None:
        """An error that is a request's outcome: the log has it if its model's code has failed, and not what the caller
        did wrong. A part's failure is told with the part: of what is composed of it, the text is enough.
        """
        if error.is_logged or not isinstance(error, (ModelFailed, Unknown)):
            return
        view = request.view
        name = getattr(getattr(view, "handle", None), "name", view.name)
        left_out = self._admit(name)
        if left_out is None:
            return
        cause = error.__cause__
        log.error(
            "model %s version %s failed%s: %s%s",
            name,
            getattr(view, "version", "?"),
            _whose(request),
            text_of(error),
            f" ({left_out} more since the last were left out)" if left_out else "",
            exc_info=None if cause is None or isinstance(cause, GatewayError) else cause,
        )

    def _admit(self, model: str) -> int | None:
        """How many were left out before this one; None if it is, too."""
        now = self._clock()
        with self._lock:
            window = self._windows.get(model)
            if window is None:
                window = self._windows[model] = _Window(now)
            if now - window.since >= INTERVAL_S:
                window.since, window.logged = now, 0
            if window.logged >= BURST:
                window.left_out += 1
                return None
            window.logged += 1
            left_out, window.left_out = window.left_out, 0
            return left_out


def _whose(request: InferRequest) -> str:
    """By the id that the answer's headers have, and by the dialect's own; callers choose both."""
    ids = dict.fromkeys(each for each in (request.cancellation.request_id, request.id) if each)
    return f", request {', '.join(map(repr, ids))}" if ids else ""


FAILURES: Final = FailureLog()
"""The process's."""
