"""Open Inference V2 over HTTP from the client's side: InferRequest -> JSON and binary tensors, reply -> InferResponse;
the gRPC client shares what is not JSON.

Tensors go both ways as binary data; a server that has no such extension is understood, too. Source: the Open Inference
Protocol; Triton's extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import orjson
import pybase64

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.open_inference import raw
from tensorgate.adapters.open_inference.generate_client import decode_event, encode_generate
from tensorgate.adapters.open_inference.inputs import elements_of
from tensorgate.adapters.open_inference.raw import HEADER_LENGTH
from tensorgate.adapters.open_inference.response import json_text
from tensorgate.adapters.upstream import broken, http_failure, json_object, whole
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import EncodingFailed, GatewayError, ModelFailed
from tensorgate.gateway.contract.questions import IndexEntry, LoadModel, UnloadModel
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, Array, ParameterValue, Tensors, TensorSpec
from tensorgate.gateway.contract.upstream import Ask, Client, Description, UpstreamModel

_BINARY: Final = {"binary_data": True}
_ANSWER: Final = "inference response"
_MISSING: Final = frozenset({404, 405, 501})


def index_entry(name: str, version: str, state: str, reason: str) -> IndexEntry:
    """A line of a repository's index."""
    number = int(version) if version.isascii() and version.isdecimal() else None
    return IndexEntry(name, number, plain_state(state), reason)


def plain_state(state: Any) -> str:
    """READY and its like; MLServer writes State.READY over gRPC."""
    return str(state or "").removeprefix("State.")


class V2HttpClient(Client):
    """The `Client` of V2 servers over HTTP."""

    transport: Final = "http"
    streams: Final = "server"
    stateful: Final = True
    platform: Final = "open_inference"

    def __init__(self, model: UpstreamModel) -> None:
        version = "" if model.version is None else f"/versions/{model.version}"
        self._path = f"/v2/models/{quote(model.name, safe='')}{version}"

    def probe(self) -> Ask:
        return Ask(f"{self._path}/ready", method="GET")

    def is_ready(self, reply: Reply) -> bool:
        return reply.http_status == 200

    def listings(self, *, ready_only: bool) -> Sequence[Ask]:
        """Triton's index, and KServe's list of what is ready."""
        body = b'{"ready": true}' if ready_only else b"{}"
        index = Ask("/v2/repository/index", (body,), headers={"Content-Type": "application/json"})
        return index, Ask("/v2/models", method="GET")

    def listed(self, reply: Reply) -> tuple[IndexEntry, ...] | None:
        if reply.http_status in _MISSING:
            return None
        if reply.http_status != 200:
            raise http_failure(reply)
        try:
            found = orjson.loads(whole(reply))
            if isinstance(found, dict):
                return tuple([IndexEntry(name, state="READY") for name in map(str, found["models"])])
            return tuple([_entry(**each) for each in found])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise broken("repository index") from None

    def control(self, question: LoadModel | UnloadModel) -> tuple[Ask, Callable[[Reply], None]]:
        path = f"/v2/repository/models/{quote(question.name, safe='')}"
        if isinstance(question, UnloadModel):
            parameters: dict[str, Any] = {"unload_dependents": True} if question.dependents else {}
            path += "/unload"
        else:
            parameters = {
                f"file:{name}": pybase64.b64encode(content).decode() for name, content in question.files.items()
            }
            if question.configuration is not None:
                parameters["config"] = question.configuration
            path += "/load"
        body = orjson.dumps({"parameters": parameters} if parameters else {})
        return Ask(path, (body,), headers={"Content-Type": "application/json"}), _check_done

    def questions(self) -> Sequence[Ask]:
        return tuple([Ask(path, method="GET") for path in (self._path, f"{self._path}/config", "/v2")])

    def description(self, replies: Sequence[Reply]) -> Description:
        """The second reply says what only Triton's kind has: optional inputs, decoupled models. The third says with an
        empty list that a server has no extension, so that it takes no binary data: MLServer.
        """
        metadata = _json(replies[0])
        optional: set[str] = set()
        decoupled = False
        if replies[1].http_status not in _MISSING:
            config = _json(replies[1])
            decoupled = bool((config.get("model_transaction_policy") or {}).get("decoupled"))
            optional = {item["name"] for item in config.get("input") or () if item.get("optional")}
        try:
            return Description(
                tuple(
                    [spec_of(i["name"], i["datatype"], i["shape"], i["name"] in optional) for i in metadata["inputs"]]
                ),
                tuple([spec_of(i["name"], i["datatype"], i["shape"]) for i in metadata["outputs"]]),
                decoupled,
                binary=replies[2].http_status != 200 or _json(replies[2]).get("extensions") != [],
            )
        except (KeyError, TypeError):
            raise broken("model metadata") from None

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        if stream:
            return encode_generate(self._path, tensors, request, description)
        if not description.binary:
            return self._in_json(tensors, outputs, request)
        data = [raw.raw_of(array) for array in tensors.values()]
        inputs = [
            {**_head(name, array), "parameters": {"binary_data_size": len(part)}}
            for (name, array), part in zip(tensors.items(), data, strict=True)
        ]
        document = self._document(inputs, outputs, request, binary=True)
        headers = {HEADER_LENGTH: str(len(document)), "Content-Type": "application/octet-stream"}
        return Ask(f"{self._path}/infer", [document, *data], headers=headers)

    def _in_json(self, tensors: Tensors, outputs: Sequence[str], request: InferRequest) -> Ask:
        try:
            inputs = [
                {**_head(name, array), "data": orjson.Fragment(b"".join(json_text(name, array)))}
                for name, array in tensors.items()
            ]
        except EncodingFailed:
            raise EncodingFailed(
                "an input is FP16, BF16 or BYTES that are no UTF-8, and the upstream server takes JSON alone"
            ) from None
        document = self._document(inputs, outputs, request, binary=False)
        return Ask(f"{self._path}/infer", (document,), headers={"Content-Type": "application/json"})

    def _document(
        self, inputs: list[dict[str, Any]], outputs: Sequence[str], request: InferRequest, *, binary: bool
    ) -> bytes:
        parameters = parameters_of(request)
        document: dict[str, Any] = {"inputs": inputs}
        if request.id:
            document["id"] = request.id
        if outputs:
            document["outputs"] = [{"name": name} | ({"parameters": _BINARY} if binary else {}) for name in outputs]
        elif binary:
            parameters["binary_data_output"] = True
        if parameters:
            document["parameters"] = parameters
        return orjson.dumps(document)

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        if reply.http_status != 200:
            raise http_failure(reply)
        body = memoryview(whole(reply))
        length = reply.headers.get(HEADER_LENGTH.lower(), "")
        size = int(length) if length.isdecimal() else len(body)
        answer = json_object(body[:size], _ANSWER)
        try:
            return _response(answer, body[size:])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, json_body.WrongLeaf):
            raise broken(_ANSWER) from None

    def decode_part(self, reply: Reply, description: Description) -> InferResponse:
        return decode_event(reply, description)


