"""The table of shortcuts: every row has its switch, and the switch works."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorgate.gateway.contract import shortcuts

ROOT = Path(shortcuts.__file__).parents[3]


def asked() -> dict[str, set[str]]:
    """Shortcut -> the modules that ask for it."""
    found: dict[str, set[str]] = {}
    for top in ("gateway", "adapters", "backends"):
        for file in (ROOT / top).rglob("*.py"):
            for name in re.findall(r'\b(?:is_taken|helper)\("(\w+)"', file.read_text()):
                module = file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
                found.setdefault(name, set()).add(module.removesuffix(".__init__"))
    return found


def test_every_row_has_its_switch_and_every_switch_its_row() -> None:
    assert asked().keys() == shortcuts.SHORTCUTS.keys()


@pytest.mark.parametrize("name", shortcuts.SHORTCUTS)
def test_a_row_says_where_the_ways_part(name: str) -> None:
    row = shortcuts.SHORTCUTS[name]
    modules = row.where.split(", ")
    assert asked()[name] & set(modules)
    for module in modules:
        importlib.import_module(f"tensorgate.{module}")
    assert row.when
    assert row.plain
    assert row.saves


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set()),
        (" , ", set()),
        ("bare_runs", {"bare_runs"}),
        (" bare_runs , inline_runs", {"bare_runs", "inline_runs"}),
        ("all", set(shortcuts.SHORTCUTS)),
        ("bare_runs,all", set(shortcuts.SHORTCUTS)),
    ],
)
def test_what_the_variable_turns_off(text: str, names: set[str]) -> None:
    assert shortcuts.named(text) == names


def test_a_name_in_no_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="there is no shortcut 'bear_runs'; all, or some of http_fast_path, "):
        shortcuts.named("bare_runs,bear_runs")
    with pytest.raises(KeyError):
        shortcuts.is_taken("bear_runs")


def python(code: str, plain: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, shortcuts.VARIABLE: plain}
    return subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)


def test_a_process_without_shortcuts() -> None:
    code = (
        "from tensorgate.gateway.contract import shortcuts as s; import tensorgate.backends.execution.pipeline;"
        "from tensorgate.adapters.json import body, texts; from tensorgate.adapters.protobuf import varints;"
        "print(len(s.plain_names()) == len(s.SHORTCUTS), body._native_scan, texts._native_json,"
        "varints._native_decode)"
    )
    assert python(code, "all").stdout.split() == ["True", "None", "None", "None"]


def test_a_wrong_name_does_not_start_a_server() -> None:
    code = "import sys; from tensorgate.gateway.cli.main import main; sys.exit(main(['serve', 'config/demo.yaml']))"
    done = python(code, "quickly")
    assert done.returncode == 2
    assert "TENSORGATE_PLAIN: there is no shortcut 'quickly'" in done.stderr
