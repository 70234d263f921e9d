"""A real Triton's answers over gRPC, call by call, and the gateway's for the same repository of Python models.

`triton/ask_grpc.py` asks, `triton/grpc_answers.json` is what Triton 2.51 answered it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from serving import HOST, ROOT, running
from triton.repository import build

FOLDER = Path(__file__).parent / "triton"
TRITON: Mapping[str, Any] = json.loads((FOLDER / "grpc_answers.json").read_text())
PYTHON = ROOT / ".venv-clients/bin/python"
ASKED_WITHIN_S = 100.0

NO_TRACEBACK = "a model's traceback, and where its files are, is the operator's business"
ANY_INTEGERS = "any integer field will do for any integer datatype, as the protocol's own example has it"
DIFFERENT: Mapping[str, str] = {
    "contents, other integers": ANY_INTEGERS,
    "version -1": "-1 is no version: the protocol's own example says so",
    "config auto": "the gateway's queue has a bound, and says so",
    "group": "an ensemble's outputs come in their declared order, without parameters that say nothing",
    "trouble 100": NO_TRACEBACK,
    "trouble 101": NO_TRACEBACK,
    "stream: trouble, raised": NO_TRACEBACK,
    "trace, wrong level": "Triton takes a word that is no level for OFF",
    "Cuda unregister one": "memory of GPUs is not enabled: unregistering all of it is allowed, as clients do at first",
    "register, reserved": "refused by its name, as by newer Tritons",
    "extra raw": "contents that belong to no input, which Triton drops without a word, are refused, as over HTTP",
    "register, cuda": "Triton looks at the handle first, the gateway at whether it has a GPU",
}
"""A call that is not answered as Triton answers it -> why."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    if not PYTHON.exists():
        pytest.fail("the clients are not installed: say `make clients`", pytrace=False)
    folder = tmp_path_factory.mktemp("answers")
    build(folder / "models")
    file = folder / "gateway.yaml"
    listen = {"http": [{"bind": f"{HOST}:0"}], "grpc": [{"bind": f"{HOST}:0"}]}
    config = {"repositories": ["models"], "listen": listen, "shared_memory": {"system": True}}
    file.write_text(yaml.safe_dump(config))
    with running(file, "--log-level", "info") as gateway:
        address = re.search(r"grpc://(\S+)", gateway.said)
        assert address, gateway.said
        asked = [PYTHON, FOLDER / "ask_grpc.py", address[1]]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=ASKED_WITHIN_S)
        assert done.returncode == 0, done.stderr
        assert gateway.stop() == 0, gateway.said
    made: Mapping[str, Any] = json.loads(done.stdout)
    return made


def test_the_same_is_asked(answers: Mapping[str, Any]) -> None:
    assert answers.keys() == TRITON.keys()
    assert DIFFERENT.keys() <= TRITON.keys()


@pytest.mark.parametrize("name", [name for name in TRITON if name not in DIFFERENT])
def test_answer(name: str, answers: Mapping[str, Any]) -> None:
    assert answers[name] == TRITON[name]


@pytest.mark.parametrize("name", DIFFERENT)
def test_difference(name: str, answers: Mapping[str, Any]) -> None:
    """What is listed does differ: else the list is out of date."""
    assert answers[name] != TRITON[name], DIFFERENT[name]
