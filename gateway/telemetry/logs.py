"""What the process logs, as callers may change it: which levels, and in what form a line's time is written.

Python's levels, in Triton's vocabulary: `log_verbose_level` above 0 lets debug messages through, `log_info`,
`log_warning` and `log_error` their own (errors and worse). Until the first change, logging is as the process was
started. Source: Triton's logging extension.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from tensorgate.gateway.contract.errors import InvalidArgument

LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOG_LEVELS: Final = (("log_info", logging.INFO), ("log_warning", logging.WARNING), ("log_error", logging.ERROR))


class _IsoFormatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """2026-01-31T23:59:59Z"""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))


FORMATTERS: Final[Mapping[str, logging.Formatter]] = {
    "default": logging.Formatter(LINE),
    "ISO8601": _IsoFormatter(LINE),
}


class Logs:
    """The settings of one logger (the root, which all messages reach) and of its handlers."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger()
        level = self._logger.getEffectiveLevel()
        self._values: dict[str, bool | int | str] = {
            "log_file": "",
            **{name: level <= number for name, number in LOG_LEVELS},
            "log_verbose_level": int(level <= logging.DEBUG),
            "log_format": "default",
        }

    def settings(self) -> Mapping[str, bool | int | str]:
        """All of them. `log_file` is empty: the process logs to its standard error."""
        return dict(self._values)

    def change(self, changes: Mapping[str, bool | int | str]) -> None:
        """Set some, each of its setting's type; what has no such name is ignored. Raises InvalidArgument."""
        known = {name: value for name, value in changes.items() if name in self._values}
        form = str(known.get("log_format", "default"))
        if form not in FORMATTERS:
            raise InvalidArgument(f"invalid argument for log_format, got: {form[:256]}")
        if not known:
            return
        self._values.update(known)
        passing = [number for name, number in LOG_LEVELS if self._values[name]]
        if self._values["log_verbose_level"]:
            passing.append(logging.DEBUG)
        self._logger.setLevel(min(passing, default=logging.CRITICAL + 1))
        wanted = _Wanted(frozenset(passing))
        for handler in self._logger.handlers:
            for old in [each for each in handler.filters if isinstance(each, _Wanted)]:
                handler.removeFilter(old)
            handler.addFilter(wanted)
            if "log_format" in known:
                handler.setFormatter(FORMATTERS[form])


class _Wanted(logging.Filter):
    """Lets the wanted levels through; a message counts as the highest of ours that it reaches."""

    def __init__(self, levels: frozenset[int]) -> None:
        super().__init__()
        self._levels = levels

    def filter(self, record: logging.LogRecord) -> bool:
        reached = [number for _, number in LOG_LEVELS if number <= record.levelno]
        return max(reached, default=logging.DEBUG) in self._levels
