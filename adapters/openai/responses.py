"""POST /openai/v1/responses: OpenAI's responses of plain text, whole or as named events. Nothing is stored: what came
before has to come along. Source: OpenAI's API reference, Responses.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import orjson

from tensorgate.adapters.openai.chat import Message, chat_question, content_text
from tensorgate.adapters.openai.errors import JSON
from tensorgate.adapters.openai.events import EVENT_STREAM, event
from tensorgate.adapters.openai.fields import INVALID, UNSUPPORTED, BadField, Fields, read
from tensorgate.adapters.openai.generation import Exchange, GeneratedText
from tensorgate.adapters.openai.sampling import sampling_of
from tensorgate.adapters.openai.text_role import asked_role
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import InferTogether

_MOST: Final = "max_output_tokens"
_HANDLED: Final = frozenset(
    {"model", "input", "instructions", "stream", "text", "reasoning", "truncation", "background", "conversation",
     "previous_response_id", "prompt", "max_tool_calls"}
)  # fmt: skip
_REFUSED: Final = ("background", "conversation", "previous_response_id", "prompt")
_OUTCOMES: Final = {"length": ("incomplete", {"reason": "max_output_tokens"})}


class ResponseExchange(Exchange):
    """A response, its numbered events, and what it repeats of its request."""

    def __init__(self, model: str, told: dict[str, Any], *, stream: bool) -> None:
        super().__init__(model, "resp_", stream=stream)
        self.message_id = f"msg_{secrets.token_hex(24)}"
        self.told = told
        self._events = 0

    def event(self, name: str, more: dict[str, Any]) -> bytes:
        """One event, and its number."""
        number, self._events = self._events, self._events + 1
        return event(orjson.dumps({"type": name, "sequence_number": number, **more}), name)


def decode_responses(call: Call, resolve: Resolve) -> InferRequest | InferTogether:
    """Raises MustOffload, and what refuses a body."""
    fields = read(call)
    role = asked_role(fields, call, resolve, "chat", "completion")
    for name in _REFUSED:
        if fields.members.get(name):
            raise BadField(f"'{name}' is not supported: nothing is stored here.", name, UNSUPPORTED)
    form = fields.object("text")
    wanted = None if form is None else form.object("format")
    if wanted is not None and wanted.text("type", "text") != "text":
        raise BadField("'text.format' is not supported by this model.", "text.format", UNSUPPORTED)
    messages = _messages(fields)
    sampling = sampling_of(fields, role, _HANDLED, _MOST)
    told = {
        "instructions": fields.members.get("instructions"),
        "max_output_tokens": sampling.max_tokens,
        "temperature": fields.members.get("temperature"),
        "top_p": fields.members.get("top_p"),
        "metadata": fields.members.get("metadata", {}),
    }
    exchange = ResponseExchange(role.view.name, told, stream=fields.flag("stream"))
    return chat_question(role, messages, sampling, exchange, call)


def _messages(fields: Fields) -> list[Message]:
    given = fields.needed("input")
    messages: list[Message] = []
    if "instructions" in fields.members:
        messages.append({"role": "system", "content": fields.text("instructions")})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise fields.wrong_type("input", "a string or an array of items")
    for index, each in enumerate(given):
        path = f"input[{index}]"
        if not isinstance(each, dict):
            raise BadField(f"Invalid type for '{path}': expected an object.", path, "invalid_type")
        if each.get("type", "message") != "message":
            raise BadField(f"'{path}' is no message, and this model takes messages alone.", f"{path}.type", UNSUPPORTED)
        item = Fields(each, path)
        speaker = item.text("role")
        if speaker not in ("system", "developer", "user", "assistant"):
            raise BadField(f"Invalid value: '{speaker[:40]}'.", f"{path}.role", INVALID)
        messages.append({"role": speaker, "content": content_text(item.needed("content"), f"{path}.content")})
    return messages


def encode_responses(answer: InferResponse | Sequence[InferResponse], question: Any) -> Reply:
    """The whole response, or the next piece of it."""
    text: GeneratedText = question.wire
    exchange = _exchange(text)
    if not exchange.stream:
        text.end()
        return Reply(orjson.dumps(_response(exchange, text)), headers={"Content-Type": JSON})
    delta = text.take_delta()
    body = _first(exchange, text)
    if delta:
        body += _delta(exchange, delta)
    return Reply(body, 200, EVENT_STREAM, streamed=True)


def encode_responses_end(answer: InferResponse | None, request: InferRequest) -> Reply | None:
    text: GeneratedText = request.wire
    exchange = _exchange(text)
    if not exchange.stream:
        return None
    body = _first(exchange, text)
    rest = text.take_delta() + text.end()
    if rest:
        body += _delta(exchange, rest)
    place = {"item_id": exchange.message_id, "output_index": 0, "content_index": 0}
    part = _part(text.text)
    response = _response(exchange, text)
    body += exchange.event("response.output_text.done", {**place, "text": text.text, "logprobs": []})
    body += exchange.event("response.content_part.done", {**place, "part": part})
    body += exchange.event("response.output_item.done", {"output_index": 0, "item": response["output"][0]})
    body += exchange.event(f"response.{response['status']}", {"response": response})
    return Reply(body, 200, EVENT_STREAM, streamed=True)


def _exchange(text: GeneratedText) -> ResponseExchange:
    exchange: Any = text.exchange
    return exchange  # type: ignore[no-any-return]


def _first(exchange: ResponseExchange, text: GeneratedText) -> bytes:
    """What comes before the first word."""
    if exchange.has_begun:
        return b""
    exchange.has_begun = True
    response = _response(exchange, None)
    item = _item(exchange, [], "in_progress")
    place = {"item_id": exchange.message_id, "output_index": 0, "content_index": 0}
    return (
        exchange.event("response.created", {"response": response})
        + exchange.event("response.in_progress", {"response": response})
        + exchange.event("response.output_item.added", {"output_index": 0, "item": item})
        + exchange.event("response.content_part.added", {**place, "part": _part("")})
    )


def _delta(exchange: ResponseExchange, text: str) -> bytes:
    place = {"item_id": exchange.message_id, "output_index": 0, "content_index": 0}
    return exchange.event("response.output_text.delta", {**place, "delta": text, "logprobs": []})


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(exchange: ResponseExchange, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": exchange.message_id, "type": "message", "role": "assistant", "status": status, "content": content}


def _response(exchange: ResponseExchange, text: GeneratedText | None) -> dict[str, Any]:
    """`text` None: it has just begun."""
    status, why, output, used = "in_progress", None, list[dict[str, Any]](), None
    if text is not None:
        status, why = _OUTCOMES.get(text.finish_reason, ("completed", None))
        output = [_item(exchange, [_part(text.text)], status)]
        used = _usage(exchange)
    return {
        "id": exchange.id,
        "object": "response",
        "created_at": exchange.created,
        "status": status,
        "error": None,
        "incomplete_details": why,
        "model": exchange.model,
        "output": output,
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "store": False,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none",
        "tools": [],
        "truncation": "disabled",
        "usage": used,
        **exchange.told,
    }


def _usage(exchange: Exchange) -> dict[str, Any] | None:
    taken, given = exchange.prompt_tokens, exchange.completion_tokens
    if taken is None or given is None:
        return None
    return {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": given,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": taken + given,
    }
