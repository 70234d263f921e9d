"""Models of other machines in the repository: listed, fetched when loaded, polled; and never named by callers."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from store_world import Fault, FileServer, World, serving_files
from waiting import until

from tensorgate.gateway.app import catalog, registries
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import Config, ConfigError, load_config, model_validator
from tensorgate.gateway.contract import files as contract_files
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.errors import GatewayError, LoadRefused, ModelNotFound
from tensorgate.gateway.contract.questions import WantedModel
from tensorgate.gateway.model_loading import loader
from tensorgate.gateway.models import repository
from tensorgate.gateway.models.file_digest import files_digest
from tensorgate.gateway.models.loader import LoadReport, RepositoryDeps
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.models.model_files import ModelFiles
from tensorgate.gateway.models.repository import Repository

DEMO = Path(__file__).parents[3] / "config/demo/models"
HALF = (DEMO / "half_plus_two/1/model.onnx").read_bytes()
MORE = (DEMO / "half_plus_three/123/model.onnx").read_bytes()
KINDS = registries()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving_files() as server:
        server.put("half", {"1/model.onnx": HALF})
        yield server


def nobody(ref: ModelRef) -> ModelView:
    raise ModelNotFound(ref.name)


class Served:
    """A configuration whose models are served by a repository, and what it reported."""

    def __init__(self, config: Config, world: World) -> None:
        self.world = world
        self.files = ModelFiles(world.stores(retries=0))
        validate = model_validator(KINDS)
        self.catalog = catalog(config, KINDS, validate=validate, files=self.files)
        deps = RepositoryDeps(
            loader(KINDS, nobody),
            Meters(),
            versioned=lambda model: KINDS.backends[model.backend].versioned,
            validate=validate,
            files=self.files,
        )
        self.repository = Repository(self.catalog, deps, config.model_control)
        self.reports: list[LoadReport] = []

    @property
    def versions(self) -> dict[str, list[int]]:
        return {name: list(versions) for name, versions in self.repository.snapshot.models.items()}

    def errors(self) -> list[str]:
        return [each.error for each in self.reports if each.error]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Served]:
    """make(models, sections…)"""

    def served(models: dict[str, Any] | None = None, **sections: Any) -> Served:
        file = tmp_path / "gateway.yaml"
        entries = {name: {"backend": "onnx", **entry} for name, entry in (models or {}).items()}
        file.write_text(yaml.safe_dump({"models": entries, **sections} if models else sections))
        return Served(load_config(file, KINDS), World(tmp_path / "cache"))

    return served


async def test_only_wanted_versions_are_fetched(make: Any, server: FileServer) -> None:
    server.put("half", {"2/model.onnx": HALF, "7/model.onnx": MORE})
    served = make({"m": {"path": f"{server.url}/half/", "versions": [2, 7]}, "n": {"path": f"{server.url}/half/"}})
    await served.repository.load_all(served.reports.append)
    assert served.errors() == []
    assert served.versions == {"m": [2, 7], "n": [7]}
    assert server.gets("half/1/model.onnx") == []
    assert len(server.gets("half/7/model.onnx")) == 1
    await served.repository.close()


async def test_polling_lists_and_fetches_what_is_new(make: Any, server: FileServer) -> None:
    served = make({"m": {"path": f"{server.url}/half/"}}, model_control={"mode": "poll"})
    await served.repository.load_all(served.reports.append)
    first = served.repository.snapshot.models["m"][1]
    asked = len(server.asked)
    await served.repository.poll(served.reports.append)
    assert [path for _, path, _ in server.asked[asked:]] == ["half/SHA256SUMS"]
    server.put("half", {"2/model.onnx": MORE, "notes.txt": b"new"})
    await served.repository.poll(served.reports.append)
    assert served.versions == {"m": [2]}
    assert len(server.gets("half/2/model.onnx")) == 1
    asked = len(server.asked)
    server.put("half", {"notes.txt": b"newer"})
    second = served.repository.snapshot.models["m"][2]
    await served.repository.poll(served.reports.append)
    assert served.repository.snapshot.models["m"][2] is second is not first
    assert {path for _, path, _ in server.asked[asked:]} == {"half/SHA256SUMS"}
    await served.repository.close()


async def test_a_store_that_is_down_stops_no_other_model(make: Any, server: FileServer) -> None:
    with serving_files() as other:
        other.put("more", {"1/model.onnx": MORE})
        models = {"m": {"path": f"{server.url}/half/"}, "n": {"path": f"{other.url}/more/"}}
        served = make(models, model_control={"mode": "poll"})
        await served.repository.load_all(served.reports.append)
        server.faults["GET", "half/SHA256SUMS"] = [Fault(status=500), Fault(status=403)]
        other.put("more", {"2/model.onnx": HALF})
        for _ in range(2):
            served.world.now += 60
            await served.repository.poll(served.reports.append)
        assert served.versions == {"m": [1], "n": [2]}
        served.world.now += 60
        server.put("half", {"2/model.onnx": HALF})
        await served.repository.poll(served.reports.append)
        assert served.versions == {"m": [2], "n": [2]}
        await served.repository.close()


async def test_a_start_without_a_store_is_made_up_for(
    make: Any, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "_TRY_AGAIN_S", 0.01)
    server.faults["GET", "half/SHA256SUMS"] = [Fault(status=503)] * 2
    served = make({"m": {"path": f"{server.url}/half/"}})
    await served.repository.load_all(served.reports.append)
    assert served.versions == {}
    assert served.errors() == [f"{server.url}/half/SHA256SUMS: the store answers 503"]
    assert not served.repository.all_available()
    server.faults.clear()
    served.world.now += 60
    retrying = asyncio.ensure_future(served.repository.keep_retrying(served.reports.append))
    await until(lambda: served.versions == {"m": [1]})
    retrying.cancel()
    await served.repository.close()


async def test_what_callers_read_of_a_failure_names_no_place(make: Any, server: FileServer) -> None:
    served = make({"m": {"path": f"{server.url}/half/"}})
    server.files["half/1/model.onnx"] = b"other"
    await served.repository.load_all(served.reports.append)
    (entry,) = await served.repository.index()
    assert entry.reason.startswith("model.onnx: what came has another digest")
    served.repository._states["m"].error = ""
    server.files.clear()
    await served.repository.poll(served.reports.append)
    assert all(server.url not in each.reason for each in await served.repository.index())
    await served.repository.close()


async def test_what_is_loaded_stays_in_the_cache(make: Any, server: FileServer) -> None:
    served = make({"m": {"path": f"{server.url}/half/"}}, model_control={"mode": "explicit", "load": ["m"]})
    await served.repository.load_all(served.reports.append)
    cache = served.files.stores.cache
    folder = served.repository.snapshot.models["m"][1] and next((cache.folder / "trees").iterdir())
    assert not cache.discard(folder)
    await served.repository.unload("m")
    await until(lambda: bool(gc.collect() is not None and cache.discard(folder)))
    await served.repository.close()


async def test_what_was_fetched_is_held_to_its_proof(make: Any, server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/model.onnx").write_bytes(HALF)
    path, digest = f"{server.url}/half/", files_digest(tmp_path / "here").sha256
    served = make(
        {"m": {"path": path, "verify": {"sha256": digest}}, "n": {"path": path, "verify": {"sha256": "0" * 64}}}
    )
    await served.repository.load_all(served.reports.append)
    assert served.versions == {"m": [1]}
    (error,) = served.errors()
    assert error.startswith("not verified: the SHA-256 of ")
    await served.repository.close()


async def test_a_program_comes_with_what_lies_beside_it(
    make: Any, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = b"import numpy as np\nfrom pathlib import Path\n\nclass Add:\n    def __init__(self, context):\n"
    program += b"        self.more = float((Path(__file__).parent / 'more.txt').read_text())\n"
    program += b"    def infer(self, inputs, request):\n        return {'y': inputs['x'] + np.float32(self.more)}\n"
    tensor = {"datatype": "FP32", "shape": [1]}
    entry = {"backend": "python", "inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
    commit = "1" * 40
    server.put(f"o/n/resolve/{commit}", {"add.py": program, "more.txt": b"40"})

    def blob(content: bytes) -> str:
        return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()

    tree = [
        {"type": "file", "path": "add.py", "size": len(program), "oid": blob(program)},
        {"type": "file", "path": "more.txt", "size": 2, "oid": blob(b"40")},
    ]
    server.files[f"api/models/o/n/tree/{commit}?recursive=true"] = json.dumps(tree).encode()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    served = make({"m": {**entry, "path": f"hf://o/n@{commit}/add.py:Add"}})
    await served.repository.load_all(served.reports.append)
    assert served.errors() == []
    assert served.versions == {"m": [1]}
    await served.repository.close()


# --------------------------------------------------------------------------------------------------------- repositories


@pytest.fixture
def models(server: FileServer) -> str:
    """A repository of a web server: one model of Triton's form, one of ours."""
    server.put(
        "repo",
        {
            "triton/config.pbtxt": b'backend: "onnxruntime"',
            "triton/1/model.onnx": HALF,
            "triton/2/model.onnx": MORE,
            "ours/model.yaml": b"backend: onnx\nversions: all\n",
            "ours/1/model.onnx": HALF,
            "ours/3/model.onnx": MORE,
        },
    )
    return f"{server.url}/repo/"


