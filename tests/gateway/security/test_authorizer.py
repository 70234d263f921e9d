"""The one gate: dialect x endpoint x transport x credential. An endpoint that nobody has listed here fails."""

import asyncio
import base64
import hashlib
import hmac
import io
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import grpc
import h2_wire as h2
import pytest
import yaml

from tensorgate.adapters.open_inference.routes import ENDPOINTS as OPEN_INFERENCE
from tensorgate.adapters.openai.options import OpenAiOptions
from tensorgate.adapters.openai.routes import endpoints as openai_endpoints
from tensorgate.adapters.protobuf import messages as pb
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.security import auth
from tensorgate.gateway.wire.http1_body import PROCESS_QUOTA

MODEL = """
class Echo:
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        return {"y": inputs["x"]}
"""
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
}
KEYS = {name: f"{name}-0123456789abcdef" for name in ("alice", "other", "root")}
SECRET = "0123456789abcdef0123456789abcdef"


def digest(name: str) -> str:
    return hashlib.sha256(KEYS[name].encode()).hexdigest()


AUTH: dict[str, Any] = {
    "keys": {"alice": {"sha256": digest("alice")}, "root": {"sha256": digest("root"), "roles": ["ops"]}},
    "keys_file": "keys.yaml",
    "admins": ["role:ops"],
    "allow": {"m": ["alice", "role:ops"]},
}


class House:
    """A gateway with the models m, for some callers, and free, for all."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.folder = folder
        (folder / "models.py").write_text(MODEL)
        (folder / "keys.yaml").write_text(yaml.safe_dump({"other": {"sha256": digest("other")}}))
        model = {"backend": "python", "path": "models.py:Echo", **TENSORS}
        bind = {"bind": "127.0.0.1:0"}
        config = {
            "listen": {"http": [bind], "grpc": [dict(bind)]},
            "models": {"m": model, "free": dict(model)},
            "drain_seconds": 1,
            "auth": AUTH,
            **sections,
        }
        file = folder / "gateway.yaml"
        file.write_text(yaml.safe_dump(config))
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)

    async def start(self) -> None:
        await self.app.start()
        await self.app.load(lambda report: None)
        self.http, *more = self.app.addresses
        self.session = aiohttp.ClientSession()
        address = next((each for each in more if each.startswith("grpc://")), None)
        self.channel = grpc.aio.insecure_channel(address.removeprefix("grpc://")) if address else None

    async def stop(self) -> None:
        await self.session.close()
        if self.channel is not None:
            await self.channel.close()
        await self.app.drain()

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, url: str = ""
    ) -> tuple[int, Mapping[str, str], bytes]:
        async with self.session.request(method, (url or self.http) + path, data=body, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()

    async def call(
        self, method: str, body: bytes, metadata: Mapping[str, str], stream: bool = False
    ) -> tuple[grpc.StatusCode, str]:
        pairs = tuple(metadata.items())
        try:
            if stream:
                call = self.channel.stream_stream(method)(iter([body]), metadata=pairs, timeout=5)
                return grpc.StatusCode.OK, repr([answer async for answer in call])
            answer = await self.channel.unary_unary(method)(body, metadata=pairs, timeout=5)
            return grpc.StatusCode.OK, repr(answer)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    await house.start()
    yield house
    await house.stop()


# ------------------------------------------------------------------------------------------------------------ the table

HEALTH, CALL, OF_MODEL, READY, ADMIN = "health", "call", "of a model", "readiness of a model", "admin"
V2_INFER = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()


WITHOUT_A_NAME = ("/embed", "/rerank", "/similarity", "/predict")
"""Addresses of OpenAI's neighbours whose callers name no model, or in the query."""


class Row(NamedTuple):
    """What an endpoint is to the gate, and a request that names the model m."""

    kind: str
    body: bytes = b""


def v2(address: str) -> Row:
    method, path = address.split(" ")
    if path in ("/v2/health/live", "/v2/health/ready"):
        return Row(HEALTH)
    action = path.rpartition("/")[2]
    if method == "POST" and action not in ("infer", "generate", "generate_stream", "index"):
        return Row(ADMIN)
    if action == "ready":
        return Row(READY)
    if "{model}" not in path:
        return Row(CALL)
    return Row(OF_MODEL, V2_INFER if method == "POST" else b"")


