"""Models that come and go while the real command serves them, and the key that callers need for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from serving import DEMO, HOST, Gateway, command, running
from waiting import wait_until

MODELS = DEMO.parent / "demo/models"
ENTRY = "backend: onnx\n"
NUMBERS = {"instances": [4.0]}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with one model in it, `half`."""
    add(tmp_path / "repository/half", "half_plus_two")
    return tmp_path / "repository"


def add(folder: Path, model: str) -> None:
    """Put a model of the demo there, its file last."""
    (folder / "1").mkdir(parents=True)
    (folder / "model.yaml").write_text(ENTRY)
    (file,) = (MODELS / model).glob("*/model.onnx")
    shutil.copy(file, folder / "1/new")
    (folder / "1/new").rename(folder / "1/model.onnx")


def written(tmp_path: Path, **sections: object) -> Path:
    file = tmp_path / "gateway.yaml"
    listen = {"http": [{"bind": f"{HOST}:0"}], "metrics": {"bind": f"{HOST}:0"}}
    file.write_text(yaml.safe_dump({"listen": listen, "repositories": ["repository"], **sections}))
    return file


def until(what: Callable[[], bool], gateway: Gateway) -> None:
    wait_until(what, lambda: gateway.said)


def test_polling_follows_the_folder(tmp_path: Path, repository: Path) -> None:
    options = ("--model-control-mode", "poll", "--repository-poll-secs", "0.1")
    with running(written(tmp_path), *options) as gateway:
        assert gateway.post("/v1/models/half:predict", NUMBERS).json == {"predictions": [4.0]}
        add(repository / "more", "half_plus_three")
        until(lambda: gateway.get("/v2/models/more/ready").status == 200, gateway)
        assert gateway.post("/v1/models/more:predict", NUMBERS).json == {"predictions": [5.0]}
        assert "loaded more version 1" in gateway.said
        shutil.copytree(repository / "more/1", repository / "half/2")
        until(lambda: gateway.get("/v1/models/half/versions/2").status == 200, gateway)
        until(lambda: gateway.post("/v1/models/half:predict", NUMBERS).json == {"predictions": [5.0]}, gateway)
        states = [each["state"] for each in gateway.get("/v1/models/half").json["model_version_status"]]
        assert (states[0], states[1] in ("UNLOADING", "END")) == ("AVAILABLE", True)
        shutil.rmtree(repository / "more")
        until(lambda: gateway.get("/v2/models/more").status == 404, gateway)
        refused = gateway.post("/v2/repository/models/half/load", {})
        assert (refused.status, refused.json["error"]) == (
            503,
            "explicit model load / unload is not allowed if polling is enabled",
        )
        assert gateway.stop() == 0


def test_the_key_guards_load_and_unload(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TEST_ADMIN_KEY", "s3cret")
    file = written(tmp_path, admin={"header": "X-Admin-Key", "value_env": "TEST_ADMIN_KEY"})
    add(repository / "more", "half_plus_three")
    with running(file, "--model-control-mode", "explicit", "--load-model", "half", "--log-level", "debug") as gateway:
        load = "/v2/repository/models/more/load"
        for headers in ({}, {"x-admin-key": "secret"}):
            refused = gateway.request("POST", load, {}, headers)
            want = (403, "This API is restricted, expecting header 'X-Admin-Key'")
            assert (refused.status, refused.json["error"]) == want
        assert gateway.get("/v2/models/more/ready").status == 400
        loaded = gateway.request("POST", load, {}, {"X-ADMIN-KEY": "s3cret"})
        assert (loaded.status, loaded.body) == (200, b"")
        assert gateway.post("/v1/models/more:predict", NUMBERS).json == {"predictions": [5.0]}
        assert gateway.post("/grps/v1/health/online", {}).status == 403
        assert "s3cret" not in gateway.said
        assert gateway.stop() == 0


def test_check_and_serve_say_what_is_wrong(tmp_path: Path, repository: Path) -> None:
    file = written(tmp_path)
    assert command("check", "--load", str(file)).stdout == f"{file}: ok, 1 models\n"
    refused = command("serve", str(file), "--load-model", "half")
    assert refused.returncode == 2
    assert "only mode explicit chooses the models to load" in refused.stderr
    (repository / "half/model.yaml").write_text("backend: onnx\ninstances: 0\n")
    checked = command("check", str(file))
    assert checked.returncode == 2
    assert "half/model.yaml: instances: found 0, expected at least 1" in checked.stderr
