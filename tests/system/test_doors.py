"""A gateway of several processes: what callers find is one server, whichever door they come through; and who falls
takes nobody else along.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from forks import ROOT
from grpc_health.v1 import health_pb2
from serving import HOST, Answer, Gateway, started
from steady_load import MODEL, WAYS, Load, loaded, times
from waiting import until, wait_until

from tensorgate.adapters.protobuf.messages import message

log = logging.getLogger(__name__)

SHM = Path("/dev/shm")  # noqa: S108
KEPT_S = 60.0
CLOSED = (OSError, http.client.HTTPException)
ESTABLISHED = "01"
FLAT = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [3]}]}
MODELS = """
import time
from pathlib import Path

class Gated:
    \"\"\"Answers how many rows its run has, once there is a file `go`; says what becomes of each run.\"\"\"

    def __init__(self, context):
        self.folder = context.path

    def note(self, word):
        with (self.folder / "runs").open("a") as file:
            file.write(word + "\\n")

    def infer(self, inputs, request):
        self.note("begun")
        while not (self.folder / "go").exists():
            if request.cancelled:
                self.note("cancelled")
                break
            time.sleep(0.002)
        return {"y": inputs["x"] * 0 + len(inputs["x"])}

class Sum:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        after = inputs["before"] + inputs["x"]
        return {"y": after, "after": after}

class Numbers:
    \"\"\"Streams 0, 1, ... below x.\"\"\"

    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        for number in range(int(inputs["x"][0])):
            yield {"y": inputs["x"] * 0 + number}
"""


# ------------------------------------------------------------------------------------------------------------ processes


class Processes:
    """A gateway of two doors, and its processes."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self.gateway = gateway
        self.folder = folder
        """Where its models are."""
        self._seen: set[int] = set()

    def roles(self) -> dict[str, list[int]]:
        """engine, door 0, door 1 -> the numbers of its processes, in the order of their beginning."""
        parent = self.gateway.process.pid
        found: dict[str, list[int]] = {}
        children = Path(f"/proc/{parent}/task/{parent}/children")
        for child in children.read_text().split() if children.exists() else ():
            try:
                environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:  # it has just ended
                continue
            for entry in environment:
                if entry.startswith(b"TENSORGATE_ROLE="):
                    role = json.loads(entry.partition(b"=")[2])
                    name = "engine" if role["role"] == "engine" else f"door {role['slot']}"
                    found.setdefault(name, []).append(int(child))
        self._seen |= numbers(found)
        return found

    def pid(self, name: str) -> int:
        (number,) = self.roles()[name]
        return number

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def remain(self) -> list[int]:
        """Those that there still are of all that were ever seen."""
        return [number for number in self._seen if Path(f"/proc/{number}/exe").exists()]

    def holders(self, port: int) -> dict[int, str]:
        """Each client's port of an open connection to `port` -> the process that has it."""
        sockets: dict[str, int] = {}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, here, there, state, *rest = line.split()
            if int(here.rpartition(":")[2], 16) == port and state == ESTABLISHED:
                sockets[f"socket:[{rest[5]}]"] = int(there.rpartition(":")[2], 16)
        found = {}
        for name, processes in self.roles().items():
            for number in processes:
                for file in Path(f"/proc/{number}/fd").iterdir():
                    try:
                        at = str(file.readlink())
                    except OSError:
                        continue
                    if at in sockets:
                        found[sockets[at]] = name
        return found

    def at_doors(self, stack: ExitStack, count: int = 2) -> list[Caller]:
        """Callers on connections that they keep, in turn at door 0 and door 1."""
        found: dict[str, list[Caller]] = {"door 0": [], "door 1": []}
        while min(map(len, found.values())) < count // 2:
            caller = stack.enter_context(Caller(self.gateway))
            found[self.holders(self.gateway.port)[caller.port]].append(caller)
        pairs = list(zip(*found.values(), strict=False))[: count // 2]
        return [caller for pair in pairs for caller in pair]

    def has_run(self, word: str) -> int:
        """How often the gated model has said so."""
        runs = self.folder / "runs"
        return runs.read_text().split().count(word) if runs.exists() else 0

    def restarts(self) -> float:
        return self.gateway.metrics().total("tensorgate_worker_restarts_total")


def numbers(roles: Mapping[str, list[int]]) -> set[int]:
    """Of all processes."""
    return {number for each in roles.values() for number in each}


class Caller:
    """Calls over HTTP, on one connection for as long as it lasts."""

    def __init__(self, gateway: Gateway) -> None:
        self._connection = http.client.HTTPConnection(HOST, gateway.port, timeout=KEPT_S)
        self._connection.connect()
        self.call("GET", "/v2/health/live")
        self.port: int = self._connection.sock.getsockname()[1]

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *why: object) -> None:
        self._connection.close()

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self._connection.sock
        return found

    def send(self, method: str, path: str, body: Any = None) -> None:
        self._connection.request(method, path, None if body is None else json.dumps(body))

    def receive(self) -> tuple[int, Any]:
        """Raises OSError, HTTPException."""
        self.answer = self._connection.getresponse()
        said = self.answer.read()
        return self.answer.status, json.loads(said) if said[:1] in (b"{", b"[") else said

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self.send(method, path, body)
        return self.receive()

    def infer(self, model: str, x: float, **parameters: Any) -> tuple[int, Any]:
        return self.call("POST", f"/v2/models/{model}/infer", v2(x, **parameters))


