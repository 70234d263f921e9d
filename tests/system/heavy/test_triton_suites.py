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
from heavy_tools import free_ports
from serving import HOST, ROOT, Gateway, started
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


def copy_tests(suite: Suite, checkouts: Path, folder: Path, gateway: Gateway, repository: Path) -> Path:
    """The suite and what its tests share, with the gateway's ports -> its folder, where `models` is the repository."""
    ports = {"8000": gateway.port, "8001": gateway.grpc_port, "8002": gateway.metrics_port}
    for part in ("common", suite.folder):
        (folder / part).mkdir(parents=True)
        for file in (checkouts / QA / part).glob("*.py"):
            text = file.read_text()
            for old, new in suite.edits if file.stem == suite.module else ():
                assert old in text, f"{file} does not say {old}"
                text = text.replace(old, new)
            text = PORT.sub(lambda found: str(ports[found[0]]), for_numpy_2(text))
            (folder / part / file.name).write_text(text)
    own = folder / suite.folder
    (own / f"{own.name}_server.log").symlink_to(gateway.log)
    (own / "models").symlink_to(repository)
    for model in suite.beside:
        model.write(checkouts, own)
    return own


def run_suite(suite: Suite, only: tuple[str, ...], folder: Path, gateway: Gateway) -> dict[str, str | None]:
    """Test (class.name) -> None if it passed, else its traceback."""
    common = next(each / "common" for each in folder.parents if (each / "common").is_dir())
    server = {"TRITONSERVER_IPADDR": HOST, "SERVER_LOG": str(gateway.log), "SERVER_PID": str(gateway.process.pid)}
    outcomes = common.parent / "outcomes.json"
    done = subprocess.run(
        [CLIENTS, RUNNER, outcomes, suite.module, *only],
        cwd=folder,
        env=environment() | {"PYTHONPATH": f"{folder}:{common}"} | server | suite.variables,
        capture_output=True,
        text=True,
        errors="replace",  # some print tensors
        timeout=RUNS_WITHIN_S,
    )
    if not outcomes.exists():
        pytest.fail(f"{suite.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}", pytrace=False)
    found: dict[str, str | None] = json.loads(outcomes.read_text())
    return {name.partition(".")[2]: text for name, text in found.items()}


def has_gpu() -> bool:
    return Path("/dev/nvidia0").exists()


def serve_and_run(suite: Suite, only: tuple[str, ...], checkouts: Path, folder: Path) -> dict[str, str | None]:
    """The outcomes of these tests at a gateway of their own."""
    repository = folder / "repository"
    repository.mkdir(parents=True)
    for model in suite.models:
        model.write(checkouts, repository)
    (metrics,) = free_ports(1)
    for program in repository.glob("*/1/model.py"):  # a model may look at its server's metrics
        program.write_text(program.read_text().replace("localhost:8002", f"{HOST}:{metrics}"))
    bind: dict[str, Any] = {"bind": f"{HOST}:0"}
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": {"bind": f"{HOST}:{metrics}"}}
    config = {"listen": listen, **suite.options}
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(config | {"server_name": "triton", "repositories": [str(repository)]}))
    with started(file.with_suffix(".log"), str(file), python=TORCH if suite.needs_torch else None) as gateway:
        if suite.is_ready:
            gateway.wait_until_ready()
        else:
            gateway.wait_until_said("NOT READY")
        return run_suite(suite, only, copy_tests(suite, checkouts, folder / "qa", gateway, repository), gateway)


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_of_triton_passes(suite: Suite, checkouts: Path, tmp_path: Path) -> None:
    runs = [(test,) for test in suite.only] if suite.alone else [suite.only]
    outcomes: dict[str, str | None] = {}
    for n, only in enumerate(runs):
        outcomes |= serve_and_run(suite, only, checkouts, tmp_path / str(n))
    skipped = () if has_gpu() else suite.gpu
    assert outcomes.keys() >= set(skipped), "what needs a GPU is in the suite"
    failed = {name: text for name, text in outcomes.items() if text is not None and name not in skipped}
    unexpected = [f"{name}\n{text}" for name, text in failed.items() if name not in suite.differs]
    assert not unexpected, "\n".join(unexpected)
    assert not suite.differs.keys() - failed.keys(), "these pass by now"
    assert len(outcomes) == suite.count
