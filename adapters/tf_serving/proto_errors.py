"""Every kind of failure over gRPC: the code and the text of the one table, and where single methods say otherwise."""

from __future__ import annotations

from typing import Final

from tensorgate.adapters.tf_serving.errors import answer_of, no_versions
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError, ModelNotFound, SignatureNotFound

_MAX_DETAIL_BYTES: Final = 1024


def encode_error(error: GatewayError, call: Call) -> Reply:
    """The status of a call that failed."""
    answer = answer_of(error)
    return failed(answer.code, answer.text(error))


def encode_predict_error(error: GatewayError, call: Call) -> Reply:
    """The same for Predict, where an unknown signature has other words than in JSON."""
    if isinstance(error, SignatureNotFound):
        return failed(Code.FAILED_PRECONDITION, f'Serving signature key "{error.signature}" not found.')
    return encode_error(error, call)


def encode_status_error(error: GatewayError, call: Call) -> Reply:
    """The same for GetModelStatus, where an unknown model has other words."""
    if isinstance(error, ModelNotFound):
        return failed(Code.NOT_FOUND, no_versions(error))
    return encode_error(error, call)


def failed(code: Code, text: str) -> Reply:
    """A status with its text, cut as the original cuts it."""
    details = text.encode("utf-8", "replace")
    text = details[:_MAX_DETAIL_BYTES].decode("utf-8", "ignore")
    if len(details) > _MAX_DETAIL_BYTES:
        text += "...TRUNCATED"
    return Reply(b"", grpc_code=code, message=text)
