"""What the page is sent: few bytes however many models there are, rows as they were asked for, and files of its own."""

import gzip
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from tensorgate.adapters.open_inference import KIND
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.contract.metrics import Distribution, GoalStatus
from tensorgate.gateway.contract.questions import IndexEntry, KnownVersions, ModelActivity
from tensorgate.gateway.monitoring.call_history import SecondOfCalls
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.monitoring.recent_errors import ErrorKey, RecentError, RecentErrors
from tensorgate.gateway.monitoring.time_series import TimeSeries
from tensorgate.gateway.page import SCRIPT_PATH, STYLE_PATH, html_pages, page, pages
from tensorgate.gateway.page.status import Status

MODELS = [f"model_{number:03}" for number in range(500)]
MAX_BYTES = 10_000
"""A second and a tab."""


class World:
    """500 models, all of them called every second, each failing in a way of its own."""

    def __init__(self) -> None:
        handle: Any = SimpleNamespace(is_ready=lambda: True)
        batches = Distribution((1.0, 2.0, 4.0, 8.0), (100, 20, 30, 40, 0), 700.0)
        traffic = {"copies_in": 10, "bytes_in": 1 << 20, "copies_out": 10, "bytes_out": 1 << 20, "batches": 10}
        self.activities = tuple(
            ModelActivity(
                ModelView(name, 1, (1,), {}, {}, {}, 8, "onnx", handle, configuration={"max_queue_size": 8}),
                True,
                number % 9,
                1,
                700,
                190,
                traffic,
                batches,
            )
            for number, name in enumerate(MODELS)
        )
        known = tuple(IndexEntry(name, 1, "READY") for name in MODELS)
        engine: Any = SimpleNamespace(ask=lambda what: known if type(what) is KnownVersions else self.activities)
        service: Any = SimpleNamespace(draining=False, online=True, ready=True, started=True)
        self.monitor = TimeSeries(MetricsCollector())
        errors = RecentErrors(lambda: 1e9)
        for number, name in enumerate(MODELS):
            key = ErrorKey("v2", "http", name, "1", "infer", Code.INTERNAL, ErrorReason.MODEL_RAISED)
            errors.add(RecentError(key, f"ValueError: value {number} is not what it should be", 1e9 - 9, 1e9, number))
        self.status = Status(service, engine, self.monitor, ("tensorgate", "1"), {"v2": "Open Inference V2"}, errors)
        self.pages = pages(self.status, [KIND.make(KIND.options())])

    def second(self, number: int) -> None:
        self.monitor.history.add(
            {
                ("v2", name): SecondOfCalls(
                    at + number % 3, at % 5, [0.001 * (1 + at + number % 7)] * 3, [5e-5] * (at % 2)
                )
                for at, name in enumerate(MODELS, 1)
            }
        )

    async def ask(self, path: str, query: Any = (), **headers: str) -> Any:
        target = f"{path}?{urlencode(query)}" if query else path
        return await self.pages[path](SimpleNamespace(target=target, headers=headers))

    async def read(self, **query: Any) -> Any:
        return orjson.loads((await self.ask("/overview.json", query)).body)


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    for number in range(150):
        made.second(number)
    return made


async def test_a_tab_takes_few_bytes_of_500_busy_models(world: World) -> None:
    """As the script asks, with nothing known at first and then for one more point each time."""
    asked: dict[str, Any] = {"rows": 25, "errors": 25, "sort": "-calls", "models": "\n".join(MODELS[:3])}
    first = (await world.read(**asked))["series"]
    assert (first["first"], len(first["rate"])) == (30, 120)
    sizes = []
    for number in range(150, 160):
        before = await world.read(**asked)
        world.second(number)
        known = {"run": before["run"], "since": before["series"]["first"] + len(before["series"]["rate"])}
        reply = await world.ask("/overview.json", {**asked, **known}, **{"accept-encoding": "br, gzip"})
        assert reply.headers["Content-Encoding"] == "gzip"
        said = orjson.loads(gzip.decompress(reply.body))
        assert len(said["series"]["rate"]) == 1
        assert [len(said[key]) for key in ("calls", "errors", "models")] == [25, 25, 3]
        sizes.append(len(reply.body))
    assert max(sizes) <= MAX_BYTES, sizes
    listed = await world.ask("/models.json", {"brief": 1, "rows": 25}, **{"accept-encoding": "gzip"})
    assert len(listed.body) <= MAX_BYTES


async def test_who_takes_no_gzip_gets_none(world: World) -> None:
    for accepts in ("", "identity", "gzip;q=0", "br"):
        reply = await world.ask("/overview.json", {"rows": 25}, **{"accept-encoding": accepts})
        assert "Content-Encoding" not in reply.headers
        assert orjson.loads(reply.body)["name"] == "tensorgate"


