"""Another server as a whole: which models it has, and what the YAML would say of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from tensorgate.backends.remote.connection import ConnectionLost, NotReached, UpstreamConnection
from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.backends.remote.options import ModelServerOptions, access_of
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, ModelControlOff, Unavailable
from tensorgate.gateway.contract.questions import IndexEntry, LoadModel, UnloadModel
from tensorgate.gateway.contract.upstream import Ask, Client, Clients, UpstreamModel

_WITHIN_S: Final = 2.0
"""How long a question may take."""
_MAX_BYTES: Final = 16 << 20
_UNREACHABLE: Final = "the upstream server cannot be reached"
_MAX_VERSIONS: Final = 32
"""Each is probed by itself, so no more of a model are served in other dialects than the server's own."""


class _Side:
    """The server over one transport."""

    def __init__(self, options: ModelServerOptions, clients: Clients) -> None:
        make = clients(options.dialect, options.transport)
        if make is None:
            raise ValueError(f"no server is asked in {options.dialect} over {options.transport}")
        self._make = make
        self._options = options
        self._connections: list[UpstreamConnection] = []

    def client(self, model: str) -> Client:
        return self._make(UpstreamModel(model))

    async def ask(self, question: Ask) -> Reply:
        """The first address that can be reached answers. Raises Unavailable."""
        for connection in self._connected():
            try:
                return await connection.call(question, _WITHIN_S)
            except (NotReached, ConnectionLost):
                continue
        raise Unavailable(_UNREACHABLE, ErrorReason.UPSTREAM)

    async def ask_all(self, question: Ask, seconds: float | None, check: Callable[[Reply], None]) -> None:
        """Every address answers, one after the other. Raises Unavailable, and what `check` does."""
        for connection in self._connected():
            try:
                reply = await connection.call(question, seconds)
            except (NotReached, ConnectionLost):
                raise Unavailable(_UNREACHABLE, ErrorReason.UPSTREAM) from None
            check(reply)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    def _connected(self) -> Sequence[UpstreamConnection]:
        if not self._connections:
            options = self._options
            made: type[GrpcConnection | HttpConnection] = (
                GrpcConnection if options.transport == "grpc" else HttpConnection
            )
            connect = partial(made, max_bytes=_MAX_BYTES, access=access_of(options))
            self._connections = [connect(address) for address in options.addresses]
        return self._connections


class RemoteServer:
    """See contract.upstream.ModelServer."""

    def __init__(self, options: ModelServerOptions, clients: Clients) -> None:
        self._options = options
        self._side = _Side(options, clients)
        other = options.other
        self._sides = (self._side,) if other is None else (self._side, _Side(other, clients))
        self._versions: dict[str, tuple[int, ...]] = {}

    @property
    def names(self) -> tuple[str, ...] | None:
        models = self._options.models
        return None if isinstance(models, str) else models

    @property
    def refresh_seconds(self) -> float:
        return self._options.refresh_seconds

    @property
    def controlled(self) -> bool:
        return self._options.control

    def versions(self, model: str) -> tuple[int, ...]:
        return self._versions.get(model, ())

    def entry(self, model: str) -> Mapping[str, Any]:
        told = self._options.model_dump(
            mode="json", exclude_unset=True, exclude={"models", "refresh_seconds", "control"}
        )
        if versions := self.versions(model):
            told["versions"] = versions
        return {"backend": "remote", "upstream": told}

    async def listed(self) -> tuple[str, ...] | None:
        found = await self._listing(ready_only=True)
        if found is None:
            return None
        versions: dict[str, tuple[int, ...]] = {}
        for each in found:
            if each.state not in ("", "READY"):
                continue
            number = () if each.version is None else (each.version,)
            versions[each.name] = versions.get(each.name, ()) + number
        self._versions = {name: _latest(numbers) for name, numbers in versions.items()}
        return (*versions,)

    async def index(self) -> tuple[IndexEntry, ...]:
        return await self._listing(ready_only=False) or ()

    async def _listing(self, *, ready_only: bool) -> tuple[IndexEntry, ...] | None:
        """What the server says over either transport: KServe's has no word for it over gRPC."""
        away: GatewayError | None = None
        for side in self._sides:
            client = side.client("")
            for question in client.listings(ready_only=ready_only):
                try:
                    found = client.listed(await side.ask(question))
                except Unavailable as error:
                    away = error
                    break
                if found is not None:
                    return found
        if away is not None:
            raise away
        return None

    async def has(self, model: str) -> bool:
        client = self._side.client(model)
        reply = await self._side.ask(client.probe())
        try:
            is_ready = client.is_ready(reply)
            if is_ready:
                self._versions[model] = _latest(client.available(reply))
        except GatewayError:
            return False
        return is_ready

    async def control(self, question: LoadModel | UnloadModel) -> None:
        """Every address is asked: all of them are to serve the same."""
        found = self._side.client(question.name).control(question)
        if found is None:
            raise ModelControlOff
        ask, check = found
        await self._side.ask_all(ask, self._options.timeout_ms / 1000 or None, check)
        self._versions.pop(question.name, None)

    async def close(self) -> None:
        for side in self._sides:
            await side.close()


def _latest(versions: tuple[int, ...]) -> tuple[int, ...]:
    """As many as are served, ascending."""
    return tuple(sorted(versions)[-_MAX_VERSIONS:])
