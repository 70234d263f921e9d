"""GET /v2/models/{model}/openapi.json: a model's addresses, as OpenAPI writes them down."""

from __future__ import annotations

from tensorgate.adapters.open_inference.errors import JSON_HEADERS
from tensorgate.adapters.open_inference.request import ref_of
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import MustForward
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import ApiDocument


def decode(call: Call, resolve: Resolve) -> ApiDocument:
    """Of this dialect alone, also where another server answers the model's calls. Raises ModelNotFound."""
    ref = ref_of(call)
    try:
        view = resolve(ref)
    except MustForward as forward:
        view = forward.view
    return ApiDocument(call.listener, call.caller, call.raw_target, call.dialect, view, ref.version)


def encode(document: bytes, question: ApiDocument) -> Reply:
    return Reply(document, 200, JSON_HEADERS)