async def test_a_repository_is_read_and_its_versions_fetched_when_loaded(
    make: Any, server: FileServer, models: str
) -> None:
    control = {"mode": "explicit", "load": ["ours"]}
    served = make(repositories=[models], model_control=control)
    await served.repository.load_all(served.reports.append)
    assert served.errors() == []
    assert served.versions == {"ours": [1, 3]}
    fetched = {path for method, path, _ in server.asked if method == "GET" and path.endswith(".onnx")}
    assert fetched == {"repo/ours/1/model.onnx", "repo/ours/3/model.onnx"}
    await served.repository.load("triton")
    assert served.versions == {"ours": [1, 3], "triton": [2]}
    assert [each.name for each in await served.repository.index()] == ["ours", "ours", "triton"]
    await served.repository.close()


async def test_a_repository_is_polled(make: Any, server: FileServer, models: str) -> None:
    served = make(repositories=[models], model_control={"mode": "poll"})
    await served.repository.load_all(served.reports.append)
    assert served.versions == {"ours": [1, 3], "triton": [2]}
    server.put("repo", {"more/1/model.onnx": HALF, "more/model.yaml": b"backend: onnx"})
    for path in [each for each in server.files if each.startswith("repo/triton")]:
        del server.files[path]
    server.put("repo", {})
    served.world.now += 60
    await served.repository.poll(served.reports.append)
    assert served.versions == {"ours": [1, 3], "more": [1]}
    await served.repository.close()


