"""Trains the model that the demo serves as `embedder`, from the King James Bible of 1611, in NumPy.

    apt-get install bible-kjv          # Debian: the text, and the program that prints it
    python config/demo/make_embedder.py

Texts become vectors, and what belongs together lies close together: the halves of a verse, a verse and the next one. A
text's vector is the mean of those of its pieces, which are learned, each times a weight of its own: "the" says little.
The gradients are worked out by hand below; it takes two minutes on one core, and says at its end how often it finds
what belongs together in chapters that it was not trained on, beside TF-IDF. Seeded.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUTPUT = Path(__file__).parent / "models/embedder"
VERSES = Path(__file__).parent / "verses.txt"
SEED = 1611
PIECES = 8000
DIMENSIONS = 256
BATCH = 512
EPOCHS = 12
RATE, LOWEST_RATE = 3e-2, 1e-3
TEMPERATURE = 0.06
HELD_OUT_EACH = 20  # of so many chapters, one is kept for the test
AMONG = 10
DROPPED = 0.35  # of the pieces of a text, in training
SHOWN = (  # chapters of verses.txt
    "Ge1", "Psa23", "Psa121", "Prv6", "Eccl3", "Isa40", "Mat5", "Mat6", "Luke2", "Luke15", "John1", "1Cor13", "Rev21",
)  # fmt: skip

Pairs = list[tuple[str, str]]
Weights = dict[str, Any]
"""`vectors` [PIECES, DIMENSIONS] and `weights` [PIECES], whose exponents count."""


def main() -> None:
    chapters = read_chapters()
    held_out = {name for number, name in enumerate(chapters) if number % HELD_OUT_EACH == HELD_OUT_EACH - 1}
    kept = [verses for name, verses in chapters.items() if name not in held_out]
    tested = [verses for name, verses in chapters.items() if name in held_out]
    tokenizer = train_tokenizer([verse for verses in kept for verse in verses])
    weights = train(tokenizer, pairs_of(kept))
    idf = inverse_frequencies([verse for verses in kept for verse in verses])
    for name, pairs in (("second half of a verse", halves(tested)), ("next verse", neighbours(tested))):
        asked, wanted = [left for left, _ in pairs], [right for _, right in pairs]
        print(f"the {name}, of {len(pairs)}, in chapters that it was not trained on:")
        itself = np.array(asked)[:, None] == np.array(wanted)[None]
        scores = embed(tokenizer, weights, asked) @ embed(tokenizer, weights, wanted).T
        print("  embedder ", judged(np.where(itself, -1, scores)))
        print("  TF-IDF   ", judged(np.where(itself, -1, tf_idf(asked, wanted, idf))))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(OUTPUT / "tokenizer.json"))
    write_graph(weights, OUTPUT / "1/model.onnx")
    check_graph(tokenizer, weights, OUTPUT / "1/model.onnx")
    shown = [verse for name in SHOWN for verse in chapters[name]]
    VERSES.write_text("\n".join(shown) + "\n")
    for file in (OUTPUT / "tokenizer.json", OUTPUT / "1/model.onnx", VERSES):
        print(f"{file}: {file.stat().st_size} bytes")


# ---------------------------------------------------------------------------------------------------------------- text


def read_chapters() -> dict[str, list[str]]:
    """The verses of each chapter: {"Ge1": ["In the beginning God created ...", ...], ...}"""
    printed = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True).stdout  # noqa: S607
    chapters: dict[str, list[str]] = {}
    for line in printed.decode("ascii").splitlines():
        place, _, verse = line.partition(" ")
        chapters.setdefault(place.partition(":")[0], []).append(verse.strip())
    return chapters


def halves(chapters: Sequence[Sequence[str]]) -> Pairs:
    """The two halves of each verse that has a stop somewhere in its middle."""
    found = []
    for verse in (verse for verses in chapters for verse in verses):
        stops = [stop.end() for stop in re.finditer(r"[,:;.?!]", verse[:-1])]
        middle = min(stops, key=lambda stop: abs(stop - len(verse) / 2), default=0)
        left, right = verse[:middle], verse[middle:].strip()
        if len(left.split()) > 3 and len(right.split()) > 3:
            found.append((left, right))
    return found


def neighbours(chapters: Sequence[Sequence[str]]) -> Pairs:
    """Each verse and the next one."""
    return [pair for verses in chapters for pair in pairwise(verses)]


def pairs_of(chapters: Sequence[Sequence[str]]) -> Pairs:
    """All that belongs together."""
    return halves(chapters) + neighbours(chapters)


def train_tokenizer(verses: Sequence[str]) -> Tokenizer:
    """Pieces of words, in lower case."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106  a piece, and no password
    plain = [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    tokenizer.normalizer = normalizers.Sequence(plain)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=PIECES, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(verses, trainer)
    return tokenizer


# ------------------------------------------------------------------------------------------------------------ training


def train(tokenizer: Tokenizer, pairs: Pairs) -> Weights:
    """Of the other texts of a batch, none is as close to a text as the one that belongs to it. Source: InfoNCE (van den
    Oord et al., 2018), Adam.
    """
    rng = np.random.default_rng(SEED)
    size = tokenizer.get_vocab_size()
    left = [each.ids for each in tokenizer.encode_batch([left for left, _ in pairs])]
    right = [each.ids for each in tokenizer.encode_batch([right for _, right in pairs])]
    often = np.bincount(np.concatenate([*map(np.array, left + right)]), minlength=size)
    weights: Weights = {
        "vectors": rng.standard_normal((size, DIMENSIONS), np.float32) / np.sqrt(DIMENSIONS, dtype=np.float32),
        "weights": -0.5 * np.log(often + 1.0).astype(np.float32),
    }
    weights["weights"] -= weights["weights"].mean()
    moments = {name: (np.zeros_like(array), np.zeros_like(array)) for name, array in weights.items()}
    steps, step, began, told = EPOCHS * (len(pairs) // BATCH), 0, time.perf_counter(), 0.0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(pairs))
        for at in range(0, len(pairs) - BATCH + 1, BATCH):
            chosen = order[at : at + BATCH]
            sides = [dropped([some[number] for number in chosen], rng) for some in (left, right)]
            loss, gradients = loss_and_gradients(weights, sides[0], sides[1])
            step += 1
            rate = LOWEST_RATE + (RATE - LOWEST_RATE) * 0.5 * (1 + np.cos(np.pi * step / steps))
            adam(weights, gradients, moments, rate, step)
            if time.perf_counter() - told > 5:
                told = time.perf_counter()
                print(f"epoch {epoch + 1} of {EPOCHS}, loss {loss:.3f}, {told - began:.0f} s", flush=True)
    return weights


def dropped(texts: Sequence[Sequence[int]], rng: np.random.Generator) -> tuple[Any, Any]:
    """The pieces of all texts one after the other, without some, and where each text begins."""
    flat, begins = [], []
    for text in texts:
        ids = np.array(text)
        kept = ids[rng.random(len(ids)) >= DROPPED]
        begins.append(sum(map(len, flat[-1:])) + (begins[-1] if begins else 0))
        flat.append(kept if len(kept) else ids)
    return np.concatenate(flat), np.array(begins)


def loss_and_gradients(weights: Weights, left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[float, Weights]:
    (x, back_x), (y, back_y) = forward(weights, *left), forward(weights, *right)
    scores = x @ y.T / TEMPERATURE
    rows, columns = softmax(scores, 1), softmax(scores, 0)
    size = len(scores)
    loss = -0.5 * float(np.log(np.diag(rows) + 1e-12).mean() + np.log(np.diag(columns) + 1e-12).mean())
    over_scores = (rows + columns - 2 * np.eye(size, dtype=np.float32)) / (2 * size * TEMPERATURE)
    gradients = {name: np.zeros_like(array) for name, array in weights.items()}
    back_x(over_scores @ y, gradients)
    back_y(over_scores.T @ x, gradients)
    return loss, gradients


def forward(weights: Weights, pieces: Any, begins: Any) -> tuple[Any, Any]:
    """Pieces of texts -> unit vectors [texts, DIMENSIONS], and what adds the gradients of these to all gradients."""
    factors = np.exp(weights["weights"][pieces])[:, None]
    own = weights["vectors"][pieces]
    sums = np.add.reduceat(own * factors, begins)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True) + 1e-9
    units = sums / lengths
    text_of = np.repeat(np.arange(len(begins)), np.diff([*begins, len(pieces)]))

    def back(over_units: Any, gradients: Weights) -> None:
        over_sums = (over_units - units * (over_units * units).sum(1, keepdims=True)) / lengths
        over_products = over_sums[text_of]
        np.add.at(gradients["vectors"], pieces, over_products * factors)
        np.add.at(gradients["weights"], pieces, (over_products * own).sum(1) * factors[:, 0])

    return units, back


def softmax(scores: Any, axis: int) -> Any:
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def adam(weights: Weights, gradients: Weights, moments: dict[str, tuple[Any, Any]], rate: float, step: int) -> None:
    for name, gradient in gradients.items():
        mean, square = moments[name]
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient * gradient - square)
        weights[name] -= rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)


