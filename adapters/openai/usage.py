"""How many tokens a call took that another server answers, read from what passes: the server's own count, which
stands at the end of an answer, and of an Anthropic stream at its beginning, too.

A stream without it has a token for each event at least. What is known of a prompt then is its size: a token is taken
for every four bytes of the request, as OpenAI says of English.
"""

from __future__ import annotations

import re
from typing import Final

from tensorgate.gateway.contract.call import Buffer, Call

_KEPT_BYTES: Final = 4 << 10
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_COMPLETION: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')
_TOTAL: Final = re.compile(rb'"total_tokens"\s*:\s*(\d{1,12})')
_EVENT: Final = b"data:"
_BYTES_A_TOKEN: Final = 4


class PassingTokens:
    """See contract.dialect.TokenMeter. It keeps the beginning and the end of the answer, and counts its events."""

    __slots__ = ("_asked_bytes", "_events", "_head", "_tail")

    def __init__(self, call: Call) -> None:
        self._asked_bytes = len(call.body)
        self._head = b""
        self._tail = b""
        self._events = 0

    def take(self, piece: Buffer) -> None:
        """The next piece of the answer."""
        data = bytes(piece)
        if not self._head:
            self._head = data[:_KEPT_BYTES]
        self._events += data.count(_EVENT)
        self._tail = data[-_KEPT_BYTES:] if len(data) >= _KEPT_BYTES else (self._tail + data)[-_KEPT_BYTES:]

    def tokens(self) -> tuple[int, int]:
        """Those of the prompt, and those of the answer, as far as it came."""
        if not self._head:
            return 0, 0
        prompt, completion, total = (self._last(pattern) for pattern in (_PROMPT, _COMPLETION, _TOTAL))
        if prompt is None and total is not None:
            prompt = total
        if prompt is None:
            prompt = self._asked_bytes // _BYTES_A_TOKEN
        return prompt, max(0, self._events - 1) if completion is None else completion

    def _last(self, pattern: re.Pattern[bytes]) -> int | None:
        found = pattern.findall(self._tail) or pattern.findall(self._head)
        return int(found[-1]) if found else None
