"""Texts as the numbers of their tokens, with a mask that tells these from padding.

    BYTES [N] or [N, 1], UTF-8 -> input_ids, attention_mask and token_type_ids, each [N, L]

What becomes of a text (lower case, pieces, special tokens) is the tokenizer's own file to say. Texts are cut at
`max_length` tokens and padded to the longest of those that run together, or to `max_length`. It runs on the host, and
only its results go to the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import given, one, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Array, Tensors, TensorSpec
from tensorgate.gateway.contract.tokenizers import open_tokenizer

_PADDING_TOKENS: Final = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>")
"""What padding is called, where neither the file nor the YAML says it."""


class TokenizeOptions(Options):
    """Texts as the numbers of their tokens, by a tokenizer.json.

    Example: {op: tokenize, input: text, file: tokenizer.json, max_length: 512}
    """

    op: Literal["tokenize"]
    input: str = Field(description="Name of the texts, BYTES [N] or [N, 1].")
    pair: str | None = Field(None, description="Name of the second text of each pair, where texts come in pairs.")
    file: Annotated[FileRef, Existing("file")] = Field(description="A tokenizer.json, relative to this file.")
    max_length: int = Field(512, ge=1, le=1 << 20, description="The most tokens of a text, special ones included.")
    truncation: bool = Field(True, description="Whether longer texts are cut; false: they are refused.")
    padding: Literal["longest", "max_length"] = Field(
        "longest",
        description="How far texts are padded: to the longest of those that run together, callers' rows that share a "
        "batch included, or always to max_length.",
    )
    multiple_of: int = Field(1, ge=1, le=4096, description="The padded length is a multiple of it.")
    pad_token: str | None = Field(None, description="The token that pads; null: the file's, [PAD] or <pad>.")
    special_tokens: bool = Field(True, description="Whether tokens such as [CLS] and [SEP] are added.")
    datatype: Literal["INT64", "INT32"] = Field("INT64", description="Datatype of the results.")
    input_ids: str = Field("input_ids", min_length=1, description="Name of the tokens' numbers.")
    attention_mask: str | None = Field("attention_mask", description="Name of the mask, 1 for tokens; null: none.")
    token_type_ids: str | None = Field(
        None, description="Name of what tells the first text (0) from the second (1); null: none."
    )
    max_text_bytes: int = Field(1 << 20, ge=1, description="Longer texts are refused.")

    @model_validator(mode="after")
    def _length_fits(self) -> TokenizeOptions:
        if self.max_length % self.multiple_of:
            raise ValueError(f"max_length, {self.max_length}, is no multiple of multiple_of, {self.multiple_of}")
        return self


class Tokenize(Op):
    """Raises ValueError for a file that is no tokenizer, or a length without room for the special tokens."""

    def __init__(self, options: TokenizeOptions) -> None:
        self._options = options
        self._inputs = (options.input,) if options.pair is None else (options.input, options.pair)
        self._dtype = DTYPES[options.datatype]
        self._tokenizer = open_tokenizer(options.file.path)
        self._cut(options)
        self._pad(options)

    def _cut(self, options: TokenizeOptions) -> None:
        own = self._tokenizer.truncation or {}
        special = self._tokenizer.num_special_tokens_to_add(options.pair is not None) if options.special_tokens else 0
        if options.max_length <= special:
            raise ValueError(f"tokenize: max_length {options.max_length} has no room beside {special} special tokens")
        if options.truncation:
            self._tokenizer.enable_truncation(
                options.max_length, strategy="longest_first", direction=own.get("direction", "right")
            )
        else:
            self._tokenizer.no_truncation()

    def _pad(self, options: TokenizeOptions) -> None:
        own = self._tokenizer.padding or {}
        wanted = [options.pad_token] if options.pad_token is not None else [own.get("pad_token"), *_PADDING_TOKENS]
        found = [name for name in wanted if name is not None and self._tokenizer.token_to_id(name) is not None]
        if not found:
            what = "no token for padding, say which with pad_token" if options.pad_token is None else "no such token"
            raise ValueError(f"tokenize: pad_token: {options.file.written} has {what}")
        self._tokenizer.enable_padding(
            direction=own.get("direction", "right"),
            pad_id=self._tokenizer.token_to_id(found[0]),
            pad_type_id=own.get("pad_type_id", 0),
            pad_token=found[0],
            length=options.max_length if options.padding == "max_length" else None,
            pad_to_multiple_of=options.multiple_of if options.multiple_of > 1 else None,
        )

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        found = [one("tokenize", name, specs) for name in self._inputs]
        for spec in found:
            if spec.dtype != BYTES:
                raise ValueError(f"tokenize: '{spec.name}' is {spec.datatype}, expected BYTES")
            if spec.shape is not None and not (len(spec.shape) == 1 or (len(spec.shape) == 2 and spec.shape[1] == 1)):
                raise ValueError(f"tokenize: '{spec.name}' has shape {list(spec.shape)}, expected [N] or [N, 1]")
        rows = found[0].shape[0] if found[0].shape else -1
        length = self._options.max_length if self._options.padding == "max_length" else -1
        new = [TensorSpec(name, self._dtype, (rows, length)) for name in self._names().values()]
        return replaced("tokenize", specs, self._inputs, new)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        texts = [self._texts(name, given("tokenize", name, tensors)) for name in self._inputs]
        if len({len(each) for each in texts}) > 1:
            raise InvalidArgument(f"tokenize: {' and '.join(self._inputs)} have different numbers of texts")
        pairs: Sequence[Any] = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
        encodings = self._tokenizer.encode_batch(pairs, add_special_tokens=self._options.special_tokens)
        length = max((len(each.ids) for each in encodings), default=0)
        if length > self._options.max_length:
            raise InvalidArgument(f"tokenize: a text has {length} tokens, and {self._options.max_length} is the most")
        new = {}
        for attribute, name in self._names().items():
            numbers = np.array([getattr(each, attribute) for each in encodings], self._dtype)
            new[name] = xp.asarray(numbers.reshape(len(encodings), length))
        return put(tensors, self._inputs, new)

    def _names(self) -> dict[str, str]:
        """Attribute of an encoding -> the tensor that it becomes."""
        options = self._options
        named = (
            ("ids", options.input_ids),
            ("attention_mask", options.attention_mask),
            ("type_ids", options.token_type_ids),
        )
        return {attribute: name for attribute, name in named if name is not None}

    def _texts(self, name: str, array: Array) -> list[str]:
        if array.ndim == 0 or array.size != len(array):
            raise InvalidArgument(f"tokenize: '{name}' has shape {list(array.shape)}, expected [N] or [N, 1]")
        texts, max_bytes = [], self._options.max_text_bytes
        for row, text in enumerate(array.reshape(-1).tolist()):
            if len(text) > max_bytes:
                raise InvalidArgument(
                    f"tokenize: text {row} of '{name}' has {len(text)} bytes, and {max_bytes} is the most"
                )
            try:
                texts.append(text.decode())
            except UnicodeDecodeError:
                raise InvalidArgument(f"tokenize: text {row} of '{name}' is not UTF-8") from None
        return texts


KIND = OpKind(TokenizeOptions, Tokenize)
