"""A language model that generates text. It computes in a process of its own: the library keeps Python's interpreter to
itself while it makes a token, and a gateway that shared it would stand still meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tensorgate.backends.execution.device import CudaDevice, open_device
from tensorgate.backends.genai.generation import Generation, TextPiece
from tensorgate.backends.genai.generators import Generators, PagedEngine, TokenGenerator
from tensorgate.backends.genai.library import gpu_problem, import_genai
from tensorgate.backends.genai.options import GenaiOptions
from tensorgate.backends.genai.request import ANSWER, INPUTS, LOGPROBS, OUTPUTS, WITH_LOGPROBS, generation_request
from tensorgate.gateway.contract.backend import BackendKind, Described, ModelSource, RequestBackend
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelFailed, text_of
from tensorgate.gateway.contract.tensor import BYTES, Array, ParameterValue, TensorSpec
from tensorgate.gateway.contract.tokenizers import open_tokenizer

log = logging.getLogger(__name__)

CONFIG: Final = "genai_config.json"
TOKENIZER: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class GenaiConfig:
    """What genai_config.json says that is not the library's business alone."""

    context_length: int
    vocabulary: int
    ends: frozenset[int]
    beginning: int | None
    is_paged: bool

    @classmethod
    def read(cls, folder: Path) -> GenaiConfig:
        """Raises ValueError naming what is wrong."""
        path = folder / CONFIG
        try:
            found = json.loads(path.read_bytes())
            model: Mapping[str, Any] = found["model"]
            ends = model.get("eos_token_id", ())
            beginning = model.get("bos_token_id")
            return cls(
                int(model["context_length"]),
                int(model["vocab_size"]),
                frozenset(ends if isinstance(ends, list) else [int(ends)] if isinstance(ends, int) else []),
                beginning if isinstance(beginning, int) else None,
                bool(found.get("engine", {}).get("dynamic_batching")),
            )
        except FileNotFoundError:
            raise ValueError(f"{folder} has no {CONFIG}: path names a folder made for ONNX Runtime GenAI") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} is no such file as ONNX Runtime GenAI reads: {error!r}") from None


