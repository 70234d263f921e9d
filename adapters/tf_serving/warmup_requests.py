"""The requests that a SavedModel was exported with, for its warm-up: PredictionLog messages in a TFRecord file.

Where one is broken, or more than MAX_RECORDS lie there, the version is not loaded, as there. Source: TensorFlow
Serving, saved_model_warmup_util.cc and prediction_log.proto; TensorFlow, record_reader.cc and crc32c.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import fields, varint
from tensorgate.adapters.tf_serving.classify_proto import decode_multi, decoder
from tensorgate.adapters.tf_serving.options import TfServingOptions
from tensorgate.adapters.tf_serving.proto_request import decode_predict
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve, WarmupRequest
from tensorgate.gateway.contract.errors import GatewayError, text_of
from tensorgate.gateway.contract.questions import InferTogether

FILE: Final = "assets.extra/tf_serving_warmup_requests"
MAX_RECORDS: Final = 1000

_HEAD_BYTES: Final = 12
"""The length of a record, and its checksum."""
_SUM_BYTES: Final = 4
_MASK: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF
_LANES: Final = 1 << 12
"""Pieces of a long record whose checksums NumPy computes side by side."""
_LOG: Final = "tensorflow.serving.PredictionLog"
_ModelSpec: Final = message("tensorflow.serving.ModelSpec")
_REQUEST: Final = 1 << 3 | 2
"""The tag of `request` in each kind of log, and of `model_spec` in the requests."""
_PREDICT_STREAMED: Final = 7
_DECODERS: Final[Mapping[int, Callable[[Call, Resolve], Any]]] = {
    2: decoder("classify"),
    3: decoder("regress"),
    4: decode_multi,
    6: decode_predict,
}
"""The field of PredictionLog -> what reads the request in it."""
_UNTOLD: Final = {5: "session_run_log", _PREDICT_STREAMED: "predict_streamed_log"}


def warmup_requests(options: TfServingOptions, folder: Path, view: ModelView) -> Iterator[WarmupRequest]:
    """The requests that lie in a version's folder, each to be run `warmup_requests` times.

    Raises ValueError for a broken file, and for a request that is not one for this model; OSError.
    """
    file = folder / FILE
    if not options.warmup_requests or not file.is_file():
        return
    for index, record in enumerate(_records(file)):
        name = f"{FILE}[{index}]"
        if index == MAX_RECORDS:
            raise ValueError(f"{FILE}: Number of warmup records exceeds the maximum ({MAX_RECORDS})")
        try:
            yield from (WarmupRequest(name, one, options.warmup_requests) for one in _requests(record, view))
        except (GatewayError, ValueError) as error:
            raise ValueError(f"{name}: {text_of(error)}") from error


def _requests(record: memoryview, view: ModelView) -> Iterator[Any]:
    """The inferences that one PredictionLog asks for; the model's name and version in it count for nothing."""

    def resolve(ref: ModelRef) -> ModelView:
        return view

    spec = _ModelSpec(name=view.name).SerializeToString()
    logs = [(tag >> 3, record[at:end]) for tag, _, at, end in fields(record, 0, len(record), _LOG)]
    kinds = [(number, log) for number, log in logs if number in _DECODERS or number in _UNTOLD]
    if not kinds:
        raise ValueError("no request in it")
    number, log = kinds[-1]
    if number in _UNTOLD:
        raise ValueError(f"Unsupported log_type for warmup: {_UNTOLD[number]}")
    parts = [log[at:end] for tag, _, at, end in fields(log, 0, len(log), _LOG) if tag == _REQUEST]
    # A request may lack its model's name there. What is said twice counts as said last.
    named = bytes([_REQUEST]) + varint(len(spec)) + spec if _DECODERS[number] is not decode_multi else b""
    call = Call(b"".join([named, *parts]), "POST", FILE, {}, "grpc", in_thread=True)
    decoded = _DECODERS[number](call, resolve)
    yield from decoded.requests if isinstance(decoded, InferTogether) else (decoded,)


# ------------------------------------------------------------------------------------------------------------ TFRecord


def _records(file: Path) -> Iterator[memoryview]:
    """The records of a TFRecord file. Raises ValueError where it is cut short, or a checksum is wrong."""
    content = memoryview(file.read_bytes())
    at = 0
    while at < len(content):
        head, size = content[at : at + _HEAD_BYTES], int.from_bytes(content[at : at + 8], "little")
        data = content[at + _HEAD_BYTES : at + _HEAD_BYTES + size]
        stop = at + _HEAD_BYTES + size + _SUM_BYTES
        if len(head) == _HEAD_BYTES and _masked(head[:8]) != int.from_bytes(head[8:], "little"):
            raise ValueError(f"{FILE}: corrupted record at {at}")
        if stop > len(content):
            raise ValueError(f"{FILE}: truncated record at {at}")
        if _masked(data) != int.from_bytes(content[stop - _SUM_BYTES : stop], "little"):
            raise ValueError(f"{FILE}: corrupted record at {at}")
        yield data
        at = stop


def _masked(data: memoryview) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & _WORD


def crc32c(data: memoryview) -> int:
    """The CRC-32C (Castagnoli) of some bytes.

    A register that starts as ones is one of zeros whose first four bytes are inverted, and zeros in front of those
    change nothing. So the bytes, filled up in front, are _LANES pieces of equal length, each with a register of its
    own, and a register passes over a whole piece of zeros by one table.
    """
    if len(data) < 4:
        register = _WORD
        for byte in data:
            register = int(_TABLE[(register ^ byte) & 0xFF]) ^ register >> 8
        return register ^ _WORD
    lanes = _LANES if len(data) >= _LANES * 8 else 1
    length = -(-len(data) // lanes)
    padded = np.zeros(lanes * length, np.uint8)
    padded[-len(data) :] = np.frombuffer(data, np.uint8)
    padded[-len(data) :][:4] ^= 0xFF
    registers = np.zeros(lanes, np.uint32)
    for column in np.ascontiguousarray(padded.reshape(lanes, length).T):
        registers = _TABLE[(registers ^ column) & 0xFF] ^ registers >> 8
    if lanes == 1:
        return int(registers[0]) ^ _WORD
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(length):
        bits = _TABLE[bits & 0xFF] ^ bits >> 8
    register = 0
    for lane in registers.tolist():
        passed = bits[(register >> np.arange(32)) & 1 == 1]
        register = int(np.bitwise_xor.reduce(passed, initial=0)) ^ lane
    return register ^ _WORD


def _table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """What a register becomes by the byte that it passes over."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_TABLE: Final = _table()