def v2(x: float, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [x]}
    return {"inputs": [tensor], **({"parameters": parameters} if parameters else {})}


def y(answer: tuple[int, Any]) -> float:
    status, said = answer
    assert status == 200, said
    return float(said["outputs"][0]["data"][0])


def configuration(folder: Path) -> dict[str, Any]:
    (folder / "times.py").write_text(MODEL)
    (folder / "models.py").write_text(dedent(MODELS))

    def model(name: str, **options: Any) -> dict[str, Any]:
        tensor = {"datatype": "FP32", "shape": [-1, 1], "max_batch_size": 64} | options.pop("tensor", {})
        size = tensor.pop("max_batch_size")
        ends = {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
        return {"backend": "python", "path": f"{folder}/models.py:{name}", "max_batch_size": size, **ends, **options}

    bind = {"bind": f"{HOST}:0"}
    state = {"input": "before", "output": "after", "datatype": "FP32", "shape": [1, 1], "initial": "zero"}
    return {
        "listen": {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)},
        "shared_memory": {"system": True},
        "model_control": {"mode": "explicit", "load": ["*"]},
        "access_log": {"file": str(folder / "access.log")},
        "metrics": {"usage": True},
        "models": {
            "a": times(f"{folder}/times.py", 2),
            "b": times(f"{folder}/times.py", 3),
            "c": times(f"{folder}/times.py", 5),
            "gated": model("Gated"),
            "sum": model("Sum", sequences={"states": [state]}),
            "numbers": model("Numbers", instances=2, tensor={"shape": [1], "max_batch_size": 0}),
        },
        "routes": {
            "m": [{"model": "a"}],
            "counted": [{"model": "c"}],
            "limited": {"targets": [{"model": "gated"}], "max_concurrent": 1},
        },
    }


@contextmanager
def doors(folder: Path, monkeypatch: pytest.MonkeyPatch, *, killed: bool = False) -> Iterator[Processes]:
    """A gateway of two doors. All that it has made is to be gone after it, as after a single process, also if its
    supervisor is `killed`.
    """
    before = set(SHM.iterdir())
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(configuration(folder)))
    with started(folder / "log", "--doors", "2", str(file), python=Path(sys.executable)) as gateway:
        gateway.wait_until_ready()
        processes = Processes(gateway, folder)
        processes.roles()
        yield processes
        processes.roles()
        status = gateway.stop()
        assert status == (-signal.SIGKILL if killed else 0), gateway.said
        assert "Traceback" not in gateway.said_itself, gateway.said
        wait_until(lambda: not processes.remain(), processes.remain)
        assert list(temporary.iterdir()) == []
        assert {each for each in set(SHM.iterdir()) - before if not each.name.startswith("tensorgate-test-")} == set()


# ------------------------------------------------------------------------------------------------ one server to callers


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One for all tests of what callers find; it has to survive them all."""
    with pytest.MonkeyPatch.context() as monkeypatch, doors(tmp_path_factory.mktemp("group"), monkeypatch) as group:
        yield group


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as it:
        yield it


def occupy(group: Processes, callers: list[Caller]) -> None:
    """Ask the gated model: the first has a run of its own, the others share the next one, once the first is over."""
    first, *others = callers
    begun = group.has_run("begun")
    first.send("POST", "/v2/models/gated/infer", v2(1))
    wait_until(lambda: group.has_run("begun") == begun + 1)
    for caller in others:
        caller.send("POST", "/v2/models/gated/infer", v2(1))
    queued = "tensorgate_queued_requests"
    wait_until(lambda: group.gateway.metrics().total(queued, model="gated") == len(others))


def channels(group: Processes, stack: ExitStack, count: int) -> list[Any]:
    """gRPC channels, each with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    made = [
        stack.enter_context(grpc.insecure_channel(f"{HOST}:{group.gateway.grpc_port}", options)) for _ in range(count)
    ]
    for channel in made:
        grpc.channel_ready_future(channel).result(KEPT_S)
    return made


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_connections_are_spread_evenly(group: Processes, stack: ExitStack, transport: str) -> None:
    gateway = group.gateway
    port = gateway.port if transport == "http" else gateway.grpc_port
    wait_until(lambda: not group.holders(port))
    if transport == "http":
        for _ in range(16):
            stack.enter_context(Caller(gateway))
    else:
        channels(group, stack, 16)
    assert Counter(group.holders(port).values()) == {"door 0": 8, "door 1": 8}


def test_requests_of_both_doors_share_a_run(group: Processes, stack: ExitStack) -> None:
    *callers, observer = group.at_doors(stack, 18)

    def statistics() -> tuple[int, int]:
        stats = observer.call("GET", "/v2/models/gated/stats")[1]["model_stats"][0]
        return stats["execution_count"], stats["inference_count"]

    before = statistics()
    occupy(group, callers)
    (group.folder / "go").touch()
    assert [y(caller.receive()) for caller in callers] == [1] + [16] * 16
    (group.folder / "go").unlink()
    runs, rows = statistics()
    assert (runs - before[0], rows - before[1]) == (2, 17)


