"""HTTP bodies of TensorFlow Serving's REST API, gunzipped and parsed -> the top-level object."""

from __future__ import annotations

import zlib
from typing import Any, Final

from tensorgate.adapters.inflate import inflate
from tensorgate.adapters.json.body import OBJECT
from tensorgate.adapters.tf_serving.json_document import TOO_DEEP, cut, read_document
from tensorgate.adapters.tf_serving.json_text import show
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.errors import BodyTooLarge, InvalidArgument, MalformedJson

MAX_DEPTH: Final = 1000
"""How deep a body may nest to be read whole; without a limit of the gateway's, it may nest deeper."""
_MAX_INFLATED_BYTES: Final = 100 << 20
_GZIP: Final = 16 + zlib.MAX_WBITS


def plain_body(call: Call) -> Buffer:
    """The body, inflated if need be; empty if that fails. Raises BodyTooLarge."""
    return _inflated(call) if "gzip" in call.headers.get("content-encoding", "") else call.body


def read_object(call: Call, body: bytes) -> Any:
    """The document, an OBJECT of `json_body`. Text after it is ignored. Raises MalformedJson, InvalidArgument."""
    if not body:
        raise MalformedJson("The document is empty")
    root = _read(call, body)
    if not isinstance(root, OBJECT):
        raise InvalidArgument(f"JSON Value: {show(root)} Is not object")
    return root


def _read(call: Call, body: bytes) -> Any:
    try:
        return read_document(body, call.max_json_depth or MAX_DEPTH)
    except MalformedJson as error:
        if not error.reason.startswith(TOO_DEEP) or call.max_json_depth is not None:
            raise
        found = cut(body)
        if found is None:
            raise
    text, places = found
    try:
        return read_document(text, MAX_DEPTH)
    except MalformedJson as error:
        offset = error.offset
        if offset is not None:
            offset = int(places[offset]) if offset < len(text) else len(body)
        raise MalformedJson(error.reason, offset, error.max_depth) from None


def _inflated(call: Call) -> Buffer:
    """The body without gzip. What is broken, cut off or larger than 100 MiB counts as empty, as in the original; a
    lower limit of the gateway's answers in its own way.
    """
    try:
        return inflate(call.body, _GZIP, min(call.max_body_bytes, _MAX_INFLATED_BYTES))
    except zlib.error:
        return b""
    except BodyTooLarge:
        if call.max_body_bytes < _MAX_INFLATED_BYTES:
            raise
        return b""
