"""Open Inference V2 over gRPC from the client's side: InferRequest -> ModelInferRequest with raw contents,
ModelInferResponse -> InferResponse, whose arrays are views of what came.

What does not change from request to request is kept as serialized fields. A stream asks for errors as statuses, so that
their kind is not lost, and for a word after the last answer. Source: the Open Inference Protocol; Triton's extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tensorgate.adapters.open_inference.client import index_entry, parameters_of, spec_of, tensor_of
from tensorgate.adapters.open_inference.proto_inputs import CONTENTS
from tensorgate.adapters.open_inference.proto_message import RAW_INPUTS
from tensorgate.adapters.open_inference.proto_parameters import EMPTY_FINAL, FIELD_OF, FINAL
from tensorgate.adapters.open_inference.proto_response import ERROR_METADATA, RAW_OUTPUTS
from tensorgate.adapters.open_inference.raw import raw_of
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import cut_out, parse, varint
from tensorgate.adapters.upstream import broken, failure, parsed, whole
from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import Code, InvalidArgument, ModelFailed
from tensorgate.gateway.contract.questions import IndexEntry, LoadModel, UnloadModel
from tensorgate.gateway.contract.tensor import DATATYPES, DTYPES, ParameterValue, Tensors
from tensorgate.gateway.contract.upstream import Ask, Client, Description, UpstreamModel

_SERVICE: Final = "/inference.GRPCInferenceService/"
_REQUEST: Final = message("inference.ModelInferRequest")
_RESPONSE: Final = "inference.ModelInferResponse"
_STREAM_RESPONSE: Final = "inference.ModelStreamInferResponse"
_RAW_INPUT: Final = bytes([RAW_INPUTS])
_LARGE_BYTES: Final = 4 << 10
"""Below that, protobuf's copy costs less than the walk that avoids it."""
_FIELDS: Final[Mapping[str, str]] = {
    **{datatype: field for field, datatype in CONTENTS.items()},
    **dict.fromkeys(("INT8", "INT16"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16"), "uint_contents"),
}
"""Where the values of a datatype are, if a server does not send raw contents."""
_UNKNOWN: Final = frozenset({Code.UNIMPLEMENTED, Code.NOT_FOUND})


class V2GrpcClient(Client):
    """The `Client` of V2 servers over gRPC."""

    transport: Final = "grpc"
    streams: Final = "bidi"
    stateful: Final = True
    platform: Final = "open_inference"

    def __init__(self, model: UpstreamModel) -> None:
        self._name = model.name
        self._version = "" if model.version is None else str(model.version)
        self._which = {"name": self._name, "version": self._version}

    def probe(self) -> Ask:
        return self._about("ModelReady")

    def is_ready(self, reply: Reply) -> bool:
        if reply.grpc_code:
            return False
        return bool(parse("inference.ModelReadyResponse", whole(reply)).ready)

    def listings(self, *, ready_only: bool) -> Sequence[Ask]:
        body = message("inference.RepositoryIndexRequest")(ready=ready_only).SerializeToString()
        return (Ask(f"{_SERVICE}RepositoryIndex", (body,)),)

    def listed(self, reply: Reply) -> tuple[IndexEntry, ...] | None:
        if reply.grpc_code is Code.UNIMPLEMENTED:
            return None
        index = parsed("inference.RepositoryIndexResponse", reply)
        return tuple([index_entry(each.name, each.version, each.state, each.reason) for each in index.models])

    def control(self, question: LoadModel | UnloadModel) -> tuple[Ask, Callable[[Reply], None]]:
        method = "RepositoryModelUnload" if isinstance(question, UnloadModel) else "RepositoryModelLoad"
        asked = message(f"inference.{method}Request")(model_name=question.name)
        if isinstance(question, UnloadModel):
            if question.dependents:
                asked.parameters["unload_dependents"].bool_param = True
        else:
            for name, content in question.files.items():
                asked.parameters[f"file:{name}"].bytes_param = bytes(content)
            if question.configuration is not None:
                asked.parameters["config"].string_param = question.configuration

        def check_done(reply: Reply) -> None:
            parsed(f"inference.{method}Response", reply)

        return Ask(f"{_SERVICE}{method}", (asked.SerializeToString(),)), check_done

    def questions(self) -> Sequence[Ask]:
        return (self._about("ModelMetadata"), self._about("ModelConfig"))

    def _about(self, method: str) -> Ask:
        body = message(f"inference.{method}Request")(**self._which).SerializeToString()
        return Ask(f"{_SERVICE}{method}", (body,))

    def description(self, replies: Sequence[Reply]) -> Description:
        """The second reply says what only Triton's kind has: optional inputs, decoupled models."""
        metadata = parsed("inference.ModelMetadataResponse", replies[0])
        optional: set[str] = set()
        decoupled = False
        if replies[1].grpc_code not in _UNKNOWN:
            config = parsed("inference.ModelConfigResponse", replies[1]).config
            decoupled = config.model_transaction_policy.decoupled
            optional = {item.name for item in config.input if item.optional}
        return Description(
            tuple([spec_of(item.name, item.datatype, item.shape, item.name in optional) for item in metadata.inputs]),
            tuple([spec_of(item.name, item.datatype, item.shape) for item in metadata.outputs]),
            decoupled,
        )

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        shapes = tuple([(name, array.dtype, array.shape) for name, array in tensors.items()])
        body: list[Buffer] = [_head(self._name, self._version, shapes, tuple(outputs))]
        values = parameters_of(request)
        if stream:
            values[EMPTY_FINAL] = True
        if values or request.id:
            body.append(_parameters(request.id, values))
        for array in tensors.values():
            data = raw_of(array)
            body += _RAW_INPUT, varint(len(data)), data
        if stream:
            return Ask(f"{_SERVICE}ModelStreamInfer", body, headers={ERROR_METADATA: "true"})
        return Ask(f"{_SERVICE}ModelInfer", body)

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        if reply.grpc_code:
            raise failure(reply.grpc_code, reply.message)
        body = whole(reply)
        return _response(*_read(body))

    def decode_part(self, reply: Reply, description: Description) -> InferResponse:
        answer = parsed(_STREAM_RESPONSE, reply)
        if answer.error_message:
            raise ModelFailed(answer.error_message)
        response = answer.infer_response
        return _response(response, [memoryview(data) for data in response.raw_output_contents])


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=1024)
def _head(
    model: str,
    version: str,
    inputs: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...],
    outputs: tuple[str, ...],
) -> bytes:
    """All of a request that is the same for every one of its kind."""
    request = _REQUEST(model_name=model, model_version=version)
    for name, dtype, shape in inputs:
        request.inputs.add(name=name, datatype=DATATYPES[dtype], shape=shape)
    for name in outputs:
        request.outputs.add(name=name)
    serialized: bytes = request.SerializeToString()
    return serialized


