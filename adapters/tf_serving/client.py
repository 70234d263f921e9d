"""TensorFlow Serving's REST API from the client's side: predict in the columnar format, which carries any shape;
InferRequest -> body, body -> InferResponse.

JSON there has NaN and Infinity, and strings that are no text; where a message holds any, it is read and written the
slow way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import orjson
import pybase64

from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.tf_serving.data_types import BY_NUMBER, DATA_TYPES, TYPE_NAMES
from tensorgate.adapters.tf_serving.tensors import WITHOUT_JSON
from tensorgate.adapters.upstream import broken, http_failure, json_object, whole
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import EncodingFailed, ModelFailed, SignatureNotFound
from tensorgate.gateway.contract.tensor import BYTES, DEFAULT_SIGNATURE, Array, Tensors, TensorSpec
from tensorgate.gateway.contract.upstream import Ask, Client, Description, UpstreamModel

_HEADERS: Final = {"Content-Type": "application/json"}


class TfsHttpClient(Client):
    """The `Client` of TensorFlow Serving over REST."""

    transport: Final = "http"
    streams: Final = "no"
    platform: Final = "tf_serving"

    def __init__(self, model: UpstreamModel) -> None:
        self._model = model
        self._path = f"/v1/models/{quote(model.name, safe='')}"
        if model.version is not None:
            self._path += f"/versions/{model.version}"
        elif model.label is not None:
            self._path += f"/labels/{quote(model.label, safe='')}"

    def probe(self) -> Ask:
        return Ask(self._path, method="GET")

    def is_ready(self, reply: Reply) -> bool:
        return reply.http_status == 200 and bool(self.available(reply))

    def available(self, reply: Reply) -> tuple[int, ...]:
        try:
            versions = _parsed(reply).get("model_version_status", ())
            return tuple([int(each["version"]) for each in versions if each.get("state") == "AVAILABLE"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise broken("model status") from None

    def questions(self) -> Sequence[Ask]:
        return (Ask(f"{self._path}/metadata", method="GET"),)

    def description(self, replies: Sequence[Reply]) -> Description:
        metadata = _parsed(replies[0])
        wanted = self._model.signature or DEFAULT_SIGNATURE
        try:
            signatures = metadata["metadata"]["signature_def"]["signature_def"]
            if wanted not in signatures:
                raise SignatureNotFound(self._model.name, wanted)
            signature = signatures[wanted]
            return Description(
                tuple([_spec(name, item) for name, item in sorted(signature["inputs"].items())]),
                tuple([_spec(name, item) for name, item in sorted(signature["outputs"].items())]),
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            raise broken("metadata") from None

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        """The server answers with all of its outputs."""
        document: dict[str, Any] = {"inputs": {name: _plain(name, array) for name, array in tensors.items()}}
        if self._model.signature:
            document["signature_name"] = self._model.signature
        finite = all(array.dtype.kind != "f" or np.isfinite(array).all() for array in tensors.values())
        body = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY) if finite else _with_tokens(document)
        return Ask(f"{self._path}:predict", (body,), headers=_HEADERS)

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        answer = _parsed(reply)
        specs = description.outputs
        try:
            found = answer["outputs"]
            if len(specs) == 1 and not (isinstance(found, dict) and specs[0].name in found):
                found = {specs[0].name: found}
            return InferResponse({spec.name: _array(found[spec.name], spec) for spec in specs if spec.name in found})
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise broken("answer to predict") from None

    decode_part = decode


def _spec(name: str, item: Any) -> TensorSpec:
    number = DATA_TYPES.values_by_name.get(item["dtype"])
    wire = None if number is None else BY_NUMBER.get(number.number)
    if wire is None:
        raise ModelFailed(f"the upstream server's tensor '{name}' is {item['dtype']}, which no request can carry")
    shape = item["tensor_shape"]
    sizes = None if shape.get("unknown_rank") else tuple([int(dim["size"]) for dim in shape.get("dim", ())])
    return TensorSpec(name, wire.dtype, sizes)


def _plain(name: str, array: Array) -> Any:
    """As JSON takes it; strings in Base64, for they need not be text."""
    if array.dtype in WITHOUT_JSON:
        raise EncodingFailed(f"input {name} is {TYPE_NAMES[array.dtype]}, which TensorFlow Serving's JSON cannot carry")
    if array.dtype == BYTES:
        coded = np.empty(array.size, object)
        coded[:] = [{"b64": pybase64.b64encode_as_string(text)} for text in array.ravel()]
        return coded.reshape(array.shape).tolist()
    return np.ascontiguousarray(array) if array.shape else array.item()


def _with_tokens(document: Any) -> bytes:
    return json.dumps(document, default=lambda array: array.tolist()).encode()


def _parsed(reply: Reply) -> Any:
    if reply.http_status != 200:
        raise http_failure(reply)
    return json_object(whole(reply), "answer", is_text=False)


def _array(value: Any, spec: TensorSpec) -> Array:
    if spec.dtype != BYTES:
        return np.array(value, spec.dtype)
    shape: list[int] = []
    level = value
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    texts = [value]
    for _ in shape:
        texts = [item for part in texts for item in part]
    return array_of([_bytes(text) for text in texts]).reshape(shape)


def _bytes(text: Any) -> bytes:
    if isinstance(text, dict):
        return pybase64.b64decode(text["b64"])
    data: bytes = text.encode("utf-8", "surrogateescape")
    return data