# ------------------------------------------------------------------------------------------------------------- judging


def embed(tokenizer: Tokenizer, weights: Weights, texts: Sequence[str]) -> Any:
    """Unit vectors."""
    ids = [np.array(each.ids) for each in tokenizer.encode_batch(list(texts))]
    begins = np.cumsum([0, *map(len, ids[:-1])])
    return forward(weights, np.concatenate(ids), begins)[0]


def judged(scores: Any) -> str:
    """How high the right answer, the one of the same number, stands among all."""
    right = np.diag(scores)[:, None]
    rank = (scores > right).sum(1) + 1
    among = (rank <= AMONG).mean()
    return f"first {(rank == 1).mean():.1%}, among ten {among:.1%}, mean reciprocal rank {(1 / rank).mean():.3f}"


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def inverse_frequencies(verses: Sequence[str]) -> dict[str, float]:
    counts = Counter(word for verse in verses for word in {*words_of(verse)})
    return {word: float(np.log((1 + len(verses)) / (1 + count)) + 1) for word, count in counts.items()}


def tf_idf(asked: Sequence[str], wanted: Sequence[str], idf: dict[str, float]) -> Any:
    """Cosines of bags of words, sublinear in how often each stands there; words that training never saw count most."""
    most = max(idf.values())
    words = dict.fromkeys(word for text in [*asked, *wanted] for word in words_of(text))
    place = {word: number for number, word in enumerate(words)}

    def vectors(texts: Sequence[str]) -> Iterator[Any]:
        for text in texts:
            vector = np.zeros(len(place), np.float32)
            for word, count in Counter(words_of(text)).items():
                vector[place[word]] = (1 + np.log(count)) * idf.get(word, most)
            yield vector / (np.linalg.norm(vector) + 1e-9)

    return np.stack([*vectors(asked)]) @ np.stack([*vectors(wanted)]).T


