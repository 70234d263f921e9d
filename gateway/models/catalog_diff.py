"""How the models of another catalog would differ from those that are served: what a reload of the configuration asks
before it does anything. Reads the disk: call it in a thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from tensorgate.gateway.config import ModelConfig
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.models.catalog import Catalog
from tensorgate.gateway.models.loader import Loader, told
from tensorgate.gateway.models.model_state import ModelState, Stored


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """`serving` and `wanted`: the models as they are and as they are to be. `stored` is what lies on disk of those that
    could be read, `errors` says why the others could not; `new` are those of them that never served. `touched` are
    models that differ though their configuration does not: whether because their files have changed. `keeps_list`:
    what a caller listed in place of the old catalog stays, for no model is another.
    """

    serving: Mapping[str, ModelConfig] = field(default_factory=dict)
    wanted: Mapping[str, ModelConfig] = field(default_factory=dict)
    stored: Mapping[str, Stored] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    new: Set[str] = frozenset()
    touched: Mapping[str, bool] = field(default_factory=dict)
    keeps_list: bool = False


def catalog_diff(
    catalog: Catalog,
    own: Catalog,
    names: Iterable[str],
    records: Mapping[str, ModelState],
    loader: Loader,
    parts: Callable[[ModelConfig], Iterable[str]],
) -> CatalogDiff:
    """Of a catalog in place of our `own`, the models of these names and what they are composed of."""
    serving = {
        name: record.stored.config
        for name, record in records.items()
        if record.wanted and record.stored is not None and not record.late
    }
    wanted: dict[str, ModelConfig] = {}
    stored: dict[str, Stored] = {}
    errors: dict[str, str] = {}
    touched: dict[str, bool] = {}
    due = deque(names)
    while due:
        name = due.popleft()
        if name in wanted or name in errors:
            continue
        record = records.get(name)
        before = record.stored if record is not None and record.wanted else None
        try:
            config = catalog.read(name)
            if before is not None and before.given and _data(catalog, name) == _data(own, name):
                wanted[name] = before.config  # a caller's configuration stands until the file's is another
                continue
            wanted[name] = config
            found = stored[name] = loader.stored(config, catalog.fingerprint(name))
        except (ModelNotFound, ValueError, OSError) as error:
            errors[name] = told(error)
            if name in serving:
                wanted.setdefault(name, serving[name])
            continue
        due.extend(parts(config))
        if record is not None and before is not None and not record.late:
            if found.fingerprint != record.seen:
                touched[name] = True
            elif not record.ready or (found.prints, found.around) != (before.prints, before.around):
                touched[name] = False
    known = {name for name, record in records.items() if record.wanted and not record.late}
    return CatalogDiff(serving, wanted, stored, errors, errors.keys() - known, touched)


def differs(catalog: Catalog, own: Catalog) -> bool:
    """Whether two catalogs say different things of any model. Raises OSError."""
    names = catalog.names()
    return set(names) != set(own.names()) or any(_data(catalog, name) != _data(own, name) for name in names)


def _data(catalog: Catalog, name: str) -> Any:
    try:
        return catalog.read(name).model_dump(mode="json")
    except (ModelNotFound, ValueError, OSError) as error:
        return told(error)
