"""What a model does with text: said in the YAML, not guessed from the names of its tensors.

Any backend may have such a model. Its tensors stay what they are: callers of other dialects name them as ever, and
share its batches with those who send texts and chats.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options

SECTION = "text"
"""The key of a model's entry, and of ModelView.mappings."""


class TextOptions(Options):
    """What the model does with text, for callers that send texts and chats, and no tensors."""

    kind: Literal["embedding", "reranker", "classifier", "completion", "chat"]
    """embedding: texts become vectors; reranker: how well each text answers a query; classifier: scores of classes;
    completion: what comes after a prompt; chat: what comes after messages."""
    tokenizer: Annotated[FileRef, Existing("file")] | None = None
    """The model's tokenizer.json: with it tokens are counted, texts may come as tokens, and be cut."""
    chat_template: Annotated[FileRef, Existing("file")] | None = None
    """What makes a prompt of messages: a file of Jinja, or a tokenizer_config.json that has one."""
    prompt: str | None = Field(default=None, min_length=1)
    """The BYTES input that takes a text, or a prompt; null: the only BYTES input that requests must have."""
    query: str | None = Field(default=None, min_length=1)
    """Of a reranker: the BYTES input that takes the query of each text; null: the other of two."""
    messages: str | None = Field(default=None, min_length=1)
    """The BYTES input that takes all messages of a chat as JSON, of a model that makes its prompts itself."""
    answer: str | None = Field(default=None, min_length=1)
    """The output that is the answer: vectors, scores, or text; null: the only one, or of several the first."""
    logprobs: str | None = Field(default=None, min_length=1)
    """The BYTES output that tells how likely each token was, as JSON; null: log probabilities are refused. The model
    gets `logprobs`, how many of the likeliest tokens are wanted, as it gets other parameters."""
    max_tokens: int | None = Field(default=None, ge=1, le=1 << 24)
    """The most tokens of a text, special ones included; of a prompt and its answer together."""
    max_batch_tokens: int | None = Field(default=None, ge=1, le=1 << 30)
    """The most tokens that run together, padding included: the longest text's, for each text. null: only rows count."""
    truncation: bool = False
    """Whether longer texts are cut; false: they are refused. A caller's own word comes first."""
    pooling: Literal["mean", "cls", "last", "max", "none"] | None = None
    """Of a model that takes tokens: texts become tokens before it, by its tokenizer, and behind it the vectors of a
    text's tokens become one, by this; none: it gives one answer for each text by itself. null: the model takes texts,
    or steps of preprocess make tokens of them."""
    normalize: bool = True
    """With pooling, of embeddings: whether vectors get length 1."""
    parameters: dict[str, str] = Field(default_factory=dict)
    """What callers call a parameter -> the model's input that takes it, or what the model calls it; those that are not
    named keep their name: {max_tokens: max_new_tokens}."""
    sampling: str | None = Field(default=None, min_length=1)
    """The BYTES input that takes all parameters as one JSON object, such as Triton's vLLM models have."""
    fixed: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr] = Field(default_factory=dict)
    """Inputs, or parameters, that are the same for every such request: {exclude_input_in_output: true}."""

    @cached_property
    def memo(self) -> dict[str, Any]:
        """What a dialect has read from these files, kept as long as the model."""
        return {}

    @model_validator(mode="after")
    def _fit_the_kind(self) -> Any:
        if self.query is not None and self.kind != "reranker":
            raise ValueError("only a reranker has a query")
        if self.truncation and self.tokenizer is None:
            raise ValueError("texts are cut by their tokens, which only a tokenizer knows")
        for name in ("max_tokens", "max_batch_tokens"):
            if getattr(self, name) is not None and self.tokenizer is None:
                raise ValueError(f"{name} counts tokens, which only a tokenizer knows")
        if self.max_batch_tokens is not None and (self.max_tokens or 1) > self.max_batch_tokens:
            raise ValueError(
                f"max_batch_tokens, {self.max_batch_tokens}, has no room for a text of max_tokens, {self.max_tokens}"
            )
        if self.pooling is not None and self.kind in ("completion", "chat"):
            raise ValueError("pooling makes vectors and scores, and no text")
        if self.pooling is not None and self.tokenizer is None:
            raise ValueError("with pooling, a tokenizer makes the tokens that the model takes")
        if self.kind == "chat" and self.chat_template is None and self.messages is None:
            raise ValueError("a chat needs a chat_template that makes prompts of messages, or an input for messages")
        return self