# --------------------------------------------------------------------------------------------------------------- graph


def write_graph(weights: Weights, file: Path) -> None:
    """`input_ids` and `attention_mask` INT64 [N, L] -> `last_hidden_state` FP32 [N, L, DIMENSIONS]: a vector for each
    piece, of which the mean is taken behind it.
    """
    weighted = weights["vectors"] * np.exp(weights["weights"])[:, None]
    table = numpy_helper.from_array(weighted.astype(np.float16), "table")
    shape = ["N", "L"]
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["halves"]),
            helper.make_node("Cast", ["halves"], ["vectors"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
            helper.make_node("Mul", ["vectors", "column"], ["last_hidden_state"]),
        ],
        "embedder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, DIMENSIONS])],
        [table, numpy_helper.from_array(np.array([2], np.int64), "last")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, file)


def check_graph(tokenizer: Tokenizer, weights: Weights, file: Path) -> None:
    """What the file gives is what was trained, but for half precision."""
    texts = ["In the beginning", "the shepherd and his sheep"]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for text, wanted in zip(texts, embed(tokenizer, weights, texts), strict=True):
        ids = np.array([tokenizer.encode(text).ids])
        (vectors,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        mean = vectors[0].mean(0)
        np.testing.assert_allclose(mean / np.linalg.norm(mean), wanted, atol=1e-3)


if __name__ == "__main__":
    main()
