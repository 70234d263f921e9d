"""An ensemble without one of its models is not there, in every dialect, and is again when the model comes back."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import yaml

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import ModelRef
from tensorgate.gateway.models.loaded_models import _complete

TENSORS = {
    key: [{"name": name, "datatype": "FP32", "shape": [-1]}] for key, name in (("inputs", "x"), ("outputs", "y"))
}
CODE = """
class Double:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        return {"y": inputs["x"] * 2}


class Two(Double):
    def infer(self, inputs, request):
        return {"a": inputs["x"] * 2, "b": inputs["x"] * 3}
"""


def ensemble(*steps: tuple[str, str, str]) -> dict[str, Any]:
    flow = [{"model": model, "inputs": {"x": given}, "outputs": {"y": made}} for model, given, made in steps]
    return {"backend": "ensemble", "steps": flow, **TENSORS}


class House:
    """A model, an ensemble of it, and one of that."""

    def __init__(self, folder: Path) -> None:
        (folder / "models.py").write_text(CODE)
        models = {
            "outer": ensemble(("inner", "x", "t"), ("leaf", "t", "y")),
            "inner": ensemble(("leaf", "x", "y")),
            "other": ensemble(("spare", "x", "y")),
            "leaf": {"backend": "python", "path": "models.py:Double", **TENSORS},
            "two": {
                "backend": "python",
                "path": "models.py:Two",
                "inputs": TENSORS["inputs"],
                "outputs": [{"name": name, "datatype": "FP32", "shape": [-1]} for name in "ab"],
            },
            "half": {
                "backend": "ensemble",
                "steps": [{"model": "two", "inputs": {"x": "x"}, "outputs": {"b": "y"}}],
                **TENSORS,
            },
            "spare": {"backend": "python", "path": "models.py:Double", **TENSORS},
        }
        file = folder / "gateway.yaml"
        control = {"mode": "explicit", "load": ["*"]}
        listen = {"http": [{"bind": "127.0.0.1:0"}]}
        text = {"listen": listen, "model_control": control, "models": models, "drain_seconds": 2}
        file.write_text(yaml.safe_dump(text))
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)
        self.http: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        async with self.http.request(method, path, data=body and json.dumps(body), headers=headers) as answer:
            return answer.status, await answer.text()

    async def v2(self, model: str, version: str = "") -> tuple[int, str]:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
        return await self.ask("POST", f"/v2/models/{model}{version}/infer", {"inputs": [tensor]})

    async def states(self) -> dict[str, tuple[str, str]]:
        status, text = await self.ask("POST", "/v2/repository/index", {})
        assert status == 200
        return {each["name"]: (each["state"], each.get("reason", "")) for each in json.loads(text)}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    await made.app.start()
    await made.app.load(lambda report: None)
    made.http = aiohttp.ClientSession(made.app.addresses[0])
    yield made
    await made.http.close()
    await made.app.drain()


async def test_without_a_part_an_ensemble_is_as_good_as_unloaded(house: House) -> None:
    assert (await house.v2("outer"))[0] == 200
    assert (await house.ask("POST", "/v2/repository/models/leaf/unload"))[0] == 200
    for name in ("leaf", "inner", "outer"):
        status, text = await house.v2(name)
        assert (status, "has no available versions" in text) == (404, True), text
        assert (await house.v2(name, "/versions/1"))[0] == 404
        ready = await house.ask("GET", f"/v2/models/{name}/ready")
        assert (ready[0], json.loads(ready[1])["error"]) == (400, "Model version not ready")
        assert not house.app.service.serves(name) or name == "leaf", "any other name stands for the server"
        status, text = await house.ask("POST", f"/v1/models/{name}:predict", {"inputs": [1.0]})
        assert (status, "Servable not found" in text) == (404, True), text
        status, text = await house.ask("GET", f"/v1/models/{name}")
        assert '"state": "END"' in text or '"state": "UNLOADING"' in text
        body = {"ndarray": [1.0]}
        status, text = await house.ask("POST", f"/grps/v1/infer/predict?model={name}-1", body)
        assert (status, "not found" in text.lower() or "not exist" in text.lower()) == (500, True), text
    states = await house.states()
    assert states["inner"] == states["outer"] == ("UNAVAILABLE", "unloaded")
    assert states["other"] == ("READY", "")
    assert (await house.v2("other"))[0] == 200
    assert (await house.ask("GET", "/v2/health/ready"))[0] == 200, "nobody who is wanted is missing"


async def test_an_ensemble_comes_back_with_its_part(house: House) -> None:
    before = house.app.router.resolve(ModelRef("outer")).handle
    for _ in range(2):
        await house.ask("POST", "/v2/repository/models/leaf/unload")
        assert (await house.v2("outer"))[0] == 404
        assert (await house.ask("POST", "/v2/repository/models/leaf/load"))[0] == 200
        assert house.app.router.resolve(ModelRef("outer")).handle is before, "it was never gone"
        status, text = await house.v2("outer")
        assert (status, json.loads(text)["outputs"][0]["data"]) == (200, [4.0])
    assert {state for state, _ in (await house.states()).values()} == {"READY"}
    await house.ask("POST", "/v2/repository/models/leaf/unload")
    assert (await house.ask("POST", "/v2/repository/models/outer/load"))[0] == 200, "with all that it is composed of"
    assert (await house.v2("outer"))[0] == 200


async def test_of_a_part_some_outputs_may_be_enough(house: House) -> None:
    status, text = await house.v2("half")
    assert (status, json.loads(text)["outputs"]) == (
        200,
        [{"name": "y", "datatype": "FP32", "shape": [1], "data": [3.0]}],
    )


def test_a_part_may_be_one_version() -> None:
    def loaded(**versions: tuple[ModelRef, ...]) -> Any:
        return {
            int(version[1:]): SimpleNamespace(computation=SimpleNamespace(parts=parts))
            for version, parts in versions.items()
        }

    first, newest, unknown = ModelRef("leaf", 1), ModelRef("leaf"), ModelRef("a route")
    models = {
        "leaf": loaded(v2=()),
        "old": loaded(v1=(first,), v2=(newest,)),
        "outer": loaded(v1=(ModelRef("old", 1),), v2=(ModelRef("old"), unknown), v3=(ModelRef("outer", 1),)),
    }
    whole = _complete(models)
    assert {name: [*versions] for name, versions in whole.items()} == {"leaf": [2], "old": [2], "outer": [2]}
