"""Calls over HTTP, and what most of their replies are, whatever the dialect."""

from __future__ import annotations

import json
from typing import Any

from tensorgate.adapters.conformance.case import Expectation, Step, WireRequest
from tensorgate.adapters.conformance.expectations import HasHeaderStart, HasJson, HasStatus


def get(path: str, *expectations: Expectation, method: str = "GET") -> Step:
    """A question over HTTP without a body."""
    return WireRequest("http", path, method=method), expectations


def post(path: str, body: bytes | Any, *expectations: Expectation, **headers: str) -> Step:
    """A body over HTTP; what is not bytes is sent as JSON, and called so, for there are servers that read nothing else
    as JSON. Underscores of headers' names are hyphens.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if data is not body and "content_type" not in map(str.lower, headers):
        headers["Content_Type"] = "application/json"
    sent = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return WireRequest("http", path, (data,), headers=sent), expectations


def json_ok(pattern: Any) -> tuple[Expectation, ...]:
    """A success whose body is JSON."""
    return HasStatus((200,)), HasHeaderStart("content-type", "application/json"), HasJson(pattern)