HTTP: dict[str, dict[str, Row]] = {
    "open_inference": {endpoint.address: v2(endpoint.address) for endpoint in OPEN_INFERENCE},
    "tf_serving": {
        "POST /v1/models/m:predict": Row(OF_MODEL, b'{"instances": [1]}'),
        "POST /v1/models/m:classify": Row(OF_MODEL, b'{"examples": [{"x": 1}]}'),
        "POST /v1/models/m:regress": Row(OF_MODEL, b'{"examples": [{"x": 1}]}'),
        "GET /v1/models/m": Row(OF_MODEL),
        "GET /v1/models/m/metadata": Row(OF_MODEL),
        "GET /v1/models": Row(CALL),
    },
    "grps": {
        "POST /grps/v1/health/online": Row(ADMIN),
        "GET /grps/v1/health/offline": Row(ADMIN),
        "GET /grps/v1/health/live": Row(HEALTH),
        "GET /grps/v1/health/ready": Row(HEALTH),
        "GET /grps/v1/metadata/server": Row(CALL),
        "POST /grps/v1/metadata/model": Row(OF_MODEL, b'{"str_data": "m"}'),
        "GET /grps/v1/monitor/series?name=x": Row(CALL),
        "POST /grps/v1/infer/predict?model=m-1": Row(OF_MODEL, b'{"ndarray": [1]}'),
        "POST /grps/v1/nothing": Row(CALL),
    },
    "openai": {
        **{
            f"{method} {path}": Row(OF_MODEL, b'{"model": "m"}') if method == "POST" else Row(CALL)
            for path, (method, _) in openai_endpoints(OpenAiOptions()).items()
            if path not in WITHOUT_A_NAME
        },
        **{f"POST {path}?model=m": Row(OF_MODEL, b"{}") for path in WITHOUT_A_NAME},
        "GET /openai/v1/models/m": Row(CALL),
        "POST /openai/v1/nothing": Row(CALL),
    },
}
V2_ADMIN = ("RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings")
V2_GRPC = {
    "ServerLive": Row(HEALTH),
    "ServerReady": Row(HEALTH),
    "ModelReady": Row(READY, b"\x0a\x01m"),
    "ServerMetadata": Row(CALL),
    "RepositoryIndex": Row(CALL),
    **{name: Row(OF_MODEL, b"\x0a\x01m") for name in ("ModelMetadata", "ModelConfig", "ModelStatistics")},
    **{name: Row(OF_MODEL, b"\x0a\x01m") for name in ("ModelInfer", "ModelStreamInfer")},
    **{name: Row(ADMIN) for name in V2_ADMIN},
    **{f"{kind}SharedMemoryStatus": Row(CALL) for kind in ("System", "Cuda")},
    **{
        f"{kind}SharedMemory{action}": Row(ADMIN)
        for kind in ("System", "Cuda")
        for action in ("Register", "Unregister")
    },
}
OF_M = b"\x0a\x03\x0a\x01m"
METADATA_OF_M = OF_M + b"\x12\x0dsignature_def"
EXAMPLES = b"\x12\x04\x0a\x02\x0a\x00"
GRPC: dict[str, dict[str, Row]] = {
    "open_inference": {f"/inference.GRPCInferenceService/{name}": row for name, row in V2_GRPC.items()},
    "tf_serving": {
        "/tensorflow.serving.PredictionService/Predict": Row(OF_MODEL, OF_M),
        "/tensorflow.serving.PredictionService/Classify": Row(OF_MODEL, OF_M + EXAMPLES),
        "/tensorflow.serving.PredictionService/Regress": Row(OF_MODEL, OF_M + EXAMPLES),
        "/tensorflow.serving.PredictionService/MultiInference": Row(CALL),
        "/tensorflow.serving.PredictionService/GetModelMetadata": Row(OF_MODEL, METADATA_OF_M),
        "/tensorflow.serving.ModelService/GetModelStatus": Row(OF_MODEL, OF_M),
        "/tensorflow.serving.ModelService/HandleReloadConfigRequest": Row(ADMIN),
    },
    "grps": {
        "/grps.protos.v1.GrpsService/Predict": Row(CALL),
        "/grps.protos.v1.GrpsService/PredictStreaming": Row(CALL),
        "/grps.protos.v1.GrpsService/Online": Row(ADMIN),
        "/grps.protos.v1.GrpsService/Offline": Row(ADMIN),
        "/grps.protos.v1.GrpsService/CheckLiveness": Row(HEALTH),
        "/grps.protos.v1.GrpsService/CheckReadiness": Row(HEALTH),
        "/grps.protos.v1.GrpsService/ServerMetadata": Row(CALL),
        "/grps.protos.v1.GrpsService/ModelMetadata": Row(CALL),
    },
    "openai": {},
}
PLACES = {"{model}": "m", "{version}": "1", "{kind}": "system", "{region}": "r"}


def request_line(address: str) -> tuple[str, str]:
    method, path = address.split(" ")
    for place, text in PLACES.items():
        path = path.replace(place, text)
    return method, path


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def basic(password: str) -> str:
    return f"Basic {base64.b64encode(f'any:{password}'.encode()).decode()}"


