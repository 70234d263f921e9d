"""GrpsMessage in protobuf from the client's side, GrpsService/Predict: InferRequest -> message, message ->
InferResponse. Contract: grps v1.1.0, which has no word for a model's tensors, and one status for most that can go
wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from tensorgate.adapters.grps.client import GrpsClient, failed, model_name, named
from tensorgate.adapters.grps.errors import Undecodable
from tensorgate.adapters.grps.proto_message import GrpsMessage, gtensors, read_message
from tensorgate.adapters.upstream import broken, failure, whole
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import Tensors
from tensorgate.gateway.contract.upstream import Ask, Description, UpstreamModel

_SERVICE: Final = "/grps.protos.v1.GrpsService/"
_SUCCESS: Final = 200


class GrpsGrpcClient(GrpsClient):
    """The `Client` of grps servers over gRPC."""

    transport: Final = "grpc"

    def __init__(self, model: UpstreamModel) -> None:
        super().__init__(model)
        self._head: bytes = GrpsMessage(model=model_name(model)).SerializeToString()

    def probe(self) -> Ask:
        return Ask(f"{_SERVICE}CheckLiveness")

    def is_ready(self, reply: Reply) -> bool:
        return not reply.grpc_code and _status(reply).code == _SUCCESS

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        method = "PredictStreaming" if stream else "Predict"
        return Ask(f"{_SERVICE}{method}", [self._head, *gtensors(tensors)])

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        if reply.grpc_code:
            raise failure(reply.grpc_code, reply.message)
        status = _status(reply)
        if status.code not in (0, _SUCCESS):
            raise failed(status.code, status.msg)
        try:
            found = read_message(whole(reply)).get("gtensors")
        except (Undecodable, InvalidArgument):
            raise broken("GrpsMessage") from None
        return named(found, description)


def _status(reply: Reply) -> Any:
    try:
        return GrpsMessage.FromString(whole(reply)).status
    except DecodeError:
        raise broken("GrpsMessage") from None
