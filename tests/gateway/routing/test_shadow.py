"""Routes that mirror: callers in every dialect, and shadows that differ, fail, dawdle or are not there."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import yaml
from waiting import settles, stays, until

from tensorgate.adapters.protobuf import messages as pb
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.cli import shadow_report
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import DifferenceSamples, load_config
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.routing.shadow_samples import DiffSampleFile, read_diff_samples, rotated

MODELS = """
import time
import numpy as np

class Plus:
    def __init__(self, context):
        self.number = context.parameters.get("number", 1)
        self.seconds = context.parameters.get("seconds", 0)
        self.seen = []

    def infer(self, inputs, request):
        if self.seconds:
            time.sleep(self.seconds)
        if (inputs["x"] == -13).any():
            raise ValueError("thirteen")
        return {"y": inputs["x"] + np.float32(self.number), "n": np.array([self.number], np.int32)}

class Writes:
    "Ruins its inputs, if it is let."
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        inputs["x"][...] = 99
        return {"y": inputs["x"], "n": np.array([1], np.int32)}

class Crashes:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        raise SystemExit(3)

class Narrow(Plus):
    pass
"""
ModelInferRequest = pb.message("inference.ModelInferRequest")


def python(name: str, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    tensors = {
        "inputs": [{"name": "x", "datatype": datatype, "shape": [-1]}],
        "outputs": [
            {"name": "y", "datatype": datatype, "shape": [-1]},
            {"name": "n", "datatype": "INT32", "shape": [1]},
        ],
    }
    return {"backend": "python", "path": f"models.py:{name}", **tensors, **more}


def plus(number: float, **more: Any) -> dict[str, Any]:
    parameters = {"number": number, **more.pop("parameters", {})}
    return python("Plus", parameters=parameters, **more)


class House:
    """A gateway in this process; each route's mirror is called `route`."""

    def __init__(
        self, folder: Path, mirror: Mapping[str, Any], primary: str = "one", fallback: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.folder = folder
        (folder / "models.py").write_text(MODELS)
        nowhere = {"dialect": "open_inference", "address": "127.0.0.1:1", "model": "m"}
        tensors = {key: value for key, value in python("Plus").items() if key in ("inputs", "outputs")}
        models = {
            "one": plus(1, instances=4),
            "same": plus(1, instances=2),
            "near": plus(1.0000001),
            "two": plus(2),
            "slow": plus(1, parameters={"seconds": 0.4}),
            "crashes": python("Crashes"),
            "writes": python("Writes"),
            "doubles": python("Plus", "FP64"),
            "dead": {"backend": "remote", "upstream": nowhere, **tensors},
            "missing": python("Absent"),
        }
        file = folder / "gateway.yaml"
        document = {
            "listen": {"http": [{"bind": "127.0.0.1:0"}], "grpc": [{"bind": "127.0.0.1:0"}]},
            "models": models,
            "routes": {"r": {"targets": [{"model": primary}], "mirror": dict(mirror), "fallback": list(fallback)}},
            "readiness": "lenient",
            "drain_seconds": 2,
        }
        file.write_text(yaml.safe_dump(document))
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)

    async def start(self) -> None:
        await self.app.start()
        await self.app.load(lambda report: None)
        self.url, address = self.app.addresses
        self.http = aiohttp.ClientSession()
        self.channel = grpc.aio.insecure_channel(address.removeprefix("grpc://"))

    async def stop(self) -> None:
        await self.http.close()
        await self.channel.close()
        await self.app.drain()

    @property
    def shadow(self) -> Any:
        return self.app.router.routes["r"].mirror

    @property
    def counts(self) -> dict[str, int]:
        return {result: count for result, count in self.shadow.results.items() if count}

    async def settled(self, total: int) -> dict[str, int]:
        """The results, once there are so many."""
        await until(lambda: sum(self.shadow.results.values()) >= total and not self.shadow.counts().running)
        assert self.shadow.held_bytes == 0
        return self.counts

    async def v2(self, x: list[float], **more: Any) -> Any:
        tensor = {"name": "x", "datatype": "FP32", "shape": [len(x)], "data": x}
        async with self.http.post(f"{self.url}/v2/models/r/infer", json={"inputs": [tensor], **more}) as answer:
            content = await answer.json()
        return content["outputs"][0]["data"] if answer.status == 200 else (answer.status, content["error"])

    async def tf_serving(self, x: list[float]) -> Any:
        async with self.http.post(f"{self.url}/v1/models/r:predict", data=json.dumps({"inputs": x})) as answer:
            return json.loads(await answer.text())["outputs"]["y"]

    async def grps(self, x: list[float]) -> Any:
        tensors = {"tensors": [{"name": "x", "dtype": "DT_FLOAT32", "shape": [len(x)], "flat_float32": x}]}
        url = f"{self.url}/grps/v1/infer/predict"
        async with self.http.post(url, json={"model": "r", "gtensors": tensors}) as answer:
            return (await answer.json())["gtensors"]["tensors"][0]["flat_float32"]

    async def grpc(self, x: Any) -> Any:
        array = np.array(x, np.float32)
        request = ModelInferRequest(model_name="r", outputs=[{"name": "y"}])
        request.inputs.add(name="x", datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
        call = self.channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=pb.message("inference.ModelInferResponse").FromString,
        )
        answer = await call(request)
        return np.frombuffer(answer.raw_output_contents[0], np.float32)


