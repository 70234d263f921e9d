"""Replies: answers of the gateway -> bodies.

Arrays go to orjson as they are, flat and in C order, so a tensor's digits are written without a Python object per
number. JSON has no word for NaN and Infinity, Triton writes the bare tokens, orjson `null`: where a tensor holds any,
the tokens are put in the place of orjson's nulls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from adapters.open_inference.compression import deflated
from adapters.open_inference.errors import JSON_HEADERS
from adapters.open_inference.raw import raw_of
from adapters.open_inference.wire import HEADER_LENGTH, PLAIN, Wire
from gateway.canonical import (
    BYTES,
    Array,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelReady,
    ServerDescription,
    TensorSpec,
    datatype_of,
)
from gateway.errors import EncodingFailed
from gateway.ports import Buffer, ModelView, Reply

EXTENSIONS: Final = ("schedule_policy", "binary_tensor_data", "parameters")
"""What server metadata lists: the extensions that work. Clients choose their calls by it."""

_OCTETS: Final = "application/octet-stream"


def encode_live(live: bool, question: Any) -> Reply:
    return Reply(orjson.dumps({"live": live}), 200 if live else 400, JSON_HEADERS)


def encode_ready(ready: bool, question: Any) -> Reply:
    return Reply(orjson.dumps({"live": True, "ready": ready}), 200 if ready else 400, JSON_HEADERS)


def encode_server_metadata(server: ServerDescription, question: Any) -> Reply:
    return _json({"name": server.name, "version": server.version, "extensions": EXTENSIONS})


def encode_model_list(names: tuple[str, ...], question: Any) -> Reply:
    return _json({"models": names})


def encode_model_ready(ready: bool, question: ModelReady) -> Reply:
    if ready:
        return _json({"name": question.ref.name, "ready": True})
    return Reply(orjson.dumps({"error": "Model version not ready"}), 400, JSON_HEADERS)


def encode_metadata(view: ModelView, question: ModelMetadata) -> Reply:
    return _metadata(view, view.versions)


def encode_metadata_of_version(view: ModelView, question: ModelMetadata) -> Reply:
    """Of the versions, only the one that was asked for."""
    return _metadata(view, (view.version,))


def _metadata(view: ModelView, versions: tuple[int, ...]) -> Reply:
    return _json(
        {
            "name": view.name,
            "versions": [str(version) for version in versions],
            "platform": view.platform,
            "inputs": _specs(view.inputs),
            "outputs": _specs(view.outputs),
        }
    )


def _specs(specs: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    """A tensor of any rank is described as a vector of any length: the protocol has no word for it."""
    return [
        {"name": spec.name, "datatype": spec.datatype, "shape": (-1,) if spec.shape is None else spec.shape}
        for spec in specs.values()
    ]


def _json(document: Mapping[str, Any]) -> Reply:
    return Reply(orjson.dumps(document), 200, JSON_HEADERS)


# --------------------------------------------------------------------------------------------------------------- infer


def encode_infer(answer: InferResponse, request: InferRequest) -> Reply:
    """Host arrays -> the response: JSON, and behind it the outputs that were asked for as binary, without a copy.

    Raises EncodingFailed for a tensor that JSON cannot carry.
    """
    wire: Wire = request.wire or PLAIN
    tail: list[Buffer] = []
    outputs = [_output(name, array, name in wire.binary, tail) for name, array in answer.outputs.items()]
    head = _dump(_head(answer, request, outputs))
    if not tail and not wire.coding:
        return Reply(head, 200, JSON_HEADERS)
    headers = {"Content-Type": _OCTETS, HEADER_LENGTH: str(len(head))} if tail else dict(JSON_HEADERS)
    body = [head, *tail]
    if wire.coding:
        headers["Content-Encoding"] = wire.coding
        body = deflated(body, wire.coding)
    return Reply(body, 200, headers)


def _output(name: str, array: Array, binary: bool, tail: list[Buffer]) -> dict[str, Any]:
    """An output's part of the JSON; binary data goes to the tail."""
    output = {"name": name, "datatype": datatype_of(array.dtype), "shape": array.shape}
    if not binary:
        output["data"] = json_data(name, array)
        return output
    data = raw_of(array)
    output["parameters"] = {"binary_data_size": len(data)}
    if len(data):
        tail.append(data)
    return output


def _head(answer: InferResponse, request: InferRequest, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    view = request.view
    document: dict[str, Any] = {"id": request.id} if request.id else {}
    document["model_name"] = view.name
    document["model_version"] = str(view.version)
    if answer.parameters:
        document["parameters"] = dict(answer.parameters)
    document["outputs"] = outputs
    return document


def _dump(document: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise EncodingFailed(f"the response cannot be written as JSON: {error}") from None


def json_data(name: str, array: Array) -> Any:
    """A tensor's elements in row-major order, as something that orjson writes. Raises EncodingFailed."""
    dtype = array.dtype
    if dtype == BYTES:
        return _strings(name, array)
    flat = array.ravel()
    if dtype.kind in "biu":
        return flat
    if dtype.itemsize == 2:
        raise EncodingFailed(
            f"sending {datatype_of(dtype)} data via JSON is not supported. Please use the binary data format for output"
        )
    return flat if np.isfinite(flat).all() else _with_tokens(flat)


def _strings(name: str, array: Array) -> list[str]:
    try:
        return [element.decode() for element in array.ravel().tolist()]
    except UnicodeDecodeError:
        raise EncodingFailed(
            f"output '{name}' holds bytes that are not UTF-8. Please use the binary data format for output"
        ) from None


def _with_tokens(flat: Array) -> orjson.Fragment:
    """Floats of which some are not finite -> JSON with the tokens NaN, Infinity and -Infinity."""
    odd = flat[~np.isfinite(flat)]
    tokens = np.select([odd == np.inf, odd == -np.inf], ["Infinity", "-Infinity"], "NaN").astype("S").tolist()
    pieces = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY).split(b"null")
    text = [piece for pair in zip(pieces, [*tokens, b""], strict=True) for piece in pair]
    return orjson.Fragment(b"".join(text))
