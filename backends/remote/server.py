"""Another server as a whole: which models it has, and what the YAML would say of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from tensorgate.backends.remote.connection import ConnectionLost, NotReached, UpstreamConnection
from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.backends.remote.options import ModelServerOptions, access_of
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, Unavailable
from tensorgate.gateway.contract.upstream import Ask, Client, Clients, UpstreamModel

_WITHIN_S: Final = 2.0
"""How long a question may take."""
_MAX_BYTES: Final = 16 << 20
_MAX_VERSIONS: Final = 32
"""Each is probed by itself, so no more of a model are served in other dialects than the server's own."""


class RemoteServer:
    """See contract.upstream.ModelServer."""

    def __init__(self, options: ModelServerOptions, clients: Clients) -> None:
        make = clients(options.dialect, options.transport)
        if make is None:
            raise ValueError(f"no server is asked in {options.dialect} over {options.transport}")
        self._make = make
        self._options = options
        self._connections: list[UpstreamConnection] = []
        self._versions: dict[str, tuple[int, ...]] = {}

    @property
    def names(self) -> tuple[str, ...] | None:
        models = self._options.models
        return None if isinstance(models, str) else models

    @property
    def refresh_seconds(self) -> float:
        return self._options.refresh_seconds

    def versions(self, model: str) -> tuple[int, ...]:
        return self._versions.get(model, ())

    def entry(self, model: str) -> Mapping[str, Any]:
        told = self._options.model_dump(mode="json", exclude_unset=True, exclude={"models", "refresh_seconds"})
        if versions := self.versions(model):
            told["versions"] = versions
        return {"backend": "remote", "upstream": told}

    async def listed(self) -> tuple[str, ...] | None:
        client = self._client("")
        question = client.listing()
        found = None if question is None else client.listed(await self._ask(question))
        if found is None:
            return None
        self._versions = {name: _latest(versions) for name, versions in found.items()}
        return (*found,)

    async def has(self, model: str) -> bool:
        client = self._client(model)
        reply = await self._ask(client.probe())
        try:
            is_ready = client.is_ready(reply)
            if is_ready:
                self._versions[model] = _latest(client.available(reply))
        except GatewayError:
            return False
        return is_ready

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    def _client(self, model: str) -> Client:
        return self._make(UpstreamModel(model))

    async def _ask(self, question: Ask) -> Reply:
        """The first address that can be reached answers. Raises Unavailable."""
        if not self._connections:
            options = self._options
            made: type[GrpcConnection | HttpConnection] = (
                GrpcConnection if options.transport == "grpc" else HttpConnection
            )
            connect = partial(made, max_bytes=_MAX_BYTES, access=access_of(options))
            self._connections = [connect(address) for address in options.addresses]
        for connection in self._connections:
            try:
                return await connection.call(question, _WITHIN_S)
            except (NotReached, ConnectionLost):
                continue
        raise Unavailable("the upstream server cannot be reached", ErrorReason.UPSTREAM)


def _latest(versions: tuple[int, ...]) -> tuple[int, ...]:
    """As many as are served, ascending."""
    return tuple(sorted(versions)[-_MAX_VERSIONS:])
