"""Answers that are given again: to equal requests and to nobody else, within bounds, and counted as Triton counts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, OutputRequest, Sequence, TopK
from tensorgate.gateway.engine.response_cache import ResponseCache
from tensorgate.gateway.models.loader import LoadReport

VERSION = object()
ANSWER = InferResponse({"y": np.arange(3.0)})


def request(x: Any = (1.0, 2.0), **facts: Any) -> InferRequest:
    return InferRequest(facts.pop("view", None), facts.pop("inputs", None) or {"x": np.asarray(x, np.float32)}, **facts)


def known(cache: ResponseCache, one: InferRequest, owner: object = VERSION) -> bool:
    key = cache.key(owner, one)
    return key is not None and cache.get(key) is not None


def remembering(one: InferRequest, **bounds: Any) -> ResponseCache:
    cache = ResponseCache(**bounds)
    key = cache.key(VERSION, one)
    assert key is not None
    cache.put(key, ANSWER, one)
    return cache


DIFFERENT = {
    "a bit of an input": request((1.0, -2.0)),
    "the sign of zero": request((0.0, 2.0)),
    "the dtype": request(inputs={"x": np.asarray((1.0, 2.0), np.float64)}),
    "the shape": request([[1.0, 2.0]]),
    "the name": request(inputs={"z": np.asarray((1.0, 2.0), np.float32)}),
    "one more input": request(inputs={"x": np.asarray((1.0, 2.0), np.float32), "z": np.ones(1)}),
    "a parameter": request(parameters={"beams": 2}),
    "the signature": request(signature="other"),
    "the outputs": request(outputs=(OutputRequest("y"),)),
    "classes": request(outputs=(OutputRequest("y", 2),)),
    "that a stream is wanted": request(stream=True),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_requests_that_differ_do_not_share_an_answer(what: str) -> None:
    assert not known(remembering(request()), DIFFERENT[what])
    assert known(remembering(DIFFERENT[what]), DIFFERENT[what])


def test_what_tells_how_to_wait_is_no_difference() -> None:
    cache = remembering(request(id="a", priority=1, deadline=1e9))
    assert known(cache, request(id="b", priority=2, queue_timeout_us=5))
    assert known(cache, request(inputs={"x": np.asarray((1.0, 9.0, 2.0), np.float32)[::2]}))


def test_parameters_that_python_calls_equal_are_not() -> None:
    cache = remembering(request(parameters={"n": 1}))
    assert not known(cache, request(parameters={"n": True}))
    assert not known(cache, request(parameters={"n": 1.0}))
    assert known(cache, request(parameters={"n": 1}))


def test_texts_are_not_run_together() -> None:
    def text(*words: bytes) -> InferRequest:
        return request(inputs={"x": np.array(words, object)})

    cache = remembering(text(b"ab", b"c"))
    assert not known(cache, text(b"a", b"bc"))
    assert known(cache, text(b"ab", b"c"))


def test_texts_of_many_dimensions() -> None:
    """More than NumPy's own iterator goes through."""

    def text(word: bytes) -> InferRequest:
        return request(inputs={"x": np.array([word], object).reshape((1,) * 40)})

    cache = remembering(text(b"a"))
    assert known(cache, text(b"a"))
    assert not known(cache, text(b"b"))


def test_zero_and_minus_zero_differ() -> None:
    assert not known(remembering(request((0.0,))), request((-0.0,)))


@given(st.binary(max_size=40), st.binary(max_size=40), st.sampled_from(("u1", "i1", "?")))
def test_equal_bytes_and_nothing_else(one: bytes, other: bytes, dtype: str) -> None:
    def of(data: bytes) -> InferRequest:
        return request(inputs={"x": np.frombuffer(data, dtype)})

    assert known(remembering(of(one)), of(other)) == (one == other)


def test_each_version_has_answers_of_its_own_until_it_is_unloaded() -> None:
    cache = remembering(request())
    assert not known(cache, request(), owner=object())
    cache.forget(object())
    assert known(cache, request())
    cache.forget(VERSION)
    assert not known(cache, request())
    assert (cache.entries, cache.nbytes) == (0, 0)


