"""JSON bodies of Triton's shared memory extensions <-> regions: registered, listed and forgotten.

The two kinds, system and CUDA, have the same calls at different addresses; the questions are the same for HTTP and
gRPC. Source: Triton's shared memory extensions; the texts are its own.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
import pybase64

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.open_inference.errors import JSON_HEADERS
from tensorgate.adapters.open_inference.parameters import fields_of, text, unsigned
from tensorgate.adapters.open_inference.raw import raw_of
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import Destination
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.memory import Memory
from tensorgate.gateway.contract.questions import MemoryKind, Region, RegionStatus, RegisterRegion, UnregisterRegion

_MAX_DEPTH: Final = 100
_REQUEST: Final = "Shared memory register request"


def decode_status(call: Call, resolve: Resolve) -> RegionStatus:
    return RegionStatus(_kind(call), call.args.get("region", ""))


def decode_unregister(call: Call, resolve: Resolve) -> UnregisterRegion:
    return UnregisterRegion(_kind(call), call.args.get("region", ""))


def decode_register(call: Call, resolve: Resolve) -> RegisterRegion:
    """Raises MalformedJson, InvalidArgument."""
    document = json_body.read(bytes(call.body), call.max_json_depth or _MAX_DEPTH)
    fields = fields_of(document)
    read = _register_system if _kind(call) == "system" else _register_cuda
    return read(call.args["region"], document, fields)


def _kind(call: Call) -> MemoryKind:
    return "cuda" if call.args["kind"] == "cuda" else "system"


def _register_system(name: str, document: Any, fields: list[str]) -> RegisterRegion:
    key = text(_required(document, fields, "key"), "Unable to parse 'key'")
    offset = unsigned(document["offset"], "Unable to parse 'offset'") if "offset" in fields else 0
    size = unsigned(_required(document, fields, "byte_size"), "Unable to parse 'byte_size'")
    return RegisterRegion("system", Region(name, size, key, offset))


def _register_cuda(name: str, document: Any, fields: list[str]) -> RegisterRegion:
    handle = _required(document, fields, "raw_handle")
    if "b64" not in fields_of(handle):
        raise InvalidArgument(f"{_REQUEST} has no 'b64' field in 'raw_handle'")
    try:
        raw = pybase64.b64decode(text(handle["b64"], "Unable to parse 'b64'"), validate=True)
    except ValueError:
        raise InvalidArgument("Unable to parse 'b64': the handle is not base64") from None
    size = unsigned(_required(document, fields, "byte_size"), "Unable to parse 'byte_size'")
    device = unsigned(_required(document, fields, "device_id"), "Unable to parse 'device_id'")
    return RegisterRegion("cuda", Region(name, size, device_id=device), raw)


def _required(document: Any, fields: list[str], key: str) -> Any:
    if key not in fields:
        raise InvalidArgument(f"{_REQUEST} has no '{key}' field")
    return document[key]


def encode_status(regions: tuple[Region, ...], question: RegionStatus) -> Reply:
    return Reply(orjson.dumps([plain_region(region, question.kind) for region in regions]), 200, JSON_HEADERS)


def plain_region(region: Region, kind: MemoryKind) -> dict[str, Any]:
    if kind == "system":
        return {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
    return {"name": region.name, "device_id": region.device_id, "byte_size": region.byte_size}


def destination(memory: Memory) -> Destination:
    """Where an output goes, BYTES in their raw form."""
    return Destination(memory, lambda array: bytes(raw_of(array)))
