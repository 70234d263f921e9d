"""Genuine, unmodified clients against a running gateway, and the shell lines that `serve` prints.

The clients live in an environment of their own, `.venv-clients`, made by `make clients`: each script below `clients/`
runs there, and each of its checks is a test here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from client_scripts import SCRIPTS, Outcomes, checks_of, environment, run_script
from serving import DOOR_OPTIONS, RAISED
from text_world import DEFAULT_MODELS, text_models
from waiting import wait_until

from tensorgate.gateway.contract.tensor import DTYPES

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "config/demo.yaml"
PYTHON = ROOT / ".venv-clients/bin/python"
GMAP = {"s_s": "BYTES", "s_b": "BYTES", "s_i32": "INT32", "s_i64": "INT64", "s_f": "FP32", "s_d": "FP64"}
STOPS_WITHIN_S = 40.0

CHECKS = [(script.stem, check) for script in sorted(SCRIPTS.glob("*.py")) for check in checks_of(script)]


# ------------------------------------------------------------------------------------------------------------- gateway


def configuration() -> str:
    """The shipped demo on ports of the system's choice, with models that give back what they get."""
    config = yaml.safe_load(DEMO.read_text())
    for model in config["models"].values():
        model["path"] = _absolute(model["path"])
        if "example" in model:
            model["example"] = _absolute(model["example"])
        model["class_labels"] = {output: _absolute(path) for output, path in model.get("class_labels", {}).items()}
        model.update({"text": {**text, **_files(text)}} if (text := model.get("text")) else {})
    for datatype in DTYPES:
        config["models"][f"echo_{datatype}"] = _echo(x=datatype)
    config["models"]["echo_map"] = _echo(**GMAP) | {"grps": {"gmap": {kind: {"key": kind} for kind in GMAP}}}
    for name in ("comes_and_goes", "goes_and_comes"):
        config["models"][name] = dict(config["models"]["half_plus_two"])
    config["model_control"] = {"mode": "explicit", "load": ["*"], "allow_uploads": True}
    config["models"] |= {"simple_sequence": _controlled("START"), "simple_dyna_sequence": _controlled("START", "END")}
    config["models"]["fast_countdown"] = config["models"]["countdown"] | {"parameters": {"pause_ms": 0}}
    config["models"] |= {"repeat_int32": _repeat(), "colours": _colours(), "slow": _slow()}
    config["models"] |= text_models(config["models"]["writer"]["text"]["tokenizer"])
    config["openai"] = DEFAULT_MODELS
    config["listen"] = {"http": [{"bind": "127.0.0.1:0"}], "grpc": [{"bind": "127.0.0.1:0"}]}
    config["tracing"] = {"file": "trace.json"}
    config["shared_memory"] = {"system": True}
    return yaml.safe_dump(config, sort_keys=False)


def _absolute(path: str) -> str:
    return str(DEMO.parent / path)


def _echo(**datatypes: str) -> dict[str, Any]:
    tensors = [{"name": name, "datatype": datatype, "shape": [-1]} for name, datatype in datatypes.items()]
    return {"backend": "python", "path": f"{SCRIPTS / 'echo.py'}:Echo", "inputs": tensors, "outputs": tensors}


def _controlled(*controls: str) -> dict[str, Any]:
    """A model of sequences like those of Triton's examples: it shows what it was told."""
    kinds = [{"input": name, "kind": name.lower()} for name in controls]
    if "END" in controls:
        kinds.append({"input": "CORRID", "kind": "correlation_id", "datatype": "UINT64"})
    return {
        "backend": "python",
        "path": f"{SCRIPTS / 'echo.py'}:Told",
        "max_batch_size": 8,
        "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [-1, 1]}],
        "outputs": [{"name": "OUTPUT", "datatype": "INT32", "shape": [-1, 1]}],
        "sequences": {"max_idle_us": 5_000_000, "controls": kinds},
    }


def _repeat() -> dict[str, Any]:
    """The decoupled model of Triton's example of custom backends."""
    return {
        "backend": "python",
        "path": f"{SCRIPTS / 'echo.py'}:Repeat",
        "inputs": [
            {"name": "IN", "datatype": "INT32", "shape": [-1]},
            {"name": "DELAY", "datatype": "UINT32", "shape": [-1]},
            {"name": "WAIT", "datatype": "UINT32", "shape": [1]},
        ],
        "outputs": [
            {"name": "OUT", "datatype": "INT32", "shape": [1]},
            {"name": "IDX", "datatype": "UINT32", "shape": [1]},
        ],
    }


def _colours() -> dict[str, Any]:
    """A model of pictures as image_client expects them: one input that says how they lie, one output with labels."""
    return {
        "backend": "python",
        "path": f"{SCRIPTS / 'echo.py'}:Colours",
        "max_batch_size": 4,
        "inputs": [{"name": "picture", "datatype": "FP32", "shape": [-1, 6, 8, 3]}],
        "outputs": [{"name": "colours", "datatype": "FP32", "shape": [-1, 3]}],
        "class_labels": {"colours": str(SCRIPTS / "colours.txt")},
        "open_inference": {"model_config": {"input": [{"name": "picture", "format": "FORMAT_NHWC"}]}},
    }


def _files(text: Mapping[str, Any]) -> dict[str, str]:
    return {key: _absolute(text[key]) for key in ("tokenizer", "chat_template") if key in text}


def _slow() -> dict[str, Any]:
    tensors = [{"name": "x", "datatype": "INT32", "shape": [1]}]
    return {"backend": "python", "path": f"{SCRIPTS / 'echo.py'}:Slow", "inputs": tensors, "outputs": tensors}


