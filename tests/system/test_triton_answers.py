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

from tensorgate.gateway.page import page

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

JSON_LAYER = re.compile(
    r"Unable to (parse|set)|failed to (parse the|get) request|attempt to |Expected JSON object|Attempting to|expect "
)
"""What Triton's JSON layer says, with status 500, of malformed requests. They are the caller's fault: 400."""
STATUS = {
    'generate repeat {"N": 0}': (400, "an error has an error's status"),
    'generate repeat {"N": 3}': (400, "an error has an error's status"),
    'generate repeat {"N": -1}': (500, "a model's error is internal unless it says otherwise, as for infer"),
    'generate_stream repeat {"N": -1}': (500, "a model's error is internal unless it says otherwise, as for infer"),
}
"""Another status, the same body."""
OTHERWISE: dict[str, tuple[int, Any, str]] = {
    "GET /": (200, bytes(page("/").body).decode(), "the operator's page"),  # type: ignore[arg-type]
    "GET /v2/health/live": (200, {"live": True}, "KServe's client reads a body"),
    "GET /v2/models/add_sub/versions/1/ready": (
        200,
        {"name": "add_sub", "ready": True},
        "KServe's client reads a body",
    ),
    "cuda register": (
        501,
        {"error": "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."},
        "off by default, as in current Triton",
    ),
    "output twice": (
        400,
        {"error": "[request id: <id_unknown>] output 'OUTPUT0' already exists in request"},
        "refused, as by Triton from 26.05 on",
    ),
    "body 0 b''": (
        400,
        {"error": "failed to parse the request JSON buffer: The document is empty. at 0"},
        "a body without a request is none, where 2.51 runs the model on nothing",
    ),
    """body 21 b'{"a":"\\xff"}'""": (
        400,
        {"error": "failed to parse the request JSON buffer: Invalid encoding in string. at 6"},
        "JSON is UTF-8",
    ),
    """body 27 b'{"a":"x\\n"}'""": (
        400,
        {"error": "failed to parse the request JSON buffer: Invalid encoding in string. at 7"},
        "a newer parser has another word for a bare control character",
    ),
    "input shape []": (
        400,
        {"error": "Unable to parse 'data': Shape does not match true shape of 'data' field"},
        "two values for a scalar are told before its rank",
    ),
    "batch of none": (
        200,
        {
            "model_name": "add_sub",
            "model_version": "1",
            "outputs": [
                {"name": "OUTPUT0", "datatype": "INT32", "shape": [0, 4], "data": []},
                {"name": "OUTPUT1", "datatype": "INT32", "shape": [0, 4], "data": []},
            ],
        },
        "no rows are a batch like any other",
    ),
    'generate facts {"IN": [1, 2], "z": 1, "a": "b", "id": "q"}': (
        200,
        {
            "id": "q",
            "model_name": "facts",
            "model_version": "1",
            "PARAMETERS": '{"a": "b", "z": 1}',
            "ID": "q",
            "WANTED": ["CONFIG", "ID", "PARAMETERS", "WANTED"],
            "CONFIG": ["hello", "0", "TYPE_INT32", "CPU", "1", "facts"],
        },
        "the id is no parameter: parameters decide who shares a batch",
    ),
}
"""Status, body, and why."""
WITHOUT_PATHS = ("trouble 100", "trouble 101", "call nobody")
"""A model's exception is told without our paths and lines, which follow `At:`."""
NOT_TOLD = ("parameters", "max_inflight_requests", "sequence_id", "sequence_start", "sequence_end")
"""Triton's ensembles repeat their members' sequence flags; 2.51 does not know the other."""


def expected(name: str) -> tuple[int, Any]:
    """Status and body that the gateway gives where Triton gave what it gave."""
    triton = TRITON[name]
    if name in OTHERWISE:
        return OTHERWISE[name][:2]
    status, body = STATUS.get(name, (triton["status"], ""))[0], meaning(triton)
    if name in WITHOUT_PATHS:
        body = {"error": re.sub(r"\n\nAt:\n.*", "", body["error"], flags=re.DOTALL)}
    text = body.get("error", "") if isinstance(body, dict) else ""
    return (400 if status == 500 and JSON_LAYER.match(text) else status), body


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
    return f"{value:.8g}" if isinstance(value, float) else value  # as text, NaN is equal to itself


@pytest.mark.parametrize("name", TRITON)
def test_answers(name: str, answers: dict[str, Any]) -> None:
    ours = answers[name]
    assert (ours["status"], meaning(ours)) == expected(name)
    if name not in OTHERWISE:
        assert ours.get("length") == TRITON[name].get("length")


def test_every_difference_is_of_a_request_that_was_made() -> None:
    assert {*STATUS, *OTHERWISE, *WITHOUT_PATHS} <= set(TRITON)
