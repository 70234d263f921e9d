"""pb_utils.Logger: what a model logs, under its name in Python's logging."""

from __future__ import annotations

import logging
from enum import IntEnum
from functools import partialmethod
from typing import ClassVar, Final


class LogLevel(IntEnum):
    """Triton's levels; verbose is Python's debug."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVELS: Final = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class Logger:
    """Used as a class, never made. Each model has a subclass of its own, with its own log."""

    INFO: ClassVar = LogLevel.INFO
    WARNING: ClassVar = LogLevel.WARNING
    ERROR: ClassVar = LogLevel.ERROR
    VERBOSE: ClassVar = LogLevel.VERBOSE
    target: ClassVar[logging.Logger]

    @classmethod
    def log(cls, message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Raises TypeError for what is no text or no LogLevel."""
        if not isinstance(message, str) or not isinstance(level, LogLevel):
            raise TypeError(f"log takes a text and a LogLevel, not {type(message).__name__}, {type(level).__name__}")
        cls.target.log(_LEVELS[level], "%s", message)

    log_info = partialmethod(log, level=LogLevel.INFO)
    log_warn = partialmethod(log, level=LogLevel.WARNING)
    log_error = partialmethod(log, level=LogLevel.ERROR)
    log_verbose = partialmethod(log, level=LogLevel.VERBOSE)


def logger_of(model: str) -> type[Logger]:
    """The Logger of one model."""
    return type("Logger", (Logger,), {"target": logging.getLogger(f"tensorgate.model.{model}")})