UNKNOWN: dict[str, dict[str, Any]] = {
    "sequence": {"sequence": Sequence(1)},
    "shared memory": {"into": {}},
    "on a device": {"on_device": True},
}


@pytest.mark.parametrize("facts", UNKNOWN.values(), ids=UNKNOWN)
def test_some_requests_are_never_known(facts: dict[str, Any]) -> None:
    assert ResponseCache().key(VERSION, request(**facts)) is None


def test_bounds() -> None:
    """Who was used longest ago leaves first; what is too large never enters."""
    entry = ANSWER.outputs["y"].nbytes + 8 + 1024
    cache = ResponseCache(max_bytes=3 * entry)
    requests = [request((float(n), 0.0)) for n in range(4)]
    for each in requests[:3]:
        cache.put(cache.key(VERSION, each), ANSWER, each)  # type: ignore[arg-type]
    assert cache.nbytes == 3 * entry
    assert known(cache, requests[0])
    cache.put(cache.key(VERSION, requests[3]), ANSWER, requests[3])  # type: ignore[arg-type]
    assert [known(cache, each) for each in requests] == [True, False, True, True]
    assert (cache.entries, cache.nbytes, cache.evictions) == (3, 3 * entry, 1)
    small = ResponseCache(max_entry_bytes=16)
    assert small.key(VERSION, request([0.0] * 5)) is None
    assert small.key(VERSION, request(inputs={"x": np.array([b""], object)})) is None, (
        "an element costs more than it holds"
    )
    key = small.key(VERSION, request())
    small.put(key, ANSWER, request())  # type: ignore[arg-type]
    assert small.entries == 0


def test_an_answer_put_twice_counts_once() -> None:
    cache = remembering(request())
    held = cache.nbytes
    cache.put(cache.key(VERSION, request()), ANSWER, request())  # type: ignore[arg-type]
    assert (cache.entries, cache.nbytes) == (1, held)


def test_answers_grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tensorgate.gateway.engine.response_cache.time.monotonic", lambda: now)
    cache = remembering(request(), ttl_seconds=5)
    now = 104.9
    assert known(cache, request())
    now = 105.0
    assert not known(cache, request())
    assert cache.entries == 0


def test_a_copy_is_kept_and_nobody_can_change_it() -> None:
    batch = np.zeros((1000, 3))
    own = InferResponse({"y": batch[5:6]}, classes={"z": TopK(batch[:1], np.zeros((1, 3), np.int64))})
    cache = ResponseCache()
    key = cache.key(VERSION, request())
    assert key is not None
    cache.put(key, own, request())
    batch[...] = 7
    kept = cache.get(key)
    assert kept is not None
    for array in (kept.outputs["y"], kept.classes["z"].values):
        assert array.base is None
        assert not array.any()
        assert not array.flags.writeable


# --------------------------------------------------------------------------------------------------- the whole gateway

MODEL = """
class Counting:
    def __init__(self, context):
        self.calls = 0
    def infer(self, inputs, request):
        self.calls += 1
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"] + self.calls * 100}

class Words:
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        yield {"y": inputs["x"]}
"""
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
}


