"""Replies of other servers, HTTP or gRPC -> kinds of failure and parsed messages, as all clients read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from google.protobuf.message import DecodeError

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.errors import Code, ErrorReason, GatewayError, ModelFailed

_KINDS: Final[Mapping[Code, Callable[[str, ErrorReason | None], GatewayError]]] = {
    Code.CANCELLED: errors.Cancelled,
    Code.UNKNOWN: errors.Unknown,
    Code.INVALID_ARGUMENT: errors.InvalidArgument,
    Code.DEADLINE_EXCEEDED: errors.TimedOut,
    Code.NOT_FOUND: errors.NotFound,
    Code.ALREADY_EXISTS: errors.AlreadyExists,
    Code.RESOURCE_EXHAUSTED: errors.Exhausted,
    Code.FAILED_PRECONDITION: errors.PreconditionFailed,
    Code.OUT_OF_RANGE: errors.InvalidArgument,
    Code.UNIMPLEMENTED: errors.Unsupported,
    Code.UNAVAILABLE: errors.Unavailable,
}
"""A code -> its kind. What is left is between the gateway and that server, and no fault of the caller's."""
_OWN_FAULTS: Final = (Code.UNKNOWN, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE)
"""With these and all without a kind, a server says that it is at fault itself."""

_MAX_TEXT: Final = 4096


def failure(code: Code, text: str) -> GatewayError:
    """What another server said -> the kind that every dialect can word, with its text."""
    reason = ErrorReason.UPSTREAM if code in _OWN_FAULTS or code not in _KINDS else None
    return _KINDS.get(code, ModelFailed)(text or code.name, reason)


def http_failure(reply: Reply, text: str = "") -> GatewayError:
    """An HTTP answer that is no success: its status tells the kind, `error` in its JSON the text if none is given."""
    return failure(errors.code_of(reply.http_status) or Code.INTERNAL, text or http_text(reply))


def http_text(reply: Reply) -> str:
    """What an error's body says: the member `error` of its JSON, else its beginning."""
    body = whole(reply)
    try:
        said = orjson.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        said = None
    if isinstance(said, str) and said:
        return said[:_MAX_TEXT]
    return bytes(body[:_MAX_TEXT]).decode("utf-8", "replace").strip() or f"HTTP status {reply.http_status}"


def json_object(body: Buffer, what: str, *, not_json: str = "JSON", is_text: bool = True) -> dict[str, Any]:
    """An answer in JSON, with NaN and Infinity, as other servers write them; its strings are UTF-8 if `is_text`, else
    whatever they are, in surrogates. Raises ModelFailed for what is no JSON, or no object.
    """
    try:
        answer = orjson.loads(body)
    except ValueError:
        try:
            answer = json.loads(bytes(body) if is_text else bytes(body).decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            raise broken(not_json) from None
    if not isinstance(answer, dict):
        raise broken(what)
    return answer


def parsed(kind: str, reply: Reply) -> Any:
    """A gRPC answer -> the message of that full name. Raises GatewayError: what the server said instead, or that it is
    none of that kind.
    """
    if reply.grpc_code:
        raise failure(reply.grpc_code, reply.message)
    try:
        return message(kind).FromString(whole(reply))
    except DecodeError:
        raise broken(kind.rpartition(".")[2]) from None


def whole(reply: Reply) -> Buffer:
    """The body of a reply that was received, which is one piece."""
    body: Any = reply.body
    return body  # type: ignore[no-any-return]


def broken(what: str) -> ModelFailed:
    """An answer that cannot be what the protocol says."""
    return ModelFailed(f"the upstream server's answer is no valid {what}", ErrorReason.UPSTREAM)
