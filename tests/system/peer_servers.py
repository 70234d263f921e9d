"""Other servers of Open Inference with the models whose behaviour conformance cases know, in their own environments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heavy_tools import free_ports, surroundings, wait_until_ready
from serving import HOST, ROOT

HEAVY = ROOT / "tests/system/heavy"
MLSERVER = ROOT / ".venv-mlserver/bin/mlserver"
KSERVE = ROOT / ".venv-heavy/bin/python"
DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES"),
)
STOPS_WITHIN_S = 30


@contextmanager
def mlserver(folder: Path) -> Iterator[tuple[int, int]]:
    """MLServer: the ports of its servers for HTTP and gRPC."""
    http, grpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    _write(folder / "settings.json", {**ports, "host": HOST, "parallel_workers": 0, "debug": False})
    for datatype in DATATYPES:
        _settings(folder, f"conform_identity_{datatype.lower()}", "Identity", (("IN",), ("OUT",)), datatype, [-1])
    sides = ("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1")
    _settings(folder, "conform_add_sub", "AddSub", sides, "INT32", [-1, 4])
    with _running([MLSERVER, "start", folder], folder, http, PYTHONPATH=str(HEAVY)):
        yield http, grpc


@contextmanager
def kserve(folder: Path) -> Iterator[tuple[int, int]]:
    """KServe's model server, likewise."""
    http, grpc = free_ports(2)
    folder.mkdir()
    with _running([KSERVE, HEAVY / "kserve_server.py", str(http), str(grpc), *DATATYPES], folder, http):
        yield http, grpc


def _settings(
    folder: Path, name: str, kind: str, sides: tuple[Sequence[str], Sequence[str]], datatype: str, shape: list[int]
) -> None:
    inputs, outputs = ([{"name": each, "datatype": datatype, "shape": shape} for each in side] for side in sides)
    told = {"name": name, "implementation": f"mlserver_runtime.{kind}", "inputs": inputs, "outputs": outputs}
    _write(folder / name / "model-settings.json", {**told, "parameters": {"version": "1"}})


def _write(file: Path, document: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))


@contextmanager
def _running(command: Sequence[str | Path], folder: Path, port: int, **variables: str) -> Iterator[None]:
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=surroundings(**variables),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(process, port, log)
        yield
        process.terminate()
        process.wait(STOPS_WITHIN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