def _head(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "shape": array.shape, "datatype": DATATYPES[array.dtype]}


def parameters_of(request: InferRequest) -> dict[str, ParameterValue]:
    """What goes along with the tensors of a request: its own parameters, and those that servers consume."""
    values = dict(request.parameters)
    if request.sequence is not None:
        number = request.sequence.id
        values["sequence_id"] = number - 2**64 if isinstance(number, int) and number >= 2**63 else number
        values["sequence_start"] = request.sequence.start
        values["sequence_end"] = request.sequence.end
    if request.priority:
        values["priority"] = request.priority
    if request.queue_timeout_us:
        values["timeout"] = request.queue_timeout_us
    return values


def spec_of(name: str, datatype: str, shape: Sequence[Any], optional: bool = False) -> TensorSpec:
    """A tensor as metadata describes it. Raises ModelFailed."""
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise ModelFailed(f"the upstream server's tensor '{name}' has the datatype '{datatype}', which is none")
    return TensorSpec(name, dtype, tuple([int(size) for size in shape]), optional)


def tensor_of(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """An output's raw bytes -> array, a view of them where that is possible. Raises ModelFailed."""
    dtype = DTYPES.get(datatype)
    if dtype is None or (shape and min(shape) < 0):
        raise broken(_ANSWER)
    try:
        count = elements_of(name, dtype, shape)
        if dtype == BYTES:
            return raw.strings_of(data, shape, count, name, "")
        return raw.numbers_of(data, dtype, shape, count)
    except GatewayError as error:
        raise ModelFailed(f"the upstream server's output '{name}' is not what it says: {error}") from None


def _entry(name: Any, version: Any = "", state: Any = "", reason: Any = "", **others: Any) -> IndexEntry:
    return index_entry(str(name), str(version), str(state), str(reason))


def _check_done(reply: Reply) -> None:
    if reply.http_status != 200:
        raise http_failure(reply)


def _json(reply: Reply) -> Any:
    if reply.http_status != 200:
        raise http_failure(reply)
    return json_object(whole(reply), _ANSWER)


def _response(answer: Mapping[str, Any], tail: memoryview) -> InferResponse:
    outputs: dict[str, Array] = {}
    at = 0
    for item in answer["outputs"]:
        name, shape = item["name"], tuple(item["shape"])
        size = (item.get("parameters") or {}).get("binary_data_size")
        if size is None:
            outputs[name] = _from_json(item["data"], item["datatype"], shape)
        else:
            outputs[name] = tensor_of(name, item["datatype"], shape, tail[at : at + size])
            at += size
    return InferResponse(outputs, answer.get("parameters") or {})


def _from_json(data: Any, datatype: str, shape: tuple[int, ...]) -> Array:
    """Integers are held to their range; a floating number may be null, as servers without a word for NaN write it."""
    dtype = DTYPES[datatype]
    if datatype == "BYTES":
        return array_of([text.encode() for text in _flat(data)]).reshape(shape)
    if dtype.kind in "biu":
        return json_body.numbers(data, dtype).reshape(shape)
    return np.array(data, dtype).reshape(shape)


def _flat(data: Any) -> list[str]:
    return [text for item in data for text in _flat(item)] if isinstance(data, list) else [data]
