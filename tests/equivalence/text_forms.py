"""OpenAI's and Anthropic's requests to models of text, as clients write them. What the model takes and gives is one
text, so that all pieces of a stream are its answer, joined.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from form import Ask, Form, over_http, plain_json
from spoilt import spoilt
from truth import Arrays, Refused
from wire import Message, Reply

_DATA: Final = "data: "
_TEXT: Final = frozenset({"BYTES"})


def _prompt(ask: Ask) -> str:
    (array,) = ask.tensors.values()
    text: bytes = array.item()
    return text.decode()


def _completions(*, stream: bool) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        prompt: Any = _prompt(ask) if ask.seed % 2 else [_prompt(ask)]
        body = {"model": ask.model.name, "prompt": prompt, "stream": stream}
        return over_http(ask, "/openai/v1/completions", spoilt(ask, body, plain_json), _JSON)

    return encode


def _chat(*, stream: bool) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        body = {"model": ask.model.name, "messages": [{"role": "user", "content": _prompt(ask)}], "stream": stream}
        return over_http(ask, "/v1/chat/completions", spoilt(ask, body, plain_json), _JSON)

    return encode


def _messages(*, stream: bool) -> Callable[[Ask], Message]:
    def encode(ask: Ask) -> Message:
        said = [{"role": "user", "content": _prompt(ask)}]
        body = {"model": ask.model.name, "max_tokens": 9, "messages": said, "stream": stream}
        return over_http(ask, "/anthropic/v1/messages", spoilt(ask, body, plain_json), _JSON)

    return encode


def _read(ask: Ask, reply: Reply) -> list[Arrays]:
    """All that was told, of whole answers and of events."""
    text = reply.body.decode()
    if reply.status != 200:
        raise Refused(f"{reply.status} {text}")
    if not text.startswith(("data:", "event:")):
        return _answer(ask, _told(json.loads(text)))
    events = [line.removeprefix(_DATA) for line in text.splitlines() if line.startswith(_DATA)]
    documents = [json.loads(event) for event in events if event != "[DONE]"]
    failed = next((document for document in documents if "error" in document), None)
    if failed is not None:
        raise Refused(str(failed))
    assert events[-1] == "[DONE]" or documents[-1]["type"] == "message_stop", "no end"
    return _answer(ask, "".join(map(_told, documents)))


def _told(document: Any) -> str:
    for choice in document.get("choices", ()):
        said = choice.get("message") or choice.get("delta") or {}
        return choice.get("text") or said.get("content") or ""
    if document.get("type") == "content_block_delta":
        return str(document["delta"]["text"])
    return "".join([part["text"] for part in document.get("content", ())])


def _answer(ask: Ask, text: str) -> list[Arrays]:
    array = np.empty(1, np.object_)
    array[0] = text.encode()
    return [{ask.model.outputs[0].name: array}]


_JSON: Final = ("Content-Type", "application/json")
FORMS: Final = tuple(
    Form(
        f"text {name}{' stream' * stream}", "http", form(stream=stream), _read, _TEXT, _TEXT,
        generators=True, dialect="openai",
    )
    for name, form in (("completions", _completions), ("chat", _chat), ("messages", _messages))
    for stream in (False, True)
)  # fmt: skip
