"""deploy/Dockerfile, followed line by line without a container engine, and its command run as a container runs it.

Each stage is an overlay over this machine's root with this Python at /usr/local, in the place of the base image: what
the base image has of its own is not tried. Every RUN and COPY is carried out; then ENTRYPOINT with CMD is process 1 of
namespaces of its own, under the USER, without capabilities, on a read-only file system. Wants root, on Linux.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template

import pytest
from deployment import DEPLOY
from serving import ROOT

pytestmark = pytest.mark.heavy

BUILDS_WITHIN_S = 400.0
STARTS_WITHIN_S = 60.0
STOPS_WITHIN_S = 20.0
MOUNTS = """
set -e
mount -t overlay overlay -o "lowerdir=/,upperdir=$UPPER,workdir=$WORK" "$TOP"
mount --rbind /dev "$TOP/dev"
mount --bind "$PYTHON" "$TOP/usr/local"
mount -t proc proc "$TOP/proc"
"""
SEALED = """
mount -t tmpfs tmpfs "$TOP/tmp"
ip link set lo up
mount -o remount,ro "$TOP"
"""
ENTER = 'cd "$0" && exec "$@"'
WITHOUT_RIGHTS = ("--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")


class Stage:
    """One stage of a Dockerfile: what it has written, and what its instructions have set."""

    def __init__(self, folder: Path) -> None:
        self.upper, self.work, self.top = folder / "upper", folder / "work", folder / "top"
        for each in (self.upper, self.work, self.top):
            each.mkdir(parents=True)
        self.variables = {
            "PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin",
            "LD_LIBRARY_PATH": "/usr/local/lib",  # this Python was made for another place
        }
        self.directory = "/"
        self.user = "0:0"
        self.command: dict[str, list[str]] = {}

    def environment(self, **more: str) -> dict[str, str]:
        """Of what runs in it: nothing of ours but what leads pip to packages."""
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
        places = {"UPPER": self.upper, "WORK": self.work, "TOP": self.top, "PYTHON": sys.base_prefix}
        return {"HOME": "/root", **kept, **self.variables, **{name: str(path) for name, path in places.items()}, **more}

    def set(self, name: str, rest: str) -> None:
        """An instruction that makes no files, or only a folder."""
        match name:
            case "ARG" | "ENV":
                for each in shlex.split(rest):
                    variable, _, value = Template(each).safe_substitute(self.variables).partition("=")
                    self.variables[variable] = value
            case "WORKDIR":
                self.directory = rest
                (self.upper / rest.lstrip("/")).mkdir(parents=True)
            case "USER":
                self.user = rest
            case "ENTRYPOINT" | "CMD":
                self.command[name] = json.loads(rest)
            case "HEALTHCHECK":
                self.command[name] = json.loads(rest.partition("CMD ")[2])
            case _:
                assert name in ("LABEL", "EXPOSE", "STOPSIGNAL"), f"{name}: not known here"

    def run(self, line: str) -> None:
        script = f'{MOUNTS}exec chroot "$TOP" sh -c \'{ENTER}\' "$0" sh -c "$1"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, self.directory, line],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=BUILDS_WITHIN_S,
        )
        assert done.returncode == 0, f"RUN {line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"

    def copy(self, base: Path, sources: list[str], target: str) -> None:
        """A folder's content, or files; into a folder if the target ends in a slash."""
        place = self.upper / (Path(self.directory) / target).relative_to("/")
        for source in sources:
            found = base / source.lstrip("/")
            if found.is_dir():
                shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True, ignore=_not_for_builders)
            else:
                into = place / found.name if target.endswith("/") else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, into)


def _not_for_builders(folder: str, names: list[str]) -> list[str]:
    """As .dockerignore has it; what a stage made is copied whole."""
    if not Path(folder).is_relative_to(ROOT):
        return []
    return [name for name in names if name == "__pycache__" or name.endswith((".pyc", ".so"))]


