"""A route: which target a request gets, how many requests run, and counts of both.

A number between 0 and 1 falls into one target's share. It is random, except for sticky callers and for sequences: there
it is a hash of the caller or the sequence, the same each time and on every replica of this gateway. When weights shift,
only callers between the old border and the new one change their target.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any, TypeAlias

from tensorgate.gateway.config import ANY, RouteConfig, RouteTarget, Rule
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, ModelView
from tensorgate.gateway.contract.errors import Code, GatewayError, QueueFull, WouldBeLate
from tensorgate.gateway.contract.metrics import RouteUsage
from tensorgate.gateway.contract.tensor import NOTHING, ParameterValue
from tensorgate.gateway.routing.shadow import Shadow
from tensorgate.gateway.security.access import allows

Condition: TypeAlias = Callable[[Call], bool]


class WeightedTargets:
    """Targets that requests are divided among by weight."""

    __slots__ = ("_borders", "targets")

    def __init__(self, targets: Sequence[RouteTarget]) -> None:
        self.targets = tuple(targets)
        total = sum(target.weight for target in targets)
        self._borders = [border / total for border in accumulate(target.weight for target in targets)]

    @property
    def is_split(self) -> bool:
        """Whether there are several targets."""
        return len(self.targets) > 1

    def pick(self, point: float) -> RouteTarget:
        """The target of a point from 0 up to 1."""
        for target, border in zip(self.targets, self._borders, strict=True):
            if point < border:
                return target
        return self.targets[-1]


class RouteCounts:
    """Counts of a route, kept when its configuration changes. `running` requests are not answered yet. `taken` counts
    requests by (model, version, why): chosen, matched, or fallback; `refused` those beyond `max_concurrent`.
    """

    __slots__ = ("refused", "running", "taken")

    def __init__(self) -> None:
        self.running = 0
        self.refused = 0
        self.taken: dict[tuple[str, str, str], int] = {}


class Route:
    """A public name with its targets. For the event loop, except `pick`. A route that replaces another keeps its
    `counts`. `mirror` receives copies of requests, if configured.
    """

    def __init__(self, name: str, config: RouteConfig, counts: RouteCounts | None = None) -> None:
        self.name = name
        self.config = config
        self.targets = config.targets
        self.fallback = config.fallback
        self.timeout_s = config.timeout_ms / 1000
        self.counts = counts or RouteCounts()
        self.mirror = Shadow(name, config.mirror, WeightedTargets(config.mirror.to).pick) if config.mirror else None
        self._share = WeightedTargets(config.targets)
        self._rules = [(_condition(rule), WeightedTargets(rule.to)) for rule in config.match]
        self._sticky = config.sticky
        self._by_caller = config.sticky is not None and config.sticky.caller
        self._header = (config.sticky.header or "").lower() if config.sticky else ""

    @property
    def is_counted_whole(self) -> bool:
        """Whether all its requests have to be seen in one place: for a limit of those that run, or for a mirror."""
        return self.config.max_concurrent > 0 or self.mirror is not None

    def pick(self, call: Call | None, key: str | None) -> tuple[RouteTarget, bool]:
        """The target of a request, and whether a rule decided. `key` is the sticky key if the decoded request gave it;
        else it is taken from the call's header or caller.
        """
        share, matched = self._share, False
        if call is not None:
            for holds, other in self._rules:
                if holds(call):
                    share, matched = other, True
                    break
        if not share.is_split:
            return share.targets[0], matched
        if key is None and call is not None and self._header:
            key = call.headers.get(self._header)
        if key is None and call is not None and call.caller is not None and self._by_caller:
            key = call.caller.name
        # S311: it shares traffic and guards nothing.
        return share.pick(random.random() if key is None else self._point(key)), matched  # noqa: S311

    def key_of(self, request: InferRequest) -> str | None:
        """The sticky key of a decoded request: its sequence, or the sticky parameter; None if it has neither."""
        if request.sequence is not None and request.sequence.id:
            return f"sequence {request.sequence.id}"
        if self._sticky is None or self._sticky.parameter is None:
            return None
        value: ParameterValue | None = request.parameters.get(self._sticky.parameter)
        return None if value is None else str(value)

    def may_fall_back(self, request: InferRequest, error: GatewayError) -> bool:
        """Whether another model may answer after this error. A sequence that has started stays with its model."""
        sequence = request.sequence
        return not (sequence is not None and sequence.id and not sequence.start) and self.has_fallback_for(error)

    def has_fallback_for(self, error: GatewayError) -> bool:
        """Whether what failed with this error may be asked of another model."""
        if not self.fallback:
            return False
        if isinstance(error, (QueueFull, WouldBeLate)) or error.code is Code.RESOURCE_EXHAUSTED:
            return self.config.fallback_on_overload
        return error.code is Code.UNAVAILABLE

    def enter(self) -> None:
        """Count a running request. Raises QueueFull beyond max_concurrent."""
        most = self.config.max_concurrent
        if most and self.counts.running >= most:
            self.counts.refused += 1
            raise QueueFull(self.name, most)
        self.counts.running += 1

    def leave(self) -> None:
        """Count the end of a running request."""
        self.counts.running -= 1

    def count(self, view: ModelView, why: str) -> tuple[str, str, str]:
        """Count a request that this version gets -> as what it counts."""
        handle: Any = view.handle
        key = (handle.name, str(view.version), why)
        taken = self.counts.taken
        taken[key] = taken.get(key, 0) + 1
        return key

    def add(self, key: tuple[str, str, str], requests: int) -> None:
        """Count requests that a door has sent on, by (model, version, why)."""
        self.counts.taken[key] = self.counts.taken.get(key, 0) + requests

    def take_counts(self) -> dict[tuple[str, str, str], int]:
        """What was counted since the last time, for the engine, which has the sums."""
        taken, self.counts.taken = self.counts.taken, {}
        return taken

    def listed(self) -> dict[str, Any]:
        """The route as the configuration in force has it, and what each model behind it has got: plain data."""
        used = self.usage()
        taken: dict[str, int] = {}
        for (model, version, _), requests in used.taken.items():
            key = f"{model} version {version}"
            taken[key] = taken.get(key, 0) + requests
        return {
            "name": self.name,
            "targets": [
                {"model": each.model, "version": each.version, "label": each.label, "weight": each.weight}
                for each in self.targets
            ],
            "fallback": [each.model for each in self.fallback],
            "mirrored": self.mirror is not None,
            "taken": taken,
            "refused": used.refused,
            "running": used.running,
        }

    def usage(self) -> RouteUsage:
        """What the route has counted, as values. In any thread."""
        mirror = None if self.mirror is None else self.mirror.counts()
        return RouteUsage(self.name, dict(self.counts.taken), self.counts.refused, self.counts.running, mirror)

    def _point(self, key: str) -> float:
        digest = blake2b(f"{self.name}\0{key}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64


def _condition(rule: Rule) -> Condition:
    """Compile a rule into a predicate that checks only the rule's own keys."""
    conditions: list[Condition] = []
    if rule.dialect is not None:
        dialects = _set(rule.dialect)
        conditions.append(lambda call: call.dialect in dialects)
    if rule.transport is not None:
        transport = rule.transport
        conditions.append(lambda call: call.transport == transport)
    if rule.listener is not None:
        listeners = _set(rule.listener)
        conditions.append(lambda call: not listeners.isdisjoint(call.listener))
    if rule.caller is not None:
        is_among = allows(_set(rule.caller))
        conditions.append(lambda call: is_among(call.caller))
    conditions += [_header_condition(name.lower(), _set(values)) for name, values in rule.header.items()]
    return lambda call: all(holds(call) for holds in conditions)


def _header_condition(name: str, values: frozenset[str]) -> Condition:
    if ANY in values:
        return lambda call: name in call.headers
    return lambda call: call.headers.get(name) in values


def _set(value: str | tuple[str, ...]) -> frozenset[str]:
    return frozenset((value,) if isinstance(value, str) else value)


def routes_of(configs: Mapping[str, RouteConfig], before: Mapping[str, Route] = NOTHING) -> dict[str, Route]:
    """Routes by name. Of the routes `before`, unchanged ones are kept, and changed ones hand on their counts."""
    routes: dict[str, Route] = {}
    for name, config in configs.items():
        old = before.get(name)
        if old is None:
            routes[name] = Route(name, config)
        else:
            routes[name] = old if old.config == config else Route(name, config, old.counts)
    return routes
