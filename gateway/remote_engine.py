"""The engine in another process, for a door: what it serves is known here, what it does is asked there.

See contract.engine.Engine, and local_engine for the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from tensorgate.gateway.config import Config
from tensorgate.gateway.contract.call import Call, MustRelay
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.errors import LabelNotFound, ModelNotFound
from tensorgate.gateway.contract.memory import Memory, Regions
from tensorgate.gateway.contract.metrics import EngineStatistics
from tensorgate.gateway.crossing.engine_link import EngineLink, engine_away
from tensorgate.gateway.routing.route import Route
from tensorgate.gateway.routing.router import Resolution, Router
from tensorgate.gateway.security.access import AccessRules


class RelayedRegions:
    """Memory that callers share is the engine's: a call that names some is answered there."""

    in_use = False

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        raise MustRelay


REGIONS: Final[Regions] = RelayedRegions()


class DoorResolution(Resolution):
    """The Resolve of one call where callers have rights, or names are routes: see contract.engine.CallResolver.

    A door follows routes by itself, but for those that count in one place for all doors, by a mirror or a limit.
    """

    __slots__ = ("_engine",)

    def __init__(self, engine: RemoteEngine, router: Router, call: Call) -> None:
        super().__init__(router, call)
        self._engine = engine

    def __call__(self, ref: ModelRef) -> ModelView:
        if not self._engine.is_complete():
            raise engine_away()
        try:
            view = super().__call__(ref)
        except (ModelNotFound, LabelNotFound):
            if not _is_text(ref):
                raise
            raise MustRelay from None
        if view.route is not None and self._engine.routes[view.route.name].is_counted_whole:
            raise MustRelay
        return view


class RemoteEngine:
    """See contract.engine.Engine."""

    regions = REGIONS

    def __init__(
        self,
        config: Config,
        link: EngineLink,
        default_model: str | None,
        qualified: Callable[[ModelView], str | None],
    ) -> None:
        self._link = link
        self._router = Router(config, link, default_model, qualified)
        self.names = self._router.names
        self.models_behind = self._router.models_behind
        self.is_public = self._router.is_public
        self.named = self._router.named

    @property
    def routes(self) -> Mapping[str, Route]:
        """Routes by name, with what they have counted here."""
        return self._router.routes

    def take_over(self, config: Config, access: AccessRules | None) -> None:
        """Follow another configuration's routes; `access` says which caller may use what, None: all everything."""
        self._router.reroute(config.routes)
        self._router.access = access

    def resolve(self, ref: ModelRef) -> ModelView:
        """Find the version that answers under a name. Raises MustRelay for one that is not known here: the engine has
        the last word. Raises Unavailable where there is no engine.
        """
        if not self._link.is_up:
            raise engine_away()
        try:
            return self._router.resolve(ref)
        except (ModelNotFound, LabelNotFound):
            if not _is_text(ref):
                raise
            raise MustRelay from None

    def resolver(self, call: Call) -> DoorResolution | None:
        """What resolves for this call in particular; None where `resolve` does for all calls."""
        return None if self._router.resolver(call) is None else DoorResolution(self, self._router, call)

    @property
    def discovers(self) -> bool:
        """The engine looks for models itself."""
        return False

    async def discover(self, name: str) -> bool:
        """Nothing is looked for here."""
        return False

    async def demand(self, model: str, deadline: float | None) -> None:
        """The engine loads models itself: no resolve raises MustLoad here."""

    def is_loadable(self, model: str) -> bool:
        """The engine knows."""
        return False

    async def described(self, model: str) -> None:
        """The engine knows."""

    def check_forward(self, call: Call, ref: ModelRef) -> None:
        """Such questions are relayed in any case."""

    def forwarded(self, kind: tuple[str, str], named: Callable[[], ModelRef | None]) -> None:
        """Nothing is sent on from here before all of it goes to the engine."""

    def view_of(self, name: str, model: str, version: int) -> ModelView | None:
        """The version of a model that was asked under a public name; None where it is not known here."""
        versions = self._link.snapshot.models.get(model)
        served = None if versions is None else versions.get(version)
        if served is None:
            return None
        return served.view if name == model else replace(served.view, name=name, route=self._router.routes.get(name))

    def ask(self, question: Any) -> NoReturn:
        """Questions are relayed with the calls that ask them."""
        raise MustRelay

    def is_complete(self) -> bool:
        """Whether the engine is there; whether it is complete, it says itself."""
        return self._link.is_up

    def settle(self) -> None:
        """The engine counts."""

    def statistics(self) -> EngineStatistics:
        """None: the engine's own are in its process."""
        return EngineStatistics()


def _is_text(ref: ModelRef) -> bool:
    """Whether a model can be called so: bytes of an address may be no UTF-8, and nothing else crosses."""
    try:
        f"{ref.name}{ref.label or ''}{ref.qualified or ''}".encode()
    except UnicodeEncodeError:
        return False
    return True
