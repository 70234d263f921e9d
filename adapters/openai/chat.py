"""POST /openai/v1/chat/completions: messages -> the next one, whole or as server-sent events. Source: OpenAI's API
reference, Chat Completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tensorgate.adapters.openai.completions import MAX_CHOICES, exchange_of, generation_question, wants_usage
from tensorgate.adapters.openai.errors import JSON
from tensorgate.adapters.openai.events import DONE, EVENT_STREAM, event
from tensorgate.adapters.openai.fields import EMPTY, INVALID, UNSUPPORTED, BadField, Fields, read
from tensorgate.adapters.openai.generation import Exchange, GeneratedText, usage
from tensorgate.adapters.openai.logprobs import MEMBERS, of_chat, wanted_by_chat
from tensorgate.adapters.openai.sampling import MAX_TOKENS, Sampling, sampling_of
from tensorgate.adapters.openai.template import template_of
from tensorgate.adapters.openai.text_role import WRONG_KIND, TextRole, asked_role
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import InferTogether

OBJECT: Final = "chat.completion"
MAX_MESSAGES: Final = 4096
_NEWER: Final = "max_completion_tokens"
_HANDLED: Final = frozenset(
    {"model", "messages", "n", "stream", "chat_template_kwargs", "add_generation_prompt", MAX_TOKENS, _NEWER, *MEMBERS}
)
_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
Message = Mapping[str, Any]


def decode_chat(call: Call, resolve: Resolve) -> InferRequest | InferTogether:
    """Raises MustOffload, and what refuses a body."""
    fields = read(call)
    role = asked_role(fields, call, resolve, "chat", "completion")
    messages = messages_of(fields)
    choices = fields.whole("n", 1, MAX_CHOICES) or 1
    most = _NEWER if _NEWER in fields.members else MAX_TOKENS
    sampling = sampling_of(fields, role, _HANDLED, most, logprobs=wanted_by_chat(fields, role))
    stream = fields.flag("stream")
    exchange = Exchange(role.view.name, "chatcmpl-", stream=stream, wants_usage=wants_usage(fields, stream=stream))
    more = fields.object("chat_template_kwargs")
    return chat_question(role, messages, sampling, exchange, call, choices, more.members if more else {})


def chat_question(
    role: TextRole,
    messages: Sequence[Message],
    sampling: Sampling,
    exchange: Exchange,
    call: Call,
    choices: int = 1,
    more: Mapping[str, Any] | None = None,
) -> InferRequest | InferTogether:
    """Messages as the model takes them: as JSON, or as a prompt. Raises MustOffload, BadField, InvalidArgument."""
    if role.options.messages is not None:
        spec = role.text_input(role.options.messages, "messages")
        prompts = [orjson.dumps(list(messages)).decode()]
    else:
        spec, prompts = role.prompt, [prompt_of(role, messages, call, more)]
    return generation_question(role, prompts, choices, sampling, exchange, call, param="messages", spec=spec)


def prompt_of(role: TextRole, messages: Sequence[Message], call: Call, more: Mapping[str, Any] | None = None) -> str:
    """Raises MustOffload, BadField, InvalidArgument, Unsupported."""
    template = template_of(role.options, call)
    if template is None:
        raise BadField(
            f"The model `{role.view.name}` takes no chats: its section text has no chat_template.", "model", WRONG_KIND
        )
    return template.prompt(messages, more or {})


# ------------------------------------------------------------------------------------------------------------- replies


def encode_chat(answer: InferResponse | Sequence[InferResponse], question: Any) -> Reply:
    """All choices of a call that takes one reply, or the next piece of one."""
    exchange = exchange_of(question)
    if not exchange.stream:
        choices = []
        for text in exchange.texts:
            text.end()
            message: dict[str, Any] = {"role": "assistant", "content": text.text, "refusal": None, "annotations": []}
            logprobs = of_chat(text.take_scores()) if text.has_scores else None
            choices.append(
                {"index": text.index, "message": message, "logprobs": logprobs, "finish_reason": text.finish_reason}
            )
        return Reply(orjson.dumps(_told(exchange, OBJECT, choices, usage(exchange))), headers={"Content-Type": JSON})
    piece: GeneratedText = question.wire
    delta = piece.take_delta()
    body = _first(exchange)
    if delta:
        body += _event(exchange, piece, {"content": delta}, None)
    return Reply(body, 200, EVENT_STREAM, streamed=True)


def encode_chat_end(answer: InferResponse | None, request: InferRequest) -> Reply | None:
    """The end of a stream of one choice; behind the last one, the usage that was asked for."""
    text: GeneratedText = request.wire
    exchange = text.exchange
    if not exchange.stream:
        return None
    body = _first(exchange)
    rest = text.take_delta() + text.end()
    if rest:
        body += _event(exchange, text, {"content": rest}, None)
    body += _event(exchange, text, {}, text.finish_reason)
    if exchange.is_over:
        if exchange.wants_usage:
            body += event(orjson.dumps(_told(exchange, f"{OBJECT}.chunk", [], usage(exchange))))
        body += DONE
    return Reply(body, 200, EVENT_STREAM, streamed=True)


def _first(exchange: Exchange) -> bytes:
    """Who speaks, for each choice, before the first word of any."""
    if exchange.has_begun:
        return b""
    exchange.has_begun = True
    told = {"role": "assistant", "content": ""}
    return b"".join([_event(exchange, text, told, None) for text in exchange.texts])


def _event(exchange: Exchange, text: GeneratedText, delta: Mapping[str, Any], finish_reason: str | None) -> bytes:
    logprobs = of_chat(text.take_scores()) if text.has_scores and delta.get("content") else None
    choice = {"index": text.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    told = _told(exchange, f"{OBJECT}.chunk", [choice], None)
    if exchange.wants_usage:
        told["usage"] = None
    return event(orjson.dumps(told))


def _told(exchange: Exchange, kind: str, choices: list[dict[str, Any]], used: dict[str, Any] | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": exchange.id,
        "object": kind,
        "created": exchange.created,
        "model": exchange.model,
        "system_fingerprint": None,
        "choices": choices,
    }
    if used is not None:
        told["usage"] = used
    return told


# ------------------------------------------------------------------------------------------------------------ messages


def messages_of(fields: Fields) -> list[Message]:
    """The messages of a chat, their contents as texts. Raises BadField."""
    given = fields.needed("messages")
    if not isinstance(given, list):
        raise fields.wrong_type("messages", "an array of objects")
    if not 1 <= len(given) <= MAX_MESSAGES:
        text = f"Invalid 'messages': expected 1 to {MAX_MESSAGES}, got {len(given)}."
        raise BadField(text, "messages", INVALID, None if given else EMPTY.replace("Value", "List"))
    return [_message(each, f"messages[{index}]") for index, each in enumerate(given)]


def _message(given: Any, path: str) -> Message:
    if not isinstance(given, dict):
        raise BadField(f"Invalid type for '{path}': expected an object.", path, "invalid_type")
    message = Fields(given, path)
    role = message.text("role")
    if role not in _ROLES:
        raise BadField(
            f"Invalid value: '{role[:40]}'. Supported values are: {', '.join(map(repr, _ROLES))}.",
            f"{path}.role",
            INVALID,
        )
    content = message.members.get("content")
    if content is None and role != "assistant":
        raise BadField(
            f"Missing required parameter: '{path}.content'.", f"{path}.content", "missing_required_parameter"
        )
    return {**message.members, "role": role, "content": content_text(content, f"{path}.content")}


def content_text(content: Any, path: str) -> str:
    """A content that is text, or parts of it. Raises BadField for pictures and sounds."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadField(f"Invalid type for '{path}': expected a string or an array.", path, "invalid_type")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise BadField(
                f"'{path}[{index}]' is no text, and this model takes text alone.", f"{path}[{index}]", UNSUPPORTED
            )
        if not isinstance(text, str):
            raise BadField(
                f"Missing required parameter: '{path}[{index}].text'.",
                f"{path}[{index}].text",
                "missing_required_parameter",
            )
        texts.append(text)
    return "\n".join(texts)