CREDENTIALS: dict[str, tuple[dict[str, str], str]] = {
    "none": ({}, "nobody"),
    "wrong": (bearer("wrong"), "nobody"),
    "empty": (bearer(""), "nobody"),
    "basic": ({"authorization": "Basic YTpi"}, "nobody"),
    "wrong key": ({"x-api-key": KEYS["alice"] + "x"}, "nobody"),
    "digest": (bearer(digest("alice")), "nobody"),
    "unsigned token": (bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0."), "nobody"),
    "right": (bearer(KEYS["alice"]), "alice"),
    "right key": ({"x-api-key": KEYS["alice"]}, "alice"),
    "of the file": (bearer(KEYS["other"]), "other"),
    "admin": ({"x-api-key": KEYS["root"]}, "root"),
}
PASSES, UNKNOWN, FORBIDDEN = 200, 401, 403


def expected(kind: str, who: str) -> int:
    if kind == HEALTH or who == "root":
        return PASSES
    if kind == READY:
        return PASSES if who == "alice" else FORBIDDEN
    if who == "nobody":
        return UNKNOWN
    if kind == ADMIN or (kind == OF_MODEL and who == "other"):
        return FORBIDDEN
    return PASSES


def text_of(dialect: str, body: bytes) -> str:
    """The text of an error in the dialect's own envelope."""
    document = json.loads(body)
    if dialect == "openai":
        error = document["message"] if "message" in document else document["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    if dialect != "grps":
        assert document.keys() == {"error"}
        return str(document["error"])
    assert document["status"].keys() == {"code", "msg", "status"}
    assert document["status"]["status"] == "FAILURE"
    return str(document["status"]["msg"])


def test_every_endpoint_is_listed() -> None:
    kinds = registries()
    dialects = {name: kind.make(kind.options()) for name, kind in kinds.dialects.items()}
    assert dialects.keys() == HTTP.keys() == GRPC.keys()
    for name, dialect in dialects.items():
        assert dialect.grpc.keys() == GRPC[name].keys()
        for method, endpoint in dialect.grpc.items():
            assert endpoint.admin is (GRPC[name][method].kind == ADMIN), method
        for address, row in HTTP[name].items():
            endpoint = dialect.match(*request_line(address)).endpoint
            assert endpoint.admin is (row.kind == ADMIN), address
    from tensorgate.adapters.grps.options import GrpsOptions
    from tensorgate.adapters.grps.routes import endpoints

    listed = {request_line(address)[1].partition("?")[0] for address in HTTP["grps"]} - {"/grps/v1/nothing"}
    assert listed == endpoints(GrpsOptions()).keys()


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_http(house: House, credential: str) -> None:
    shown, who = CREDENTIALS[credential]
    headers = {"Content-Type": "application/json", **shown}
    for dialect, rows in HTTP.items():
        for address, row in rows.items():
            method, path = request_line(address)
            status, told, body = await house.ask(method, path, row.body, headers)
            want = expected(row.kind, who)
            if want == PASSES:
                assert status not in (UNKNOWN, FORBIDDEN), (address, body)
                continue
            assert status == want, (address, status, body)
            text = text_of(dialect, body)
            of_credentials = "credentials" in text.lower() or "API key" in text
            assert of_credentials is (want == UNKNOWN), (address, text)
            assert ("WWW-Authenticate" in told) is (want == UNKNOWN)


STATUS = {UNKNOWN: grpc.StatusCode.UNAUTHENTICATED, FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED}


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_grpc(house: House, credential: str) -> None:
    metadata, who = CREDENTIALS[credential]
    for rows in GRPC.values():
        for method, row in rows.items():
            stream = method.endswith(("ModelStreamInfer", "PredictStreaming"))
            code, text = await house.call(method, row.body, metadata, stream)
            want = expected(row.kind, who)
            if want == PASSES:
                assert code not in STATUS.values(), (method, text)
            elif stream and want == FORBIDDEN:  # one of several questions: a message says so
                assert "is not allowed" in text
            else:
                assert code is STATUS[want], (method, code, text)


TWICE = {
    "two keys": [("authorization", f"Bearer {KEYS['alice']}"), ("authorization", f"Bearer {KEYS['root']}")],
    "one key twice": [("authorization", f"Bearer {KEYS['alice']}")] * 2,
    "a wrong one first": [("authorization", "Bearer wrong"), ("authorization", f"Bearer {KEYS['alice']}")],
    "a wrong one last": [("authorization", f"Bearer {KEYS['alice']}"), ("authorization", "Bearer wrong")],
    "in another header": [("x-api-key", KEYS["alice"]), ("x-api-key", KEYS["root"])],
}


@pytest.mark.parametrize("name", TWICE)
async def test_credentials_that_are_said_twice(name: str, house: House) -> None:
    """Whoever stands before us may have looked at the first, or at the last: so nobody is let in by either."""
    assert house.channel is not None
    for path in ("/v2", "/v1/models/m/metadata", "/grps/v1/metadata/server"):
        async with house.session.get(house.http + path, headers=TWICE[name]) as answer:
            assert answer.status == 401, path
            assert "WWW-Authenticate" in answer.headers
    method = "/inference.GRPCInferenceService/ServerMetadata"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await house.channel.unary_unary(method)(b"", metadata=TWICE[name], timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.usefixtures("nothing_left")
async def test_nothing_large_is_kept_of_strangers_over_grpc(house: House) -> None:
    """The same words as for a small message, before the large one has come."""
    method = "/inference.GRPCInferenceService/ModelInfer"
    address = house.app.addresses[1].removeprefix("grpc://")
    before = PROCESS_QUOTA.taken
    async with await h2.connect(int(address.rpartition(":")[2])) as wire:
        await wire.settled()
        small = await wire.call(method, b"")
        stream = wire.open_stream(method)
        wire.send(h2.data(stream, b"\0" + (1 << 29).to_bytes(4, "big") + bytes(1000)))
        large = await wire.answer(stream)
        assert (large.status, large.text) == (small.status, small.text)
        assert large.status == 16
        assert PROCESS_QUOTA.taken == before
        known = wire.open_stream(method, ("authorization", f"Bearer {KEYS['alice']}"))
        await wire.send_data(known, h2.message(bytes(200_000)))
        assert (await wire.answer(known)).status == 3


async def test_grps_names_its_model_in_the_message(house: House) -> None:
    message = pb.message("grps.protos.v1.GrpsMessage")(model="m-1")
    message.gtensors.tensors.add(name="x", dtype=7, shape=[1], flat_float32=[1.0])
    method = "/grps.protos.v1.GrpsService/Predict"
    assert (await house.call(method, message.SerializeToString(), bearer(KEYS["alice"])))[0] is grpc.StatusCode.OK
    code, text = await house.call(method, message.SerializeToString(), bearer(KEYS["other"]))
    assert (code, text) == (grpc.StatusCode.PERMISSION_DENIED, "Use of model m is not allowed.")


@pytest.mark.parametrize("credential", ["none", "wrong", "right"])
async def test_the_house(house: House, credential: str) -> None:
    """Pages, probes, gRPC's health and reflection."""
    headers, who = CREDENTIALS[credential]
    for path in ("/healthz", "/readyz"):
        assert (await house.ask("GET", path, headers=headers))[0] == 200
    for path in ("/metrics", "/monitoring/prometheus/metrics"):
        assert (await house.ask("GET", path, headers=headers))[0] == (200 if who == "alice" else 401)
    for path in ("/overview.json", "/models.json"):
        assert (await house.ask("GET", path, headers=headers))[0] == (403 if who == "alice" else 401)
        assert (await house.ask("GET", path, headers=bearer(KEYS["root"])))[0] == 200
    for path in ("/", "/grps/v1/monitor/metrics"):
        assert (await house.ask("GET", path, headers=headers))[0] == 200, (
            "it shows nothing by itself, and asks for a key"
        )
    code, _ = await house.call("/grpc.health.v1.Health/Check", b"", headers)
    assert code is grpc.StatusCode.OK
    for version in ("v1", "v1alpha"):
        method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        code, _ = await house.call(method, b"\x3a\x00", headers, stream=True)
        assert code is (grpc.StatusCode.OK if who == "alice" else grpc.StatusCode.UNAUTHENTICATED)


REASONS = {
    "none": (401, b'{"error": "Credentials are required"}'),
    "wrong": (401, b'{"error": "The credentials are not valid"}'),
    "right": (403, b'{"error": "This is for administrators"}'),
}


@pytest.mark.parametrize("credential", REASONS)
async def test_the_page_is_told_why(house: House, credential: str) -> None:
    """And no browser asks in its stead, for it could not ask for a token."""
    status, headers, body = await house.ask("GET", "/overview.json", headers=CREDENTIALS[credential][0])
    assert (status, body) == REASONS[credential]
    assert "Basic" not in headers.get("WWW-Authenticate", "")


async def test_browsers_show_metrics_after_asking_for_the_key(house: House) -> None:
    status, headers, _ = await house.ask("GET", "/metrics")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="tensorgate", charset="UTF-8"')
    assert (await house.ask("GET", "/metrics", headers={"Authorization": basic(KEYS["alice"])}))[0] == 200


async def test_basic_is_for_what_changes_nothing(house: House) -> None:
    right = basic(KEYS["root"])
    assert (await house.ask("GET", "/overview.json", headers={"Authorization": right}))[0] == 200
    wrong = basic(KEYS["alice"])
    assert (await house.ask("GET", "/overview.json", headers={"Authorization": wrong}))[0] == 403
    status, _, _ = await house.ask("POST", "/grps/v1/health/offline", headers={"Authorization": right})
    assert status == 401, "what browsers send by themselves changes nothing"


async def test_lists_hold_what_the_caller_may_use(house: House) -> None:
    for name, models in (("alice", {"m", "free"}), ("other", {"free"})):
        headers = bearer(KEYS[name])
        _, _, body = await house.ask("POST", "/v2/repository/index", headers=headers)
        assert {each["name"] for each in json.loads(body)} == models
        _, _, body = await house.ask("GET", "/v2/models/stats", headers=headers)
        assert {each["name"] for each in json.loads(body)["model_stats"]} == models
        _, _, body = await house.ask("GET", "/grps/v1/metadata/server", headers=headers)
        assert (b"name: m\\n" in body) is ("m" in models)
        assert b"sha256" not in body
        assert digest("alice").encode() not in body


async def test_a_large_body_of_a_stranger_is_not_waited_for(house: House) -> None:
    host, port = house.http.removeprefix("http://").split(":")
    for framing in (b"Content-Length: 50000000\r\n", b"Transfer-Encoding: chunked\r\n"):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n"
        writer.write(head + (b"20000\r\n" + b"x" * 0x20000 + b"\r\n" if b"chunked" in framing else b""))
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 401")
        writer.close()


async def test_keys_are_read_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house.app.service.authorizer._authenticator, "_look_at", 0.0)
    monkeypatch.setattr(auth, "LOOK_EVERY_S", 0.0)

    def status() -> Any:
        return house.ask("GET", "/v2/models/free", headers=bearer(KEYS["other"]))

    assert (await status())[0] == 200
    (house.folder / "keys.yaml").write_text("{broken")
    assert (await status())[0] == 200
    (house.folder / "keys.yaml").write_text("{}")
    assert (await status())[0] == 401


async def test_what_is_forbidden_may_be_hidden(tmp_path: Path) -> None:
    house = House(tmp_path, auth={**AUTH, "hide_forbidden": True})
    await house.start()
    try:
        for method, path in (
            ("GET", "/v2/models/{}"),
            ("POST", "/v2/models/{}/infer"),
            ("GET", "/v2/models/{}/versions/1"),
            ("GET", "/v2/models/{}/versions/7"),
            ("GET", "/v2/models/{}/config"),
            ("GET", "/v1/models/{}"),
            ("GET", "/v1/models/{}/labels/x"),
            ("GET", "/v1/models/{}/metadata"),
        ):
            told = []
            for name in ("m", "absentee"):
                body = V2_INFER if method == "POST" else b""
                status, _, text = await house.ask(method, path.format(name), body, bearer(KEYS["other"]))
                told.append((status, text.decode().replace(name, "m", 1)))
            assert told[0] == told[1], path
    finally:
        await house.stop()


async def test_ports_differ(tmp_path: Path) -> None:
    ports = [{"bind": "127.0.0.1:0", "name": mode, "auth": mode} for mode in ("off", "optional", "required")]
    house = House(tmp_path, listen={"http": ports})
    await house.start()
    try:
        statuses = {}
        for mode, url in zip(("off", "optional", "required"), house.app.addresses, strict=True):
            for credential in ("none", "wrong", "right"):
                headers = CREDENTIALS[credential][0]
                statuses[mode, credential] = tuple(
                    [
                        (await house.ask("GET", f"/v2/models/{name}", headers=headers, url=url))[0]
                        for name in ("free", "m")
                    ]
                )
        assert statuses == {
            ("off", "none"): (200, 403),
            ("off", "wrong"): (200, 403),
            ("off", "right"): (200, 403),
            ("optional", "none"): (200, 403),
            ("optional", "wrong"): (401, 401),
            ("optional", "right"): (200, 200),
            ("required", "none"): (401, 401),
            ("required", "wrong"): (401, 401),
            ("required", "right"): (200, 200),
        }
        for url in house.app.addresses:
            assert (await house.ask("POST", "/grps/v1/health/offline", url=url))[0] in (401, 403)
    finally:
        await house.stop()


async def test_routes_and_callers(tmp_path: Path) -> None:
    """A route that is listed decides for its models; one that is not opens none of them."""
    allow = {"m": [], "listed": ["other"]}
    to = [{"model": "free"}]
    routes = {
        "listed": [{"model": "m"}],
        "unlisted": [{"model": "m"}],
        "mine": {"match": [{"caller": "alice", "to": to}], "targets": [{"model": "m"}]},
    }
    house = House(tmp_path, auth={**AUTH, "allow": allow}, routes=routes)
    await house.start()
    try:
        for name, who, want in (
            ("m", "other", 403),
            ("listed", "other", 200),
            ("listed", "alice", 403),
            ("unlisted", "other", 403),
            ("mine", "alice", 200),
            ("mine", "other", 403),
        ):
            status, _, body = await house.ask("POST", f"/v2/models/{name}/infer", V2_INFER, bearer(KEYS[who]))
            assert status == want, (name, who, body)
    finally:
        await house.stop()


# --------------------------------------------------------------------------------------------------------------- limits


async def test_the_administrators_key_and_roles_stand_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("s3cret")
    house = House(tmp_path, admin={"header": "X-Admin-Key", "value_file": "admin"})
    await house.start()
    key = {"X-Admin-Key": "s3cret"}
    try:
        for headers, want in (
            (bearer(KEYS["root"]), 200),
            ({**bearer(KEYS["alice"]), **key}, 200),
            (bearer(KEYS["alice"]), 403),
            ({**bearer(KEYS["alice"]), "X-Admin-Key": "wrong"}, 403),
            (key, 401),
        ):
            assert (await house.ask("POST", "/grps/v1/health/offline", b"", headers))[0] == want
    finally:
        await house.stop()


async def test_rate_limits_in_every_dialect(tmp_path: Path) -> None:
    limits = [{"requests_per_second": 0.2, "burst": 1}]
    house = House(tmp_path, rate_limits=limits, auth={**AUTH, "allow": {}})
    await house.start()
    try:
        for dialect, path in (
            ("open_inference", "/v2"),
            ("tf_serving", "/v1/models/m"),
            ("grps", "/grps/v1/metadata/server"),
        ):
            name = {"open_inference": "alice", "tf_serving": "other", "grps": "root"}[dialect]
            assert (await house.ask("GET", path, headers=bearer(KEYS[name])))[0] == 200
            status, headers, body = await house.ask("GET", path, headers=bearer(KEYS[name]))
            assert (status, int(headers["Retry-After"])) == (429, 5)
            assert text_of(dialect, body).lower().startswith("too many requests, retry after 5 s")
        code, _ = await house.call("/inference.GRPCInferenceService/ServerMetadata", b"", bearer(KEYS["alice"]))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await house.ask("GET", "/v2/health/ready", headers=bearer(KEYS["alice"])))[0] == 200
    finally:
        await house.stop()


async def test_elements_are_bounded(tmp_path: Path) -> None:
    house = House(tmp_path, limits={"max_elements": 3})
    await house.start()
    try:
        for count, want in ((3, 200), (4, 400)):
            tensor = {"name": "x", "datatype": "FP32", "shape": [count], "data": [1] * count}
            body = json.dumps({"inputs": [tensor]}).encode()
            assert (await house.ask("POST", "/v2/models/m/infer", body, bearer(KEYS["alice"])))[0] == want
    finally:
        await house.stop()


async def test_connections_are_bounded(tmp_path: Path) -> None:
    house = House(tmp_path, limits={"max_connections": 2})
    await house.start()
    host, port = house.http.removeprefix("http://").split(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
    try:
        assert await asyncio.wait_for(opened[2][0].read(), 5) == b""
        for reader, writer in opened[:2]:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    finally:
        for _, writer in opened:
            writer.close()
        await house.stop()


async def test_pages_of_other_sites(tmp_path: Path) -> None:
    cors = {"origins": ["https://app.example"]}
    house = House(tmp_path, listen={"http": [{"bind": "127.0.0.1:0", "cors": cors}, {"bind": "127.0.0.1:0"}]})
    await house.start()
    asks = {"Access-Control-Request-Method": "POST"}
    try:
        for origin, url, status, allowed in (
            ("https://app.example", house.app.addresses[0], 204, "https://app.example"),
            ("https://evil.example", house.app.addresses[0], 403, None),
            ("https://app.example", house.app.addresses[1], 401, None),
        ):
            found, headers, _ = await house.ask("OPTIONS", "/v2/models/m/infer", b"", {"Origin": origin, **asks}, url)
            assert (found, headers.get("Access-Control-Allow-Origin")) == (status, allowed)
            given = {"Origin": origin, **bearer(KEYS["alice"])}
            found, headers, _ = await house.ask("POST", "/v2/models/m/infer", V2_INFER, given, url)
            assert (found, headers.get("Access-Control-Allow-Origin")) == (200, allowed)
    finally:
        await house.stop()


CHANGES = [
    ("POST", "/v2/repository/models/m/unload", 200),
    ("POST", "/v2/repository/models/m/load", 200),
    ("POST", "/v2/logging", 200),
    ("POST", "/v2/trace/setting", 200),
    ("POST", "/v2/models/m/trace/setting", 200),
    ("POST", "/v2/systemsharedmemory/unregister", 200),
    ("POST", "/v2/cudasharedmemory/region/r/unregister", 501),
    ("GET", "/grps/v1/health/offline", 200),
    ("POST", "/grps/v1/health/online", 200),
    ("POST", "/admin/reload", 404),
]
"""What changes the state, and what its callers get of a server that asks nobody for a key."""
BROWSERS: dict[str, tuple[dict[str, str], bool]] = {
    "no browser": ({}, True),
    "an image of another site": ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, False),
    "a form of another site": ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, False),
    "another port of this machine": ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"}, False),
    "a word that nobody knows": ({"Sec-Fetch-Site": "moon"}, False),
    "the page of this server": ({"Sec-Fetch-Site": "same-origin", "Origin": "http://HOST"}, True),
    "behind a proxy that changes the host": ({"Sec-Fetch-Site": "same-origin", "Origin": "https://gw.example"}, True),
    "typed by a person": ({"Sec-Fetch-Site": "none"}, True),
    "an older browser": ({"Origin": "http://evil.example"}, False),
    "an older browser, of a hidden origin": ({"Origin": "null"}, False),
    "an older browser, from this server": ({"Origin": "http://HOST"}, True),
    "an older browser, by TLS that ends before us": ({"Origin": "https://HOST"}, True),
    "an older browser, from another port": ({"Origin": "http://127.0.0.1:3"}, False),
    "an older browser, from a longer name": ({"Origin": "http://HOST.evil.example"}, False),
    "a link": ({"Referer": "http://evil.example/HOST"}, False),
    "a link of this server": ({"Referer": "http://HOST/models?x"}, True),
    "an allowed site": ({"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}, True),
    "an allowed site, by an older browser": ({"Origin": "https://app.example"}, True),
}


@pytest.mark.parametrize("lane", [True, False], ids=["lane", "aiohttp"])
async def test_pages_of_other_sites_change_nothing(tmp_path: Path, lane: bool) -> None:
    """A browser sends these requests for any page, and does not ask before; whoever is no browser notices nothing."""
    cors = {"origins": ["https://app.example", "*"]}  # that any page may read is no leave to change anything
    house = House(
        tmp_path,
        auth=None,
        listen={"http": [{"bind": "127.0.0.1:0", "cors": cors}]},
        model_control={"mode": "explicit", "load": ["*"]},
        shared_memory={"system": True},
    )
    await house.start()
    more = {} if lane else {"Expect": "100-continue"}
    try:
        for case, (headers, is_let_in) in BROWSERS.items():
            given = {name: value.replace("HOST", house.http[7:]) for name, value in headers.items()} | more
            for method, path, wanted in CHANGES:
                status, _, body = await house.ask(method, path, b"{}" if method == "POST" else b"", given)
                assert status == (wanted if is_let_in else 403), (case, path, body)
                if not is_let_in:
                    assert b"not for pages of " in body
            status, _, _ = await house.ask("GET", "/v2/models/free", b"", given)  # who only asks
            assert status == 200
            status, _, _ = await house.ask("POST", "/v2/repository/index", b"", given)
            assert status == 200
    finally:
        await house.stop()


# -------------------------------------------------------------------------------------------------------------- tokens


def token(claims: Mapping[str, Any], key: Any = SECRET, algorithm: str = "HS256", **headers: Any) -> str:
    jwt = pytest.importorskip("jwt")
    return str(jwt.encode({"iss": "https://issuer", "aud": "gate", **claims}, key, algorithm, headers=headers or None))


def b64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


async def test_tokens(tmp_path: Path) -> None:
    pytest.importorskip("jwt")
    (tmp_path / "secret").write_text(SECRET + "\n")
    jwt = {"algorithms": ["HS256"], "secret_file": "secret", "issuer": "https://issuer", "audience": "gate"}
    house = House(tmp_path, auth={**AUTH, "jwt": jwt})
    await house.start()
    now = int(time.time())
    right = {"sub": "alice", "exp": now + 60}
    cases = {
        "right": (token(right), 200),
        "role": (token({"sub": "x", "exp": now + 60, "roles": ["ops"]}), 200),
        "another caller": (token({**right, "sub": "mallory"}), 403),
        "a role as a name": (token({**right, "sub": "role:ops"}), 403),
        "expired": (token({"sub": "alice", "exp": now - 1}), 401),
        "without exp": (token({"sub": "alice"}), 401),
        "without a name": (token({"exp": now + 60}), 401),
        "another issuer": (token({**right, "iss": "https://evil"}), 401),
        "another audience": (token({**right, "aud": "x"}), 401),
        "another key": (token(right, "x" * 32), 401),
        "another algorithm": (token(right, SECRET * 2, "HS512"), 401),
        "none": (token(right, None, "none"), 401),
        "not yet": (token({**right, "nbf": now + 60}), 401),
        "a key that it names itself": (token(right, "x" * 32, kid="/dev/null", jku="http://127.0.0.1/"), 401),
        "a head that nests": (f"{b64('[' * 4000)}.e30.e30", 401),
        "a head that is no object": (f"{b64('[]')}.e30.e30", 401),
        "a key of a list": (b64('{"alg": "HS256", "kid": []}') + ".e30.e30", 401),
        "an endless life": (token({"sub": "alice", "exp": float("inf")}), 401),
        "cut": (token(right)[:-2], 401),
        "long": ("a." * 10_000, 401),
    }
    try:
        for name, (text, want) in cases.items():
            for _ in range(2):  # verified, and remembered
                if len(text) < 8000:
                    code, _ = await house.call(
                        "/inference.GRPCInferenceService/ModelMetadata", b"\x0a\x01m", bearer(text)
                    )
                    want_code = {200: grpc.StatusCode.OK, **STATUS}[want]
                    assert code is want_code, name
                status, _, body = await house.ask("GET", "/v2/models/m", headers=bearer(text))
                assert status == (400 if status == 400 and name == "long" else want), (name, body)
    finally:
        await house.stop()


NO_DATES = ["null", "true", "[]", "{}", '"soon"', '""', '"NOW"', '"1e400"', "NaN", "Infinity", "-Infinity", "1e400"]
NO_DATES += ["1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 4999, "1e300", "-1e300", str(2**53), str(2**1024)]
DATES = {
    **{
        f'"{claim}": {text[:8]} ({len(text)})': (claim, text, 401)
        for claim in ("exp", "nbf", "iat")
        for text in NO_DATES
    },
    "a float": ("exp", "NOW.5", 200),
    "far away": ("exp", "9999999999999", 200),
    "negative": ("exp", "-1", 401),
    "zero": ("exp", "0", 401),
    "before there was time": ("nbf", "-1", 200),
    "made before there was time": ("iat", "-0.5", 200),
}


@pytest.mark.parametrize("case", DATES)
async def test_dates_of_tokens_are_numbers_that_can_be_times(tmp_path: Path, case: str) -> None:
    """Over both transports, and whatever the body's size: large ones are asked about before they are read."""
    pytest.importorskip("jwt")
    (tmp_path / "secret").write_text(SECRET)
    house = House(tmp_path, auth={**AUTH, "jwt": {"algorithms": ["HS256"], "secret_file": "secret"}})
    claim, text, want = DATES[case]
    now = int(time.time()) + 60
    text = text.replace("NOW", str(now))
    claims = f'{{"sub": "alice", {"" if claim == "exp" else f"{chr(34)}exp{chr(34)}: {now}, "}"{claim}": {text}}}'
    signed = f"{b64(json.dumps({'alg': 'HS256', 'typ': 'JWT'}))}.{b64(claims)}"
    signature = base64.urlsafe_b64encode(hmac.digest(SECRET.encode(), signed.encode(), "sha256")).rstrip(b"=").decode()
    headers = bearer(f"{signed}.{signature}")
    await house.start()
    try:
        for _ in range(2):  # verified, and remembered
            assert (await house.ask("GET", "/v2/models/m", headers=headers))[0] == want
            code, _ = await house.call("/inference.GRPCInferenceService/ModelMetadata", b"\x0a\x01m", headers)
            assert code is {200: grpc.StatusCode.OK, **STATUS}[want]
        status, _, _ = await house.ask("POST", "/v2/models/m/infer", b" " * 70_000, headers)
        assert status == (401 if want == 401 else 400)
    finally:
        await house.stop()


@pytest.mark.parametrize("kind", ["pem", "jwks"])
async def test_tokens_by_public_key(tmp_path: Path, kind: str) -> None:
    jwt = pytest.importorskip("jwt")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    (tmp_path / "pem").write_bytes(pem)
    (tmp_path / "jwks").write_text(json.dumps({"keys": [{**jwk, "kid": "a", "alg": "RS256"}]}))
    source = {"pem": "public_key_file", "jwks": "jwks_file"}[kind]
    house = House(tmp_path, auth={**AUTH, "jwt": {"algorithms": ["RS256"], source: kind}})
    await house.start()
    claims = {"sub": "alice", "exp": int(time.time()) + 60}
    header = jwt.utils.base64url_encode(b'{"alg":"HS256","typ":"JWT"}')
    signed = header + b"." + jwt.utils.base64url_encode(json.dumps(claims).encode())
    confused = signed + b"." + jwt.utils.base64url_encode(hmac.digest(pem, signed, "sha256"))
    try:
        for text, want in (
            (jwt.encode(claims, private, "RS256", headers={"kid": "a"}), 200),
            (jwt.encode(claims, rsa.generate_private_key(65537, 2048), "RS256"), 401),
            (confused.decode(), 401),
        ):
            assert (await house.ask("GET", "/v2/models/m", headers=bearer(text)))[0] == want
    finally:
        await house.stop()


# ----------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "stranger_ca"):
        openssl(
            "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "2", "-subj", f"/CN={name}"
        )
    for name, alternative, authority, days in (
        ("server", "DNS:localhost,IP:127.0.0.1", "ca", "2"),
        ("next", "DNS:localhost,IP:127.0.0.1", "ca", "2"),
        ("expired", "DNS:localhost", "ca", "-1"),
        ("robot", "URI:spiffe://house/robot,DNS:robot", "ca", "2"),
        ("stranger", "DNS:robot", "stranger_ca", "2"),
    ):
        (folder / "ext").write_text(f"subjectAltName={alternative}")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signs = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-extfile", "ext")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", "-days", days, *signs)
    openssl("ec", "-in", "server.key", "-out", "locked.key", "-aes256", "-passout", "pass:x")
    return folder


def client(certificates: Path, name: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates / "ca.crt")
    if name is not None:
        context.load_cert_chain(certificates / f"{name}.crt", certificates / f"{name}.key")
    return context


async def secure_channel(address: str, certificates: Path, name: str | None) -> str:
    """What V2's metadata says to a client with this certificate."""
    files = [certificates / f"{name}.key", certificates / f"{name}.crt"] if name else []
    credentials = grpc.ssl_channel_credentials(
        (certificates / "ca.crt").read_bytes(), *[file.read_bytes() for file in files]
    )
    async with grpc.aio.secure_channel(address.removeprefix("grpcs://"), credentials) as channel:
        try:
            await channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")(b"\x0a\x01m", timeout=10)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


@pytest.mark.parametrize("client_ca", [None, "require", "verify_if_given"])
async def test_tls(tmp_path: Path, certificates: Path, client_ca: str | None) -> None:
    for name in ("server.crt", "server.key", "ca.crt"):
        shutil.copy(certificates / name, tmp_path / name)
    tls: dict[str, Any] = {"certificate": "server.crt", "key": "server.key"}
    if client_ca is not None:
        tls |= {"client_ca": "ca.crt", "client": client_ca}
    bind = "127.0.0.1:0"
    auth = {**AUTH, "certificates": True, "mode": "optional", "allow": {"m": ["spiffe://house/robot"]}}
    house = House(
        tmp_path, auth=auth, listen={"http": [{"bind": bind, "tls": tls}], "grpc": [{"bind": bind, "tls": tls}]}
    )
    await house.start()
    url, address = house.app.addresses
    try:
        caller: str | None
        for caller in (None, "robot", "stranger"):
            refused = (client_ca == "require" and caller != "robot") or (client_ca is not None and caller == "stranger")
            want = 200 if client_ca is not None and caller == "robot" else 403
            try:
                async with (
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client(certificates, caller))) as session,
                    session.get(f"{url}/v2/models/m") as answer,
                ):
                    assert (answer.status, refused) == (want, False), caller
            except aiohttp.ClientError:
                assert refused, caller
            told = await secure_channel(address, certificates, caller)
            assert told == ("UNAVAILABLE" if refused else "OK" if want == 200 else "PERMISSION_DENIED"), caller
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(url.replace("https", "http") + "/healthz")
    finally:
        await house.stop()


