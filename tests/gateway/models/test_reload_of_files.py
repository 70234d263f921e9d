"""The configuration, read anew while the gateway serves: what changes, what stays, and what is refused."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from waiting import stays, until

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.models import reload as reloading
from tensorgate.gateway.models.reload import ReloadOutcome

MODELS = """
import asyncio

class Number:
    def __init__(self, context):
        self.number = context.parameters["number"]
    async def infer(self, inputs, request):
        await asyncio.sleep(float(inputs["x"].ravel()[0]))
        return {"y": inputs["x"] * 0 + self.number}

class Wrong:
    def __init__(self, context):
        raise ValueError("no such weights")
    def infer(self, inputs, request):
        return inputs
"""
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
}
KEY = {"x-admin": "secret"}


def number(value: float, **more: Any) -> dict[str, Any]:
    return {"backend": "python", "path": "models.py:Number", "parameters": {"number": value}, **TENSORS, **more}


def no_weights(house: Any) -> str:
    """What is said of the class Wrong, and where in the operator's files that is."""
    return f"no such weights ({house.file.parent / 'models.py'}, line 13)"


WRONG = {"backend": "python", "path": "models.py:Wrong", **TENSORS}


class House:
    """A gateway whose configuration file may be written anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "gateway.yaml"
        self.config: dict[str, Any] = {
            "listen": {"http": [{"bind": "127.0.0.1:0"}]},
            "models": {"a": number(1), "b": number(2)},
            "routes": {"r": [{"model": "a", "weight": 100}], "s": [{"model": "b"}]},
            "admin": {"header": "x-admin", "value_file": "key"},
            "drain_seconds": 2,
        }
        (folder / "models.py").write_text(MODELS)
        (folder / "key").write_text("secret")

    async def start(self, **sections: Any) -> None:
        self.write(**sections)
        kinds = registries()
        self.app = App(load_config(self.file, kinds), kinds)
        await self.app.start()
        await self.app.load(lambda report: None)
        self.http = aiohttp.ClientSession(self.app.addresses[0])

    async def stop(self) -> None:
        await self.http.close()
        assert await self.app.drain()

    def write(self, text: str | None = None, **sections: Any) -> None:
        self.config |= sections
        self.file.write_text(yaml.safe_dump(self.config, sort_keys=False) if text is None else text)

    async def reload(self, text: str | None = None, **sections: Any) -> ReloadOutcome:
        self.write(text, **sections)
        return await self.app.reloads.request("a test")

    async def ask(self, name: str, x: float = 0) -> Any:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}]}
        async with self.http.post(f"/v2/models/{name}/infer", json=body) as answer:
            content = await answer.json()
            return content["outputs"][0]["data"][0] if answer.status == 200 else (answer.status, content["error"])

    async def admin(self, headers: dict[str, str] | None = None, method: str = "POST") -> tuple[int, Any]:
        async with self.http.request(method, "/admin/reload", headers=headers) as answer:
            return answer.status, json.loads(await answer.text())

    async def metric(self, line: str) -> float:
        async with self.http.get("/metrics") as answer:
            text = await answer.text()
        return float(next(each.rpartition(" ")[2] for each in text.splitlines() if each.startswith(line + " ")))

    async def ready(self) -> bool:
        async with self.http.get("/readyz") as answer:
            return answer.status == 200

    def model(self, name: str) -> Any:
        return self.app.repository.snapshot.models[name][1]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    it = House(tmp_path)
    yield it
    await it.stop()


# ------------------------------------------------------------------------------------------------------ what is applied


async def test_a_file_that_says_the_same_changes_nothing(house: House) -> None:
    await house.start()
    before = house.model("a"), house.model("b"), house.app.router.routes["r"]
    outcome = await house.reload(limits={"max_body_bytes": 64 << 20})  # the default, written out
    assert (outcome.result, bool(outcome.changes)) == ("unchanged", False)
    assert before == (house.model("a"), house.model("b"), house.app.router.routes["r"])


async def test_only_what_differs_is_loaded_anew(house: House) -> None:
    await house.start()
    a, s, answered = house.model("a"), house.app.router.routes["s"], house.model("b").counters
    assert [await house.ask(name) for name in ("a", "b", "r", "s")] == [1, 2, 1, 2]
    routes = {"r": [{"model": "c"}], "s": [{"model": "b"}]}
    outcome = await house.reload(models={"a": number(1), "b": number(20), "c": number(3)}, routes=routes)
    assert outcome.result == "applied"
    assert [await house.ask(name) for name in ("a", "b", "c", "r", "s")] == [1, 20, 3, 3, 20]
    assert house.model("a") is a
    assert house.model("b").counters is not answered
    assert house.app.router.routes["s"] is s
    kinds = {change.name: change.kind for change in outcome.changes.models}
    assert (kinds, outcome.changes.unchanged) == ({"b": "reloaded", "c": "added"}, ("a",))
    assert [str(each) for each in outcome.changes.models[0].differences] == ["parameters.number: 2 -> 20"]
    assert await house.metric('tensorgate_route_requests_total{model="b",route="s",version="1",why="chosen"}') == 2
    assert await house.metric('tensorgate_route_requests_total{model="a",route="r",version="1",why="chosen"}') == 1


async def test_what_runs_ends_on_the_version_that_accepted_it(house: House) -> None:
    await house.start()
    async with asyncio.TaskGroup() as tasks:
        slow = [tasks.create_task(house.ask(name, 1)) for name in ("a", "b", "r")]
        await until(lambda: [m.running + m.queued for m in (house.model("a"), house.model("b"))] == [2, 1])
        outcome = await house.reload(models={"a": number(10)}, routes={})
        assert outcome.result == "applied"
        assert await house.ask("a") == 10
        assert (await house.ask("b"))[0] == 404
        assert not any(task.done() for task in slow)
    assert [task.result() for task in slow] == [1, 2, 1]


async def test_weights_shift_at_once(house: House) -> None:
    await house.start(routes={"r": [{"model": "a", "weight": 100}, {"model": "b", "weight": 0}]})
    before = {await house.ask("r") for _ in range(20)}
    outcome = await house.reload(routes={"r": [{"model": "a", "weight": 0}, {"model": "b", "weight": 100}]})
    assert (before, {await house.ask("r") for _ in range(20)}) == ({1}, {2})
    assert outcome.changes.routes[0].shares == (("a", 100, 0), ("b", 0, 100))
    assert await house.metric('tensorgate_route_requests_total{model="a",route="r",version="1",why="chosen"}') == 20


async def test_the_first_route_and_the_last(house: House) -> None:
    await house.start(routes={})
    assert (await house.ask("r"))[0] == 404
    await house.reload(routes={"r": [{"model": "b"}]})
    assert await house.ask("r") == 2
    await house.reload(routes={})
    assert (await house.ask("r"))[0] == 404


@pytest.mark.parametrize("chunked", [False, True])
async def test_limits_take_effect(house: House, chunked: bool) -> None:
    await house.start()
    outcome = await house.reload(limits={"max_body_bytes": 1000})
    assert [str(each) for each in outcome.changes.settings] == ["limits.max_body_bytes: 67108864 -> 1000"]
    body = b"{" + b" " * 2000 + b"}"

    async def stream() -> AsyncIterator[bytes]:
        yield body

    async with house.http.post("/v2/models/a/infer", data=stream() if chunked else body) as answer:
        assert answer.status == 400  # as Triton has it
        assert "1000 bytes" in await answer.text()


async def test_readiness_and_the_response_cache_take_effect(house: House) -> None:
    await house.start(models={"a": number(1), "b": WRONG}, readiness="strict")
    assert not await house.ready()
    outcome = await house.reload(readiness="lenient", response_cache={"max_bytes": 5000})
    assert outcome.result == "applied"
    assert outcome.changes.retried == ("b",)
    assert outcome.errors == (f"models.b version 1: {no_weights(house)}",)
    assert await house.ready()
    assert house.app._cache.max_bytes == 5000


async def test_what_needs_a_restart_is_told_and_left(house: House) -> None:
    await house.start()
    changed = {
        "listen": {"http": [{"bind": "127.0.0.1:0"}, {"bind": "127.0.0.1:1"}]},
        "limits": {"max_binary_bytes": 1000, "max_json_depth": 3},
        "drain_seconds": 3,
    }
    for _ in range(2):  # as long as it is so
        outcome = await house.reload(**changed)
        assert outcome.result == "applied"
        assert {each.key for each in outcome.changes.restart} == {
            "listen.http", "limits.max_binary_bytes", "drain_seconds"
        }  # fmt: skip
    config = house.app.config
    assert (config.limits.max_json_depth, config.limits.max_binary_bytes, config.drain_seconds) == (3, 1 << 30, 2)
    assert [each["bind"] for each in config.plain()["listen"]["http"]] == ["127.0.0.1:0"]


async def test_who_may_call_changes_at_once(house: House) -> None:
    """And with callers known, their administrators reload, too."""
    (house.folder / "keys.yaml").write_text(
        yaml.safe_dump({name: {"sha256": sha256(name.encode()).hexdigest()} for name in ("alice", "root")})
    )
    await house.start()
    assert await house.ask("a") == 1
    auth = {"keys_file": "keys.yaml", "admins": ["root"], "page": "open"}
    outcome = await house.reload(auth=auth)
    assert (outcome.result, outcome.changes.restart) == ("applied", ())
    assert (await house.ask("a"))[0] == 401
    for key, status in ((None, 403), ("alice", 403), ("root", 200)):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        assert (await house.admin(headers))[0] == status
    assert (await house.admin(KEY))[0] == 200, "the administrator's key stands beside them"
    house.config.pop("admin")
    assert (await house.reload(auth=auth)).result == "applied"
    assert (await house.admin())[0] == 401
    assert (await house.admin({"authorization": "Bearer alice"}))[0] == 403
    house.config.pop("auth")
    assert (await house.reload()).result == "applied"
    assert await house.ask("a") == 1
    assert (await house.admin())[0] == 404, "there is no administrator any more"


async def test_models_of_a_repository_come_and_go(house: House) -> None:
    for name, value in (("x", 5), ("y", 6)):
        folder = house.folder / "repository" / name
        folder.mkdir(parents=True)
        (folder / "models.py").write_text(MODELS)
        (folder / "model.yaml").write_text(yaml.safe_dump(number(value)))
    await house.start()
    outcome = await house.reload(repositories=["repository"])
    assert outcome.result == "applied"
    assert [await house.ask(name) for name in ("a", "x", "y")] == [1, 5, 6]
    kept = house.model("y")
    (house.folder / "repository/x/model.yaml").write_text(yaml.safe_dump(number(50)))
    outcome = await house.reload()
    assert [(each.name, each.kind) for each in outcome.changes.models] == [("x", "reloaded")]
    assert [await house.ask(name) for name in ("x", "y")] == [50, 6]
    assert house.model("y") is kept
    await house.reload(repositories=[])
    assert [(await house.ask(name))[0] for name in ("x", "y")] == [404, 404]


async def test_files_that_have_changed_are_loaded_anew(house: House) -> None:
    await house.start()
    kept = house.model("b")
    (house.folder / "other.py").write_text(MODELS)
    await house.reload(models={"a": number(1, path="other.py:Number"), "b": number(2)})
    (house.folder / "other.py").write_text(MODELS.replace("self.number}", "self.number + 100}"))
    outcome = await house.reload()
    assert [(each.name, each.files, each.differences) for each in outcome.changes.models] == [("a", True, ())]
    assert await house.ask("a") == 101
    assert house.model("b") is kept


# ------------------------------------------------------------------------------------------------------ what is refused


async def test_a_wrong_file_is_refused_whole(house: House) -> None:
    await house.start()
    before = house.app.config
    succeeded = await house.metric("tensorgate_config_last_reload_success_timestamp_seconds")
    digest = sha256(house.file.read_bytes()).hexdigest()
    outcome = await house.reload("listen: {http: []}\nmodels:\n  a: {backend: onyx, path: .}\nrouts: {}\n")
    assert outcome.result == "refused"
    found = [error.removeprefix(f"{house.file}:") for error in outcome.errors]
    assert found == [
        '3:16: models.a.backend: found "onyx", expected one of classic, ensemble, genai, onnx, python, remote, '
        "tensorflow, torch, triton_python; did you mean onnx?",
        "4:1: routs: unknown key; did you mean routes?",
    ]
    assert house.app.config is before
    assert [await house.ask(name) for name in ("a", "b", "r")] == [1, 2, 1]
    assert await house.metric('tensorgate_config_reloads_total{result="refused"}') == 1
    assert await house.metric('tensorgate_config_reloads_total{result="applied"}') == 0
    assert await house.metric("tensorgate_config_last_reload_success_timestamp_seconds") == succeeded
    assert await house.metric(f'tensorgate_config_info{{hash="{digest}"}}') == 1


@pytest.mark.parametrize(
    "text", ["", "models: [", "\xff", "models: {a: {backend: python, path: absent.py:A}}"], ids=repr
)
async def test_no_file_stops_what_serves(house: House, text: str) -> None:
    await house.start()
    house.file.write_bytes(text.encode("latin-1"))
    outcome = await house.app.reloads.request("a test")
    assert outcome.result == "refused"
    assert outcome.errors
    assert await house.ask("a") == 1
    house.file.unlink()
    assert (await house.app.reloads.request("a test")).result == "refused"
    assert await house.ask("a") == 1


async def test_a_model_that_fails_holds_back_routes_and_removals(house: House) -> None:
    await house.start()
    a = house.model("a")
    models = {"a": number(10, path="models.py:Wrong"), "c": WRONG, "d": number(4)}
    routes = {"r": [{"model": "c"}], "t": [{"model": "d"}]}
    for _ in range(2):  # not only the first time
        outcome = await house.reload(models=models, routes=routes)
        assert outcome.result == "incomplete"
        assert outcome.errors == tuple(f"models.{name} version 1: {no_weights(house)}" for name in "ac")
        assert house.model("a") is a
        assert [await house.ask(name) for name in ("a", "b", "d", "r", "s")] == [1, 2, 4, 1, 2]
        assert (await house.ask("t"))[0] == 404
        assert await house.ready()
    assert await house.metric('tensorgate_config_reloads_total{result="incomplete"}') == 2
    models |= {"a": number(10), "c": number(3)}
    outcome = await house.reload(models=models)
    assert outcome.result == "applied"
    assert [await house.ask(name) for name in ("a", "c", "d", "r", "t")] == [10, 3, 4, 3, 4]
    assert [(await house.ask(name))[0] for name in ("b", "s")] == [404, 404]


async def test_going_back_after_a_failure(house: House) -> None:
    await house.start()
    before, a = dict(house.config), house.model("a")
    await house.reload(models={"a": number(10), "b": WRONG, "c": number(3)}, routes={})
    assert [await house.ask(name) for name in ("a", "b", "c", "r")] == [10, 2, 3, 10]
    outcome = await house.reload(**before)
    assert outcome.result == "applied"
    kinds = {change.name: change.kind for change in outcome.changes.models}
    assert kinds == {"a": "reloaded", "c": "removed"}
    assert [await house.ask(name) for name in ("a", "b", "r", "s")] == [1, 2, 1, 2]
    assert house.model("a") is not a
    assert (await house.ask("c"))[0] == 404


# ------------------------------------------------------------------------------------------------------------- by whom


async def test_administrators_reload_by_a_call(house: House) -> None:
    await house.start()
    assert (await house.admin())[0] == 403
    assert (await house.admin({"x-admin": "wrong"}))[0] == 403
    assert (await house.admin(KEY, "GET"))[0] == 405
    house.write(models={"a": number(10), "b": number(2)})
    status, answer = await house.admin(KEY)
    assert (status, answer["result"], answer["errors"]) == (200, "applied", [])
    assert answer["changes"]["models"]["reloaded"] == {
        "a": {"keys": [{"key": "parameters.number", "before": 1, "after": 10}], "files_changed": False}
    }
    assert answer["changes"]["models"]["unchanged"] == ["b"]
    house.write("nonsense")
    status, answer = await house.admin(KEY)
    assert (status, answer["result"]) == (422, "refused")
    assert answer["errors"] == [f'{house.file}:1:1: found "nonsense", expected a mapping']
    house.write(models={"a": WRONG, "b": number(2)})
    status, answer = await house.admin(KEY)
    assert (status, answer["errors"]) == (500, [f"models.a version 1: {no_weights(house)}"])


async def test_without_an_administrator_there_is_no_such_page(house: House) -> None:
    await house.start(admin=None)
    assert [(await house.admin(KEY, method))[0] for method in ("POST", "GET")] == [404, 404]
    await house.reload(admin={"header": "x-admin", "value_file": "key"})
    assert (await house.admin(KEY))[0] == 200


async def test_the_key_is_read_anew(house: House) -> None:
    await house.start()
    (house.folder / "key").write_text("another")
    assert (await house.admin(KEY))[0] == 200  # which reads it
    assert (await house.admin(KEY))[0] == 403
    assert (await house.admin({"x-admin": "another"}))[0] == 200


async def test_a_caller_who_leaves_does_not_stop_a_reload(house: House) -> None:
    await house.start()
    waits = "import pathlib, time\nwhile not pathlib.Path(__file__).with_name('go').exists():\n    time.sleep(0.01)\n"
    (house.folder / "slow.py").write_text(waits + MODELS)
    house.write(models={"a": number(1), "b": number(20, path="slow.py:Number")})
    caller = asyncio.create_task(house.admin(KEY))
    await until(lambda: house.app.reloads._running)
    caller.cancel()
    await asyncio.wait([caller])
    await stays(lambda: house.app.reloads._running)
    (house.folder / "go").touch()
    await until(lambda: house.app.reloads.counts["applied"] == 1)
    assert await house.ask("b") == 20


async def test_reloads_wait_for_each_other(house: House) -> None:
    await house.start()
    house.write(models={"a": number(10), "b": number(2)})
    first, second = house.app.reloads.request("one"), house.app.reloads.request("two")
    assert [(await first).result, (await second).result] == ["applied", "unchanged"]


# ---------------------------------------------------------------------------------------------- what callers have done


async def test_what_callers_have_unloaded_or_changed_stays_so(house: House) -> None:
    await house.start(model_control={"mode": "explicit", "load": ["a", "b"]}, routes={})
    override = {"parameters": {"number": {"string_value": "7"}}}
    repository = house.app.repository
    await repository.unload("b")
    await repository.load("a", json.dumps(override))
    changed = house.model("a")
    outcome = await house.reload(models={"a": number(1), "b": number(2), "c": number(3)})
    assert outcome.result == "unchanged"
    assert house.model("a") is changed
    assert [(await house.ask(name))[0] for name in ("b", "c")] == [404, 404]
    outcome = await house.reload(models={"a": number(11), "b": number(2), "c": number(3)})
    assert [(each.name, each.kind) for each in outcome.changes.models] == [("a", "reloaded")]
    assert await house.ask("a") == 11


# --------------------------------------------------------------------------------------------------- following the file


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """Wait until the file has been looked at five times more."""
    looks = 0
    look = reloading._file_stamp

    def count(file: Path) -> Any:
        nonlocal looks
        looks += 1
        return look(file)

    async def again() -> None:
        before = looks
        await until(lambda: looks > before + 5)

    monkeypatch.setattr(reloading, "_file_stamp", count)
    return again


async def test_a_file_that_is_followed(house: House, looked: Callable[[], Awaitable[None]]) -> None:
    await house.start(reload={"watch": True, "poll_seconds": 0.03})
    counts = house.app.reloads.counts

    def replaced(value: float) -> None:
        """As editors do it."""
        config = house.config | {"models": {"a": number(value), "b": number(2)}}
        new = house.folder / ".gateway.yaml.swp"
        new.write_text(yaml.safe_dump(config))
        new.replace(house.file)

    replaced(5)
    await until(lambda: counts["applied"] == 1)
    assert await house.ask("a") == 5
    os.utime(house.file)  # touched: the same content is not read anew
    replaced(5)
    await looked()
    assert sum(counts.values()) == 1
    house.file.write_text("nonsense")
    await until(lambda: counts["refused"] == 1)
    house.file.unlink()
    await looked()
    replaced(6)
    await until(lambda: counts["applied"] == 2)
    assert (await house.ask("a"), counts["refused"]) == (6, 1)


async def test_a_file_is_read_once_it_is_whole(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes between any two looks until it is."""
    lines = iter(yaml.safe_dump(house.config | {"models": {"a": number(5), "b": number(2)}}).splitlines(keepends=True))
    look = reloading._file_stamp

    def write_and_look(file: Path) -> Any:
        with file.open("a") as more:
            more.write(next(lines, ""))
        return look(file)

    await house.start(reload={"watch": True, "poll_seconds": 0.002})
    house.file.write_text("")
    monkeypatch.setattr(reloading, "_file_stamp", write_and_look)
    counts = house.app.reloads.counts
    await until(lambda: counts["applied"] == 1)
    assert counts["refused"] == 0


async def test_a_config_map_is_followed(house: House) -> None:
    """Kubernetes mounts gateway.yaml as a link into ..data, a link that it exchanges for one to a new folder."""
    mount = house.folder / "mount"

    def publish(folder: str, value: float) -> None:
        (mount / folder).mkdir(parents=True)
        config = house.config | {"models": {"a": number(value, path=str(house.folder / "models.py:Number"))}}
        (mount / folder / "gateway.yaml").write_text(yaml.safe_dump(config))
        (mount / "..new").symlink_to(folder)
        (mount / "..new").replace(mount / "..data")

    house.config |= {"reload": {"watch": True, "poll_seconds": 0.03}, "routes": {}, "admin": None}
    publish("..2026_1", 1)
    house.file = mount / "gateway.yaml"
    house.file.symlink_to("..data/gateway.yaml")
    house.write = lambda text=None, **sections: None  # type: ignore[method-assign]
    await house.start()
    publish("..2026_2", 5)
    await until(lambda: house.app.reloads.counts["applied"] == 1)
    assert await house.ask("a") == 5
