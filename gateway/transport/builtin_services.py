"""What a gRPC port answers for the house itself, whichever dialects it speaks: health and reflection.

Sources: gRPC's health checking protocol, and its server reflection protocol, whose versions v1alpha and v1 have the
same messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from tensorgate.gateway.contract.call import Caller, Reply
from tensorgate.gateway.contract.errors import Code, Unauthenticated
from tensorgate.gateway.service import Service
from tensorgate.gateway.transport.grpc_exchange import Handler, Handlers, Rpc
from tensorgate.gateway.transport.grpc_streams import MessageReader

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
WATCHED_EVERY_S: Final = 0.5


class Health:
    """Whether a model is ready, by its name; any other name, and none, stands for the server."""

    def __init__(self, service: Service, reader: MessageReader, auth: str = "") -> None:
        self._service = service
        self._auth = auth
        self._reader = reader

    def handlers(self) -> Handlers:
        return {f"/{HEALTH}/Check": Handler("unary", self._check), f"/{HEALTH}/Watch": Handler("server", self._watch)}

    async def _check(self, rpc: Rpc, body: bytes) -> None:
        caller = await _admit(self._service, rpc, self._auth, health=True)
        status = self._status(await _read(health_pb2.HealthCheckRequest, body, rpc), caller)
        await rpc.send(Reply(status))

    async def _watch(self, rpc: Rpc, body: bytes) -> None:
        """The status, and again whenever it changes, until the server stops."""
        caller = await _admit(self._service, rpc, self._auth, health=True)
        asked = await _read(health_pb2.HealthCheckRequest, body, rpc)
        told = b""
        stopped = self._reader.stopped
        while True:
            ends = stopped.is_set()
            status = self._status(asked, caller)
            if status != told:
                await rpc.write(Reply(status))
                told = status
            if ends:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), WATCHED_EVERY_S)

    def _status(self, asked: Any, caller: Caller | None) -> bytes:
        statuses = health_pb2.HealthCheckResponse
        gate = self._service.gate
        hidden = gate is not None and not gate.may(caller, asked.service)
        serves = self._service.serves("" if hidden else asked.service)
        status = statuses.SERVING if serves else statuses.NOT_SERVING
        serialized: bytes = statuses(status=status).SerializeToString()
        return serialized


class Reflection:
    """The names of the services, and the descriptors of those whose dialects have some."""

    def __init__(
        self, services: Iterable[str], descriptors: Any, reader: MessageReader, service: Service, auth: str = ""
    ) -> None:
        self._service = service
        self._auth = auth
        names = (*services, HEALTH, *REFLECTION)
        self._servicer = reflection.aio.ReflectionServicer(names, pool=_Pools(descriptors))
        self._reader = reader

    def handlers(self) -> Handlers:
        return {f"/{name}/ServerReflectionInfo": Handler("bidi", self._info) for name in REFLECTION}

    async def _info(self, rpc: Rpc, body: bytes) -> None:
        await _admit(self._service, rpc, self._auth, health=False)

        async def questions() -> AsyncIterator[Any]:
            async for body in self._reader.messages(rpc):
                yield await _read(reflection_pb2.ServerReflectionRequest, body, rpc)

        async for answer in self._servicer.ServerReflectionInfo(questions(), None):
            await rpc.write(Reply(answer.SerializeToString()))


class _Pools:
    """The dialects' descriptors, and behind them those of this module, which are in protobuf's own pool.

    Has what the reflection servicer asks of a pool. Raises KeyError.
    """

    def __init__(self, descriptors: Any) -> None:
        house = descriptor_pool.Default()
        self._pools = [house] if descriptors is None else [descriptors, house]

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802 - protobuf's name
        """Of methods, too, which protobuf's pools do not find by their names."""
        try:
            return self._ask("FindFileContainingSymbol", symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            return self._ask("FindServiceByName", service).methods_by_name[method].containing_service.file

    def __getattr__(self, name: str) -> Any:
        return partial(self._ask, name)

    def _ask(self, name: str, *args: Any) -> Any:
        for pool in self._pools[:-1]:
            with contextlib.suppress(KeyError):
                return getattr(pool, name)(*args)
        return getattr(self._pools[-1], name)(*args)


async def _admit(service: Service, rpc: Rpc, auth: str, *, health: bool) -> Caller | None:
    """Who asks. Ends the call of somebody who may not."""
    if service.gate is None:
        return None
    try:
        return service.gate.check_house(rpc.headers, rpc.peer, auth, health=health)
    except Unauthenticated as error:
        await rpc.fail(Reply(b"", grpc_code=Code.UNAUTHENTICATED, message=str(error)))


async def _read(kind: Any, body: bytes, rpc: Rpc) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError:
        text = f"not a valid {kind.DESCRIPTOR.full_name}"
        await rpc.fail(Reply(b"", grpc_code=Code.INVALID_ARGUMENT, message=text))
