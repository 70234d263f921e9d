"""text-embeddings-inference's own addresses: /embed, /rerank, /predict, /similarity, /info. That server has one model,
so that its callers name none: `openai.default_models` says which answers, or `model` in the query or the body.

Source: the OpenAPI document of text-embeddings-inference 1.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from tensorgate.adapters.openai.embeddings import cut_to, embedding_question, unit, vectors
from tensorgate.adapters.openai.errors import JSON
from tensorgate.adapters.openai.fields import INVALID, BadField, Fields, read
from tensorgate.adapters.openai.options import DefaultModels
from tensorgate.adapters.openai.packing import Answer
from tensorgate.adapters.openai.rerank import Pairs, scores, scoring_question
from tensorgate.adapters.openai.text_role import TextKind, TextRole, asked_role
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import ModelFailed
from tensorgate.gateway.contract.questions import InferTogether


@dataclass(frozen=True, slots=True)
class EmbedForm:
    """How the caller wants vectors: whether of length 1 (if the model's are not), and how long."""

    normalize: bool
    dimensions: int | None


@dataclass(frozen=True, slots=True)
class TextsForm:
    """How the caller wants scores."""

    raw: bool
    with_texts: bool


def _role(
    fields: Fields, call: Call, resolve: Resolve, kinds: tuple[TextKind, ...], default: str | None, key: str
) -> TextRole:
    named = call.args.get("model") or default
    if named is None and "model" not in fields.members:
        raise BadField(
            f"No model is named, and the configuration has no openai.default_models.{key}.", "model", INVALID
        )
    return asked_role(fields, call, resolve, *kinds, default=named)


def _truncation(fields: Fields) -> bool | None:
    return fields.flag("truncate") if "truncate" in fields.members else None


def decode_embed(call: Call, resolve: Resolve, *, defaults: DefaultModels) -> InferRequest | InferTogether:
    """Raises MustOffload, and what refuses a body."""
    fields = read(call)
    role = _role(fields, call, resolve, ("embedding",), defaults.embedding, "embedding")
    texts = fields.texts("inputs")
    if not texts or not all(texts):
        raise BadField("`inputs` cannot be empty", "inputs", INVALID)
    fitted = role.fitted(texts, "inputs", truncation=_truncation(fields))
    form = EmbedForm(fields.flag("normalize", default=True), fields.whole("dimensions", 1))
    return embedding_question(role, fitted, call, form)


def encode_embed(answer: Answer, question: Any) -> Reply:
    """A list of vectors, for one text, too."""
    form: EmbedForm = question.wire.form
    rows = vectors(answer, question.wire)
    if form.normalize:
        rows = unit(rows)
    return _reply(list(cut_to(rows, form.dimensions)))


def decode_tei_rerank(call: Call, resolve: Resolve, *, defaults: DefaultModels) -> InferRequest | InferTogether:
    fields = read(call)
    role = _role(fields, call, resolve, ("reranker", "embedding"), defaults.reranker, "reranker")
    fields.needed("texts")
    texts = fields.texts("texts")
    if not texts:
        raise BadField("`texts` cannot be empty", "texts", INVALID)
    form = TextsForm(fields.flag("raw_scores"), fields.flag("return_text"))
    return scoring_question(
        role, [fields.text("query")] * len(texts), texts, call, form, truncation=_truncation(fields)
    )


def encode_tei_rerank(answer: Answer, question: Any) -> Reply:
    pairs: Pairs = question.wire.form
    form: TextsForm = pairs.form
    found = scores(answer, question.wire)
    ranks: list[dict[str, Any]] = []
    for index in np.argsort(-found, kind="stable").tolist():
        rank = {"index": index, "score": float(found[index])}
        ranks.append({**rank, "text": pairs.texts[index]} if form.with_texts else rank)
    return _reply(ranks)


def decode_similarity(call: Call, resolve: Resolve, *, defaults: DefaultModels) -> InferRequest | InferTogether:
    """The cosine of a sentence and each of others."""
    fields = read(call)
    role = _role(fields, call, resolve, ("embedding",), defaults.embedding, "embedding")
    inputs = fields.object("inputs")
    if inputs is None:
        raise BadField("`inputs` is missing", "inputs", INVALID)
    source, sentences = inputs.text("source_sentence"), inputs.texts("sentences")
    if not sentences:
        raise BadField("`inputs.sentences` cannot be empty", "inputs.sentences", INVALID)
    return scoring_question(role, [source] * len(sentences), sentences, call, None)


def encode_similarity(answer: Answer, question: Any) -> Reply:
    return _reply(scores(answer, question.wire).tolist())


def decode_predict(call: Call, resolve: Resolve, *, defaults: DefaultModels) -> InferRequest | InferTogether:
    """Scores of classes, of one text or of several."""
    fields = read(call)
    role = _role(fields, call, resolve, ("classifier",), defaults.classifier, "classifier")
    given = fields.needed("inputs")
    is_one = isinstance(given, str)
    texts = fields.texts("inputs")
    if not texts:
        raise BadField("`inputs` cannot be empty", "inputs", INVALID)
    fitted = role.fitted(texts, "inputs", truncation=_truncation(fields))
    labels = role.view.outputs[role.answer].labels
    return embedding_question(role, fitted, call, (labels, is_one))


def encode_predict(answer: Answer, question: Any) -> Reply:
    """Best first."""
    labels, is_one = question.wire.form
    told = []
    for row in vectors(answer, question.wire):
        order = np.argsort(-row, kind="stable").tolist()
        if labels and len(labels) != len(row):
            raise ModelFailed(f"the model gave {len(row)} scores, and its classes are {len(labels)}")
        told.append([{"score": float(row[at]), "label": labels[at] if labels else f"LABEL_{at}"} for at in order])
    return _reply(told[0] if is_one else told)


def _reply(body: Any) -> Reply:
    return Reply(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), headers={"Content-Type": JSON})