def build(file: Path, folder: Path) -> Stage:
    """Follow it -> the last stage."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "#"]
    stages: dict[str, Stage] = {}
    stage = Stage(folder / "before")
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, rest = line.split(None, 1)
        if name == "FROM":
            stage = stages[rest.partition(" AS ")[2]] = Stage(folder / str(len(stages)))
        elif name == "COPY":
            words = shlex.split(rest)
            source = stages[words.pop(0).partition("=")[2]].upper if words[0].startswith("--from=") else ROOT
            stage.copy(source, words[:-1], words[-1])
        elif name == "RUN":
            stage.run(rest)
        else:
            stage.set(name, rest)
    return stage


class Container:
    """A running image."""

    def __init__(self, image: Stage, log: Path) -> None:
        self.image = image
        self.log = log
        uid, gid = image.user.split(":")
        self.rights = ["setpriv", f"--reuid={uid}", f"--regid={gid}", *WITHOUT_RIGHTS]
        script = f'{MOUNTS}{SEALED}exec chroot "$TOP" sh -c \'{ENTER}\' "$0" "$@"'
        spaces = ["--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child"]
        command = [*self.rights, *image.command["ENTRYPOINT"], *image.command["CMD"]]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                ["unshare", *spaces, "sh", "-c", script, image.directory, *command],
                env=image.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Of its process 1, as this machine counts; 0 until there is one."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker exec` would."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--root", "--wd"]
        return subprocess.run(
            [*enter, *self.rights, *command], env=self.image.environment(), capture_output=True, text=True, timeout=30
        )

    def is_healthy(self) -> bool:
        return self.pid > 0 and self.execute(*self.image.command["HEALTHCHECK"]).returncode == 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    tried = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True)
    if os.getuid() != 0 or tried.returncode != 0:
        pytest.skip("overlays and namespaces want root")
    if not (Path(sys.base_prefix) / "bin/python").exists():
        pytest.skip(f"{sys.base_prefix} cannot stand for the base image's Python")
    folder = tmp_path_factory.mktemp("image")
    yield build(DEPLOY / "Dockerfile", folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def container(image: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Healthy by its own HEALTHCHECK; it has to drain by SIGTERM, though it is process 1."""
    started = Container(image, tmp_path_factory.mktemp("container") / "log")
    try:
        give_up = time.monotonic() + STARTS_WITHIN_S
        while not started.is_healthy():
            assert started.process.poll() is None, started.log.read_text()
            assert time.monotonic() < give_up, started.log.read_text()
            time.sleep(0.3)
        yield started
        os.kill(started.pid, signal.SIGTERM)
        assert started.process.wait(STOPS_WITHIN_S) == 0, started.log.read_text()
        assert "drained in" in started.log.read_text()
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


def test_the_image_holds_the_compiled_helpers_and_no_tools(image: Stage) -> None:
    installed = image.upper / "opt/tensorgate"
    found = [*installed.glob("lib/python3*/site-packages/tensorgate/adapters/_native/*.so")]
    names = {path.name.partition(".")[0] for path in found}
    assert names == {"_examples", "_numbers", "_texts", "_varints"}
    assert not list(installed.glob("bin/pip*"))
    assert not list((image.upper / "srv").rglob("*.py[co]"))
    assert not (image.upper / "build").exists()
    assert not (image.upper / "root").exists()


def test_it_is_process_1_without_rights(container: Container) -> None:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{container.pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["NSpid"].split()[-1] == "1"
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"10001"}
    assert status["NoNewPrivs"] == "1"
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert "tensorgate" in Path(f"/proc/{container.pid}/cmdline").read_text()


def test_only_tmp_can_be_written(container: Container) -> None:
    for place in ("/srv/tensorgate/x", "/opt/tensorgate/x", "/var/x"):
        assert "Read-only file system" in container.execute("touch", place).stderr
    assert container.execute("touch", "/tmp/x").returncode == 0  # noqa: S108  (of the container)


def test_every_port_answers(container: Container) -> None:
    for port in (8000, 8501, 7080, 8002):
        asked = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/readyz', timeout=10).status)"
        assert container.execute("/opt/tensorgate/bin/python", "-c", asked).stdout == "200\n", port
    for port in (8001, 8500, 7081):
        asked = f"import socket; socket.create_connection(('127.0.0.1', {port})).close()"
        assert container.execute("/opt/tensorgate/bin/python", "-c", asked).returncode == 0, port


def test_its_commands_work(container: Container) -> None:
    told = container.execute("tensorgate", "call", "half_plus_two", "[1.0, 2.0]")
    assert told.stdout == "half_plus_two version 1\nrow  y: FP32\n0    2.5\n1    3\n", told.stderr
    for file in ("deploy/config/gateway.yaml", "config/demo.yaml"):
        told = container.execute("tensorgate", "check", "--load", file)
        assert told.returncode == 0, told.stderr