def test_a_sequence_goes_on_at_another_door(group: Processes, stack: ExitStack) -> None:
    callers = group.at_doors(stack)
    for ident in (7, 8):
        sums = [
            y(callers[number % 2].infer("sum", number, sequence_id=ident, sequence_start=number == 0))
            for number in range(40)
        ]
        assert sums == [number * (number + 1) / 2 for number in range(40)]
    ended = callers[1].infer("sum", 0, sequence_id=7, sequence_end=True)
    assert y(ended) == 780
    status, said = callers[0].infer("sum", 1, sequence_id=7)
    assert (status, "must specify the START flag" in said["error"]) == (400, True)


def test_a_region_belongs_to_all_doors(group: Processes, stack: ExitStack) -> None:
    callers = group.at_doors(stack)
    file = SHM / f"tensorgate-test-{uuid.uuid4().hex}"
    file.write_bytes(np.arange(8, dtype=np.float32).tobytes())
    file.chmod(0o600)
    stack.callback(file.unlink)
    at = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    tensor = {"name": "x", "datatype": "FP32", "shape": [4], "parameters": at}
    out = {"name": "y", "parameters": {**at, "shared_memory_offset": 16}}
    for number in range(6):
        here, there = callers[number % 2], callers[1 - number % 2]
        key = {"key": file.name, "byte_size": 32}
        assert here.call("POST", "/v2/systemsharedmemory/region/r/register", key)[0] == 200
        assert [each["name"] for each in there.call("GET", "/v2/systemsharedmemory/status")[1]] == ["r"]
        status, said = there.call("POST", "/v2/models/a/infer", {"inputs": [tensor], "outputs": [out]})
        assert status == 200, said
        assert np.fromfile(file, np.float32)[4:].tolist() == [0, 2, 4, 6]
        assert here.call("POST", "/v2/systemsharedmemory/unregister")[0] == 200
        assert there.call("GET", "/v2/systemsharedmemory/status")[1] == []
        assert there.call("POST", "/v2/models/a/infer", {"inputs": [tensor]})[0] == 404


def test_models_come_and_go_at_all_doors_at_once(group: Processes, stack: ExitStack) -> None:
    callers = group.at_doors(stack)
    wait_until(lambda: not group.holders(group.gateway.grpc_port))
    by_grpc = channels(group, stack, 2)
    assert sorted(Counter(group.holders(group.gateway.grpc_port).values()).values()) == [1, 1]
    ready = message("inference.ModelReadyRequest")(name="b").SerializeToString()

    def states() -> list[Any]:
        """What each door says of the model."""
        seen: list[Any] = []
        for caller in callers:
            seen.append(caller.call("POST", "/v2/models/b/infer", FLAT)[0])
            seen.append(caller.call("POST", "/v1/models/b:predict", {"inputs": [1.0]})[0])
            seen.append(caller.call("GET", "/v2/models/b/ready")[0])
            index = caller.call("POST", "/v2/repository/index")[1]
            state = next(each.get("state") for each in index if each["name"] == "b")
            seen.append("UNAVAILABLE" if state == "UNLOADING" else state)  # which it is once its last run is over
        for channel in by_grpc:
            body = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")(ready)
            seen.append(message("inference.ModelReadyResponse").FromString(body).ready)
        return seen

    there = states()
    assert there[0] == 200
    gone = None
    for number in range(6):
        here = callers[number % 2]
        assert here.call("POST", "/v2/repository/models/b/unload")[0] == 200
        now = states()
        assert now == (gone or now)
        assert (now[0], now[1], now[3], now[-1]) == (404, 404, "UNAVAILABLE", False)
        gone = now
        assert here.call("POST", "/v2/repository/models/b/load")[0] == 200
        assert states() == there


def test_streams_of_both_doors(group: Processes, stack: ExitStack) -> None:
    """More answers than may be on their way, to many callers at a time."""
    count = 300
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [count]}}
    request = message("inference.ModelInferRequest")(model_name="numbers", inputs=[tensor]).SerializeToString()
    answer = message("inference.ModelStreamInferResponse")

    def stream(channel: Any) -> list[float]:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        said = [answer.FromString(body) for body in call(iter([request]), timeout=KEPT_S)]
        assert [each.error_message for each in said if each.error_message] == []
        return [
            float(np.frombuffer(each.infer_response.raw_output_contents[0], np.float32)[0])
            for each in said
            if each.infer_response.raw_output_contents
        ]

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(stream, channels(group, stack, 6))) == [list(range(count))] * 6


def test_who_leaves_is_cancelled_in_the_engine(group: Processes, stack: ExitStack) -> None:
    for caller in group.at_doors(stack):
        cancelled = group.has_run("cancelled")
        with caller:
            occupy(group, [caller])
        wait_until(lambda before=cancelled: group.has_run("cancelled") == before + 1)


