"""The body of a request: inflated, parsed, its top level an object."""

from __future__ import annotations

import zlib
from typing import Any, Final

from adapters.json_body import OBJECT, read
from adapters.tf_serving.json_text import show
from gateway.errors import BodyTooLarge, InvalidArgument, MalformedJson
from gateway.ports import Call

_MAX_DEPTH: Final = 1000
_MAX_INFLATED_BYTES: Final = 100 << 20
_GZIP: Final = 16 + zlib.MAX_WBITS


def read_object(call: Call) -> tuple[Any, bytes]:
    """The document, an OBJECT of `json_body`, and the bytes it was read from.

    Text after the document is ignored. Raises MalformedJson, InvalidArgument, BodyTooLarge.
    """
    body = _inflated(call) if "gzip" in call.headers.get("content-encoding", "") else bytes(call.body)
    if not body:
        raise MalformedJson("The document is empty")
    root = read(body, call.max_json_depth or _MAX_DEPTH, ignore_trailing=True)
    if not isinstance(root, OBJECT):
        raise InvalidArgument(f"JSON Value: {show(root)} Is not object")
    return root, body


def _inflated(call: Call) -> bytes:
    """The body without gzip. What is broken, cut off or larger than 100 MiB counts as empty, as in the original; a
    lower limit of the gateway's answers in its own way.
    """
    limit = min(call.max_body_bytes, _MAX_INFLATED_BYTES)
    gunzip = zlib.decompressobj(_GZIP)
    try:
        body = gunzip.decompress(call.body, limit + 1)
    except zlib.error:
        return b""
    if len(body) > limit:
        if limit < _MAX_INFLATED_BYTES:
            raise BodyTooLarge(limit)
        return b""
    return body if gunzip.eof and not gunzip.unused_data else b""
