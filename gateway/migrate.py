"""Other servers' configurations -> a YAML file of the gateway, to be read, changed and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adapters.triton_repository import Imported, document, model_folders, read_model


def from_triton(
    repository: Path, output: Path | None, say: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Write the repository's models as YAML, to `output` or to `say`, and tell of each model what became of it.

    Returns the exit status: 0, or 1 if a model, or the file, could not be had.
    """
    try:
        folders = model_folders(repository)
    except OSError as error:
        complain(f"{repository}: {(error.strerror or str(error)).lower()}")
        return 1
    models = [_imported(name, folder) for name, folder in folders.items()]
    for model in models:
        for line in [*map(str, model.notes), *([f"NOT IMPORTED: {model.error}"] if model.error else [])]:
            complain(f"{model.name}: {line}")
    target = output.absolute().parent if output else Path.cwd()
    text = document(f"Imported from the Triton model repository {repository.name}.", models, target)
    if output is None:
        say(text.removesuffix("\n"))
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            complain(f"{output}: {(error.strerror or str(error)).lower()}")
            return 1
    failed = sum(bool(model.error) for model in models)
    complain(f"{len(models) - failed} of {len(models)} models imported{f' to {output}' if output else ''}")
    return 1 if failed or not models else 0


def _imported(name: str, folder: Path) -> Imported:
    try:
        reading = read_model(folder)
    except (ValueError, OSError) as error:
        return Imported(name, error=str(error))
    return Imported(name, reading.entry, reading.notes)
