"""What a real Triton 2.51 answered, and what the gateway answers over the same model repository.

`triton/repository.py` writes the repository, `triton/asked.py` has the requests, `triton/answers.json` what Triton
made of them, recorded by `triton/record.py`. Whatever differs stands here, with its reason.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from serving import running

FOLDER = Path(__file__).parent / "triton"
TRITON: dict[str, dict[str, Any]] = json.loads((FOLDER / "answers.json").read_text())


def module(name: str) -> ModuleType:
    """One of the folder's, which the recording server's own Python reads, too."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The gateway's, to all requests in their order: some build on earlier ones."""
    folder = tmp_path_factory.mktemp("triton")
    module("repository").build(folder / "models")
    file = folder / "gateway.yaml"
    listen = {"http": [{"bind": "127.0.0.1:0"}]}
    shared = {"system": True}
    file.write_text(yaml.safe_dump({"listen": listen, "repositories": ["models"], "shared_memory": shared}))
    with running(file) as gateway:
        yield module("record").record(gateway.port, str(folder / "models"))
        assert gateway.stop() == 0
        assert "failed unexpectedly" not in gateway.said


# ------------------------------------------------------------------------------------------------- what is not compared

_OURS_400 = "malformed requests are the caller's fault: 400, where Triton's JSON layer reports everything as internal"
_PATHS = "a model's exception is told without our paths and lines"
STATUS = {
    **dict.fromkeys(
        [
            'generate repeat {"N": "x"}',
            'generate_stream repeat {"N": "x"}',
            'generate repeat {"N": 1, "parameters": 3}',
            'generate_stream repeat {"N": 1, "parameters": 3}',
            "generate repeat [1]",
            "generate_stream repeat [1]",
            "logging, wrong",
        ],
        (400, _OURS_400),
    ),
    'generate repeat {"N": 0}': (400, "an error has an error's status"),
    'generate repeat {"N": 3}': (400, "an error has an error's status"),
    'generate repeat {"N": -1}': (500, "a model's error is internal unless it says otherwise, as for infer"),
    'generate_stream repeat {"N": -1}': (500, "a model's error is internal unless it says otherwise, as for infer"),
}
"""Another status, the same body."""
BODY = {
    "GET /v2/health/live": ({"live": True}, "KServe's client reads a body"),
    "trouble 100": (_PATHS, _PATHS),
    "trouble 101": (_PATHS, _PATHS),
    "call nobody": (_PATHS, _PATHS),
    "cuda register": (
        {"error": "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."},
        "off by default, as in current Triton",
    ),
}
"""Another body, or without what comes after `At:`."""
NOT_TOLD = ("parameters", "max_inflight_requests")
"""Triton's ensembles repeat their members' sequence flags; 2.51 does not know the other."""


def meaning(answer: dict[str, Any]) -> Any:
    """A body as a client understands it: JSON by its values, FP32 as such, events one by one."""
    body: str = answer["body"]
    if body.startswith("data: "):
        return [json.loads(event.removeprefix("data: ")) for event in body.strip().split("\n\n")]
    try:
        return _plain(json.loads(body))
    except ValueError:
        return body


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {key: _plain(item) for key, item in value.items() if key not in NOT_TOLD}
        if isinstance(plain.get("outputs"), list):
            plain["outputs"] = sorted(plain["outputs"], key=lambda output: str(output["name"]))
        if "dynamic_batching" in plain:
            plain["dynamic_batching"].pop("default_queue_policy", None)  # Triton's queue has no bound to tell of
        return plain
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


@pytest.mark.parametrize("name", TRITON)
def test_answers(name: str, answers: dict[str, Any]) -> None:
    triton, ours = TRITON[name], answers[name]
    status, _ = STATUS.get(name, (triton["status"], ""))
    body = meaning(triton)
    if name in BODY:
        body = BODY[name][0]
    if body == _PATHS:
        body = {"error": re.sub(r"\n\nAt:\n.*", "", meaning(triton)["error"], flags=re.DOTALL)}
    if name == "cuda register":
        status = 501
    assert (ours["status"], meaning(ours), ours.get("length")) == (status, body, triton.get("length"))


def test_every_difference_is_of_a_request_that_was_made() -> None:
    assert {*STATUS, *BODY} <= set(TRITON)
