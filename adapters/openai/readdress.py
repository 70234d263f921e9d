"""A call of this dialect for another server that speaks it: that server's path, and its name of the model, of which the
body has one. Nothing else of the body changes, so that members which nobody here knows arrive as they were sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from tensorgate.gateway.contract.call import Buffer, Call

_ROOTS: Final = ("/openai/v1", "/anthropic/v1", "/v1")
_MEMBER: Final = "model"
_MARKS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_COLON: Final = re.compile(rb"\s*:\s*")


def readdressed(call: Call, model: str) -> tuple[str, Sequence[Buffer]]:
    """The target behind the server's own base path, and the body with its name of the model."""
    path, mark, query = call.raw_target.partition("?")
    root = next((each for each in _ROOTS if path.startswith(f"{each}/")), "")
    body, written = bytes(call.body), orjson.dumps(model)
    pieces: list[bytes] = []
    at = 0
    for begin, end in _named(body):
        pieces += (body[at:begin], written)
        at = end
    return f"{path[len(root) :]}{mark}{query}", (*pieces, body[at:])


def _named(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the document's own members of that name have their values, however their name is written: which of several
    counts is each reader's choice.
    """
    depth, value_at = 0, -1
    for mark in _MARKS.finditer(body):
        first = body[mark.start()]
        if first == ord('"'):
            if mark.start() == value_at:
                yield mark.span()
            elif depth == 1 and (colon := _COLON.match(body, mark.end())) and orjson.loads(mark[0]) == _MEMBER:
                value_at = colon.end()
        else:
            depth += 1 if first in b"{[" else -1
