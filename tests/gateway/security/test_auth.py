"""The administrator's key at the one gate: every dialect, every endpoint that needs it, both transports. And when files
of keys are read again.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorgate.gateway.app import registries
from tensorgate.gateway.config import Admin, Auth, security
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Dialect, Endpoint
from tensorgate.gateway.contract.errors import AdminRequired, Code, Unauthenticated
from tensorgate.gateway.contract.questions import ServerDescription
from tensorgate.gateway.local_engine import LocalEngine
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.security import auth
from tensorgate.gateway.security.auth import AdminKey
from tensorgate.gateway.service import Service

KEY = "pass word"
ADDRESSES = {
    "open_inference": (
        "POST /v2/repository/models/m/load",
        "POST /v2/repository/models/m/unload",
        "POST /v2/logging",
        "POST /v2/trace/setting",
        "POST /v2/models/m/trace/setting",
        "POST /v2/systemsharedmemory/region/r/register",
        "POST /v2/systemsharedmemory/region/r/unregister",
        "POST /v2/cudasharedmemory/unregister",
    ),
    "grps": ("POST /grps/v1/health/online", "GET /grps/v1/health/offline"),
    "tf_serving": (),
    "openai": (),
}
OPEN = {
    "open_inference": "GET /v2/health/live",
    "grps": "GET /grps/v1/health/live",
    "tf_serving": "OPTIONS /v1/models/m",
}
"""An address of each dialect that needs no key."""
REFUSALS = {
    ("open_inference", "http"): (403, Code.UNAVAILABLE, "This API is restricted, expecting header 'X-Admin-Key'"),
    ("open_inference", "grpc"): (403, Code.UNAVAILABLE, "This protocol is restricted, expecting header 'X-Admin-Key'"),
    ("tf_serving", "http"): (403, Code.PERMISSION_DENIED, "This API is restricted, expecting header 'X-Admin-Key'"),
    ("tf_serving", "grpc"): (403, Code.PERMISSION_DENIED, "This API is restricted, expecting header 'X-Admin-Key'"),
    ("grps", "http"): (403, Code.PERMISSION_DENIED, "This API is restricted, expecting header X-Admin-Key."),
    ("grps", "grpc"): (403, Code.PERMISSION_DENIED, "This API is restricted, expecting header X-Admin-Key."),
}


def dialects() -> dict[str, Dialect]:
    return {name: kind.make(kind.options()) for name, kind in registries().dialects.items()}


def restricted() -> Iterator[tuple[str, str, Endpoint]]:
    """(dialect, transport, endpoint) for all that need the key: HTTP by address, gRPC by the tables themselves."""
    for name, dialect in dialects().items():
        for address in ADDRESSES[name]:
            yield name, "http", dialect.match(*address.split(" ")).endpoint
        yield from ((name, "grpc", endpoint) for endpoint in dialect.grpc.values() if endpoint.admin)


class Asked:
    """A repository that only notes what it was asked for."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.all_available = lambda: True

    async def load(self, name: str, configuration: Any, files: Any) -> None:
        self.done.append(f"load {name}")

    async def unload(self, name: str, dependents: bool) -> None:
        self.done.append(f"unload {name}")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)
    config: Any = SimpleNamespace(readiness="lenient", expose_model_errors=True, routes={})
    repository: Any = Asked()
    router: Any = SimpleNamespace(
        resolve=None,
        resolver=lambda call: None,
        discovers=False,
        check_forward=lambda call, ref: None,
        forwarded=lambda kind, named: None,
        named=lambda call: ("", ""),
        names=tuple,
        is_public=lambda name: False,
    )
    service = Service(config, LocalEngine(repository, router), MetricsCollector(), ServerDescription("t", "1"))
    service.admin = AdminKey(Admin(header="X-Admin-Key", value_env="TEST_ADMIN_KEY"))
    return service


def answer(service: Service, dialect: str, endpoint: Endpoint, transport: Any, headers: dict[str, str]) -> Reply:
    replies: list[Reply] = []

    async def send(reply: Reply) -> None:
        replies.append(reply)

    call = Call(b"", "POST", endpoint.address, headers, transport, {"model": "m"})
    asyncio.run(service.handle(dialect, endpoint, call, send))
    return replies[0]


CASES = [pytest.param(*case, id=f"{case[0]} {case[1]} {case[2].address}") for case in restricted()]
WRONG = [{}, {"x-admin-key": ""}, {"x-admin-key": "wrong"}, {"x-admin-key": KEY + " "}, {"x-admin-keys": KEY}]


