"""Answers of the gateway -> HTTP bodies of Open Inference V2: JSON, and binary tensors behind it.

Arrays go to orjson as they are, flat and in C order, so a tensor's digits are written without a Python object per
number. JSON has no word for NaN and Infinity, Triton writes the bare tokens, orjson `null`: where a tensor holds any,
the tokens are put in the place of orjson's nulls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
import orjson

from tensorgate.adapters._native import helper
from tensorgate.adapters.json.body import float32_text
from tensorgate.adapters.json.texts import json_strings, pieces
from tensorgate.adapters.open_inference.classification import class_texts
from tensorgate.adapters.open_inference.compression import deflated
from tensorgate.adapters.open_inference.errors import JSON_HEADERS
from tensorgate.adapters.open_inference.raw import HEADER_LENGTH, PLAIN, V2ReplyForm, raw_of
from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.canonical import (
    InferRequest,
    InferResponse,
    ModelView,
    is_long_as_bytes,
    is_long_as_text,
)
from tensorgate.gateway.contract.errors import EncodingFailed
from tensorgate.gateway.contract.questions import ModelMetadata, ModelReady, ServerDescription
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, NOTHING, Array, Tensors, TensorSpec

_native_between = helper("native_numbers", "_numbers", "write_between")

EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""The extensions that work on every server."""

_OCTETS: Final = "application/octet-stream"
_FLOAT32: Final = DTYPES["FP32"]
_MANY: Final = 1024
"""Numbers; fewer are written in their shortest form."""
_WRITTEN_AT_ONCE: Final = "fd"
_QUICK_COMPRESSED_BYTES: Final = 4 << 10
_JOINED_BYTES: Final = 64 << 10
"""Smaller bodies are cheaper to send in one piece."""


def encode_live(live: bool, question: Any) -> Reply:
    return Reply(orjson.dumps({"live": live}), 200 if live else 400, JSON_HEADERS)


def encode_ready(ready: bool, question: Any) -> Reply:
    return Reply(orjson.dumps({"live": True, "ready": ready}), 200 if ready else 400, JSON_HEADERS)


def encode_server_metadata(server: ServerDescription, question: Any) -> Reply:
    return _json({"name": server.name, "version": server.version, "extensions": extensions(server)})


def extensions(server: ServerDescription) -> list[str]:
    """The extensions that work on this server: clients choose their calls by them."""
    return [*EXTENSIONS, *(f"{kind}_shared_memory" for kind in ("system", "cuda") if kind in server.shared_memory)]


def encode_model_list(names: tuple[str, ...], question: Any) -> Reply:
    return _json({"models": names})


def encode_model_ready(ready: bool, question: ModelReady) -> Reply:
    if ready:
        return _json({"name": question.ref.name, "ready": True})
    return Reply(orjson.dumps({"error": "Model version not ready"}), 400, JSON_HEADERS)


def encode_metadata(view: ModelView, question: ModelMetadata) -> Reply:
    return _json(plain_metadata(view))


def plain_metadata(view: ModelView) -> dict[str, Any]:
    """The JSON form of inference.ModelMetadataResponse."""
    return {
        "name": view.name,
        "versions": [str(version) for version in view.versions],
        "platform": view.platform,
        "inputs": _plain_specs(view.inputs),
        "outputs": _plain_specs(view.outputs),
    }


