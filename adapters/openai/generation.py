"""A text that grows answer by answer: where it stops, why, and how many tokens it has. What the model itself says
of its answer, as parameters, comes first: `finish_reason`, `prompt_tokens`, `completion_tokens`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tensorgate.adapters.openai.logprobs import TokenScore, read_scores
from tensorgate.adapters.openai.tokens import Tokenizer
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import ModelFailed
from tensorgate.gateway.contract.stop_words import StopWords
from tensorgate.gateway.contract.tensor import BYTES, Array

_ID_BYTES: Final = 12


class Exchange:
    """What all texts of one call have in common: n of them, or one for each of several prompts."""

    def __init__(self, model: str, prefix: str, *, stream: bool, wants_usage: bool = False) -> None:
        self.id = f"{prefix}{secrets.token_hex(_ID_BYTES)}"
        self.created = int(time.time())
        self.model = model
        self.stream = stream
        self.wants_usage = wants_usage
        self.has_begun = False
        """Whether something has been told."""
        self.texts: list[GeneratedText] = []

    @property
    def prompt_tokens(self) -> int | None:
        return _sum([text.prompt_tokens for text in self.texts if text.counts_prompt])

    @property
    def completion_tokens(self) -> int | None:
        return _sum([text.completion_tokens for text in self.texts])

    @property
    def is_over(self) -> bool:
        return all(text.is_over for text in self.texts)


class GeneratedText:
    """One text."""

    def __init__(
        self,
        exchange: Exchange,
        index: int,
        *,
        output: str,
        scores: tuple[str, int] | None = None,
        stops: Sequence[str] = (),
        max_tokens: int | None = None,
        tokenizer: Tokenizer | None = None,
        prompt_tokens: int | None = None,
        counts_prompt: bool = True,
        echo: str = "",
        begins: int = 0,
    ) -> None:
        self.exchange = exchange
        self.index = index
        self.counts_prompt = counts_prompt
        self.delta = self.echo = echo
        """What is to be sent now."""
        self.begins = begins
        """Where its first token lies: behind the prompt."""
        self.sent = 0
        """How many characters of it have been."""
        self.is_over = False
        self.prompt_tokens = prompt_tokens
        self._told_reason = ""
        self._told_tokens: int | None = None
        self._output = output
        self._scores_of = scores
        """The output that tells how likely tokens were, and how many of the likeliest to tell."""
        self._scores: list[TokenScore] = []
        self._scored = len(echo)
        self._stops = StopWords(stops)
        self._max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._pieces: list[str] = [echo] if echo else []
        self._echo = len(self._pieces)
        self._answers = 0
        self._rest = b""
        self._counted = (0, 0)
        exchange.texts.append(self)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    @property
    def has_scores(self) -> bool:
        """Whether the caller wants log probabilities."""
        return self._scores_of is not None

    @property
    def stopped_by(self) -> str | None:
        """The stop word that has ended it."""
        return self._stops.found

    def follow(self, answer: InferResponse) -> bool:
        """Take an answer -> whether that was enough. Raises ModelFailed for one that is no text."""
        self._note(answer)
        array = answer.outputs.get(self._output)
        if array is not None and self.stopped_by is None:
            self._answers += 1
            self._read_scores(answer)
            self._give(self._stops.take(self._decoded(array)))
        return self.stopped_by is not None

    def end(self) -> str:
        """No more answers come -> what was held back."""
        self.is_over = True
        cut = self._rest.decode("utf-8", "replace")
        self._rest = b""
        rest = self._stops.take(cut) + self._stops.rest()
        if self.stopped_by is not None:
            return ""
        if rest:
            self._pieces.append(rest)
        return rest

    @property
    def offset(self) -> int:
        """Where what is to be sent now lies: a text that is sent with its prompt begins with it."""
        return self.begins + max(self.sent - len(self.echo), 0)

    def take_delta(self) -> str:
        """What is to be sent now, once."""
        delta, self.delta = self.delta, ""
        self.sent += len(delta)
        return delta

    def take_scores(self) -> list[TokenScore]:
        """Those of the tokens that came since the last time, as far as the text goes."""
        taken, self._scores = self._scores, []
        length, kept = len(self.text), []
        for score in taken:
            if self.stopped_by is None or self._scored < length:
                kept.append(score)
            self._scored += len(score.token)
        return kept

    def _read_scores(self, answer: InferResponse) -> None:
        if self._scores_of is not None and (array := answer.outputs.get(self._scores_of[0])) is not None:
            self._scores += read_scores(array, self._scores_of[1])

    @property
    def completion_tokens(self) -> int | None:
        """As the model says it, or the tokenizer; each answer of a stream is one token at least."""
        if self._told_tokens is not None:
            return self._told_tokens
        if self._tokenizer is None:
            return None
        if self._counted[0] != len(self._pieces):
            told = "".join(self._pieces[self._echo :])
            self._counted = len(self._pieces), self._tokenizer.count(told, special=False)
        return max(self._counted[1], self._answers if self._answers > 1 else 0)

    @property
    def finish_reason(self) -> str:
        """stop, or length; or what the model says."""
        if self.stopped_by is not None:
            return "stop"
        if self._told_reason:
            return self._told_reason
        count = self.completion_tokens if self._max_tokens is not None else None
        if count is None:
            count = self._answers
        return "length" if self._max_tokens is not None and count >= self._max_tokens else "stop"

    def _note(self, answer: InferResponse) -> None:
        said = answer.parameters
        if not said:
            return
        reason = said.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._told_reason = reason
        for name in ("prompt_tokens", "completion_tokens"):
            value = said.get(name)
            if type(value) is int:
                if name == "prompt_tokens":
                    self.prompt_tokens = value
                else:
                    self._told_tokens = value

    def _give(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self.delta += text

    def _decoded(self, array: Array) -> str:
        """A character may come in two answers, too."""
        if array.dtype != BYTES:
            raise ModelFailed(f"the model's output '{self._output}' is no text")
        given = array.item() if array.size == 1 else b"".join(np.asarray(array).reshape(-1).tolist())
        data = self._rest + given if self._rest else given
        text, taken = _complete(data)
        self._rest = data[taken:]
        return text


def follow(answer: InferResponse, request: InferRequest) -> bool:
    """Endpoint.follow of all generations."""
    text: GeneratedText = request.wire
    return text.follow(answer)


def tokens_of(question: Any) -> tuple[int, int]:
    """Endpoint.tokens of all generations."""
    exchange: Exchange = question.wire if isinstance(question.wire, Exchange) else question.wire.exchange
    return exchange.prompt_tokens or 0, exchange.completion_tokens or 0


def _complete(data: bytes) -> tuple[str, int]:
    """The whole characters of UTF-8, and how many bytes they have. What is no UTF-8 is replaced."""
    try:
        return data.decode(), len(data)
    except UnicodeDecodeError as error:
        if error.end == len(data) and error.reason == "unexpected end of data":
            return data[: error.start].decode(), error.start
        return data.decode("utf-8", "replace"), len(data)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def usage(exchange: Exchange) -> dict[str, Any] | None:
    """OpenAI's `usage`; None where nobody knows the tokens."""
    prompt, completion = exchange.prompt_tokens, exchange.completion_tokens
    if prompt is None or completion is None:
        return None
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
