"""What a whole answer says, as tensors, whoever has given it: so that two answers to one call can be compared.

    text              BYTES [n], of each choice; `tool_calls` too, where there are any, as JSON
    finish_reason     BYTES [n]
    embedding         FP32 [n, d]
    score             FP32 [n], of rerank and score, in the order of the documents

A stream says the same as the whole answer with its pieces joined.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import orjson

from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.openai.events import EventCutter
from tensorgate.gateway.contract.canonical import InferResponse
from tensorgate.gateway.contract.errors import ModelFailed
from tensorgate.gateway.contract.tensor import Array

_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"


def read_answer(body: bytes) -> InferResponse:
    """Raises ModelFailed for what is no answer of this dialect."""
    try:
        if body.lstrip().startswith((_DATA, b"event:", b":")):
            return InferResponse(_streamed(body))
        return InferResponse(_whole(orjson.loads(body)))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ModelFailed(f"no answer of OpenAI's or Anthropic's: {error!r}") from None


class _Choice:
    """One text, as far as it was told."""

    def __init__(self) -> None:
        self.text = ""
        self.tools: list[Any] = []
        self.reason = ""

    def add(self, said: Mapping[str, Any]) -> None:
        """A choice, or a piece of one."""
        told = said.get("message") or said.get("delta") or {}
        self.text += said.get("text") or told.get("content") or ""
        self.tools += told.get("tool_calls") or ()
        self.reason = said.get("finish_reason") or self.reason


def _streamed(body: bytes) -> dict[str, Array]:
    choices: dict[int, _Choice] = {}
    for event in _events(body):
        if "error" in event:
            raise ValueError(event["error"])
        for said in event.get("choices") or ():
            choices.setdefault(said.get("index") or 0, _Choice()).add(said)
        kind: str = event.get("type", "")
        delta: Any = event.get("delta")
        if kind == "response.output_text.delta":
            choices.setdefault(0, _Choice()).text += delta
        elif kind == "content_block_delta":
            choices.setdefault(0, _Choice()).text += delta.get("text") or ""
        elif kind == "message_delta":
            choices.setdefault(0, _Choice()).reason = delta.get("stop_reason") or ""
    return _texts([choices[index] for index in sorted(choices)])


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    cut = EventCutter()
    for line in (*cut.feed(body), *cut.end()):
        data = line.removeprefix(_DATA).strip()
        if data != _DONE:
            yield orjson.loads(data)


def _whole(answer: Any) -> dict[str, Array]:
    if isinstance(answer, list):  # text-embeddings-inference's
        return _vectors(answer) if not answer or isinstance(answer[0], list) else _scores(answer)
    if "choices" in answer:
        choices = []
        for said in sorted(answer["choices"], key=lambda each: each.get("index") or 0):
            choices.append(_Choice())
            choices[-1].add(said)
        return _texts(choices)
    if "results" in answer:
        return _scores(answer["results"])
    if "data" in answer:
        data = sorted(answer["data"], key=lambda each: each.get("index") or 0)
        return _vectors([each["embedding"] for each in data]) if "embedding" in data[0] else _scores(data)
    only = _Choice()
    if "output" in answer:
        parts = [part for item in answer["output"] for part in item.get("content") or ()]
        only.reason = answer.get("status") or ""
    else:
        parts = answer["content"]
        only.reason = answer.get("stop_reason") or ""
    only.text = "".join([part.get("text") or "" for part in parts])
    return _texts([only])


def _texts(choices: list[_Choice]) -> dict[str, Array]:
    told = {
        "text": array_of([each.text.encode() for each in choices]),
        "finish_reason": array_of([each.reason.encode() for each in choices]),
    }
    if any(each.tools for each in choices):
        told["tool_calls"] = array_of([orjson.dumps(each.tools, option=orjson.OPT_SORT_KEYS) for each in choices])
    return told


def _vectors(given: list[Any]) -> dict[str, Array]:
    return {"embedding": np.stack([vector_of(each) for each in given])}


def vector_of(given: Any) -> Array:
    """Numbers, or base64 of FP32, little-endian."""
    if isinstance(given, str):
        return np.frombuffer(base64.b64decode(given), "<f4").astype(np.float32)
    return np.array(given, np.float32)


def _scores(given: list[Any]) -> dict[str, Array]:
    ordered = sorted(given, key=lambda each: each.get("index") or 0)
    scores = [each["relevance_score"] if "relevance_score" in each else each["score"] for each in ordered]
    return {"score": np.array(scores, np.float32)}
