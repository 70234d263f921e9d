"""Fills the cache ahead: `tensorgate fetch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tensorgate.gateway.app import catalog, model_files
from tensorgate.gateway.config import Config, ModelConfig
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.models.loader import error_line
from tensorgate.gateway.models.model_files import ModelFiles


def fetch(config: Config, kinds: Registries, say: Callable[[str], None]) -> Iterator[str]:
    """Fetch every version that the models' version policies want -> a line for each that cannot be."""
    files = model_files(config, say)
    kinds = config.extended(kinds)
    models = catalog(config, kinds, say, files=files)
    count = 0
    try:
        names = models.names()
    except OSError as error:
        yield f"repositories: {error_line(error)}"
        return
    for name in names:
        try:
            model = models.read(name)
            count += _fetch(model, kinds, files)
        except (ValueError, OSError, ImportError) as error:
            yield f"models.{name}: {error_line(error)}"
    say(f"{config.source}: {count} version{'s' * (count != 1)} of other machines in {files.stores.cache.folder}")


def _fetch(model: ModelConfig, kinds: Registries, files: ModelFiles) -> int:
    """Fetch a model -> how many of its versions lie elsewhere."""
    kind = kinds.backends[model.backend]
    trees = files.versions(model, kind.versioned, kind.numbers(model)).trees
    for tree in trees.values():
        files.lease(model, tree).close()
    return len(trees)
