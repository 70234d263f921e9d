"""POST /openai/v1/completions: a prompt -> what comes after it, whole or as server-sent events. Source: OpenAI's API
reference, Completions (legacy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from tensorgate.adapters.openai.errors import JSON
from tensorgate.adapters.openai.events import DONE, EVENT_STREAM, event
from tensorgate.adapters.openai.fields import INVALID, BadField, Fields, read
from tensorgate.adapters.openai.generation import Exchange, GeneratedText, usage
from tensorgate.adapters.openai.logprobs import LOGPROBS, of_completion, wanted_by_completion
from tensorgate.adapters.openai.sampling import MAX_TOKENS, Sampling, sampling_of
from tensorgate.adapters.openai.text_role import TOO_LONG, TextRole, asked_role, text_array
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import InferTogether
from tensorgate.gateway.contract.tensor import TensorSpec

MAX_CHOICES: Final = 128
"""OpenAI's own bound of n."""
MAX_TEXTS: Final = 1024
"""Texts of one call, n of each prompt."""
OBJECT: Final = "text_completion"
_HANDLED: Final = frozenset({"model", "prompt", "n", "stream", "echo", LOGPROBS})


def decode_completions(call: Call, resolve: Resolve) -> InferRequest | InferTogether:
    """Raises MustOffload, and what refuses a body."""
    fields = read(call)
    role = asked_role(fields, call, resolve, "completion", "chat")
    prompts = _prompts(fields, role)
    choices = fields.whole("n", 1, MAX_CHOICES) or 1
    logprobs = wanted_by_completion(fields, role)
    sampling = sampling_of(fields, role, _HANDLED, MAX_TOKENS, logprobs=logprobs)
    stream = fields.flag("stream")
    exchange = Exchange(role.view.name, "cmpl-", stream=stream, wants_usage=wants_usage(fields, stream=stream))
    echo = fields.flag("echo")
    return generation_question(role, prompts, choices, sampling, exchange, call, echo=echo)


def wants_usage(fields: Fields, *, stream: bool) -> bool:
    """stream_options.include_usage. Raises BadField."""
    options = fields.object("stream_options")
    if options is not None and not stream:
        raise BadField(
            "'stream_options' is only allowed when 'stream' is true.",
            "stream_options",
            by_schema="`stream_options` can only be used when `stream` is True",
        )
    return options is not None and options.flag("include_usage")


def generation_question(
    role: TextRole,
    prompts: Sequence[str],
    choices: int,
    sampling: Sampling,
    exchange: Exchange,
    call: Call,
    *,
    echo: bool = False,
    param: str = "prompt",
    spec: TensorSpec | None = None,
) -> InferRequest | InferTogether:
    """A request for each text: `choices` of each prompt, which `spec` takes. Raises BadField."""
    if len(prompts) * choices > MAX_TEXTS:
        raise BadField(f"Invalid 'n': {len(prompts) * choices} texts, and {MAX_TEXTS} is the most.", "n", INVALID)
    told = None if sampling.logprobs is None else role.options.logprobs
    output = (OutputRequest(role.answer), *(() if told is None else (OutputRequest(told),)))
    spec = role.prompt if spec is None else spec
    requests = []
    for number, asked in enumerate(prompts):
        prompt, tokens = _bounded(role, asked, sampling.max_tokens, param)
        for choice in range(choices):
            index = number * choices + choice
            of_text = sampling.of_seed(role, choice)
            text = GeneratedText(
                exchange,
                index,
                output=role.answer,
                scores=None if told is None or sampling.logprobs is None else (told, sampling.logprobs),
                stops=sampling.stops,
                max_tokens=sampling.max_tokens,
                tokenizer=role.tokenizer,
                prompt_tokens=tokens,
                counts_prompt=not choice,
                echo=prompt if echo else "",
                begins=len(prompt),
            )
            requests.append(
                InferRequest(
                    role.view,
                    {spec.name: text_array(spec, [prompt]), **of_text.inputs},
                    exchange.id,
                    output,
                    of_text.parameters,
                    deadline=call.deadline,
                    stream=exchange.stream,
                    wire=text,
                )
            )
    return requests[0] if len(requests) == 1 else InferTogether(tuple(requests), exchange)


