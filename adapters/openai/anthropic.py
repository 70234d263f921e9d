"""POST /anthropic/v1/messages and /anthropic/v1/messages/count_tokens: Anthropic's chat, whole or as named events.
Source: Anthropic's API reference, Messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import orjson

from tensorgate.adapters.openai.chat import Message, chat_question, content_text, prompt_of
from tensorgate.adapters.openai.errors import JSON
from tensorgate.adapters.openai.events import EVENT_STREAM, event
from tensorgate.adapters.openai.fields import INVALID, MISSING, UNSUPPORTED, BadField, Fields, read
from tensorgate.adapters.openai.generation import Exchange, GeneratedText
from tensorgate.adapters.openai.sampling import MAX_TOKENS, sampling_of
from tensorgate.adapters.openai.text_role import asked_role
from tensorgate.adapters.openai.tokenize import tokenizer_for
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import InferTogether, KnownAnswer

_HANDLED: Final = frozenset(
    {"model", "messages", "system", "stream", "thinking", "tools", "tool_choice", "mcp_servers", "container",
     "context_management", "cache_control", "inference_geo", "speed", "output_config", "betas"}
)  # fmt: skip
_REFUSED: Final = ("tools", "mcp_servers", "container")
_REASONS: Final = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use", "content_filter": "refusal"}


def decode_messages(call: Call, resolve: Resolve) -> InferRequest | InferTogether:
    """Raises MustOffload, and what refuses a body."""
    fields = read(call)
    role = asked_role(fields, call, resolve, "chat", "completion")
    fields.needed(MAX_TOKENS)
    for name in _REFUSED:
        if fields.members.get(name):
            raise BadField(f"{name}: not supported by this model", name, UNSUPPORTED)
    messages = _messages(fields)
    sampling = sampling_of(fields, role, _HANDLED, MAX_TOKENS, "stop_sequences")
    exchange = Exchange(role.view.name, "msg_", stream=fields.flag("stream"))
    return chat_question(role, messages, sampling, exchange, call)


def decode_count_tokens(call: Call, resolve: Resolve) -> KnownAnswer:
    """How many tokens a chat has."""
    fields = read(call)
    role = asked_role(fields, call, resolve, "chat", "completion")
    tokenizer = tokenizer_for(role)
    return KnownAnswer({"input_tokens": tokenizer.count(prompt_of(role, _messages(fields), call))})


def _messages(fields: Fields) -> list[Message]:
    """The system's words first, as all templates have them."""
    given = fields.needed("messages")
    if not isinstance(given, list) or not given:
        raise BadField("messages: at least one message is required", "messages", INVALID)
    messages: list[Message] = []
    if "system" in fields.members:
        messages.append({"role": "system", "content": content_text(fields.members["system"], "system")})
    for index, each in enumerate(given):
        path = f"messages.{index}"
        if not isinstance(each, dict):
            raise BadField(f"{path}: Input should be an object", path, INVALID)
        speaker = each.get("role")
        if speaker not in ("user", "assistant", "system"):
            raise BadField(f"{path}.role: Input should be 'user' or 'assistant'", f"{path}.role", INVALID)
        if "content" not in each:
            raise BadField(f"{path}.content: Field required", f"{path}.content", MISSING)
        messages.append({"role": speaker, "content": content_text(each["content"], f"{path}.content")})
    return messages


def encode_messages(answer: InferResponse | Sequence[InferResponse], question: Any) -> Reply:
    """The whole message, or the next piece of it."""
    text: GeneratedText = question.wire
    exchange = text.exchange
    if not exchange.stream:
        text.end()
        content = [{"type": "text", "text": text.text}]
        told = _message(exchange, content) | _end(text)
        told["usage"] = {**_usage(exchange), "output_tokens": exchange.completion_tokens or 0}
        return Reply(orjson.dumps(told), headers=_headers(exchange))
    delta = text.take_delta()
    body = _first(exchange)
    if delta:
        body += _delta(delta)
    return Reply(body, 200, {**EVENT_STREAM, **_headers(exchange, None)}, streamed=True)


def encode_messages_end(answer: InferResponse | None, request: InferRequest) -> Reply | None:
    text: GeneratedText = request.wire
    exchange = text.exchange
    if not exchange.stream:
        return None
    body = _first(exchange)
    rest = text.take_delta() + text.end()
    if rest:
        body += _delta(rest)
    used = {**_usage(exchange), "output_tokens": exchange.completion_tokens or 0}
    body += _event("content_block_stop", {"index": 0})
    body += _event("message_delta", {"delta": _end(text), "usage": used})
    body += _event("message_stop", {})
    return Reply(body, 200, {**EVENT_STREAM, **_headers(exchange, None)}, streamed=True)


def _first(exchange: Exchange) -> bytes:
    """What comes before the first word."""
    if exchange.has_begun:
        return b""
    exchange.has_begun = True
    message = _message(exchange, []) | {"stop_reason": None, "stop_sequence": None}
    message["usage"] = {**_usage(exchange), "output_tokens": 0}
    block = {"type": "text", "text": ""}
    return (
        _event("message_start", {"message": message})
        + _event("content_block_start", {"index": 0, "content_block": block})
        + _event("ping", {})
    )


def _delta(text: str) -> bytes:
    return _event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})


def _event(name: str, more: dict[str, Any]) -> bytes:
    return event(orjson.dumps({"type": name, **more}), name)


def _message(exchange: Exchange, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": exchange.id, "type": "message", "role": "assistant", "model": exchange.model, "content": content}


def _end(text: GeneratedText) -> dict[str, Any]:
    if text.stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": text.stopped_by}
    return {"stop_reason": _REASONS.get(text.finish_reason, "end_turn"), "stop_sequence": None}


def _usage(exchange: Exchange) -> dict[str, int]:
    """Tokens that nobody knows are 0: clients need a number."""
    return {"input_tokens": exchange.prompt_tokens or 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def _headers(exchange: Exchange, content_type: str | None = JSON) -> dict[str, str]:
    named = {"Content-Type": content_type} if content_type else {}
    return {**named, "request-id": f"req_{secrets.token_hex(12)}"}
