"""One gRPC call of one message each way: what is left to send of it, what has come, and what that means.

Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import numpy as np

from gateway.errors import Code
from gateway.ports import Reply

PREFIX_BYTES: Final = 5
"""A message's own: whether it is compressed, and its length."""
_CODES: Final[Mapping[str, Code]] = {str(code.value): code for code in Code}
_HTTP_CODES: Final[Mapping[str, Code]] = {
    "400": Code.INTERNAL,
    "401": Code.UNAUTHENTICATED,
    "403": Code.PERMISSION_DENIED,
    "404": Code.UNIMPLEMENTED,
    **dict.fromkeys(("429", "502", "503", "504"), Code.UNAVAILABLE),
}
"""What a status means that no gRPC server has sent. Source: gRPC's mapping of HTTP statuses."""


class Exchange:
    """One call. `reply` is what becomes of it; `window` is how much may be sent, `unsent` what is left of it."""

    __slots__ = ("body", "headers", "prefix", "reply", "room", "unsent", "window")

    def __init__(self, reply: asyncio.Future[Reply], window: int) -> None:
        self.reply = reply
        self.window = window
        self.unsent: deque[memoryview] = deque()
        self.headers: Mapping[str, str] | None = None
        self.prefix = b""
        self.body: Any = None
        self.room = memoryview(b"")

    def end(self, reply: Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)
            self.reply.exception()  # whoever waits may be leaving, and then nobody looks at it

    def take(self, data: memoryview, most: int) -> Reply | None:
        """Part of the answer's message, which may have at most so many bytes. -> what is wrong with it, if anything."""
        if self.body is None:
            if not self.prefix and len(data) >= PREFIX_BYTES:
                self.prefix, data = bytes(data[:PREFIX_BYTES]), data[PREFIX_BYTES:]
            else:
                lacking = PREFIX_BYTES - len(self.prefix)
                self.prefix, data = self.prefix + bytes(data[:lacking]), data[lacking:]
                if len(self.prefix) < PREFIX_BYTES:
                    return None
            size = int.from_bytes(self.prefix[1:], "big")
            if self.prefix[0]:
                return failed(Code.INTERNAL, "the answer is compressed, which was not offered")
            if size > most:
                return failed(Code.RESOURCE_EXHAUSTED, f"the answer has {size} bytes, of at most {most}")
            if len(data) == size:
                self.body = bytes(data)
                return None
            self.body = np.empty(size, np.uint8)
            self.room = memoryview(self.body)
        if len(data) > len(self.room):
            return failed(Code.INTERNAL, "more than one answer came")
        self.room[: len(data)] = data
        self.room = self.room[len(data) :]
        return None

    def outcome(self, trailers: Mapping[str, str]) -> Reply:
        """The whole answer, once the server has said its last word."""
        headers = self.headers or trailers
        status, said = headers.get(":status", ""), trailers.get("grpc-status", "")
        if not said:
            code = Code.UNKNOWN if status == "200" else _HTTP_CODES.get(status, Code.UNKNOWN)
            return failed(code, f"the answer is none of gRPC's: HTTP status {status}")
        code = _CODES.get(said, Code.UNKNOWN)
        if code is not Code.OK:
            return failed(code, unquote_to_bytes(trailers.get("grpc-message", "")).decode("utf-8", "replace"))
        if self.body is None or len(self.room):
            return failed(Code.INTERNAL, "the answer is not whole")
        return Reply(self.body if type(self.body) is bytes else memoryview(self.body))


def failed(code: Code, text: str) -> Reply:
    """What a call comes to that has no answer."""
    return Reply(b"", grpc_code=code, message=text)
