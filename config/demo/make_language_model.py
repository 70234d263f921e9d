"""Trains the model that config/demo/models/writer.py serves, from the King James Bible of 1611, in NumPy.

    apt-get install bible-kjv          # Debian: the text, and the program that prints it
    python config/demo/make_language_model.py

A recurrent network (GRU) learns to tell the next piece of a text. Pieces are characters and what often stands together:
"b", "ing", " unto". The gradients are worked out by hand below, so that NumPy does it all; it takes ten minutes
on one core. Seeded: a second run gives the same model, as far as two processors add up alike.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

OUTPUT = Path(__file__).parent / "models/writer/weights.npz"
TOKENIZER = OUTPUT.parent / "tokenizer.json"
SEED = 1611
WORD = r" ?[A-Za-z']+"  # pieces are within it, or one character
PIECES = 1024
EMBEDDING = 160
HIDDEN = 384
LANES = 32  # places of the text that are read side by side
STEPS = 64  # pieces that an error is followed back
EPOCHS = 5
HELD_OUT = 0.02
RATE, LOWEST_RATE = 4e-3, 1e-4
LONGEST_GRADIENT = 1.0

Weights = dict[str, Any]
"""`embedding` [PIECES, EMBEDDING] at both ends, `bias` [PIECES]; `into` [EMBEDDING, 3 * HIDDEN] with `into_bias`,
`over` [HIDDEN, 3 * HIDDEN] with `over_bias`: gates r and z, candidate n; `out` [HIDDEN, EMBEDDING]. All FP32."""


def main() -> None:
    text = read_text()
    pieces = find_pieces(text)
    codes = encode(text, pieces)
    print(f"{len(text)} characters are {len(codes)} of {len(pieces)} pieces")
    kept = int(len(codes) * (1 - HELD_OUT))
    weights = train(codes[:kept])
    rest = codes[kept:]
    bits = loss_of(weights, rest) * len(rest) / sum(len(pieces[code]) for code in rest) / np.log(2)
    print(f"{bits:.3f} bits per character of the held-out text")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    halves = {name: array.astype(np.float16) for name, array in weights.items()}
    np.savez_compressed(OUTPUT, pieces=np.array(pieces), **halves)
    write_tokenizer(pieces)
    for file in (OUTPUT, TOKENIZER):
        print(f"{file}: {file.stat().st_size} bytes")


# ---------------------------------------------------------------------------------------------------------------- text


def read_text() -> str:
    """The whole text, a verse per line, without the numbers of the verses."""
    printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True).stdout  # noqa: S607
    return re.sub(r"^\w+:\d+ ", "", printed.decode("ascii"), flags=re.MULTILINE)


def write_tokenizer(pieces: list[str]) -> None:
    """The same pieces for those who count or cut texts: the longest one that fits comes first, as the writer reads."""
    most = 4096  # characters of a word; what is no word stands alone
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    longest_first = models.WordPiece(
        vocabulary,
        unk_token="\n",  # noqa: S106  a piece, and no password
        continuing_subword_prefix="",
        max_input_chars_per_word=most,
    )
    tokenizer = Tokenizer(longest_first)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(TOKENIZER))


def find_pieces(text: str) -> list[str]:
    """All characters of the text, and then again and again the most frequent pair of neighbours within a word, until
    there are PIECES. Source: byte pair encoding.
    """
    words = {tuple(word): count for word, count in Counter(re.findall(WORD, text)).items()}
    pieces = sorted(set(text))
    while len(pieces) < PIECES:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        pieces.append("".join(best))
        words = {_joined(word, best): count for word, count in words.items()}
    return pieces


def _joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    if pair not in pairwise(word):
        return word
    parts: list[str] = []
    for part in word:
        if parts and (parts[-1], part) == pair:
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)


def encode(text: str, pieces: list[str]) -> Any:
    """Text -> codes of the longest pieces, from the left."""
    code = {piece: number for number, piece in enumerate(pieces)}
    longest_first = re.compile("|".join(map(re.escape, sorted(pieces, key=len, reverse=True))))
    return np.array([code[piece] for piece in longest_first.findall(text)])


# ------------------------------------------------------------------------------------------------------------ training


def train(codes: Any) -> Weights:
    rng = np.random.default_rng(SEED)

    def normal(rows: int, columns: int) -> Any:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    weights: Weights = {
        "embedding": normal(EMBEDDING, PIECES).T.copy(),
        "bias": np.zeros(PIECES, np.float32),
        "into": normal(EMBEDDING, 3 * HIDDEN),
        "into_bias": np.zeros(3 * HIDDEN, np.float32),
        "over": normal(HIDDEN, 3 * HIDDEN),
        "over_bias": np.zeros(3 * HIDDEN, np.float32),
        "out": normal(HIDDEN, EMBEDDING),
    }
    adam = Adam(weights)
    windows = sum(1 for _ in windows_of(codes, LANES))
    begun = time.perf_counter()
    for epoch in range(EPOCHS):
        state = np.zeros((LANES, HIDDEN), np.float32)
        losses = []
        for number, (read, follows) in enumerate(windows_of(codes, LANES)):
            progress = (epoch + number / windows) / EPOCHS
            loss, gradients, state = learn(weights, read, follows, state)
            adam.step(gradients, LOWEST_RATE + (RATE - LOWEST_RATE) * (1 + np.cos(np.pi * progress)) / 2)
            losses.append(loss)
            if number % 100 == 0:
                seconds = time.perf_counter() - begun
                print(f"epoch {epoch + 1} {number}/{windows}: {np.mean(losses[-100:]):.3f}, {seconds:.0f} s")
                sys.stdout.flush()
    return weights


def windows_of(codes: Any, lanes: int) -> Iterator[tuple[Any, Any]]:
    """[STEPS, lanes] of codes and of those that follow them; each lane goes on where it stopped."""
    length = (len(codes) - 1) // lanes
    read = codes[: lanes * length].reshape(lanes, length).T
    follows = codes[1 : lanes * length + 1].reshape(lanes, length).T
    for start in range(0, length - STEPS + 1, STEPS):
        yield read[start : start + STEPS], follows[start : start + STEPS]


class Adam:
    """Source: Kingma and Ba, 2014."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.means = {name: np.zeros_like(array) for name, array in weights.items()}
        self.squares = {name: np.zeros_like(array) for name, array in weights.items()}
        self.steps = 0

    def step(self, gradients: Weights, rate: float) -> None:
        self.steps += 1
        length = np.sqrt(sum(float(np.square(gradient).sum()) for gradient in gradients.values()))
        shrink = np.float32(min(1.0, LONGEST_GRADIENT / length))
        rate *= np.sqrt(1 - 0.99**self.steps) / (1 - 0.9**self.steps)
        for name, gradient in gradients.items():
            mean, square = self.means[name], self.squares[name]
            gradient *= shrink
            mean += np.float32(0.1) * (gradient - mean)
            square += np.float32(0.01) * (gradient * gradient - square)
            self.weights[name] -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(1e-8))


