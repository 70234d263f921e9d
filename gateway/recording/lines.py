"""The lines of recorded calls, made of parts that are the same for many calls."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import orjson

from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.recording.record import VERSION
from tensorgate.gateway.telemetry.call_outcome import CallOutcome

CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "set-cookie"})
"""Never recorded."""
_MAX_PARTS: Final = 1024
_LINE: Final = b'{"v":' + str(VERSION).encode() + b',"time":%.6f%b,"seconds":%.6f%b%b,"replies":[%b]}\n'
_REPLY: Final = b'{"after_s":%.6f%b%b}'
_CLOCK_LASTS_S: Final = 1.0

Kept: TypeAlias = bytes | int
"""A body, or the length of one that is too long to be kept."""
KeptReply: TypeAlias = tuple[float, Reply, Kept]
"""When a reply was sent, in seconds of time.perf_counter(); its own body does not count."""


class LineMaker:
    """Makes lines. A part is never stale: all that it says is in its key; headers stand for themselves, and nobody
    writes into them.
    """

    def __init__(self, redacted: frozenset[str] = frozenset()) -> None:
        """`redacted` are the lower-case names of headers that are left out, beside credentials."""
        self._redacted = CREDENTIALS | redacted
        self._known: dict[tuple[Any, ...], tuple[bytes, Any]] = {}
        self._set_clock_at = 0.0
        self._since_1970 = self._monotonic = 0.0

    def __call__(
        self, outcome: CallOutcome, model: str, version: int | str, body: Kept, replies: Sequence[KeptReply]
    ) -> bytes:
        """The line of a call that is over."""
        call, begun, code = outcome.call, outcome.begun, int(outcome.code)
        if begun >= self._set_clock_at:
            self._set_clock(begun)
        headers, caller, stream = call.headers, call.caller, outcome.endpoint.stream
        name = None if caller is None else caller.name
        key = id(headers), call.raw_target, code, model, version, call.dialect, stream, call.listener, name
        same = (self._known.get(key) or self._call(key, call, outcome, model, version))[0]
        more = b"" if not call.request_id else b',"request_id":' + _quoted(call.request_id)
        if call.deadline is not None:
            more += b',"deadline_s":%.6f' % (call.deadline - self._monotonic - begun)
        is_grpc = call.transport == "grpc"
        answers = [
            _REPLY % (at - begun, self._reply(reply, is_grpc), b"" if is_grpc and reply.grpc_code else _body(kept))
            for at, reply, kept in replies
        ]
        said = answers[0] if len(answers) == 1 else b",".join(answers)
        return _LINE % (self._since_1970 + begun, same, outcome.seconds, more, _body(body), said)

    def _set_clock(self, begun: float) -> None:
        now = time.perf_counter()
        self._since_1970, self._monotonic = time.time() - now, time.monotonic() - now
        self._set_clock_at = begun + _CLOCK_LASTS_S

    def _call(
        self, key: tuple[Any, ...], call: Call, outcome: CallOutcome, model: str, version: int | str
    ) -> tuple[bytes, Any]:
        """What a call says of itself."""
        said: dict[str, Any] = {"dialect": call.dialect, "transport": call.transport, "stream": outcome.endpoint.stream}
        said |= {"method": call.method, "target": _clean(call.raw_target), "headers": self._shown(call.headers)}
        said |= {"ended": Code(outcome.code).name}
        said |= {"listener": call.listener[0]} if call.listener else {}
        said |= {"caller": _clean(call.caller.name)} if call.caller is not None else {}
        said |= {"model": model, "version": version} if model else {}
        return self._keep(key, said, call.headers)

    def _reply(self, reply: Reply, is_grpc: bool) -> bytes:
        """What a reply says beside its body."""
        headers = reply.headers
        key = id(headers), is_grpc, reply.http_status, int(reply.grpc_code), reply.message
        known = self._known.get(key)
        if known is None:
            said: dict[str, Any] = {"status": reply.http_status}
            if is_grpc:
                said = {"code": int(reply.grpc_code), "message": _clean(reply.message)}
            elif headers:
                said["headers"] = self._shown(headers)
            known = self._keep(key, said, headers)
        return known[0]

    def _keep(self, key: tuple[Any, ...], said: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[bytes, Any]:
        if len(self._known) >= _MAX_PARTS:
            self._known.clear()
        known = self._known[key] = b"," + orjson.dumps(said)[1:-1], headers  # whose number is the key's
        return known

    def _shown(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {_clean(name): _clean(value) for name, value in headers.items() if name.lower() not in self._redacted}


def _body(body: Kept) -> bytes:
    """A body as text, if it is UTF-8, else in Base64; of one that is too long its length."""
    if type(body) is int:
        return b',"left_out_bytes":%d' % body
    if not body:
        return b""
    try:
        return b',"text":' + orjson.dumps(body.decode())  # type: ignore[union-attr]
    except UnicodeDecodeError:
        return b',"data":' + msgspec.json.encode(body)


def _quoted(text: str) -> bytes:
    return orjson.dumps(_clean(text))


def _clean(text: str) -> str:
    """Headers may have bytes that are no text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if not text.isascii() else text
