"""Other servers' configurations -> a YAML file of the gateway, to be read, changed and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from adapters import grps_config
from adapters.migration import Imported, Note, document
from adapters.tf_serving_config import Server, UsageError, read_flags, read_server, table
from adapters.triton_repository import model_folders, read_model

Say: TypeAlias = Callable[[str], None]

_TRITON_PORTS: Final = """\
listen:                               # Triton's ports
  http:
    - {bind: "0.0.0.0:8000"}
  grpc:
    - {bind: "0.0.0.0:8001"}
  metrics: {bind: "0.0.0.0:8002"}
"""


def from_triton(repository: Path, output: Path | None, say: Say, complain: Say) -> int:
    """Write the repository's models as YAML, to `output` or to `say`, and tell of each model what became of it.

    Returns the exit status: 0, or 1 if a model, or the file, could not be had.
    """
    try:
        folders = model_folders(repository)
    except OSError as error:
        complain(_told(repository, error))
        return 1
    models = [_imported(name, folder) for name, folder in folders.items()]
    target = output.absolute().parent if output else Path.cwd()
    return _finish(models, triton_document(repository.name, models, target), output, say, complain)


def triton_document(name: str, models: Sequence[Imported], folder: Path) -> str:
    """The YAML of a model repository; paths are relative to `folder`."""
    title = [
        f"Imported from the Triton model repository {name}.",
        "What Triton's configuration says and is not done here stands beside each model.",
    ]
    return document(title, _TRITON_PORTS.splitlines(), models, folder)


def from_tf_serving(words: Sequence[str], output: Path | None, say: Say, complain: Say) -> int:
    """Write what a TensorFlow Serving server was told as YAML; `words` are its command line, of flags and files.

    Returns the exit status: 0; 1 if a model, a file, or anything else that was asked for, could not be had; 2 if the
    command line is wrong.
    """
    try:
        server = read_server(read_flags(words))
    except UsageError as error:
        complain(str(error))
        return 2
    except OSError as error:
        complain(_told(Path(error.filename), error))
        return 1
    except ValueError as error:
        complain(str(error))
        return 1
    return _told_of_server(server.models, server.notes, tf_serving_document(server), output, say, complain)


def tf_serving_document(server: Server) -> str:
    """The YAML of a TensorFlow Serving server; paths are absolute, as they were there."""
    title = [
        "Imported from TensorFlow Serving.",
        "What it was told and is not done here stands beside what it is about.",
    ]
    notes = [str(note) for note in server.notes if note.fate != "mapped"]
    return document([*title, *notes], server.sections, server.models, None)


def tf_serving_flags() -> str:
    """What becomes of each flag of TensorFlow Serving, for people to read."""
    return table()


def from_grps(server_file: Path, inference_file: Path, output: Path | None, say: Say, complain: Say) -> int:
    """Write the two configuration files of a grps server as YAML.

    Returns the exit status: 0; 1 if a model, a file, or anything else that was asked for, could not be had.
    """
    try:
        server = grps_config.read_server(server_file, inference_file)
    except OSError as error:
        complain(_told(Path(error.filename), error))
        return 1
    except ValueError as error:
        complain(str(error))
        return 1
    return _told_of_server(server.models, server.notes, grps_document(server), output, say, complain)


def grps_document(server: grps_config.Server) -> str:
    """The YAML of a grps server; paths are absolute."""
    title = ["Imported from grps.", "What it was told and is not done here stands beside what it is about."]
    notes = [str(note) for note in server.notes if note.fate != "mapped"]
    return document([*title, *notes], server.sections, server.models, None)


def _told_of_server(
    models: Sequence[Imported], notes: Sequence[Note], text: str, output: Path | None, say: Say, complain: Say
) -> int:
    """Report what became of everything, and write the file. Returns the exit status."""
    for note in notes:
        complain(str(note))
    status = _finish(models, text, output, say, complain)
    refused = sum(note.fate == "refused" for note in [*notes, *(note for model in models for note in model.notes)])
    if refused:
        complain(f"{refused} {'thing' if refused == 1 else 'things'} refused; the lines above say what to do")
    return 1 if refused else status


def _imported(name: str, folder: Path) -> Imported:
    try:
        reading = read_model(folder)
    except (ValueError, OSError) as error:
        return Imported(name, error=str(error))
    return Imported(name, reading.entry, reading.notes)


def _finish(models: Sequence[Imported], text: str, output: Path | None, say: Say, complain: Say) -> int:
    """Report what became of each model, and write the file. Returns the exit status."""
    for model in models:
        for line in [*map(str, model.notes), *([f"NOT IMPORTED: {model.error}"] if model.error else [])]:
            complain(f"{model.name}: {line}")
    if output is None:
        say(text.removesuffix("\n"))
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            complain(_told(output, error))
            return 1
    failed = sum(bool(model.error) for model in models)
    complain(f"{len(models) - failed} of {len(models)} models imported{f' to {output}' if output else ''}")
    return 1 if failed or not models else 0


def _told(file: Path, error: OSError) -> str:
    return f"{file}: {(error.strerror or str(error)).lower()}"
