"""What callers have used: exact sums, by caller and model, through doors too, and on the command line."""

from __future__ import annotations

import asyncio
import csv
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
import yaml

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.cli import client
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.crossing.frames import FrameReader, add_frame
from tensorgate.gateway.crossing.messages import Observed
from tensorgate.gateway.monitoring import usage as usage_module
from tensorgate.gateway.monitoring.door_metrics import DoorMetrics, DoorsObserved
from tensorgate.gateway.monitoring.exposition import exposition
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.monitoring.observer import Observer
from tensorgate.gateway.monitoring.usage import OTHERS, Usage
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.call_record import CallRecord

MODEL = """
class M:
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        return {"y": inputs["x"]}
"""


def ended(caller: str | None = "ann", model: str = "m", rows: int = 2, batch_rows: int = 8) -> CallOutcome:
    outcome, record = CallOutcome(), CallRecord()
    call: Any = SimpleNamespace(caller=caller and SimpleNamespace(name=caller), body=b"12345")
    outcome.call, outcome.call_record, outcome.code = call, record, Code.OK
    record.view = cast("Any", SimpleNamespace(name=model)) if model else None
    record.sent = 7
    if rows:
        record.ran(rows, batch_rows, 1.0, 1.5, 1.75)
    return outcome


def test_each_caller_and_model_has_sums_and_a_share_of_its_batches() -> None:
    usage = Usage()
    for _ in range(2):
        usage.count(ended())
    usage.count(ended(model="n", rows=0))
    usage.count(ended(None))
    usage.count(ended(model=""))
    assert usage.read() == [
        ("", "m", 1, 2, 5, 7, 0.0625, 0),
        ("ann", "m", 2, 4, 10, 14, 0.125, 0),
        ("ann", "n", 1, 0, 5, 7, 0.0, 0),
    ]


def test_what_failed_unread_counts_for_the_model_that_it_named() -> None:
    usage, outcome = Usage(), ended(model="", rows=0)
    outcome.named, outcome.code = ("m", ""), Code.INVALID_ARGUMENT
    usage.count(outcome)
    assert usage.read() == [("ann", "m", 1, 0, 5, 7, 0.0, 1)]
    usage.count(ended())
    assert usage.callers() == [{"caller": "ann", "calls": 2, "failed": 1, "rows": 2, "compute_s": 0.0625}]


def test_callers_without_end_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_module, "MAX_KEYS", 2)
    usage = Usage()
    for name in ("a", "b", "c", "d", "a"):
        usage.count(ended(name))
    assert [each[:3] for each in usage.read()] == [(OTHERS, "m", 2), ("a", "m", 2), ("b", "m", 1)]


def test_two_doors_add_up_in_the_engine() -> None:
    doors = [DoorMetrics({}, lambda name: True, Observer(None, None, None, Usage())) for _ in range(2)]
    observed = DoorsObserved(MetricsCollector())
    for number, door in enumerate((*doors, *doors), 1):
        observer = cast("Observer", door._observer)
        for _ in range(number):
            outcome = ended()
            observer.end(outcome)
            assert outcome.call_record is None
        frame = bytearray()
        add_frame(door.take(0), frame)
        (said,) = FrameReader[Observed](Observed).receive(memoryview(frame))
        observed.add(number % 2, said)
    assert observed.usage.read() == [("ann", "m", 10, 20, 50, 70, 0.625, 0)]


def test_nothing_used_has_no_series() -> None:
    usage = Usage()
    assert list(usage.collect()) == []
    usage.count(ended('a"b'))
    text = exposition(usage.collect()).decode()
    assert 'tensorgate_usage_rows_total{caller="a\\"b",model="m"} 2.0\n' in text


class House:
    def __init__(self, folder: Path, **metrics: Any) -> None:
        (folder / "models.py").write_text(MODEL)
        keys = {name: {"sha256": hashlib.sha256(f"{name}s-key".encode()).hexdigest()} for name in ("ann", "bob")}
        tensor = {"datatype": "FP32", "shape": [-1]}
        sections = {
            "listen": {"http": [{"bind": "127.0.0.1:0"}]},
            "models": {
                "m": {
                    "backend": "python",
                    "path": "models.py:M",
                    "inputs": [{"name": "x", **tensor}],
                    "outputs": [{"name": "y", **tensor}],
                }
            },
            "auth": {"keys": keys, "metrics": "open"},
            "metrics": metrics,
            "drain_seconds": 1,
        }
        (folder / "gateway.yaml").write_text(yaml.safe_dump(sections))
        kinds = registries()
        self.app = App(load_config(folder / "gateway.yaml", kinds), kinds)

    async def start(self) -> None:
        await self.app.start()
        await self.app.load(lambda report: None)
        self.http = aiohttp.ClientSession(self.app.addresses[0])

    async def stop(self) -> None:
        await self.http.close()
        await self.app.drain()

    async def infer(self, caller: str, **more: Any) -> int:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1], **more}]}
        headers = {"x-api-key": f"{caller}s-key"} if caller else {}
        async with self.http.post("/v2/models/m/infer", json=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def said(self, *, as_csv: bool) -> str:
        lines: list[str] = []
        gateway = client.Gateway(self.app.addresses[0], 5)
        await asyncio.to_thread(client.usage, gateway, lines.append, as_csv=as_csv)
        return "\n".join(lines)


@pytest.fixture
async def house(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[House]:
    made = House(tmp_path, **getattr(request, "param", {"usage": True}))
    await made.start()
    yield made
    await made.stop()


async def test_the_command_line_shows_callers_by_model(house: House) -> None:
    with pytest.raises(client.ClientError, match="no usage is counted"):
        await house.said(as_csv=True)
    assert [await house.infer(name) for name in ("ann", "ann", "bob", "")] == [200, 200, 200, 401]
    assert await house.infer("ann", datatype="FP64") == 400
    head, *rows = csv.reader((await house.said(as_csv=True)).splitlines())
    assert head == ["caller", "model", "calls", "rows", "bytes_in", "bytes_out", "compute_ms"]
    assert [row[:4] for row in rows] == [["", "m", "1", "0"], ["ann", "m", "3", "2"], ["bob", "m", "1", "1"]]
    assert all(int(row[4]) > 0 and int(row[5]) > 0 for row in rows)
    table = (await house.said(as_csv=False)).splitlines()
    assert table[0].split() == head
    assert table[2].startswith("ann ")


@pytest.mark.parametrize("house", [{}], indirect=True)
async def test_callers_are_counted_only_where_that_is_asked_for(house: House) -> None:
    assert house.app.observer is None, "nobody pays for it"
    assert await house.infer("ann") == 200
    with pytest.raises(client.ClientError, match="no usage is counted"):
        await house.said(as_csv=True)
