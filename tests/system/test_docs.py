"""Every page of docs/ with commands is a script: its files are written, its commands run in one shell, and what they
print is compared.

A block whose first line is `# try/NAME` is a file. The ports that a page names are mapped to free ones.
"""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import jsonschema
import pytest
import yaml
from waiting import wait_until

from tensorgate.gateway.app import registries
from tensorgate.gateway.config import load_config

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md")
SCRIPTS = [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CHECKED = re.compile(r"^\$ .* check (?:--load )?(\S+)(?:$| \|\|)", re.MULTILINE)
COMMAND = re.compile(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n(.*?)(?=^\$ |\Z)", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (try/\S+)\n")
PORT = re.compile(r"\b(?:1?8[05]0[012]|708[01]|8443|9000|1708[01])\b")
ONLY_LOOKS = re.compile(r"(?:curl (?!.*-d )|tensorgate (?:diff|models|health)|grep )")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
ANYTHING = "…"
SCHEMA = json.loads((ROOT / "config/schema.json").read_text(encoding="utf-8"))

TENSORGATE = """#!{python}
import os, sys
words = sys.argv[1:]
if words[0] in ("call", "health", "models", "sample") and not {{"--url", "--grpc"}} & {{*words}}:
    words += ["--url", "http://localhost:{port}"]
os.environ["PYTHONPATH"] = "{root}"
os.execv(sys.executable, [sys.executable, "-m", "tensorgate", *words])
"""

CURL = """#!{python}
import argparse, ssl, sys, urllib.error, urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("-s", action="store_true")
parser.add_argument("-N", action="store_true")
parser.add_argument("-X")
parser.add_argument("-d")
parser.add_argument("-o")
parser.add_argument("-w", default="")
parser.add_argument("-H", action="append", default=[])
parser.add_argument("--cacert")
parser.add_argument("url")
words = parser.parse_args()
url = words.url if "://" in words.url else "http://" + words.url
body = words.d and (open(words.d[1:], "rb").read() if words.d[0] == "@" else words.d.encode())
request = urllib.request.Request(url, body, method=words.X)
for header in words.H:
    request.add_header(*header.split(": ", 1))
trust = ssl.create_default_context(cafile=words.cacert)
try:
    answer = urllib.request.urlopen(request, context=trust)
except urllib.error.HTTPError as refused:
    answer = refused
read = answer.read()
if words.o is None:
    sys.stdout.buffer.write(read)
sys.stdout.write(words.w.replace("%{{http_code}}", str(answer.status)).replace("\\\\n", "\\n"))
"""


def free_port() -> int:
    """One below those that the system hands out by itself, so that nobody gets it meanwhile."""
    while True:
        port = 20000 + secrets.randbelow(12000)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port


class Ports(dict[str, str]):
    """A port on the page -> the free one in its place."""

    def __missing__(self, shown: str) -> str:
        free = str(free_port())
        while free in self.values():
            free = str(free_port())
        self[shown] = free
        return free

    def map(self, text: str) -> str:
        return PORT.sub(lambda found: self[found[0]], text)

    def unmap(self, text: str) -> str:
        for shown, free in self.items():
            text = text.replace(free, shown)
        return text


class Shell:
    """One bash for a whole page, in a folder that looks like a clone."""

    def __init__(self, folder: Path, ports: Ports) -> None:
        for name in ("config", "deploy"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "try").mkdir()
        (folder / "first").mkdir()
        (folder / "last").mkdir()
        self._stand_in(
            folder / "first/tensorgate", TENSORGATE.format(python=sys.executable, root=ROOT, port=ports["8000"])
        )
        self._stand_in(folder / "first/python", f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec {sys.executable} "$@"\n')
        self._stand_in(folder / "last/curl", CURL.format(python=sys.executable))
        path = f"{folder}/first:{os.environ['PATH']}:{folder}/last"
        self.folder = folder
        self.errors = folder / "errors.txt"
        with self.errors.open("w") as errors:
            self.bash = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env=os.environ | {"PATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @staticmethod
    def _stand_in(file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o755)

    def run(self, command: str) -> tuple[str, str]:
        """What it prints, and why it failed: nothing if it ended with exit status 0."""
        assert self.bash.stdin
        assert self.bash.stdout
        self.bash.stdin.write(f'{command}\necho "=$?="\n')
        self.bash.stdin.flush()
        told = ""
        for line in self.bash.stdout:
            end = re.search(r"=(\d+)=\n$", line)
            told += line[: end.start()] if end else line
            if end:
                return told, "" if end[1] == "0" else f"exit status {end[1]}:\n{told}{self.errors.read_text()}"
        raise AssertionError(f"{command}\nended the shell:\n{told}{self.errors.read_text()}")

    def close(self) -> None:
        """Whatever it has started ends as well."""
        self.bash.communicate("kill -9 $(jobs -p) 2> /dev/null\nexit\n", timeout=10)


@contextmanager
def shell(folder: Path, ports: Ports) -> Iterator[Shell]:
    bash = Shell(folder, ports)
    try:
        yield bash
    finally:
        bash.close()


def unlike(got: str, shown: str) -> str:
    """Why two texts differ; nothing if they do not. "…" stands for anything in a line, and the last digits of numbers
    may differ, since processors add up in different orders.
    """
    lines = got.strip().splitlines(), shown.strip().splitlines()
    if len(lines[0]) != len(lines[1]):
        return f"got:\n{got}\nshown:\n{shown}"
    for one, other in zip(*lines, strict=True):
        if ANYTHING in other:
            same = re.fullmatch(".*".join(map(re.escape, other.split(ANYTHING))), one) is not None
        else:
            numbers = [[float(number) for number in NUMBER.findall(line)] for line in (one, other)]
            same = NUMBER.sub("#", one) == NUMBER.sub("#", other)
            same = same and numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=1e-7)
        if not same:
            return f"got:   {one}\nshown: {other}"
    return ""


def run_command(bash: Shell, ports: Ports, command: str, shown: str) -> None:
    """What only looks is asked again for a while: what a page has caused may take a moment."""
    why = ""

    def comes_true() -> bool:
        nonlocal why
        told, why = bash.run(ports.map(command))
        for imported in re.findall(r"tensorgate import .*-o (\S+)", command):
            file = bash.folder / imported
            file.write_text(ports.map(file.read_text()))
        why = why or unlike(ports.unmap(told), shown)
        assert not why or ONLY_LOOKS.match(command), f"{command}\n{why}"
        return not why

    wait_until(comes_true, lambda: f"{command}\n{why}")


RECIPES = [page for page in PAGES if page.stem.startswith("recipes")]
MAX_RECIPE_LINES = 10


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_recipe_is_ten_lines_of_yaml(page: Path) -> None:
    """What stands below `models:`, for each of them."""
    models = re.findall(r"^  (\w+):\n((?:    .*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert models
    long = {name: lines for name, body in models if (lines := 1 + body.count("\n")) > MAX_RECIPE_LINES}
    assert long == {}


def _case(page: Path) -> Any:
    """Every page starts servers: a minute for all. The one that plugs something in runs with the other tests."""
    return pytest.param(page, id=page.stem, marks=() if page.stem == "add-a-dialect" else pytest.mark.heavy)


@pytest.mark.parametrize("page", [_case(page) for page in SCRIPTS])
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEY", "secret")
    ports, configurations = Ports(), set()
    shown_to_be_right = set(CHECKED.findall(page.read_text(encoding="utf-8")))
    if "$ openssl " in page.read_text(encoding="utf-8") and not shutil.which("openssl"):
        pytest.skip("there is no openssl")
    with shell(tmp_path, ports) as bash:
        for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind == "console":
                for command, shown in COMMAND.findall(text):
                    run_command(bash, ports, command, shown)
                continue
            name = FILE.match(text)
            if name is None:
                assert kind in ("yaml", "sh"), f"neither commands, a file, nor a part of one:\n{text}"
                continue
            (tmp_path / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name[1]).write_text(ports.map(text), encoding="utf-8")
            if kind == "yaml" and "models" in yaml.safe_load(text) and name[1] not in shown_to_be_right:
                configurations.add(tmp_path / name[1])
        for file in configurations:
            load_config(file, registries())


FRAGMENTS = [
    (page.stem, text)
    for page in PAGES
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8"))
    if kind == "yaml" and not text.startswith("# ") and "apiVersion:" not in text
]


@pytest.mark.parametrize(("page", "text"), FRAGMENTS, ids=[f"{page} {text.split()[0]}" for page, text in FRAGMENTS])
def test_a_part_of_a_configuration_is_one(page: str, text: str) -> None:
    """By its indentation it is of the file, of its models, or of one of these; every key and value fits the schema."""
    part = yaml.safe_load(re.sub(r"\b(\d)e-(\d)", r"\1.0e-\2", dedent(text)))  # a number, says YAML 1.2
    depth = len(text) - len(text.lstrip(" "))
    whole = {
        0: {"repositories": ["models"], **part},
        2: {"models": part},
        4: {"models": {"m": {"backend": "onnx", "path": "m", **part}}},
    }[depth]
    jsonschema.validate(whole, SCHEMA)


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(([^\s/]+?\.md)\)", index)) == [page.name for page in PAGES]


def test_links_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "docs/README.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
