"""Scripts of genuine clients, run apart from the gateway in an environment of their own: see clients/checks.py."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "clients"
SCRIPT_WITHIN_S = 60.0

Outcomes = Mapping[str, str | None]
"""Name of a check -> None if it passed, else the client's traceback."""


def checks_of(script: Path) -> list[str]:
    """The checks that a script has, read without running it: its imports are not ours."""
    statements = ast.parse(script.read_text()).body
    return [each.name for each in statements if isinstance(each, ast.FunctionDef) and each.name.startswith("check_")]


def run_script(python: Path, script: Path, *addresses: str) -> Outcomes:
    """The outcomes of its checks."""
    done = subprocess.run(
        [python, script, *addresses],
        env=environment() | {"PYTHONPATH": str(SCRIPTS)},  # where checks.py is
        capture_output=True,
        text=True,
        timeout=SCRIPT_WITHIN_S,
    )
    return outcomes_of(done, script.stem)


def outcomes_of(done: subprocess.CompletedProcess[str], name: str) -> Outcomes:
    """What a script has written into its last line."""
    try:
        outcomes: Outcomes = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        pytest.fail(f"{name} ended with {done.returncode}:\n{done.stdout}{done.stderr}", pytrace=False)
    assert done.returncode == any(outcomes.values())
    return outcomes


def environment() -> dict[str, str]:
    """Ours, without what would send a client through a proxy or to other modules."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith("PYTHON")
    }
