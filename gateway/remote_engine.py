"""The engine in another process, for a door: what it serves is known here, what it does is asked there.

See contract.engine.Engine, and local_engine for the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from tensorgate.gateway.config import Config
from tensorgate.gateway.contract.call import Call, MustRelay
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView
from tensorgate.gateway.contract.engine import DecodeAgain, Infer
from tensorgate.gateway.contract.errors import LabelNotFound, ModelNotFound
from tensorgate.gateway.contract.memory import Memory, Regions
from tensorgate.gateway.contract.metrics import EngineStatistics
from tensorgate.gateway.crossing.engine_link import EngineLink, engine_away
from tensorgate.gateway.routing.router import Router
from tensorgate.gateway.security.access import AccessRules


class RelayedRegions:
    """Memory that callers share is the engine's: a call that names some is answered there."""

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        raise MustRelay


REGIONS: Final[Regions] = RelayedRegions()


class CallerResolution:
    """The Resolve of one call where callers have rights: see contract.engine.CallResolver. Routes are the engine's."""

    __slots__ = ("_call", "_engine")

    def __init__(self, engine: RemoteEngine, call: Call) -> None:
        self._engine = engine
        self._call = call

    def __call__(self, ref: ModelRef) -> ModelView:
        engine = self._engine
        access = engine.access
        if access is None:
            return engine.resolve(ref)
        access.check_name(self._call.caller, ref)
        view = engine.resolve(ref)
        access.check(self._call.caller, ref, view)
        return view

    async def infer(
        self, request: InferRequest, decode: DecodeAgain, infer: Infer, has_replied: Callable[[], bool]
    ) -> float:
        """No view of a door has a route."""
        raise MustRelay


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
        self.access: AccessRules | None = None
        """Which caller may use what, if that is configured."""
        self.names = self._router.names
        self.models_behind = self._router.models_behind
        self.is_public = self._router.is_public

    def reroute(self, config: Config) -> None:
        """Take over another configuration's routes."""
        self._router.reroute(config.routes)

    def resolve(self, ref: ModelRef) -> ModelView:
        """Find the version that answers under a model's name. Raises MustRelay for a route's name, and for one that is
        not known here: the engine has the last word.
        """
        if not self._link.is_up:
            raise engine_away()
        try:
            view = self._router.resolve(ref)
        except (ModelNotFound, LabelNotFound):
            raise MustRelay from None
        if view.route is not None:
            raise MustRelay
        return view

    def resolver(self, call: Call) -> CallerResolution | None:
        """What resolves for this call in particular; None where `resolve` does for all calls."""
        return None if self.access is None else CallerResolution(self, call)

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