class GenaiBackend(RequestBackend):
    """One instance. Raises ValueError for a folder that is none of the library's, or without the library."""

    max_batch_size = 0
    decoupled = True
    merges = False
    platform = "onnxruntime_genai"

    def __init__(self, source: ModelSource) -> None:
        options: GenaiOptions = source.options
        self.device = open_device(source.device, gpu_problem)
        self.in_flight = options.in_flight
        self._config = GenaiConfig.read(source.path)
        self.inputs, self.outputs = _tensors(self._config, options)
        self._tells_scores = options.logprobs
        self._default_max_tokens = options.default_max_tokens
        self._library = import_genai()
        self._tokenizer = open_tokenizer(source.path / TOKENIZER)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._stream: Any = importlib.import_module("tokenizers.decoders").DecodeStream
        begins = None if self._config.beginning is None else self._tokenizer.id_to_token(self._config.beginning)
        self._begins = begins or None
        try:
            self._model = self._library.Model(self._opened(source, options))
        except RuntimeError as error:
            raise ValueError(f"{source.path}: {text_of(error)}") from None
        self._on_loop = source.on_loop
        self._generator: TokenGenerator
        self._run(self._open())
        self._stepping: asyncio.Task[None] | None = None
        self._growing: set[Generation] = set()

    def _opened(self, source: ModelSource, options: GenaiOptions) -> Any:
        config = self._library.Config(str(source.path))
        threads = options.intra_op_threads or source.threads
        if threads:
            session = {"session_options": {"intra_op_num_threads": threads}}
            config.overlay(json.dumps({"model": {"decoder": session}}))
        config.clear_providers()
        if isinstance(self.device, CudaDevice):
            config.append_provider("cuda")
            config.set_provider_option("cuda", "device_id", self.device.name.partition(":")[2] or "0")
        return config

    def _new_generator(self) -> TokenGenerator:
        if self._config.is_paged:
            return PagedEngine(self._library, self._model)
        return Generators(self._library, self._model, self._config.ends)

    async def infer_each(
        self, requests: Sequence[InferRequest]
    ) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        """A stream gets what has come, again and again; who takes one answer gets it whole."""
        (request,) = requests
        generation = self._begin(request)
        request.cancellation.on_cut = lambda: self._drop(generation)
        whole: list[str] = []
        scores: list[Any] = []
        try:
            while not request.cancellation.cut:
                piece = await generation.piece()
                if request.stream:
                    yield [self._response(piece, generation)]
                else:
                    whole.append(piece.text)
                    scores += piece.scores
                if piece.finish_reason:
                    if not request.stream:
                        piece = TextPiece("".join(whole), piece.finish_reason, scores)
                        yield [self._response(piece, generation)]
                    return
        finally:
            self._drop(generation)

    def _response(self, piece: TextPiece, generation: Generation) -> InferResponse:
        outputs = {ANSWER: _one(piece.text.encode())}
        if self._tells_scores:  # whoever has not asked gets an empty one: some protocols have no answer without it
            told = piece.scores if generation.request.logprobs is not None else None
            outputs[LOGPROBS] = _one(b"" if told is None else json.dumps(told, ensure_ascii=False).encode())
        if not piece.finish_reason:
            return InferResponse(outputs, final=False)
        said: dict[str, ParameterValue] = {
            "finish_reason": piece.finish_reason,
            "prompt_tokens": len(generation.tokens),
            "completion_tokens": generation.count,
        }
        return InferResponse(outputs, said)

    def close(self) -> None:
        """The library frees its memory with its last object."""
        self._run(self._close())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """On the event loop: the library's engine takes calls from the thread alone that has made it."""
        if self._on_loop is not None:
            self._on_loop(work)
        else:
            with contextlib.suppress(StopIteration):
                work.send(None)

    async def _open(self) -> None:
        try:
            self._generator = self._new_generator()
        except RuntimeError as error:
            raise ValueError(text_of(error)) from None

    async def _close(self) -> None:
        del self._generator, self._model

    # ---------------------------------------------------------------------------------------------------------- growing

    def _begin(self, request: InferRequest) -> Generation:
        """Raises InvalidArgument."""
        asked = generation_request(request, self._config.vocabulary)
        if asked.logprobs is not None and not self._tells_scores:
            raise InvalidArgument("this model does not tell log probabilities")
        is_begun = self._begins is not None and asked.prompt.startswith(self._begins)
        tokens: list[int] = self._tokenizer.encode(asked.prompt, add_special_tokens=not is_begun).ids
        if not tokens and self._config.beginning is not None:
            tokens = [self._config.beginning]
        if not tokens:
            raise InvalidArgument("the prompt has no tokens")
        if max(tokens) >= self._config.vocabulary:
            raise ModelFailed(f"the tokenizer has tokens that the model has not: {max(tokens)}")
        room = self._config.context_length - len(tokens)
        wanted = asked.max_tokens or self._default_max_tokens
        if room < (asked.max_tokens or 1):
            raise InvalidArgument(
                f"the prompt has {len(tokens)} tokens and max_tokens is {asked.max_tokens or 1}, and the model's "
                f"context has room for {self._config.context_length}"
            )
        most = room if wanted is None else min(wanted, room)
        stream = self._stream(ids=tokens, skip_special_tokens=True)
        generation = Generation(asked, tokens, most, self._tokenizer, stream)
        try:
            self._generator.start(generation)
        except RuntimeError as error:
            raise ModelFailed(text_of(error)) from error
        self._growing.add(generation)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.get_running_loop().create_task(self._step())
        return generation

    def _drop(self, generation: Generation) -> None:
        self._growing.discard(generation)
        with contextlib.suppress(RuntimeError):
            self._generator.drop(generation)
        generation.end("stop")

    async def _step(self) -> None:
        """Step by step as long as any text grows; callers come and go in between."""
        while self._generator.is_busy:
            try:
                self._generator.step()
            except RuntimeError as error:
                self._fail(error)
            await asyncio.sleep(0)

    def _fail(self, error: RuntimeError) -> None:
        """Whose fault it was, the library does not say: all texts end with it, and the next ones begin anew."""
        log.error("generation has failed: %s", text_of(error))
        growing, self._growing = self._growing, set()
        for generation in growing:
            generation.fail(ModelFailed(text_of(error)))
        self._generator = self._new_generator()


def _one(data: bytes) -> Array:
    array = np.empty(1, BYTES)
    array[0] = data
    return array


def _tensors(config: GenaiConfig, options: GenaiOptions) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Raises ValueError for what the library's engine does not tell."""
    if options.logprobs and config.is_paged:
        raise ValueError("logprobs: the engine of models with PagedAttention does not tell how likely tokens are")
    return WITH_LOGPROBS if options.logprobs else (INPUTS, OUTPUTS)


def _describe(source: ModelSource) -> Described:
    inputs, outputs = _tensors(GenaiConfig.read(source.path), source.options)
    return Described(inputs, outputs, 0, decoupled=True, as_requests=True)


KIND = BackendKind(
    GenaiOptions,
    GenaiBackend,
    versioned=False,
    describe=_describe,
    gpu_problem=gpu_problem,
    own_process=True,
    needs_own_process=True,
)
