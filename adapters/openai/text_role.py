"""What a model does with text, as its section `text` says: which tensors carry texts and answers, which tokenizer
counts, how long a text may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from tensorgate.adapters.openai.fields import BadField, Fields
from tensorgate.adapters.openai.tokens import Tokenizer, tokenizer_of
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Unsupported
from tensorgate.gateway.contract.tensor import BYTES, Array, TensorSpec
from tensorgate.gateway.contract.text import SECTION, TextOptions

TextKind: TypeAlias = Literal["embedding", "reranker", "classifier", "completion", "chat"]
TOO_LONG: Final = "context_length_exceeded"
WRONG_KIND: Final = "unsupported_model"
_SHORT: Final = {"completion": "completions", "chat": "chats"}
_UNBOUNDED: Final = 1 << 30


class FittedTexts(NamedTuple):
    """Texts that a model can take, and how many tokens each has: None where nobody counts them."""

    texts: list[str]
    counts: list[int] | None

    @property
    def total(self) -> int | None:
        return None if self.counts is None else sum(self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class TextRole:
    """A model that does something with text. `tokenizer` None: its tokens are not known here."""

    view: ModelView
    options: TextOptions
    tokenizer: Tokenizer | None

    def text_input(self, name: str | None, what: str) -> TensorSpec:
        """The BYTES input of that name, or the only one that requests must have. Raises Unsupported."""
        if name is not None:
            spec = self.view.inputs.get(name)
            if spec is None or spec.dtype != BYTES:
                raise Unsupported(f"The model `{self.view.name}` has no BYTES input '{name}' for its {what}.")
            return spec
        taken = {self.options.query, self.options.messages, self.options.sampling, self.options.prompt}
        found = [
            spec
            for spec in self.view.inputs.values()
            if spec.dtype == BYTES and not spec.optional and spec.name not in taken
        ]
        if len(found) != 1:
            raise Unsupported(
                f"The model `{self.view.name}` has {len(found)} inputs that may be its {what}: its section text has to "
                "name one."
            )
        return found[0]

    @property
    def prompt(self) -> TensorSpec:
        """What takes texts. Raises Unsupported."""
        return self.text_input(self.options.prompt, "prompt")

    @property
    def answer(self) -> str:
        """The output that is the answer. Raises Unsupported."""
        name = self.options.answer or next(iter(self.view.outputs), None)
        if name is None or name not in self.view.outputs:
            raise Unsupported(f"The model `{self.view.name}` has no output '{name}'.")
        return name

    def rows(self, spec: TensorSpec) -> int:
        """How many texts one request may have."""
        if self.view.max_batch_size:
            return self.view.max_batch_size
        return _UNBOUNDED if not spec.shape or spec.shape[0] < 0 else spec.shape[0]

    def fitted(self, texts: Sequence[str], param: str, *, truncation: bool | None = None) -> FittedTexts:
        """Texts that the model can take: those that are too long are cut where that is wanted. Raises BadField."""
        most, tokenizer = self.options.max_tokens, self.tokenizer
        if tokenizer is None:
            return FittedTexts(list(texts), None)
        is_cut = self.options.truncation if truncation is None else truncation
        fitted, counts = list(texts), tokenizer.counts(texts)
        for index, count in enumerate(counts):
            if most is None or count <= most:
                continue
            if is_cut:
                fitted[index], counts[index] = tokenizer.cut(texts[index], most), most
            else:
                raise BadField(
                    f"This model's maximum context length is {most} tokens, however you requested {count} tokens"
                    f"{f' in text {index}' if len(texts) > 1 else ''}. Please reduce your text.",
                    param,
                    TOO_LONG,
                )
        return FittedTexts(fitted, counts)


def role_of(view: ModelView, call: Call, *kinds: TextKind) -> TextRole:
    """The role of a model that must have one of these kinds. Raises MustOffload, BadField, Unsupported."""
    options: TextOptions | None = view.mappings.get(SECTION)
    if options is None or options.kind not in kinds:
        is_what = "takes tensors, and no texts" if options is None else f"is for {_plural(options.kind)}"
        raise BadField(
            f"The model `{view.name}` {is_what}; this endpoint is for {' and '.join(map(_plural, kinds))}.",
            "model",
            WRONG_KIND,
        )
    return TextRole(view, options, tokenizer_of(options, call))


def asked_role(fields: Fields, call: Call, resolve: Resolve, *kinds: TextKind, default: str | None = None) -> TextRole:
    """The role of the model that a body names."""
    name = fields.text("model", default) if default is not None else fields.text("model")
    call.notes["model"] = name
    return role_of(resolve(ModelRef(name)), call, *kinds)


def _plural(kind: str) -> str:
    return _SHORT.get(kind, f"{kind}s")


def text_array(spec: TensorSpec, texts: Sequence[str]) -> Array:
    """Texts as an input takes them: [N], [N, 1], or [] for one of no dimensions."""
    flat = np.empty(len(texts), BYTES)
    flat[:] = [text.encode("utf-8", "surrogatepass") for text in texts]
    rank = 1 if spec.shape is None else len(spec.shape)
    return flat.reshape((len(texts), *(1,) * (rank - 1))) if rank else flat.reshape(())
