"""Who makes the tokens of all texts that grow, step by step.

A model with PagedAttention and `engine.dynamic_batching` in its genai_config.json runs in the library's engine, which
batches continuously: a text joins and leaves at any step. Any other has a generator for each text, and they take turns;
the engine would batch those, too, but pads shorter prompts within the cache, and gives other answers then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.backends.genai.generation import Generation

EVENTS: Final = 256
_SEEDS: Final = 1 << 31
_MASK: Final = (1 << 64) - 1


class TokenGenerator(ABC):
    """Of one loaded model. What a method raises is the library's, as RuntimeError."""

    @abstractmethod
    def start(self, generation: Generation) -> None:
        """Let a text grow."""

    @abstractmethod
    def drop(self, generation: Generation) -> None:
        """Nobody wants any more of it, or it is over."""

    @abstractmethod
    def step(self) -> None:
        """Make some tokens, and hand them to their texts."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether any text grows."""


class _Turn(NamedTuple):
    request: Any
    number: int


class PagedEngine(TokenGenerator):
    """All texts in one batch, each with a request of the library's own."""

    def __init__(self, library: Any, model: Any) -> None:
        self._library = library
        self._engine = library.Engine(model)
        self._events = self._engine.create_event_buffer(EVENTS)
        self._turns: dict[Generation, _Turn] = {}
        self._generations: dict[Any, Generation] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._turns)

    def start(self, generation: Generation) -> None:
        options = self._library.RequestOptions()
        options.set_max_session_tokens(len(generation.tokens) + generation.most)
        request = self._engine.create_request(options=options)
        try:
            turn = request.begin_turn(np.array(generation.tokens, np.int32), self._options(request, generation))
        except BaseException:
            request.close()
            raise
        self._turns[generation] = _Turn(request, turn)
        self._generations[request] = generation

    def _options(self, request: Any, generation: Generation) -> Any:
        asked, options = generation.request, self._library.TurnOptions(request)
        options.set_max_generated_tokens(generation.most)
        for value, put in (
            (asked.samples, options.set_do_sample),
            (asked.temperature or None, options.set_temperature),
            (asked.min_tokens, options.set_min_generated_tokens),
            (asked.top_p, options.set_top_p),
            (asked.top_k, options.set_top_k),
            (asked.seed, lambda seed: options.set_seed(seed & _MASK)),
            (asked.repetition_penalty, options.set_repetition_penalty),
        ):
            if value is not None:
                put(value)
        return options

    def drop(self, generation: Generation) -> None:
        turn = self._turns.pop(generation, None)
        if turn is not None:
            del self._generations[turn.request]
            turn.request.close()

    def step(self) -> None:
        for event in self._engine.run(self._events):
            generation = self._generations.get(event.request)
            if generation is None or generation.is_over:
                continue
            if event.token is not None:
                generation.take(event.token)
            reason = event.finish_reason.name
            if reason == "FAILED":
                raise RuntimeError(f"the engine has failed: {event.error_code.name}")
            if reason != "NONE":
                generation.end("length" if reason.startswith("MAX_") else "stop")
        for generation in [each for each in self._turns if each.is_over]:
            self.drop(generation)


class Generators(TokenGenerator):
    """A generator for each text; each makes a token in turn. `ends` are the tokens after which nothing comes."""

    def __init__(self, library: Any, model: Any, ends: frozenset[int]) -> None:
        self._library = library
        self._model = model
        self._ends = ends
        self._turns: deque[Generation] = deque()
        self._running: dict[Generation, Any] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._turns)

    def start(self, generation: Generation) -> None:
        """The prompt is read in its first turn."""
        self._turns.append(generation)

    def drop(self, generation: Generation) -> None:
        self._running.pop(generation, None)
        if generation in self._turns:
            self._turns.remove(generation)

    def step(self) -> None:
        generation = self._turns[0]
        self._turns.rotate(-1)
        generator = self._running.get(generation)
        if generator is None:
            generator = self._running[generation] = self._library.Generator(self._model, self._params(generation))
            generator.append_tokens(np.array(generation.tokens, np.int32))
        scores = None if generation.request.logprobs is None else generator.get_logits().reshape(-1).copy()
        generator.generate_next_token()
        token = int(generator.get_next_tokens()[0])
        if scores is not None and token not in self._ends:
            generation.note(token, scores)
        if token in self._ends:
            generation.end("stop")
        else:
            generation.take(token)
            if generator.is_done() or generation.count >= generation.most:
                generation.end("length")
        if generation.is_over:
            self.drop(generation)

    def _params(self, generation: Generation) -> Any:
        asked, length = generation.request, len(generation.tokens)
        options: dict[str, Any] = {
            "do_sample": asked.samples,
            "temperature": asked.temperature or None,
            "min_length": None if asked.min_tokens is None else length + asked.min_tokens,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "random_seed": None if asked.seed is None else asked.seed % _SEEDS,
            "repetition_penalty": asked.repetition_penalty,
        }
        params = self._library.GeneratorParams(self._model)
        known = {name: value for name, value in options.items() if value is not None}
        params.set_search_options(max_length=length + generation.most, batch_size=1, **known)
        return params
