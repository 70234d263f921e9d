"""What a gRPC port answers for the house itself, whichever dialects it speaks: health and reflection.

Sources: gRPC's health checking protocol, and its server reflection protocol, whose versions v1alpha and v1 have the
same messages. Both are read from the descriptors that the port is given, beside what its dialects speak.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from tensorgate.gateway.contract.call import Buffer, Caller, Reply
from tensorgate.gateway.contract.errors import Code, Unauthenticated
from tensorgate.gateway.service import Service
from tensorgate.gateway.transport.grpc_exchange import Handler, Handlers, Rpc
from tensorgate.gateway.transport.grpc_streams import MessageReader

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
WATCHED_EVERY_S: Final = 0.5


class Health:
    """Whether a model is ready, by its name; any other name, and none, stands for the server."""

    def __init__(self, service: Service, descriptors: Any, reader: MessageReader, auth: str = "") -> None:
        self._service = service
        self._auth = auth
        self._reader = reader
        self._request = _message(descriptors, "grpc.health.v1.HealthCheckRequest")
        response = _message(descriptors, "grpc.health.v1.HealthCheckResponse")
        self._serving: bytes = response(status=response.SERVING).SerializeToString()
        self._not_serving: bytes = response(status=response.NOT_SERVING).SerializeToString()

    def handlers(self) -> Handlers:
        return {f"/{HEALTH}/Check": Handler("unary", self._check), f"/{HEALTH}/Watch": Handler("server", self._watch)}

    async def _check(self, rpc: Rpc, body: Buffer) -> None:
        caller = await _admit(self._service, rpc, self._auth, health=True)
        status = self._status(await _read(self._request, body, rpc), caller)
        if (sent := rpc.send(Reply(status))) is not None:
            await sent

    async def _watch(self, rpc: Rpc, body: Buffer) -> None:
        """The status, and again whenever it changes, until the server stops."""
        caller = await _admit(self._service, rpc, self._auth, health=True)
        question = await _read(self._request, body, rpc)
        last_sent = b""
        stopped = self._reader.stopped
        while True:
            ends = stopped.is_set()
            status = self._status(question, caller)
            if status != last_sent:
                await rpc.write(Reply(status))
                last_sent = status
            if ends:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), WATCHED_EVERY_S)

    def _status(self, question: Any, caller: Caller | None) -> bytes:
        authorizer = self._service.authorizer
        hidden = authorizer is not None and not authorizer.may(caller, question.service)
        return self._serving if self._service.serves("" if hidden else question.service) else self._not_serving


class Reflection:
    """The names of the services, and the descriptors of those whose dialects have some: `pool` holds them."""

    def __init__(
        self, services: Iterable[str], pool: Any, reader: MessageReader, service: Service, auth: str = ""
    ) -> None:
        self._service = service
        self._auth = auth
        self._names = sorted((*services, HEALTH, *REFLECTION))
        self._pool = pool
        self._reader = reader

    def handlers(self) -> Handlers:
        return {f"/{name}/ServerReflectionInfo": Handler("bidi", self._info(name)) for name in REFLECTION}

    def _info(self, name: str) -> Callable[[Rpc, Buffer], Coroutine[Any, Any, None]]:
        request = _message(self._pool, name + "Request")
        response = _message(self._pool, name + "Response")

        async def info(rpc: Rpc, body: Buffer) -> None:
            await _admit(self._service, rpc, self._auth, health=False)
            async for body in self._reader.messages(rpc):
                question = await _read(request, body, rpc)
                answer = response(original_request=question, **self._answer(question))
                await rpc.write(Reply(answer.SerializeToString()))

        return info

    def _answer(self, question: Any) -> dict[str, Any]:
        """The field of the response that answers, as its keyword."""
        kind = question.WhichOneof("message_request")
        symbol: Any = getattr(question, kind) if kind else None
        try:
            if kind == "list_services":
                return {"list_services_response": {"service": [{"name": name} for name in self._names]}}
            if kind == "file_by_filename":
                return _files(self._pool.FindFileByName(symbol))
            if kind == "file_containing_symbol":
                return _files(self._file_of(symbol))
            if kind == "file_containing_extension":
                extended = self._pool.FindMessageTypeByName(symbol.containing_type)
                return _files(self._pool.FindExtensionByNumber(extended, symbol.extension_number).file)
            if kind == "all_extension_numbers_of_type":
                extended = self._pool.FindMessageTypeByName(symbol)
                numbers = sorted(extension.number for extension in self._pool.FindAllExtensions(extended))
                found = {"base_type_name": extended.full_name, "extension_number": numbers}
                return {"all_extension_numbers_response": found}
        except KeyError:
            return {"error_response": {"error_code": Code.NOT_FOUND, "error_message": "not found"}}
        return {"error_response": {"error_code": Code.INVALID_ARGUMENT, "error_message": "invalid argument"}}

    def _file_of(self, symbol: str) -> Any:
        """Of methods, too, which protobuf's pools do not find by their names. Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            return self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def _files(file: Any) -> dict[str, Any]:
    """A file, and behind it all those that it imports."""
    found: dict[str, bytes] = {}

    def add(each: Any) -> None:
        found[each.name] = each.serialized_pb
        for other in each.dependencies:
            if other.name not in found:
                add(other)

    add(file)
    return {"file_descriptor_response": {"file_descriptor_proto": [*found.values()]}}


def _message(pool: Any, full_name: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


async def _admit(service: Service, rpc: Rpc, auth: str, *, health: bool) -> Caller | None:
    """Who asks. Ends the call of somebody who may not."""
    if service.authorizer is None:
        return None
    try:
        return service.authorizer.check_builtin(rpc.headers, rpc.peer, auth, health=health)
    except Unauthenticated as error:
        await rpc.fail(Reply(b"", grpc_code=Code.UNAUTHENTICATED, message=str(error)))


async def _read(kind: Any, body: Buffer, rpc: Rpc) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError:
        text = f"not a valid {kind.DESCRIPTOR.full_name}"
        await rpc.fail(Reply(b"", grpc_code=Code.INVALID_ARGUMENT, message=text))
