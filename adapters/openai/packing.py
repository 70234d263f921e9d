"""Which texts of a call run together: as many as the model takes at once, in rows and in tokens, the longest first, so
that texts of like length meet and little is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensorgate.adapters.openai.text_role import FittedTexts, TextRole
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, OutputRequest
from tensorgate.gateway.contract.questions import InferTogether
from tensorgate.gateway.contract.tensor import Array, TensorSpec

Answer: TypeAlias = InferResponse | Sequence[InferResponse]


@dataclass(frozen=True, slots=True)
class TextsAsked:
    """What stays known of the texts of a question until it is answered."""

    form: Any
    """How the caller wants the answer."""
    count: int
    tokens: int | None
    order: tuple[int, ...] | None
    """Which text each row of the answers belongs to; None: they are in order."""


class _Packs(NamedTuple):
    packs: list[Sequence[int]]
    order: tuple[int, ...] | None


def texts_question(
    role: TextRole,
    spec: TensorSpec,
    fitted: FittedTexts,
    call: Call,
    form: Any,
    *,
    inputs: Callable[[Sequence[str], Sequence[int]], Mapping[str, Array]],
) -> InferRequest | InferTogether:
    """One request, or as many as the model needs. `inputs` makes tensors of texts, which lie at these places."""
    packs, order = _packed(len(fitted.texts), fitted.counts, role.rows(spec), role.options.max_batch_tokens)
    asked = TextsAsked(form, len(fitted.texts), fitted.total, order)
    outputs = (OutputRequest(role.answer),)
    requests = [
        InferRequest(
            role.view,
            inputs([fitted.texts[place] for place in pack], pack),
            "",
            outputs,
            deadline=call.deadline,
            wire=asked,
            tokens=max([fitted.counts[place] for place in pack]) if fitted.counts is not None else 0,
        )
        for pack in packs
    ]
    return requests[0] if len(requests) == 1 else InferTogether(tuple(requests), asked)


def _packed(count: int, counts: Sequence[int] | None, rows: int, most: int | None) -> _Packs:
    if count <= rows and (most is None or counts is None or count * max(counts) <= most):
        return _Packs([range(count)], None)
    if counts is None:
        return _Packs([range(at, min(at + rows, count)) for at in range(0, count, rows)], None)
    order = sorted(range(count), key=lambda place: -counts[place])
    packs: list[Sequence[int]] = []
    at = 0
    while at < count:
        size = rows if most is None else max(1, min(rows, most // counts[order[at]]))
        packs.append(order[at : at + size])
        at += size
    return _Packs(packs, tuple(order))


def rows_in_order(arrays: Sequence[Array], asked: TextsAsked) -> Array:
    """The rows of all answers, one for each text, in the order of the texts. Raises ValueError for another number."""
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    if len(joined) != asked.count:
        raise ValueError(f"{len(joined)} rows for {asked.count} texts")
    if asked.order is None:
        return joined
    placed = np.empty_like(joined)
    placed[list(asked.order)] = joined
    return placed


def tokens_of(question: Any) -> tuple[int, int]:
    """Endpoint.tokens of what is asked for vectors or scores."""
    asked: TextsAsked = question.wire
    return asked.tokens or 0, 0