def test_a_limit_of_a_route_is_that_of_all_doors(group: Processes, stack: ExitStack) -> None:
    first, second, third = group.at_doors(stack, 4)[:3]
    begun = group.has_run("begun")
    first.send("POST", "/v2/models/limited/infer", v2(1))
    wait_until(lambda: group.has_run("begun") == begun + 1)
    status, said = second.call("POST", "/v2/models/limited/infer", v2(1))
    assert (status, "Exceeds maximum queue size" in said["error"]) == (503, True)
    (group.folder / "go").touch()
    assert y(first.receive()) == 1
    assert y(third.call("POST", "/v2/models/limited/infer", v2(1))) == 1
    (group.folder / "go").unlink()


async def test_counters_and_the_access_log_have_every_call_once(group: Processes) -> None:
    """Nobody else asks this model, through the route or without."""
    gateway, file = group.gateway, group.folder / "access.log"
    async with loaded("counted", {5.0}, [gateway]) as load:
        await until(lambda: load.answers.total() >= 1500)
    calls = load.answers.total()
    series = await asyncio.to_thread(gateway.metrics)
    assert series.total("tensorgate_requests_total", model="counted", code="OK") == calls
    assert series.total("tensorgate_requests_total", model="counted") == calls
    assert series.total("tensorgate_request_seconds_count", model="counted") == calls
    assert series.total("tensorgate_route_requests_total", route="counted") == calls
    assert series.total("tensorgate_usage_calls_total", model="counted", caller="") == calls
    rows, compute_s = (
        series.total(f"tensorgate_usage_{name}_total", model="counted") for name in ("rows", "compute_seconds")
    )
    assert rows == series.total("tensorgate_batch_rows_sum", model="c") == calls
    assert 0 < compute_s < 60
    wrong = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1]}]}
    for _ in range(40):
        assert (await asyncio.to_thread(gateway.post, "/v2/models/c/infer", wrong)).status == 400
    unknown = "/v2/models/c/versions/77/infer"  # doors do not know it, the engine has the last word
    for _ in range(10):
        assert (await asyncio.to_thread(gateway.post, unknown, wrong)).status == 404
    series = await asyncio.to_thread(gateway.metrics)
    assert (
        series.total("tensorgate_requests_total", model="c", version="1", code="INVALID_ARGUMENT", reason="shape") == 40
    )
    assert series.total("tensorgate_requests_total", model="c", code="NOT_FOUND", reason="unknown_version") == 10
    errors = (await asyncio.to_thread(gateway.get, "/overview.json")).json["errors"]
    assert {each["reason"]: each["count"] for each in errors if each["model"] == "c"} == {
        "shape": 40,
        "unknown_version": 10,
    }

    def entries() -> list[Any]:
        text = file.read_text()
        return [json.loads(line) for line in text.splitlines()] if text.endswith("\n") else []

    await until(lambda: Counter(entry.get("model") for entry in entries())["c"] >= calls + 50)
    assert Counter(entry["code"] for entry in entries() if entry.get("model") == "c") == {
        "OK": calls,
        "INVALID_ARGUMENT": 40,
        "NOT_FOUND": 10,
    }


async def test_what_the_engine_answers_whole_is_told_as_any_call(group: Processes, stack: ExitStack) -> None:
    """Requests of a route with a limit of all doors together: doors pass them on undecoded."""
    gateway, file = group.gateway, group.folder / "access.log"

    def entries() -> list[Any]:
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in told if each.get("route") == "limited"]

    logged = len(entries())
    before = gateway.metrics()

    def counted(name: str, **labels: str) -> float:
        return gateway.metrics().total(name, **labels) - before.total(name, **labels)

    occupied, _ = group.at_doors(stack)
    occupied.send("POST", "/v2/models/limited/infer", v2(1))
    await asyncio.to_thread(wait_until, lambda: counted("tensorgate_route_running", route="limited") == 1)
    (group.folder / "go").touch()
    assert y(occupied.receive()) == 1
    (group.folder / "go").unlink()
    assert counted("tensorgate_requests_total", model="limited", code="OK") == 1
    assert counted("tensorgate_route_requests_total", route="limited") == 1
    assert counted("tensorgate_route_running", route="limited") == 0

    await until(lambda: len(entries()) > logged)
    told = entries()[-1]
    assert (told["model"], told["version"], told["code"], told["rows"]) == ("gated", 1, "OK", 1)
    assert told["compute_ms"] > 0


# ------------------------------------------------------------------------------------------------------ falls and rises


@pytest.fixture
def fallible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """One gateway for one test."""
    with doors(tmp_path, monkeypatch) as group:
        yield group


async def answered(load: Load, count: int = 200) -> None:
    """Until so many more calls are."""
    before = load.answers.total()
    await until(lambda: load.answers.total() >= before + count, load.told)


