"""Imports go one way, by room: what `make lint` holds everybody to would find each of these."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLANTED = {
    "gateway/contract/call.py": ("tensorgate.gateway.service", "contract"),
    "gateway/wire/http2_frames.py": ("tensorgate.gateway.engine.model", "one room"),
    "gateway/engine/worker.py": ("tensorgate.gateway.engine.scheduler", "a cycle"),
    "gateway/transport/timeouts.py": ("tensorgate.gateway.models.repository", "the cut"),
    "gateway/monitoring/families.py": ("tensorgate.gateway.routing.router", "the cut"),
    "gateway/models/meters.py": ("tensorgate.gateway.monitoring.log_lines", "behind the cut"),
    "gateway/routing/route.py": ("tensorgate.adapters.grps", "composition root"),
    "adapters/grps/tensors.py": ("asyncio", "pure dialects"),
    "adapters/tf_serving/options.py": ("tensorgate.gateway.transport.http_server", "pure dialects"),
    "adapters/open_inference/raw.py": ("tensorgate.backends.onnx", "pure dialects"),
    "backends/onnx/file.py": ("tensorgate.adapters.json.body", "plain backends"),
    "backends/ensemble/backend.py": ("tensorgate.gateway.engine.scheduler", "plain backends"),
}
"""File -> what it imports, and what that is wrong by."""


def contracts(folder: Path) -> str:
    command = "import sys; from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", command], cwd=folder, capture_output=True, text=True)
    return " ".join(done.stdout.split())


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    without = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("gateway", "adapters", "backends", "tensorgate"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_planted_imports_are_found(house: Path) -> None:
    for file, (module, _) in PLANTED.items():
        path = house / file
        path.write_text(f"{path.read_text()}\nimport {module}\n")
    told = contracts(house)
    assert "0 kept, 7 broken" in told
    for file, (module, _) in PLANTED.items():
        importer = "tensorgate." + file.removesuffix(".py").replace("/", ".")
        if module.startswith("tensorgate.gateway.engine.scheduler") and "engine" in file:
            assert "No cycles are allowed in tensorgate.gateway.engine" in told
        else:
            assert f"{importer} -> {module}" in told, importer


def test_a_file_without_a_room_is_found(house: Path) -> None:
    (house / "gateway/attic.py").write_text('"""Whatever."""\n')
    assert "attic" in contracts(house)
