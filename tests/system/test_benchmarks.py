"""Every comparison of benchmarks/ runs through once, as short as it can be: its numbers mean nothing then, but it
starts its contenders, finds their answers right, and prints its table.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deployment import installed
from serving import ROOT

pytestmark = pytest.mark.heavy  # a minute

SHORT = ["--rounds", "1", "--seconds", "1"]
COMMANDS: dict[str, tuple[list[str], str, set[int]]] = {
    "binary_http": ([*SHORT, "--cases", "binary/16"], "wrk", {0}),
    "cores": ([*SHORT, "--doors", "1", "--contenders", "one", "--cases", "v2/16", "raw/16"], "h2load", {0}),
    "digits": (["--megabytes", "0.3", "--rounds", "1"], "", {0, 2}),
    "engine": (["--rounds", "1", "--seconds", "0.1"], "", {0, 1}),
    "gpu": (["--rounds", "1", "--seconds", "0.5", "--device", "cpu"], "", {0}),
    "grpc_infer": ([*SHORT, "--cases", "raw/16", "float_val/16"], "h2load", {0}),
    "json_http": ([*SHORT, "--cases", "v2/16", "tf_serving/16"], "wrk", {0}),
    "latency_goal": (["--only", "simulation", "--seconds", "1", "--shapes", "steady"], "", {0}),
    "make_models": ([], "", {0}),
    "mix": ([*SHORT, "--large", "v2 json"], "", {0}),
    "observability": ([*SHORT, "--cases", "v2/16"], "wrk", {0}),
    "on_demand": ([*SHORT, "--models", "60", "--room", "52", "--rate", "20", "--misses", "1"], "", {0}),
    "preprocess": (["--rounds", "1", "--rows", "1", "2"], "", {0}),
    "relay": (["--rounds", "1", "--seconds", "0.1"], "", {0}),
    "shares": (["--rounds", "1", "--seconds", "0.1"], "", {0, 1}),
    "shortcuts": ([*SHORT, "--only", "http_fast_path"], "wrk", {0}),
    "text": (["relay", *SHORT], "", {0}),
    "text_latency": (["--pause-ms", "2", "--chunks", "20"], "", {0}),
    "walls": ([*SHORT, "--contenders", "inside", "--models", "2", "--starts", "1"], "", {0}),
}
"""Module -> its shortest settings, the program that it needs, and the exit statuses of a run to the end: 1 is a mark
that was missed.
"""
TRIED_IN_PARTS = {"gpu_plot", "offline"}
"""By tests/benchmarks/test_gpu.py and test_offline.py: they need a run, or packages and minutes."""
NO_GPU = 2
STARTED_BY_OTHERS = {
    "bare",
    "bare_relay",
    "closed_loop",
    "echo",
    "gateways",
    "grpc_bare",
    "observed",
    "open_loop",
    "watched",
}
PACKAGE = {"wrk": "wrk", "h2load": "nghttp2-client"}
PORT = re.compile(r"\b180(\d\d)\b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of benchmarks/ on ports of its own, where results may lie."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=shutil.ignore_patterns("results", "__pycache__"))
    hundred = 200 + secrets.randbelow(120)
    for file in (*folder.glob("benchmarks/*.py"), *folder.glob("benchmarks/*.yaml")):
        file.write_text(PORT.sub(rf"{hundred}\1", file.read_text()))
    return folder


def test_every_command_is_among_them() -> None:
    commands = {file.stem for file in ROOT.glob("benchmarks/*.py") if "__main__" in file.read_text()}
    assert commands == COMMANDS.keys() | STARTED_BY_OTHERS | TRIED_IN_PARTS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_comparison_runs_through(name: str, folder: Path) -> None:
    options, program, statuses = COMMANDS[name]
    if program:
        installed(program, PACKAGE[program])
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = f"{done.stdout}\n{done.stderr}"
    assert done.returncode in statuses, told
    assert "Traceback" not in told, told
    if name == "make_models":
        model = "benchmarks/models/identity/1/model.onnx"
        assert (folder / model).read_bytes() == (ROOT / model).read_bytes()
    elif done.returncode == NO_GPU:
        assert told.startswith("FAILED: there is no GPU")
    else:
        assert len(re.findall(r"^.*\d.*  +\S*\d.*$", done.stdout, re.MULTILINE)) >= 1, f"no table:\n{told}"
