"""KServe's own Python clients against a running gateway, in the environment .venv-heavy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from client_scripts import SCRIPTS, Outcomes, checks_of, run_script
from serving import HOST, ROOT, demo_config, running

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-heavy/bin/python"
SCRIPT = Path(__file__).parent / "kserve_clients.py"
DATATYPES = ("BOOL", "UINT8", "UINT64", "INT64", "FP16", "FP32", "FP64")


def echo(datatype: str) -> dict[str, object]:
    x = [{"name": "x", "datatype": datatype, "shape": [-1]}]
    return {"backend": "python", "path": f"{SCRIPTS / 'echo.py'}:Echo", "inputs": x, "outputs": x}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Of every check; the gateway has to end well, whatever the clients did."""
    if not PYTHON.exists():
        pytest.fail("KServe is not installed: say `make test-system`", pytrace=False)
    file = tmp_path_factory.mktemp("kserve") / "gateway.yaml"
    file.write_text(demo_config({f"echo_{datatype}": echo(datatype) for datatype in DATATYPES}))
    with running(file) as gateway:
        yield run_script(PYTHON, SCRIPT, f"{HOST}:{gateway.port},{HOST}:{gateway.grpc_port}")
        assert gateway.stop() == 0, gateway.said
        assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.mark.parametrize("check", checks_of(SCRIPT))
def test_client(check: str, outcomes: Outcomes) -> None:
    if (failure := outcomes[check]) is not None:
        pytest.fail(failure, pytrace=False)
