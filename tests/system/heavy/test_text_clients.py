"""LangChain, LlamaIndex, LiteLLM and Gradio against a running gateway, in the environment .venv-text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from client_scripts import Outcomes, checks_of, run_script
from serving import DEMO, HOST, ROOT, demo_config, running
from text_world import DEFAULT_MODELS, text_models

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-text/bin/python"
SCRIPT = Path(__file__).parent / "text_clients.py"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Of every check; the gateway has to end well, whatever the clients did."""
    if not PYTHON.exists():
        pytest.fail("they are not installed: say `make test-system`", pytrace=False)
    file = tmp_path_factory.mktemp("text") / "gateway.yaml"
    models = text_models(str(DEMO.parent / "demo/models/writer/tokenizer.json"))
    file.write_text(demo_config(models, openai=DEFAULT_MODELS))
    with running(file) as gateway:
        yield run_script(PYTHON, SCRIPT, f"{HOST}:{gateway.port}")
        assert gateway.stop() == 0, gateway.said
        assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.mark.parametrize("check", checks_of(SCRIPT))
def test_client(check: str, outcomes: Outcomes) -> None:
    if (failure := outcomes[check]) is not None:
        pytest.fail(failure, pytrace=False)
