"""A request -> its prompt, and how the model goes on from there. The names of the inputs are those of Triton's vLLM and
TensorRT-LLM models and of OpenAI's parameters; each may come as a tensor, or as a parameter of the request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, TensorSpec

PROMPT: Final = "text_input"
ANSWER: Final = "text_output"
LOGPROBS: Final = "logprobs"
MAX_LOGPROBS: Final = 20
MAX_STOPS: Final = 16
_FP32, _INT32, _INT64 = (np.dtype(name) for name in ("float32", "int32", "int64"))

INPUTS: Final = (
    TensorSpec(PROMPT, BYTES, (1,)),
    TensorSpec("max_tokens", _INT32, (1,), optional=True),
    TensorSpec("min_tokens", _INT32, (1,), optional=True),
    TensorSpec("temperature", _FP32, (1,), optional=True),
    TensorSpec("top_p", _FP32, (1,), optional=True),
    TensorSpec("top_k", _INT32, (1,), optional=True),
    TensorSpec("seed", _INT64, (1,), optional=True),
    TensorSpec("repetition_penalty", _FP32, (1,), optional=True),
    TensorSpec("stop", BYTES, (-1,), optional=True),
)
OUTPUTS: Final = (TensorSpec(ANSWER, BYTES, (1,)),)
WITH_LOGPROBS: Final = (
    (*INPUTS, TensorSpec(LOGPROBS, _INT32, (1,), optional=True)),
    (
        *OUTPUTS,
        TensorSpec(LOGPROBS, BYTES, (1,)),
    ),
)
"""Of a model that tells how likely tokens were: inputs, outputs."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What None leaves to genai_config.json."""

    prompt: str
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    """0: always the likeliest token."""
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    logprobs: int | None = None
    """How many of the likeliest tokens to tell beside each."""

    @property
    def samples(self) -> bool | None:
        """Whether tokens are drawn; None: as the model's files say."""
        return None if self.temperature is None else self.temperature > 0


def generation_request(request: InferRequest, vocabulary: int) -> GenerationRequest:
    """Of a model with so many tokens. Raises InvalidArgument."""
    stops = [_text("stop", word) for word in _many(request, "stop")]
    if len(stops) > MAX_STOPS:
        raise InvalidArgument(f"stop has {len(stops)} words, and {MAX_STOPS} is the most")
    top_k, logprobs = _whole(request, "top_k", -1), _whole(request, LOGPROBS, 0)
    if logprobs is not None and logprobs > MAX_LOGPROBS:
        raise InvalidArgument(f"{LOGPROBS} is {logprobs}, and {MAX_LOGPROBS} is the most")
    return GenerationRequest(
        _text(PROMPT, request.inputs[PROMPT].reshape(-1)[0]),
        tuple(stop for stop in stops if stop),
        _whole(request, "max_tokens", 1),
        _whole(request, "min_tokens", 0),
        _number(request, "temperature", 0.0, 100.0),
        _number(request, "top_p", 0.0, 1.0),
        vocabulary if top_k in (-1, 0) else top_k,  # vLLM's words for all
        _whole(request, "seed"),
        _number(request, "repetition_penalty", 0.01, 100.0),
        logprobs,
    )


def _many(request: InferRequest, name: str) -> list[Any]:
    array = request.inputs.get(name)
    if array is not None:
        return list(array.reshape(-1).tolist())
    value = request.parameters.get(name)
    return [] if value is None else [value]


def _one(request: InferRequest, name: str) -> Any:
    values = _many(request, name)
    if len(values) > 1:
        raise InvalidArgument(f"{name} has {len(values)} values, expected one")
    return values[0] if values else None


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise InvalidArgument(f"{name} is no text")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{name} is not UTF-8") from None


def _whole(request: InferRequest, name: str, least: int | None = None) -> int | None:
    value = _one(request, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise InvalidArgument(f"{name} is {value!r}, expected a whole number{bound}")
    return value


def _number(request: InferRequest, name: str, least: float, most: float) -> float | None:
    value = _one(request, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidArgument(f"{name} is {value!r}, expected a number")
    if not least <= value <= most:
        raise InvalidArgument(f"{name} is {value:g}, expected {least:g} to {most:g}")
    return float(value)
