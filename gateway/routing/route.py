"""One route while it works: which target a request gets, how many are on their way, and what became of them.

Requests are shared out by a number between 0 and 1 that falls into one target's share. Mostly it is random; for a
caller who is to stay with its target, and for a sequence, it is a hash of who that is, so that it is the same each
time, on every replica of this gateway. When shares are shifted, the callers between the old border and the new one
change, and nobody else.
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
from tensorgate.gateway.contract.errors import Code, GatewayError, QueueFull
from tensorgate.gateway.contract.tensor import NOTHING, ParameterValue
from tensorgate.gateway.routing.shadow import Shadow
from tensorgate.gateway.security.access import allows

Condition: TypeAlias = Callable[[Call], bool]


class Share:
    """Targets that share requests by weight."""

    __slots__ = ("_borders", "targets")

    def __init__(self, targets: Sequence[RouteTarget]) -> None:
        self.targets = tuple(targets)
        total = sum(target.weight for target in targets)
        self._borders = [border / total for border in accumulate(target.weight for target in targets)]

    @property
    def is_split(self) -> bool:
        """Whether there is a choice."""
        return len(self.targets) > 1

    def pick(self, place: float) -> RouteTarget:
        """The target whose share a place from 0 up to 1 falls into."""
        for target, border in zip(self.targets, self._borders, strict=True):
            if place < border:
                return target
        return self.targets[-1]


class Counts:
    """What a name's routes count, one after the other. `running` are requests on their way. `taken` counts them by
    (model, version, why): chosen, matched, or fallback; `refused` are those beyond `max_concurrent`.
    """

    __slots__ = ("refused", "running", "taken")

    def __init__(self) -> None:
        self.running = 0
        self.refused = 0
        self.taken: dict[tuple[str, str, str], int] = {}


class Route:
    """A public name with its targets. For the event loop, but for `pick`. One that takes another's place goes on with
    its `counts`. `mirror` is what copies go to, if any do.
    """

    def __init__(self, name: str, config: RouteConfig, counts: Counts | None = None) -> None:
        self.name = name
        self.config = config
        self.targets = config.targets
        self.fallback = config.fallback
        self.timeout_s = config.timeout_ms / 1000
        self.counts = counts or Counts()
        self.mirror = Shadow(name, config.mirror, Share(config.mirror.to).pick) if config.mirror else None
        self._share = Share(config.targets)
        self._rules = [(_condition(rule), Share(rule.to)) for rule in config.match]
        self._sticky = config.sticky
        self._by_caller = config.sticky is not None and config.sticky.caller
        self._header = (config.sticky.header or "").lower() if config.sticky else ""

    def pick(self, call: Call | None, key: str | None) -> tuple[RouteTarget, bool]:
        """The target of a request, and whether a rule decided. `key` is what it is to be known by, if that is known
        already; without a call, nothing is known of the caller.
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
        return share.pick(random.random() if key is None else self._place(key)), matched  # noqa: S311

    def key_of(self, request: InferRequest) -> str | None:
        """What a request that has been read is to be known by, where that is not its caller's header."""
        if request.sequence is not None:
            return f"sequence {request.sequence.id}"
        if self._sticky is None or self._sticky.parameter is None:
            return None
        value: ParameterValue | None = request.parameters.get(self._sticky.parameter)
        return None if value is None else str(value)

    def may_fall_back(self, request: InferRequest, error: GatewayError) -> bool:
        """Whether another model may answer in place of one that gave this error. A sequence that has begun stays."""
        if not self.fallback or (request.sequence is not None and not request.sequence.start):
            return False
        if isinstance(error, QueueFull) or error.code is Code.RESOURCE_EXHAUSTED:
            return self.config.fallback_on_overload
        return error.code is Code.UNAVAILABLE

    def enter(self) -> None:
        """A request is on its way. Raises QueueFull."""
        most = self.config.max_concurrent
        if most and self.counts.running >= most:
            self.counts.refused += 1
            raise QueueFull(self.name, most)
        self.counts.running += 1

    def leave(self) -> None:
        """It has been answered."""
        self.counts.running -= 1

    def count(self, view: ModelView, why: str) -> None:
        """A request goes to this version."""
        handle: Any = view.handle
        key = (handle.name, str(view.version), why)
        taken = self.counts.taken
        taken[key] = taken.get(key, 0) + 1

    def _place(self, key: str) -> float:
        digest = blake2b(f"{self.name}\0{key}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64


def _condition(rule: Rule) -> Condition:
    """A rule as a function: what it does not ask about is not looked at."""
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
    """By name. Of those that are there `before`, the ones that do not change stay, and the others go on counting."""
    routes: dict[str, Route] = {}
    for name, config in configs.items():
        old = before.get(name)
        if old is None:
            routes[name] = Route(name, config)
        else:
            routes[name] = old if old.config == config else Route(name, config, old.counts)
    return routes
