"""What the README shows is what happens: every console command in it is run, and its output compared."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from serving import Gateway

from tensorgate.gateway.app import registries
from tensorgate.gateway.config import load_config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    (command, output)
    for block in BLOCKS
    for command, output in re.findall(r"^\$ ([^\n]*)\n(.*?)(?=^\$ |\Z)", block, re.DOTALL | re.MULTILINE)
    if not command.startswith("make ")
]
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


CURL = """#!{python}
import sys, urllib.request
words = [word for word in sys.argv[1:] if word not in ("-s", "-sN")]
values = {flag: words[words.index(flag) + 1] for flag in ("-d", "-H") if flag in words}
(url,) = [word for word in words if word not in (*values, *values.values())]
request = urllib.request.Request("http://" + url, values["-d"].encode())
request.add_header(*values.get("-H", "Content-Type: application/x-www-form-urlencoded").split(": "))
sys.stdout.buffer.write(urllib.request.urlopen(request).read())
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The PATH, with a stand-in for curl at its end: the README's lines are run on machines without curl, too."""
    stand_in = tmp_path / "curl"
    stand_in.write_text(CURL.replace("{python}", sys.executable))
    stand_in.chmod(0o755)
    return f"{os.environ['PATH']}:{tmp_path}"


def assert_alike(got: str, shown: str) -> None:
    """Equal text; numbers may differ in their last digits, since processors add up in different orders."""
    assert NUMBER.sub("#", got.strip()) == NUMBER.sub("#", shown.strip())
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (got, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=1e-7)


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command[:50] for command, _ in COMMANDS])
def test_commands_print_what_is_shown(command: str, output: str, demo: Gateway, path: str) -> None:
    host = demo.url.removeprefix("http://")
    command = command.replace("localhost:8000", host)
    command = re.sub(r"^tensorgate (call|health|models)(.*)", rf"tensorgate \1\2 --url {demo.url}", command)
    command = re.sub(r"^tensorgate ", f"{sys.executable} -m tensorgate ", command)
    told = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=30
    )
    assert told.returncode == 0, told.stderr
    assert_alike(told.stdout, output)


def test_the_configuration_shown_is_a_configuration(tmp_path: Path) -> None:
    text = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)[0]
    (tmp_path / "models/resnet").mkdir(parents=True)
    (tmp_path / "cosine.py").touch()
    (tmp_path / "gateway.yaml").write_text(text, encoding="utf-8")
    assert set(load_config(tmp_path / "gateway.yaml", registries()).models) == {"resnet", "cosine"}


def test_the_first_screen_has_the_two_commands() -> None:
    first_screen = README[:2500]
    assert "$ make run" in first_screen
    assert "$ make test" in first_screen


def test_it_is_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 150
