"""GET /openai/v1/models and /openai/v1/models/{model}: what is served for text and vectors. Source: OpenAI's API
reference, Models.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import orjson

from tensorgate.adapters.openai.errors import JSON
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.questions import ServedModels
from tensorgate.gateway.contract.text import SECTION, TextOptions

_STARTED: Final = int(time.time())
"""`created`: when a model was trained, nobody says; it is the same as long as the process lives."""


def decode_models(call: Call, resolve: Resolve) -> ServedModels:
    return ServedModels()


def decode_model(call: Call, resolve: Resolve) -> ServedModels:
    return ServedModels(call.args["model"])


def encode_models(views: Sequence[ModelView], question: ServedModels, *, owned_by: str) -> Reply:
    """Models that are for texts; all of them can be asked for by name."""
    data = [_model(view, owned_by) for view in views if SECTION in view.mappings or _is_asked_whole(view)]
    return _reply({"object": "list", "data": data})


def encode_model(views: Sequence[ModelView], question: ServedModels, *, owned_by: str) -> Reply:
    """Raises ModelNotFound."""
    for view in views:
        if view.name == question.name:
            return _reply(_model(view, owned_by))
    raise ModelNotFound(question.name)


def _is_asked_whole(view: ModelView) -> bool:
    """Whether another server answers calls of this dialect for it."""
    return view.forwarder is not None and ("openai", "http") in view.forwarder.kinds


def _model(view: ModelView, owned_by: str) -> dict[str, Any]:
    told: dict[str, Any] = {"id": view.name, "object": "model", "created": _STARTED, "owned_by": owned_by}
    options: TextOptions | None = view.mappings.get(SECTION)
    if options is not None:
        told["task"] = options.kind
        if options.max_tokens is not None:
            told["max_model_len"] = options.max_tokens
    return told


def _reply(body: Any) -> Reply:
    return Reply(orjson.dumps(body), headers={"Content-Type": JSON})
