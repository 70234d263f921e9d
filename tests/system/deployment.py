"""What deploy/ says, read for tests: expressions of rules and dashboards, and its configuration on free ports."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from client_scripts import SCRIPTS
from serving import DEMO, HOST, ROOT, Gateway, running

DEPLOY = ROOT / "deploy"
CONFIG = DEPLOY / "config/gateway.yaml"
DASHBOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
NAMES = {"$instance": ".*", "$dialect": ".*", "$model": ".*", "$__rate_interval": "1m"}
"""What Grafana puts in place of a dashboard's variables when All is chosen."""

BROKEN = """
class Broken:
    def __init__(self, context): ...

    def infer(self, inputs, request):
        raise RuntimeError("worn out")
"""

_QUOTED = re.compile(r'"[^"]*"')
_MATCHERS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_NAME = re.compile(r"(?<![\w:])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()")
_WORDS = frozenset(("or", "and", "unless", "bool", "offset"))
_THRESHOLD = re.compile(r"\s(?:>|<|==|!=|>=|<=)\s*[0-9.e+-]+$")


def documents(file: Path) -> list[Any]:
    """Every document of a YAML or JSON file."""
    text = file.read_text(encoding="utf-8")
    return [json.loads(text)] if file.suffix == ".json" else list(yaml.safe_load_all(text))


def rules() -> Iterator[tuple[str, str, bool]]:
    """(name, expression, whether it is recorded) of every rule; of an alert what it compares with its number."""
    for file in ("rules.yml", "alerts.yml"):
        for group in documents(DEPLOY / "prometheus" / file)[0]["groups"]:
            for rule in group["rules"]:
                recorded = "record" in rule
                measured = rule["expr"] if recorded else _THRESHOLD.sub("", rule["expr"])
                assert recorded or measured != rule["expr"], f"{rule['alert']} ends in no comparison"
                yield rule["record" if recorded else "alert"], measured, recorded


def panels() -> Iterator[tuple[str, str]]:
    """("dashboard: panel", expression) of every panel, with All for every variable."""
    for file in DASHBOARDS:
        board = documents(file)[0]
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for name, value in NAMES.items():
                    expression = expression.replace(name, value)
                yield f"{file.stem}: {panel['title']}", expression


def series(expression: str) -> set[str]:
    """The names of series that an expression of PromQL reads."""
    bare = _MATCHERS.sub(" ", _QUOTED.sub("", expression))
    return {name for name in _NAME.findall(bare) if name not in _WORDS and not name[0].isdigit()}


def on_free_ports(models: Mapping[str, Any] | None = None, file: Path = CONFIG) -> str:
    """The YAML of a shipped configuration on free ports of this machine, with absolute paths."""
    text = re.sub(r"0\.0\.0\.0:\d+", f"{HOST}:0", file.read_text(encoding="utf-8"))
    config = yaml.safe_load(text.replace("../../", f"{ROOT}/"))
    config["models"].update(models or {})
    return yaml.safe_dump(config, sort_keys=False)


class Ports(dict[int, int]):
    """A port of the shipped configuration -> where this gateway has it."""

    def __init__(self, gateway: Gateway) -> None:
        listen = yaml.safe_load(CONFIG.read_text())["listen"]
        wanted = {"http": listen["http"], "grpc": listen["grpc"], "metrics": [listen["metrics"]]}
        first = gateway.said.partition("\n")[0]
        for scheme, listeners in wanted.items():
            found = re.findall(rf"\b{scheme}://[^:]+:(\d+)", first)
            shipped = [int(listener["bind"].rpartition(":")[2]) for listener in listeners]
            self.update(zip(shipped, map(int, found), strict=True))


@contextmanager
def shipped(folder: Path) -> Iterator[tuple[Gateway, Ports]]:
    """A gateway with the shipped configuration, and models that fail, give back what they get, count slowly, and ask
    another server.
    """
    (folder / "broken.py").write_text(BROKEN)
    tensors = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    both = {"backend": "python", "inputs": tensors, "outputs": tensors}
    broken = both | {"path": str(folder / "broken.py:Broken")}
    echo = both | {"path": str(SCRIPTS / "echo.py:Echo")}
    countdown = yaml.safe_load(DEMO.read_text())["models"]["countdown"]
    countdown["path"] = str(DEMO.parent / countdown["path"])
    with upstream(folder, echo) as address:
        server = {"dialect": "open_inference", "transport": "http", "address": address, "model": "echo"}
        far = {"backend": "remote", "upstream": server, "inputs": tensors, "outputs": tensors}
        file = folder / "gateway.yaml"
        file.write_text(on_free_ports({"broken": broken, "echo": echo, "countdown": countdown, "far": far}))
        with running(file) as gateway:
            yield from _used(gateway)


def _used(gateway: Gateway) -> Iterator[tuple[Gateway, Ports]]:
    yield gateway, Ports(gateway)
    assert gateway.stop() == 0, gateway.said
    assert "Traceback" not in gateway.said_itself, gateway.said


@contextmanager
def upstream(folder: Path, echo: Mapping[str, Any]) -> Iterator[str]:
    """Another gateway with one model -> its address."""
    file = folder / "upstream.yaml"
    file.write_text(yaml.safe_dump({"listen": {"http": [{"bind": f"{HOST}:0"}]}, "models": {"echo": dict(echo)}}))
    with running(file) as gateway:
        yield f"{HOST}:{gateway.port}"


def burst(gateway: Gateway, ports: Ports) -> None:
    """A few calls of every dialect, those that fail among them: each counter has something to count."""
    image = json.loads((ROOT / "config/demo/images/7.json").read_bytes())
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
    for _ in range(5):
        for status, port, path, body in (
            (200, 8501, "/v1/models/digits:predict", {"instances": [image, image]}),
            (200, 8000, "/v2/models/half_plus_two/infer", {"inputs": [tensor]}),
            (200, 7080, "/grps/v1/infer/predict?return-ndarray=true", {"ndarray": [image]}),
            (200, 8000, "/v2/models/writer/generate", {"text_input": "In the", "max_tokens": 2}),
            (200, 9000, "/v1/completions", {"model": "writer", "prompt": "In the", "max_tokens": 2}),
            (404, 8501, "/v1/models/nobody:predict", {"instances": [1.0]}),
            (400, 8501, "/v1/models/half_plus_two:predict", {"instances": "seven"}),
            (500, 8000, "/v2/models/broken/infer", {"inputs": [tensor]}),
            (200, 8000, "/v2/models/far/infer", {"inputs": [tensor]}),
        ):
            answer = gateway.request("POST", path, body, port=ports[port])
            assert answer.status == status, answer


def installed(program: str, package: str) -> str:
    """Where a program of Debian's lies; the test is skipped where it is not installed."""
    found = shutil.which(program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    if found is None:
        pytest.skip(f"there is no {program}: say `apt-get install {package}`")
    return found
