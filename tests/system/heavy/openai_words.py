"""A model of text for tests of other servers' frontends: words about a subject, drawn by seed and temperature, and how
likely each was. A token is a word with the blank before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tensorgate import InvalidArgument

SENTENCE = "It is a field of study in which machines learn from data , and not by rules ."
WORDS = SENTENCE.split()
LENGTH = 16


class Words:
    """BYTES `text_input` [1] -> BYTES `text_output` [1], BYTES `logprobs` [1]: JSON, as adapters/openai/logprobs.py
    reads it.
    """

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Iterator[Mapping[str, Any]]:
        if not inputs["text_input"][0]:
            raise InvalidArgument("text_input is empty")
        asked = {name: array[0].item() for name, array in inputs.items() if name != "text_input"}
        drawn = np.random.default_rng(asked.get("seed"))
        temperature = asked.get("temperature", 1.0)
        told, scores = [], []
        for number in range(min(asked.get("max_tokens", LENGTH), 64)):
            chances = np.full(len(WORDS), -3.0)
            chances[number % len(WORDS)] = 2.0
            chances -= np.log(np.exp(chances).sum())
            weights = np.exp(chances / max(temperature, 1e-3))
            word = int(drawn.choice(len(WORDS), p=weights / weights.sum()))
            best = [word, *np.argsort(-chances, kind="stable")[: asked.get("logprobs", 0)].tolist()]
            told.append(f" {WORDS[word]}")
            scores.append({each: {"logprob": chances[each], "decoded_token": f" {WORDS[each]}"} for each in best})
            if request.streaming:
                yield {"text_output": [told[-1]], "logprobs": [json.dumps(scores[-1:])]}
        if not request.streaming:
            yield {"text_output": ["".join(told)], "logprobs": [json.dumps(scores)]}
