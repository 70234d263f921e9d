"""What models' code raises: in the log whole, with file, line and request, and not without end; callers read as much as
the operator wants.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yaml

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import InvalidArgument, ModelFailed, OutputRows, Unknown
from tensorgate.gateway.telemetry.failure_log import FAILURES, INTERVAL_S, MAX_KINDS, FailureLog

MODELS = """
from tensorgate.gateway.contract.errors import InvalidArgument


class Plain:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        if inputs["x"][0] == 7:
            raise InvalidArgument("seven is refused")
        if inputs["x"][0] == 8:
            raise SystemExit(3)
        if inputs["x"][0] == 9:
            return {}
        raise KeyError("secret")


class Async(Plain):
    async def infer(self, inputs, request):
        raise KeyError("secret")


class Stream(Plain):
    def infer(self, inputs, request):
        yield {"y": inputs["x"]}
        raise KeyError("secret")


class AsyncStream(Plain):
    async def infer(self, inputs, request):
        yield {"y": inputs["x"]}
        raise KeyError("secret")


class Good(Plain):
    def infer(self, inputs, request):
        return {"y": inputs["x"]}


class Op:
    def __init__(self, input: str):
        pass

    def specs(self, specs):
        return specs

    def __call__(self, tensors, xp):
        raise KeyError("secret")
"""
TRITON = """
class TritonPythonModel:
    def execute(self, requests):
        raise KeyError("secret")
