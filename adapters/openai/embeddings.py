"""POST /openai/v1/embeddings: texts, or tokens of them, -> vectors. Source: OpenAI's API reference, Embeddings."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from tensorgate.adapters.openai.errors import JSON
from tensorgate.adapters.openai.fields import EMPTY, INVALID, BadField, Fields, read
from tensorgate.adapters.openai.packing import Answer, TextsAsked, rows_in_order, texts_question
from tensorgate.adapters.openai.text_role import FittedTexts, TextRole, asked_role, text_array
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, is_long_as_text
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import ModelFailed
from tensorgate.gateway.contract.questions import InferTogether
from tensorgate.gateway.contract.tensor import Array

MAX_TEXTS: Final = 2048
"""OpenAI's own bound."""
_FORMATS: Final = ("float", "base64")


@dataclass(frozen=True, slots=True)
class EmbeddingForm:
    """How the caller wants vectors."""

    as_base64: bool
    dimensions: int | None


def decode_embeddings(call: Call, resolve: Resolve) -> InferRequest | InferTogether:
    """Raises MustOffload, and what refuses a body."""
    fields = read(call)
    role = asked_role(fields, call, resolve, "embedding")
    fitted = _texts(fields, role)
    style = fields.text("encoding_format", "float")
    if style not in _FORMATS:
        raise BadField(f"Invalid value for 'encoding_format': expected one of {_FORMATS}.", "encoding_format", INVALID)
    form = EmbeddingForm(style == "base64", fields.whole("dimensions", 1))
    return embedding_question(role, fitted, call, form)


def embedding_question(role: TextRole, fitted: FittedTexts, call: Call, form: Any) -> InferRequest | InferTogether:
    """A question whose answer `vectors` reads. Raises Unsupported."""
    spec = role.prompt
    return texts_question(role, spec, fitted, call, form, inputs=lambda texts, _: {spec.name: text_array(spec, texts)})


def vectors(answer: Answer, asked: TextsAsked) -> Array:
    """The answers to such a question -> FP32 [texts, dimensions]. Raises ModelFailed."""
    answers = (answer,) if isinstance(answer, InferResponse) else answer
    try:
        found = [next(iter(each.outputs.values())) for each in answers]
        arrays = [array.reshape(len(array) if array.ndim > 1 else 1, -1) for array in found]
        return np.ascontiguousarray(rows_in_order(arrays, asked), np.float32)
    except (ValueError, StopIteration):
        raise ModelFailed(f"the model gave no vector for each of {asked.count} texts") from None


def encode_embeddings(answer: Answer, question: Any) -> Reply:
    asked: TextsAsked = question.wire
    form: EmbeddingForm = asked.form
    name = (question.requests[0] if isinstance(question, InferTogether) else question).view.name
    rows = cut_to(vectors(answer, asked), form.dimensions)
    if form.as_base64:
        told: Any = [base64.b64encode(row.tobytes()).decode() for row in rows]
    else:
        told = list(rows)
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(told)]
    body: dict[str, Any] = {"object": "list", "data": data, "model": name}
    if asked.tokens is not None:
        body["usage"] = {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}
    return Reply(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), headers={"Content-Type": JSON})


def is_long(answer: InferResponse, request: InferRequest) -> bool:
    """Numbers as base64 are copied."""
    form = request.wire.form
    return not (isinstance(form, EmbeddingForm) and form.as_base64) and is_long_as_text(answer, request)


def cut_to(rows: Array, dimensions: int | None) -> Array:
    """Vectors with fewer dimensions, of length 1 again. Source: Matryoshka representation learning, as OpenAI's
    `dimensions` does it.
    """
    if dimensions is None or dimensions == rows.shape[1]:
        return rows
    if dimensions > rows.shape[1]:
        raise BadField(
            f"Invalid value for 'dimensions': the model's vectors have {rows.shape[1]}.", "dimensions", INVALID
        )
    return unit(rows[:, :dimensions])


def unit(rows: Array) -> Array:
    """Rows of length 1; zeros stay zeros."""
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))[:, None]
    return np.ascontiguousarray((rows / np.where(lengths > 0, lengths, 1)).astype(np.float32))


# --------------------------------------------------------------------------------------------------------------- texts


def _texts(fields: Fields, role: TextRole) -> FittedTexts:
    """The texts of `input`, as far as the model takes them."""
    given = fields.needed("input")
    if isinstance(given, str):
        texts = [given]
    elif isinstance(given, list) and given and all(isinstance(each, str) for each in given):
        texts = given
    elif _are_tokens(given):
        texts = [_text_of(role, given)]
    elif isinstance(given, list) and given and all(_are_tokens(each) for each in given):
        texts = [_text_of(role, each) for each in given]
    elif given == []:
        raise BadField("Invalid 'input': an empty array.", "input", INVALID, EMPTY)
    else:
        raise fields.wrong_type("input", "a string, an array of strings, of tokens, or of arrays of tokens")
    if len(texts) > MAX_TEXTS:
        raise BadField(f"Invalid 'input': {len(texts)} texts, and {MAX_TEXTS} is the most.", "input", INVALID)
    if not all(texts):
        raise BadField("Invalid 'input': a text is empty.", "input", INVALID, EMPTY)
    return role.fitted(texts, "input")


def _are_tokens(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(each) is int for each in given)


def _text_of(role: TextRole, tokens: list[int]) -> str:
    if role.tokenizer is None:
        raise BadField(
            f"The model `{role.view.name}` takes no tokens: its section text names no tokenizer.", "input", INVALID
        )
    return role.tokenizer.decode(tokens, "input")
