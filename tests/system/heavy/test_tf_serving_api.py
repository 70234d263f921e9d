"""tensorflow-serving-api and TensorFlow itself against a running gateway, in the environment .venv-tensorflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from client_scripts import SCRIPTS, Outcomes, checks_of, run_script
from serving import DEMO, HOST, ROOT, demo_config, running

from tensorgate.gateway.contract.tensor import DTYPES

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-tensorflow/bin/python"
SCRIPT = Path(__file__).parent / "tf_serving_clients.py"


def echo(model: str, datatype: str) -> dict[str, object]:
    x = [{"name": "x", "datatype": datatype, "shape": [-1]}]
    return {"backend": "python", "path": f"{SCRIPTS / 'echo.py'}:{model}", "inputs": x, "outputs": x}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Of every check; the gateway has to end well, whatever the clients did."""
    if not PYTHON.exists():
        pytest.fail("TensorFlow is not installed: say `make test-system`", pytrace=False)
    models = {f"echo_{datatype}": echo("Echo", datatype) for datatype in DTYPES} | {"slow": echo("Slow", "INT32")}
    file = tmp_path_factory.mktemp("tensorflow") / "gateway.yaml"
    control = {"mode": "explicit", "load": ["*"], "model_roots": [str(DEMO.parent / "demo/models")]}
    file.write_text(demo_config(models, model_control=control))
    with running(file) as gateway:
        yield run_script(PYTHON, SCRIPT, f"{HOST}:{gateway.grpc_port}")
        assert gateway.stop() == 0, gateway.said
        assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.mark.parametrize("check", checks_of(SCRIPT))
def test_client(check: str, outcomes: Outcomes) -> None:
    if (failure := outcomes[check]) is not None:
        pytest.fail(failure, pytrace=False)
