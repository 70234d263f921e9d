"""One text as it grows: tokens become pieces of text, which wait for whoever asked, until a stop word or the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorgate.backends.genai.request import GenerationRequest
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.stop_words import StopWords


class TextPiece(NamedTuple):
    """What came since the last piece. `finish_reason`: stop, or length; empty: more will come."""

    text: str
    finish_reason: str = ""
    scores: Sequence[Any] = ()
    """Of each token: numbers of tokens, its own first, and how likely each was."""


class Generation:
    """Belongs to the event loop. `tokens` are the prompt's, `most` how many may follow."""

    def __init__(self, request: GenerationRequest, tokens: list[int], most: int, tokenizer: Any, stream: Any) -> None:
        self.request = request
        self.tokens = tokens
        self.most = most
        self.count = 0
        """Tokens of the answer."""
        self.is_over = False
        self._tokenizer = tokenizer
        self._stream = stream
        self._stops = StopWords(request.stops)
        self._text: list[str] = []
        self._scores: list[Any] = []
        self._finish_reason = ""
        self._error: GatewayError | None = None
        self._news = asyncio.Event()

    def take(self, token: int) -> None:
        """The next token of the answer."""
        self.count += 1
        piece = self._stream.step(self._tokenizer, token)
        if piece:
            self._give(self._stops.take(piece))
            if self._stops.found is not None:
                self.end("stop")

    def note(self, token: int, scores: Any) -> None:
        """How likely a token was: `scores` FP32 [vocabulary] are those of all, before any temperature."""
        most = self.request.logprobs or 0
        scores = scores - scores.max()
        scores -= np.log(np.exp(scores, dtype=np.float64).sum())
        best = np.argpartition(-scores, most)[:most] if most else ()
        told = dict.fromkeys([token, *sorted(map(int, best), key=lambda each: -scores[each])])
        self._scores.append(
            {
                str(each): {"logprob": float(scores[each]), "decoded_token": self._tokenizer.decode([each])}
                for each in told
            }
        )

    def end(self, finish_reason: str) -> None:
        """No more tokens come."""
        if not self.is_over:
            self.is_over = True
            self._finish_reason = finish_reason
            self._give(self._stops.rest())
            self._news.set()

    def fail(self, error: GatewayError) -> None:
        """In place of more tokens."""
        if not self.is_over:
            self.is_over = True
            self._error = error
            self._news.set()

    async def piece(self) -> TextPiece:
        """What has come meanwhile. Raises what ended it."""
        await self._news.wait()
        if self._error is not None:
            raise self._error
        text, self._text = "".join(self._text), []
        scores, self._scores = self._scores, []
        self._news.clear()
        return TextPiece(text, self._finish_reason if self.is_over else "", scores)

    def _give(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._news.set()
