"""grps.protos.v1.GrpsService: every method takes and gives a GrpsMessage. A failure is a message, too; the call is OK.

Source: grps v1.1.0, what the Python server answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from tensorgate.adapters.failures import Wording
from tensorgate.adapters.grps import proto_message
from tensorgate.adapters.grps.errors import METADATA_TABLE, TABLE, BadRequest, row_of, text_of
from tensorgate.adapters.grps.metadata import model_text, server_text
from tensorgate.adapters.grps.options import GrpsOptions
from tensorgate.adapters.grps.proto_message import read_message, status
from tensorgate.adapters.grps.request import of_message
from tensorgate.adapters.grps.response import ReplyForm, filled, given, is_lone, single, utf8
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, is_long_as_bytes
from tensorgate.gateway.contract.dialect import Endpoint, Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.questions import ModelConfiguration, ServerLive, ServerMetadata, ServerReady, SetOnline

SERVICE: Final = "/grps.protos.v1.GrpsService/"


def grpc_endpoints(options: GrpsOptions) -> Mapping[str, Endpoint]:
    """Full method name -> endpoint, as the dialect's options want it."""
    rows: dict[str, Endpoint] = {}

    def row(name: str, label: str, decode: Any, encode: Any, **more: Any) -> None:
        more.setdefault("encode_error", encode_error)
        more.setdefault("is_long", is_long_as_bytes)
        rows[SERVICE + name] = Endpoint(SERVICE + name, label, decode, encode, **more)

    def ready(answer: bool, question: Any) -> Reply:
        return _OK if answer else _failure(options.offline_grpc_code, "Service Unavailable")

    def show_server(answer: Any, question: Any) -> Reply:
        return Reply(proto_message.string_message(server_text(answer, options.default_model)))

    row(
        "Predict",
        "infer",
        partial(decode_predict, stream=False),
        encode_predict,
        encode_error=partial(encode_error, control="PredictStreaming"),
        stream="single",
    )
    row("PredictStreaming", "infer", partial(decode_predict, stream=True), encode_predict, stream="server")
    row("Online", "online", _asks(SetOnline(True)), _success, admin=True)
    row("Offline", "offline", _asks(SetOnline(False)), _success, admin=True)
    row("CheckLiveness", "live", _asks(ServerLive()), ready)
    row("CheckReadiness", "ready", _asks(ServerReady(online_gate=True)), ready)
    row("ServerMetadata", "metadata", _asks(ServerMetadata()), show_server)
    row(
        "ModelMetadata",
        "metadata",
        decode_model,
        show_model,
        encode_error=partial(encode_error, rows=METADATA_TABLE),
    )
    return MappingProxyType(rows)


# ----------------------------------------------------------------------------------------------------------- questions


def decode_predict(call: Call, resolve: Resolve, *, stream: bool) -> InferRequest:
    """A message -> the request that it is over HTTP, too; `bin_data` is an ordinary field here."""
    return of_message(call, resolve, read_message(call.body), stream)


def decode_model(call: Call, resolve: Resolve) -> ModelConfiguration:
    """str_data, a model's bare name -> the question."""
    name = read_message(call.body).get("str_data")
    if name is None:
        raise BadRequest("No model name.")
    if not name:
        raise BadRequest("The model name is empty.")
    return ModelConfiguration(name)


def _asks(question: Any) -> Any:
    """Decode of a method that has a question; what its message says does not matter, as long as it is one."""

    def decode(call: Call, resolve: Resolve) -> Any:
        read_message(call.body)
        return question

    return decode


# ------------------------------------------------------------------------------------------------------------- replies


def encode_predict(answer: InferResponse, question: InferRequest) -> Reply:
    """One answer -> one message. Raises EncodingFailed for what grps cannot carry."""
    form: ReplyForm = question.wire
    if form.form == "gmap":
        return Reply(proto_message.maps_message(filled(answer, form)), streamed=form.stream)
    if not is_lone(answer, form):
        return Reply(proto_message.tensors_message(answer.outputs), streamed=form.stream)
    data = single(form, given(answer, form))
    if form.form == "bin_data":
        return Reply(proto_message.bytes_message(data), streamed=form.stream)
    return Reply(proto_message.string_message(utf8(data, form.output)), streamed=form.stream)


def show_model(answer: Any, question: ModelConfiguration) -> Reply:
    """The model's configuration as YAML text."""
    return Reply(proto_message.string_message(model_text(question.name, answer)))


def _success(answer: Any, question: Any) -> Reply:
    return _OK


def _failure(code: int, text: str, grpc: Code = Code.OK) -> Reply:
    return Reply(status(code, text), code, grpc_code=grpc, message=text, streamed=True)


def encode_error(
    error: GatewayError, call: Call, *, rows: Mapping[type[GatewayError], Wording] = TABLE, control: str = ""
) -> Reply:
    """A failure -> a message that says so; only what never was a message fails the call itself."""
    row = row_of(error, rows)
    return _failure(row.http_status, text_of(error, row, control), row.grpc_code)


_OK: Final = Reply(proto_message.OK)
