"""What each kind of store asks, and makes of the answers: object stores, registries, hubs, tracking servers."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore
from store_world import Fault, FileServer, World, serving_files

from tensorgate.gateway.config import SourceConfig
from tensorgate.gateway.contract.locations import parse_location
from tensorgate.gateway.stores import fetching
from tensorgate.gateway.stores.errors import Changed, Damaged, NotAllowed, NotThere, Unreachable
from tensorgate.gateway.stores.http import Policy
from tensorgate.gateway.stores.objects import ObjectStore, _fail, _s3

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving_files() as server:
        yield server


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cache")


# ------------------------------------------------------------------------------------------------------- object stores


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    bucket = MemoryStore()
    monkeypatch.setattr(ObjectStore, "_open_bucket", lambda self, name: bucket)
    for path in ("a/m/1/model.onnx", "a/m/2/model.onnx", "a/mm/1/other.onnx", "b"):
        obstore.put(bucket, path, path.encode())
    return bucket


def test_a_prefix_is_a_folder_and_no_beginning_of_names(bucket: MemoryStore, world: World) -> None:
    stores = world.stores()
    place = parse_location("s3://bucket/a/m")
    listing = stores.listing(place)
    assert [each.path for each in listing.files] == ["1/model.onnx", "2/model.onnx"]
    lease = stores.fetch(listing.versions()[2], place)
    assert (lease.path / "model.onnx").read_bytes() == b"a/m/2/model.onnx"
    assert stores.listing(parse_location("s3://bucket")).folders() == ["a"]


def test_an_object_is_a_file(bucket: MemoryStore, world: World) -> None:
    stores = world.stores()
    place = parse_location("gs://bucket/b")
    listing = stores.listing(place)
    assert listing.is_file
    assert stores.fetch(listing.whole(), place).path.read_bytes() == b"b"
    with pytest.raises(NotThere, match="gs://bucket/none: there is no such thing"):
        stores.listing(parse_location("gs://bucket/none"))


def test_an_object_that_was_replaced_is_not_taken_for_what_was_listed(bucket: MemoryStore, world: World) -> None:
    stores = world.stores()
    place = parse_location("az://bucket/b")
    tree = stores.listing(place).whole()
    obstore.put(bucket, "b", b"c")
    with pytest.raises(Changed):
        stores.fetch(tree, place)
    assert stores.fetch(stores.listing(place).whole(), place).path.read_bytes() == b"c"


def test_an_object_is_resumed(bucket: MemoryStore) -> None:
    store = ObjectStore("s3", SourceConfig(), Policy())
    (file,) = store.list(parse_location("s3://bucket/b")).files
    obstore.put(bucket, "b", b"0123456789")
    (file,) = store.list(parse_location("s3://bucket/b")).files
    with store.open(file, 7) as (start, chunks):
        assert (start, b"".join(chunks)) == (7, b"789")


def test_errors_of_a_cloud_have_none_of_its_words() -> None:
    class GenericError(Exception):
        pass

    class PermissionDeniedError(Exception):
        pass

    secret = "Authorization: AWS4-HMAC-SHA256 Credential=AKIA"
    with pytest.raises(NotAllowed, match=r"^s3://b/x: the store refuses this server, or its credentials$"):
        _fail(PermissionDeniedError(secret), "s3://b/x")
    for text, said in (
        ("error sending request for url (http://169.254.169.254/latest): " + secret, "no credentials were found"),
        ("dns error: failed to lookup " + secret, "name is not known"),
        ("operation timed out " + secret, "does not answer in time"),
        (secret, "no credentials were found"),
    ):
        with pytest.raises(Unreachable) as raised:
            _fail(GenericError(text), "s3://b/x")
        assert said in str(raised.value)
        assert "AKIA" not in str(raised.value)


def test_a_profile_counts_where_the_environment_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = A\n[other]\naws_access_key_id = B\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert _s3(SourceConfig()) == {"access_key_id": "A", "region": "us-east-1"}
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert _s3(SourceConfig()) == {"access_key_id": "B", "region": "eu-west-1"}
    assert _s3(SourceConfig(anonymous=True, region="r")) == {"region": "r"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "C")
    assert _s3(SourceConfig(endpoint="https://h")) == {"region": "us-east-1", "endpoint": "https://h"}


# ---------------------------------------------------------------------------------------------------------- registries


def artifact(server: FileServer, files: dict[str, bytes], **layer: Any) -> str:
    """Put an artifact into a server -> its digest."""
    layers = []
    for path, content in files.items():
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        server.files[f"v2/a/m/blobs/{digest}"] = content
        marks = {"org.opencontainers.image.title": path}
        layers.append({"digest": digest, "size": len(content), "annotations": marks, **layer})
    manifest = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    server.files["v2/a/m/manifests/v1"] = server.files[f"v2/a/m/manifests/{digest}"] = manifest
    return digest


def test_a_registry_gives_a_token_for_a_login(
    server: FileServer, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact(server, {"1/model.onnx": b"model"})
    host = server.url.removeprefix("http://")
    login = base64.b64encode(b"user:key").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    asks = f'Bearer realm="{server.url}/token",service="r",scope="repository:a/m:pull"'
    server.faults["GET", "v2/a/m/manifests/v1"] = [Fault(status=401, headers={"WWW-Authenticate": asks})]
    server.files["token?service=r&scope=repository%3Aa%2Fm%3Apull"] = b'{"token": "granted"}'
    stores = world.stores()
    place = parse_location(f"oci://{host}/a/m:v1")
    with serving_files() as elsewhere:
        blob = f"v2/a/m/blobs/sha256:{hashlib.sha256(b'model').hexdigest()}"
        elsewhere.files["blob"] = b"model"
        server.faults["GET", blob] = [Fault(redirect=f"{elsewhere.url}/blob")]
        lease = stores.fetch(stores.listing(place).versions()[1], place)
        assert (lease.path / "model.onnx").read_bytes() == b"model"
        assert "Authorization" not in elsewhere.asked[0][2]
    sent = [(path.partition("?")[0], headers.get("Authorization")) for _, path, headers in server.asked]
    assert sent == [
        ("v2/a/m/manifests/v1", None),
        ("token", f"Basic {login}"),
        ("v2/a/m/manifests/v1", "Bearer granted"),
        (blob, "Bearer granted"),
    ]


def test_a_digest_is_what_it_says_and_final(server: FileServer, world: World) -> None:
    digest = artifact(server, {"1/model.onnx": b"model"})
    place = parse_location(f"oci://{server.url.removeprefix('http://')}/a/m@{digest}")
    stores = world.stores()
    assert stores.listing(place) == stores.listing(place)
    assert len(server.asked) == 1
    wrong = parse_location(f"oci://{server.url.removeprefix('http://')}/a/m@sha256:{'0' * 64}")
    server.files[f"v2/a/m/manifests/sha256:{'0' * 64}"] = b"{}"
    with pytest.raises(Damaged, match="a manifest of another digest"):
        stores.listing(wrong)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        ({"annotations": {}}, "a packed folder, and no file"),
        ({"annotations": {"org.opencontainers.image.title": "1", "io.deis.oras.content.unpack": "true"}}, "oras push"),
        ({"annotations": {"org.opencontainers.image.title": "../up"}}, "leads out of the folder"),
        ({"digest": "md5:0"}, "no SHA-256"),
    ],
)
def test_artifacts_that_are_no_files(layer: Any, text: str, server: FileServer, world: World) -> None:
    artifact(server, {"1/model.onnx": b"model"}, **layer)
    with pytest.raises(ValueError, match=text):
        world.stores().listing(parse_location(f"oci://{server.url.removeprefix('http://')}/a/m:v1"))


# ---------------------------------------------------------------------------------------------------------------- hubs


def test_a_hubs_files_are_held_against_its_digests(
    server: FileServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    git = hashlib.sha1(b"blob 5\0hello", usedforsecurity=False).hexdigest()
    server.files["api/models/o/n/revision/main"] = json.dumps({"sha": COMMIT}).encode()
    tree = [{"type": "file", "path": "sub/x.txt", "size": 5, "oid": git}, {"type": "directory", "path": "sub"}]
    server.files[f"api/models/o/n/tree/{COMMIT}?recursive=true"] = json.dumps(tree).encode()
    server.files[f"o/n/resolve/{COMMIT}/sub/x.txt"] = b"jello"
    stores = world.stores()
    place = parse_location("hf://o/n/sub")
    listing = stores.listing(place)
    assert [each.path for each in listing.files] == ["x.txt"]
    with pytest.raises(Damaged, match="another digest than git:"):
        stores.fetch(listing.whole(), place)
    server.files[f"o/n/resolve/{COMMIT}/sub/x.txt"] = b"hello"
    assert (stores.fetch(listing.whole(), place).path / "x.txt").read_bytes() == b"hello"


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b"null", b'{"sha": 1}'])
def test_what_is_no_hub(content: bytes, server: FileServer, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.files["api/models/o/n/revision/main"] = content
    server.files["api/models/o/n/tree/1?recursive=true"] = b"{}"
    with pytest.raises((ValueError, NotThere)):
        world.stores().listing(parse_location("hf://o/n"))


# ---------------------------------------------------------------------------------------------------- tracking servers


def test_a_tracking_server_leads_to_no_file_of_this_machine(
    server: FileServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    asked = "api/2.0/mlflow/model-versions/get-download-uri?name=m&version=1"
    for uri in ("file:///etc", "/etc", f"{server.url}/x", "dbfs:/x"):
        server.files[asked] = json.dumps({"artifact_uri": uri}).encode()
        with pytest.raises(ValueError, match="only the tracking server reaches"):
            world.stores().listing(parse_location("mlflow://m/1"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(ValueError, match="needs MLFLOW_TRACKING_URI"):
        world.stores().listing(parse_location("mlflow://m/1"))


def test_a_tracking_server_may_lead_to_an_object_store(
    server: FileServer, bucket: MemoryStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    asked = "api/2.0/mlflow/model-versions/get-download-uri?name=m&version=1"
    server.files[asked] = json.dumps({"artifact_uri": "s3://bucket/a/m"}).encode()
    stores = world.stores()
    place = parse_location("mlflow://m/1")
    lease = stores.fetch(stores.listing(place).versions()[1], place)
    assert (lease.path / "model.onnx").read_bytes() == b"a/m/1/model.onnx"


# ------------------------------------------------------------------------------------------------------------- progress


def test_what_takes_long_says_how_far_it_is(server: FileServer, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PROGRESS_EVERY_S", 0.0)
    server.files["x"] = bytes(3 << 20)
    stores = world.stores()
    place = parse_location(f"{server.url}/x")
    stores.fetch(stores.listing(place).whole(), place)
    assert any(line.startswith(f"fetching {server.url}/x: 1.0 MiB of 3.0 MiB, 33 %, ") for line in world.said)
