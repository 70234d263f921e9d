"""What another configuration would change: `tensorgate plan` prints it, a reload carries it out.

Two configurations are compared as plain data with defaults filled in, so that writing out a default changes nothing.
Paths are compared as they are written: both stand for one file, before and after.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from tensorgate.gateway.config import Config, ConfigError, ModelConfig, Problem, RouteConfig, RouteTarget
from tensorgate.gateway.config.checks import exposed_uploads
from tensorgate.gateway.config.yaml_tree import key_path
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.models.catalog import Catalog
from tensorgate.gateway.models.loader import ModelLoader, error_line
from tensorgate.gateway.models.model_state import ModelState, StoredModel

Kind: TypeAlias = Literal["added", "removed", "reloaded", "adjusted"]

_TAKES_EFFECT: Final = frozenset(
    (
        "repositories",
        "ops",
        "routes",
        "limits",
        "admin",
        "auth",
        "rate_limits",
        "shares",
        "readiness",
        "response_cache",
        "expose_model_errors",
    )
)
"""The sections beside `models` that a running gateway takes over; `ops` for models that it loads from then on. All
others need a restart."""
_WHOLE: Final = frozenset(("shares",))
"""Of those sections, which are there or not until a restart: what they are for is made when models are loaded."""
_FIXED: Final = frozenset(
    f"limits.{key}"
    for key in (
        "max_binary_bytes",
        "max_header_bytes",
        "max_headers",
        "max_connections",
        "max_concurrent_streams",
        "timeouts",
    )
)
"""Keys of those sections that need a restart: a port reads them when it starts."""
_ADJUSTED: Final = frozenset(("versions", "labels"))
"""Keys of a model whose change keeps loaded versions that are still wanted."""
_SIGNS: Final = {"added": "+", "removed": "-", "reloaded": "~", "adjusted": "~", "changed": "~"}
_MAX_VALUE_CHARACTERS: Final = 60
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A key and its values before and after, as plain data; None also if the key is absent."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.before)} -> {_short(self.after)}"


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A model that changes. `adjusted`: only versions or labels differ, and kept versions stay loaded; `files`: its
    files differ from those that were loaded.
    """

    name: str
    kind: Kind
    differences: tuple[Difference, ...] = ()
    files: bool = False

    def lines(self) -> Iterator[str]:
        """The change as lines of text."""
        more = f" ({self.kind})" if self.kind in ("reloaded", "adjusted") else ""
        yield f"{_SIGNS[self.kind]} {self.name}{more}"
        yield from (f"    {each}" for each in self.differences)
        if self.files:
            yield "    its files have changed"


@dataclass(frozen=True, slots=True)
class RouteChange:
    """A route that changes. `shares` has each of its targets with the weight before and after, None if it is no target;
    `differences` are all other keys.
    """

    name: str
    kind: Literal["added", "removed", "changed"]
    shares: tuple[tuple[str, int | None, int | None], ...]
    differences: tuple[Difference, ...] = ()

    def lines(self) -> Iterator[str]:
        """The change as lines of text."""
        yield f"{_SIGNS[self.kind]} {self.name}"
        yield from (f"    {target}: weight {_weight(was)} -> {_weight(will)}" for target, was, will in self.shares)
        yield from (f"    {each}" for each in self.differences)


@dataclass(frozen=True, slots=True)
class Changes:
    """All that changes. `retried` are models that do not serve as they should and are loaded again, `unchanged` those
    that stay as they are; `settings` take effect at once, `restart` with the next start of the gateway.
    """

    models: tuple[ModelChange, ...] = ()
    retried: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    routes: tuple[RouteChange, ...] = ()
    settings: tuple[Difference, ...] = ()
    restart: tuple[Difference, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.models or self.retried or self.routes or self.settings or self.restart)

    def to_load(self) -> list[str]:
        """The models to load, to adjust, or to try again."""
        return [*(each.name for each in self.models if each.kind != "removed"), *self.retried]

    def required(self) -> set[str]:
        """The models whose configuration changes: a reload is incomplete if one of them fails. Those of which only
        files changed may fail.
        """
        return {each.name for each in self.models if each.kind == "added" or each.differences}

    def plain(self) -> dict[str, Any]:
        """All changes as plain data, for JSON."""
        models: dict[str, Any] = {kind: {} for kind in ("added", "removed", "reloaded", "adjusted")}
        for model in self.models:
            models[model.kind][model.name] = {"keys": _plain(model.differences), "files_changed": model.files}
        return {
            "models": models | {"retried": list(self.retried), "unchanged": list(self.unchanged)},
            "routes": {
                route.name: {
                    "change": route.kind,
                    "weights": {name: {"before": was, "after": will} for name, was, will in route.shares},
                    "keys": _plain(route.differences),
                }
                for route in self.routes
            },
            "settings": _plain(self.settings),
            "needs_restart": _plain(self.restart),
        }

    def lines(self) -> Iterator[str]:
        """All changes as lines of text."""
        if not self:
            yield "nothing changes"
            return
        yield from _section("models", [line for model in self.models for line in model.lines()])
        yield from _section("models that do not serve and are tried again", self.retried)
        yield from _section("routes", [line for route in self.routes for line in route.lines()])
        yield from _section("settings", map(str, self.settings))
        yield from _section("only after a restart", map(str, self.restart))
        if self.unchanged:
            yield f"models that stay as they are: {len(self.unchanged)}"


