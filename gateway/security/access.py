"""Which models and routes a caller may use, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from tensorgate.gateway.contract.call import Caller
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.errors import Forbidden, GatewayError, LabelNotFound, ModelNotFound
from tensorgate.gateway.contract.questions import (
    LoadModel,
    ModelConfiguration,
    ModelList,
    ModelStatistics,
    RepositoryIndex,
    ServedModels,
    ServerMetadata,
    TraceSettings,
    UnloadModel,
)

ROLE: Final = "role:"
KNOWN: Final = "*"
UNKNOWN: Final = "anonymous"
OTHERS: Final = "*"
NAMING: Final = (LoadModel, ModelConfiguration, TraceSettings, UnloadModel)
"""Questions that refer to a model by its name alone, without a ModelRef."""

Allows = Callable[[Caller | None], bool]


def allows(who: Iterable[str]) -> Allows:
    """Compile a list of names and roles into a predicate. A caller's name never matches a role."""
    entries = frozenset(who)
    names = frozenset(each for each in entries if not each.startswith(ROLE) and each not in (KNOWN, UNKNOWN))
    roles = frozenset(each.removeprefix(ROLE) for each in entries if each.startswith(ROLE))

    def is_among(caller: Caller | None) -> bool:
        if caller is None:
            return UNKNOWN in entries
        return KNOWN in entries or caller.name in names or not roles.isdisjoint(caller.roles)

    return is_among


class AccessRules:
    """Public names -> who may use them. `behind` gives the models that a route leads to, and of a model its own name.
    With `hide`, a forbidden model is reported as not found.
    """

    def __init__(
        self, allow: dict[str, tuple[str, ...]], behind: Callable[[str], Iterable[str]], *, hide: bool = False
    ) -> None:
        self._named = {name: allows(who) for name, who in allow.items() if name != OTHERS}
        self._others = allows(allow[OTHERS]) if OTHERS in allow else None
        self._behind = behind
        self._hide = hide

    def may(self, caller: Caller | None, name: str) -> bool:
        """Whether a caller may use a name. A route without an entry of its own needs access to all models behind it."""
        listed = self._named.get(name)
        if listed is not None:
            return listed(caller)
        return all(self._may(caller, model) for model in self._behind(name))

    def check_name(self, caller: Caller | None, ref: ModelRef) -> None:
        """Check a name before it is resolved, so that errors do not reveal what exists. Raises Forbidden; with `hide`,
        ModelNotFound or LabelNotFound.
        """
        name = ref.name if ref.qualified is None else ref.qualified
        if name in self._named and not self._named[name](caller):
            raise self._refusal(ref, name)

    def check(self, caller: Caller | None, ref: ModelRef, view: ModelView) -> None:
        """Check the version that a reference was resolved to. Raises as `check_name`."""
        listed = self._named.get(view.name) if view.route is not None else None
        handle: Any = view.handle
        if not (self._may(caller, handle.name) if listed is None else listed(caller)):
            raise self._refusal(ref, view.name)

    def check_question(self, caller: Caller | None, question: Any) -> None:
        """Check a question that names a model but does not resolve it. Raises as `check_name`."""
        ref = getattr(question, "ref", None)
        if ref is None:
            name = getattr(question, "model", "") or getattr(question, "name", "")
            if not isinstance(question, NAMING) or not name:
                return
            ref = ModelRef(name)
        name = ref.name if ref.qualified is None else ref.qualified
        if name and not self.may(caller, name):
            raise self._refusal(ref, name)

    def visible(self, caller: Caller | None, question: Any, answer: Any) -> Any:
        """An answer without the models that the caller may not use, if it lists models."""
        kind = type(question)
        if kind is ModelList:
            return tuple(name for name in answer if self.may(caller, name))
        if kind in (RepositoryIndex, ModelStatistics, ServedModels):
            return tuple(each for each in answer if self.may(caller, each.name))
        if kind is ServerMetadata:
            shown = dict(answer.configuration)
            for section in ("models", "routes"):
                shown[section] = {name: what for name, what in shown.get(section, {}).items() if self.may(caller, name)}
            return replace(answer, configuration=shown)
        return answer

    def _may(self, caller: Caller | None, model: str) -> bool:
        rule = self._named.get(model, self._others)
        return rule is None or rule(caller)

    def _refusal(self, ref: ModelRef, name: str) -> GatewayError:
        if not self._hide:
            return Forbidden(name)
        if ref.label is not None:
            return LabelNotFound(name, ref.label)
        return ModelNotFound(name, ref.version)
