"""Tokens of calls that other servers answer, read from what passes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tensorgate.adapters.openai.usage import PassingTokens
from tensorgate.gateway.contract.call import Call

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 62}]}).encode()
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}\n\n'
DONE = b"data: [DONE]\n\n"
BEGUN = b'event: message_start\ndata: {"message":{"usage":{"input_tokens":25,"output_tokens":1}}}\n\n'
ENDED = b'event: message_delta\ndata: {"delta":{},"usage":{"output_tokens":15}}\n\n'


def whole(**usage: Any) -> bytes:
    text = 'they say "usage": {"prompt_tokens": 99, "completion_tokens": 99}'
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": usage, "id": "x"}).encode()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([whole(prompt_tokens=7, completion_tokens=3, total_tokens=10)], (7, 3)),
        ([whole(input_tokens=7, output_tokens=3, total_tokens=10)], (7, 3)),
        ([whole(prompt_tokens=7, total_tokens=7)], (7, 0)),
        ([whole(total_tokens=7)], (7, 0)),
        ([CHUNK] * 5 + [USAGE, DONE], (9, 12)),
        ([CHUNK * 900 + USAGE + DONE], (9, 12)),
        ([CHUNK] * 500 + [USAGE[:40], USAGE[40:47], USAGE[47:], DONE], (9, 12)),
        ([CHUNK] * 5 + [DONE], (len(BODY) // 4, 5)),
        ([CHUNK] * 3, (len(BODY) // 4, 2)),
        ([BEGUN] + [CHUNK] * 200 + [ENDED], (25, 15)),
        ([memoryview(USAGE)], (9, 12)),
        ([], (0, 0)),
    ],
    ids=range(12),
)
def test_what_the_server_counts_counts(pieces: Sequence[bytes], expected: tuple[int, int]) -> None:
    meter = PassingTokens(Call(BODY, "POST", "/v1/chat/completions", {}, "http"))
    for piece in pieces:
        meter.take(piece)
    assert meter.tokens() == expected