ROWS = [
    ({"sort": "-calls", "rows": 2}, ["model_499", "model_498"], 500),
    ({"sort": "calls", "rows": 2}, ["model_000", "model_001"], 500),
    ({"sort": "model", "rows": 2, "first": 498}, ["model_498", "model_499"], 500),
    ({"sort": "-model", "rows": 1}, ["model_499"], 500),
    ({"sort": "-p99", "rows": 1}, ["model_499"], 500),
    ({"sort": "-all_errors", "rows": 1}, ["model_498"], 500),  # of those with as many errors the busiest
    ({"sort": "model", "search": "_12", "rows": 50}, [f"model_12{digit}" for digit in range(10)], 10),
    ({"search": "nobody"}, [], 0),
    ({"search": "open inference", "rows": 0}, [], 500),
]


@pytest.mark.parametrize(("query", "models", "found"), ROWS)
async def test_rows_are_filtered_sorted_and_paged(
    world: World, query: dict[str, Any], models: list[str], found: int
) -> None:
    said = await world.read(**query)
    assert [row["model"] for row in said["calls"]] == models
    assert said["found"]["calls"] == found
    assert all(re.fullmatch("[0-9]{30}", row["spark"]) for row in said["calls"])


async def test_points_of_another_run_are_sent_whole(world: World) -> None:
    number = world.monitor.history.seconds
    run = (await world.read())["run"]
    for query, points in (({"run": run, "since": number}, 0), ({"run": run - 1, "since": number}, 120)):
        assert len((await world.read(**query))["series"]["rate"]) == points
    one = await world.read(dialect="Open Inference V2", model="model_007", span="hour")
    assert one["series"]["rate"] == [pytest.approx(9, abs=0.1)] * 2
    assert one["series"]["refused_p50"] == [None] * 2, "nobody was refused: a gap, and no zero"
    assert one["load"]["queued"] == 7


async def test_of_what_is_wrong_the_worst_comes_first(world: World) -> None:
    problems = (await world.read())["problems"]
    levels = [level for level, _ in problems]
    assert (len(problems), levels) == (50, sorted(levels))
    assert problems[0] == ["bad", "model_008 version 1 refuses calls: all 8 places of its queue are taken"]


async def test_where_callers_have_queues_of_their_own_none_is_told_to_be_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"caller": "a", "device": "cpu", "weight": 1.0, "seconds": 2.0, "queued": 1, "refused": 3}
    monkeypatch.setattr(world.status, "shares", lambda: [used])
    told = await world.read()
    assert told["shares"] == [used]
    assert not [text for _, text in told["problems"] if "queue" in text]


async def test_a_goal_is_told_and_that_it_cannot_be_held(world: World) -> None:
    goal = GoalStatus(0.02, 0.9, 16, 0.003, 97, 1, {"goal": 2, "deadline": 3}, 10, 0.05, 0.06, 0.07, 0.025)
    world.activities = (replace(world.activities[0], goal=goal, queued=0), *world.activities[1:2])
    world.status._errors = RecentErrors(lambda: 1e9)
    live = world.status.live()
    first, second = live["models"]
    assert first["goal"] == {
        "target_s": 0.02,
        "rows": 16,
        "held": 97,
        "missed": 1,
        "shed": 5,
        "waited_s": 0.007,
        "predicted_s": 0.005,
        "actual_s": 0.006,
    }
    assert "goal" not in second
    told = ["warn", "model_000 version 1 cannot hold its goal of 20 ms: one row alone runs 25 ms"]
    assert told in live["problems"]


async def test_a_door_that_is_away_and_an_engine_that_was_are_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.status, "doors", lambda: [{"slot": 0, "up": True}, {"slot": 1, "up": False}])
    monkeypatch.setattr(world.status, "restarts", {"SIGKILL": 2, "device_lost": 0})
    monkeypatch.setattr(world, "activities", ())
    monkeypatch.setattr(world.status, "_errors", RecentErrors())
    assert (await world.read())["problems"] == [
        ["warn", "door 1 is being restarted: the others take its connections"],
        ["note", "the process that runs the models was started again 2 times: SIGKILL"],
    ]


# ------------------------------------------------------------------------------------------------------------ its files


@pytest.mark.parametrize(("path", "root"), [("/", b"./"), ("/grps/v1/monitor/metrics", b"../../../")])
def test_the_page_runs_its_own_script_and_asks_nobody_else(path: str, root: bytes) -> None:
    reply = page(path)
    html, policy = bytes(reply.body), reply.headers["Content-Security-Policy"]  # type: ignore[arg-type]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert re.findall(rb'<script src="(.*?)"', html) == [root + b"page/page.js"]
    assert re.findall(rb'<link rel="stylesheet" href="(.*?)"', html) == [root + b"page/style.css"]
    assert not re.search(rb"<style| style=| on[a-z]+=|<script>", html), "the policy would drop it"
    assert re.findall(rb"(?:src|href)=[\"']?(https?:|//)", html) == []


async def test_its_files_are_sent_once() -> None:
    fixed = html_pages([])
    for path in (SCRIPT_PATH, STYLE_PATH):

        async def ask(path: str = path, **headers: str) -> Any:
            return await fixed[path](SimpleNamespace(target=path, headers=headers))

        whole, packed = await ask(), await ask(**{"accept-encoding": "gzip"})
        assert gzip.decompress(packed.body) == whole.body
        assert b"innerHTML" not in whole.body
        again = await ask(**{"if-none-match": whole.headers["ETag"]})
        assert (again.http_status, again.body) == (304, b"")