@pytest.mark.parametrize(("dialect", "transport", "endpoint"), CASES)
def test_calls_without_the_key_are_refused_unread(
    service: Service, dialect: str, transport: str, endpoint: Endpoint
) -> None:
    assert endpoint.admin
    for headers in WRONG:
        reply = answer(service, dialect, endpoint, transport, headers)
        status, code, message = REFUSALS[dialect, transport]
        assert (reply.grpc_code, reply.message) == (code, message)
        assert transport == "grpc" or reply.http_status == status
    engine: Any = service._engine
    assert (engine._repository.done, service.online) == ([], False)


@pytest.mark.parametrize(("dialect", "transport", "endpoint"), CASES)
def test_calls_with_the_key_pass(service: Service, dialect: str, transport: str, endpoint: Endpoint) -> None:
    """What becomes of an empty body is the endpoint's to say."""
    refused = REFUSALS[dialect, transport][2]
    assert answer(service, dialect, endpoint, transport, {"x-admin-key": KEY}).message != refused
    service.admin = None
    assert answer(service, dialect, endpoint, transport, {}).message != refused


@pytest.mark.parametrize("dialect", OPEN)
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_refusal_of_every_dialect_and_transport(dialect: str, transport: Any) -> None:
    endpoint = dialects()[dialect].match(*OPEN[dialect].split(" ")).endpoint
    assert not endpoint.admin
    call = Call(b"", "GET", "/", {}, transport)
    if dialect == "tf_serving":
        endpoint = dialects()[dialect].match("GET", "/v1/models/m").endpoint
    reply = endpoint.encode_error(AdminRequired("X-Admin-Key"), call)
    assert (reply.http_status, reply.grpc_code, reply.message) == REFUSALS[dialect, transport]


def test_the_key_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    admin = Admin.model_validate_json(f'{{"header": "X-Admin-Key", "value_file": "{tmp_path / "key"}"}}')
    key = AdminKey(admin)
    key.check({"x-admin-key": KEY})
    with pytest.raises(AdminRequired) as caught:
        key.check({"x-admin-key": "p\udcffss"})
    assert KEY not in repr((admin, key, caught.value))


class KeysFile:
    """A file of keys and an Authenticator that looks at it with each call; `stamp` is what the file system says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, stamp_ns: int) -> None:
        monkeypatch.setattr(auth, "LOOK_EVERY_S", 0.0)
        monkeypatch.setattr(auth.Authenticator, "_stamps", lambda authenticator: ((1, 2, 3, self.stamp_ns),))
        self.stamp_ns = stamp_ns
        self.path = folder / "keys.yaml"
        self.write("one")
        clock = itertools.count()
        settings = Auth.model_validate({"keys_file": "keys.yaml"}, context=folder / "gateway.yaml")
        self.authenticator = auth.Authenticator(settings, lambda: float(next(clock)))

    def write(self, key: str) -> None:
        self.path.write_text(f"caller: {{sha256: {sha256(key.encode()).hexdigest()}}}")

    def knows(self, key: str) -> bool:
        try:
            return self.authenticator.key(key).name == "caller"
        except Unauthenticated:
            return False


def test_a_rotation_within_one_tick_of_the_clock_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = KeysFile(tmp_path, monkeypatch, time.time_ns())
    assert file.knows("one")
    file.write("two")
    assert (file.knows("two"), file.knows("one")) == (True, False)


def test_files_of_which_nothing_new_is_said_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = KeysFile(tmp_path, monkeypatch, 1)
    file.write("two")
    assert (file.knows("two"), file.knows("one")) == (False, True)
    file.stamp_ns = 2
    assert (file.knows("two"), file.knows("one")) == (True, False)


def test_a_change_while_keys_are_read_is_found_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = KeysFile(tmp_path, monkeypatch, 1)
    read_keys = security.read_keys

    def read_and_rotate(path: Path) -> Any:
        found = read_keys(path)
        monkeypatch.setattr(security, "read_keys", read_keys)
        file.write("three")
        file.stamp_ns = 3
        return found

    monkeypatch.setattr(security, "read_keys", read_and_rotate)
    file.write("two")
    file.stamp_ns = 2
    assert file.knows("two")
    assert file.knows("three")


def test_what_could_not_be_read_is_read_at_the_next_look_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = KeysFile(tmp_path, monkeypatch, 1)
    file.stamp_ns = 2
    file.path.write_text("{broken")
    assert file.knows("one")
    assert file.knows("one")
    assert caplog.text.count("the keys from before stay") == 1
    file.write("two")  # the rest of the same change, which leaves no other stamp
    assert file.knows("two")