def _plain_specs(specs: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    """A tensor of any rank is described as a vector of any length: the protocol has no word for it."""
    return [
        {"name": spec.name, "datatype": spec.datatype, "shape": (-1,) if spec.shape is None else spec.shape}
        for spec in specs.values()
    ]


def encode_done(answer: None, question: Any) -> Reply:
    return Reply(b"", 200, JSON_HEADERS)


def _json(document: Mapping[str, Any]) -> Reply:
    return Reply(orjson.dumps(document), 200, JSON_HEADERS)


# --------------------------------------------------------------------------------------------------------------- infer


def encode_infer(answer: InferResponse, request: InferRequest) -> Reply:
    """Host arrays -> the response: JSON, and behind it the outputs that were asked for as binary, without a copy. Of
    those that went into the caller's memory, name, datatype and shape.

    What does not change from answer to answer is kept as text, so that little is left to write but the numbers.
    Raises EncodingFailed for a tensor that JSON cannot carry.
    """
    wire: V2ReplyForm = request.wire or PLAIN
    view = request.view
    if not (request.id or answer.parameters or answer.classes or request.into or wire.binary or wire.coding):
        text = _lone_output(view, answer.outputs)
        if text is not None:
            return Reply(text, 200, JSON_HEADERS)
    head = [_opening(view.name, view.version, request.id) if request.id else _usual_opening(view.name, view.version)]
    if answer.parameters:
        head += b'"parameters":', dumps(dict(answer.parameters)), b","
    tail: list[Buffer] = []
    nbytes = 0
    before = b'"outputs":['
    outputs = with_classes(answer, request) if answer.classes else answer.outputs.items()
    into = request.into or NOTHING
    for name, array in outputs:
        head += before, _output_opening(name, DATATYPES[array.dtype], array.shape)
        if name in into:
            head[-1] = head[-1][:-1] + b"}"
        elif name in wire.binary:
            head += b'"parameters":{"binary_data_size":', str(_append(tail, array)).encode(), b"}}"
        else:
            head += b'"data":', *json_text(name, array), b"}"
        nbytes += array.nbytes
        before = b","
    head.append(b"]}" if outputs else b'"outputs":[]}')
    if not tail and not wire.coding:
        return Reply(head if not into and nbytes > _JOINED_BYTES else b"".join(head), 200, JSON_HEADERS)
    return _binary_or_compressed(b"".join(head), tail, wire)


def _lone_output(view: ModelView, outputs: Tensors) -> bytes | None:
    """The response with one small output of floats, by the compiled helper; None where it has to be written piece by
    piece.
    """
    if _native_between is None or len(outputs) != 1:
        return None
    [(name, array)] = outputs.items()
    kind = array.dtype.char
    if kind not in _WRITTEN_AT_ONCE or array.size >= _MANY:
        return None
    before = _lone_opening(view.name, view.version, name, array.dtype, array.shape)
    return cast("bytes | None", _native_between(before, array.ravel(), b"}]}", kind))


def is_long(answer: InferResponse, request: InferRequest) -> bool:
    """Whether a reply is much work: numbers as text are, and so is all that is compressed, but not what goes out as
    binary.
    """
    wire: V2ReplyForm = request.wire or PLAIN
    if wire.coding and sum([array.nbytes for array in answer.outputs.values()]) > _QUICK_COMPRESSED_BYTES:
        return True
    if answer.outputs.keys() <= wire.binary:
        return is_long_as_bytes(answer, request)
    return is_long_as_text(answer, request)


def with_classes(answer: InferResponse, request: InferRequest) -> Collection[tuple[str, Array]]:
    """The outputs of an answer with classes as they leave, on either transport, in the model's order: host arrays by
    name, the best classes of an output as a BYTES array of their texts.
    """
    return [
        (name, class_texts(answer.classes[name], spec.labels) if name in answer.classes else answer.outputs[name])
        for name, spec in request.view.outputs.items()
        if name in answer.classes or name in answer.outputs
    ]


def _binary_or_compressed(head: bytes, tail: list[Buffer], wire: V2ReplyForm) -> Reply:
    headers = {"Content-Type": _OCTETS, HEADER_LENGTH: str(len(head))} if tail else dict(JSON_HEADERS)
    body = [head, *tail]
    if wire.coding:
        headers["Content-Encoding"] = wire.coding
        body = deflated(body, wire.coding)
    return Reply(body, 200, headers)


def _append(tail: list[Buffer], array: Array) -> int:
    """Put a tensor's raw data at the end of the tail; returns its bytes."""
    data = raw_of(array)
    if len(data):
        tail.append(data)
    return len(data)


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=256)
def _usual_opening(model: str, version: int) -> bytes:
    return _opening(model, version, "")


def _opening(model: str, version: int, request_id: str) -> bytes:
    """{"id":"42","model_name":"m","model_version":"1", without the id if it is empty."""
    document = {"id": request_id} if request_id else {}
    return dumps({**document, "model_name": model, "model_version": str(version)})[:-1] + b","


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=1024)
def _output_opening(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """{"name":"y","datatype":"FP32","shape":[1,16],"""
    return dumps({"name": name, "datatype": datatype, "shape": shape})[:-1] + b","


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=1024)
def _lone_opening(model: str, version: int, name: str, dtype: Any, shape: tuple[int, ...]) -> bytes:
    """{"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,16],"data":"""
    opening = _opening(model, version, "") + b'"outputs":['
    return opening + _output_opening(name, DATATYPES[dtype], shape) + b'"data":'


def dumps(value: Any) -> bytes:
    """Anything of ours as JSON. Raises EncodingFailed."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise EncodingFailed(f"the response cannot be written as JSON: {error}") from None


def json_text(name: str, array: Array) -> list[bytes]:
    """A tensor's elements in row-major order as a flat JSON array, in parts. Raises EncodingFailed."""
    dtype = array.dtype
    if dtype == BYTES:
        return _strings(name, array)
    if dtype.itemsize == 2 and dtype.kind not in "iu":
        raise EncodingFailed(
            f"sending {DATATYPES[dtype]} data via JSON is not supported. Please use the binary data format for output"
        )
    flat = array.ravel()
    if dtype == _FLOAT32 and flat.size >= _MANY:
        text = float32_text(flat)
        if text is not None:
            return [text]
    text = dumps(flat)
    return [_with_tokens(flat, text) if dtype.kind == "f" and b"n" in text else text]


def _strings(name: str, array: Array) -> list[bytes]:
    parts = json_strings(array, b",", upper=False, utf8=True) or _with_orjson(array)
    if parts is None:
        raise EncodingFailed(
            f"output '{name}' holds bytes that are not UTF-8. Please use the binary data format for output"
        )
    return [b"[", *parts, b"]"]


def _with_orjson(array: Array) -> list[bytes] | None:
    """Strings without the brackets around them, in parts; None where one is not UTF-8."""
    parts: list[bytes] = []
    try:
        for texts in pieces(array):
            parts += b"," if parts else b"", orjson.dumps([text.decode() for text in texts])[1:-1]
    except UnicodeDecodeError:
        return None
    return parts


def _with_tokens(flat: Array, text: bytes) -> bytes:
    """Floats of which some are not finite, and their JSON with null in those places -> with the tokens NaN, Infinity
    and -Infinity.
    """
    odd = flat[~np.isfinite(flat)]
    tokens = np.select([odd == np.inf, odd == -np.inf], ["Infinity", "-Infinity"], "NaN").astype("S").tolist()
    return b"".join([part for pair in zip(text.split(b"null"), [*tokens, b""], strict=True) for part in pair])
