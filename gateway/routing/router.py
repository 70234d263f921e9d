"""Resolves the name that a caller uses to the one version that answers.

Public names are those of models and of configured routes; `route` chooses the target of a request. A target that is
not loaded or not ready is replaced by the route's fallback, if it has one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from tensorgate.gateway.config import Config, RouteConfig, RouteTarget
from tensorgate.gateway.contract.call import Call, MustRelay
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView, MustForward, MustLoad
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.engine import DecodeAgain, Forward, Infer, ReadAnswer
from tensorgate.gateway.contract.errors import (
    DeadlineExceeded,
    GatewayError,
    LabelNotFound,
    ModelNotFound,
    Unavailable,
    Unsupported,
)
from tensorgate.gateway.contract.metrics import RouteUsage
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.routing.mirrored_call import CopiedCall
from tensorgate.gateway.routing.route import Route, routes_of
from tensorgate.gateway.security.access import AccessRules
from tensorgate.gateway.wire.eager_start import in_task

_NOT_THERE: Final = (ModelNotFound, LabelNotFound, Unavailable)
"""A target of a route cannot answer: another one may."""


class Resolution:
    """The `Resolve` of one call: it knows the caller, and keeps the route and the version it found."""

    __slots__ = ("_router", "call", "key", "ref", "route", "tried", "view", "why")

    def __init__(self, router: Router, call: Call) -> None:
        self._router = router
        self.call = call
        self.key: str | None = None
        self.ref = ModelRef("")
        self.route: Route | None = None
        self.tried: list[ModelView] = []
        self.view: ModelView | None = None
        self.why = ""

    def __call__(self, ref: ModelRef) -> ModelView:
        self.ref = ref
        access = self._router.access
        if access is not None:
            access.check_name(self.call.caller, ref)
        self._router.check_forward(self.call, ref)
        view = self._router.resolve(ref, self)
        if access is not None:
            access.check(self.call.caller, ref, view)
        if self.route is not None and self._router.passes_on(view, self.call, ref.name):
            raise MustForward(view)
        return view

    def again(self, request: InferRequest) -> Resolve | None:
        """Route a decoded request by its sticky key -> the Resolve to decode it again with; None if nothing changes."""
        route = self.route
        if route is None or (key := route.key_of(request)) is None:
            return None
        self.key = key
        before = self.view
        view = self(self.ref)
        if view is before:
            return None
        return lambda ref: view if view.handle.is_ready() else self(ref)  # it may have left meanwhile

    def instead(self, request: InferRequest, error: GatewayError) -> Resolve | None:
        """Route a request to the fallback after this error -> the Resolve to decode it again with; None if none."""
        route = self.route
        if route is None or not route.may_fall_back(request, error):
            return None
        view = self._fallback(route, request.view)
        return None if view is None else lambda ref: view

    def _fallback(self, route: Route, tried: ModelView) -> ModelView | None:
        self.tried.append(tried)
        view = self._router.fallback(route, self.ref, self.tried, self.call)
        if view is not None and (access := self._router.access) is not None:
            access.check(self.call.caller, self.ref, view)
        self.why = "fallback"
        return view

    async def forward(
        self,
        view: ModelView,
        ask: Forward,
        has_replied: Callable[[], bool],
        read: ReadAnswer | None = None,
        *,
        streams: bool = False,
    ) -> ModelView | None:
        """See CallResolver."""
        route: Route = view.route  # type: ignore[assignment]  # it was found by one of ours
        route.enter()
        try:
            while True:
                route.count(view, self.why)
                copy = None
                if route.mirror is not None and read is not None:
                    copied = CopiedCall(self.call, read, self.ref.name, streams)
                    copy = route.mirror.copy_call(copied, view, partial(self._router.target, call=self.call))
                try:
                    with copy or nullcontext():
                        if not route.timeout_s:
                            await ask(view, copy)
                        else:
                            await in_task()
                            async with asyncio.timeout(route.timeout_s):
                                await ask(view, copy)
                except TimeoutError:
                    raise DeadlineExceeded(view.name) from None
                except GatewayError as error:
                    if has_replied() or not route.has_fallback_for(error):
                        raise
                    found = self._fallback(route, view)
                    if found is None:
                        raise
                    if not self._router.passes_on(found, self.call, self.ref.name):
                        return found
                    view = found
                else:
                    return None
        finally:
            route.leave()

    async def infer(
        self, request: InferRequest, decode: DecodeAgain, infer: Infer, has_replied: Callable[[], bool]
    ) -> float:
        """See CallResolver."""
        route: Route = request.view.route  # type: ignore[assignment]  # it was found by one of ours
        again = self.again(request)
        route.enter()
        try:
            while True:
                if again is not None:
                    request = await decode(again)
                if route.timeout_s:
                    request = _with_timeout(request, route.timeout_s)
                counted = route.count(request.view, self.why)
                copy = None if route.mirror is None else route.mirror.copy(request, self._router.target)
                try:
                    if copy is None:
                        return await infer(request, again or self, None)
                    with copy:
                        copy.seconds = await infer(request, again or self, copy.on_answer)
                    return copy.seconds
                except MustRelay:  # the process that answers it counts it
                    route.add(counted, -1)
                    raise
                except GatewayError as error:
                    again = None if has_replied() else self.instead(request, error)
                    if again is None:
                        raise
        finally:
            route.leave()


class Version(Protocol):
    """A version that serves: here, or in the engine's process."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def view(self) -> ModelView: ...

    def is_ready(self) -> bool:
        """Whether requests should come now."""
        ...


