"""The dialect's addresses for OpenAPI: those below /openai/v1 and /anthropic/v1, which the short ones repeat. They are
the same for all models, and each answers those of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from tensorgate.adapters.api_schemas import (
    ANY_OBJECT,
    BOOLEAN,
    COUNT,
    NUMBER,
    TEXT,
    TEXTS,
    any_of,
    identifier,
    list_of,
    record,
    ref,
)
from tensorgate.adapters.openai.errors import JSON, TABLE
from tensorgate.gateway.contract.api import ApiDescription, ApiOperation, ApiPart, Content, Schema
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.text import SECTION

_EVENTS: Final = "text/event-stream"
_TOKENS: Final = list_of(COUNT)
_TEXT_OR_TOKENS: Final = any_of([TEXT, TEXTS, _TOKENS, list_of(_TOKENS)])
_ONE_OR_MORE: Final = any_of([TEXT, TEXTS])


def _own(name: str) -> Schema:
    return ref(f"openai_{name}")


_CONTENT: Final = any_of([TEXT, list_of(record({"type": TEXT, "text": TEXT}, ["type"]))])
_GENERATION: Final[dict[str, Schema]] = {
    "model": TEXT,
    "temperature": {**NUMBER, "minimum": 0, "maximum": 2},
    "top_p": {**NUMBER, "minimum": 0, "maximum": 1},
    "seed": {"type": "integer"},
    "stream": BOOLEAN,
}
_CHOICES: Final[dict[str, Schema]] = {
    "n": {**COUNT, "minimum": 1},
    "max_tokens": {**COUNT, "minimum": 1},
    "stop": _ONE_OR_MORE,
    "stream_options": record({"include_usage": BOOLEAN}),
}
_PASSED: Final = "Other members that are scalars go to the model, by its names."
_SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": record(
        {"error": record({"message": TEXT, "type": TEXT, "param": {}, "code": {}}, ["message", "type"])}, ["error"]
    ),
    "AnthropicError": record(
        {"type": TEXT, "error": record({"type": TEXT, "message": TEXT}, ["type", "message"])}, ["type", "error"]
    ),
    "Usage": record({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}, ["total_tokens"]),
    "Model": record({"id": TEXT, "object": TEXT, "created": COUNT, "owned_by": TEXT}, ["id", "object"]),
    "Models": record({"object": TEXT, "data": list_of(_own("Model"))}, ["object", "data"]),
    "EmbeddingRequest": record(
        {
            "model": TEXT,
            "input": _TEXT_OR_TOKENS,
            "encoding_format": {"type": "string", "enum": ["float", "base64"]},
            "dimensions": {**COUNT, "minimum": 1},
            "user": TEXT,
        },
        ["model", "input"],
    ),
    "Embedding": record(
        {"object": TEXT, "index": COUNT, "embedding": any_of([list_of(NUMBER), TEXT])}, ["index", "embedding"]
    ),
    "Embeddings": record(
        {"object": TEXT, "model": TEXT, "data": list_of(_own("Embedding")), "usage": _own("Usage")}, ["data"]
    ),
    "CompletionRequest": record(
        {**_GENERATION, "prompt": _TEXT_OR_TOKENS, **_CHOICES, "echo": BOOLEAN},
        ["model", "prompt"],
        description=_PASSED,
    ),
    "Completion": record(
        {
            "id": TEXT,
            "object": TEXT,
            "created": COUNT,
            "model": TEXT,
            "choices": list_of(record({"index": COUNT, "text": TEXT, "finish_reason": {}}, ["index", "text"])),
            "usage": _own("Usage"),
        },
        ["id", "choices"],
    ),
    "ChatMessage": record({"role": TEXT, "content": _CONTENT, "name": TEXT}, ["role"]),
    "ChatRequest": record(
        {
            **_GENERATION,
            "messages": list_of(_own("ChatMessage"), minItems=1),
            **_CHOICES,
            "max_completion_tokens": {**COUNT, "minimum": 1},
            "chat_template_kwargs": ANY_OBJECT,
        },
        ["model", "messages"],
        description=_PASSED,
    ),
    "ChatCompletion": record(
        {
            "id": TEXT,
            "object": TEXT,
            "created": COUNT,
            "model": TEXT,
            "choices": list_of(
                record({"index": COUNT, "message": _own("ChatMessage"), "finish_reason": {}}, ["index", "message"])
            ),
            "usage": _own("Usage"),
        },
        ["id", "choices"],
    ),
    "ResponseRequest": record(
        {
            **_GENERATION,
            "input": any_of([TEXT, list_of(_own("ChatMessage"))]),
            "instructions": TEXT,
            "max_output_tokens": {**COUNT, "minimum": 1},
        },
        ["model", "input"],
        description=_PASSED,
    ),
    "Response": record(
        {"id": TEXT, "object": TEXT, "status": TEXT, "model": TEXT, "output": list_of(ANY_OBJECT)}, ["id", "output"]
    ),
    "RerankRequest": record(
        {
            "model": TEXT,
            "query": TEXT,
            "documents": list_of(any_of([TEXT, record({"text": TEXT}, ["text"])]), minItems=1),
            "top_n": {**COUNT, "minimum": 1},
            "return_documents": BOOLEAN,
        },
        ["model", "query", "documents"],
    ),
    "Ranks": record(
        {
            "id": TEXT,
            "model": TEXT,
            "results": list_of(record({"index": COUNT, "relevance_score": NUMBER}, ["index", "relevance_score"])),
            "usage": _own("Usage"),
        },
        ["results"],
    ),
    "ScoreRequest": record(
        {"model": TEXT, "text_1": _ONE_OR_MORE, "text_2": _ONE_OR_MORE}, ["model", "text_1", "text_2"]
    ),
    "Scores": record(
        {"id": TEXT, "model": TEXT, "data": list_of(record({"index": COUNT, "score": NUMBER}, ["index", "score"]))},
        ["data"],
    ),
    "TokenizeRequest": record(
        {"model": TEXT, "prompt": TEXT, "messages": list_of(_own("ChatMessage")), "add_special_tokens": BOOLEAN},
        ["model"],
    ),
    "Tokens": record({"count": COUNT, "tokens": _TOKENS}, ["count", "tokens"]),
    "DetokenizeRequest": record({"model": TEXT, "tokens": _TOKENS}, ["model", "tokens"]),
    "Detokenized": record({"prompt": TEXT}, ["prompt"]),
    "MessagesRequest": record(
        {
            **_GENERATION,
            "messages": list_of(_own("ChatMessage"), minItems=1),
            "max_tokens": {**COUNT, "minimum": 1},
            "system": _CONTENT,
            "stop_sequences": TEXTS,
            "top_k": COUNT,
        },
        ["model", "messages", "max_tokens"],
        description=_PASSED,
    ),
    "Message": record(
        {"id": TEXT, "type": TEXT, "role": TEXT, "model": TEXT, "content": list_of(ANY_OBJECT), "stop_reason": {}},
        ["id", "content"],
    ),
    "CountRequest": record(
        {"model": TEXT, "messages": list_of(_own("ChatMessage"), minItems=1), "system": _CONTENT}, ["model", "messages"]
    ),
    "InputTokens": record({"input_tokens": COUNT}, ["input_tokens"]),
}


class _Row(NamedTuple):
    """An address's id, a sentence, and the schemas of reply and request."""

    id: str
    summary: str
    reply: str
    request: str = ""