async def test_a_repository_names_no_other_place(make: Any, server: FileServer) -> None:
    with serving_files() as other:
        server.put("repo", {"m/model.yaml": f"backend: onnx\npath: {other.url}/half/".encode(), "m/1/model.onnx": HALF})
        served = make(repositories=[f"{server.url}/repo/"])
        await served.repository.load_all(served.reports.append)
        assert served.errors() == ["callers name no URLs of models"]
        assert other.asked == []
        await served.repository.close()


# -------------------------------------------------------------------------------------------------- what callers bring


async def test_callers_of_a_load_name_no_url(make: Any, server: FileServer, tmp_path: Path) -> None:
    with serving_files() as evil:
        evil.put("half", {"1/model.onnx": MORE})
        url = f"{evil.url}/half/"
        control = {"mode": "explicit", "load": ["*"], "allow_uploads": True, "trusted": True}
        (tmp_path / "local/own/1").mkdir(parents=True)
        (tmp_path / "local/own/1/model.onnx").write_bytes(HALF)
        served = make(
            {"m": {"path": f"{server.url}/half/"}},
            repositories=["local"],
            model_control=control,
            listen={"http": [{"bind": "127.0.0.1:0"}]},
        )
        await served.repository.load_all(served.reports.append)
        texts = [
            {"backend": "onnxruntime", "path": url},
            {"backend": "onnxruntime", "parameters": {"path": {"string_value": url}}},
            {"backend": "onnxruntime", "default_model_filename": url},
            {"backend": "python", "parameters": {"EXECUTION_ENV_PATH": {"string_value": url}}},
        ]
        for name in ("m", "own", "new"):
            for text in texts:
                for files in ({}, {"model.yaml": f"backend: onnx\npath: {url}\n".encode(), "1/model.onnx": HALF}):
                    with suppress(GatewayError):
                        await served.repository.load(name, json.dumps(text), files)
        assert evil.asked == []
        await served.repository.close()