async def test_a_door_that_is_killed_costs_its_connections_alone(group: Processes, stack: ExitStack) -> None:
    gateway, restarts, cancelled = group.gateway, group.restarts(), group.has_run("cancelled")
    callers = group.at_doors(stack, 4)
    await asyncio.to_thread(occupy, group, callers)
    others = [caller for caller in callers if group.holders(gateway.port)[caller.port] == "door 1"]
    counted = gateway.metrics().total("tensorgate_requests_total", model="b")
    survivor = group.at_doors(stack)[1]

    def count() -> None:
        nonlocal counted
        for _ in range(20):
            assert survivor.call("POST", "/v2/models/b/infer", FLAT)[0] == 200
            counted += 1

    async with loaded("m", {2.0}, [gateway]) as load:
        await answered(load)
        await asyncio.to_thread(count)
        killed, at = group.kill("door 0"), time.monotonic()
        await asyncio.to_thread(count)
        await until(
            lambda: group.has_run("cancelled") == cancelled + 1
        )  # the run that only a caller of that door waited for
        cancelled_s = time.monotonic() - at
        await until(lambda: group.roles().get("door 0", [killed]) != [killed])
        replaced = group.pid("door 0")
        seen: set[str] = set()
        while "door 0" not in seen:  # the new one takes connections
            with Caller(gateway) as caller:
                seen = {group.holders(gateway.port).get(caller.port, "")}
        served_s = time.monotonic() - at
        assert replaced != killed
        await answered(load)
    assert load.retries.total() <= 2 * len(load.answers)  # each of the clients was cut off once at most
    (group.folder / "go").touch()
    assert [_is_lost(caller) for caller in callers] == [caller not in others for caller in callers]
    assert [y(caller.receive()) for caller in others] == [2.0, 2.0]
    count()
    assert gateway.metrics().total("tensorgate_requests_total", model="b") == counted
    (group.folder / "go").unlink()
    assert group.restarts() == restarts + 1
    log.info("cancelled after %.3f s, replaced after %.3f s; %s", cancelled_s, served_s, load.told())


def test_the_page_tells_of_doors_and_of_the_engine(fallible: Processes) -> None:
    """Which doors there are, how often each was started again, and that the engine was."""
    group, gateway = fallible, fallible.gateway

    def overview() -> tuple[int, Any]:
        try:
            answer = gateway.get("/overview.json")
        except (OSError, http.client.HTTPException):  # a connection to the door that has gone
            return 0, None
        return answer.status, answer.json if answer.status == 200 else None

    def doors() -> list[Any]:
        status, said = overview()
        return [(door["slot"], door["up"], door["restarts"]) for door in said["doors"]] if status == 200 else []

    wait_until(lambda: doors() == [(0, True, 0), (1, True, 0)])
    group.kill("door 0")
    wait_until(lambda: doors() == [(0, True, 1), (1, True, 0)])
    group.kill("engine")
    again = "the process that runs the models was started again once: SIGKILL"
    wait_until(lambda: (said := overview())[0] == 200 and ["note", again] in said[1]["problems"])


def _is_lost(caller: Caller) -> bool:
    """Whether a connection has ended. Nothing has been read of it yet."""
    sock = caller.socket
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        sock.settimeout(KEPT_S)


