"""Models of genuine stores: each is listed, fetched, loaded, and answers through a gateway as one that lies here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import obstore
import pytest
import store_servers
import yaml
from client_scripts import environment
from obstore.store import AzureStore, S3Store
from serving import HOST, ROOT, Gateway, command, running
from waiting import wait_until

pytestmark = pytest.mark.heavy

DIGITS = ROOT / "config/demo/models/digits"
SECRET = "s3cret-that-nobody-may-read"
IMAGE = [[[0.0] * 8] * 8]


def model_files(prefix: str = "") -> dict[str, bytes]:
    """Both versions of a model, by their paths."""
    return {f"{prefix}{number}/model.onnx": (DIGITS / str(number) / "model.onnx").read_bytes() for number in (1, 2)}


def configuration(tmp_path: Path, models: Mapping[str, Any], **stores: Any) -> Path:
    bind = {"bind": f"{HOST}:0"}
    file = tmp_path / "gateway.yaml"
    config = {
        "listen": {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)},
        "stores": {"cache": {"folder": str(tmp_path / "cache")}, **stores},
        "models": {
            name: {"backend": "onnx", "max_batch_size": 8, "versions": "all", **entry} for name, entry in models.items()
        },
    }
    file.write_text(yaml.safe_dump(config))
    return file


def answers(gateway: Gateway, model: str, version: int | None = None) -> Any:
    """What a model says of an empty image."""
    where = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    inputs = json.loads(gateway.request("GET", where).body)["inputs"]
    body = {"inputs": [{"name": inputs[0]["name"], "shape": [1, 8, 8], "datatype": "FP32", "data": IMAGE}]}
    answer = gateway.request("POST", f"{where}/infer", body)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)["outputs"][0]["data"]


def check_served(file: Path, model: str = "m") -> str:
    """Versions of a store answer as those of this machine; a second start fetches nothing, and needs no store ->
    what the gateway said.
    """
    config = yaml.safe_load(file.read_text())
    config["models"]["here"] = {**config["models"][model], "path": str(DIGITS), "versions": "all"}
    file.write_text(yaml.safe_dump(config))
    flat = config["models"][model]["versions"] == "none"
    with running(file) as gateway:
        if flat:
            assert answers(gateway, model) == answers(gateway, "here", 1)
        else:
            for version in (1, 2):
                assert answers(gateway, model, version) == answers(gateway, "here", version)
        said = gateway.said
        paths = ("/v2", "/metrics", "/", f"/v2/models/{model}/config", f"/v2/models/{model}")
        shown = "".join(gateway.request("GET", path).body.decode() for path in paths)
        assert gateway.stop() == 0
    assert "fetched " in said
    assert SECRET not in said + shown
    config["stores"]["offline"] = True
    file.write_text(yaml.safe_dump(config))
    with running(file) as gateway:
        assert answers(gateway, model) is not None
        assert "fetching" not in gateway.said
    return said


def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with store_servers.s3(tmp_path) as address:
        subprocess.run(["curl", "-sfX", "PUT", f"{address}/models"], check=True, env=environment())
        bucket = S3Store("models", endpoint=address, region="us-east-1", client_options={"allow_http": True})
        for path, content in model_files("a/digits/").items():
            obstore.put(bucket, path, content)
        sources = {"s3://": {"endpoint": address}}
        check_served(configuration(tmp_path, {"m": {"path": "s3://models/a/digits"}}, sources=sources))
        lacking = configuration(tmp_path, {"m": {"path": "s3://models/a/none"}}, sources=sources)
        found = command("check", lacking)
        assert found.returncode == 2
        assert "s3://models/a/none: there is no such thing" in found.stdout + found.stderr


def test_a_profile_of_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "credentials"
    profile.write_text(f"[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with store_servers.s3(tmp_path) as address:
        subprocess.run(["curl", "-sfX", "PUT", f"{address}/models"], check=True, env=environment())
        anonymous = {"skip_signature": True, "region": "us-east-1"}
        bucket = S3Store("models", endpoint=address, config=anonymous, client_options={"allow_http": True})
        obstore.put(bucket, "net/1/model.onnx", (DIGITS / "1/model.onnx").read_bytes())
        entry = {"path": "s3://models/net/1/model.onnx", "versions": "none"}
        check_served(configuration(tmp_path, {"m": entry}, sources={"s3://models/": {"endpoint": address}}))


def test_google(tmp_path: Path) -> None:
    with store_servers.gcs(tmp_path) as address:
        for path, content in model_files("digits/").items():
            put = ["curl", "-sfX", "PUT", "--data-binary", "@-", f"{address}/models/{path}"]
            subprocess.run(put, input=content, check=True, env=environment())
        sources = {"gs://": {"endpoint": address, "anonymous": True}}
        check_served(configuration(tmp_path, {"m": {"path": "gs://models/digits"}}, sources=sources))


def test_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", store_servers.AZURITE_KEY)
    with store_servers.azure(tmp_path) as address:
        script = Path(__file__).parent / "azure_container.py"
        subprocess.run([store_servers.program(store_servers.PROGRAMS / "python"), script, address], check=True)
        options: Any = {"endpoint": address}
        bucket = AzureStore("models", config=options, client_options={"allow_http": True})
        for path, content in model_files("digits/").items():
            obstore.put(bucket, path, content)
        sources = {"az://": {"endpoint": address}}
        said = check_served(configuration(tmp_path, {"m": {"path": "az://models/digits"}}, sources=sources))
        assert store_servers.AZURITE_KEY not in said


def test_a_registry(tmp_path: Path) -> None:
    with store_servers.registry(tmp_path) as host:
        digest = store_servers.push(host, "team/digits", "v1", model_files())
        check_served(configuration(tmp_path, {"m": {"path": f"oci://{host}/team/digits:v1"}}))
        pinned = configuration(tmp_path, {"m": {"path": f"oci://{host}/team/digits@{digest}"}})
        with running(pinned) as gateway:
            assert "fetching" not in gateway.said  # the same files by another name
            assert answers(gateway, "m", 1) != answers(gateway, "m", 2)


@pytest.fixture
def tracking(tmp_path: Path) -> Iterator[str]:
    with store_servers.mlflow(tmp_path) as address:
        yield address


def test_mlflow(tmp_path: Path, tracking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    script = Path(__file__).parent / "mlflow_models.py"
    python = store_servers.program(store_servers.PROGRAMS / "python")
    subprocess.run([python, script, str(DIGITS)], check=True, env=environment() | {"MLFLOW_TRACKING_URI": tracking})
    models = {
        "m": {"path": "mlflow://digits/1"},
        "named": {"path": "mlflow://digits@champion"},
        "logged": {"path": "mlflow://digits/2"},
    }
    check_served(configuration(tmp_path, models))


def test_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = (DIGITS / "1/model.onnx").read_bytes()
    files = {"README.md": b"# digits\n", "onnx/model.onnx": model, "onnx/labels.txt": b"0\n1\n"}
    with store_servers.hub(files, {"onnx/model.onnx"}, SECRET) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://{HOST}:{hub.server_port}")
        monkeypatch.setenv("HF_TOKEN", SECRET)
        entry = {"path": "hf://team/digits@main/onnx", "versions": "none"}
        check_served(configuration(tmp_path, {"m": entry}))
        elsewhere = [key for path, key in hub.asked if path.startswith("/cdn/")]
        assert elsewhere == [None]
        assert all("README" not in path for path, _ in hub.asked if "/resolve/" in path)


def test_a_repository_in_a_bucket_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's models, one of them with a process of its own, behind two doors; a version comes, a model goes."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with store_servers.s3(tmp_path) as address:
        subprocess.run(["curl", "-sfX", "PUT", f"{address}/models"], check=True, env=environment())
        bucket = S3Store("models", endpoint=address, region="us-east-1", client_options={"allow_http": True})
        first, second = (content for _, content in sorted(model_files().items()))
        obstore.put(bucket, "repo/triton/config.pbtxt", b'backend: "onnxruntime" max_batch_size: 8')
        obstore.put(bucket, "repo/triton/1/model.onnx", first)
        obstore.put(bucket, "repo/ours/model.yaml", b"backend: onnx\nprocess: own\nmax_batch_size: 8\n")
        obstore.put(bucket, "repo/ours/1/model.onnx", second)
        file = configuration(tmp_path, {"here": {"path": str(DIGITS)}}, sources={"s3://": {"endpoint": address}})
        control = {"mode": "poll", "poll_seconds": 0.2}
        config = yaml.safe_load(file.read_text()) | {"repositories": ["s3://models/repo"], "model_control": control}
        file.write_text(yaml.safe_dump(config))
        with running(file, "--doors", "2", python=Path(sys.executable)) as gateway:
            assert answers(gateway, "triton") == answers(gateway, "here", 1)
            assert answers(gateway, "ours") == answers(gateway, "here", 2)
            obstore.put(bucket, "repo/triton/2/model.onnx", second)
            obstore.delete(bucket, ["repo/ours/model.yaml", "repo/ours/1/model.onnx"])
            path = "/v2/models/triton/versions/2/ready"
            wait_until(lambda: gateway.request("GET", path).status == 200, lambda: gateway.said)
            wait_until(lambda: gateway.request("GET", "/v2/models/ours/ready").status != 200, lambda: gateway.said)
            assert answers(gateway, "triton") == answers(gateway, "here", 2)
            assert gateway.stop() == 0
            assert SECRET not in gateway.said
