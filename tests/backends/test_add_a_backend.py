"""docs/add-a-backend.md as it stands: its files are written, its model is loaded, and its own test passes."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/add-a-backend.md").read_text(encoding="utf-8")
FILE = re.compile(r"^```(?:python|yaml)\n# (try/\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "try/linear/1").mkdir(parents=True)
    for name, text in FILE.findall(PAGE):
        (tmp_path / name).write_text(text, encoding="utf-8")
    np.savez(tmp_path / "try/linear/1/weights.npz", w=np.float32([[1], [10]]), b=np.float32([0.5]))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("try/serve.py check --load try/gateway.yaml", "try/gateway.yaml: ok, 1 models"),
        ("-m pytest -q -p no:cacheprovider --import-mode=prepend try/test_npz_linear.py", "3 passed"),
    ],
)
def test_the_page_works(clone: Path, command: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=clone,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert shown in done.stdout, done.stdout + done.stderr


def test_the_page_is_read_in_a_few_minutes() -> None:
    assert len(PAGE.splitlines()) <= 120
