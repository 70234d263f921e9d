"""A small language model: text in, text that goes on from it out, whole or piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorgate import InvalidArgument, ModelContext, ModelRequest

LONGEST_PROMPT: Final = 2000
MOST_TOKENS: Final = 1024
MOST_TEMPERATURE: Final = 2.0
CHOICES: Final = 40
"""As many of the likeliest pieces are drawn from."""


@dataclass(frozen=True)
class Wish:
    """What a caller asks for, besides the text. A temperature of 0 always takes the likeliest piece."""

    max_tokens: int = 64
    temperature: float = 0.6
    seed: int | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidArgument."""
        if type(self.max_tokens) is not int or not 1 <= self.max_tokens <= MOST_TOKENS:
            raise InvalidArgument(f"max_tokens must be a whole number from 1 to {MOST_TOKENS}, not {self.max_tokens}")
        if isinstance(self.temperature, (bool, str)) or not 0 <= self.temperature <= MOST_TEMPERATURE:
            raise InvalidArgument(f"temperature must be a number from 0 to {MOST_TEMPERATURE}, not {self.temperature}")
        if self.seed is not None and (type(self.seed) is not int or self.seed < 0):
            raise InvalidArgument(f"seed must be a whole number, 0 or more, not {self.seed}")
        if type(self.stream) is not bool:
            raise InvalidArgument(f"stream must be true or false, not {self.stream}")


class Writer:
    """BYTES `text_input` [1] -> BYTES `text_output` [1]: what comes next, in the English of 1611.

    A wish may come as an input, or as a parameter of the request: INT32 `max_tokens`, FP32 `temperature`, INT64 `seed`,
    BOOL `stream`, all [1]. With `stream` there is an answer for each piece, without it a single one with all of them.
    A piece is a few characters, never a part of one.

    The network is recurrent: all that it has read is in its state, 384 numbers, so each piece costs the same. How it
    was trained: config/demo/make_language_model.py.
    """

    def __init__(self, context: ModelContext) -> None:
        with np.load(context.path / "writer/weights.npz") as file:
            self.pieces: list[str] = file["pieces"].tolist()
            weights = {name: file[name].astype(np.float32) for name in file.files if name != "pieces"}
        self.code = {piece: number for number, piece in enumerate(self.pieces)}
        self.longest_first = re.compile("|".join(map(re.escape, sorted(self.pieces, key=len, reverse=True))))
        self.given = weights["embedding"] @ weights["into"] + weights["into_bias"]  # [pieces, 3 * hidden]
        self.over, self.over_bias = weights["over"], weights["over_bias"]  # [hidden, 3 * hidden]
        self.scores = weights["out"] @ weights["embedding"].T  # [hidden, pieces]
        self.bias = weights["bias"]

    def infer(self, inputs: Mapping[str, Any], request: ModelRequest) -> Iterator[Mapping[str, Any]]:
        """A generator, so the model is decoupled; its state lives as long as the caller listens."""
        named = {name: inputs[name][0].item() for name in Wish.__annotations__ if name in inputs}
        wish = Wish(**{name: request.parameters[name] for name in Wish.__annotations__ if name in request.parameters}
                    | named)  # fmt: skip
        pieces = self.write(self.prompt(inputs["text_input"][0]), wish)
        if wish.stream:
            for piece in pieces:
                yield {"text_output": [piece]}
            return
        told = []
        for piece in pieces:
            if request.cancelled:
                return
            told.append(piece)
        yield {"text_output": ["".join(told)]}

    def prompt(self, text: bytes) -> list[int]:
        """Text -> codes of its pieces. Raises InvalidArgument."""
        try:
            prompt = text.decode()
        except UnicodeDecodeError:
            raise InvalidArgument("text_input is not UTF-8") from None
        if not prompt:
            raise InvalidArgument("text_input is empty: give the writer some words to go on from")
        if len(prompt) > LONGEST_PROMPT:
            raise InvalidArgument(f"text_input has {len(prompt)} characters, the writer reads {LONGEST_PROMPT} at most")
        unknown = next((character for character in prompt if character not in self.code), None)
        if unknown is not None:
            known = "".join(sorted(piece for piece in self.pieces if len(piece) == 1)).strip()
            raise InvalidArgument(f"text_input has the character {unknown!r}, the writer knows white space and {known}")
        return [self.code[piece] for piece in self.longest_first.findall(prompt)]

    def write(self, prompt: list[int], wish: Wish) -> Iterator[str]:
        """The pieces that follow, one after the other."""
        rng = np.random.default_rng(wish.seed)
        state = np.zeros(len(self.over), np.float32)
        for code in (self.code["\n"], *prompt):
            state = self.read(state, code)
        for _ in range(wish.max_tokens):
            code = self.choose(state, wish.temperature, rng)
            yield self.pieces[code]
            state = self.read(state, code)

    def read(self, state: Any, code: int) -> Any:
        """State [hidden] and one more piece -> the next state. Source: Cho et al., 2014, in cuDNN's form."""
        given_r, given_z, given_n = np.split(self.given[code], 3)
        over_r, over_z, over_n = np.split(state @ self.over + self.over_bias, 3)
        n = np.tanh(given_n + _sigmoid(given_r + over_r) * over_n)
        return n + _sigmoid(given_z + over_z) * (state - n)

    def choose(self, state: Any, temperature: float, rng: np.random.Generator) -> int:
        """A piece that may come next: the likeliest, or one drawn from the likeliest."""
        scores = state @ self.scores + self.bias
        if temperature == 0:
            return int(scores.argmax())
        likeliest = np.argsort(-scores, kind="stable")[:CHOICES]
        weights = np.exp((scores[likeliest] - scores[likeliest[0]]).astype(np.float64) / temperature)
        return int(rng.choice(likeliest, p=weights / weights.sum()))


def _sigmoid(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * x)
