"""POST /openai/v1/tokenize and /openai/v1/detokenize. Source: vLLM's own addresses of these names, and
text-embeddings-inference's /tokenize, whose body has `inputs`.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from tensorgate.adapters.openai.chat import messages_of, prompt_of
from tensorgate.adapters.openai.errors import JSON
from tensorgate.adapters.openai.fields import BadField, read
from tensorgate.adapters.openai.text_role import WRONG_KIND, TextRole, asked_role
from tensorgate.adapters.openai.tokens import Tokenizer
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import KnownAnswer

ANY_KIND: Final = ("embedding", "reranker", "classifier", "completion", "chat")


def decode_tokenize(call: Call, resolve: Resolve, *, default: str | None = None) -> KnownAnswer:
    """A text, or messages -> its tokens. Raises MustOffload, and what refuses a body."""
    fields = read(call)
    role = asked_role(fields, call, resolve, *ANY_KIND, default=default)
    tokenizer = tokenizer_for(role)
    special = fields.flag("add_special_tokens", default=True)
    if "inputs" in fields.members:
        return KnownAnswer([_listed(tokenizer, text, special=special) for text in fields.texts("inputs")])
    if "messages" in fields.members:
        text = prompt_of(role, messages_of(fields), call)
    else:
        text = fields.text("prompt")
    encoding = tokenizer.encode(text, special=special)
    told: dict[str, Any] = {
        "count": len(encoding.ids),
        "max_model_len": role.options.max_tokens,
        "tokens": encoding.ids,
        "token_strs": encoding.tokens if fields.flag("return_token_strs") else None,
    }
    return KnownAnswer(told)


def _listed(tokenizer: Tokenizer, text: str, *, special: bool) -> list[dict[str, Any]]:
    """Places are counted in characters."""
    encoding = tokenizer.encode(text, special=special)
    rows = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
    return [
        {
            "id": number,
            "text": token,
            "special": bool(is_special),
            "start": None if is_special else start,
            "stop": None if is_special else stop,
        }
        for number, token, is_special, (start, stop) in rows
    ]


def decode_detokenize(call: Call, resolve: Resolve) -> KnownAnswer:
    """Tokens -> their text."""
    fields = read(call)
    role = asked_role(fields, call, resolve, *ANY_KIND)
    tokens = fields.needed("tokens")
    if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
        raise fields.wrong_type("tokens", "an array of integers")
    return KnownAnswer({"prompt": tokenizer_for(role).decode(tokens, "tokens")})


def tokenizer_for(role: TextRole) -> Tokenizer:
    """Raises BadField where the model names none."""
    if role.tokenizer is None:
        raise BadField(f"The model `{role.view.name}` names no tokenizer in its section text.", "model", WRONG_KIND)
    return role.tokenizer


def encode_known(answer: Any, question: KnownAnswer) -> Reply:
    return Reply(orjson.dumps(answer), headers={"Content-Type": JSON})