@pytest.mark.parametrize("body", [10, 300_000, 3_000_000])
async def test_bodies_over_tls(tmp_path: Path, certificates: Path, body: int) -> None:
    """The lane fills large bodies in place; and gives the connection to aiohttp for what is not ordinary."""
    tls = {"certificate": str(certificates / "server.crt"), "key": str(certificates / "server.key")}
    house = House(tmp_path, auth=None, listen={"http": [{"bind": "127.0.0.1:0", "tls": tls}]})
    await house.start()
    tensor = {"name": "x", "datatype": "FP32", "shape": [body // 4], "data": [1.5] * (body // 4)}
    text = json.dumps({"inputs": [tensor]}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        yield text[: len(text) // 2]
        yield text[len(text) // 2 :]

    try:
        connector = aiohttp.TCPConnector(ssl=client(certificates), limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            for data in (io.BytesIO(text), io.BytesIO(text), chunks(), io.BytesIO(text)):
                async with session.post(f"{house.http}/v2/models/m/infer", data=data) as answer:
                    outputs = (await answer.json())["outputs"]
                    assert outputs[0]["data"] == tensor["data"]
    finally:
        await house.stop()


async def test_certificates_are_read_again(tmp_path: Path, certificates: Path) -> None:
    def put(name: str) -> None:
        for kind in ("key", "crt"):
            shutil.copy(certificates / f"{name}.{kind}", tmp_path / f"now.{kind}")

    async def shown() -> str:
        _, writer = await asyncio.open_connection(host, int(port), ssl=client(certificates))
        name = dict(pair[0] for pair in writer.get_extra_info("peercert")["subject"])["commonName"]
        writer.close()
        return str(name)

    put("server")
    tls = {"certificate": "now.crt", "key": "now.key"}
    bind = "127.0.0.1:0"
    listen = {"http": [{"bind": bind, "tls": tls}], "grpc": [{"bind": bind, "tls": tls}]}
    house = House(tmp_path, auth=None, listen=listen)
    await house.start()
    host, port = house.http.removeprefix("https://").split(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port), ssl=client(certificates))
        assert await shown() == "server"
        (tmp_path / "now.key").write_text("broken")
        assert await shown() == "server"
        put("next")
        assert await shown() == "next"
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")  # on the connection from before
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        for name in ("server", "next"):
            put(name)
            pem = await asyncio.to_thread(ssl.get_server_certificate, tuple(grpc_address(house)))
            assert pem.split() == (certificates / f"{name}.crt").read_text().split()
    finally:
        await house.stop()


def grpc_address(house: House) -> tuple[str, int]:
    host, port = house.app.addresses[1].removeprefix("grpcs://").split(":")
    return host, int(port)


@pytest.mark.parametrize(
    ("certificate", "key", "text"),
    [
        ("server.crt", "next.key", "the key is not that of the certificate"),
        ("expired.crt", "expired.key", "certificate has expired"),
        ("server.key", "server.key", "not in pem form"),
        ("server.crt", "locked.key", "the key is encrypted, and keys with a password are not supported"),
        ("none.crt", "server.key", "no such file or directory"),
    ],
)
def test_certificates_that_cannot_be_used(
    tmp_path: Path, certificates: Path, certificate: str, key: str, text: str
) -> None:
    tls = {"certificate": str(certificates / certificate), "key": str(certificates / key)}
    with pytest.raises(Exception, match=r"listen\.http\[0\]\.tls") as caught:
        House(tmp_path, listen={"http": [{"bind": "127.0.0.1:0", "tls": tls}]})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"auth": {}}, "auth: nobody could call"),
        ({"auth": {"keys": {"a": {}}}}, "auth.keys.a: needs sha256 or env, one of them"),
        ({"auth": {"keys": {"a": {"env": "TEST_NO_KEY"}}}}, "the environment variable TEST_NO_KEY holds no key"),
        ({"auth": {"keys": {"a": {"key": "plain"}}}}, "auth.keys.a.key: unknown key"),
        ({"auth": {"jwt": {"algorithms": ["none"], "secret_env": "X"}}}, "auth.jwt.algorithms[0]"),
        ({"auth": {"jwt": {"algorithms": ["HS256"], "public_key_file": "keys.yaml"}}}, "HS256 needs a secret"),
        (
            {"auth": {"jwt": {"algorithms": ["HS256"], "secret_file": "keys.yaml", "jwks_file": "keys.yaml"}}},
            "one of them",
        ),
        (
            {"auth": {"jwt": {"algorithms": ["RS256"], "public_key_file": "keys.yaml"}}},
            "keys.yaml: no public key of RS256",
        ),
        ({"auth": {"jwt": {"algorithms": ["RS256"], "jwks_file": "keys.yaml"}}}, "keys.yaml: no set of JWKs"),
        ({"rate_limits": [{}]}, "needs requests_per_second"),
        ({"rate_limits": [{"concurrent": 1, "listeners": ["x"]}]}, "rate_limits[0].listeners[0]: no listener"),
        ({"rate_limits": [{"concurrent": 1, "by": "address", "callers": ["a"]}]}, "before anybody knows who calls"),
        ({"listen": {"grpc": [{"bind": "a:1", "cors": {"origins": ["*"]}}]}}, "browsers do not speak gRPC"),
    ],
)
def test_what_the_configuration_refuses(tmp_path: Path, sections: dict[str, Any], text: str) -> None:
    if "RS256" in str(sections):
        pytest.importorskip("jwt")
    with pytest.raises(Exception, match=r"gateway\.yaml") as caught:
        House(tmp_path, **sections)
    assert text in str(caught.value)


async def test_health_may_be_closed(tmp_path: Path) -> None:
    house = House(tmp_path, auth={**AUTH, "health": "closed"})
    await house.start()
    try:
        for credential, want in (("none", 401), ("right", 200)):
            headers = CREDENTIALS[credential][0]
            assert (await house.ask("GET", "/v2/health/ready", headers=headers))[0] == want
            assert (await house.ask("GET", "/readyz", headers=headers))[0] == 200
            code, _ = await house.call("/grpc.health.v1.Health/Check", b"", headers)
            assert code is (grpc.StatusCode.OK if want == 200 else grpc.StatusCode.UNAUTHENTICATED)
    finally:
        await house.stop()


async def test_connections_over_grpc_are_bounded(tmp_path: Path) -> None:
    house = House(tmp_path, limits={"max_connections": 2, "max_concurrent_streams": 1})
    await house.start()
    address = house.app.addresses[1].removeprefix("grpc://")
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    channels = [grpc.aio.insecure_channel(address, options) for _ in range(3)]
    try:
        codes = []
        for channel in channels:
            try:
                await channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=3)
                codes.append("OK")
            except grpc.aio.AioRpcError as error:
                codes.append(error.code().name)
        assert codes == ["OK", "OK", "UNAVAILABLE"]
    finally:
        for channel in channels:
            await channel.close()
        await house.stop()


async def test_openais_answers_say_what_a_limit_leaves(tmp_path: Path) -> None:
    """Good ones, refusals of what was asked, and that of the limit itself."""
    limits = [{"by": "caller", "requests_per_second": 0.001, "burst": 3}]
    house = House(tmp_path, rate_limits=limits)
    await house.start()
    try:
        told = []
        for path in ("/openai/v1/models", "/openai/v1/models/nobody", "/v1/models", "/openai/v1/models"):
            status, headers, _ = await house.ask("GET", path, headers=bearer(KEYS["alice"]))
            told.append((status, headers.get("x-ratelimit-remaining-requests")))
        assert told == [(200, "2"), (404, "1"), (200, "0"), (429, "0")]
        assert float(headers["x-ratelimit-reset-requests"].removesuffix("s")) > 900
        assert headers["Retry-After"]
        _, headers, _ = await house.ask("GET", "/v2", headers=bearer(KEYS["root"]))
        assert "x-ratelimit-remaining-requests" not in headers
    finally:
        await house.stop()
