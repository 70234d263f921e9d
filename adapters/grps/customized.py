"""Predict with a body of the user's own: a model gets the raw request and shapes the raw response.

The body is the model's `bin_data` input, or its only BYTES input; what else the request said are parameters. The answer
is one BYTES element, sent as it is; other outputs may set status and headers. Source: grps v1.1.0,
`customized_predict_http` with `customized_body`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorgate.adapters.grps.errors import BUSY, row_of, text_of
from tensorgate.adapters.grps.options import GrpsReply, mapping_of
from tensorgate.adapters.grps.request import Asks, from_bytes
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import EncodingFailed, GatewayError
from tensorgate.gateway.contract.tensor import BYTES

_TEXT: Final = "text/plain"
_BYTES: Final = "application/octet-stream"
_NEVER: Final = frozenset(("content-length", "transfer-encoding", "connection", "server", "date"))
"""Headers that belong to whoever sends the response."""


@dataclass(frozen=True, slots=True)
class RawForm:
    """Which output is the body, of which content type unless the model says another, and the outputs that say more."""

    output: str
    content_type: str
    reply: GrpsReply
    stream: bool


def decode_raw(call: Call, resolve: Resolve, asks: Asks, stream_type: str) -> InferRequest:
    """Whatever was sent -> the request. The model is the query's, or the default. Raises GatewayError."""
    stream = asks(call)
    call.notes["stream"] = "true" if stream else ""
    view = resolve(ModelRef(qualified=call.args.get("model", "")))
    path, _, query = call.raw_target.partition("?")
    try:
        return InferRequest(
            view,
            from_bytes(view, "bin_data", bytes(call.body)),
            parameters={
                "http_method": call.method,
                "http_path": path,
                "http_query": query,
                "http_headers": json.dumps({name.lower(): value for name, value in call.headers.items()}),
            },
            deadline=call.deadline,
            stream=stream,
            wire=_form(view, stream, stream_type),
        )
    except GatewayError:
        call.notes["model"] = view.name
        raise


def _form(view: ModelView, stream: bool, stream_type: str) -> RawForm:
    reply = mapping_of(view).reply
    outputs = [name for name, spec in view.outputs.items() if spec.dtype == BYTES]
    output = reply.bin_data or reply.str_data or (outputs[0] if len(outputs) == 1 else "")
    if output not in view.outputs:
        raise EncodingFailed(f"Model {view.name} has no output that is the body: set grps.reply.bin_data.")
    content_type = stream_type if stream else _TEXT if reply.str_data == output else _BYTES
    return RawForm(output, content_type, reply, stream)


def encode_raw(answer: InferResponse, question: InferRequest) -> Reply:
    """One answer -> the response, or one chunk of it; the first one's status and headers are those of the stream."""
    form: RawForm = question.wire
    headers = {"Content-Type": form.content_type}
    if form.reply.headers:
        headers |= _headers(_one(answer, form.reply.headers))
    if form.reply.content_type:
        headers["Content-Type"] = _text(_one(answer, form.reply.content_type))
    status = int(_one(answer, form.reply.status)) if form.reply.status else 200
    if not 200 <= status <= 599:
        raise EncodingFailed(f"Output {form.reply.status} is {status}, which is no HTTP status.")
    return Reply(_one(answer, form.output), status, headers, streamed=form.stream)


def encode_raw_error(error: GatewayError, call: Call, *, stream_type: str, control: str) -> Reply:
    """A failure -> its text, as one more chunk where a stream has begun."""
    row = row_of(error)
    text = text_of(error, row, control)
    if call.notes.get("stream"):
        return Reply(
            text.encode("utf-8", "replace"), 200, {"Content-Type": stream_type}, row.grpc_code, text, streamed=True
        )
    headers = {"Content-Type": _TEXT} | ({"Retry-After": "1"} if row.http_status == BUSY else {})
    return Reply(text.encode("utf-8", "replace"), row.http_status, headers, row.grpc_code, text)


def _one(answer: InferResponse, output: str) -> Any:
    """The one element of an output."""
    array = answer.outputs.get(output)
    if array is None or array.size != 1:
        raise EncodingFailed(f"Output {output} must have one element.")
    return array.reshape(1)[0]


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise EncodingFailed("A header is BYTES.")
    text = value.decode("utf-8", "replace")
    if not text.isprintable():
        raise EncodingFailed("A header has no control characters.")
    return text


def _headers(value: Any) -> Mapping[str, str]:
    """{"Name": "value"} in JSON, without those that are not the model's to set."""
    try:
        given = json.loads(value)
    except (TypeError, ValueError):
        given = None
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise EncodingFailed('Headers are a JSON object of strings: {"Name": "value"}.')
    return {name: _text(each.encode()) for name, each in given.items() if name.lower() not in _NEVER and _is_name(name)}


def _is_name(name: str) -> bool:
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise EncodingFailed(f"{name!r} is no name of a header.")
    return True
