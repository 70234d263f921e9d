"""Models of other servers, under their own names: the section `upstreams`.

What a server says that it has is known when it was asked, and every few seconds again. A server that has no word for
that is asked for a model when somebody asks for it here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Final

from tensorgate.gateway.config import ModelConfig
from tensorgate.gateway.config.values import NAME
from tensorgate.gateway.contract.errors import GatewayError, ModelNotFound
from tensorgate.gateway.contract.questions import IndexEntry, LoadModel, UnloadModel
from tensorgate.gateway.contract.upstream import ModelServer
from tensorgate.gateway.models.catalog import Validate

log = logging.getLogger(__name__)

_MAX_UNKNOWN: Final = 4096
"""How many names that no server has are remembered."""
_MAX_ASKED_FOR: Final = 1024
"""How many models callers may bring here by asking for them; beyond, they have to be named in `models`."""


class ServerCatalog:
    """See catalog.Catalog. Only `refresh` and `find` ask the servers: on the event loop."""

    def __init__(self, servers: Mapping[str, ModelServer], validate: Validate, folder: Path) -> None:
        self._servers = servers
        self._validate = validate
        self._folder = folder
        self._listed: dict[str, ModelServer] = {
            name: server for server in servers.values() for name in server.names or ()
        }
        self._asked_for: dict[str, ModelServer] = {}
        self._unknown: dict[str, float] = {}
        self._finding: dict[str, asyncio.Future[bool]] = {}

    @property
    def is_open(self) -> bool:
        """Whether there may be models that nobody has named yet."""
        return any(server.names is None for server in self._servers.values())

    @property
    def refresh_seconds(self) -> float:
        """How often to refresh."""
        return min([server.refresh_seconds for server in self._servers.values()], default=60.0)

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._listed, *self._asked_for)))

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        server = self._listed.get(name) or self._asked_for.get(name)
        if server is None:
            raise ModelNotFound(name)
        if configuration is not None:
            raise ValueError("this model takes no other configuration than its own")
        return self._validate(server.entry(name), self._folder)

    def fingerprint(self, name: str) -> Hashable:
        """Changes with the versions that the server has."""
        server = self._listed.get(name) or self._asked_for.get(name)
        return () if server is None else server.versions(name)

    async def refresh(self) -> None:
        """Ask every server that serves all of its models which these are, and which versions those have that callers
        have asked for; one that cannot say so now keeps them.
        """
        for label, server in self._servers.items():
            if server.names is not None:
                continue
            try:
                found = await server.listed()
            except GatewayError as error:
                log.debug("upstream %s does not say which models it has: %s", label, error)
                continue
            if found is not None:
                kept = {name: each for name, each in self._listed.items() if each is not server}
                self._listed = {**dict.fromkeys(found, server), **kept}
                self._asked_for = {name: each for name, each in self._asked_for.items() if name not in self._listed}
        for name, server in [*self._asked_for.items()]:
            with contextlib.suppress(GatewayError):
                await server.has(name)

    async def find(self, name: str) -> bool:
        """Whether a server has a model that is not known yet; it is, from then on. Several callers wait for one answer.

        Raises Unavailable if one of them cannot be asked and no other has it.
        """
        if name in self._listed or name in self._asked_for:
            return True
        now = time.monotonic()
        if re.fullmatch(NAME, name) is None:
            return False
        if self._unknown.get(name, 0.0) > now or len(self._asked_for) >= _MAX_ASKED_FOR:
            return False
        finding = self._finding.get(name)
        if finding is None:
            finding = self._finding[name] = asyncio.ensure_future(self._find(name))
            finding.add_done_callback(lambda done: self._finding.pop(name, None))
        return await asyncio.shield(finding)

    async def _find(self, name: str) -> bool:
        away: GatewayError | None = None
        for server in self._servers.values():
            if server.names is not None:
                continue
            try:
                if await server.has(name):
                    self._asked_for[name] = server
                    return True
            except GatewayError as error:
                away = error
        if away is not None:
            raise away
        while len(self._unknown) >= _MAX_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[name] = time.monotonic() + self.refresh_seconds
        return False

    async def index(self) -> tuple[IndexEntry, ...]:
        """Every model, ready or not, of the servers that load models when callers here say so; nothing of one that
        does not say.
        """
        found: list[IndexEntry] = []
        for label, server in self._servers.items():
            if server.controlled and server.names is None:
                try:
                    found += await server.index()
                except GatewayError as error:
                    log.debug("upstream %s does not say which models it has: %s", label, error)
        return tuple(found)

    def controls(self, name: str) -> bool:
        """Whether a server loads and unloads this model, or may have one of that name, and has callers say so."""
        return any(self._controlling(name))

    async def control(self, question: LoadModel | UnloadModel) -> None:
        """Have the server of a model load or unload it, of one that is not known yet the first server that can. What it
        has then is not asked. Raises GatewayError.
        """
        failed: GatewayError | None = None
        for server in self._controlling(question.name):
            try:
                await server.control(question)
            except GatewayError as error:
                failed = failed or error
                continue
            self._unknown.pop(question.name, None)
            if isinstance(question, UnloadModel):
                self._asked_for.pop(question.name, None)
            return
        if failed is not None:
            raise failed

    def _controlling(self, name: str) -> list[ModelServer]:
        known = self._listed.get(name) or self._asked_for.get(name)
        candidates = [each for each in self._servers.values() if each.names is None] if known is None else [known]
        return [server for server in candidates if server.controlled]

    async def close(self) -> None:
        """Give back connections."""
        for server in self._servers.values():
            await server.close()
