"""Parameters of a generation, as callers send them -> inputs and parameters of a model, and the words at which a text
stops.

A parameter that is the name of an input is that input, as in Triton's generate extension; the section `text` of a
model says which names differ. What would change the answer and cannot be had of a model that is computed here is
refused; what only accounts or caches by is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import orjson

from tensorgate.adapters.openai.fields import INVALID, UNKNOWN, UNSUPPORTED, WRONG_TYPE, BadField, Fields, kind_of
from tensorgate.adapters.openai.logprobs import LOGPROBS, TOP_LOGPROBS
from tensorgate.adapters.openai.text_role import TextRole
from tensorgate.gateway.contract.errors import Unsupported
from tensorgate.gateway.contract.tensor import BYTES, Array, ParameterValue, TensorSpec

STREAM: Final = "stream"
SEED: Final = "seed"
MAX_TOKENS: Final = "max_tokens"
MAX_STOPS: Final = 16
"""OpenAI takes four, other servers any number."""
MAX_STOP_LENGTH: Final = 256
"""Each piece of an answer is held against every one."""
_NUMBERS: Final = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_COUNTS: Final = {"min_tokens": 0, "top_k": -1}
_FLAGS: Final = frozenset({"ignore_eos", "skip_special_tokens", "include_stop_str_in_output"})
"""Further ones of vLLM's that other servers know, too."""
_WITHOUT_EFFECT: Final = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
        "verbosity",
    }
)
"""What the answer of a model does not depend on."""
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_json": (),
    "include": ([],),
    "logit_bias": ({},),
    LOGPROBS: (False, 0),
    TOP_LOGPROBS: (0,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "audio": (),
    "web_search_options": (),
}
"""What needs more than a model of text, and the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What goes to the model beside the prompt. `max_tokens` None: as many as the model likes."""

    inputs: Mapping[str, Array]
    parameters: Mapping[str, ParameterValue]
    stops: tuple[str, ...]
    max_tokens: int | None
    logprobs: int | None = None
    """How many of the likeliest tokens to tell beside each; None: no log probabilities."""

    def of_seed(self, role: TextRole, index: int) -> Sampling:
        """For the text of this number: each has a seed of its own."""
        name = role.options.parameters.get(SEED, SEED)
        if not index or (name not in self.inputs and name not in self.parameters):
            return self
        if name in self.inputs:
            return replace(self, inputs={**self.inputs, name: self.inputs[name] + index})
        return replace(self, parameters={**self.parameters, name: int(self.parameters[name]) + index})


def sampling_of(
    fields: Fields,
    role: TextRole,
    handled: frozenset[str],
    max_tokens: str,
    stop: str = "stop",
    logprobs: int | None = None,
) -> Sampling:
    """All members but those that are `handled` elsewhere. `max_tokens` and `stop` are what the caller calls these.
    Raises BadField, Unsupported.
    """
    most = fields.whole(max_tokens, 1)
    stops = fields.texts(stop)
    if len(stops) > MAX_STOPS:
        raise BadField(f"Invalid '{stop}': {len(stops)} words, and {MAX_STOPS} is the most.", stop, INVALID)
    if any(len(word) > MAX_STOP_LENGTH for word in stops):
        raise BadField(f"Invalid '{stop}': a word has more than {MAX_STOP_LENGTH} characters.", stop, INVALID)
    given: dict[str, Any] = {} if most is None else {MAX_TOKENS: most}
    if stops:
        given["stop"] = stops
    if logprobs is not None:
        given[LOGPROBS] = logprobs
    for name, value in fields.members.items():
        if name in handled or name in (max_tokens, stop) or name in _WITHOUT_EFFECT:
            continue
        given |= _checked(name, value, fields)
    inputs, parameters = _placed(given, role)
    return Sampling(inputs, parameters, tuple(stops), most, logprobs)


def _checked(name: str, value: Any, fields: Fields) -> dict[str, Any]:
    """A member that goes to the model; none for one that asks for nothing."""
    if name in _NEUTRAL:
        if value in _NEUTRAL[name]:
            return {}
        raise BadField(f"'{name}' is not supported by this model.", name, UNSUPPORTED)
    if name in _NUMBERS:
        return {name: fields.number(name, *_NUMBERS[name])}
    if name == SEED:
        return {name: fields.whole(name, -(1 << 63))}
    if name in _COUNTS:
        return {name: fields.whole(name, _COUNTS[name])}
    if name in _FLAGS:
        return {name: fields.flag(name)}
    if not isinstance(value, (str, int, float, bool)):
        raise BadField(f"Unrecognized request argument supplied: {name}", name, UNKNOWN)
    if isinstance(value, float) and not math.isfinite(value):
        raise fields.wrong_type(name, "a finite number")
    return {name: value}


def _placed(given: Mapping[str, Any], role: TextRole) -> tuple[dict[str, Array], dict[str, ParameterValue]]:
    """By the model's names: inputs, and parameters."""
    options, specs = role.options, role.view.inputs
    inputs: dict[str, Array] = {}
    parameters: dict[str, ParameterValue] = {}
    named = {options.parameters.get(name, name): (name, value) for name, value in given.items()}
    if options.sampling is not None:
        place = role.text_input(options.sampling, "parameters")
        written = orjson.dumps({name: value for name, (_, value) in named.items() if name not in specs})
        inputs[place.name] = shaped(place, [written])
        named = {name: item for name, item in named.items() if name in specs}
    for name, (called, value) in named.items():
        spec = specs.get(name)
        if spec is not None:
            inputs[name] = _input(spec, value, called)
        elif not isinstance(value, list):
            parameters[name] = value
    streams = specs.get(options.parameters.get(STREAM, STREAM))
    if role.view.decoupled and streams is not None:
        inputs[streams.name] = shaped(streams, [True])
    for name, fixed in options.fixed.items():
        spec = specs.get(name)
        if spec is None:
            parameters[name] = fixed
        else:
            inputs[name] = _input(spec, fixed, name)
    return inputs, parameters


def _input(spec: TensorSpec, value: Any, called: str) -> Array:
    """Raises BadField for what the input's datatype cannot hold."""
    values = value if isinstance(value, list) else [value]
    try:
        if spec.dtype == BYTES:
            return shaped(spec, [each.encode() for each in values])
        array = np.array(values)
        cast = array.astype(spec.dtype)
        if array.dtype.kind not in "biuf" or (cast.dtype.kind in "biu" and not np.array_equal(cast, array)):
            raise ValueError
        return shaped(spec, cast)
    except (ValueError, AttributeError, OverflowError):
        raise BadField(
            f"Invalid type for '{called}': expected {spec.datatype}, but got {kind_of(value)} instead.",
            called,
            WRONG_TYPE,
        ) from None


def shaped(spec: TensorSpec, values: Any) -> Array:
    """Values in a shape that the input takes: its last dimension that varies is as long as they are many. Raises
    Unsupported.
    """
    array = np.empty(len(values), spec.dtype)
    array[:] = values
    shape = [len(values)] if spec.shape is None else [*spec.shape]
    open_axes = [axis for axis, size in enumerate(shape) if size < 0]
    for axis in open_axes:
        shape[axis] = 1
    if open_axes:
        shape[open_axes[-1]] = len(values)
    if math.prod(shape) != len(values):
        raise Unsupported(
            f"The model's input '{spec.name}' has shape {[*(spec.shape or ())]}, and takes no such value."
        )
    return array.reshape(shape)