# ------------------------------------------------------------------------------------------------------------- network


def forward(weights: Weights, read: Any, state: Any) -> tuple[Any, Any, Any]:
    """Codes [T, B] and a state [B, HIDDEN] -> the embedded codes [T, B, EMBEDDING], all states [T + 1, B, HIDDEN], and
    what the steps have left for the way back, [T, B, 4 * HIDDEN]: r, z, n, and the part of n that r lets through.
    """
    embedded = weights["embedding"][read]
    given = embedded @ weights["into"] + weights["into_bias"]
    states = np.empty((len(read) + 1, *state.shape), np.float32)
    states[0] = state
    traces = np.empty((len(read), len(state), 4 * HIDDEN), np.float32)
    for t, (inward, trace) in enumerate(zip(given, traces, strict=True)):
        over = states[t] @ weights["over"] + weights["over_bias"]
        gates = 1 / (1 + np.exp(-(inward[:, : 2 * HIDDEN] + over[:, : 2 * HIDDEN])))
        r, z, passed = gates[:, :HIDDEN], gates[:, HIDDEN:], over[:, 2 * HIDDEN :]
        n = np.tanh(inward[:, 2 * HIDDEN :] + r * passed)
        states[t + 1] = n + z * (states[t] - n)
        trace[:, : 2 * HIDDEN], trace[:, 2 * HIDDEN : 3 * HIDDEN], trace[:, 3 * HIDDEN :] = gates, n, passed
    return embedded, states, traces