def changes(
    before: Config,
    after: Config,
    serving: Mapping[str, ModelConfig],
    wanted: Mapping[str, ModelConfig],
    touched: Mapping[str, bool] = NOTHING,
) -> Changes:
    """Compare two configurations; `serving` and `wanted` are all models before and after, of repositories too.

    `touched` is that of CatalogDiff.
    """
    models = tuple(_models(serving, wanted, touched))
    different = {model.name for model in models}
    same = [name for name in wanted if name not in different]
    settings: list[Difference] = []
    restart: list[Difference] = []
    for section in type(after).model_fields:
        if section not in ("models", "routes"):
            found = differences(_dump(before, section), _dump(after, section), section)
            for each in found:
                (settings if _takes_effect(each.key) else restart).append(each)
    return Changes(
        models,
        tuple(name for name in same if name in touched),
        tuple(name for name in same if name not in touched),
        tuple(_routes(before.routes, after.routes)),
        tuple(settings),
        tuple(restart),
    )


def effective(before: Config, after: Config) -> Config:
    """`after`, with the values of `before` for all keys that need a restart.

    Raises ConfigError if the combination would let anybody upload models, though neither file does.
    """
    kept = {key: getattr(before, key) for key in type(after).model_fields if key not in (*_TAKES_EFFECT, "models")}
    fixed: dict[str, dict[str, Any]] = {}
    for section, _, key in (each.partition(".") for each in _FIXED):
        fixed.setdefault(section, {})[key] = getattr(getattr(before, section), key)
    parts = {section: getattr(after, section).model_copy(update=values) for section, values in fixed.items()}
    kept |= {key: was for key in _WHOLE if (was := getattr(before, key)) is None or getattr(after, key) is None}
    both = after.model_copy(update=kept | parts)
    exposed = tuple(
        Problem(after.source, 0, 0, key_path(loc), f"{text} (with what only a restart would change)")
        for loc, text in exposed_uploads(both.plain(), type(after).uploading_dialects)
    )
    if exposed:
        raise ConfigError(exposed)
    return both


def differences(before: Any, after: Any, key: str = "") -> Iterator[Difference]:
    """The keys under which two pieces of plain data differ, as deep as mappings and lists of mappings go. Lists of
    different lengths, and all other values, differ as a whole.
    """
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            was, will = before.get(name, _ABSENT), after.get(name, _ABSENT)
            if was is _ABSENT or will is _ABSENT:
                yield Difference(_key(key, name), *(None if each is _ABSENT else each for each in (was, will)))
            else:
                yield from differences(was, will, _key(key, name))
    elif _are_tables(before, after):
        for index, (was, will) in enumerate(zip(before, after, strict=True)):
            yield from differences(was, will, f"{key}[{index}]")
    else:
        yield Difference(key, before, after)


def _models(
    serving: Mapping[str, ModelConfig], wanted: Mapping[str, ModelConfig], touched: Mapping[str, bool]
) -> Iterator[ModelChange]:
    for name in dict.fromkeys((*serving, *wanted)):
        if name not in wanted:
            yield ModelChange(name, "removed")
            continue
        if name not in serving:
            yield ModelChange(name, "added")
            continue
        files = touched.get(name, False)
        found = tuple(differences(model_data(serving[name]), model_data(wanted[name])))
        if found or files:
            adjusts = not files and all(each.key.partition(".")[0] in _ADJUSTED for each in found)
            yield ModelChange(name, "adjusted" if adjusts else "reloaded", found, files)


def model_data(config: ModelConfig) -> dict[str, Any]:
    """A model's configuration as plain data, comparable between backends."""
    return config.model_dump(mode="json")


def _routes(before: Mapping[str, RouteConfig], after: Mapping[str, RouteConfig]) -> Iterator[RouteChange]:
    for name in dict.fromkeys((*before, *after)):
        was, will = before.get(name), after.get(name)
        shares = tuple(_shares(was.targets if was else (), will.targets if will else ()))
        if was is None or will is None:
            yield RouteChange(name, "removed" if will is None else "added", shares)
        elif was != will:
            found = differences(_without_targets(was), _without_targets(will))
            moved = tuple(share for share in shares if share[1] != share[2])
            yield RouteChange(name, "changed", moved, tuple(found))


