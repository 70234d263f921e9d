"""The numbers of tokens as texts: integers [N, L] -> BYTES [N], UTF-8, on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.ops.checks import integral, replaced
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import BYTES, Array, TensorSpec
from tensorgate.gateway.contract.tokenizers import open_tokenizer


class DetokenizeOptions(RenamingOptions):
    """The numbers of tokens as texts, by a tokenizer.json.

    Example: {op: detokenize, input: output_ids, output: text, file: tokenizer.json}
    """

    op: Literal["detokenize"]
    input: str = Field(description="Name of the tokens' numbers, [N, L].")
    file: Annotated[FileRef, Existing("file")] = Field(description="A tokenizer.json, relative to this file.")
    skip_special_tokens: bool = Field(True, description="Whether tokens such as [CLS] and [PAD] are left out.")


class Detokenize(TensorOp):
    """A number that is no token's is refused, as are negative ones."""

    def __init__(self, options: DetokenizeOptions) -> None:
        super().__init__(options)
        self._skip = options.skip_special_tokens
        self._tokenizer = open_tokenizer(options.file.path)
        self._end = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        return replaced(self._op, specs, (self._input,), [self._made(specs)])

    def after(self, spec: TensorSpec) -> TensorSpec:
        integral(self._op, spec)
        if spec.shape is not None and len(spec.shape) != 2:
            raise ValueError(f"detokenize: '{self._input}' has shape {list(spec.shape)}, expected [N, L]")
        rows = spec.shape[0] if spec.shape else -1
        return TensorSpec(spec.name, BYTES, (rows,))

    def compute(self, array: Array, xp: Any) -> Array:
        array = array if isinstance(array, np.ndarray) else array.get()
        if array.ndim != 2:
            raise InvalidArgument(f"detokenize: '{self._input}' has shape {list(array.shape)}, expected [N, L]")
        outside = array[(array < 0) | (array >= self._end)]
        if outside.size:
            raise InvalidArgument(
                f"detokenize: '{self._input}' has the number {outside[0]}, and tokens are 0 to {self._end - 1}"
            )
        texts = np.empty(len(array), np.object_)
        decoded = self._tokenizer.decode_batch(array.tolist(), skip_special_tokens=self._skip)
        texts[:] = [text.encode() for text in decoded]
        return texts


KIND = OpKind(DetokenizeOptions, Detokenize)
