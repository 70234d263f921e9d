"""The checks before gRPC is measured, against the real bare handler and against ones that lie, and h2load's words."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks import grpc_bare, grpc_bytes, grpc_infer, grpc_wires
from benchmarks.h2load import find_h2load, read_round
from benchmarks.servers import Failed, Server
from benchmarks.wrk import Round

CASES = grpc_infer.cases()
StartServer = Callable[[Any], Awaitable[int]]


@pytest.fixture
async def start() -> AsyncIterator[StartServer]:
    """handlers -> the port where they answer"""
    servers: list[Any] = []

    async def started(handlers: Any) -> int:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((handlers,))
        port: int = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        return port

    yield started
    for server in servers:
        await server.stop(0)


@pytest.mark.parametrize("case", CASES)
async def test_the_bare_handler_passes(case: str, start: StartServer) -> None:
    port = await start(grpc_bytes.Handlers(grpc_bare.METHODS))
    assert await asyncio.to_thread(grpc_infer.is_ready, port)
    size = await asyncio.to_thread(CASES[case].check, Server("bare", port, 0))
    assert size > CASES[case].array.nbytes


@pytest.mark.parametrize("lie", ["number", "shape", "failure"])
async def test_a_wrong_answer_does_not(lie: str, start: StartServer) -> None:
    case = CASES["raw/16"]
    shape = (2, 8) if lie == "shape" else case.array.shape
    data = case.array if lie == "shape" else np.nextafter(case.array, np.float32(9))
    answer = grpc_wires.INFER_RESPONSE(outputs=[{"name": "y", "datatype": "FP32", "shape": shape}])
    answer.raw_output_contents.append(data.tobytes())

    async def infer(body: bytes, context: Any) -> bytes:
        if lie == "failure":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        return bytes(answer.SerializeToString())

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(infer)

    port = await start(Handlers())
    with pytest.raises(Failed, match="NOT_FOUND" if lie == "failure" else "bare, raw/16"):
        await asyncio.to_thread(case.check, Server("bare", port, 0))


def test_every_float_arrives_as_it_left() -> None:
    row = np.array([[1.5, -0.0, 1e-45, np.inf]], np.float32)
    answers = {grpc_wires.INFER: grpc_wires.infer_answer, grpc_wires.PREDICT: grpc_wires.predict_answer}
    for wire in grpc_wires.WIRES:
        assert wire.read(answers[wire.method](wire.request(row))).tobytes() == row.tobytes()


def test_contenders_have_ports_of_their_own() -> None:
    ports = [port for port, _ in grpc_infer.commands().values()]
    assert ports[0] == 18001
    assert len(set(ports)) == len(ports)


def test_one_core_for_both_sides_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.grpc_infer.find_h2load", lambda: "h2load")
    with pytest.raises(Failed, match="one core"):
        grpc_infer.check_machine(grpc_infer.parse(["--server-core", "0", "--load-core", "0"]))


def output(done: int = 200, succeeded: int = 200, failed: int = 0, data: int = 200 * 105) -> str:
    return (
        "finished in 2.00s, 100.00 req/s, 1.00MB/s\n"
        f"requests: {done} total, {done} started, {done} done, {succeeded} succeeded, {failed} failed, 0 errored, "
        "0 timeout\n"
        f"traffic: 1.00MB (1048576) total, 5.00KB (5000) headers (space savings 90.00%), 1.00MB ({data}) data\n"
    )


LOG = "".join(f"1700000000000000\t200\t{100 + number}\n" for number in range(200))


def test_figures() -> None:
    found = read_round(output(), LOG, 105, 40_000.0, "gateway")
    assert found == Round(100.0, pytest.approx(199.5), pytest.approx(297.99), 200.0)


@pytest.mark.parametrize(
    ("said", "log", "why"),
    [
        (output(succeeded=199), LOG, "did not answer everything well"),
        (output(failed=1), LOG, "did not answer everything well"),
        (output(data=200 * 10), LOG, "answers of 10 bytes, not of 105"),
        (output(), "", "next to nothing"),
        ("h2load: cannot connect", LOG, "nothing that can be read"),
    ],
)
def test_what_is_no_measurement_ends_the_comparison(said: str, log: str, why: str) -> None:
    with pytest.raises(Failed, match=why):
        read_round(said, log, 105, 1.0, "gateway")


def test_a_missing_h2load_comes_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Failed, match="apt install nghttp2-client"):
        find_h2load()