class Asking:
    """Callers of every dialect over both transports who ask all the time, and note when and how it ended."""

    def __init__(self, gateway: Gateway, *, timeout: float = 20.0) -> None:
        self._gateway = gateway
        self._timeout = timeout
        self._over = threading.Event()
        self.seen: list[tuple[str, str, float, float]] = []
        """(way, outcome, begun, seconds)"""
        self.refusals: dict[str, Any] = {}
        """By way: what was answered in place of an answer."""
        self._threads = [threading.Thread(target=self._ask, args=(way,)) for way in WAYS]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *why: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, way: Any) -> None:
        target, body = way.encode("m", 3.0)
        ask = self._http if "gRPC" not in way.name else self._grpc()
        while not self._over.is_set():
            begun = time.monotonic()
            outcome, said = ask(target, body)
            if outcome == "OK" and b"the engine is" in said:  # grps has its errors in its messages
                outcome = "UNAVAILABLE"
            elif outcome == "OK" and way.decode(said) != 6.0:
                outcome = "WRONG"
            if outcome != "OK":
                self.refusals[way.name] = said
            self.seen.append((way.name, outcome, begun, time.monotonic() - begun))
            time.sleep(0.005)  # real time: the pace of a caller

    def _http(self, target: str, body: bytes) -> tuple[str, Any]:
        connection = http.client.HTTPConnection(HOST, self._gateway.port, timeout=self._timeout)
        try:
            connection.request("POST", target, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            return ("OK", said) if answer.status == 200 else (str(answer.status), (dict(answer.headers), said))
        except CLOSED as error:
            return type(error).__name__, None
        finally:
            connection.close()

    def _grpc(self) -> Any:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        channel = grpc.insecure_channel(f"{HOST}:{self._gateway.grpc_port}", options)

        def ask(target: str, body: bytes) -> tuple[str, Any]:
            try:
                return "OK", channel.unary_unary(target)(body, timeout=self._timeout)
            except grpc.RpcError as error:
                return error.code().name, error.details()  # type: ignore[attr-defined]

        return ask

    def outcomes(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for way, outcome, _, _ in list(self.seen):
            found.setdefault(way, Counter())[outcome] += 1
        return found

    def count(self, outcome: str, since: float = 0.0) -> dict[str, int]:
        """How often each way has had an outcome of calls since then."""
        found = dict.fromkeys((way.name for way in WAYS), 0)
        for way, seen, begun, _ in list(self.seen):
            found[way] += seen == outcome and begun >= since
        return found


UNAVAILABLE = {"V2 HTTP": "503", "TFS REST": "503", "grps HTTP": "503"}


def test_an_engine_that_is_killed_is_missed_for_a_moment(fallible: Processes, stack: ExitStack) -> None:
    """Callers hear so at once, and go on by themselves once it is there again; the doors stay."""
    group, gateway = fallible, fallible.gateway
    waiting = group.at_doors(stack)
    for caller in waiting:
        caller.send("POST", "/v2/models/gated/infer", v2(1))
    wait_until(lambda: group.has_run("begun"))
    before = group.roles()
    with Asking(gateway) as asking:
        wait_until(lambda: min(asking.count("OK").values()) > 20, lambda: asking.outcomes())
        killed, at = group.kill("engine"), time.monotonic()
        for caller in waiting:  # what ran there is answered, not left hanging
            status, said = caller.receive()
            assert (status, caller.answer.headers["Retry-After"]) == (503, "1"), said
        told_s = time.monotonic() - at
        assert waiting[0].call("GET", "/v2/health/live")[0] == 200
        assert waiting[1].call("GET", "/v2/health/ready")[0] == 400
        assert gateway.get("/healthz").status == 200
        assert gateway.get("/readyz").status == 503
        with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            status = health_pb2.HealthCheckResponse.FromString(check(b"", timeout=KEPT_S)).status
        assert status == health_pb2.HealthCheckResponse.NOT_SERVING
        wait_until(lambda: gateway.get("/readyz").status == 200, lambda: gateway.said)
        back = time.monotonic()
        wait_until(lambda: min(asking.count("OK", back).values()) > 20, lambda: asking.outcomes())
    outage = [(begun, took) for _, outcome, begun, took in asking.seen if outcome != "OK"]
    assert outage
    for way, outcomes in asking.outcomes().items():
        assert outcomes.keys() == {"OK", UNAVAILABLE.get(way, "UNAVAILABLE")}, asking.outcomes()
    for way in UNAVAILABLE:
        headers, said = asking.refusals[way]
        assert headers["Retry-After"] == "1", said
        assert b"the engine is being started again" in said
    assert max(took for _, took in outage) < 5  # none waits for the engine, however busy the machine is
    after = group.roles()
    assert after.pop("engine") != before.pop("engine")
    assert after == before
    assert group.restarts() == 1
    slowest = max(took for _, took in outage)
    lasted = max(begun + took for begun, took in outage) - at
    log.info("told after %.3f s, back after %.3f s, slowest refusal %.3f s", told_s, lasted, slowest)
    assert killed


async def test_a_rolling_restart_fails_no_call(group: Processes) -> None:
    """Callers with connections that they keep, as long as the server does, and such as make one for each call."""
    gateway, before = group.gateway, group.roles()
    fresh: Counter[str] = Counter()
    over = threading.Event()

    def ask_afresh() -> None:
        while not over.is_set():
            try:
                fresh[str(gateway.post("/v2/models/a/infer", FLAT).status)] += 1
            except CLOSED as error:
                fresh[type(error).__name__] += 1

    threads = [threading.Thread(target=ask_afresh) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        async with loaded("m", {2.0}, [gateway]) as load:
            await answered(load)
            begun = time.monotonic()
            gateway.process.send_signal(signal.SIGUSR2)
            words = "is another process now"
            await asyncio.to_thread(wait_until, lambda: gateway.said.count(words) == 2, lambda: gateway.said)
            took = time.monotonic() - begun
            await answered(load)
            await asyncio.to_thread(wait_until, lambda: all(len(each) == 1 for each in group.roles().values()))
            await answered(load)
        assert load.retries.total() == 0, load.told()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert fresh.keys() == {"200"}, fresh
    after = group.roles()
    assert after.pop("engine") == before.pop("engine")
    assert after.keys() == before.keys()
    assert not numbers(after) & numbers(before)
    log.info("took %.1f s; %s; afresh %s", took, load.told(), fresh)


NEWER = """
import os

import tensorgate.gateway.crossing.channel as channel

if os.path.exists({file!r}):
    channel.VERSION += 1
"""
"""Runs at the start of each process: from when the file is there, what is installed is another program."""


@pytest.fixture
def upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "sitecustomize.py").write_text(NEWER.format(file=str(tmp_path / "newer")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'early'}:{ROOT}")
    with doors(tmp_path, monkeypatch) as group:
        yield group


async def test_doors_that_the_engine_does_not_understand(upgraded: Processes) -> None:
    """A newer program's doors do not take the place of those that serve; with a newer engine, they have to."""
    group, gateway = upgraded, upgraded.gateway
    before = group.roles()
    (group.folder / "newer").touch()
    async with loaded("m", {2.0}, [gateway]) as load:
        gateway.process.send_signal(signal.SIGUSR2)
        words = "door 0 could not be replaced (exit status 1); the doors stay as they are"
        await asyncio.to_thread(gateway.wait_until_said, words)
        await answered(load)
        assert load.retries.total() == 0
    assert group.roles() == before
    group.kill("engine")
    await asyncio.to_thread(wait_until, lambda: not numbers(group.roles()) & numbers(before))
    await asyncio.to_thread(gateway.wait_until_ready)
    async with loaded("m", {2.0}, [gateway]) as load:
        await answered(load)
    assert group.gateway.metrics().total("tensorgate_worker_restarts_total", reason="exit") == 2


def test_what_changed_meanwhile_holds_after_the_engine_was_replaced(group: Processes, stack: ExitStack) -> None:
    """A replaced engine reads the file anew, as a replaced worker does; doors do as it does, also when that is what was
    before.
    """
    gateway = group.gateway
    callers = group.at_doors(stack)
    file = group.folder / "gateway.yaml"
    first = file.read_text()

    def answers() -> list[float | None]:
        found = [caller.call("POST", "/v2/models/m/infer", FLAT) for caller in callers]
        return [said["outputs"][0]["data"][0] if status == 200 else None for status, said in found]

    assert answers() == [6, 6]
    for text, factor in ((first.replace("model: a\n", "model: b\n"), 9), (first, 6)):
        file.write_text(text)
        group.kill("engine")
        wait_until(lambda wanted=factor: answers() == [wanted] * 2, answers)
        wait_until(lambda: gateway.get("/readyz").status == 200)


def test_a_signal_to_stop_under_load_answers_what_was_accepted(fallible: Processes, stack: ExitStack) -> None:
    group, gateway = fallible, fallible.gateway
    waiting = group.at_doors(stack, 6)
    occupy(group, waiting)
    with Asking(gateway) as asking:
        wait_until(lambda: min(asking.count("OK").values()) > 20, lambda: asking.outcomes())
        gateway.terminate()
        at = time.monotonic()
        wait_until(lambda: any(outcome != "OK" for _, outcome, _, _ in list(asking.seen)))
        (group.folder / "go").touch()
        answers = [y(caller.receive()) for caller in waiting]
        assert gateway.process.wait(KEPT_S) == 0
        log.info("stopped after %.1f s; %s", time.monotonic() - at, asking.outcomes())
    assert sorted(answers) == [1.0, *[5.0] * 5]
    for way, outcomes in asking.outcomes().items():
        refused = {"ConnectionRefusedError"} if way in UNAVAILABLE else {"UNAVAILABLE"}
        assert outcomes.keys() <= {"OK"} | refused, asking.outcomes()
    for way, said in asking.refusals.items():
        if way not in UNAVAILABLE:
            assert "failed to connect" in said.lower(), (way, said)  # no call that was taken was dropped


async def test_a_door_that_is_stopped_disturbs_nobody_else(group: Processes, stack: ExitStack) -> None:
    """Its own callers wait; those at the other door, and operators, do not."""
    restarts = group.restarts()
    here, there = group.at_doors(stack)
    await asyncio.to_thread(group.kill, "door 0", signal.SIGSTOP)
    try:
        here.send("POST", "/v2/models/a/infer", FLAT)
        slowest = 0.0
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s:
            begun = time.monotonic()
            assert there.call("POST", "/v2/models/a/infer", FLAT)[0] == 200
            slowest = max(slowest, time.monotonic() - begun)
        begun = time.monotonic()
        assert there.call("POST", "/v2/repository/models/b/unload")[0] == 200
        assert there.call("POST", "/v2/models/b/infer", FLAT)[0] == 404
        control_s = time.monotonic() - begun
    finally:
        group.kill("door 0", signal.SIGCONT)
    assert here.receive()[0] == 200
    assert here.call("POST", "/v2/models/b/infer", FLAT)[0] == 404
    assert here.call("POST", "/v2/repository/models/b/load")[0] == 200
    assert group.restarts() == restarts
    assert slowest < 2
    log.info("slowest call at the other door %.3f s, an unload took %.3f s", slowest, control_s)


def test_streams_end_with_the_engine(group: Processes, stack: ExitStack) -> None:
    """One that runs, over gRPC and as server-sent events, says so."""
    gateway = group.gateway
    (channel,) = channels(group, stack, 1)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1e9]}}
    request = message("inference.ModelInferRequest")(model_name="numbers", inputs=[tensor]).SerializeToString()
    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([request]), timeout=KEPT_S)
    for _ in range(100):
        next(call)
    body = b'{"x": 1e9}'
    head = f"POST /v2/models/numbers/generate_stream HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    events = stack.enter_context(socket.create_connection((HOST, gateway.port), KEPT_S))
    events.sendall(head.encode() + body)
    last = b""
    while last.count(b"data: ") < 100:
        last += events.recv(1 << 16)
    group.kill("engine")
    answer = message("inference.ModelStreamInferResponse")
    last_word = ""
    for each in call:
        last_word = answer.FromString(each).error_message or last_word
    assert last_word == "the engine is being started again"
    while b'data: {"error":"the engine is being started again"}' not in last:
        part = events.recv(1 << 16)
        assert part, last
        last = last[-200:] + part
    wait_until(lambda: gateway.get("/readyz").status == 200)


