"""Triton's own tests pass against the gateway, with other ports; what differs by intent stands in the table."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from client_scripts import environment
from serving import HOST, ROOT, Gateway, running
from triton_suites import FETCH, QA, SUITES, Suite, for_numpy_2

pytestmark = pytest.mark.heavy

CLIENTS = ROOT / ".venv-clients/bin/python"
TORCH = ROOT / ".venv-torch/bin/python"
RUNNER = Path(__file__).parent / "triton_suite_runner.py"
RUNS_WITHIN_S = 400.0
PORT = re.compile(r"(?<=:)800[012]\b")
"""Where their tests name Triton's port of HTTP, gRPC or metrics."""


@pytest.fixture(scope="module")
def checkouts() -> Path:
    if "TRITON_QA" not in os.environ:
        pytest.skip(f"TRITON_QA names no folder with Triton's sources; {FETCH}")
    return Path(os.environ["TRITON_QA"])


def copy_tests(suite: Suite, checkouts: Path, folder: Path, gateway: Gateway) -> Path:
    """The suite and what its tests share, with the gateway's ports -> its folder."""
    ports = {"8000": gateway.port, "8001": gateway.grpc_port, "8002": gateway.metrics_port}
    for part in ("common", suite.folder):
        (folder / part).mkdir(parents=True)
        for file in (checkouts / QA / part).glob("*.py"):
            text = PORT.sub(lambda found: str(ports[found[0]]), for_numpy_2(file.read_text()))
            (folder / part / file.name).write_text(text)
    own = folder / suite.folder
    (own / f"{own.name}_server.log").symlink_to(gateway.log)
    return own


def run_suite(suite: Suite, folder: Path) -> dict[str, str | None]:
    """Test (class.name) -> None if it passed, else its traceback."""
    done = subprocess.run(
        [CLIENTS, RUNNER, suite.module, *suite.only],
        cwd=folder,
        env=environment() | {"PYTHONPATH": str(folder), "TRITONSERVER_IPADDR": HOST} | suite.variables,
        capture_output=True,
        text=True,
        timeout=RUNS_WITHIN_S,
    )
    try:
        found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        pytest.fail(f"{suite.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}", pytrace=False)
    return {name.partition(".")[2]: text for name, text in found.items()}


def has_gpu() -> bool:
    return Path("/dev/nvidia0").exists()


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_of_triton_passes(suite: Suite, checkouts: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for model in suite.models:
        model.write(checkouts, repository)
    bind: dict[str, Any] = {"bind": f"{HOST}:0"}
    config = {"listen": {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}, **suite.options}
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(config | {"server_name": "triton", "repositories": [str(repository)]}))
    with running(file, python=TORCH if suite.needs_torch else None) as gateway:
        outcomes = run_suite(suite, copy_tests(suite, checkouts, tmp_path / "qa", gateway))
    skipped = () if has_gpu() else suite.gpu
    assert outcomes.keys() >= set(skipped), "what needs a GPU is in the suite"
    failed = {name: text for name, text in outcomes.items() if text is not None and name not in skipped}
    unexpected = [f"{name}\n{text}" for name, text in failed.items() if name not in suite.differs]
    assert not unexpected, "\n".join(unexpected)
    assert not suite.differs.keys() - failed.keys(), "these pass by now"
    assert len(outcomes) == suite.count
