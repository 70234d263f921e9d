"""Other servers of Open Inference with the models whose behaviour conformance cases know, in their own environments."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from heavy_tools import free_ports, surroundings, wait_until_ready
from serving import HOST, ROOT, command

HEAVY = ROOT / "tests/system/heavy"
MLSERVER = ROOT / ".venv-mlserver/bin/mlserver"
KSERVE = ROOT / ".venv-heavy/bin/python"
DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES"),
)
STOPS_WITHIN_S = 30
GRPS = ROOT / ".venv-grps/bin/python"
GRPS_SOURCES = "GRPS_SOURCES"
"""A variable of the environment: a checkout of https://github.com/NetEase-Media/grps."""
GRPS_EXAMPLES = "GRPS_EXAMPLES"
"""The same of https://github.com/NetEase-Media/grps_examples."""
NO_MPI = """
class MPI:
    class COMM_WORLD:
        Get_size = staticmethod(lambda: 1)
        Get_rank = staticmethod(lambda: 0)
"""
"""A single process needs no MPI, which grps imports all the same."""


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


@contextmanager
def grps(folder: Path, example: Path | None = None) -> Iterator[tuple[int, int]]:
    """grps' own server of Python models, with those that are known, or those of one of its examples, on the CPU."""
    http, grpc = free_ports(2)
    shutil.copytree(Path(os.environ[GRPS_SOURCES]) / "server/py_server", folder)
    if example is None:
        written = command("conform", "--dialect", "grps", "--repository", folder)
        assert written.returncode == 0, written.stderr
    else:
        for part in ("conf", "src", "data"):
            shutil.copytree(example / part, folder / part, dirs_exist_ok=True)
        models = yaml.safe_load((folder / "conf/inference.yml").read_text())
        for model in models["models"]:
            model["device"] = "cpu"
        (folder / "conf/inference.yml").write_text(yaml.safe_dump(models))
    told = yaml.safe_load((folder / "conf/server.yml").read_text())
    told["interface"] |= {"host": HOST, "port": f"{http},{grpc}", "framework": "http+grpc"}
    told.pop("gpu", None)
    (folder / "conf/server.yml").write_text(yaml.safe_dump(told))
    (folder / "stand_ins").mkdir()
    (folder / "stand_ins/mpi4py.py").write_text(NO_MPI)
    start = [GRPS, "grps_framework/main.py"]
    with _running(start, folder, http, "/grps/v1/health/live", PYTHONPATH=str(folder / "stand_ins")):
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
def _running(
    start: Sequence[str | Path], folder: Path, port: int, path: str = "/v2/health/ready", **variables: str
) -> Iterator[None]:
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            start,
            cwd=folder,
            env=surroundings(**variables),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(process, port, log, path)
        yield
        process.terminate()
        process.wait(STOPS_WITHIN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