def test_an_engine_that_hangs_is_not_ready(group: Processes) -> None:
    gateway, restarts = group.gateway, group.restarts()
    group.kill("engine", signal.SIGSTOP)
    try:
        wait_until(lambda: gateway.get("/readyz").status == 503)
        assert gateway.get("/healthz").status == 200
    finally:
        group.kill("engine", signal.SIGCONT)
    wait_until(lambda: gateway.get("/readyz").status == 200)
    assert group.restarts() == restarts


@pytest.mark.parametrize("falls", [["engine", "door 0", "door 1"], []])
def test_a_signal_to_stop_among_falls(fallible: Processes, falls: list[str]) -> None:
    """While others are being started: after some have been killed, or, where none has, in a rolling restart."""
    group, gateway = fallible, fallible.gateway
    for name in falls:
        group.kill(name)
    if falls:
        wait_until(lambda: gateway.said.count("another begins") == len(falls))
    else:
        gateway.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: len(group.roles()["door 0"]) == 2)
    assert gateway.stop() == 0


def test_all_fall(group: Processes) -> None:
    gateway = group.gateway
    before = group.roles()
    for name in before:
        group.kill(name)
    wait_until(lambda: group.roles().keys() == before.keys() and not numbers(group.roles()) & numbers(before))
    wait_until(lambda: gateway.get("/readyz").status == 200)
    assert gateway.post("/v2/models/m/infer", FLAT).status == 200