def _without_targets(route: RouteConfig) -> dict[str, Any]:
    return route.model_dump(mode="json", exclude={"targets"})


def _shares(
    before: Sequence[RouteTarget], after: Sequence[RouteTarget]
) -> Iterator[tuple[str, int | None, int | None]]:
    """(target, weight before, weight after); the weights of equal targets are added."""
    was, will = _weights(before), _weights(after)
    for title in dict.fromkeys((*was, *will)):
        yield title, was.get(title), will.get(title)


def _weights(targets: Iterable[RouteTarget]) -> dict[str, int]:
    weights: dict[str, int] = {}
    for target in targets:
        version = f" version {target.version}" if target.version is not None else ""
        title = f"{target.model}{version}{f' {target.label}' if target.label is not None else ''}"
        weights[title] = weights.get(title, 0) + target.weight
    return weights


def _takes_effect(key: str) -> bool:
    return key not in _FIXED | _WHOLE and key.partition(".")[0].partition("[")[0] in _TAKES_EFFECT


def _dump(config: Config, section: str) -> Any:
    return config.model_dump(mode="json", include={section}, warnings=False).get(section)


def _are_tables(before: Any, after: Any) -> bool:
    return (
        isinstance(before, list)
        and isinstance(after, list)
        and len(before) == len(after)
        and all(isinstance(each, Mapping) for each in (*before, *after))
    )


def _key(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _plain(found: Iterable[Difference]) -> list[dict[str, Any]]:
    return [{"key": each.key, "before": each.before, "after": each.after} for each in found]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def _weight(weight: int | None) -> str:
    return "none" if weight is None else str(weight)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield title
        yield from (f"  {line}" for line in found)


# ------------------------------------------------------------------------------------------ models of another catalog


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """How the models of another catalog differ from those that are served.

    `serving` and `wanted` are the configurations before and after. `stored` has the wanted models as they lie on disk,
    `errors` why others could not be read, and `new` those of the latter that never served. `touched` maps models to
    load again under the same configuration to whether their files have changed; else they do not serve as they should.
    `keeps_list`: the list that a caller sent in place of the old catalog stays in force, because no model differs.
    """

    serving: Mapping[str, ModelConfig] = field(default_factory=dict)
    wanted: Mapping[str, ModelConfig] = field(default_factory=dict)
    stored: Mapping[str, StoredModel] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    new: Set[str] = frozenset()
    touched: Mapping[str, bool] = field(default_factory=dict)
    keeps_list: bool = False


def catalog_diff(
    catalog: Catalog,
    own: Catalog,
    names: Iterable[str],
    states: Mapping[str, ModelState],
    loader: ModelLoader,
    parts: Callable[[ModelConfig], Iterable[str]],
) -> CatalogDiff:
    """Compare `catalog` with `own`, the one in force, for the models of these names and the parts of ensembles.

    Reads the disk: call it in a thread.
    """
    serving = {
        name: state.stored.config
        for name, state in states.items()
        if state.wanted and state.stored is not None and not state.is_new
    }
    wanted: dict[str, ModelConfig] = {}
    stored: dict[str, StoredModel] = {}
    errors: dict[str, str] = {}
    touched: dict[str, bool] = {}
    due = deque(names)
    while due:
        name = due.popleft()
        if name in wanted or name in errors:
            continue
        state = states.get(name)
        before = state.stored if state is not None and state.wanted else None
        try:
            config = catalog.read(name)
            if before is not None and before.given and _model_data(catalog, name) == _model_data(own, name):
                wanted[name] = before.config  # a caller's configuration stands until the file's is another
                continue
            wanted[name] = config
            found = stored[name] = loader.stored(config, catalog.fingerprint(name))
        except (ModelNotFound, ValueError, OSError) as error:
            errors[name] = error_line(error)
            if name in serving:
                wanted.setdefault(name, serving[name])
            continue
        due.extend(parts(config))
        if state is not None and before is not None and not state.is_new:
            if found.fingerprint != state.fingerprint:
                touched[name] = True
            elif not state.ready or found.prints != before.prints:
                touched[name] = False
    known = {name for name, state in states.items() if state.wanted and not state.is_new}
    return CatalogDiff(serving, wanted, stored, errors, errors.keys() - known, touched)


def differs(catalog: Catalog, own: Catalog) -> bool:
    """Whether any model's configuration differs between two catalogs. Raises OSError."""
    names = catalog.names()
    return set(names) != set(own.names()) or any(_model_data(catalog, name) != _model_data(own, name) for name in names)


def _model_data(catalog: Catalog, name: str) -> Any:
    try:
        return model_data(catalog.read(name))
    except (ModelNotFound, ValueError, OSError) as error:
        return error_line(error)