Make = Callable[..., Awaitable[House]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    houses: list[House] = []

    async def made(to: str, primary: str = "one", fallback: Sequence[Mapping[str, Any]] = (), **more: Any) -> House:
        houses.append(House(tmp_path, {"to": [{"model": to}], **more}, primary, fallback))
        await houses[-1].start()
        return houses[-1]

    yield made
    for house in houses:
        await house.stop()


async def test_callers_of_every_dialect_are_mirrored_and_notice_nothing(make: Make) -> None:
    house = await make("same")
    assert await house.v2([1.5, 2]) == [2.5, 3]
    assert await house.tf_serving([1.5, 2]) == [2.5, 3]
    assert await house.grps([1.5, 2]) == [2.5, 3]
    assert (await house.grpc([1.5, 2])).tolist() == [2.5, 3]
    assert await house.settled(4) == {"equal": 4}
    large = np.arange(300_000, dtype=np.float32)
    assert (await house.grpc(large) == large + 1).all()
    assert await house.settled(5) == {"equal": 5}
    text = await _metrics(house)
    assert 'tensorgate_shadow_requests_total{result="equal",route="r"} 5.0' in text
    assert 'tensorgate_shadow_seconds_count{route="r",side="primary"} 5.0' in text
    assert 'tensorgate_shadow_seconds_count{route="r",side="shadow"} 5.0' in text
    assert 'tensorgate_shadow_difference_count{output="y",route="r"} 5.0' in text


async def test_a_model_is_not_compared_with_itself(make: Make) -> None:
    """Where the fallback answers, and is the one that would get the copy; another one's answers are compared."""
    for fallback, counts in (("same", {}), ("two", {"different": 3})):
        house = await make("same", primary="missing", fallback=[{"model": fallback}])
        for _ in range(3):
            assert await house.v2([1.0]) == [{"same": 2.0, "two": 3.0}[fallback]]
        await until(lambda: not (house.shadow.counts().running or house.shadow.held_bytes))  # noqa: B023
        assert house.counts == counts


async def test_a_different_model_is_found_out(make: Make) -> None:
    samples = {"file": "diffs.jsonl", "rate_per_minute": 6000, "inputs": True}
    house = await make("two", samples=samples)
    assert await house.v2([1.5, 2], id="q7") == [2.5, 3]
    assert (await house.grpc(np.zeros(100_000))).tolist() == [1] * 100_000
    assert await house.settled(2) == {"different": 2}
    text = await _metrics(house)
    assert 'tensorgate_shadow_beyond_total{output="y",route="r"} 100002.0' in text
    first = next(read_diff_samples(house.folder / "diffs.jsonl"))
    assert (first["route"], first["id"], first["result"]) == ("r", "q7", "different")
    assert (first["primary"]["model"], first["shadow"]["model"]) == ("one", "two")
    y, n = first["outputs"]
    assert (y["what"], y["elements"], y["beyond"], y["max_absolute"]) == ("values", 2, 2, 1.0)
    assert y["first"] == [[[0], 2.5, 3.5], [[1], 3.0, 4.0]]
    assert (n["what"], n["first"]) == ("values", [[[0], 1, 2]])
    assert first["inputs"] == {"x": {"datatype": "FP32", "shape": [2], "data": [1.5, 2.0]}}


async def test_tolerance_and_outputs_that_do_not_count(make: Make) -> None:
    house = await make("two", ignore=["n"], atol=1.5)
    await house.v2([1, 2])
    assert await house.settled(1) == {"equal": 1}


async def test_a_share_of_the_traffic(make: Make) -> None:
    house = await make("same", share=0.3)
    for _ in range(200):
        await house.v2([1.0])
    await settles(lambda: house.counts)
    assert 30 < (await house.settled(1))["equal"] < 95


@pytest.mark.parametrize(
    ("shadow", "result"), [("crashes", "error"), ("dead", "error"), ("missing", "error"), ("doubles", "different")]
)
async def test_shadows_that_cannot_answer(make: Make, shadow: str, result: str) -> None:
    house = await make(shadow)
    answers = await asyncio.gather(*[house.v2([float(n)]) for n in range(20)])
    assert answers == [[n + 1.0] for n in range(20)]
    assert await house.settled(20) == {result: 20}


async def test_a_slow_shadow_delays_nobody_and_what_is_too_much_is_dropped(make: Make) -> None:
    house = await make("slow", max_in_flight=2, max_queued_bytes=20_000, timeout_ms=5000)
    for number in range(30):
        assert await house.v2([float(number)]) == [number + 1.0]
    assert house.shadow.counts().running == 2
    assert 0 < house.shadow.held_bytes <= 20_000
    dropped = house.counts["dropped"]
    assert "equal" not in house.counts or dropped > 10, "thirty answers came while the shadow gave hardly one"
    assert await house.settled(30) == {"equal": 30 - dropped, "dropped": dropped}


async def test_a_shadow_has_a_deadline_of_its_own(make: Make) -> None:
    house = await make("slow", timeout_ms=50)
    assert await house.v2([1.0]) == [2.0]
    assert await house.settled(1) == {"error": 1}


async def test_nobody_writes_to_what_another_reads(make: Make) -> None:
    house = await make("writes")
    assert await house.v2([1.0, 2.0]) == [2.0, 3.0]
    assert await house.settled(1) == {"error": 1}, "its inputs are read-only"
    primary = await make("one", primary="writes")
    assert await primary.v2([98.0]) == [99.0]
    assert await primary.settled(1) == {"equal": 1}, "98 + 1: the shadow has the input as it came"


async def test_errors_are_compared_by_kind(make: Make) -> None:
    house = await make("same")
    status, text = await house.v2([-13.0])
    assert (status, text) == (500, "ValueError: thirteen")
    assert await house.settled(1) == {"equal": 1}
    other = await make("crashes", primary="two")
    assert (await other.v2([-13.0]))[0] == 500
    assert await other.settled(1) == {"equal": 1}
    broken = await make("one", primary="crashes")
    assert (await broken.v2([1.0]))[0] == 500
    assert await broken.settled(1) == {"different": 1}


async def test_sequences_and_callers_who_leave_are_not_mirrored(make: Make) -> None:
    house = await make("same", primary="slow")
    await house.v2([1.0], parameters={"sequence_id": 3, "sequence_start": True})
    slow = house.app.repository.snapshot.models["slow"][1]
    caller = asyncio.create_task(house.v2([1.0]))
    await until(lambda: slow.running)
    caller.cancel()
    await until(lambda: not slow.running)
    await stays(lambda: house.counts == {})
    assert house.shadow.held_bytes == 0


async def _metrics(house: House) -> str:
    async with house.http.get(f"{house.url}/metrics") as answer:
        return await answer.text()


# ------------------------------------------------------------------------------------------------------------- samples


def test_a_full_file_becomes_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    config = DifferenceSamples.model_construct(file=FileRef("d", path), max_bytes=4000, rate_per_minute=6000)
    samples = DiffSampleFile(config)
    for number in range(100):
        samples.write(lambda n: {"result": "different", "route": "r", "number": n, "text": "x" * 100}, number)
    assert path.stat().st_size + rotated(path).stat().st_size <= 4000
    numbers = [sample["number"] for sample in read_diff_samples(path)]
    assert numbers == list(range(numbers[0], 100))
    assert len(numbers) > 10


def test_a_rate_bounds_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("tensorgate.gateway.routing.shadow_samples.time.monotonic", lambda: now)
    config = DifferenceSamples.model_construct(file=FileRef("d", tmp_path / "d"), max_bytes=1 << 20, rate_per_minute=6)
    samples = DiffSampleFile(config)
    assert [samples.has_room() for _ in range(3)] == [True, False, False]
    now += 10
    assert [samples.has_room() for _ in range(2)] == [True, False]


SAMPLE = {
    "time": "2026-01-01T00:00:00.000+00:00",
    "route": "r",
    "id": "7",
    "result": "different",
    "primary": {"model": "one", "version": 1, "seconds": 0.001},
    "shadow": {"model": "two", "version": 3, "seconds": 0.002},
    "outputs": [
        {
            "output": "y",
            "what": "values",
            "primary": "FP32 [2]",
            "shadow": "FP32 [2]",
            "elements": 2,
            "beyond": 1,
            "max_absolute": "inf",
            "max_relative": 0.25,
            "first": [[[1], 4.0, "nan"]],
        },
        {"output": "z", "what": "missing", "primary": "INT32 [1]"},
    ],
}
FAILED = SAMPLE | {
    "result": "error",
    "shadow": {"model": "two", "version": 3, "seconds": 1, "error": {"kind": "K", "text": "t"}},
}


def test_the_command_shows_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.jsonl"
    lines = [
        json.dumps(SAMPLE),
        "{broken",
        "[1]",
        json.dumps(FAILED | {"outputs": []}),
        json.dumps(SAMPLE | {"route": "s"}),
    ]
    path.write_text("\n".join(lines))
    assert main(["diff", str(path), "--route", "r"]) == 0
    said = capsys.readouterr().out
    assert "route r id 7: different" in said
    assert "one 1, 1.0 ms  against  two 3, 2.0 ms" in said
    assert "y: FP32 [2], 1 of 2 elements differ by up to inf, relative 0.25" in said
    assert "[1]  4.0  nan" in said
    assert "z: missing: INT32 [1] against nothing" in said
    assert "route r: 1 different, 1 error" in said
    assert "1 times shadow: K" in said
    assert not re.search(r"route s", said)
    assert main(["diff", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["samples"]) == 3
    assert told["summary"]["r"]["outputs"]["y"] == {"max_absolute": "inf", "max_relative": 0.25, "values": 1}
    assert main(["diff", str(tmp_path / "none")]) == 1
    assert "no such file" in capsys.readouterr().err
    assert shadow_report.summary([]) == {}
