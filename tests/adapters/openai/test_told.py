"""What whole answers say, as tensors: the same whether they came at once or in pieces."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from tensorgate.adapters.openai.told import read_answer
from tensorgate.gateway.contract.errors import ModelFailed


def events(*documents: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in documents) + b"data: [DONE]\n\n"


def delta(text: str, index: int = 0, reason: str | None = None) -> Any:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": reason}]}


def message(text: str, index: int = 0, **more: Any) -> Any:
    return {"index": index, "message": {"content": text, **more}, "finish_reason": "stop"}


TOOL = [{"id": "1", "function": {"name": "f"}}]
TEXTS: dict[str, tuple[bytes, list[str], list[str]]] = {
    "chat": (json.dumps({"choices": [message("b", 1), message("a")]}).encode(), ["a", "b"], ["stop", "stop"]),
    "a chat in pieces": (
        events(
            delta("a"), delta("b", 1), delta("c"), delta("", 1, "stop"), delta("", reason="length"), {"choices": []}
        ),
        ["ac", "b"],
        ["length", "stop"],
    ),
    "completion": (b'{"choices": [{"text": "a", "finish_reason": null}]}', ["a"], [""]),
    "a completion in pieces": (events({"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}), ["ab"], [""]),
    "no text": (b'{"choices": [{"message": {"content": null}}]}', [""], [""]),
    "responses": (
        b'{"status": "completed", "output": [{"content": [{"type": "output_text", "text": "a"}]}, {"type": "x"}]}',
        ["a"],
        ["completed"],
    ),
    "responses in pieces": (
        events({"type": "response.created"}, *[{"type": "response.output_text.delta", "delta": each} for each in "ab"]),
        ["ab"],
        [""],
    ),
    "messages": (b'{"content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn"}', ["a"], ["end_turn"]),
    "messages in pieces": (
        b"event: message_start\n"
        + events(
            {"type": "message_start"},
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        ),
        ["a"],
        ["end_turn"],
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts(case: str) -> None:
    body, texts, reasons = TEXTS[case]
    told = read_answer(body).outputs
    assert [each.decode() for each in told["text"]] == texts
    assert [each.decode() for each in told["finish_reason"]] == reasons
    assert told.keys() == {"text", "finish_reason"}


def test_tools_are_said_too() -> None:
    told = read_answer(json.dumps({"choices": [message("", tool_calls=TOOL)]}).encode()).outputs
    assert json.loads(told["tool_calls"][0]) == TOOL


def test_vectors_and_scores() -> None:
    one, two = [1.0, 2.5], [3.0, 4.0]
    packed = base64.b64encode(np.array(two, "<f4").tobytes()).decode()
    data = [{"index": 1, "embedding": packed}, {"index": 0, "embedding": one}]
    assert read_answer(json.dumps({"data": data}).encode()).outputs["embedding"].tolist() == [one, two]
    assert read_answer(json.dumps([one, two]).encode()).outputs["embedding"].tolist() == [one, two]
    ranked = [{"index": 1, "relevance_score": 0.75}, {"index": 0, "relevance_score": 0.5}]
    assert read_answer(json.dumps({"results": ranked}).encode()).outputs["score"].tolist() == [0.5, 0.75]
    scored = [{"index": 0, "score": 0.5}]
    assert read_answer(json.dumps({"data": scored}).encode()).outputs["score"].tolist() == [0.5]
    assert read_answer(json.dumps(scored).encode()).outputs["score"].tolist() == [0.5]


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"5", b'"a"', b"[5]", b'{"choices": 5}', b"data: {\n\n", events({"error": {"message": "x"}})]
)
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(ModelFailed, match="no answer of OpenAI's"):
        read_answer(body)
