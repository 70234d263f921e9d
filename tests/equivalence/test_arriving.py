"""A large call that is sent on while it arrives is answered as one that is sent on whole, byte for byte; and so is one
whose answer is sent on while it arrives.

Three servers: one that computes, one in front that takes shortcuts, and one that takes none. Between them are taps,
which count what passes and hold the rest of a call back until the server behind has seen its beginning.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
from relays import address, front
from rig import server
from serving import Gateway, demo_config
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message

pytestmark = pytest.mark.timeout(120)

COUNT: Final = 400_000
"""Numbers of 4 bytes: 1.6 MB."""
HELD_BYTES: Final = 512 << 10
"""So much of a call passes at once; of the rest a little at a time, until it may go."""
PIECE_BYTES: Final = 16 << 10
HELD_PIECE_BYTES: Final = 2 << 10
PLAIN: Final = {"plain": "cut_through", "short": "", "aiohttp": "http_fast_path"}
"""Without which shortcut each front is."""
OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
V2_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
TFS_PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"


class Tap:
    """A port that passes bytes on to another one. `hold` bytes of a connection pass as they come, and pieces of the
    rest one after the other until `let_go` is set. Of answers, `hold_back` bytes pass until then.
    """

    def __init__(self, port: int, hold: int | None = None) -> None:
        self._to = port
        self._hold = hold
        self.let_go = threading.Event()
        self.passed = self.passed_until_let_go = 0
        """Bytes towards the other port; and how many these were when the rest could go."""
        self.hold_back: int | None = None
        self.passed_back = 0
        """Bytes of answers."""
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_answers(self) -> None:
        self.let_go.clear()
        self.passed_back, self.hold_back = 0, HELD_BYTES

    def cut(self) -> None:
        """Break all connections."""
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.let_go.set()

    def close(self) -> None:
        self.let_go.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(here,), daemon=True).start()

    def _serve(self, here: socket.socket) -> None:
        with here, suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as there:
            self._open += [here, there]
            back = threading.Thread(target=self._back, args=(there, here), daemon=True)
            back.start()
            self._pass(here, there)
            back.join()

    def _pass(self, here: socket.socket, there: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while data := here.recv(PIECE_BYTES if self._hold is None or passed < self._hold else HELD_PIECE_BYTES):
                if self._hold is not None and passed >= self._hold:
                    self.let_go.wait(0.005)
                there.sendall(data)
                passed += len(data)
                self.passed += len(data)
                if not self.let_go.is_set():
                    self.passed_until_let_go = self.passed
        _end(there)

    def _back(self, there: socket.socket, here: socket.socket) -> None:
        with suppress(OSError):
            while data := there.recv(PIECE_BYTES if self.hold_back is None else HELD_PIECE_BYTES):
                if self.hold_back is not None and self.passed_back >= self.hold_back:
                    self.let_go.wait(0.05)
                here.sendall(data)
                self.passed_back += len(data)
        _end(here)


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


class World:
    """The server that computes, and both in front."""

    def __init__(self, upstream: Gateway, fronts: dict[str, Gateway], taps: dict[str, Tap]) -> None:
        self.upstream = upstream
        self.fronts = fronts
        self.taps = taps

    @contextmanager
    def slow(self, name: str, transport: str) -> Iterator[Tap]:
        """A way to a front, and to the one with shortcuts a slow one: nothing more is held back once the server behind
        has seen some of what came.
        """
        gateway = self.fronts[name]
        tap = Tap(gateway.grpc_port if transport == "grpc" else gateway.port, HELD_BYTES if name == "short" else None)
        behind = self.taps[f"{name} {transport}"]
        before = behind.passed

        def watch() -> None:
            with suppress(Exception):
                wait_until(lambda: behind.passed - before > HELD_BYTES // 2 or tap.let_go.is_set())
                tap.let_go.set()

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield tap
        finally:
            tap.close()

    def passed(self, name: str, transport: str) -> int:
        return self.taps[f"{name} {transport}"].passed


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("arriving")
    (folder / "up.yaml").write_text(demo_config({}))
    with ExitStack() as stack:
        upstream = stack.enter_context(server(folder / "up.yaml", "upstream"))
        upstream.wait_until_ready()
        fronts, taps = {}, {}
        for name in ("plain", "short", "aiohttp"):
            for transport in ("http", "grpc"):
                port = int(address(upstream, transport).rpartition(":")[2])
                taps[f"{name} {transport}"] = tap = Tap(port)
                stack.callback(tap.close)
            models = {}
            for dialect, model in (("open_inference", "half_plus_two"), ("tf_serving", "half_plus_three")):
                ports = {transport: f"127.0.0.1:{taps[f'{name} {transport}'].port}" for transport in ("http", "grpc")}
                told = {"dialect": dialect, "address": ports["grpc"], "other_address": ports["http"]}
                models[model] = {"backend": "remote", "upstream": told}
            file = folder / f"{name}.yaml"
            file.write_text(front(models))
            fronts[name] = stack.enter_context(server(file, name, PLAIN[name]))
        for each in fronts.values():
            each.wait_until_ready()
        yield World(upstream, fronts, taps)
        for each in fronts.values():
            assert "Traceback" not in each.said, each.said


# -------------------------------------------------------------------------------------------------------------- calls


def v2_http(**changes: Any) -> tuple[str, bytes, dict[str, str]]:
    """A path, a body and headers: an input as bytes."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [COUNT], "parameters": {"binary_data_size": COUNT * 4}}
    document = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}, **changes}).encode()
    body = document + np.arange(COUNT, dtype=np.float32).tobytes()
    return "/v2/models/half_plus_two/infer", body, {"Inference-Header-Content-Length": str(len(document))}


