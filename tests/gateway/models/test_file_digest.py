"""One digest for all of a model's files: the one that coreutils find, and another for whatever is not the same."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorgate.gateway.models import file_digest
from tensorgate.gateway.models.file_digest import UnfitFiles, file_states, files_digest

COREUTILS = "find . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "1"
    for name in ("model.onnx", "a/b/weights.bin", "a-b", "ä.txt", ".hidden", "a/__pycache__/m.pyc"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(f"this is {name}")
    (made / "empty").mkdir()
    return made


def test_coreutils_find_the_same(folder: Path) -> None:
    want = subprocess.run(["bash", "-c", COREUTILS], cwd=folder, capture_output=True, text=True, check=True).stdout
    found = files_digest(folder)
    assert want == f"{found.sha256}  -\n"
    assert hashlib.sha256(found.manifest().encode()).hexdigest() == found.sha256
    assert found.states == file_states(folder)


def test_a_file_has_its_own(folder: Path) -> None:
    file = folder / "model.onnx"
    assert files_digest(file).sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert files_digest(file).states == file_states(file)


def test_a_link_inside_counts_as_its_file(folder: Path) -> None:
    copied = folder.with_name("2")
    shutil.copytree(folder, copied)
    (folder / "same").symlink_to("a/b/weights.bin")
    (copied / "same").write_bytes((copied / "a/b/weights.bin").read_bytes())
    assert files_digest(folder).sha256 == files_digest(copied).sha256


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte": lambda folder: (folder / "a/b/weights.bin").write_text("THIS is a/b/weights.bin"),
    "another file": lambda folder: (folder / "a/more").write_text(""),
    "a hidden file": lambda folder: (folder / ".more").write_text(""),
    "one file less": lambda folder: (folder / "a-b").unlink(),
    "another name": lambda folder: (folder / "a-b").rename(folder / "a-c"),
    "another folder": lambda folder: (folder / "a/b").rename(folder / "a/c"),
    "two files exchanged": lambda folder: (
        (folder / "a-b").rename(folder / "x"),
        (folder / ".hidden").rename(folder / "a-b"),
        (folder / "x").rename(folder / ".hidden"),
    ),
    "a module's cache": lambda folder: (folder / "a/__pycache__/m.pyc").write_text("of somebody else"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_changes_with(folder: Path, change: str) -> None:
    before, states = files_digest(folder), file_states(folder)
    CHANGES[change](folder)
    assert files_digest(folder).sha256 != before.sha256
    assert file_states(folder) != states


def test_states_change_where_times_were_set_back(folder: Path) -> None:
    file = folder / "a-b"
    before, states = file.stat(), file_states(folder)
    file.write_text("as long " + "x" * (before.st_size - 8))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert file_states(folder) != states


UNFIT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link out": (lambda folder: (folder / "out").symlink_to("/etc/hostname"), "out is a link that leads out"),
    "a link up": (lambda folder: (folder / "a/up").symlink_to("../../1/../secret"), "link to nothing|leads out"),
    "a link to a folder": (lambda folder: (folder / "b").symlink_to("a"), "b is a link to a folder"),
    "a folder's link out": (lambda folder: (folder / "b").symlink_to("/etc"), "b is a link that leads out"),
    "a link to nothing": (lambda folder: (folder / "b").symlink_to("none"), "b is a link to nothing"),
    "a link to itself": (lambda folder: (folder / "b").symlink_to("b"), "b is a link to nothing"),
    "a pipe": (lambda folder: os.mkfifo(folder / "b"), "b is no regular file"),
    "a line in a name": (lambda folder: (folder / "b\nc").write_text(""), r"'b\\nc'"),
    "a backslash": (lambda folder: (folder / "b\\c").write_text(""), "characters"),
}


@pytest.mark.parametrize("change", UNFIT)
def test_it_has_none_with(folder: Path, change: str) -> None:
    spoil, text = UNFIT[change]
    spoil(folder)
    with pytest.raises(UnfitFiles, match=text):
        files_digest(folder)


def test_it_has_none_of_nothing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "2/empty").mkdir(parents=True)
    with pytest.raises(UnfitFiles, match="no file in"):
        files_digest(tmp_path / "2")
    with pytest.raises(FileNotFoundError):
        files_digest(tmp_path / "3")
    monkeypatch.setattr(file_digest, "_MAX_FILES", 3)
    with pytest.raises(UnfitFiles, match="more than 3 files"):
        files_digest(folder)