def judge(weights: Weights, states: Any, follows: Any) -> tuple[float, Any, Any]:
    """-> the mean loss in nats per piece, the guessed embeddings, and the gradient at the scores, [T * B, PIECES]."""
    guessed = states.reshape(-1, HIDDEN) @ weights["out"]
    scores = guessed @ weights["embedding"].T + weights["bias"]
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    rows, right = np.arange(follows.size), follows.ravel()
    loss = -float(np.log(scores[rows, right] + 1e-12).mean())
    scores[rows, right] -= 1
    scores /= np.float32(follows.size)
    return loss, guessed, scores


def loss_of(weights: Weights, codes: Any) -> float:
    read, follows = codes[:-1, None], codes[1:, None]
    _, states, _ = forward(weights, read, np.zeros((1, HIDDEN), np.float32))
    return judge(weights, states[1:], follows)[0]


def learn(weights: Weights, read: Any, follows: Any, state: Any) -> tuple[float, Weights, Any]:
    """One window -> its loss, the gradients, and the state behind it."""
    embedded, states, traces = forward(weights, read, state)
    loss, guessed, at_scores = judge(weights, states[1:], follows)
    at_guessed = at_scores @ weights["embedding"]
    at_states = (at_guessed @ weights["out"].T).reshape(states[1:].shape)
    at_given, at_over = backward(weights, states, traces, at_states)

    at_embedded = at_given @ weights["into"].T
    at_embedding = at_scores.T @ guessed
    np.add.at(at_embedding, read.ravel(), at_embedded)
    before, after = states[:-1].reshape(-1, HIDDEN), states[1:].reshape(-1, HIDDEN)
    gradients = {
        "embedding": at_embedding,
        "bias": at_scores.sum(axis=0),
        "into": embedded.reshape(-1, EMBEDDING).T @ at_given,
        "into_bias": at_given.sum(axis=0),
        "over": before.T @ at_over,
        "over_bias": at_over.sum(axis=0),
        "out": after.T @ at_guessed,
    }
    return loss, gradients, states[-1]


def backward(weights: Weights, states: Any, traces: Any, at_states: Any) -> tuple[Any, Any]:
    """Back through time -> the gradients at what `into` gave and at what `over` gave, each [T * B, 3 * HIDDEN]."""
    at_given = np.empty((*traces.shape[:2], 3 * HIDDEN), np.float32)
    at_over = np.empty_like(at_given)
    back = weights["over"].T.copy()
    at_state = np.zeros_like(states[0])
    for t in reversed(range(len(traces))):
        r, z, n, passed = np.split(traces[t], 4, axis=1)
        at_state = at_state + at_states[t]
        at_n = at_state * (1 - z) * (1 - n * n)
        at_given[t, :, :HIDDEN] = at_n * passed * r * (1 - r)
        at_given[t, :, HIDDEN : 2 * HIDDEN] = at_state * (states[t] - n) * z * (1 - z)
        at_given[t, :, 2 * HIDDEN :] = at_n
        at_over[t, :, : 2 * HIDDEN] = at_given[t, :, : 2 * HIDDEN]
        at_over[t, :, 2 * HIDDEN :] = at_n * r
        at_state = at_state * z + at_over[t] @ back
    return at_given.reshape(-1, 3 * HIDDEN), at_over.reshape(-1, 3 * HIDDEN)


if __name__ == "__main__":
    main()
