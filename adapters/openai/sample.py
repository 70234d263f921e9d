"""Sample requests to what a model of text answers, made of its example inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import SampleRequest
from tensorgate.gateway.contract.tensor import BYTES
from tensorgate.gateway.contract.text import SECTION, TextOptions

_ROOT: Final = "/openai/v1"
_JSON: Final = "application/json"
_LONGEST: Final = 2000
_SOME_TEXT: Final = "Hello"
_MAX_TOKENS: Final = 32


def sample(view: ModelView) -> SampleRequest | None:
    """The first of `samples`."""
    return next(samples(view), None)


def samples(view: ModelView) -> Iterator[SampleRequest]:
    """Every kind of call that the model's role answers."""
    options: TextOptions | None = view.mappings.get(SECTION)
    if options is None:
        return
    text = _example(view, options)
    if options.kind == "embedding":
        yield _made("embeddings", view, {"input": text})
    elif options.kind == "reranker":
        yield _made("rerank", view, {"query": text, "documents": [text, _SOME_TEXT]})
    elif options.kind in ("completion", "chat"):
        yield from _generations(view, options, text)


def _generations(view: ModelView, options: TextOptions, text: str) -> Iterator[SampleRequest]:
    most = {"max_tokens": _MAX_TOKENS}
    if options.messages is None:
        yield _made("completions", view, {"prompt": text, **most})
        yield _made("completions", view, {"prompt": text, **most, "stream": True}, streams=True)
    if options.messages is not None or options.chat_template is not None:
        messages = [{"role": "user", "content": text}]
        yield _made("chat/completions", view, {"messages": messages, **most})
        yield _made("chat/completions", view, {"messages": messages, **most, "stream": True}, streams=True)


def _made(path: str, view: ModelView, more: dict[str, Any], *, streams: bool = False) -> SampleRequest:
    body = json.dumps({"model": view.name, **more}, ensure_ascii=False)
    title = f"{path}, stream" if streams else path
    return SampleRequest(f"{_ROOT}/{path}", body, _JSON, title, streams)


def _example(view: ModelView, options: TextOptions) -> str:
    """The first text of the example that came with the model, or any."""
    for name, array in view.example_inputs.items():
        if array.dtype == BYTES and array.size and (options.prompt in (None, name)):
            try:
                text: str = array.reshape(-1)[0].decode()
            except UnicodeDecodeError:
                continue
            if 0 < len(text) <= _LONGEST:
                return text
    return _SOME_TEXT