def _bounded(role: TextRole, prompt: str, max_tokens: int | None, param: str) -> tuple[str, int | None]:
    """A prompt that leaves room for its answer, and its tokens: of one that is too long, the end is kept where texts
    are cut. Raises BadField.
    """
    tokenizer, most = role.tokenizer, role.options.max_tokens
    if tokenizer is None:
        return prompt, None
    count = tokenizer.count(prompt)
    if most is None or count + (max_tokens or 1) <= most:
        return prompt, count
    if role.options.truncation and (max_tokens or 1) < most:
        prompt = tokenizer.cut(prompt, most - (max_tokens or 1), from_end=True)
        return prompt, tokenizer.count(prompt)
    wanted = f", {max_tokens} in the completion" if max_tokens else ""
    raise BadField(
        f"This model's maximum context length is {most} tokens. However, you requested {count + (max_tokens or 0)} "
        f"tokens ({count} in the {param}{wanted}). Please reduce the length of the {param} or completion.",
        param,
        TOO_LONG,
    )


def encode_completions(answer: InferResponse | Sequence[InferResponse], question: Any) -> Reply:
    """All texts of a call that takes one reply, or the next piece of one."""
    exchange = exchange_of(question)
    if not exchange.stream:
        choices = []
        for text in exchange.texts:
            text.end()
            choices.append(_choice(text, text.text, text.finish_reason, text.begins))
        return Reply(orjson.dumps(_told(exchange, choices, usage(exchange))), headers={"Content-Type": JSON})
    piece: GeneratedText = question.wire
    offset, delta = piece.offset, piece.take_delta()
    body = _event(exchange, [_choice(piece, delta, None, offset)]) if delta else b""
    return Reply(body, 200, EVENT_STREAM, streamed=True)


def encode_completions_end(answer: InferResponse | None, request: InferRequest) -> Reply | None:
    """The end of a stream of one text; behind the last one, the usage that was asked for."""
    text: GeneratedText = request.wire
    exchange = text.exchange
    if not exchange.stream:
        return None
    offset, rest = text.offset, text.take_delta() + text.end()
    body = _event(exchange, [_choice(text, rest, text.finish_reason, offset)])
    if exchange.is_over:
        if exchange.wants_usage:
            body += event(orjson.dumps(_told(exchange, [], usage(exchange))))
        body += DONE
    return Reply(body, 200, EVENT_STREAM, streamed=True)


def exchange_of(question: Any) -> Exchange:
    """What the texts of a question have in common."""
    exchange: Exchange = question.wire if isinstance(question, InferTogether) else question.wire.exchange
    return exchange


def _choice(text: GeneratedText, told: str, finish_reason: str | None, offset: int) -> dict[str, Any]:
    """`offset` is where the first of its tokens begins."""
    logprobs = of_completion(text.take_scores(), offset) if text.has_scores else None
    return {"index": text.index, "text": told, "logprobs": logprobs, "finish_reason": finish_reason}


def _told(exchange: Exchange, choices: list[dict[str, Any]], used: dict[str, Any] | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": exchange.id,
        "object": OBJECT,
        "created": exchange.created,
        "model": exchange.model,
        "choices": choices,
    }
    if used is not None:
        told["usage"] = used
    return told


def _event(exchange: Exchange, choices: list[dict[str, Any]]) -> bytes:
    told = _told(exchange, choices, None)
    if exchange.wants_usage:
        told["usage"] = None
    return event(orjson.dumps(told))


def _prompts(fields: Fields, role: TextRole) -> list[str]:
    """Texts, or tokens of them."""
    given = fields.needed("prompt")
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(isinstance(each, str) for each in given):
            return given
        if all(type(each) is int for each in given):
            return [_text_of(role, given)]
        if all(isinstance(each, list) and each and all(type(one) is int for one in each) for each in given):
            return [_text_of(role, each) for each in given]
    raise fields.wrong_type("prompt", "a string, an array of strings, of tokens, or of arrays of tokens")


def _text_of(role: TextRole, tokens: list[int]) -> str:
    if role.tokenizer is None:
        raise BadField(
            f"The model `{role.view.name}` takes no tokens: its section text names no tokenizer.", "prompt", INVALID
        )
    return role.tokenizer.decode(tokens, "prompt")
