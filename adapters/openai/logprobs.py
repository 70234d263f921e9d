"""How likely each token of an answer was, of models that tell it, in OpenAI's two forms.

A model tells it by an output of text, JSON: for each token of this answer an object whose members are tokens' numbers,
the token itself first and the likeliest ones after it, each with `logprob` and `decoded_token`, as Triton's vLLM models
do. Sources: OpenAI's API reference; the outputs of Triton's vLLM backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tensorgate.adapters.openai.fields import UNSUPPORTED, BadField, Fields
from tensorgate.adapters.openai.text_role import TextRole
from tensorgate.gateway.contract.errors import ModelFailed
from tensorgate.gateway.contract.tensor import Array

LOGPROBS: Final = "logprobs"
TOP_LOGPROBS: Final = "top_logprobs"
MEMBERS: Final = frozenset({LOGPROBS, TOP_LOGPROBS})
MAX_OF_COMPLETIONS: Final = 5
MAX_OF_CHATS: Final = 20


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token, the logarithm of how likely it was, and the likeliest ones in its place."""

    token: str
    logprob: float
    best: tuple[tuple[str, float], ...]


def wanted_by_completion(fields: Fields, role: TextRole) -> int | None:
    """`logprobs`: how many of the likeliest tokens to tell; None: nothing. Raises BadField."""
    return _supported(fields.whole(LOGPROBS, 0, MAX_OF_COMPLETIONS) or None, role)


def wanted_by_chat(fields: Fields, role: TextRole) -> int | None:
    """`logprobs` and `top_logprobs`. Raises BadField."""
    is_wanted, most = fields.flag(LOGPROBS), fields.whole(TOP_LOGPROBS, 0, MAX_OF_CHATS)
    if most is not None and not is_wanted:
        raise BadField(
            "'top_logprobs' is only allowed when 'logprobs' is true.",
            TOP_LOGPROBS,
            by_schema="`top_logprobs` can only be used when `logprobs` is True",
        )
    return _supported(most or 0 if is_wanted else None, role)


def _supported(wanted: int | None, role: TextRole) -> int | None:
    if wanted is not None and role.options.logprobs is None:
        raise BadField("'logprobs' is not supported by this model.", LOGPROBS, UNSUPPORTED)
    return wanted


def read_scores(array: Array, most: int) -> list[TokenScore]:
    """Those of one answer, with `most` of the likeliest. Raises ModelFailed."""
    text = b"".join(array.reshape(-1).tolist())
    if not text:
        return []
    try:
        return [_score(each, most) for each in orjson.loads(text)]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ModelFailed(f"the model's log probabilities cannot be read: {error!r}") from None


def _score(told: Any, most: int) -> TokenScore:
    tokens = [(str(each["decoded_token"]), float(each["logprob"])) for each in told.values()]
    own = tokens[0]
    best = sorted(dict.fromkeys(tokens), key=lambda each: -each[1])[:most]
    return TokenScore(*own, tuple(best))


def of_completion(scores: Iterable[TokenScore], offset: int) -> dict[str, Any]:
    """`offset` is where the first token begins in the text."""
    told: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for score in scores:
        told["text_offset"].append(offset)
        told["token_logprobs"].append(score.logprob)
        told["tokens"].append(score.token)
        told["top_logprobs"].append(dict(score.best))
        offset += len(score.token)
    return told


def of_chat(scores: Sequence[TokenScore]) -> dict[str, Any]:
    """The `logprobs` of a choice."""
    content = [
        {**_token(score.token, score.logprob), "top_logprobs": [_token(*each) for each in score.best]}
        for score in scores
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