class Gateway:
    """`tensorgate serve` as a user runs it, in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def said(self) -> str:
        return self.log.read_text()

    def address(self, scheme: str) -> str:
        """HOST:PORT, from the first line that it printed."""
        return self.said.partition(f" {scheme}://")[2].split()[0]

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.said or self.process.poll() is not None, lambda: self.said)
        assert text in self.said, self.said

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOPS_WITHIN_S)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The demo and the echoes, ready. Whatever its clients did, it has to end well."""
    folder = tmp_path_factory.mktemp("gateway")
    file, log = folder / "gateway.yaml", folder / "log"
    file.write_text(configuration())
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorgate", "serve", *DOOR_OPTIONS, str(file), "--log-level", "warning"],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    running = Gateway(process, log)
    try:
        running.wait_for("\nready\n")
        yield running
        assert running.stop() == 0, running.said
        assert "Traceback" not in RAISED.sub("", running.said), running.said
    finally:
        process.kill()
        process.wait()


# ------------------------------------------------------------------------------------------------------------- clients


@pytest.fixture(scope="module")
def outcomes_of(gateway: Gateway) -> Callable[[str], Outcomes]:
    """Script -> the outcomes of its checks; it runs once."""
    known: dict[str, Outcomes] = {}

    def outcomes(script: str) -> Outcomes:
        if script not in known:
            if not PYTHON.exists():
                pytest.fail("the clients are not installed: say `make clients`", pytrace=False)
            address = gateway.address("grpc" if "_grpc" in script else "http")
            known[script] = run_script(PYTHON, SCRIPTS / f"{script}.py", address)
        return known[script]

    return outcomes


@pytest.mark.parametrize(("script", "check"), CHECKS)
def test_client(script: str, check: str, outcomes_of: Callable[[str], Outcomes]) -> None:
    failure = outcomes_of(script)[check]
    if failure is not None:
        pytest.fail(f"{script}.{check}:\n{failure}", pytrace=False)


def test_what_a_client_had_traced_is_in_the_file(outcomes_of: Callable[[str], Outcomes], gateway: Gateway) -> None:
    outcomes_of("triton_http_extensions")
    about, first, again, second = json.loads((gateway.log.parent / "trace.json").read_text())
    assert about == {"id": 1, "model_name": "add_sub", "model_version": 1}
    assert again == {**about, "id": 2}
    for trace in (first, second):
        stamps = {each["name"]: each["ns"] for each in trace["timestamps"]}
        names = ("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START")
        assert list(stamps) == [*names, "COMPUTE_END", "REQUEST_END"]
        assert list(stamps.values()) == sorted(stamps.values())
    assert first["timestamps"][-1]["ns"] <= second["timestamps"][0]["ns"]


# -------------------------------------------------------------------------------------------------------- with a shell


SCORES: Mapping[str, Callable[[Any], list[float]]] = {
    "Open Inference V2": lambda answer: answer["outputs"][0]["data"],
    "TensorFlow Serving": lambda answer: answer["predictions"][0],
    "grps": lambda answer: answer["ndarray"][0],
}
"""Title of a dialect, as `serve` prints it -> where the scores of its printed request's answer are."""


def printed_requests(gateway: Gateway) -> dict[str, str]:
    """Title -> shell line, of everything that `serve` prints once it is ready; what clients had logged may follow."""
    for title in SCORES:
        gateway.wait_for(f"\n{title}:\n  ")
    _, _, after = RAISED.sub("", gateway.said).partition("\nready\n")
    return dict(re.findall(r"^(.+):\n  (.+)\n", after, re.MULTILINE))


def by_shell(line: str) -> bytes:
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], env=environment() | path, capture_output=True, timeout=60, check=True)
    return done.stdout


def by_hand(line: str) -> bytes:
    """The request that curl would make of its arguments, for machines without it: -s, -X, -H, -d and the address; with
    `-d @-` of what the command before it prints.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-X", dest="method", default="POST")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data", required=True)
    before, _, line = line.rpartition(" | ")
    command, *arguments = shlex.split(line)
    assert command == "curl"
    options = parser.parse_args(arguments)
    headers = dict(header.split(": ", 1) for header in options.headers)
    data = options.data.encode()
    if before:
        assert (shlex.split(before)[0], data) == ("tensorgate", b"@-")
        words = [sys.executable, "-m", *shlex.split(before)]
        data = subprocess.run(words, capture_output=True, timeout=60, check=True).stdout
    request = urllib.request.Request(options.url, data, headers, method=options.method)  # noqa: S310
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
        content: bytes = answer.read()
    return content


WAYS = [by_hand, by_shell] if shutil.which("curl") else [by_hand]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("title", SCORES)
def test_what_serve_prints_can_be_pasted(title: str, way: Callable[[str], bytes], gateway: Gateway) -> None:
    scores = SCORES[title](json.loads(way(printed_requests(gateway)[title])))
    assert len(scores) == 10
    assert scores.index(max(scores)) == 7, "the example is a picture of a 7"


def test_every_printed_request_is_tried(gateway: Gateway) -> None:
    assert printed_requests(gateway).keys() == SCORES.keys() | {"OpenAI"}


@pytest.mark.parametrize("way", WAYS)
def test_what_serve_prints_of_texts_can_be_pasted(way: Callable[[str], bytes], gateway: Gateway) -> None:
    answer = json.loads(way(printed_requests(gateway)["OpenAI"]))
    assert answer["choices"][0]["text"]