IMPATIENT = """
import tensorgate.gateway.cli.serving as serving

serving.MAX_LOADING_S = 0.0
"""
"""Runs at the start of each process: doors find a replaced engine at once, however much it has to load."""

HELD = """
import time
from pathlib import Path

class Held:
    def __init__(self, context):
        while (context.path / "hold").exists():
            time.sleep(0.01)

    def infer(self, inputs, request):
        return {"y": inputs["x"]}
"""

LOADING = [
    ("/v2/models/held/infer", FLAT, b"model 'held' is being loaded"),
    ("/v1/models/held:predict", {"instances": [1.0]}, b"model 'held' is being loaded"),
    ("/grps/v1/infer/predict?model=held-1", {"ndarray": [1.0]}, b"model 'held' is being loaded"),
    ("/v2/models/none/infer", FLAT, b"unknown model"),
]


def told_by_engine(gateway: Gateway, path: str, body: Any) -> Answer:
    """The first answer of a door that has found the replaced engine."""
    answers: list[Answer] = []

    def is_told() -> bool:
        answers.append(gateway.post(path, body))
        return b"the engine is being started again" not in answers[-1].body

    wait_until(is_told, lambda: gateway.said)
    return answers[-1]


def test_a_replaced_engine_has_its_models_though_it_still_loads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers are told to come again, and not that there is no such model."""
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "sitecustomize.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'early'}:{ROOT}")
    (tmp_path / "held.py").write_text(HELD)
    tensor = {"datatype": "FP32", "shape": [1]}
    held: dict[str, Any] = {"backend": "python", "path": "held.py:Held"}
    held |= {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": {"http": [{"bind": f"{HOST}:0"}]}, "models": {"held": held}}))
    with started(tmp_path / "log", "--doors", "2", str(file), python=Path(sys.executable)) as gateway:
        gateway.wait_until_ready()
        (tmp_path / "hold").touch()
        Processes(gateway, tmp_path).kill("engine")
        for path, body, words in LOADING:
            answer = told_by_engine(gateway, path, body)
            assert (answer.status, words in answer.body) == (404 if "none" in path else 503, True), answer
        assert gateway.get("/readyz").status == 503
        (tmp_path / "hold").unlink()
        gateway.wait_until_ready()
        assert [gateway.post(path, body).status for path, body, _ in LOADING] == [200, 200, 200, 404]
        assert gateway.stop() == 0


LATE = """
import os
import time

while '"role": "door"' in os.environ.get("TENSORGATE_ROLE", "") and not os.path.exists({file!r}):
    time.sleep(0.01)
"""


def test_ready_is_said_once_doors_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where models are loaded before doors have begun: who waits for the word may ask at what was said before."""
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "sitecustomize.py").write_text(LATE.format(file=str(tmp_path / "go")))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'early'}:{ROOT}")
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(configuration(tmp_path)))
    with started(tmp_path / "log", "--doors", "2", str(file), python=Path(sys.executable)) as gateway:
        wait_until(lambda: "loaded sum version 1" in gateway.said, lambda: gateway.said)
        assert "listens on" not in gateway.said
        (tmp_path / "go").touch()
        gateway.wait_until_said("\nready\n")
        assert gateway.said.index("listens on") < gateway.said.index("\nready\n")
        assert gateway.post("/v2/models/m/infer", FLAT).status == 200
        assert gateway.stop() == 0


def test_without_the_supervisor_all_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with doors(tmp_path, monkeypatch, killed=True) as group:
        group.gateway.process.kill()