def v2_grpc(end: bytes = b"", count: int = COUNT, **changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [count]}
    contents = np.arange(count, dtype=np.float32).tobytes()
    fields: Any = {"model_name": "half_plus_two", "inputs": [tensor], "raw_input_contents": [contents], **changes}
    return bytes(message("inference.ModelInferRequest")(**fields).SerializeToString()) + end


def tfs_grpc(**changes: Any) -> bytes:
    values = np.arange(COUNT, dtype=np.float32)
    tensor = {"dtype": 1, "tensor_content": values.tobytes(), "tensor_shape": {"dim": [{"size": len(values)}]}}
    fields: Any = {"model_spec": {"name": "half_plus_three"}, "inputs": {"x": tensor}, **changes}
    return bytes(message("tensorflow.serving.PredictRequest")(**fields).SerializeToString())


def post(port: int, path: str, body: bytes, headers: dict[str, str]) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        told = {name.lower(): value for name, value in reply.getheaders()}
        return reply.status, reply.read(), told.get("content-type"), told.get("inference-header-content-length")
    finally:
        connection.close()


def ask(port: int, method: str, body: bytes, timeout: float = 60.0) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
        try:
            return channel.unary_unary(method)(body, timeout=timeout)
        except grpc.RpcError as error:
            return error.code(), error.details()


HTTP: Final[dict[str, Callable[[], tuple[str, bytes, dict[str, str]]]]] = {
    "binary": v2_http,
    "a version that is not there": lambda: ("/v2/models/half_plus_two/versions/7/infer", *v2_http()[1:]),
    "an output that is not there": lambda: v2_http(outputs=[{"name": "what"}]),
    "no document": lambda: ("/v2/models/half_plus_two/infer", b"[" * (1 << 20), {}),
}
GRPC: Final[dict[str, Callable[[], tuple[str, bytes]]]] = {
    "raw contents": lambda: (V2_INFER, v2_grpc()),
    "an id": lambda: (V2_INFER, v2_grpc(id="seven")),
    "read in a thread": lambda: (V2_INFER, v2_grpc(count=2 * COUNT)),
    "no message in the end, read in a thread": lambda: (V2_INFER, v2_grpc(end=b"\xff\xff\xff", count=2 * COUNT)),
    "a version that is not there": lambda: (V2_INFER, v2_grpc(model_version="7")),
    "too few numbers": lambda: (V2_INFER, v2_grpc(raw_input_contents=[bytes(COUNT * 4 - 4)])),
    "no message in the end": lambda: (V2_INFER, v2_grpc(end=b"\xff\xff\xff")),
    "Predict": lambda: (TFS_PREDICT, tfs_grpc()),
    "a label that is not there": lambda: (
        TFS_PREDICT,
        tfs_grpc(model_spec={"name": "half_plus_three", "version_label": "no"}),
    ),
}

ANSWERED: Final = ("raw contents", "an id", "read in a thread", "Predict")


