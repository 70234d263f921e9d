"""Where the configurations of models come from: the YAML file, and repositories, folders with a folder per model.

A catalog tells which models exist now and how each is configured; which of them to load is decided in `repository`.
Everything here reads the disk: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tensorgate.gateway.config import Config, ModelConfig, read_plain
from tensorgate.gateway.config.verification import VerifyConfig
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.models.model_files import ModelFiles
from tensorgate.gateway.models.model_folder import FILE, tree_fingerprint

ReadFolder: TypeAlias = Callable[[Path, str | None, str], Mapping[str, Any]]
"""(a model's folder, the text of a configuration that replaces the folder's own, the model's name) -> the model's plain
YAML form. Raises ValueError or OSError."""
Translate: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""(text of a configuration, the plain YAML form of a model) -> that form, overridden by the text. Raises ValueError."""
Validate: TypeAlias = Callable[[Mapping[str, Any], Path], ModelConfig]
"""(plain YAML form, the folder that its paths start from) -> configuration. Raises ValueError."""


class Catalog(Protocol):
    """A source of models."""

    def names(self) -> tuple[str, ...]:
        """All models that exist now. Raises OSError if the disk cannot be read."""
        ...

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        """A model's configuration. The text `configuration` replaces its own, `folder` the one where it lies.

        Raises ModelNotFound, or ValueError or OSError with a text for people.
        """
        ...

    def fingerprint(self, name: str) -> Hashable:
        """Changes whenever a file of the model does. Looks at names, sizes and times, not into files."""
        ...


class YamlCatalog:
    """The models of the configuration file, as it was read; the models' own files may change."""

    def __init__(
        self,
        config: Config,
        translate: Translate | None = None,
        validate: Validate | None = None,
        files: ModelFiles | None = None,
    ) -> None:
        self._models = config.models
        self._folder = config.source.parent
        self._translate = translate
        self._validate = validate
        self._files = files or ModelFiles()

    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(name)
        if configuration is None:
            return model
        if self._translate is None or self._validate is None:
            raise ValueError("this model takes no other configuration than its own")
        plain = dict(self._translate(configuration, model.model_dump(mode="json")))
        if folder is not None and model.path is not None:
            member = model.path.member
            plain["path"] = f"{folder / model.path.path.name}:{member}" if member else str(folder)
        return without_new_urls(self._validate(plain, self._folder), model)

    def fingerprint(self, name: str) -> Hashable:
        model = self._models.get(name)
        if model is None:
            return ()
        return self._files.fingerprint(model)


class FolderCatalog:
    """Repositories: folders with one folder per model; of two models of one name the first counts."""

    def __init__(
        self, folders: Sequence[Path], read_folder: ReadFolder, validate: Validate, verify: VerifyConfig | None = None
    ) -> None:
        """`verify` is what all of these models have to prove: whoever writes a model.yaml must not choose its proof."""
        self._folders = folders
        self._read_folder = read_folder
        self._validate = validate
        self._verify = verify

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._found()))

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        """Like Catalog.read; a model whose files are in `folder` need not exist in the repositories."""
        place = folder or self._place(name)
        if place is None:
            raise ModelNotFound(name)
        if not name.isprintable() or "/" in name:
            raise ValueError("a model's name has neither / nor control characters")
        config = self._validate(self._read_folder(place, configuration, name), place)
        if configuration is not None:
            config = without_new_urls(config, None)
        return config if self._verify is None else config.model_copy(update={"verify": self._verify})

    def fingerprint(self, name: str) -> Hashable:
        place = self._place(name)
        return () if place is None else tree_fingerprint(place)

    def _place(self, name: str) -> Path | None:
        """Where a model lies: of ten thousand, one is looked at."""
        if not _is_model(name) or "/" in name:
            return None
        return next((place for folder in self._folders if (place := folder / name).is_dir()), None)

    def _found(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self._folders:
            for entry in folder.iterdir():  # Path.is_dir is quiet about a link that leads to itself
                if _is_model(entry.name) and entry.is_dir():
                    found.setdefault(entry.name, entry)
        return found


def _is_model(name: str) -> bool:
    return name[:1] not in ("", ".") and name.isprintable()


class Catalogs:
    """Several catalogs as one; of two models of one name the first counts."""

    def __init__(self, *catalogs: Catalog) -> None:
        self._catalogs = catalogs

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for catalog in self._catalogs for name in catalog.names()))

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        for catalog in self._catalogs:
            try:
                return catalog.read(name, configuration, folder)
            except ModelNotFound:
                continue
        raise ModelNotFound(name)

    def fingerprint(self, name: str) -> Hashable:
        return next((found for each in self._catalogs if (found := each.fingerprint(name))), ())


def without_new_urls(config: ModelConfig, own: ModelConfig | None) -> ModelConfig:
    """A configuration that a caller has sent a part of: nothing is fetched but what the YAML itself names."""
    known = own.path.location if own is not None and own.path is not None else None
    if config.path is not None and config.path.location not in (None, known):
        raise ValueError("callers name no URLs of models")
    return config


def folder_reader(translate: Translate, otherwise: ReadFolder | None = None) -> ReadFolder:
    """A reader of folders whose model.yaml holds the model's entry of the YAML.

    `translate` reads the texts of configurations that callers send. `otherwise` reads folders without model.yaml, and
    all folders for which a caller sent a text.
    """

    def read(folder: Path, configuration: str | None, name: str) -> Mapping[str, Any]:
        file = folder / FILE
        if otherwise is not None and (configuration is not None or not file.is_file()):
            return otherwise(folder, configuration, name)
        if not file.is_file() and configuration is None:
            raise ValueError(f"no {FILE} in {folder}")
        own = read_plain(file) if file.is_file() else {}
        if configuration is None:
            return {"path": "."} | own
        # A caller's files may include a model.yaml: no path in it may take effect.
        return translate(configuration, {"path": "."} | {key: own[key] for key in own if key == "backend"})

    return read
