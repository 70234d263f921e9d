"""A genuine perf_analyzer 2.50 against a running gateway.

Every run takes about two seconds. It has to end well, to tell a throughput above zero and the server's own times, and
no request may have failed in the eyes of either side. How fast it is, is not judged here.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from heavy_tools import program, surroundings
from serving import HOST, Gateway, demo_config, running

pytestmark = pytest.mark.heavy

RUNS_WITHIN_S = 60.0
FACTS = ["-p", "500", "--max-trials", "3", "--stability-percentage", "999"]
"""Three windows of half a second, taken whatever the machine does beside."""

ROW = list(range(16))
OPERANDS = {"INPUT0": ROW, "INPUT1": [3] * 16}
RESULTS = {"OUTPUT0": [each + 3 for each in ROW], "OUTPUT1": [each - 3 for each in ROW]}
PROMPT = {"text_input": ["the"], "stream": [True], "max_tokens": [4], "temperature": [0.0], "seed": [1]}
DATA: Mapping[str, Any] = {
    "operands": {"data": [OPERANDS], "validation_data": [RESULTS]},  # it compares what comes back
    "wrong": {"data": [OPERANDS], "validation_data": [{**RESULTS, "OUTPUT1": ROW}]},
    "start": {"data": [{"start": [3]}]},
    "prompt": {"data": [PROMPT]},
}


class Run(NamedTuple):
    """A run: which model, over which transport, with what options; how many requests the client itself may spoil."""

    name: str
    model: str
    options: str = ""
    grpc: bool = False
    spoiled: int = 0


RUNS = [
    Run("http", "add_sub"),
    Run("http, async", "add_sub", "--async --concurrency-range 4"),
    Run("http, answers compared", "add_sub", "--input-data {operands}"),
    Run("http, json", "add_sub", "--input-tensor-format json --output-tensor-format json"),
    Run("http, rows", "add_sub", "-b 4"),
    Run("http, 1 to 4 at a time", "add_sub", "--concurrency-range 1:4"),
    Run("http, so many a second", "add_sub", "--request-rate-range 100:200:100"),
    Run("http, a version", "digits", "-x 1"),
    Run("http, metrics", "add_sub", "--collect-metrics --metrics-url {metrics} --metrics-interval 100"),
    Run("http, traces", "add_sub", "--trace-level TIMESTAMPS --trace-rate 100"),
    Run("http, shared memory", "add_sub", "--shared-memory system"),
    Run("http, a variable dimension", "half_plus_two", "--shape x:10"),
    Run("http, a variable dimension in shared memory", "half_plus_two", "--shape x:10 --shared-memory system"),
    Run("http, text", "upper", "--shape text:2 --string-data straße"),
    Run("http, text in shared memory", "upper", "--shape text:2 --string-data hello --shared-memory system"),
    # at its end it sends the last request of a sequence beside the one before, which may arrive after it
    Run("http, sequences", "running_sum", "--concurrency-range 4", spoiled=4),
    Run("http, sequences one by one", "running_sum", "--sync --serial-sequences --concurrency-range 2", spoiled=2),
    Run("http, an ensemble", "twice"),
    Run("grpc", "add_sub", grpc=True),
    Run("grpc, async", "add_sub", "--async --concurrency-range 4", grpc=True),
    Run("grpc, answers compared", "add_sub", "--input-data {operands}", grpc=True),
    Run("grpc, 1 to 4 at a time", "add_sub", "--concurrency-range 1:4", grpc=True),
    Run("grpc, compressed", "add_sub", "--grpc-compression-algorithm gzip", grpc=True),
    Run("grpc, parameters", "add_sub", "--request-parameter priority:1:int", grpc=True),
    Run("grpc, shared memory", "add_sub", "--shared-memory system", grpc=True),
    Run("grpc, a variable dimension", "half_plus_two", "--shape x:10", grpc=True),
    Run("grpc, text", "upper", "--shape text:2 --string-data hello", grpc=True),
    Run("grpc, an ensemble", "twice", grpc=True),
    Run("stream", "add_sub", "--streaming", grpc=True),
    Run("stream, 4 at a time", "add_sub", "--streaming --concurrency-range 4", grpc=True),
    Run("stream, answers compared", "add_sub", "--streaming --input-data {operands}", grpc=True),
    Run("stream, shared memory", "add_sub", "--streaming --shared-memory system", grpc=True),
    Run("stream, sequences", "running_sum", "--streaming --concurrency-range 4", grpc=True, spoiled=4),
    Run("stream, decoupled", "countdown", "--streaming --input-data {start}", grpc=True),
    Run(
        "stream, decoupled, in shared memory",
        "countdown",
        "--streaming --input-data {start} --shared-memory system",
        grpc=True,
    ),
    Run("stream, decoupled, text", "writer", "--streaming --input-data {prompt}", grpc=True),
]


def configuration() -> str:
    """The demo with shared memory, an ensemble of one of its models called twice, and no pauses."""
    tensors = {name: {"name": name, "datatype": "INT32", "shape": [-1, 16]} for name in ("A", "B", "SUM", "ZERO")}
    twice = {
        "backend": "ensemble",
        "max_batch_size": 8,
        "inputs": [tensors["A"], tensors["B"]],
        "outputs": [tensors["SUM"], tensors["ZERO"]],
        "steps": [
            {"model": "add_sub", "inputs": {"INPUT0": "A", "INPUT1": "B"}, "outputs": {"OUTPUT0": "SUM"}},
            {"model": "add_sub", "inputs": {"INPUT0": "SUM", "INPUT1": "SUM"}, "outputs": {"OUTPUT1": "ZERO"}},
        ],
    }
    config = yaml.safe_load(demo_config({"twice": twice}, shared_memory={"system": True}))
    config["models"]["countdown"]["parameters"] = {"pause_ms": 1}
    config["tracing"] = {"file": "traces.json"}  # perf_analyzer asks for traces, which need a place
    return yaml.safe_dump(config, sort_keys=False)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("perf_analyzer")
    for name, data in DATA.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    file = folder / "gateway.yaml"
    file.write_text(configuration())
    with running(file) as made:
        yield made
        assert made.stop() == 0, made.said
        assert "Traceback" not in made.said_itself, made.said


def perf_analyzer(gateway: Gateway, run: Run, report: Path) -> subprocess.CompletedProcess[str]:
    """The run, to its end; it writes its report."""
    places = {name: str(gateway.log.parent / f"{name}.json") for name in DATA}
    places["metrics"] = f"http://{HOST}:{gateway.metrics_port}/metrics"
    address = f"{HOST}:{gateway.grpc_port if run.grpc else gateway.port}"
    transport = ["-i", "grpc" if run.grpc else "http", "-u", address]
    options = [option.format(**places) for option in run.options.split()]
    return subprocess.run(
        [program("perf_analyzer"), "-m", run.model, *transport, *FACTS, "--verbose-csv", "-f", report, *options],
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=RUNS_WITHIN_S,
    )


def rows_of(report: Path) -> list[dict[str, str]]:
    """A row for every number of requests at a time."""
    with report.open(newline="") as file:
        return list(csv.DictReader(file))


def statistics(gateway: Gateway, model: str) -> tuple[int, int]:
    """How many requests went well and how many did not, in all its versions."""
    stats = [each["inference_stats"] for each in gateway.get(f"/v2/models/{model}/stats").json["model_stats"]]
    return sum(each["success"]["count"] for each in stats), sum(each["fail"]["count"] for each in stats)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_perf_analyzer(run: Run, gateway: Gateway, tmp_path: Path, capsys: Any) -> None:
    went_well, failed = statistics(gateway, run.model)
    done = perf_analyzer(gateway, run, tmp_path / "report.csv")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    if not run.spoiled:
        assert "error" not in said.lower(), said
    rows = rows_of(tmp_path / "report.csv")
    steps = {"1:4": 4, "100:200:100": 2}.get(run.options.rpartition(" ")[2], 1)
    assert len(rows) == steps, said
    for row in rows:
        assert float(row["Inferences/Second"]) > 0, said
        assert float(row["p50 latency"]) > 0, said
        assert float(row["Server Compute Infer"]) > 0, said
    for counted in ("Inference count", "Execution count", "Successful request count"):
        assert len(found := re.findall(rf"^ {{4}}{counted}: (\d+)$", said, re.MULTILINE)) == steps, said
        assert min(map(int, found)) > 0, said
    asked = sum(map(int, re.findall(r"Request count: (\d+)", said)))
    now_well, now_failed = statistics(gateway, run.model)
    assert now_well - went_well >= asked > 0, said
    assert now_failed - failed <= run.spoiled, said
    with capsys.disabled():
        sys.stdout.write(f"\n{run.name}: {', '.join(row['Inferences/Second'] for row in rows)} a second ")


def test_an_ensemble_is_told_with_its_models(gateway: Gateway, tmp_path: Path) -> None:
    done = perf_analyzer(gateway, Run("", "twice"), tmp_path / "report.csv")
    _, composing, told = done.stdout.partition("Composing models:")
    assert composing, done.stdout
    (runs,) = re.findall(r"Inference count: (\d+)", told)
    (requests,) = re.findall(r"Request count: (\d+)", done.stdout)
    assert "add_sub, version: 1" in told
    assert int(runs) >= 2 * int(requests) > 0


def test_answers_per_request_of_a_decoupled_model(gateway: Gateway, tmp_path: Path) -> None:
    run = Run("", "countdown", "--streaming --input-data {start}", grpc=True)
    assert perf_analyzer(gateway, run, tmp_path / "report.csv").returncode == 0
    (row,) = rows_of(tmp_path / "report.csv")
    assert float(row["Response Throughput"]) == pytest.approx(4 * float(row["Inferences/Second"]), rel=0.05)


def test_nothing_stays_registered(gateway: Gateway) -> None:
    """It takes its shared memory back at its end."""
    assert gateway.get("/v2/systemsharedmemory/status").json == []
    assert "/dev/shm/" not in Path(f"/proc/{gateway.process.pid}/maps").read_text()  # noqa: S108


WRONG = [
    (Run("", "add_sub", "--input-data {wrong}"), "Output doesn't match expected output"),
    (Run("", "nobody"), "Request for unknown model: 'nobody' is not found"),
    (Run("", "nobody", grpc=True), "Request for unknown model: 'nobody' is not found"),
    (Run("", "add_sub", "-b 9"), "inference request batch-size must be <= 8 for 'add_sub'"),
]


@pytest.mark.parametrize(("run", "text"), WRONG, ids=["answers", "http", "grpc", "batch"])
def test_what_is_wrong_is_told(run: Run, text: str, gateway: Gateway, tmp_path: Path) -> None:
    done = perf_analyzer(gateway, run, tmp_path / "report.csv")
    assert done.returncode != 0
    assert text in done.stdout + done.stderr