_ROWS: Final[Mapping[str, _Row]] = {
    "/openai/v1/models": _Row("list_models_openai", "The models that are for texts", "Models"),
    "/openai/v1/embeddings": _Row("create_embeddings", "Texts as vectors", "Embeddings", "EmbeddingRequest"),
    "/openai/v1/completions": _Row("create_completion", "What comes after a prompt", "Completion", "CompletionRequest"),
    "/openai/v1/chat/completions": _Row(
        "create_chat_completion", "A chat's next message", "ChatCompletion", "ChatRequest"
    ),
    "/openai/v1/responses": _Row("create_response", "A chat's next message", "Response", "ResponseRequest"),
    "/openai/v1/rerank": _Row("rerank", "The texts that answer a query best", "Ranks", "RerankRequest"),
    "/openai/v1/score": _Row("score", "How well texts fit each other", "Scores", "ScoreRequest"),
    "/openai/v1/tokenize": _Row("tokenize", "A text's tokens", "Tokens", "TokenizeRequest"),
    "/openai/v1/detokenize": _Row("detokenize", "The text of tokens", "Detokenized", "DetokenizeRequest"),
    "/anthropic/v1/messages": _Row("create_message", "A chat's next message", "Message", "MessagesRequest"),
    "/anthropic/v1/messages/count_tokens": _Row(
        "count_message_tokens", "How many tokens a chat has", "InputTokens", "CountRequest"
    ),
}
_TEXTS: Final = ("/openai/v1/rerank", "/openai/v1/score")
_CHATS: Final = (
    "/openai/v1/completions",
    "/openai/v1/chat/completions",
    "/openai/v1/responses",
    "/anthropic/v1/messages",
    "/anthropic/v1/messages/count_tokens",
)
_ANSWERED: Final[Mapping[str, tuple[str, ...]]] = {
    "embedding": ("/openai/v1/embeddings", *_TEXTS),
    "reranker": _TEXTS,
    "classifier": (),
    "completion": _CHATS,
    "chat": _CHATS,
}
"""What a model of each kind answers."""
_MODEL_ID: Final = "retrieve_model_openai"


