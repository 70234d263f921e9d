"""Texts <-> tokens, by a tokenizer.json. Source: the library tokenizers, which is Hugging Face's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.openai.fields import BadField
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.errors import Unsupported
from tensorgate.gateway.contract.text import TextOptions
from tensorgate.gateway.contract.tokenizers import open_tokenizer

INLINE_MAX_BYTES: Final = 2 << 10
"""The largest body whose texts become tokens on the event loop: a kilobyte takes half a millisecond."""
_MEMO: Final = "tokenizer"
_opening = threading.Lock()


class Tokenizer:
    """A tokenizer's file, read once. In any thread."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = open_tokenizer(path)
        except (ImportError, ValueError) as error:
            raise Unsupported(f"the model's tokenizer cannot be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def count(self, text: str, *, special: bool = True) -> int:
        """How many tokens a text has."""
        return len(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def counts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[int]:
        """How many tokens each text has, or each pair."""
        given: Any = texts if pairs is None else list(zip(texts, pairs, strict=True))
        return [len(each.ids) for each in self._tokenizer.encode_batch(given)]

    def encode(self, text: str, *, special: bool = True) -> Any:
        """A text's Encoding: ids, tokens, offsets, special_tokens_mask."""
        return self._tokenizer.encode(text, add_special_tokens=special)

    def decode(self, tokens: Sequence[int], param: str) -> str:
        """Raises BadField for a number that is no token's."""
        for token in tokens:
            if not 0 <= token < self.size:
                raise BadField(f"'{param}' has the token {token}, and tokens are 0 to {self.size - 1}.", param)
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def cut(self, text: str, most: int, *, from_end: bool = False) -> str:
        """The beginning of a text, or its end, that has so many tokens, special ones included."""
        encoding = self._tokenizer.encode(text)
        if len(encoding.ids) <= most:
            return text
        told = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        own = [place for place, is_special in told if not is_special]
        room = max(0, most - (len(encoding.ids) - len(own)))
        if not room:
            return ""
        return text[own[-room][0] :] if from_end else text[: own[room - 1][1]]


def tokenizer_of(options: TextOptions, call: Call) -> Tokenizer | None:
    """A model's tokenizer, if it has one. Raises MustOffload on the event loop for a call with much text, and where its
    file must be read first, for a large one takes a second; Unsupported where it cannot be.
    """
    if options.tokenizer is None:
        return None
    if len(call.body) > INLINE_MAX_BYTES and not call.in_thread:
        raise MustOffload
    found: Tokenizer | None = options.memo.get(_MEMO)
    if found is None:
        if not call.in_thread:
            raise MustOffload
        with _opening:
            found = options.memo.get(_MEMO) or Tokenizer(options.tokenizer.path)
            options.memo[_MEMO] = found
    return found
