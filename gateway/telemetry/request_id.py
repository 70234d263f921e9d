"""Names of single calls, by which callers, logs and traces speak of the same one.

A caller's own is kept if it is short and printable ASCII without spaces, so that it can go into headers and logs as it
is. Others are made: unique to the process by a counter, among processes by random bytes.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from itertools import chain, count
from typing import Final

REQUEST_ID: Final = "x-request-id"
"""The header, and the gRPC metadata."""
LONGEST: Final = 128
_SANE: Final = re.compile(rf"[\x21-\x7e]{{1,{LONGEST}}}").fullmatch
_LAST_BYTES: Final = tuple(f"{byte:02x}" for byte in range(256))


def is_valid(text: str) -> bool:
    """Whether a caller's id may go into an answer's headers, and into logs."""
    return _SANE(text) is not None


def maker() -> Callable[[], str]:
    """What gives a new one each time, in one thread. They are made by the 256, each in a third of the time then."""
    prefix = secrets.token_hex(8)
    blocks = (map(f"{prefix}-{number:x}".__add__, _LAST_BYTES) for number in count())
    return chain.from_iterable(blocks).__next__


class _Maker:
    """Makes ids for this process. A fork, which a supervised worker is, begins with other random bytes."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._make = maker()

    def __call__(self) -> str:
        return self._make()


new: Final[Callable[[], str]] = _Maker()