def _parameters(id: str, values: Mapping[str, ParameterValue]) -> bytes:
    request: Any = _REQUEST(id=id)
    for name, value in values.items():
        setattr(request.parameters[name], FIELD_OF[type(value)], value)
    serialized: bytes = request.SerializeToString()
    return serialized


def _read(body: Buffer) -> tuple[Any, Sequence[memoryview]]:
    """The message of an answer, and its raw contents: of a large one, as views of the body. Raises ModelFailed."""
    try:
        if len(body) < _LARGE_BYTES:
            answer = parse(_RESPONSE, body)
            return answer, [memoryview(data) for data in answer.raw_output_contents]
        head, raw = cut_out(body, RAW_OUTPUTS, _RESPONSE)
        return parse(_RESPONSE, head), raw
    except InvalidArgument:
        raise broken("ModelInferResponse") from None


def _response(answer: Any, raw: Sequence[memoryview]) -> InferResponse:
    outputs = {}
    at = 0
    for item in answer.outputs:
        if not raw and item.HasField("contents"):  # beside raw contents there may be empty ones, as MLServer has them
            outputs[item.name] = _typed(item)
            continue
        if at == len(raw):
            raise broken("ModelInferResponse")
        outputs[item.name] = tensor_of(item.name, item.datatype, tuple(item.shape), raw[at])
        at += 1
    parameters: dict[str, ParameterValue] = {}
    final = True
    for name, item in answer.parameters.items():
        value = getattr(item, item.WhichOneof("parameter_choice") or "string_param")
        if name == FINAL:
            final = value
        else:
            parameters[name] = value
    return InferResponse(outputs, parameters, final)


def _typed(item: Any) -> Any:
    field = _FIELDS.get(item.datatype)
    if field is None:
        raise broken("ModelInferResponse")
    try:
        return np.array(getattr(item.contents, field), DTYPES[item.datatype]).reshape(tuple(item.shape))
    except (ValueError, OverflowError):
        raise broken("ModelInferResponse") from None