@pytest.mark.parametrize("case", HTTP)
def test_over_http_the_answer_is_the_same(world: World, case: str) -> None:
    path, body, headers = HTTP[case]()
    found = []
    for name in ("plain", "short"):
        with world.slow(name, "http") as tap:
            found.append(post(tap.port, path, body, headers))
    assert found[0] == found[1]
    assert (found[0][0] == 200) is (case == "binary")
    assert found[0] == post(world.upstream.port, path, body, headers)


@pytest.mark.parametrize("case", GRPC)
def test_over_grpc_the_answer_is_the_same(world: World, case: str) -> None:
    method, body = GRPC[case]()
    found = []
    for name in ("plain", "short"):
        with world.slow(name, "grpc") as tap:
            found.append(ask(tap.port, method, body))
    assert found[0] == found[1]
    assert isinstance(found[0], bytes) is (case in ANSWERED)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_beginning_is_there_before_the_end_has_come(world: World, transport: str) -> None:
    body = v2_http()[1] if transport == "http" else v2_grpc()
    before = world.passed("short", transport)
    with world.slow("short", transport) as tap:
        if transport == "http":
            assert post(tap.port, *v2_http())[0] == 200
        else:
            assert isinstance(ask(tap.port, V2_INFER, body), bytes)
        assert tap.passed_until_let_go < len(body)
    assert world.passed("short", transport) - before >= len(body)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("add_sum", (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'add_sum' is not found")),
        ("half_plus_three", (grpc.StatusCode.INVALID_ARGUMENT, "the call names another model in the end")),
    ],
)
def test_the_rest_of_a_message_cannot_name_another_model(world: World, other: str, said: Any) -> None:
    labels = {"model": "half_plus_two", "method": "infer"}
    counted = world.upstream.metrics().total("tensorgate_requests_total", **labels)
    end = b"\x0a" + bytes([len(other)]) + other.encode()
    with world.slow("short", "grpc") as tap:
        code, text = ask(tap.port, V2_INFER, v2_grpc(end=end))
    assert (code, text[: len(said[1])]) == said
    assert world.upstream.metrics().total("tensorgate_requests_total", **labels) == counted


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_caller_who_leaves_in_the_middle_takes_the_call_along(world: World, transport: str) -> None:
    gateway = world.fronts["short"]
    port = gateway.grpc_port if transport == "grpc" else gateway.port
    tap = Tap(port, HELD_BYTES if transport == "http" else 0)
    behind, before = world.taps[f"short {transport}"], world.passed("short", transport)
    with socket.create_connection(("127.0.0.1", tap.port)) as caller, ExitStack() as stack:
        if transport == "http":
            path, body, headers = v2_http()
            fields = {"Host": "here", "Content-Length": str(len(body)), **headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            caller.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body[: 2 * HELD_BYTES])
        else:
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{tap.port}", OPTIONS))
            call = channel.unary_unary(V2_INFER).future(v2_grpc(), timeout=60)
        wait_until(lambda: behind.passed - before > 64 << 10)
        assert gateway.metrics().total("tensorgate_upstream_running") == 1
        if transport == "grpc":
            call.cancel()
    tap.close()
    wait_until(lambda: gateway.metrics().total("tensorgate_upstream_running") == 0)
    assert post(gateway.port, *v2_http())[0] == 200


def test_a_deadline_ends_a_call_that_still_arrives(world: World) -> None:
    gateway = world.fronts["short"]
    tap = Tap(gateway.grpc_port, 256 << 10)
    code, _ = ask(tap.port, V2_INFER, v2_grpc(), timeout=0.3)
    tap.close()
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: gateway.metrics().total("tensorgate_upstream_running") == 0)


