"""grps' own examples: their clients, unmodified, at the server that they were written for, and behind a gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from client_scripts import environment
from peer_servers import GRPS, GRPS_EXAMPLES, GRPS_SOURCES, grps
from serving import HOST, running
from waiting import wait_until

pytestmark = pytest.mark.heavy

MODEL = "your_model-1.0.0"
WORDS = 4
CUSTOMIZED = {"customized_predict_http": {"path": "/custom_predict", "customized_body": True}}


@pytest.fixture(scope="module")
def examples() -> Path:
    if not {GRPS_SOURCES, GRPS_EXAMPLES} <= os.environ.keys():
        pytest.skip(f"{GRPS_SOURCES} and {GRPS_EXAMPLES} name no checkouts of NetEase-Media's grps and grps_examples")
    if not GRPS.exists():
        pytest.fail(f"{GRPS} is not installed: say `make test-system`", pytrace=False)
    return Path(os.environ[GRPS_EXAMPLES]) / "py_examples"


def asked(example: Path, transport: str, port: int) -> str:
    """What an example's client prints."""
    apis = Path(os.environ[GRPS_SOURCES]) / "apis/grps_apis/python_gens"
    done = subprocess.run(
        [GRPS, example / f"client/python/{transport}_client.py", f"{HOST}:{port}"],
        env=environment() | {"PYTHONPATH": str(apis)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def front(folder: Path, http: int, rpc: int, **section: Any) -> Path:
    server = {"dialect": "grps", "address": f"{HOST}:{rpc}", "other_address": f"{HOST}:{http}", "models": [MODEL]}
    listen = {"http": [{"bind": f"{HOST}:0"}], "grpc": [{"bind": f"{HOST}:0"}]}
    told = {"listen": listen, "upstreams": {"old": server}, "grps": {"initially_online": True, **section}}
    (folder / "front.yaml").write_text(yaml.safe_dump(told))
    return folder / "front.yaml"


def test_a_stream_of_words(examples: Path, tmp_path: Path) -> None:
    """The network draws words by chance: the first is the caller's, three follow, each a message of its own."""
    example = tmp_path / "example"
    shutil.copytree(examples / "rnn-streaming", example)
    move = "import sys, torch; torch.jit.load(sys.argv[1], map_location='cpu').save(sys.argv[1])"  # it was on a GPU
    subprocess.run([GRPS, "-W", "ignore", "-c", move, example / "data/rnn_model.pt"], env=environment(), check=True)
    with grps(tmp_path / "server", example) as (http, rpc), running(front(tmp_path, http, rpc)) as gateway:
        # The server itself loses messages of a stream at times, so it is asked again until it does not.
        for port in (http, gateway.port):
            wait_until(lambda port=port: asked(example, "http", port).count("str_data") == WORDS)  # type: ignore[misc]
        for port in (rpc, gateway.grpc_port):
            wait_until(lambda port=port: words(asked(example, "grpc", port)))  # type: ignore[misc]


def words(told: str) -> bool:
    """Whether all of them are there, the caller's first."""
    found = told.split("str_data: ")[1:]
    return len(found) == WORDS and found[0].startswith('"this process"')


def test_a_request_and_an_answer_of_the_models_own_form(examples: Path, tmp_path: Path) -> None:
    example = examples / "customized_http"
    with grps(tmp_path / "server", example) as (http, rpc):
        direct = asked(example, "http", http)
        with running(front(tmp_path, http, rpc, **CUSTOMIZED)) as gateway:
            behind = asked(example, "http", gateway.port)
    answers = [[line for line in told.splitlines() if line[:4] in ("200 ", "500 ")] for told in (direct, behind)]
    assert len(answers[0]) == 3, direct
    assert answers[1] == answers[0]
