"""A gateway as a user runs it: the real command in a process of its own, and requests as bytes over a socket."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from forks import ROOT, Fork
from waiting import wait_until

DEMO = ROOT / "config/demo.yaml"
HOST = "127.0.0.1"
STOPS_WITHIN_S = 60.0
ANSWERS_WITHIN_S = 60.0
DOORS = int(os.environ.get("TENSORGATE_TEST_DOORS", "1"))
"""How many doors the gateways of these tests have."""
DOOR_OPTIONS = ("--doors", str(DOORS)) if DOORS > 1 else ()
one_process = partial(pytest.mark.skipif, DOORS > 1)
"""A test that is about one process by its nature; `reason` says why."""
JSON = {"Content-Type": "application/json"}
SERIES = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
RAISED = re.compile(
    r"^\S+ \S+ ERROR tensorgate\.gateway\.telemetry\.failure_log: .*\n"
    r"(?:Traceback .*\n(?: .*\n)*.*\n(?:\n(?:During handling|The above exception).*\n\n)?)*",
    re.MULTILINE,
)
"""What a model's code has raised: the log has it with its traceback."""
ANNOUNCED = re.compile(r"^tensorgate \S+ listens on .*\n", re.MULTILINE)
LABEL = re.compile(r'([a-z_]+)="([^"]*)"')


def demo_config(
    models: Mapping[str, Any] | None = None, every: Mapping[str, Any] | None = None, **sections: Any
) -> str:
    """The YAML of the shipped demo, on free ports and with absolute paths; `models` are added, sections replaced, and
    `every` model of the demo gets these options.
    """
    config = yaml.safe_load(DEMO.read_text())
    for options in config["models"].values():
        options["path"] = str(DEMO.parent / options["path"])
        if "example" in options:
            options["example"] = str(DEMO.parent / options["example"])
        text = options.get("text", {})
        text.update({key: str(DEMO.parent / text[key]) for key in ("tokenizer", "chat_template") if key in text})
        options.update(every or {})
        options["class_labels"] = {k: str(DEMO.parent / v) for k, v in options.get("class_labels", {}).items()}
    config["models"].update(models or {})
    bind = {"bind": f"{HOST}:0"}
    config["listen"] = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    return yaml.safe_dump(config | sections, sort_keys=False)


def command(*arguments: str | Path, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run `tensorgate ARGUMENTS` to its end."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        process = Fork(arguments, output, errors)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, status, output.read_text(), errors.read_text())


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body.decode("utf-8", "surrogateescape"))  # names are told as they came


class Gateway:
    """A running `tensorgate serve`. Every request is a connection of its own."""

    def __init__(self, process: subprocess.Popen[bytes] | Fork, log: Path) -> None:
        self.process = process
        self.log = log
        self.port = 0
        self.grpc_port = 0
        self.metrics_port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def said(self) -> str:
        """What the process has printed so far, on both of its streams."""
        return self.log.read_text(errors="replace")

    @property
    def said_itself(self) -> str:
        """The same without what the code of its models has raised: here no traceback belongs."""
        return RAISED.sub("", self.said)

    def wait_until_ready(self) -> None:
        self._wait(lambda: self._announced() and self.request("GET", "/readyz").status == 200)

    def wait_until_said(self, words: str) -> None:
        """Until these words are out, and its ports known."""
        self._wait(lambda: self._announced() and words in self.said)

    def _wait(self, done: Callable[[], bool]) -> None:
        wait_until(lambda: self.process.poll() is not None or done(), lambda: f"The gateway said:\n{self.said}")
        if self.process.poll() is not None:
            raise AssertionError(f"the gateway did not become ready; it said:\n{self.said}")

    def _announced(self) -> bool:
        """Whether the first line, which names the addresses, is out; they are kept."""
        first = ANNOUNCED.search(self.said)
        ports = re.findall(r"(http|grpc|metrics)://[^:]+:(\d+)", first[0]) if first else []
        self.port = next((int(port) for scheme, port in ports if scheme == "http"), 0)
        self.grpc_port = next((int(port) for scheme, port in ports if scheme == "grpc"), 0)
        self.metrics_port = next((int(port) for scheme, port in ports if scheme == "metrics"), self.port)
        return bool(ports)

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = JSON, port: int = 0
    ) -> Answer:
        """One request and its whole answer. `body`: bytes, an iterable of bytes (sent in chunks), or anything else,
        which is sent as JSON. Raises OSError or HTTPException.
        """
        if body is not None and not isinstance(body, (bytes, Iterator)):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection(HOST, port or self.port, timeout=ANSWERS_WITHIN_S)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        return self.request("POST", path, body)

    def metrics(self) -> Series:
        return Series(self.request("GET", "/metrics", port=self.metrics_port).body.decode())

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def pids(self) -> list[int]:
        """All its processes: itself, and those below at any depth."""
        return [self.process.pid, *below(self.process.pid)]

    def cpu_s(self) -> float:
        """Seconds of processor time that it has used: what a request costs, however busy the machine is."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """SIGTERM unless it has ended already -> exit status."""
        if self.process.poll() is None:
            self.terminate()
        return self.process.wait(STOPS_WITHIN_S)


def below(pid: int) -> list[int]:
    """All processes below one, at any depth."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:  # it has ended
            continue
        for child in map(int, children):
            found += [child, *below(child)]
    return found


class Series:
    """The series of an exposition text: (name, labels) -> value."""

    def __init__(self, text: str) -> None:
        found = (SERIES.fullmatch(line) for line in text.splitlines() if line[:1] != "#")
        self.all = [(line[1], dict(LABEL.findall(line[2] or "")), float(line[3])) for line in found if line]

    def names(self) -> set[str]:
        return {name for name, _, _ in self.all}

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels."""
        return sum(value for each, has, value in self.all if each == name and labels.items() <= has.items())

    def values(self, label: str) -> set[str]:
        """Every value that a label has anywhere."""
        return {has[label] for _, has, _ in self.all if label in has}


@contextmanager
def running(file: Path, *options: str, python: Path | None = None) -> Iterator[Gateway]:
    """`tensorgate serve FILE`, ready; killed at the end if it has not been stopped by then."""
    with started(file.with_suffix(".log"), *options, str(file), python=python) as gateway:
        gateway.wait_until_ready()
        yield gateway


@contextmanager
def started(log: Path, *options: str, python: Path | None = None) -> Iterator[Gateway]:
    """`tensorgate serve OPTIONS`, just started; killed at the end if it has not been stopped by then. `python` is of
    another environment that it runs in.
    """
    process: subprocess.Popen[bytes] | Fork
    if python is None and DOORS == 1:
        process = Fork(["serve", *options], log, log)
    else:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [python or sys.executable, "-m", "tensorgate", "serve", *DOOR_OPTIONS, *options],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
    try:
        yield Gateway(process, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(STOPS_WITHIN_S)
