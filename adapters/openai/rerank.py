"""POST /openai/v1/rerank and /openai/v1/score: how well texts answer a query. A reranker scores each pair by itself;
of an embedding model the score is the cosine of two vectors.

Sources: Cohere's API reference, Rerank (v1 and v2); Jina's Reranker API; vLLM's Score API.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from tensorgate.adapters.openai.embeddings import embedding_question, unit, vectors
from tensorgate.adapters.openai.errors import JSON
from tensorgate.adapters.openai.fields import INVALID, BadField, Fields, read
from tensorgate.adapters.openai.packing import Answer, TextsAsked, rows_in_order, texts_question
from tensorgate.adapters.openai.text_role import FittedTexts, TextRole, asked_role, text_array
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import ModelFailed, Unsupported
from tensorgate.gateway.contract.questions import InferTogether
from tensorgate.gateway.contract.tensor import BYTES, Array

MAX_TEXTS: Final = 2048


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts, each beside what it is held against; `places` of both in what was asked, of an embedding model."""

    model: str
    texts: list[str]
    places: tuple[list[int], list[int]] | None
    form: Any


@dataclass(frozen=True, slots=True)
class RerankForm:
    """How the caller wants scores."""

    top_n: int
    with_texts: bool
    documents: list[Any]


def scoring_question(
    role: TextRole,
    queries: Sequence[str],
    texts: Sequence[str],
    call: Call,
    form: Any,
    *,
    truncation: bool | None = None,
) -> InferRequest | InferTogether:
    """A question whose answer `scores` reads. Raises BadField, Unsupported."""
    if len(texts) > MAX_TEXTS:
        raise BadField(f"{len(texts)} texts are too many, {MAX_TEXTS} is the most.", "documents", INVALID)
    name = role.view.name
    if role.options.kind == "embedding":
        all_texts = list(dict.fromkeys([*queries, *texts]))
        place = {text: index for index, text in enumerate(all_texts)}
        fitted = role.fitted(all_texts, "documents", truncation=truncation)
        places = [place[text] for text in queries], [place[text] for text in texts]
        return embedding_question(role, fitted, call, Pairs(name, list(texts), places, form))
    shown = _fitted(role, queries, texts, truncation=truncation)
    return _pairs_question(role, queries, shown, call, Pairs(name, list(texts), None, form))


def _fitted(role: TextRole, queries: Sequence[str], texts: Sequence[str], *, truncation: bool | None) -> FittedTexts:
    """Texts that fit beside their queries, which are counted with them. Raises BadField."""
    tokenizer, most = role.tokenizer, role.options.max_tokens
    if tokenizer is None:
        return FittedTexts(list(texts), None)
    shown, counts = list(texts), tokenizer.counts(queries, texts)
    is_cut = role.options.truncation if truncation is None else truncation
    for index, count in enumerate(counts):
        if most is None or count <= most:
            continue
        if not is_cut:
            raise BadField(
                f"Text {index} has {count} tokens with its query, and this model takes at most {most}.",
                "documents",
                "context_length_exceeded",
            )
        own = tokenizer.count(texts[index], special=False)
        special = tokenizer.count("")
        shown[index] = tokenizer.cut(texts[index], max(0, own - (count - most)) + special)
        counts[index] = most
    return FittedTexts(shown, counts)


def _pairs_question(
    role: TextRole, queries: Sequence[str], fitted: FittedTexts, call: Call, pairs: Pairs
) -> InferRequest | InferTogether:
    view, options = role.view, role.options
    if options.query is None or options.prompt is None:
        found = [spec for spec in view.inputs.values() if spec.dtype == BYTES and not spec.optional]
        names = [options.query, options.prompt]
        left = [spec.name for spec in found if spec.name not in names]
        named = [name or (left.pop(0) if left else "") for name in names]
    else:
        named = [options.query, options.prompt]
    if not all(name in view.inputs for name in named):
        raise Unsupported(f"The model `{view.name}` has no inputs for a query and a text: its section text names them.")
    query, text = view.inputs[named[0]], view.inputs[named[1]]
    return texts_question(
        role,
        text,
        fitted,
        call,
        pairs,
        inputs=lambda texts, places: {
            query.name: text_array(query, [queries[place] for place in places]),
            text.name: text_array(text, texts),
        },
    )


