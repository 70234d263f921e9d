"""Texts of ONNX Runtime GenAI's models: exactly the words that their weights tell, whoever else asks meanwhile."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from genai_models import CONTEXT, Kind, likelihoods, words_after, write_model
from tokenizers import Tokenizer

from tensorgate.backends.genai.backend import KIND, GenaiBackend
from tensorgate.backends.genai.options import GenaiOptions
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import InvalidArgument, ModelFailed
from tests.conftest import paper_model

PROMPTS = ["In the", "God said let there be light", "a", "and the waters under the heaven", "light", "b c d"]
BOTH = pytest.mark.parametrize("kind", ["plain", "paged"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    kinds: tuple[Kind, ...] = ("plain", "paged")
    return {kind: write_model(tmp_path_factory.mktemp(kind), kind) for kind in kinds}


@pytest.fixture
async def load(folders: dict[Kind, Path]) -> AsyncIterator[Callable[..., GenaiBackend]]:
    made: list[GenaiBackend] = []

    def run(kind: Kind, **options: Any) -> GenaiBackend:
        made.append(GenaiBackend(source(folders[kind], **options)))
        return made[-1]

    yield run
    for backend in made:
        backend.close()


def source(folder: Path, **options: Any) -> ModelSource:
    return ModelSource("m", 1, folder, "cpu", (), (), 0, GenaiOptions(**options))


def view() -> ModelView:
    return paper_model("m", {"text_input": ("BYTES", (1,))}, {"text_output": ("BYTES", (1,))}, decoupled=True)


def asked(prompt: str | bytes, *, stream: bool = False, **more: Any) -> InferRequest:
    data = prompt.encode() if isinstance(prompt, str) else prompt
    inputs = {"text_input": np.array([data], object)}
    for name, value in list(more.items()):
        if isinstance(value, np.ndarray):
            inputs[name] = more.pop(name)
    return InferRequest(view(), inputs, parameters=more, stream=stream)


async def told(backend: GenaiBackend, request: InferRequest) -> list[InferResponse]:
    answers = []
    async for (answer,) in backend.infer_each([request]):
        assert isinstance(answer, InferResponse)
        answers.append(answer)
    return answers


def text_of(answers: list[InferResponse]) -> str:
    return b"".join(answer.outputs["text_output"].item() for answer in answers).decode()


def expected(folder: Path, prompt: str, count: int) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = tokenizer.encode(prompt).ids
    everything: str = tokenizer.decode([*tokens, *words_after(tokens, count)])
    return everything.removeprefix(prompt)


# ---------------------------------------------------------------------------------------------------------------- words


@BOTH
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_likeliest_words(
    load: Callable[..., GenaiBackend], folders: dict[Kind, Path], kind: Kind, prompt: str, stream: bool
) -> None:
    answers = await told(load(kind), asked(prompt, stream=stream, max_tokens=20, temperature=0.0))
    assert text_of(answers) == expected(folders[kind], prompt, 20)
    assert len(answers) == 1 or stream
    last = answers[-1]
    assert last.final
    words = words_after(Tokenizer.from_file(str(folders[kind] / "tokenizer.json")).encode(prompt).ids, 20)
    assert last.parameters["completion_tokens"] == len(words)
    assert last.parameters["finish_reason"] == ("length" if len(words) == 20 else "stop")


@BOTH
async def test_callers_who_come_at_any_time_get_their_own(
    load: Callable[..., GenaiBackend], folders: dict[Kind, Path], kind: Kind
) -> None:
    """40 of them, more than the engine batches: each begins some steps after the one before."""
    backend = load(kind)

    async def call(number: int) -> tuple[str, int, str]:
        for _ in range(2 * number):
            await asyncio.sleep(0)
        prompt, count = PROMPTS[number % len(PROMPTS)], 3 + number
        return prompt, count, text_of(await told(backend, asked(prompt, max_tokens=count, temperature=0.0)))

    for prompt, count, text in await asyncio.gather(*map(call, range(40))):
        assert text == expected(folders[kind], prompt, count)
    assert not backend._generator.is_busy
    assert not backend._growing


@BOTH
async def test_who_leaves_costs_the_others_nothing(
    load: Callable[..., GenaiBackend], folders: dict[Kind, Path], kind: Kind
) -> None:
    backend = load(kind)
    leaving = asked(PROMPTS[1], stream=True, temperature=0.0)
    staying = asyncio.create_task(told(backend, asked(PROMPTS[0], max_tokens=40, temperature=0.0)))
    answers = backend.infer_each([leaving])
    await anext(answers)
    leaving.cancellation.end()
    assert [answer async for answer in answers] == []
    assert text_of(await staying) == expected(folders[kind], PROMPTS[0], 40)
    again = await told(backend, asked(PROMPTS[1], max_tokens=10, temperature=0.0))
    assert text_of(again) == expected(folders[kind], PROMPTS[1], 10)
    assert not backend._growing


@BOTH
async def test_a_stop_word_ends_the_text_before_it(
    load: Callable[..., GenaiBackend], folders: dict[Kind, Path], kind: Kind
) -> None:
    whole = expected(folders[kind], "In the", 20)
    word = whole[6:9]
    words = np.array([b"not there", word.encode()], object)
    answers = await told(load(kind), asked("In the", stream=True, max_tokens=20, temperature=0.0, stop=words))
    assert text_of(answers) == whole[: whole.index(word)]
    assert answers[-1].parameters["finish_reason"] == "stop"


@BOTH
async def test_a_seed_repeats_what_was_drawn(load: Callable[..., GenaiBackend], kind: Kind) -> None:
    backend = load(kind)

    async def draw(seed: int) -> str:
        return text_of(await told(backend, asked("In the", max_tokens=12, temperature=2.0, top_k=-1, seed=seed)))

    first = [await draw(seed) for seed in (1, 2, -3, 1 << 40)]
    assert len(set(first)) > 1
    assert [await draw(seed) for seed in (1, 2, -3, 1 << 40)] == first


@pytest.mark.parametrize("stream", [False, True])
async def test_how_likely_each_token_was(
    load: Callable[..., GenaiBackend], folders: dict[Kind, Path], stream: bool
) -> None:
    answers = await told(
        load("plain", logprobs=True), asked("In the", stream=stream, max_tokens=9, temperature=0.0, logprobs=3)
    )
    scores = [each for answer in answers for each in json.loads(answer.outputs["logprobs"].item())]
    tokens = Tokenizer.from_file(str(folders["plain"] / "tokenizer.json")).encode("In the").ids
    words = words_after(tokens, 9)
    assert [int(next(iter(each))) for each in scores] == words
    for number, score in enumerate(scores):
        known = likelihoods([*tokens, *words[:number]])
        assert {int(token): told["logprob"] for token, told in score.items()} == pytest.approx(
            {int(token): known[token] for token in np.argsort(-known)[:3]}, abs=1e-4
        )


async def test_an_engine_that_does_not_tell_it_says_so(load: Callable[..., GenaiBackend]) -> None:
    with pytest.raises(InvalidArgument, match="does not tell log probabilities"):
        await told(load("paged"), asked("In the", logprobs=1))
    with pytest.raises(ValueError, match="logprobs: the engine of models with PagedAttention does not tell"):
        load("paged", logprobs=True)


@BOTH
async def test_no_more_than_the_context_has_room_for(load: Callable[..., GenaiBackend], kind: Kind) -> None:
    backend = load(kind)
    (answer,) = await told(backend, asked("a" * (CONTEXT - 5), temperature=2.0, min_tokens=5, seed=1))
    assert answer.parameters["prompt_tokens"] == CONTEXT - 5
    assert answer.parameters["completion_tokens"] == 5
    for prompt, most in (("a" * CONTEXT, None), ("a" * (CONTEXT - 5), 6), ("a " * 50_000, 1)):
        with pytest.raises(InvalidArgument, match="context has room for 256"):
            await told(backend, asked(prompt, **({} if most is None else {"max_tokens": most})))


async def test_a_default_of_max_tokens(load: Callable[..., GenaiBackend]) -> None:
    (answer,) = await told(load("paged", default_max_tokens=7), asked("In the", temperature=0.0))
    assert answer.parameters["completion_tokens"] == 7


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no whole number": ({"max_tokens": 1.5}, "max_tokens is 1.5, expected a whole number of at least 1"),
    "too few": ({"max_tokens": 0}, "max_tokens is 0"),
    "a word": ({"temperature": "hot"}, "temperature is 'hot', expected a number"),
    "too hot": ({"temperature": 101.0}, "temperature is 101, expected 0 to 100"),
    "negative": ({"temperature": -1.0}, "temperature is -1, expected 0 to 100"),
    "no number": ({"top_p": float("nan")}, "top_p is nan"),
    "top_k": ({"top_k": -2}, "top_k is -2, expected a whole number of at least -1"),
    "truth": ({"seed": True}, "seed is True"),
    "two": ({"max_tokens": np.array([1, 2], np.int32)}, "max_tokens has 2 values"),
    "stops": ({"stop": np.array([b"a"] * 17, object)}, "stop has 17 words, and 16 is the most"),
    "a stop": ({"stop": np.array([b"\xff"], object)}, "stop is not UTF-8"),
    "too many": ({"logprobs": 21}, "logprobs is 21, and 20 is the most"),
    "penalty": ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
}


@pytest.mark.parametrize(("more", "words"), REFUSED.values(), ids=REFUSED)
async def test_what_is_refused(load: Callable[..., GenaiBackend], more: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await told(load("plain"), asked("a", **more))


@pytest.mark.parametrize("prompt", ["", b"\xff"])
async def test_prompts_that_are_none(load: Callable[..., GenaiBackend], prompt: str | bytes) -> None:
    with pytest.raises(InvalidArgument):
        await told(load("plain"), asked(prompt))


@BOTH
async def test_after_a_failure_of_the_library_others_go_on(
    load: Callable[..., GenaiBackend], folders: dict[Kind, Path], kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = load(kind)
    step, steps = type(backend._generator).step, itertools.count()

    def fails(generator: Any) -> None:
        if next(steps) == 3:
            raise RuntimeError("out of blocks")
        step(generator)

    monkeypatch.setattr(type(backend._generator), "step", fails)
    with pytest.raises(ModelFailed, match="out of blocks"):
        await told(backend, asked("In the", max_tokens=20))
    answers = await told(backend, asked("In the", max_tokens=20, temperature=0.0))
    assert text_of(answers) == expected(folders[kind], "In the", 20)


# -------------------------------------------------------------------------------------------------------------- loading


def test_it_is_described_without_being_loaded(folders: dict[Kind, Path]) -> None:
    described = KIND.describe(source(folders["paged"]))
    assert described is not None
    assert described.decoupled
    assert [spec.name for spec in described.inputs if not spec.optional] == ["text_input"]
    assert KIND.needs_own_process


def test_what_is_no_such_folder_says_so(tmp_path: Path, folders: dict[Kind, Path]) -> None:
    with pytest.raises(ValueError, match=r"has no genai_config\.json"):
        KIND.describe(source(tmp_path))
    (tmp_path / "genai_config.json").write_text("[1]")
    with pytest.raises(ValueError, match="no such file as ONNX Runtime GenAI reads"):
        KIND.describe(source(tmp_path))
    config = json.loads((folders["plain"] / "genai_config.json").read_text())
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"no tokenizer\.json|tokenizer"):
        GenaiBackend(source(tmp_path))
    (tmp_path / "tokenizer.json").write_text((folders["plain"] / "tokenizer.json").read_text())
    with pytest.raises(ValueError, match=r"model\.onnx"):
        GenaiBackend(source(tmp_path))


def test_without_the_library_it_says_what_to_install(
    folders: dict[Kind, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    with pytest.raises(ValueError, match=r"need onnxruntime-genai: .*genai"):
        GenaiBackend(source(folders["plain"]))