async def test_callers_of_a_reload_name_no_url_but_the_models_own(
    make: Any, server: FileServer, tmp_path: Path
) -> None:
    with serving_files() as evil:
        evil.put("half", {"1/model.onnx": MORE})
        own = f"{server.url}/half/"
        (tmp_path / "roots").mkdir()
        served = make({"m": {"path": own}}, model_control={"mode": "poll", "model_roots": [str(tmp_path / "roots")]})
        await served.repository.load_all(served.reports.append)
        server.put("half", {"5/model.onnx": MORE})
        for name in ("m", "other"):
            for url in (f"{evil.url}/half/", "s3://b/half", f"{server.url}/", "file:///etc"):
                with pytest.raises(LoadRefused, match="model_roots"):
                    await served.repository.reload([WantedModel(name, url, "tensorflow", {"latest": 1}, {})])
        with pytest.raises(LoadRefused):
            await served.repository.reload([WantedModel("other", own, "tensorflow", {"latest": 1}, {})])
        assert evil.asked == []
        await served.repository.reload([WantedModel("m", own, "tensorflow", {"latest": 2}, {})])
        await until(lambda: served.versions == {"m": [1, 5]})
        await served.repository.close()


# -------------------------------------------------------------------------------------------------------- configuration


WRONG = {
    "s3://": "expected s3://BUCKET/PREFIX",
    "ftp://h/x": "no store of the kind ftp://",
    "https://u:key@h/x": "a URL carries no user and password",
    "https://h/x?X-Amz-Signature=key": "a URL carries no query",
    "http://example.org/x": "plain http is for this machine alone",
    "s3://b/../x": "neither . nor .. in it",
    "hf://only": "expected hf://ORG/NAME@REVISION/FOLDER",
    "oci://r/untagged": "expected oci://REGISTRY/NAME:TAG",
    "mlflow://m": "expected mlflow://NAME/VERSION",
}


@pytest.mark.parametrize(("url", "text"), WRONG.items())
def test_urls_that_are_none(url: str, text: str, make: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        make({"m": {"path": url}})
    (problem,) = raised.value.problems
    assert (problem.key, problem.line > 0) == ("models.m.path", True)
    assert text in problem.text
    assert "key" not in problem.text


def test_a_package_that_is_not_there_is_named_with_its_line(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("models:\n  m:\n    backend: onnx\n    path: s3://b/m\n")
    monkeypatch.setattr(contract_files, "find_spec", lambda name: None)
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{file}:4:11: models.m.path: s3:// needs the package obstore: pip install 'obstore>=")


@pytest.mark.parametrize("key", ["example", "class_labels"])
def test_other_files_lie_here(key: str, make: Any, server: FileServer) -> None:
    value: Any = f"{server.url}/x" if key == "example" else {"y": f"{server.url}/x"}
    with pytest.raises(ConfigError, match="expected a path of this machine"):
        make({"m": {"path": f"{server.url}/half/", key: value}})


def test_check_and_fetch_say_what_they_fetch(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.yaml"
    stores = {"cache": {"folder": str(tmp_path / "cache")}}
    entry = {"backend": "onnx", "path": f"{server.url}/half/", "max_batch_size": 8}
    file.write_text(yaml.safe_dump({"stores": stores, "models": {"m": entry}}))
    assert main(["fetch", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"fetching {server.url}/half/1: 1 file\n" in said
    assert f"1 version of other machines in {tmp_path / 'cache'}\n" in said
    assert main(["check", str(file)]) == 0
    assert "fetching" not in capsys.readouterr().out
    file.write_text(yaml.safe_dump({"stores": stores, "models": {"m": {**entry, "path": f"{server.url}/none/"}}}))
    assert main(["fetch", str(file)]) == 1
    assert "there is none, nor in a folder above it" in capsys.readouterr().err
    assert main(["check", str(file)]) == 2
    assert f"{file}:5:5: models.m.path: " in capsys.readouterr().err
