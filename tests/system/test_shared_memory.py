"""Shared memory against a running gateway: off unless allowed, and what a hostile or careless owner does to it."""

import base64
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Answer, Gateway, demo_config, running
from waiting import wait_until

SHM = Path("/dev/shm")  # noqa: S108
PAGE = 4096
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
SLOW = """\
import time
class Slow:
    def __init__(self, context):
        self.go = context.path / "go"
    def infer(self, inputs, request):
        while not self.go.exists():
            time.sleep(0.01)
        return {"x": inputs["x"] + 1}
"""


@pytest.fixture
def make_file() -> Iterator[Callable[..., Path]]:
    made: list[Path] = []

    def make(content: bytes = bytes(PAGE)) -> Path:
        made.append(SHM / f"tensorgate-test-{uuid.uuid4().hex}")
        made[-1].write_bytes(content)
        made[-1].chmod(0o600)
        return made[-1]

    yield make
    for path in made:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The demo with a slow model, sharing memory; it has to survive everything."""
    folder = tmp_path_factory.mktemp("sharing")
    (folder / "slow.py").write_text(SLOW)
    x = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    slow = {"backend": "python", "path": f"{folder / 'slow.py'}:Slow", "inputs": x, "outputs": x}
    file = folder / "sharing.yaml"
    file.write_text(demo_config({"slow": slow}, shared_memory={"system": True, "max_regions": 100}))
    with running(file) as gateway:
        yield gateway
        assert gateway.stop() == 0, gateway.said
        assert "Traceback" not in gateway.said_itself, gateway.said


def register(gateway: Gateway, name: str, key: str, byte_size: int = PAGE, offset: int = 0) -> Answer:
    body = {"key": key, "byte_size": byte_size, "offset": offset}
    return gateway.post(f"/v2/systemsharedmemory/region/{name}/register", body)


def unregister(gateway: Gateway, name: str = "") -> Answer:
    return gateway.request("POST", f"/v2/systemsharedmemory{f'/region/{name}' if name else ''}/unregister")


def infer(gateway: Gateway, model: str, count: int, source: str, target: str | None, output: str = "y") -> Answer:
    def at(name: str) -> dict[str, Any]:
        return {"shared_memory_region": name, "shared_memory_byte_size": 4 * count}

    tensor = {"name": "x", "datatype": "FP32", "shape": [count], "parameters": at(source)}
    outputs = [{"name": output, "parameters": at(target)}] if target else []
    return gateway.post(f"/v2/models/{model}/infer", {"inputs": [tensor], "outputs": outputs})


def mapped(gateway: Gateway, file: Path) -> bool:
    return any(file.name in Path(f"/proc/{pid}/maps").read_text() for pid in gateway.pids())


def outcome(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.json["error"] if answer.body else None


# ----------------------------------------------------------------------------------------------------------- allowed?


def test_off_unless_it_is_allowed(demo: Gateway, make_file: Any) -> None:
    file = make_file()
    assert outcome(register(demo, "r", file.name)) == (501, DISABLED)
    assert outcome(unregister(demo, "r")) == (501, DISABLED)
    cuda = {"raw_handle": {"b64": base64.b64encode(bytes(64)).decode()}, "device_id": 0, "byte_size": 64}
    assert outcome(demo.post("/v2/cudasharedmemory/region/r/register", cuda)) == (501, DISABLED)
    for kind in ("system", "cuda"):
        done = demo.request("POST", f"/v2/{kind}sharedmemory/unregister")
        assert (done.status, done.body) == (200, b""), "clients begin with it"
        assert demo.get(f"/v2/{kind}sharedmemory/status").json == []
        unknown = demo.get(f"/v2/{kind}sharedmemory/region/r/status")
        assert outcome(unknown) == (404, f"Unable to find {kind} shared memory region: 'r'")
    assert outcome(infer(demo, "half_plus_two", 4, "r", None)) == (404, "Unable to find shared memory region: 'r'")
    assert not mapped(demo, file)
    assert not [name for name in demo.get("/v2").json["extensions"] if "memory" in name]


def test_a_gpus_memory_without_a_gpu(serve: Any) -> None:
    gateway = serve(demo_config(shared_memory={"cuda": True}))
    body = {"raw_handle": {"b64": base64.b64encode(bytes(64)).decode()}, "device_id": 0, "byte_size": 64}
    answer = gateway.post("/v2/cudasharedmemory/region/r/register", body)
    if "cuda_shared_memory" in gateway.get("/v2").json["extensions"]:
        assert answer.status == 400
    else:
        no_gpu = "failed to register CUDA shared memory region: 'r', GPUs not supported"
        assert outcome(answer) == (400, no_gpu)
    for path in ("/v2/cudasharedmemory/region/r/unregister", "/v2/cudasharedmemory/unregister"):
        assert gateway.request("POST", path).status == 200


# ------------------------------------------------------------------------------------------------------------ attacks


def test_keys_lead_nowhere_else(sharing: Gateway, make_file: Any) -> None:
    link = make_file()
    link.unlink()
    link.symlink_to("/etc/passwd")
    for key in ("/../../etc/passwd", "/etc/passwd", "..", "/", "", f"/{link.name}", "a\0b", "x" * 300):
        status, text = outcome(register(sharing, "r", key, 1))
        assert (status, text) == (500, f"Unable to open shared memory region: '{key}'")
    assert sharing.get("/v2/systemsharedmemory/status").json == []


def test_a_file_that_is_cut_ends_nothing(sharing: Gateway, make_file: Any) -> None:
    file = make_file(bytes(64 * PAGE))
    assert register(sharing, "cut", file.name, 64 * PAGE).status == 200
    assert infer(sharing, "half_plus_two", 16 * PAGE, "cut", "cut").status == 200
    os.truncate(file, 0)
    refused = (400, "Invalid offset + byte size for shared memory region: 'cut'")
    assert outcome(infer(sharing, "half_plus_two", 16 * PAGE, "cut", None)) == refused
    assert sharing.get("/v2/health/live").status == 200
    assert unregister(sharing).status == 200


def test_a_region_forgotten_while_a_model_reads_it(sharing: Gateway, make_file: Any) -> None:
    x = np.arange(PAGE, dtype=np.float32)
    source, target = make_file(x.tobytes()), make_file(bytes(x.nbytes))
    for name, file in (("in", source), ("out", target)):
        assert register(sharing, name, file.name, x.nbytes).status == 200
    answers: list[Answer] = []
    slow = threading.Thread(target=lambda: answers.append(infer(sharing, "slow", PAGE, "in", "out", "x")))
    slow.start()
    wait_until(lambda: sharing.metrics().total("tensorgate_running_requests", model="slow"))
    assert unregister(sharing).status == 200
    for file in (source, target):
        assert mapped(sharing, file)
        file.unlink()
    assert infer(sharing, "slow", PAGE, "in", "out", "x").status == 404
    with_new = make_file(bytes(x.nbytes))
    assert register(sharing, "out", with_new.name, x.nbytes).status == 200
    (sharing.log.parent / "go").touch()
    slow.join()
    assert answers[0].status == 200, answers[0].body
    assert with_new.read_bytes() == bytes(x.nbytes), "what is registered now is not what was named then"
    wait_until(lambda: sharing.get("/v2/health/live") and not (mapped(sharing, source) or mapped(sharing, target)))
    assert unregister(sharing).status == 200


def test_regions_are_bounded_and_leave_nothing_behind(sharing: Gateway, make_file: Any) -> None:
    file = make_file()
    for _ in range(5):
        statuses = [register(sharing, f"r{number}", file.name).status for number in range(110)]
        assert statuses == [200] * 100 + [503] * 10
        assert len(sharing.get("/v2/systemsharedmemory/status").json) == 100
        assert unregister(sharing).status == 200
    assert not mapped(sharing, file)
    files = [entry.resolve() for pid in sharing.pids() for entry in Path(f"/proc/{pid}/fd").iterdir()]
    assert file not in files


def test_numbers_beyond_every_integer(sharing: Gateway, make_file: Any) -> None:
    file = make_file()
    for byte_size, offset in ((2**64 - 1, 0), (1, 2**64 - 1), (2**63, 2**63), (PAGE + 1, 0)):
        answer = register(sharing, "big", file.name, byte_size, offset)
        assert outcome(answer) == (400, "failed to register shared memory region 'big': invalid args")
    assert outcome(register(sharing, "big", file.name, 0, 0)) == (500, f"Invalid shared memory region: '{file.name}'")
    assert register(sharing, "small", file.name).status == 200
    for byte_size, offset, what in (
        (2**64 - 1, 1, "offset + byte size"),
        (4, 2**64 - 1, "offset"),
        (2**63, 2**63, "offset"),
    ):
        where = {
            "shared_memory_region": "small",
            "shared_memory_byte_size": byte_size,
            "shared_memory_offset": offset,
        }
        tensor = {"name": "x", "datatype": "FP32", "shape": [10**12], "parameters": where}
        answer = sharing.post("/v2/models/half_plus_two/infer", {"inputs": [tensor]})
        assert outcome(answer) == (400, f"Invalid {what} for shared memory region: 'small'")
    assert unregister(sharing).status == 200


def test_memory_that_changes_while_it_is_read(sharing: Gateway, make_file: Any) -> None:
    """Lengths of texts that change all the time: any answer is right that is one, and none harms the server."""
    good = b"\x04\0\0\0abcd" * 500
    file = make_file(good)
    assert register(sharing, "words", file.name, len(good)).status == 200
    over = threading.Event()

    def change() -> None:
        numbers = np.random.default_rng(1)
        with file.open("r+b", buffering=0) as memory:
            while not over.is_set():
                memory.seek(int(numbers.integers(0, len(good))))
                memory.write(numbers.bytes(1))
                memory.seek(0)
                memory.write(good)

    changing = threading.Thread(target=change)
    changing.start()
    where = {"shared_memory_region": "words", "shared_memory_byte_size": len(good)}
    tensor = {"name": "text", "datatype": "BYTES", "shape": [500], "parameters": where}
    try:
        statuses = {sharing.post("/v2/models/upper/infer", {"inputs": [tensor]}).status for _ in range(100)}
    finally:
        over.set()
        changing.join()
    assert statuses <= {200, 400}
    assert unregister(sharing).status == 200