class House:
    def __init__(self, folder: Path, **model: Any) -> None:
        (folder / "models.py").write_text(MODEL)
        entry = {"backend": "python", "path": "models.py:Counting", "response_cache": True, **TENSORS, **model}
        file = folder / "gateway.yaml"
        listen = {"http": [{"bind": "127.0.0.1:0"}]}
        file.write_text(yaml.safe_dump({"listen": listen, "models": {"m": entry}, "drain_seconds": 2}))
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)
        self.reports: list[LoadReport] = []

    async def start(self) -> None:
        await self.app.start()
        await self.app.load(self.reports.append)
        self.http = aiohttp.ClientSession(self.app.addresses[0])

    async def stop(self) -> None:
        await self.http.close()
        await self.app.drain()

    async def v2(self, *x: float) -> list[float]:
        tensor = {"name": "x", "datatype": "FP32", "shape": [len(x), 1], "data": list(x)}
        async with self.http.post("/v2/models/m/infer", json={"inputs": [tensor]}) as answer:
            content = await answer.json()
            assert answer.status == 200, content
            data: list[float] = content["outputs"][0]["data"]
            return data

    async def tf_serving(self, *x: float) -> list[float]:
        async with self.http.post("/v1/models/m:predict", json={"instances": [[each] for each in x]}) as answer:
            return [row[0] for row in json.loads(await answer.text())["predictions"]]

    async def text(self, path: str) -> str:
        async with self.http.get(path) as answer:
            return await answer.text()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path, max_batch_size=4)
    await made.start()
    yield made
    await made.stop()


async def test_an_equal_request_gets_the_answer_again_whatever_its_dialect(house: House) -> None:
    assert await house.v2(1) == [101]
    assert await house.tf_serving(1) == [101]
    assert await house.v2(1) == [101]
    assert await house.v2(2) == [202]
    assert await house.v2(1, 2) == [301, 302]


async def test_answers_of_one_batch_are_kept_apart(house: House) -> None:
    first = await asyncio.gather(*[house.v2(number) for number in range(8)])
    again = await asyncio.gather(*[house.v2(number) for number in range(8)])
    assert first == again
    assert [answer[0] % 100 for answer in first] == list(range(8))


async def test_errors_are_not_kept(house: House) -> None:
    for _ in range(2):
        with pytest.raises(AssertionError, match="negative"):
            await house.v2(-1)
    assert await house.v2(1) == [301]


async def test_what_is_counted(house: House) -> None:
    for x in (1, 1, 1, 2):
        await house.v2(x)
    (stats,) = json.loads(await house.text("/v2/models/m/stats"))["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (2, 2), "what was computed"
    counts = {key: stage["count"] for key, stage in stats["inference_stats"].items()}
    assert counts == {
        "success": 4, "fail": 0, "queue": 4, "compute_input": 2, "compute_infer": 2, "compute_output": 2,
        "cache_hit": 2, "cache_miss": 2,
    }  # fmt: skip
    assert stats["inference_stats"]["cache_hit"]["ns"] > 0
    metrics = await house.text("/metrics")
    assert 'tensorgate_response_cache_lookups_total{model="m",result="hit",version="1"} 2.0' in metrics
    assert 'tensorgate_response_cache_lookups_total{model="m",result="miss",version="1"} 2.0' in metrics
    assert "tensorgate_response_cache_entries 2.0" in metrics
    assert 'nv_cache_num_hits_per_model{model="m",version="1"} 2.0' in metrics
    assert 'nv_cache_num_misses_per_model{model="m",version="1"} 2.0' in metrics
    assert json.loads(await house.text("/v2/models/m/config"))["response_cache"] == {"enable": True}


async def test_a_model_that_is_unloaded_takes_its_answers_along(house: House) -> None:
    await house.v2(1)
    handle: Any = house.app.router.resolve(ModelRef("m")).handle
    assert handle._cache.entries == 1
    cache = handle._cache
    await handle.close()
    assert cache.entries == 0


async def test_who_does_not_ask_gets_nothing_twice(tmp_path: Path) -> None:
    house = House(tmp_path, response_cache=False)
    await house.start()
    assert [await house.v2(1), await house.v2(1)] == [[101], [201]]
    assert "response_cache" not in await house.text("/metrics")
    await house.stop()


@pytest.mark.parametrize(
    "model",
    [
        {"path": "models.py:Words"},
        {"max_batch_size": 1, "sequences": {"controls": []}},
    ],
    ids=["decoupled", "sequences"],
)
async def test_models_that_cannot_answer_again(tmp_path: Path, model: dict[str, Any]) -> None:
    house = House(tmp_path, **model)
    await house.start()
    assert "response_cache: a model of sequences, or with many answers" in house.reports[0].error
    await house.stop()
