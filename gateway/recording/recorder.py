"""Takes calls up while they are answered: references to what is immutable, copies of what is not, and nothing else on
the event loop. LineParts are made in the thread that writes them, of parts that are the same for many calls.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from tensorgate.gateway.config.observing import RecordConfig
from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.recording.events import GRPC_BODY, OF_BODIES, EventSink, Exchanged
from tensorgate.gateway.recording.files import RecordFiles
from tensorgate.gateway.recording.record import VERSION
from tensorgate.gateway.telemetry.call_outcome import CallOutcome

CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "set-cookie"})
"""Never recorded."""
_MAX_PARTS: Final = 1024

Send = Callable[[Reply], Awaitable[None] | None]


class FlightRecorder:
    """Which calls are recorded, and where."""

    def __init__(
        self,
        config: RecordConfig,
        files: RecordFiles | None,
        further: frozenset[str] = frozenset(),
        events: EventSink | None = None,
    ) -> None:
        """`further` are headers with credentials of this configuration."""
        self._files = files
        self._events = events
        self.lines = LineParts(CREDENTIALS | further | {name.lower() for name in config.redact})
        self._share = config.share
        self._models = frozenset(config.models)
        self._max_body_bytes = config.max_body_bytes

    def counts(self) -> tuple[int, int]:
        """Calls that stand in files or were sent, and those that were dropped."""
        places = [each for each in (self._files, self._events) if each is not None]
        return sum([each.written for each in places]), sum([each.dropped for each in places])

    def close(self) -> None:
        """Write what waits, as far as that works within moments. In a thread."""
        for each in (self._files, self._events):
            if each is not None:
                each.close()

    def tap(self, outcome: CallOutcome, send: Send) -> Send:
        """What sends the replies of a call, and keeps them if the call is recorded."""
        # S311: it guards nothing.
        if self._share < 1 and random.random() >= self._share:  # noqa: S311
            return send
        recording = CallRecording(self, outcome, send)
        outcome.call.on_end(recording.end)
        return recording.send

    def keep(self, recording: CallRecording) -> None:
        """A call is over: it is recorded, if its model is."""
        if self._models and recording.model not in self._models:
            return
        if self._files is not None:
            self._files.take(recording.line, recording.nbytes)
        if self._events is not None and (exchanged := recording.exchanged()) is not None:
            self._events.take(exchanged, recording.nbytes)

    def body(self, body: Buffer | Sequence[Buffer]) -> bytes | int:
        """A body that nobody will change, or the length of one that is too long."""
        if type(body) is bytes and len(body) <= self._max_body_bytes:
            return body
        parts = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        size = sum(map(len, parts))
        return b"".join(parts) if size <= self._max_body_bytes else size


class CallRecording:
    """One call. Once it is over, nothing of it is kept but what is immutable."""

    __slots__ = (
        "_body",
        "_call",
        "_code",
        "_is_grpc",
        "_outcome",
        "_recorder",
        "_replies",
        "_send",
        "_took",
        "_version",
        "model",
        "nbytes",
    )

    def __init__(self, recorder: FlightRecorder, outcome: CallOutcome, send: Send) -> None:
        self._recorder = recorder
        self._outcome: CallOutcome | None = outcome
        self._send = send
        self._body = body = recorder.body(outcome.call.body)
        self.nbytes = len(body) if type(body) is bytes else 0
        self._is_grpc = outcome.call.transport == "grpc"  # where an error has a code and a text, and nothing else
        self._replies: list[tuple[float, Reply, bytes | int]] = []
        self.model = ""

    def send(self, reply: Reply) -> Awaitable[None] | None:
        """Keep a reply, and send it."""
        body = b"" if reply.grpc_code and self._is_grpc else self._recorder.body(reply.body)
        self._replies.append((time.perf_counter(), reply, body))
        if type(body) is bytes:
            self.nbytes += len(body)
        return self._send(reply)

    def end(self) -> None:
        """The call is over."""
        outcome: Any = self._outcome
        self._outcome = self._send = None  # type: ignore[assignment]  # no cycle: bodies are to go at once
        call = outcome.call
        view = outcome.forwarded or getattr(outcome.question, "view", None)
        self._version = 0
        if view is not None:
            self.model, self._version = view.name, view.version
        elif outcome.counted is not None:
            self.model = outcome.counted.model
        now = time.perf_counter()
        self._took = (time.time() - (now - outcome.begun), outcome.begun, now, call.deadline, time.monotonic())
        self._code = outcome.code
        self._call: tuple[Any, ...] = (
            call.dialect,
            call.transport,
            outcome.endpoint.stream,
            call.method,
            call.raw_target,
            call.listener,
            None if call.caller is None else call.caller.name,
            call.headers,
            call.request_id,
        )
        self._recorder.keep(self)

    def exchanged(self) -> Exchanged | None:
        """The bodies of an inference that succeeded; None of any other call, where one was too long to be kept, and
        where one is compressed.
        """
        _, transport, _, _, target, _, _, headers, request_id = self._call
        bodies = [body for _, _, body in self._replies]
        if not self.model or self._code is not Code.OK or int in map(type, (self._body, *bodies)):
            return None
        is_http = transport == "http"
        came, begun, ended, *_ = self._took
        sides = [_lowered(headers), *[_lowered(reply.headers) for _, reply, _ in self._replies]]
        if any(side.get("content-encoding", "identity") != "identity" for side in sides):
            return None
        kept: list[Mapping[str, str]] = [
            {name: side[name] for name in OF_BODIES if name in side} if is_http else GRPC_BODY for side in sides
        ]
        return Exchanged(
            request_id,
            self.model,
            self._version,
            came,
            came + ended - begun,
            target,
            kept[0],
            self._body,  # type: ignore[arg-type]  # no int
            list(zip(kept[1:], bodies, strict=True)),  # type: ignore[arg-type]
        )

    def line(self) -> bytes:
        """As the file has it. In any thread."""
        lines = self._recorder.lines
        *facts, headers, request_id = self._call
        came, begun, ended, deadline, now = self._took
        more = f',"request_id":{_quoted(request_id)}' if request_id else ""
        if deadline is not None:
            more += f',"deadline_s":{deadline - now + ended - begun:.6f}'
        transport = facts[1]
        replies = [
            f'{{"after_s":{at - begun:.6f}{lines.reply(reply, transport)}{_written(body)}}}'
            for at, reply, body in self._replies
        ]
        same = lines.call(headers, *facts, self.model, self._version, self._code.name)
        more += f'{_written(self._body)},"replies":[{",".join(replies)}]'
        return (f'{{"v":{VERSION},"time":{came:.6f}{same},"seconds":{ended - begun:.6f}{more}}}\n').encode()


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class LineParts:
    """The parts of lines that are the same for many calls. Never stale: all that a part says is in its key; headers
    stand for themselves, and nobody writes into them.
    """

    def __init__(self, redacted: frozenset[str]) -> None:
        self._redacted = redacted
        self._known: dict[tuple[Any, ...], tuple[str, Any]] = {}

    def call(self, headers: Mapping[str, str], *facts: Any) -> str:
        """What a call says of itself; `facts` are in the order of the names below."""
        key = (id(headers), *facts)
        known = self._known.get(key)
        if known is None:
            dialect, transport, stream, method, target, listener, caller, model, version, ended = facts
            said: dict[str, Any] = {"dialect": dialect, "transport": transport, "stream": stream, "method": method}
            said |= {"target": _clean(target), "headers": self._shown(headers), "ended": ended}
            said |= {"listener": listener[0]} if listener else {}
            said |= {"caller": _clean(caller)} if caller is not None else {}
            said |= {"model": model, "version": version} if model else {}
            known = self._keep(key, said, headers)
        return known[0]

    def reply(self, reply: Reply, transport: str) -> str:
        """What a reply says beside its body."""
        key = (id(reply.headers), transport, reply.http_status, reply.grpc_code, reply.message)
        known = self._known.get(key)
        if known is None:
            said: dict[str, Any] = {"status": reply.http_status}
            if transport == "grpc":
                said = {"code": int(reply.grpc_code), "message": _clean(reply.message)}
            elif reply.headers:
                said["headers"] = self._shown(reply.headers)
            known = self._keep(key, said, reply.headers)
        return known[0]

    def _keep(self, key: tuple[Any, ...], said: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[str, Any]:
        if len(self._known) >= _MAX_PARTS:
            self._known.clear()
        known = self._known[key] = "," + orjson.dumps(said).decode()[1:-1], headers  # whose number is the key's
        return known

    def _shown(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {_clean(name): _clean(value) for name, value in headers.items() if name.lower() not in self._redacted}


def _written(body: bytes | int) -> str:
    """A body as text, if it is UTF-8, else in Base64; of one that is too long its length."""
    if type(body) is int:
        return f',"left_out_bytes":{body}'
    if not body:
        return ""
    try:
        return f',"text":{_quoted(body.decode())}'  # type: ignore[union-attr]
    except UnicodeDecodeError:
        return f',"data":{msgspec.json.encode(body).decode()}'


def _quoted(text: str) -> str:
    return orjson.dumps(_clean(text)).decode()


def _clean(text: str) -> str:
    """Headers may have bytes that are no text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if not text.isascii() else text
