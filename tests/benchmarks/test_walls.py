"""What the comparison of Python models inside and outside makes of its turns and starts. No server is started here."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from benchmarks import walls
from benchmarks.servers import Failed
from benchmarks.triton import Ports
from benchmarks.walls import Start, Turn
from benchmarks.walls_models import Busy, Copy
from benchmarks.wires import V2


def test_percentiles_of_a_turn() -> None:
    assert walls.seen([float(number) for number in range(101)], 12.5) == Turn(50.0, 99.0, 100.0, 12.5)


def test_a_turn_without_answers_says_nothing() -> None:
    with pytest.raises(Failed, match="next to no probe"):
        walls.seen([1.0], 0.0)


def test_probes_are_divided_by_those_of_their_round() -> None:
    alone = [Turn(1.0, 2.0, 3.0, 0.0), Turn(1.0, 4.0, 3.0, 0.0), Turn(1.0, 8.0, 3.0, 0.0)]
    beside = [Turn(2.0, 20.0, 9.0, 10.0), Turn(4.0, 20.0, 9.0, 11.0), Turn(3.0, 20.0, 9.0, 12.0)]
    _, rests, works = walls.probe_lines({"inside": {"alone": alone, "beside": beside}})
    assert rests == ("inside", "rests", "1.00", "4.00", "3.00", "1.00", "0.0")
    assert works == ("inside", "works", "3.00", "20.00", "9.00", "5.00", "11.0")


def test_what_each_model_adds() -> None:
    none, fifty = [Start(0, 1.0, 80.0, 1)] * 3, [Start(50, 3.5, 580.0, 51), Start(50, 3.0, 590.0, 51)]
    _, empty, full = walls.start_lines({"own": {"none": none, "many": fifty}})
    assert empty == ("own", "0", "1.00", "80", "1", "-", "-")
    assert full == ("own", "50", "3.25", "585", "51", "45.0", "10.10")


def test_results_for_the_file() -> None:
    found = walls.facts({"many": {"own": {"none": [Start(0, 1.0, 80.0, 1)]}}})
    expected = [{"models": 0, "start_s": 1.0, "memory_mib": 80.0, "processes": 1}]
    assert json.loads(json.dumps(found)) == {"many": {"own": {"none": expected}}}


def test_a_request_is_all_of_it() -> None:
    array = np.array([[1.5, 2.0]], np.float32)
    head, _, body = walls.http_request("busy", array).partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert first == "POST /v2/models/busy/infer HTTP/1.1"
    assert f"Content-Length: {len(body)}" in headers
    assert V2.decode(body).tobytes() == array.tobytes()


def test_the_configuration_is_one_that_the_gateway_serves(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(walls.gateway(False, {"busy": 0.05, "copy": 0.0}, Ports(0, 0, 0))))
    subprocess.run([sys.executable, "-m", "tensorgate", "check", "--load", file], check=True, timeout=60)


def test_only_those_of_their_own_have_processes() -> None:
    ports = Ports(1, 2, 3)
    assert "process" not in walls.gateway(False, {"copy": 0.0}, ports)["models"]["copy"]
    assert walls.gateway(True, {"copy": 0.0}, ports)["models"]["copy"]["process"] == "own"


def test_the_busy_model_computes_as_long_as_it_says() -> None:
    inputs = {"x": np.ones((1, 2), np.float32)}
    for kind, work_s in ((Busy, 0.05), (Copy, 0.0)):
        model = kind(SimpleNamespace(parameters={"work_s": work_s}))
        before = time.thread_time()
        assert model.infer(inputs, None) == {"y": inputs["x"]}
        assert work_s <= time.thread_time() - before < work_s + 0.04
