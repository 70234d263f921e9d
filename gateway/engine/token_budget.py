"""How many tokens the texts of a request have, so that a batch has no more of them than a model is meant to take.

A row costs as many tokens as the longest that runs with it, since the others are padded: 31 short texts beside a long
one cost as much as 32 long ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, TensorSpec
from tensorgate.gateway.contract.text import TextOptions
from tensorgate.gateway.contract.tokenizers import open_tokenizer

_COUNTED_BYTES: Final = 2 << 10
"""Of longer texts the tokens are not counted on the event loop, which takes half a millisecond for this many."""
_BYTES_OF_TOKEN: Final = 3
"""Of texts that are not counted, a guess that is seldom too low."""


class TokenBudget:
    """`most` tokens in a batch, padding included. Raises ImportError, ValueError for a tokenizer that cannot be read.

    Dialects of texts count what they send. Other texts are counted here by the model's tokenizer, or guessed from their
    bytes where they are long, but never above what the model takes. Of a request that brings tokens, the second axis is
    their number.
    """

    def __init__(self, options: TextOptions, most: int, inputs: Mapping[str, TensorSpec]) -> None:
        if options.tokenizer is None:
            raise ValueError("max_batch_tokens counts tokens, which only a tokenizer knows")
        self.most = most
        self._longest = options.max_tokens or most
        self._tokenizer: Any = open_tokenizer(options.tokenizer.path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        others = {options.sampling, options.messages}
        self._texts = [spec.name for spec in inputs.values() if spec.dtype == BYTES and spec.name not in others]

    def tokens_of(self, request: InferRequest, rows: int) -> int:
        """How many tokens the longest text of a request has. Raises InvalidArgument where its texts are known to be too
        many to run together.
        """
        longest, is_known = (request.tokens, True) if request.tokens else self._longest_of(request)
        longest = min(longest, self._longest)
        if is_known and rows * longest > self.most:
            raise InvalidArgument(
                f"{rows} texts of up to {longest} tokens are {rows * longest} with their padding, and model "
                f"'{request.view.name}' takes {self.most} at once: send fewer in a request"
            )
        return longest

    def _longest_of(self, request: InferRequest) -> tuple[int, bool]:
        inputs = request.inputs
        texts = [inputs[name].reshape(-1).tolist() for name in self._texts if name in inputs]
        if not texts:
            return max((array.shape[1] for array in inputs.values() if array.ndim > 1), default=1), True
        if sum(len(text) for column in texts for text in column) > _COUNTED_BYTES:
            return max(sum(map(len, row)) for row in zip(*texts, strict=False)) // _BYTES_OF_TOKEN, False
        rows: Any = [[text.decode("utf-8", "replace") for text in column] for column in texts]
        pairs = rows[0] if len(rows) == 1 else list(zip(*rows[:2], strict=False))
        return max((len(each.ids) for each in self._tokenizer.encode_batch(pairs)), default=1), True
