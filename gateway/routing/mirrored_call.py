"""The copy of a call that another server answers, unread: what the caller was answered is kept as it passes, and read
once all of it is there. The mirror's server gets the same call, and its answer is read in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from tensorgate.gateway.config import RouteTarget
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import InferResponse, ModelView
from tensorgate.gateway.contract.engine import ReadAnswer
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed, Unavailable
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.routing.shadow_samples import ModelOutcome

_OK: Final = 200
_LARGE_BYTES: Final = 32 << 10

Target: TypeAlias = Callable[[RouteTarget], ModelView]
"""Raises ModelNotFound, LabelNotFound."""


class CopyKeeper(Protocol):
    """Who keeps copies, within bounds: see shadow.Shadow."""

    def hold(self, copy: MirroredCall, nbytes: int) -> bool: ...

    def drop(self) -> None: ...

    def release(self, copy: MirroredCall) -> None: ...

    def send(self, copy: MirroredCall) -> None: ...


@dataclass(frozen=True, slots=True)
class CopiedCall:
    """What is copied: the call, what reads answers to it, and whether they may be streams. `name` is what it calls the
    model.
    """

    call: Call
    read: ReadAnswer
    name: str
    streams: bool


class MirroredCall:
    """See shadow.MirroredRequest, which it stands beside. A context manager around the original."""

    __slots__ = ("_copied", "_is_whole", "_parts", "_seconds", "_shadow", "_target", "inputs", "nbytes", "view")

    id = ""

    def __init__(self, shadow: CopyKeeper, copied: CopiedCall, view: ModelView, target: Target) -> None:
        self._shadow = shadow
        self._copied = copied
        self._target = target
        self._parts: list[bytes] = []
        self._is_whole = True
        """There was room for all that the caller was answered."""
        self._seconds = -time.perf_counter()
        self.view = view
        self.nbytes = 0
        self.inputs = None

    def take(self, piece: Buffer) -> None:
        """A piece of the caller's answer. One that is too large for what may wait is not compared."""
        if self._is_whole and self._shadow.hold(self, len(piece)):
            self._parts.append(bytes(piece))
        else:
            self._is_whole = False
            self._parts.clear()

    def __enter__(self) -> MirroredCall:
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        self._seconds += time.perf_counter()
        if error is None and self._is_whole and self._parts:
            self._shadow.send(self)
            return
        if not self._is_whole:
            self._shadow.drop()
        self._shadow.release(self)

    async def primary(self) -> ModelOutcome:
        """What the caller was answered."""
        outcome: InferResponse | GatewayError
        try:
            outcome = await self._read(self._parts)
        except GatewayError as failed:
            outcome = failed
        return ModelOutcome(self.view, outcome, self._seconds)

    async def _read(self, parts: Sequence[bytes]) -> InferResponse:
        """What is long is read in a thread. Raises ModelFailed."""
        body = b"".join(parts)
        if len(body) <= _LARGE_BYTES:
            return self._copied.read(body)
        return await asyncio.to_thread(self._copied.read, body)

    def target(self, chosen: RouteTarget) -> ModelView:
        """The version of a target. Raises ModelNotFound, LabelNotFound."""
        return self._target(chosen)

    async def answer(self, view: ModelView, seconds: float) -> InferResponse:
        """What the shadow's server says. Raises GatewayError."""
        call = replace(self._copied.call, deadline=time.monotonic() + seconds, arriving=None)
        forwarder = view.forwarder
        if forwarder is None or not forwarder.takes(call, self._copied.name):
            raise Unavailable(f"calls to '{view.name}' are not passed on as they are")
        parts = []
        async with aclosing(forwarder.forward(call, NOTHING, streams=self._copied.streams, whole=True)) as replies:
            async for reply in replies:
                body = reply.body
                data = bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)
                if reply.http_status != _OK:
                    raise Unavailable(f"'{view.name}' answered {reply.http_status}: {data[:200]!r}")
                if not self._shadow.hold(self, len(data)):
                    raise ModelFailed(f"the answer of '{view.name}' is too large to be compared")
                parts.append(data)
        return await self._read(parts)