"""
TENSORS: dict[str, Any] = {
    key: [{"name": name, "datatype": "FP32", "shape": [-1]}] for key, name in (("inputs", "x"), ("outputs", "y"))
}
RAISING = [number for number, line in enumerate(MODELS.splitlines(), 1) if 'KeyError("secret")' in line]
LINES = dict(zip(("plain", "async", "stream", "async_stream", "op"), RAISING, strict=True))
LINES |= {"batch": LINES["plain"], "triton": 4}


class House:
    def __init__(self, folder: Path, **sections: Any) -> None:
        (folder / "models.py").write_text(MODELS)
        (folder / "triton" / "1").mkdir(parents=True)
        (folder / "triton" / "1" / "model.py").write_text(TRITON)
        classes = {"plain": "Plain", "async": "Async", "stream": "Stream", "async_stream": "AsyncStream", "op": "Good"}
        models: dict[str, Any] = {
            name: {"backend": "python", "path": f"models.py:{each}", **TENSORS} for name, each in classes.items()
        }
        models["op"]["preprocess"] = [{"op": "own", "input": "x"}]
        models["batch"] = {**models["plain"], "max_batch_size": 8}
        models["triton"] = {"backend": "triton_python", "path": "triton", **TENSORS}
        step = {"model": "plain", "inputs": {"x": "x"}, "outputs": {"y": "y"}}
        models["ensemble"] = {"backend": "ensemble", "steps": [step], **TENSORS}
        file = folder / "gateway.yaml"
        listen = {"http": [{"bind": "127.0.0.1:0"}]}
        text = {"listen": listen, "ops": {"own": "models.py:Op"}, "models": models, "drain_seconds": 2, **sections}
        file.write_text(yaml.safe_dump(text))
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)
        self.http: aiohttp.ClientSession

    async def start(self) -> None:
        await self.app.start()
        await self.app.load(lambda report: None)
        self.http = aiohttp.ClientSession(self.app.addresses[0])

    async def stop(self) -> None:
        await self.http.close()
        await self.app.drain()

    async def ask(self, path: str, body: Any) -> tuple[int, str]:
        headers = {"Content-Type": "application/json", "x-request-id": "r5"}
        async with self.http.post(path, data=json.dumps(body), headers=headers) as answer:
            return answer.status, await answer.text()

    async def infer(self, model: str, x: float = 1) -> tuple[int, str]:
        if "stream" in model:
            return await self.ask(f"/v2/models/{model}/generate_stream", {"id": "i7", "x": [x]})
        tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}
        return await self.ask(f"/v2/models/{model}/infer", {"id": "i7", "inputs": [tensor]})


@pytest.fixture(autouse=True)
def fresh() -> None:
    """What other tests have failed does not count."""
    FAILURES._told.clear()


@pytest.fixture
async def house(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[House]:
    made = House(tmp_path, **getattr(request, "param", {}))
    await made.start()
    yield made
    await made.stop()


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "tensorgate.gateway.telemetry.failure_log"]


@pytest.mark.parametrize("model", LINES)
async def test_a_failure_is_logged_with_file_line_and_request(
    house: House, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    await house.infer(model)
    (record,) = failures(caplog)
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith(f"model {model} version 1 failed, request 'r5', 'i7': ")
    text = logging.Formatter().format(record)
    file = house.app.config.source.parent / ("triton/1/model.py" if model == "triton" else "models.py")
    assert f'File "{file}", line {LINES[model]}' in text
    assert text.endswith("KeyError: 'secret'")


async def test_a_part_is_told_once_and_what_is_made_of_it_in_a_line(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    await house.infer("ensemble")
    part, whole = failures(caplog)
    assert part.getMessage().startswith("model plain version 1 failed, request 'r5', 'i7': KeyError")
    assert part.exc_info
    assert whole.getMessage() == (
        "model ensemble version 1 failed, request 'r5', 'i7': in ensemble 'ensemble', KeyError: 'secret'"
    )
    assert not whole.exc_info


@pytest.mark.parametrize(("x", "said"), [(7, []), (8, ["SystemExit"]), (9, ["infer returned no output 'y'"])])
async def test_what_is_a_failure_of_the_model(
    house: House, caplog: pytest.LogCaptureFixture, x: float, said: list[str]
) -> None:
    await house.infer("plain", x)
    assert [record.getMessage().partition("i7': ")[2] for record in failures(caplog)] == said


def test_of_many_failures_one_a_minute_is_told_of_each_kind_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    log = FailureLog(lambda: now[0])

    def fail(model: str = "m", times: int = 1, cause: Exception | None = None) -> list[str]:
        caplog.clear()
        view: Any = SimpleNamespace(name=model, version=3)
        for _ in range(times):
            error = ModelFailed("no")
            error.__cause__ = cause
            log.note(error, InferRequest(view, {}))
        return [record.getMessage() for record in failures(caplog)]

    assert fail(times=21) == ["model m version 3 failed: no"]
    assert fail("other") == ["model other version 3 failed: no"]
    assert fail(cause=KeyError("x"), times=3) == ["model m version 3 failed: no"]
    now[0] += INTERVAL_S - 0.1
    assert fail() == []
    now[0] += 0.2
    assert fail(times=2) == ["model m version 3 failed: no (21 more since the last were left out)"]
    assert fail(cause=KeyError("x")) == ["model m version 3 failed: no (2 more since the last were left out)"]


def test_kinds_without_end_are_not_remembered_without_end() -> None:
    log = FailureLog()
    view: Any = SimpleNamespace(name="m", version=3)
    for number in range(MAX_KINDS + 5):
        error = ModelFailed("no")
        error.__cause__ = type(f"Error{number}", (Exception,), {})()
        log.note(error, InferRequest(view, {}))
    assert len(log._told) == 5


def test_what_is_the_callers_fault_is_not_the_models(caplog: pytest.LogCaptureFixture) -> None:
    view: Any = SimpleNamespace(name="m", version=3)
    log = FailureLog()
    for error in (InvalidArgument("no"), OutputRows("y", (3,), 2), Unknown("what")):
        log.note(error, InferRequest(view, {}, id="a\nb"))
    assert [record.getMessage().split(": ")[0] for record in failures(caplog)] == [
        r"model m version 3 failed, request 'a\nb'"
    ] * 2


NEUTRAL = "the model failed; the log of the server says more"


@pytest.mark.parametrize("house", [{"expose_model_errors": False}], indirect=True)
async def test_callers_may_be_told_no_more_than_that_it_failed(house: House, caplog: pytest.LogCaptureFixture) -> None:
    for model in [*LINES, "ensemble"]:
        status, text = await house.infer(model)
        assert (NEUTRAL in text, "secret" in text) == (True, False), text
        assert status == (200 if "stream" in model else 500)
    for x in (8, 9):
        assert NEUTRAL in (await house.infer("plain", x))[1]
    asked: list[tuple[str, Any]] = [
        ("/v1/models/plain:predict", {"inputs": [1.0]}),
        ("/grps/v1/infer/predict?model=plain-1", {"ndarray": [1.0]}),
        ("/grps/v1/infer/predict?model=stream-1&streaming=true", {"ndarray": [1.0]}),
    ]
    for path, body in asked:
        _, text = await house.ask(path, body)
        assert (NEUTRAL in text, "secret" in text) == (True, False), text
    assert await house.infer("plain", 7) == (400, '{"error":"seven is refused"}'), "what the class says to its callers"
    assert any("secret" in record.getMessage() for record in failures(caplog))
    async with house.http.get("/overview.json") as answer:
        text = await answer.text()
    assert (NEUTRAL in text, "secret" in text) == (True, False)


async def test_callers_are_told_what_the_class_said(house: House) -> None:
    for model in [*LINES, "ensemble"]:
        assert "secret" in (await house.infer(model))[1]


BROKEN: list[tuple[str, str, str]] = [
    ("models.py", "import json\n\njson.loads('[')\n\nclass M: pass", "models.py, line 3"),
    (
        "models.py",
        "class M:\n    def __init__(self, context):\n        self.a = {}['a']\n    infer = None",
        "no method",
    ),
    (
        "models.py",
        "class M:\n    def __init__(self, context):\n        self.a = {}['a']\n    def infer(self, *a): pass",
        "KeyError: 'a' ({folder}/models.py, line 3)",
    ),
    ("models.py", "class M:\n    def infer(self x): pass", "(models.py, line 2)"),
    (
        "triton/1/model.py",
        "import json\nraise RuntimeError('no')",
        "RuntimeError: no ({folder}/triton/1/model.py, line 2)",
    ),
    (
        "triton/1/model.py",
        "class TritonPythonModel:\n    def initialize(self, args):\n        1 / 0\n    execute = print",
        "ZeroDivisionError: division by zero ({folder}/triton/1/model.py, line 3)",
    ),
]


@pytest.mark.parametrize(("name", "code", "said"), BROKEN)
async def test_a_failed_load_names_file_and_line(tmp_path: Path, name: str, code: str, said: str) -> None:
    (tmp_path / "triton" / "1").mkdir(parents=True)
    (tmp_path / name).write_text(dedent(code))
    triton = name.startswith("triton")
    entry = {"backend": "triton_python", "path": "triton"} if triton else {"backend": "python", "path": "models.py:M"}
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"models": {"m": entry | TENSORS}, "readiness": "lenient", "drain_seconds": 1}))
    kinds = registries()
    app = App(load_config(file, kinds), kinds)
    errors: list[str] = []
    await app.load(lambda report: errors.append(report.error))
    assert said.format(folder=tmp_path) in errors[0]
    (entry_of,) = app.repository.known()
    assert str(tmp_path) not in entry_of.reason, "callers need not know where models lie"
    assert said.format(folder="").replace("(/", "(").replace("triton/1/", "") in entry_of.reason
    await app.repository.close()


def test_an_operator_of_ones_own_that_cannot_be_made_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("class Op:\n    pass\n\n{}['a']\n")
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump({"ops": {"own": "ops.py:Op"}, "models": {}}))
    with pytest.raises(Exception, match=r"ops\.py, line 4: KeyError: 'a'"):
        load_config(tmp_path / "gateway.yaml", registries())
