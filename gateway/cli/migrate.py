"""Other servers' configurations -> a YAML file of the gateway, for people to read, change and keep."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from tensorgate.adapters.importers import grps_config, mlserver_config
from tensorgate.adapters.importers.common import (
    Imported,
    ImportedServer,
    Note,
    UsageError,
    document,
    flow,
    relative,
)
from tensorgate.adapters.importers.kserve_config import read_services
from tensorgate.adapters.importers.tf_serving_config import read_flags, read_server
from tensorgate.adapters.importers.triton_command_line import note_flags, offers, read_command_line
from tensorgate.adapters.importers.triton_command_line import sections as triton_sections
from tensorgate.adapters.importers.triton_repository import model_folders, read_model

Print: TypeAlias = Callable[[str], None]

_TRITON_PORTS: Final = """\
listen:                               # Triton's ports
  http:
    - {bind: "0.0.0.0:8000"}
  grpc:
    - {bind: "0.0.0.0:8001"}
  metrics: {bind: "0.0.0.0:8002"}
"""
_ELSEWHERE: Final = "What it was told and is not done here stands beside what it is about."


def from_triton(repository: Path | None, text: str, output: Path | None, write: Print, warn: Print) -> int:
    """Write the models of a Triton repository as YAML, to `output` or by `write`; `warn` about what was not imported.
    `text` is the old server's command line, "" if there is none; a repository is looked at in place of those that it
    names.

    Returns the exit status: 0; 1 if a model or anything else could not be imported, or a file not be read or written;
    2 if the command line is wrong.
    """
    try:
        line = read_command_line(text)
    except UsageError as error:
        warn(str(error))
        return 2
    repositories = [repository] if repository else [Path(each) for each in line.repositories]
    if not repositories:
        warn("nothing to import: give a model repository, or --from-command-line 'tritonserver --model-repository=DIR'")
        return 2
    target = output.absolute().parent if output else Path.cwd()
    try:
        models = list(_triton_models(repositories))
    except OSError as error:
        warn(_file_error(Path(error.filename), error))
        return 1
    if not text:
        return _finish(models, triton_document(repositories[0].name, models, target), output, write, warn)
    note_flags(line)

    def shown(file: str) -> str:
        return file if Path(file).is_absolute() else relative(file, target)

    lines = [*triton_sections(line, shown)]
    comes_and_goes = line.text("model-control-mode", "none").lower() != "none"
    title = ["Imported from Triton.", _ELSEWHERE, *(str(note) for note in line.notes if note.fate != "mapped")]
    if comes_and_goes:
        places = flow([shown(str(each)) for each in repositories])
        lines += [f"repositories: {places}   # served as they are, since models come and go"]
    for note in line.notes:
        warn(str(note))
    written = document(title, lines, () if comes_and_goes else models, target)
    status = _finish(models, written, output, write, warn)
    return 1 if _refused(line.notes, warn) else status


def _triton_models(repositories: Sequence[Path]) -> Iterator[Imported]:
    """The models of all repositories. Raises OSError."""
    taken = set[str]()
    for repository in repositories:
        for name, folder in model_folders(repository).items():
            if name in taken:
                error = f"stands in another repository, too, so that Triton would serve neither; remove {folder}"
                yield Imported(name, error=error)
            else:
                yield _imported(name, folder)
            taken.add(name)


def triton_document(name: str, models: Sequence[Imported], folder: Path) -> str:
    """The YAML of a model repository; paths are relative to `folder`."""
    title = [
        f"Imported from the Triton model repository {name}.",
        "What Triton's configuration says and is not done here stands beside each model.",
    ]
    return document(title, [*_TRITON_PORTS.splitlines(), *offers()], models, folder)


def from_tf_serving(words: Sequence[str], output: Path | None, write: Print, warn: Print) -> int:
    """Write the configuration of a TensorFlow Serving server as YAML; `words` are its command line, flags and files.

    Returns the exit status: 0; 1 if anything was refused, or a file could not be read or written; 2 if the command line
    is wrong.
    """
    try:
        line = read_flags(words)
    except UsageError as error:
        warn(str(error))
        return 2
    title = ["Imported from TensorFlow Serving.", _ELSEWHERE]
    folder = f"{output.stem}-tls" if output else ""
    return _from_server(lambda: read_server(line, folder), title, output, write, warn)


def from_grps(server_file: Path, inference_file: Path, output: Path | None, write: Print, warn: Print) -> int:
    """Write the two configuration files of a grps server as YAML.

    Returns the exit status: 0; 1 if anything was refused, or a file could not be read or written.
    """
    title = ["Imported from grps.", _ELSEWHERE]
    programs = f"{output.stem}-models" if output else ""
    return _from_server(
        lambda: grps_config.read_server(server_file, inference_file, programs), title, output, write, warn
    )


def from_mlserver(folder: Path, output: Path | None, write: Print, warn: Print, *, trusted: bool) -> int:
    """Write a tree of MLServer's settings as YAML; `trusted`: its models' files may be loaded as programs.

    Returns the exit status: 0; 1 if anything was refused, or a file could not be read or written.
    """
    title = ["Imported from MLServer.", _ELSEWHERE]
    programs = f"{output.stem}-models" if output else ""
    return _from_server(
        lambda: mlserver_config.read_server(folder, programs, trusted=trusted), title, output, write, warn
    )


def from_kserve(file: Path, output: Path | None, write: Print, warn: Print, *, trusted: bool) -> int:
    """Write the InferenceServices of a file as YAML; `trusted`: their models' files may be loaded as programs.

    Returns the exit status: 0; 1 if anything was refused, or a file could not be read or written.
    """
    title = ["Imported from KServe.", _ELSEWHERE]
    programs = f"{output.stem}-models" if output else ""
    return _from_server(lambda: read_services(file, programs, trusted=trusted), title, output, write, warn)


def _from_server(
    read: Callable[[], ImportedServer], title: Sequence[str], output: Path | None, write: Print, warn: Print
) -> int:
    """Report every note, and write the file, with absolute paths. Returns the exit status."""
    try:
        server = read()
    except OSError as error:
        warn(_file_error(Path(error.filename), error))
        return 1
    except ValueError as error:
        warn(str(error))
        return 1
    for note in server.notes:
        warn(str(note))
    lines = [*title, *(str(note) for note in server.notes if note.fate != "mapped")]
    try:
        _write_files(server, output.parent if output else Path(), warn)
    except OSError as error:
        warn(_file_error(Path(error.filename), error))
        return 1
    status = _finish(server.models, document(lines, server.sections, server.models, None), output, write, warn)
    notes = [*server.notes, *(note for model in server.models for note in model.notes)]
    return 1 if _refused(notes, warn) else status


def _refused(notes: Sequence[Note], warn: Print) -> int:
    """How many things were refused; says so if there are any."""
    refused = sum(note.fate == "refused" for note in notes)
    if refused:
        warn(f"{refused} {'thing' if refused == 1 else 'things'} refused; the lines above say what to do")
    return refused


def _imported(name: str, folder: Path) -> Imported:
    try:
        reading = read_model(folder)
    except (ValueError, OSError) as error:
        return Imported(name, error=str(error))
    return Imported(name, reading.entry, reading.notes)


def _finish(models: Sequence[Imported], text: str, output: Path | None, write: Print, warn: Print) -> int:
    """Report the notes of each model, and write the file. Returns the exit status."""
    for model in models:
        for line in [*map(str, model.notes), *([f"NOT IMPORTED: {model.error}"] if model.error else [])]:
            warn(f"{model.name}: {line}")
    if output is None:
        write(text.removesuffix("\n"))
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            warn(_file_error(output, error))
            return 1
    failed = sum(bool(model.error) for model in models)
    warn(f"{len(models) - failed} of {len(models)} models imported{f' to {output}' if output else ''}")
    return 1 if failed or not models else 0


def _write_files(server: ImportedServer, folder: Path, warn: Print) -> None:
    """Write what lies beside the YAML. Raises OSError."""
    for name, text in server.secrets.items():
        file = folder / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # so that its mode is not an older file's
        with open(file, "x", opener=_private, encoding="utf-8") as opened:
            opened.write(text)
    for name, text in server.skeletons.items():
        file = folder / name
        if file.exists():
            warn(f"{file}: is there already, and stays as it is")
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _file_error(file: Path, error: OSError) -> str:
    return f"{file}: {(error.strerror or str(error)).lower()}"
