"""HTTP request lines -> endpoints. The table is `endpoints`; everything else here is looking it up quickly.

All paths are there below /openai/v1, Anthropic's below /anthropic/v1, and the short ones of these servers themselves
beside them: /v1/chat/completions, /v1/messages, /embed. What is below /v1/models/ belongs to TensorFlow Serving where
that is spoken on the same port; on a port without it, to this dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from tensorgate.adapters.failures import refusing
from tensorgate.adapters.openai.anthropic import (
    decode_count_tokens,
    decode_messages,
    encode_messages,
    encode_messages_end,
)
from tensorgate.adapters.openai.api import description
from tensorgate.adapters.openai.chat import decode_chat, encode_chat, encode_chat_end
from tensorgate.adapters.openai.completions import decode_completions, encode_completions, encode_completions_end
from tensorgate.adapters.openai.embeddings import decode_embeddings, encode_embeddings, is_long
from tensorgate.adapters.openai.errors import (
    encode_anthropic_error,
    encode_cohere_error,
    encode_error,
    encode_fastapi_error,
    encode_tei_error,
    encode_unreadable,
    quota_headers,
)
from tensorgate.adapters.openai.generation import follow
from tensorgate.adapters.openai.generation import tokens_of as generated_tokens
from tensorgate.adapters.openai.models import decode_model, decode_models, encode_model, encode_models
from tensorgate.adapters.openai.options import OpenAiOptions
from tensorgate.adapters.openai.packing import tokens_of
from tensorgate.adapters.openai.rerank import decode_rerank, decode_score, encode_rerank, encode_score
from tensorgate.adapters.openai.responses import decode_responses, encode_responses, encode_responses_end
from tensorgate.adapters.openai.sample import sample, samples
from tensorgate.adapters.openai.tei import (
    decode_embed,
    decode_predict,
    decode_similarity,
    decode_tei_rerank,
    encode_embed,
    encode_predict,
    encode_similarity,
    encode_tei_rerank,
)
from tensorgate.adapters.openai.tokenize import decode_detokenize, decode_tokenize, encode_known
from tensorgate.adapters.openai.told import read_answer
from tensorgate.adapters.openai.usage import PassingTokens
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match
from tensorgate.gateway.contract.errors import MethodNotAllowed, RouteNotFound

PREFIX: Final = "/openai"
ROOT: Final = f"{PREFIX}/v1"
ANTHROPIC: Final = "/anthropic/v1"
_MODEL: Final = "/models/"
_REMEMBERED: Final = 1024

_ERRORS: Final = {"openai": encode_error, "fastapi": encode_fastapi_error}
Rows = Mapping[str, tuple[str, Endpoint]]
"""Path -> its method, and what answers."""


def make(options: OpenAiOptions) -> Dialect:
    """The dialect as its options want it."""
    rows = endpoints(options)
    return Dialect(
        name="openai",
        title="OpenAI",
        prefix=PREFIX,
        match=_matcher(rows, options),
        sample=sample,
        samples=samples,
        paths=tuple(path for path in rows if not path.startswith(f"{PREFIX}/")),
        unreadable=encode_unreadable,
        api=description(rows, model_endpoint(options)),
    )


def endpoints(options: OpenAiOptions) -> Rows:
    """Every path but that of one model."""
    rows: dict[str, tuple[str, Endpoint]] = {}
    listed = partial(encode_models, owned_by=options.owned_by)

    def row(paths: tuple[str, ...], label: str, decode: Any, encode: Any, method: str = "POST", **more: Any) -> None:
        more["quota_headers"] = quota_headers
        if "tokens" in more:
            more |= {"meter": PassingTokens, "read_answer": read_answer}
        more.setdefault("encode_error", _ERRORS[options.error_form])
        for path in paths if options.short_paths else [each for each in paths if _is_below(each)]:
            rows[path] = method, Endpoint(f"{method} {path}", label, decode, encode, **more)

    def generating(paths: tuple[str, ...], decode: Any, encode: Any, end: Any, **more: Any) -> None:
        more |= {"stream": "server", "follow": follow, "encode_end": end, "tokens": generated_tokens}
        row(paths, "generate", decode, encode, **more)

    row((f"{ROOT}/models", "/v1/models", f"{ANTHROPIC}/models"), "models", decode_models, listed, "GET")
    row(_both("/embeddings"), "infer", decode_embeddings, encode_embeddings, is_long=is_long, tokens=tokens_of)
    generating(_both("/completions"), decode_completions, encode_completions, encode_completions_end)
    generating(_both("/chat/completions"), decode_chat, encode_chat, encode_chat_end)
    generating(_both("/responses"), decode_responses, encode_responses, encode_responses_end)
    row(
        (*_both("/rerank"), f"{PREFIX}/v2/rerank", "/v2/rerank"),
        "infer",
        decode_rerank,
        encode_rerank,
        encode_error=encode_cohere_error,
        tokens=tokens_of,
    )
    row((*_both("/score"), "/score"), "infer", decode_score, encode_score, tokens=tokens_of)
    row((f"{ROOT}/tokenize",), "tokenize", decode_tokenize, encode_known)
    row((f"{ROOT}/detokenize", "/detokenize"), "tokenize", decode_detokenize, encode_known)
    fails: dict[str, Any] = {"encode_error": encode_anthropic_error}
    generating(
        (f"{ANTHROPIC}/messages", *_both("/messages")), decode_messages, encode_messages, encode_messages_end, **fails
    )
    counting = (f"{ANTHROPIC}/messages/count_tokens", *_both("/messages/count_tokens"))
    row(counting, "tokenize", decode_count_tokens, encode_known, **fails)
    fails = {"encode_error": encode_tei_error}
    defaults = options.default_models
    row(("/embed",), "infer", partial(decode_embed, defaults=defaults), encode_embed, **fails)
    row(("/rerank",), "infer", partial(decode_tei_rerank, defaults=defaults), encode_tei_rerank, **fails)
    row(
        ("/similarity",),
        "infer",
        partial(decode_similarity, defaults=defaults),
        encode_similarity,
        **fails,
    )
    row(("/predict",), "infer", partial(decode_predict, defaults=defaults), encode_predict, **fails)
    default = options.default_models.embedding
    row(("/tokenize",), "tokenize", partial(decode_tokenize, default=default), encode_known)
    return rows


def model_endpoint(options: OpenAiOptions) -> Endpoint:
    """What tells of one model, whose name may have slashes."""
    encode = partial(encode_model, owned_by=options.owned_by)
    address = f"GET {ROOT}/models/{{model}}"
    return Endpoint(address, "metadata", decode_model, encode, _ERRORS[options.error_form], quota_headers=quota_headers)


def _both(path: str) -> tuple[str, str]:
    return f"{ROOT}{path}", f"/v1{path}"


def _is_below(path: str) -> bool:
    return path.startswith((f"{PREFIX}/", f"{ANTHROPIC}/"))


# ------------------------------------------------------------------------------------------------------------ matching


def _refusing(kind: type[RouteNotFound]) -> Endpoint:
    return refusing(PREFIX, lambda call: kind(call.method, call.raw_target.partition("?")[0]), encode_error)


_NOT_FOUND: Final = Match(_refusing(RouteNotFound))
_NOT_ALLOWED: Final = _refusing(MethodNotAllowed)


def _matcher(rows: Rows, options: OpenAiOptions) -> Any:
    model = model_endpoint(options)
    anthropics = replace(model, encode_error=encode_anthropic_error)

    # Never stale: the rows are constants of a dialect, which has a matcher of its own; models are resolved later.
    @lru_cache(_REMEMBERED)
    def match(method: str, raw_target: str) -> Match:
        path, _, query = raw_target.partition("?")
        path = unquote(path)
        if len(path) > 1:
            path = path.rstrip("/") or path
        row = rows.get(path)
        if row is None:
            name = _model_name(path)
            if not name:
                return _NOT_FOUND
            row = "GET", anthropics if path.startswith(f"{ANTHROPIC}/") else model
            args = {"model": name}
        else:
            args = {key: value for key, value in parse_qsl(query) if key == "model"}
        if method != row[0]:
            return Match(_NOT_ALLOWED, MappingProxyType({"allow": row[0]}))
        return Match(row[1], MappingProxyType(args))

    return match


def _model_name(path: str) -> str:
    """The name in the path of one model, "" in any other path."""
    for root in (ROOT, "/v1", ANTHROPIC):
        if path.startswith(f"{root}{_MODEL}"):
            return path[len(root) + len(_MODEL) :]
    return ""
