"""deploy/Dockerfile built by a real builder, and run by it: Debian's buildah, which needs no daemon, on a base that
Debian's mmdebstrap makes in place of the published one.

test_deploy_image.py holds what runs to the rights of a container. Wants root, on Linux, and a mirror of Debian.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import DEPLOY
from serving import ROOT
from waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

BASE = "docker.io/library/python:3.11.14-slim-bookworm"
PACKAGES = "python3-dev,python3-venv,python3-pip,g++,locales,ca-certificates"
AS_PUBLISHED = "ln -s /usr/bin/python3 /usr/local/bin/python && rm /usr/lib/python3*/EXTERNALLY-MANAGED"
CHROOT = ("--isolation", "chroot")
MAX_BYTES = 400 << 20
"""What the image may add to its base."""


class Builder:
    """buildah with a store of its own, and the way to packages that pip has here."""

    def __init__(self, folder: Path) -> None:
        places = ("--root", folder / "store", "--runroot", folder / "run")
        self._words = ["buildah", *places, "--storage-driver", "overlay"]
        told = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=True).stdout
        pairs = (line.split("=", 1) for line in told.splitlines())
        said = {key.split(".")[-1]: value.strip("'\"") for key, value in pairs}
        settings = folder / "pip.conf"
        settings.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in said.items()))
        words = " ".join(said.values()).replace("file://", "").split()
        found = {Path(*Path(word).parts[:3]) for word in words if word.startswith("/") and Path(word).exists()}
        seen = [f"--volume={place}:{place}:ro" for place in sorted(found)]
        self.volumes = [f"--volume={settings}:/etc/pip.conf:ro", *seen]

    def command(self, *words: str | Path) -> list[str | Path]:
        return [*self._words, *words]

    def do(self, *words: str | Path) -> str:
        done = subprocess.run(self.command(*words), cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        pytest.skip(f"wants root, and apt-get install buildah mmdebstrap; missing: {missing}")
    folder = tmp_path_factory.mktemp("builder")
    base = folder / "base.tar"
    debian = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", base]
    subprocess.run(debian, check=True)
    made = Builder(folder)
    root = made.do("from", "scratch")
    made.do("add", root, base, "/")
    made.do("run", *CHROOT, root, "--", "sh", "-c", AS_PUBLISHED)
    made.do("commit", root, BASE)
    yield made
    made.do("rm", "--all")
    made.do("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def image(builder: Builder) -> str:
    file = DEPLOY / "Dockerfile"
    how = (*CHROOT, "--pull-never", "--format=docker", *builder.volumes)
    builder.do("build", *how, "-f", file, "-t", "tensorgate", ".")
    return "localhost/tensorgate"


@pytest.fixture(scope="module")
def container(builder: Builder, image: str) -> str:
    return builder.do("from", "--pull-never", image)


def network(pid: str | int) -> str:
    """Which one a process is in; "" once it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def test_its_size(builder: Builder, container: str) -> None:
    top = Path(builder.do("mount", container))
    told = subprocess.run(["du", "-sbc", top / "opt", top / "srv"], capture_output=True, text=True, check=True).stdout
    added = int(told.splitlines()[-1].split()[0])
    print(f"the image adds {added / 1e6:.0f} MB to its base")  # noqa: T201 - a figure to be told
    assert 0 < added < MAX_BYTES
    for helper in ("_numbers", "_examples", "_texts", "_varints"):
        assert [*top.glob(f"opt/tensorgate/lib/python3*/site-packages/tensorgate/adapters/_native/{helper}*.so")]


def test_it_runs(builder: Builder, container: str, tmp_path: Path) -> None:
    """In a network of its own, by its ENTRYPOINT and CMD, until SIGTERM."""
    config = json.loads(builder.do("inspect", container))["Docker"]["config"]
    inside = builder.command("run", *CHROOT, f"--user={config['User']}", container, "--")
    serve = [*inside, *config["Entrypoint"], *config["Cmd"]]
    begun = time.monotonic()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"', *serve], stdout=log, stderr=log
        )
    try:
        beside = ["nsenter", f"--target={process.pid}", "--net", *inside]
        health = [*beside, "tensorgate", "health", "--wait", "60", "--url", "http://127.0.0.1:8000"]
        told = subprocess.run(health, capture_output=True, text=True)
        assert told.stdout.strip() == "ready", told.stderr + (tmp_path / "log").read_text()
        print(f"ready after {time.monotonic() - begun:.1f} s")  # noqa: T201 - a figure to be told
        call = [*beside, "tensorgate", "call", "half_plus_two", "[1.0, 2.0]"]
        answer = subprocess.run(call, capture_output=True, text=True)
        assert answer.stdout == "half_plus_two version 1\nrow  y: FP32\n0    2.5\n1    3\n", answer.stderr
        gateways = subprocess.run(["pgrep", "-f", "tensorgate serve"], capture_output=True, text=True).stdout.split()
        innermost = max(int(pid) for pid in gateways if network(pid) == network(process.pid))
        os.kill(innermost, signal.SIGTERM)
        wait_until(lambda: process.poll() is not None)
        assert process.returncode == 0, (tmp_path / "log").read_text()
        assert "drained in" in (tmp_path / "log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
