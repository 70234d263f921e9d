"""PredictionService from the client's side, Predict alone: InferRequest -> PredictRequest with tensors as bytes,
PredictResponse -> InferResponse.

Answers come with numbers in typed fields, or as bytes; both are read as views of the message where that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import varint
from tensorgate.adapters.tf_serving.data_types import BY_DTYPE, BY_NUMBER
from tensorgate.adapters.tf_serving.proto_tensors import TensorProtoReader, tensor_parts
from tensorgate.adapters.tf_serving.proto_wire import OUTPUTS, TensorCut, Unusual, split
from tensorgate.adapters.upstream import broken, failure, parsed, whole
from tensorgate.gateway.contract.call import Buffer, Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import EncodingFailed, InvalidArgument, ModelFailed, SignatureNotFound
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import DATATYPES, DEFAULT_SIGNATURE, NOTHING, Array, Tensors, TensorSpec
from tensorgate.gateway.contract.upstream import Ask, Client, Description, UpstreamModel

_PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"
_METADATA: Final = "/tensorflow.serving.PredictionService/GetModelMetadata"
_STATUS: Final = "/tensorflow.serving.ModelService/GetModelStatus"
_RESPONSE: Final = "tensorflow.serving.PredictResponse"
_AVAILABLE: Final = 30
_SIGNATURES: Final = "signature_def"
_INPUT: Final = b"\x12"
_KEY: Final = b"\x0a"
_VALUE: Final = b"\x12"
_SMALL_BYTES: Final = 1 << 10 if is_taken("message_cuts") else 1 << 62


class TfsGrpcClient(Client):
    """The `Client` of TensorFlow Serving over gRPC."""

    transport: Final = "grpc"
    streams: Final = "no"
    platform: Final = "tf_serving"

    def __init__(self, model: UpstreamModel) -> None:
        self._model = model
        spec = message("tensorflow.serving.ModelSpec")(name=model.name)
        if model.version is not None:
            spec.version.value = model.version
        self._status = message("tensorflow.serving.GetModelStatusRequest")(model_spec=spec).SerializeToString()
        if model.label is not None:
            spec.version_label = model.label
        self._metadata = message("tensorflow.serving.GetModelMetadataRequest")(
            model_spec=spec, metadata_field=[_SIGNATURES]
        ).SerializeToString()
        spec.signature_name = model.signature
        self._spec = spec
        self._heads: dict[tuple[str, ...], bytes] = {}

    def probe(self) -> Ask:
        return Ask(_STATUS, (self._status,))

    def is_ready(self, reply: Reply) -> bool:
        return not reply.grpc_code and bool(self.available(reply))

    def available(self, reply: Reply) -> tuple[int, ...]:
        status = parsed("tensorflow.serving.GetModelStatusResponse", reply)
        return tuple([each.version for each in status.model_version_status if each.state == _AVAILABLE])

    def questions(self) -> Sequence[Ask]:
        return (Ask(_METADATA, (self._metadata,)),)

    def description(self, replies: Sequence[Reply]) -> Description:
        metadata = parsed("tensorflow.serving.GetModelMetadataResponse", replies[0]).metadata
        signatures = message("tensorflow.serving.SignatureDefMap")()
        try:
            signatures.ParseFromString(metadata[_SIGNATURES].value)
        except DecodeError:
            raise broken("SignatureDefMap") from None
        wanted = self._model.signature or DEFAULT_SIGNATURE
        if wanted not in signatures.signature_def:
            raise SignatureNotFound(self._model.name, wanted)
        signature = signatures.signature_def[wanted]
        return Description(
            tuple([_spec(name, item, name in signature.defaults) for name, item in sorted(signature.inputs.items())]),
            tuple([_spec(name, item) for name, item in sorted(signature.outputs.items())]),
        )

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        body: list[Buffer] = [self._head(tuple(outputs))]
        for name, array in tensors.items():
            if array.dtype not in BY_DTYPE:
                raise EncodingFailed(f"input {name} is {DATATYPES[array.dtype]}, which TensorFlow has no number for")
            parts = tensor_parts(array, content=True)
            size = sum(map(len, parts))
            key = name.encode()
            entry = b"".join((_KEY, varint(len(key)), key, _VALUE, varint(size)))
            body += _INPUT, varint(len(entry) + size), entry, *parts
        return Ask(_PREDICT, body)

    def _head(self, outputs: tuple[str, ...]) -> bytes:
        head = self._heads.get(outputs)
        if head is None:
            request = message("tensorflow.serving.PredictRequest")(model_spec=self._spec, output_filter=outputs)
            head = self._heads[outputs] = request.SerializeToString()
        return head

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        if reply.grpc_code:
            raise failure(reply.grpc_code, reply.message)
        body = whole(reply)
        cuts: Mapping[str, TensorCut] = NOTHING
        if len(body) >= _SMALL_BYTES:
            try:
                head, found = split(body, in_thread=True, tensors=OUTPUTS)
                cuts = {name.decode(): cut for name, cut in found.items()}
                reply = Reply(head)
            except (Unusual, InvalidArgument, UnicodeDecodeError):
                cuts = NOTHING
        answer = parsed(_RESPONSE, reply)
        reader = TensorProtoReader(_received(body), cuts)
        try:
            return InferResponse({name: _array(name, reader, item) for name, item in answer.outputs.items()})
        except (Unusual, InvalidArgument):
            raise broken("PredictResponse") from None

    decode_part = decode


def _received(body: Buffer) -> Call:
    """An answer as the reader of tensors takes it: it may take its time, and make sixteen times as many bytes."""
    return Call(body, "POST", _PREDICT, NOTHING, "grpc", in_thread=True, max_body_bytes=1 << 30)


def _array(name: str, reader: TensorProtoReader, item: Any) -> Array:
    given = reader.read(name, item)
    if given.array is None:
        raise ModelFailed(f"the upstream server's output '{name}' has a dtype that no request can carry")
    return given.array


def _spec(name: str, item: Any, optional: bool = False) -> TensorSpec:
    wire = BY_NUMBER.get(item.dtype)
    if wire is None:
        raise ModelFailed(f"the upstream server's tensor '{name}' has a dtype that no request can carry")
    shape = item.tensor_shape
    sizes = None if shape.unknown_rank else tuple([dim.size for dim in shape.dim])
    return TensorSpec(name, wire.dtype, sizes, optional)
