"""A real Triton 2.51 answers today as triton/answers.json says, so that the transcript stays an honest one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from heavy_tools import triton
from serving import ROOT

pytestmark = pytest.mark.heavy

RECORD = ROOT / "tests/system/triton/record.py"
ANSWERS = ROOT / "tests/system/triton/answers.json"
RECORDS_WITHIN_S = 120.0


def record(*arguments: str | Path) -> None:
    """`record.py ARGUMENTS`, which imports what stands beside it."""
    subprocess.run([sys.executable, RECORD, *arguments], check=True, timeout=RECORDS_WITHIN_S)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of a server just started."""
    folder = tmp_path_factory.mktemp("triton")
    repository, answers = folder / "repository", folder / "answers.json"
    record("build", repository)
    with triton(repository, folder / "log") as (port, _):
        record("ask", str(port), answers, str(repository))
    found: dict[str, Any] = json.loads(answers.read_text())
    return found


COMMITTED: dict[str, Any] = json.loads(ANSWERS.read_text())


def test_the_same_was_asked(recorded: dict[str, Any]) -> None:
    assert list(recorded) == list(COMMITTED)


@pytest.mark.parametrize("name", COMMITTED)
def test_a_real_triton_answers_as_recorded(name: str, recorded: dict[str, Any]) -> None:
    expected, found = COMMITTED[name], recorded[name]
    if name.startswith("config "):  # the order of the keys of a map changes from start to start
        expected, found = ({**answer, "body": json.loads(answer["body"])} for answer in (expected, found))
    assert found == expected