def scores(answer: Answer, asked: TextsAsked) -> Array:
    """-> FP64 [texts]. Raises ModelFailed."""
    pairs: Pairs = asked.form
    if pairs.places is not None:
        rows = unit(vectors(answer, asked))
        queries, texts = pairs.places
        products: Array = np.einsum("nd,nd->n", rows[queries], rows[texts], dtype=np.float64)
        return products
    answers = (answer,) if isinstance(answer, InferResponse) else answer
    try:
        arrays = [next(iter(each.outputs.values())) for each in answers]
        # Of two columns, no and yes, the second says how well; of one, that one.
        columns = [
            array.reshape(-1) if array.ndim < 2 or array.shape[-1] == 1 else array.reshape(len(array), -1)[:, -1]
            for array in arrays
        ]
        return rows_in_order(columns, asked).astype(np.float64)
    except (ValueError, StopIteration, TypeError):
        raise ModelFailed(f"the model gave no score for each of {asked.count} texts") from None


# -------------------------------------------------------------------------------------------------------------- rerank


def decode_rerank(call: Call, resolve: Resolve) -> InferRequest | InferTogether:
    """A query and documents, texts or objects with `text`. Raises MustOffload, and what refuses a body."""
    fields = read(call)
    role = asked_role(fields, call, resolve, "reranker", "embedding")
    query = fields.text("query")
    documents = fields.needed("documents")
    if not isinstance(documents, list) or not documents:
        raise fields.wrong_type("documents", "an array of strings or objects")
    texts = [_document(each, index) for index, each in enumerate(documents)]
    top_n = fields.whole("top_n", 1) or len(texts)
    form = RerankForm(top_n, fields.flag("return_documents", default="/cohere" not in call.raw_target), documents)
    return scoring_question(role, [query] * len(texts), texts, call, form)


def _document(given: Any, index: int) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise BadField(
            f"Invalid type for 'documents[{index}]': expected a string, or an object with text.",
            f"documents[{index}]",
            "invalid_type",
        )
    return text


def encode_rerank(answer: Answer, question: Any) -> Reply:
    """The best first, as Cohere's and Jina's clients read it."""
    asked: TextsAsked = question.wire
    pairs: Pairs = asked.form
    form: RerankForm = pairs.form
    found = scores(answer, asked)
    results = []
    for index in np.argsort(-found, kind="stable")[: form.top_n].tolist():
        result: dict[str, Any] = {"index": index, "relevance_score": float(found[index])}
        if form.with_texts:
            result["document"] = {"text": pairs.texts[index]}
        results.append(result)
    body: dict[str, Any] = {
        "id": f"rerank-{secrets.token_hex(12)}",
        "object": "list",
        "model": pairs.model,
        "results": results,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
    if asked.tokens is not None:
        body["usage"] = {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}
    return Reply(orjson.dumps(body), headers={"Content-Type": JSON})


# --------------------------------------------------------------------------------------------------------------- score


def decode_score(call: Call, resolve: Resolve) -> InferRequest | InferTogether:
    """One text beside each of several, or as many beside as many."""
    fields = read(call)
    role = asked_role(fields, call, resolve, "reranker", "embedding")
    first, second = _either(fields, "text_1", "queries"), _either(fields, "text_2", "documents")
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise BadField(f"{len(first)} texts cannot be held against {len(second)}.", "text_1", INVALID)
    return scoring_question(role, first, second, call, None)


def _either(fields: Fields, name: str, other: str) -> list[str]:
    if name not in fields.members and other in fields.members:
        name = other
    fields.needed(name)
    found = fields.texts(name)
    if not found:
        raise BadField(f"Invalid '{name}': an empty array.", name, INVALID)
    return found


def encode_score(answer: Answer, question: Any) -> Reply:
    asked: TextsAsked = question.wire
    pairs: Pairs = asked.form
    data = [
        {"index": index, "object": "score", "score": score}
        for index, score in enumerate(scores(answer, asked).tolist())
    ]
    body: dict[str, Any] = {
        "id": f"score-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": pairs.model,
        "data": data,
    }
    if asked.tokens is not None:
        body["usage"] = {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}
    return Reply(orjson.dumps(body), headers={"Content-Type": JSON})