class Served(Protocol):
    """What serves: see models.loaded_models.Snapshot."""

    @property
    def models(self) -> Mapping[str, Mapping[int, Version]]: ...

    @property
    def labels(self) -> Mapping[str, Mapping[str, int]]: ...

    @property
    def unloaded(self) -> frozenset[str]: ...

    @property
    def starting(self) -> frozenset[str]: ...

    @property
    def loadable(self) -> frozenset[str]: ...


class Serving(Protocol):
    """Whoever knows what serves."""

    @property
    def snapshot(self) -> Served: ...


class Router:
    """Resolves references against the repository's snapshot; its tables are rebuilt when that changes, not per request.

    `access` has the rules which caller may use what, if configured. A qualified name is name-version; `qualified` gives
    a model's further one, which stands for its highest version.
    """

    def __init__(
        self,
        config: Config,
        repository: Serving,
        default_model: str | None = None,
        qualified: Callable[[ModelView], str | None] = lambda view: None,
    ) -> None:
        self._repository = repository
        self.routes: Mapping[str, Route] = routes_of(config.routes)
        self.access: AccessRules | None = None
        self.running_elsewhere: Callable[[str], int] = lambda route: 0
        """How many requests of a route other processes have on their way."""
        self.forwards = True
        """Whether calls may go to other servers unread."""
        self._default = default_model
        self._qualified_name = qualified
        self._snapshot: Served | None = None
        self._qualified: dict[str, ModelView] = {}
        self._views: dict[tuple[str, str, int], ModelView] = {}
        self._latest: dict[str, ModelView] = {}
        """By name, what answers where nothing but a model's own name is given."""
        self._forwarding: dict[str, ModelView] = {}
        """By name, what another server answers whole calls for."""
        self._forwarded: frozenset[tuple[str, str]] = frozenset()
        """(dialect, transport) of such calls."""

    def reroute(self, configs: Mapping[str, RouteConfig]) -> None:
        """Replace the routes, from the next call on; unchanged ones are kept."""
        self.routes = routes_of(configs, self.routes)
        self._snapshot = None

    def resolver(self, call: Call) -> Resolution | None:
        """How this call finds its model; None where `resolve` does for all calls."""
        if self._snapshot is not self._repository.snapshot:
            self._index(self._repository.snapshot)
        if self.routes or self.access is not None or (call.dialect, call.transport) in self._forwarded:
            return Resolution(self, call)
        return None

    def check_forward(self, call: Call, ref: ModelRef) -> None:
        """Raise MustForward where the server behind a model answers this call by itself."""
        name = ref.name if ref.qualified is None else ref.qualified
        view = self._forwarding.get(name)
        if (
            self.forwards
            and view is not None
            and view.forwarder is not None
            and view.forwarder.takes(call, name or view.name)
        ):
            raise MustForward(view)

    def passes_on(self, view: ModelView, call: Call | None, name: str) -> bool:
        """Whether the server behind a model answers this call, which names the model so."""
        return call is not None and self.forwards and view.forwarder is not None and view.forwarder.takes(call, name)

    def forwarded(self, kind: tuple[str, str], named: Callable[[], ModelRef | None]) -> ModelRef | None:
        """See contract.engine.Engine."""
        if self._snapshot is not self._repository.snapshot:
            self._index(self._repository.snapshot)
        if not self.forwards or kind not in self._forwarded or (ref := named()) is None:
            return None
        view = self._forwarding.get(ref.name if ref.qualified is None else ref.qualified)
        return ref if view is not None and view.forwarder is not None and kind in view.forwarder.kinds else None

    def resolve(self, ref: ModelRef, resolution: Resolution | None = None) -> ModelView:
        """A reference's version, under the name that the caller used. Raises ModelNotFound, LabelNotFound."""
        if self._snapshot is not self._repository.snapshot:
            self._index(self._repository.snapshot)
        if ref.version is None and ref.label is None and (view := self._latest.get(ref.name)) is not None:
            return view
        if ref.qualified is not None:
            return self._by_qualified_name(ref.qualified, resolution)
        route = self.routes.get(ref.name)
        if route is not None:
            return self._by_route(route, ref, resolution)
        return self._public(ref.name, self._version(ref.name, ref))

    def resolve_loaded(self, ref: ModelRef) -> ModelView:
        """`resolve` for whoever cannot wait for a load. Raises ModelNotFound, LabelNotFound."""
        try:
            return self.resolve(ref)
        except MustLoad:
            raise ModelNotFound(ref.name, ref.version, known=True) from None

    def target(self, target: RouteTarget, call: Call | None = None) -> ModelView:
        """The version of a route's target, under the model's own name; one that is known only as what answers such a
        `call`, too. Raises ModelNotFound, LabelNotFound, Unsupported. For a copy nothing is loaded.
        """
        try:
            return self._version(target.model, ModelRef(target.model, target.version, target.label), call).view
        except MustLoad:
            raise ModelNotFound(target.model, target.version, known=True) from None

    def fallback(
        self, route: Route, ref: ModelRef, tried: list[ModelView], call: Call | None = None
    ) -> ModelView | None:
        """The first model of a route's fallback that is ready and has not been tried; None if there is none."""
        handles = [view.handle for view in tried]
        for target in route.fallback:
            view = self._ready(route, target, ref, call)
            if view is not None and view.handle not in handles:
                return view
        return None

    def served(self, ref: ModelRef) -> Mapping[int, Version]:
        """The versions that answer under a name, ascending, or only the one that `ref` names.

        A version of a route is that of its first target that has it, as for a caller who names the version. Raises
        ModelNotFound.
        """
        loaded = self._repository.snapshot.models
        versions: dict[int, Version] = {}
        for model in self.models_behind(ref.name):
            versions = {**loaded.get(model, {}), **versions}
        if not versions:
            raise ModelNotFound(ref.name, known=ref.name in self._repository.snapshot.labels)
        if ref.version is not None:
            if ref.version not in versions:
                raise ModelNotFound(ref.name, ref.version, serves=True)
            return {ref.version: versions[ref.version]}
        return {version: versions[version] for version in sorted(versions)}

    def models_behind(self, name: str) -> list[str]:
        """The models of a route's targets, or the model itself."""
        route = self.routes.get(name)
        return [name] if route is None else [target.model for target in route.targets]

    def views(self) -> tuple[ModelView, ...]:
        """What answers now under each public name, also what another server alone knows how to be asked."""
        if self._snapshot is not self._repository.snapshot:
            self._index(self._repository.snapshot)
        found = []
        for name in self.held_names():
            view = self._forwarding.get(name)
            if view is None:
                with suppress(GatewayError, MustLoad):  # not loaded, or a route to what cannot be asked by tensors
                    view = self.resolve(ModelRef(name))
            for target in () if view is not None or name not in self.routes else self.routes[name].targets:
                if (behind := self._forwarding.get(target.model)) is not None:
                    view = replace(behind, name=name)
            if view is not None:
                found.append(view)
        return tuple(found)

    def held_names(self) -> tuple[str, ...]:
        """The public names of models that are in memory or have to be, and of routes."""
        wanted = self._repository.snapshot.labels
        return (*wanted, *(name for name in self.routes if name not in wanted))

    def names(self) -> tuple[str, ...]:
        """Every public name, models first."""
        snapshot = self._repository.snapshot
        if not snapshot.loadable:
            return self.held_names()
        models = dict.fromkeys((*snapshot.labels, *sorted(snapshot.loadable)))
        return (*models, *(name for name in self.routes if name not in models))

    def usage(self) -> list[RouteUsage]:
        """What all routes have counted, with what other processes have on their way. In any thread."""
        return [
            replace(used, running=used.running + self.running_elsewhere(used.name))
            for used in [route.usage() for route in self.routes.values()]
        ]

    def named(self, call: Call) -> tuple[str, int | str]:
        """See contract.engine.Engine. A route has no version: it has not chosen one."""
        name = call.notes.get("model") or call.args.get("model", "")
        if name in self.routes:
            return name, ""
        if not self.is_public(name):
            view = self._qualified.get(name)
            return ("", "") if view is None else (view.name, view.version)
        versions = self._repository.snapshot.models.get(name, NOTHING)
        version = call.notes.get("version") or call.args.get("version")
        label = call.notes.get("label") or call.args.get("label")
        if label is not None:
            version = str(self._repository.snapshot.labels.get(name, NOTHING).get(label))
        if version is None:
            return name, max(versions, default="")
        return name, next((each for each in versions if str(each) == version), "")

    def is_public(self, name: str) -> bool:
        """Whether a model or route has this name."""
        snapshot = self._repository.snapshot
        return name in self.routes or name in snapshot.labels or name in snapshot.loadable

    def _index(self, snapshot: Served) -> None:
        """Rebuild the tables. The snapshot is set last: decoders in other threads take it as the sign to use them."""
        self._views = {}
        latest = {
            name: versions[max(versions)].view
            for name, versions in snapshot.models.items()
            if versions and name not in self.routes
        }
        self._latest = {name: view for name, view in latest.items() if _is_described(view)}
        self._forwarding = {name: view for name, view in latest.items() if view.forwarder is not None}
        for view in list(self._forwarding.values()):
            for alias in () if view.forwarder is None else view.forwarder.aliases:
                if alias not in latest and alias not in self.routes:
                    self._forwarding.setdefault(alias, view)
        only = next(iter(latest)) if len(latest) == 1 and not snapshot.loadable else ""
        default = latest.get(self._default or only)
        if default is not None and not _is_described(default):
            self._forwarding[""] = default  # who names no model reaches the other server's own default
        kinds = [view.forwarder.kinds for view in self._forwarding.values() if view.forwarder is not None]
        self._forwarded = frozenset().union(*kinds)
        self._qualified = {
            f"{name}-{version}": model.view
            for name, versions in snapshot.models.items()
            for version, model in versions.items()
        }
        for versions in reversed([*filter(None, snapshot.models.values())]):  # the first of two with one name keeps it
            view = versions[max(versions)].view
            name = self._qualified_name(view)
            if name is not None:
                self._qualified[name] = view
        self._snapshot = snapshot

    def _by_qualified_name(self, qualified: str, resolution: Resolution | None) -> ModelView:
        """Resolve name-version. A route of that whole name comes first, so that a client keeps its name-version while
        the model behind it changes; then a model's version, then a route's.
        """
        if qualified in self.routes:
            return self.resolve(ModelRef(qualified), resolution)
        name = qualified or self._default or self._only_model()
        view = self._qualified.get(name)
        if view is not None:
            return _described(view)
        if not qualified and self.is_public(name):
            return self.resolve(ModelRef(name), resolution)
        route, _, version = name.rpartition("-")
        if route in self._repository.snapshot.loadable and route not in self._repository.snapshot.models:
            raise MustLoad(route)
        if route in self.routes and version.isascii() and version.isdecimal() and len(version) < 20:
            return self.resolve(ModelRef(route, int(version)), resolution)
        self._check_started(route)
        raise ModelNotFound(qualified)

    def _only_model(self) -> str:
        """The name of the only model that there is; empty where there are several."""
        snapshot = self._repository.snapshot
        names = snapshot.labels.keys() | snapshot.loadable if snapshot.loadable else snapshot.labels
        return next(iter(names)) if len(names) == 1 else ""

    def _check_started(self, name: str) -> None:
        """The servers that callers know accept no connection before they have loaded their models; here ports, and the
        doors of an engine that was started again, are open meanwhile. Raises Unavailable.
        """
        if name in self._repository.snapshot.starting:
            raise Unavailable(f"model '{name}' is being loaded")

    def _version(self, name: str, ref: ModelRef, call: Call | None = None) -> Version:
        """The loaded version of a model that a reference means.

        A label is looked up before the model, as TensorFlow Serving does.
        """
        snapshot = self._repository.snapshot
        if name in snapshot.loadable and not snapshot.models.get(name):
            raise MustLoad(name)
        version = ref.version
        if ref.label is not None:
            version = snapshot.labels.get(name, NOTHING).get(ref.label)
            if version is None:
                raise LabelNotFound(ref.name, ref.label)
        versions = snapshot.models.get(name)
        if not versions:
            self._check_started(name)
            raise ModelNotFound(ref.name, version, known=name in snapshot.labels or name in snapshot.unloaded)
        if version is None:
            version = max(versions)
        if version not in versions:
            raise ModelNotFound(ref.name, version, serves=True)
        found = versions[version]
        if found.view.forwarder is not None and not self.passes_on(found.view, call, ref.name):
            _described(found.view)
        return found

    def _by_route(self, route: Route, ref: ModelRef, resolution: Resolution | None) -> ModelView:
        """A named version or label is that of the first target that has it; other requests are divided by weight."""
        call = None if resolution is None else resolution.call
        if ref.version is not None or ref.label is not None:
            view = self._public(ref.name, self._named(route, ref, call), route)
            why = "chosen"
        else:
            target, matched = route.pick(call, None if resolution is None else resolution.key)
            view, why = self._available(route, target, ref, "matched" if matched else "chosen", call)
            if resolution is not None:
                resolution.route = route
        if resolution is not None:
            resolution.view, resolution.why = view, why
        return view

    def _named(self, route: Route, ref: ModelRef, call: Call | None) -> Version:
        why: GatewayError | None = None
        for target in route.targets:
            try:
                return self._version(target.model, ref, call)
            except _NOT_THERE as error:
                why = why if isinstance(why, Unavailable) else error  # one that is being loaded may have it
        raise why or ModelNotFound(ref.name)

    def _available(
        self, route: Route, target: RouteTarget, ref: ModelRef, why: str, call: Call | None
    ) -> tuple[ModelView, str]:
        """The target, or the first ready model of the fallback. If none is ready, raises the target's own error."""
        if route.fallback:
            if (view := self._ready(route, target, ref, call)) is not None:
                return view, why
            if (view := self.fallback(route, ref, [], call)) is not None:
                return view, "fallback"
        wanted = ModelRef(ref.name, target.version, target.label)
        return self._public(ref.name, self._version(target.model, wanted, call), route), why

    def _ready(self, route: Route, target: RouteTarget, ref: ModelRef, call: Call | None) -> ModelView | None:
        try:
            model = self._version(target.model, ModelRef(ref.name, target.version, target.label), call)
        except _NOT_THERE:
            return None
        except MustLoad:  # the target itself is loaded; what stands in for it has to be there
            if target in route.fallback:
                return None
            raise
        return self._public(ref.name, model, route) if model.is_ready() else None

    def _public(self, name: str, model: Version, route: Route | None = None) -> ModelView:
        """The model's view under the name that the caller knows."""
        if name == model.name and route is None:
            return model.view
        key = (name, model.name, model.version)
        view = self._views.get(key)
        if view is None or view.route is not route:
            view = self._views[key] = replace(model.view, name=name, route=route)
        return view


def _is_described(view: ModelView) -> bool:
    return view.forwarder is None or bool(view.inputs)


def _described(view: ModelView) -> ModelView:
    """A view whose tensors are known. Raises Unsupported."""
    if not _is_described(view):
        dialects = ", ".join(sorted({dialect for dialect, _ in view.forwarder.kinds})) if view.forwarder else ""
        raise Unsupported(
            f"model '{view.name}' answers callers of {dialects} alone, as they are: the server behind it does not say "
            "its tensors, and its inputs and outputs are not declared here"
        )
    return view


def _with_timeout(request: InferRequest, seconds: float) -> InferRequest:
    """The request with a deadline so many seconds from now, unless its own is earlier."""
    until = time.monotonic() + seconds
    return replace(request, deadline=until if request.deadline is None else min(request.deadline, until))
