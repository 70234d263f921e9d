"""The steps around a model of tokens that its section `text` stands for: tokenize, pool, l2_normalize."""

from __future__ import annotations

from typing import Any, Final

from tensorgate.gateway.contract.backend import Described
from tensorgate.gateway.contract.tensor import TensorSpec
from tensorgate.gateway.contract.text import TextOptions

TEXT: Final = "text"
QUERY: Final = "query"
EMBEDDING: Final = "embedding"
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
_MOST: Final = 512
_TOKENS_RANK: Final = 3
Steps = list[dict[str, Any]]


def text_inputs(text: TextOptions) -> tuple[str, ...]:
    """What callers send, in order."""
    own = text.prompt or TEXT
    return (text.query or QUERY, own) if text.kind == "reranker" else (own,)


def text_steps(text: TextOptions, model: Described) -> tuple[Steps, Steps]:
    """What goes before the model, and behind it. Raises ValueError where the model takes no tokens."""
    inputs = {spec.name: spec for spec in model.inputs}
    ids = inputs.get(_IDS)
    if ids is None or text.tokenizer is None:
        raise ValueError(f"the model has no input '{_IDS}', but {', '.join(inputs)}: write preprocess and postprocess")
    tokenize: dict[str, Any] = {
        "op": "tokenize",
        **dict(zip(("input", "pair"), text_inputs(text), strict=False)),
        "file": str(text.tokenizer.path),
        "max_length": text.max_tokens or _MOST,
        "truncation": text.truncation,
        "datatype": ids.datatype,
        "attention_mask": _MASK if _MASK in inputs else None,
        "token_type_ids": _TYPES if _TYPES in inputs else None,
    }
    if text.pooling == "none":
        return [tokenize], []
    name = text.answer or EMBEDDING
    pool = {
        "op": "pool",
        "mode": text.pooling,
        "input": _tokens_output(model.outputs).name,
        "mask": _MASK if _MASK in inputs else None,
        "output": name,
    }
    unit: Steps = [{"op": "l2_normalize", "input": name}] if text.normalize and text.kind == "embedding" else []
    return [tokenize], [pool, *unit]


def _tokens_output(outputs: tuple[TensorSpec, ...]) -> TensorSpec:
    """The first output with a vector for each token."""
    for spec in outputs:
        if spec.dtype.kind == "f" and (spec.shape is None or len(spec.shape) == _TOKENS_RANK):
            return spec
    raise ValueError("the model has no output [N, L, D] with a vector for each token")
