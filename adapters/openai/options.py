"""The YAML options of the openai dialect."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tensorgate.gateway.contract.options import Options


class DefaultModels(Options):
    """Models for callers who name none, as those of text-embeddings-inference, which has one model alone."""

    embedding: str | None = Field(default=None, min_length=1)
    """What answers /embed."""
    reranker: str | None = Field(default=None, min_length=1)
    """What answers /rerank."""
    classifier: str | None = Field(default=None, min_length=1)
    """What answers /predict."""


class OpenAiOptions(Options):
    """OpenAI's requests for text and vectors, and Anthropic's, Cohere's, Jina's and text-embeddings-inference's."""

    owned_by: str = "tensorgate"
    """Whose models they are, in lists of models."""
    short_paths: bool = True
    """Whether the paths that those servers have are there beside those below /openai/v1 and /anthropic/v1:
    /v1/chat/completions, /v1/messages, /embed and so on."""
    error_form: Literal["openai", "fastapi"] = "openai"
    """What errors look like: OpenAI's objects and statuses; or `detail`, and 422 for a body whose members are missing
    or wrong, as of servers that are made with FastAPI, Triton's frontend among them."""
    default_models: DefaultModels = DefaultModels()
    """Which models answer those who name none."""
