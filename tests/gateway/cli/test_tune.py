"""What recorded calls say of how a model should batch."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tensorgate.gateway.cli import batch_advice, main, tune
from tensorgate.gateway.cli.batch_advice import Advice, Curve, advise
from tensorgate.gateway.cli.client import ClientError
from tensorgate.gateway.engine.simulation import Arrival
from tensorgate.gateway.recording.record import VERSION, RecordedCall

ROOT = Path(__file__).parents[3]
LINEAR = Curve([(1, 0.004), (8, 0.006), (32, 0.012)])


def arrivals(per_second: float, seconds: float = 2.0, rows: int = 1) -> list[Arrival]:
    gaps = np.random.default_rng(3).exponential(1 / per_second, int(per_second * seconds))
    return [Arrival(at, rows) for at in np.cumsum(gaps).tolist()]


def test_a_goal_is_compared_with_the_best_fixed_delay() -> None:
    found = advise("m", arrivals(400), LINEAR, 40.0)
    assert (found.arrivals, found.rows) == (800, 1.0)
    assert found.per_second == pytest.approx(400, rel=0.1)
    assert found.choice is not None
    assert found.other is not None
    assert (found.choice.target_p99_ms, found.choice.max_batch_size, found.choice.instances) == (40.0, 32, 1)
    assert found.choice.p99_s <= 0.040
    assert found.choice.headroom >= found.other.headroom >= 1
    assert [*found.choice.yaml()] == ["max_batch_size: 32", "target_p99_ms: 40"]
    assert found.why.startswith("1 row runs 4 ms; 32 rows 12 ms, 10.7 times as many a second")


def test_without_a_goal_what_answers_soonest_is_chosen() -> None:
    found = advise("m", arrivals(100), LINEAR, None)
    assert found.choice is not None
    assert found.other is None
    assert (found.choice.delay_us, found.choice.target_p99_ms) == (0, None)
    assert [*found.choice.yaml()][1] == "max_queue_delay_us: 0"


def test_what_one_device_cannot_do_several_can() -> None:
    found = advise("m", arrivals(4000, 0.5), LINEAR, 30.0)
    assert found.choice is not None
    assert found.choice.instances == 2
    assert "one device does not hold the goal, 2 do" in found.why


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        (Curve([(1, 0.050)], why="its requests share no runs"), "so the goal cannot be held by any batch"),
        (Curve((), why="its example does not run: no"), "its example does not run: no"),
    ],
)
def test_what_cannot_be_done_is_said(curve: Curve, words: str) -> None:
    assert words in advise("m", arrivals(10), curve, 20.0).why


def test_the_report_is_a_table_and_yaml() -> None:
    lines = [*batch_advice.report([advise("m", arrivals(100), LINEAR, 40.0)])]
    assert lines[0].split()[:2] == ["model", "requests"]
    assert lines[1].startswith("m ")
    assert lines[2].startswith("  fixed delay ")
    assert lines[-4:] == ["models:", "  m:", "    max_batch_size: 32", "    target_p99_ms: 40"]


def recorded(at: float, rows: int, **changes: Any) -> RecordedCall:
    data = [0.5] * 64 * rows
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [rows, 8, 8], "data": data}]}
    said: dict[str, Any] = {
        "dialect": "open_inference",
        "transport": "http",
        "stream": "unary",
        "method": "POST",
        "target": "/v2/models/digits/infer",
        "headers": {"content-type": "application/json"},
        "model": "digits",
        "version": 1,
        "text": json.dumps(body),
    }
    return RecordedCall(VERSION, at, **(said | changes), seconds=0.001, ended="OK")


CALLS = [
    recorded(100.0, 1),
    recorded(100.5, 3, deadline_s=0.25),
    recorded(101.0, 1, target="/v2/models/digits", method="GET", text=None),  # a question that no model runs
    recorded(101.0, 1, text="{"),
    recorded(101.0, 1, text=None, left_out_bytes=1 << 30),
    recorded(101.5, 1, dialect="gone"),
    recorded(102.0, 1, model=""),
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    config, calls = tmp_path / "gateway.yaml", tmp_path / "calls.jsonl"
    path = ROOT / "config/demo/models/digits"
    config.write_text(f"models: {{digits: {{backend: onnx, path: {path}, max_batch_size: 4, device: cpu}}}}\n")
    calls.write_bytes(b"".join(msgspec.json.encode(call) + b"\n" for call in CALLS))
    return config, calls


def test_the_models_are_loaded_and_measured(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, calls = files
    report = tmp_path / "advice.json"
    words = ["tune", str(config), "--traffic", str(calls), "--target-p99-ms", "50", "--json", str(report)]
    assert main.main(words) == 0
    said = capsys.readouterr()
    assert "digits: 2 requests, measuring batches" in said.err
    assert "    target_p99_ms: 50\n" in said.out
    (advice,) = json.loads(report.read_text())
    assert (advice["name"], advice["arrivals"], advice["rows"]) == ("digits", 2, 2.0)
    assert [rows for rows, _ in advice["curve"]["points"]][:2] == [1, 2]


def test_where_nothing_asks_a_model_that_is_said(files: tuple[Path, Path], tmp_path: Path) -> None:
    config, _ = files
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    with pytest.raises(ClientError, match="no recorded call asks a model"):
        tune.tune(main_config(config), [empty], tune.TuneOptions(None), lambda line: None)
    with pytest.raises(ClientError, match="No such file"):
        tune.tune(main_config(config), [tmp_path / "none"], tune.TuneOptions(None), lambda line: None)


def main_config(file: Path) -> Any:
    from tensorgate.gateway.app import registries
    from tensorgate.gateway.config import load_config

    return load_config(file, registries())


def test_advice_is_plain_data() -> None:
    advice: Advice = advise("m", arrivals(100), LINEAR, None)
    (plain,) = batch_advice.plain([advice])
    assert json.loads(json.dumps(plain))["choice"]["max_batch_size"] == advice.choice.max_batch_size  # type: ignore[union-attr]
