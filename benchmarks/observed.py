"""The gateway of the comparisons, seen as much as `benchmarks.observability` asks for.

python -m benchmarks.observed LEVEL PORT
"""

from __future__ import annotations

import json
import sys
import tempfile
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import yaml

from tensorgate.gateway.cli.main import main

LEVELS = ("off", "metrics", "record", "all", "log", "traced")
MODELS = Path(__file__).parent / "identity.yaml"


def configuration(level: str, port: int, folder: Path) -> dict[str, Any]:
    """identity.yaml on another port, with what a level adds."""
    config: dict[str, Any] = yaml.safe_load(MODELS.read_text(encoding="utf-8"))
    config["listen"] = {"http": [{"bind": f"127.0.0.1:{port}"}]}
    config["models"]["identity"]["path"] = str(MODELS.parent / config["models"]["identity"]["path"])
    if level in ("log", "traced"):
        config["access_log"] = {"file": str(folder / "access.log")}
    if level in ("record", "all"):
        config["record"] = {"file": str(folder / "calls.jsonl"), "max_bytes": 1 << 26, "files": 2}
    if level == "all":
        config["record"]["max_load"] = 1.0
    if level == "off":
        config["metrics"] = {"tf_serving_path": None}
    if level == "traced":
        config["opentelemetry"] = {"endpoint": "http://127.0.0.1:9", "ratio": 0.0}
    return config


def count_nothing() -> None:
    """What a gateway without metrics would cost: there is no such gateway."""
    from tensorgate.gateway.engine import scheduler_metrics as meter
    from tensorgate.gateway.models import meters
    from tensorgate.gateway.telemetry import histogram as series

    def nothing(*args: Any) -> None:
        """In place of what counts."""

    def has_run(
        self: meter.SchedulerMetrics, request: Any, rows: int, outcome: Any, took: tuple[float, float], *args: Any
    ) -> None:
        if (call_record := request.cancellation.call_record) is not None:  # the access log is told all the same
            call_record.ran(rows, rows, took[0], took[0], sum(took))

    def gathered(self: series.Gathered, bounds: tuple[float, ...]) -> None:
        self._histogram = series.Histogram(bounds)
        self._waiting = array("d")
        self.observe = deque[float](maxlen=0).append

    series.Gathered.__init__ = gathered  # type: ignore[method-assign]
    meters.VersionMeter.observe = nothing  # type: ignore[method-assign, assignment]
    meter.SchedulerMetrics.ran_inline = has_run  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    level, port = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "gateway.yaml"
        file.write_text(json.dumps(configuration(level, int(port), Path(name))))
        if level == "off":
            count_nothing()
        sys.exit(main(["serve", str(file)]))