def description(rows: Mapping[str, tuple[str, Endpoint]], model: Endpoint) -> ApiDescription:
    """Of the addresses that the options make."""
    operations = tuple(
        _operation(path, method, endpoint, _ROWS[path]) for path, (method, endpoint) in rows.items() if path in _ROWS
    )
    parameter = {"name": "model", "in": "path", "required": True, "schema": TEXT}
    one = _model_operation(model, "/openai/v1/models/{model}", _MODEL_ID, (parameter,))
    schemas = {f"openai_{name}": schema for name, schema in _SCHEMAS.items()}

    def of_model(view: ModelView, version: int | None) -> ApiPart:
        """Callers cannot name a version."""
        if version is not None or SECTION not in view.mappings:
            return ApiPart((), {})
        name = identifier(view.name)
        answered = [
            _operation(path, *rows[path], _ROWS[path], f"_{name}")
            for path in _ANSWERED[view.mappings[SECTION].kind]
            if path in rows
        ]
        path = f"/openai/v1/models/{quote(view.name, safe='')}"
        return ApiPart((*answered, _model_operation(model, path, f"{_MODEL_ID}_{name}")), {})

    return ApiDescription(
        lambda: ApiPart((*operations, one), schemas),
        of_model,
        {kind: row.http_status for kind, row in TABLE.items()},
        any_of([_own("Error"), _own("AnthropicError")]),
    )


def _model_operation(
    endpoint: Endpoint, path: str, name: str, parameters: tuple[Mapping[str, object], ...] = ()
) -> ApiOperation:
    return ApiOperation(
        endpoint.method, "GET", path, name, "What a model is for", {JSON: _own("Model")}, parameters=parameters
    )


def _operation(path: str, method: str, endpoint: Endpoint, row: _Row, suffix: str = "") -> ApiOperation:
    reply: Content = {JSON: _own(row.reply)}
    if endpoint.stream == "server":
        reply = {**reply, _EVENTS: TEXT}
    request: Content = {JSON: _own(row.request)} if row.request else {}
    return ApiOperation(endpoint.method, method, path, row.id + suffix, row.summary, reply, endpoint.admin, request)
