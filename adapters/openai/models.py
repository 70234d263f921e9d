"""GET /openai/v1/models and /openai/v1/models/{model}: what is served for text and vectors. Source: OpenAI's API
reference, Models. To Anthropic's clients, who send `anthropic-version`, they are told in the form of its API reference,
Models.
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

_ANTHROPIC: Final = "anthropic"
_VERSION: Final = "anthropic-version"
_STARTED: Final = int(time.time())
"""`created`: when a model was trained, nobody says; it is the same as long as the process lives."""
_STARTED_TEXT: Final = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_STARTED))


def decode_models(call: Call, resolve: Resolve) -> ServedModels:
    return ServedModels(form=_form(call), absent=True)


def decode_model(call: Call, resolve: Resolve) -> ServedModels:
    return ServedModels(call.args["model"], _form(call), absent=True)


def _form(call: Call) -> str:
    is_anthropic = _VERSION in call.headers or call.raw_target.startswith("/anthropic/")
    return _ANTHROPIC if is_anthropic else ""


def encode_models(views: Sequence[ModelView], question: ServedModels, *, owned_by: str) -> Reply:
    """Models that are for texts; all of them can be asked for by name."""
    told = [view for view in views if SECTION in view.mappings or _is_asked_whole(view)]
    if question.form == _ANTHROPIC:
        ends = {"first_id": told[0].name, "last_id": told[-1].name} if told else {"first_id": None, "last_id": None}
        return _reply({"data": [_anthropic(view) for view in told], "has_more": False, **ends})
    return _reply({"object": "list", "data": [_model(view, owned_by) for view in told]})


def encode_model(views: Sequence[ModelView], question: ServedModels, *, owned_by: str) -> Reply:
    """Raises ModelNotFound."""
    for view in views:
        if view.name == question.name:
            return _reply(_anthropic(view) if question.form == _ANTHROPIC else _model(view, owned_by))
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


def _anthropic(view: ModelView) -> dict[str, Any]:
    return {"type": "model", "id": view.name, "display_name": view.name, "created_at": _STARTED_TEXT}


def _reply(body: Any) -> Reply:
    return Reply(orjson.dumps(body), headers={"Content-Type": JSON})