def test_a_server_that_is_gone_while_calls_arrive(world: World, tmp_path: Path) -> None:
    """A call goes to another address with all that has come of it; where there is none, its caller is told at once."""
    (tmp_path / "up.yaml").write_text(demo_config({}))
    with server(tmp_path / "up.yaml", "gone") as gone:
        gone.wait_until_ready()
        lone = {"dialect": "open_inference", "address": address(gone, "grpc"), "other_address": address(gone, "http")}
        both = {"dialect": "tf_serving", "address": [address(gone, "grpc"), address(world.upstream, "grpc")]}
        models = {"half_plus_two": lone, "half_plus_three": both}
        (tmp_path / "front.yaml").write_text(
            front({name: {"backend": "remote", "upstream": told} for name, told in models.items()})
        )
        with server(tmp_path / "front.yaml", "front") as gateway:
            gateway.wait_until_ready()
            whole = ask(gateway.grpc_port, TFS_PREDICT, tfs_grpc())
            gone.process.kill()
            gone.process.wait()
            tap = Tap(gateway.grpc_port, HELD_BYTES)
            assert [ask(tap.port, TFS_PREDICT, tfs_grpc()) for _ in range(3)] == [whole] * 3
            code, _ = ask(tap.port, V2_INFER, v2_grpc())
            assert code is grpc.StatusCode.UNAVAILABLE
            tap.close()
            tap = Tap(gateway.port, HELD_BYTES)
            path, body, headers = v2_http()
            for _ in range(2):
                status, said, *_ = post(tap.port, path, body, headers)
                assert (status, said) == (503, b'{"error":"the upstream server cannot be reached"}')
                assert tap.passed < len(body)
            tap.close()
            assert "Traceback" not in gateway.said, gateway.said


# ------------------------------------------------------------------------------------------------------------ answers


@contextmanager
def slow_answers(world: World, name: str, transport: str) -> Iterator[tuple[Tap, Tap]]:
    """A way to a front, and the way behind it, where answers are held back."""
    gateway, behind = world.fronts[name], world.taps[f"{name} {transport}"]
    tap = Tap(gateway.grpc_port if transport == "grpc" else gateway.port)
    behind.hold_answers()
    try:
        yield tap, behind
    finally:
        behind.hold_back = None
        behind.let_go.set()
        tap.close()


def asked(port: int, transport: str, told: list[Any]) -> threading.Thread:
    """Ask in a thread, which notes what comes of it."""

    def run() -> None:
        try:
            told.append(post(port, *v2_http()) if transport == "http" else ask(port, V2_INFER, v2_grpc()))
        except Exception as error:
            told.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("name", ["short", "aiohttp"])
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_beginning_of_an_answer_is_there_before_its_end_has_come(world: World, transport: str, name: str) -> None:
    whole = world.upstream.port if transport == "http" else world.upstream.grpc_port
    direct = post(whole, *v2_http()) if transport == "http" else ask(whole, V2_INFER, v2_grpc())
    told: list[Any] = []
    with slow_answers(world, name, transport) as (tap, behind):
        thread = asked(tap.port, transport, told)
        wait_until(lambda: tap.passed_back > HELD_BYTES // 2)
        assert not behind.let_go.is_set()
        behind.let_go.set()
        thread.join()
    assert told == [direct]


@pytest.mark.parametrize(("name", "transport"), [("short", "http"), ("aiohttp", "http"), ("short", "grpc")])
def test_an_answer_that_breaks_is_none(world: World, name: str, transport: str) -> None:
    gateway = world.fronts[name]
    errors = {"code": "UNAVAILABLE", "model": "half_plus_two"}
    before = gateway.metrics().total("tensorgate_requests_total", **errors)
    told: list[Any] = []
    with slow_answers(world, name, transport) as (tap, behind):
        thread = asked(tap.port, transport, told)
        wait_until(lambda: tap.passed_back > HELD_BYTES // 2)
        behind.cut()
        thread.join()
    broken = (grpc.StatusCode.UNAVAILABLE, "the connection to the upstream server broke within the answer")
    assert told == [broken if transport == "grpc" else http.client.IncompleteRead]
    wait_until(
        lambda: gateway.metrics().total("tensorgate_requests_total", **errors) == before + 1,
        lambda: [each for each in gateway.metrics().all if each[0] == "tensorgate_requests_total"],
    )
    wait_until(lambda: gateway.get("/v2/models/half_plus_two/ready").status == 200)
    assert post(gateway.port, *v2_http())[0] == 200


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_caller_who_leaves_within_an_answer(world: World, transport: str) -> None:
    gateway = world.fronts["short"]
    told: list[Any] = []
    with slow_answers(world, "short", transport) as (tap, behind):
        thread = asked(tap.port, transport, told)
        wait_until(lambda: tap.passed_back > HELD_BYTES // 2)
        tap.cut()
        thread.join()
        labels = {"model": "half_plus_two"}
        behind.let_go.set()
    assert not isinstance(told[0], bytes)
    wait_until(lambda: not gateway.metrics().total("tensorgate_running_requests", **labels))
    assert post(gateway.port, *v2_http())[0] == 200
