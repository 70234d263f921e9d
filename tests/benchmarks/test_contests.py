"""The checks before anything is measured, against the real bare handler and against ones that lie."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks import binary_http, echo, json_http
from benchmarks.bare import make_app
from benchmarks.contest import CONFIGURATION, Contest
from benchmarks.servers import Failed, Server

StartServer = Callable[[web.Application], Awaitable[TestServer]]
CASES = json_http.cases()


async def check(case: str, app: web.Application, start: StartServer) -> None:
    port = (await start(app)).port
    assert port is not None
    await asyncio.to_thread(CASES[case].check, Server("bare", port, 0))


@pytest.mark.parametrize("keep_answers", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_the_bare_handler_passes(case: str, keep_answers: bool, aiohttp_server: StartServer) -> None:
    await check(case, make_app(keep_answers=keep_answers), aiohttp_server)


@pytest.mark.parametrize("case", ["v2/16", "tf_serving/16"])
@pytest.mark.parametrize("lie", ["number", "shape", "nonsense"])
async def test_a_wrong_answer_does_not(case: str, lie: str, aiohttp_server: StartServer) -> None:
    wire, array = CASES[case].wire, CASES[case].array
    wrong = {
        "number": wire.encode(np.nextafter(array, np.float32(9))),
        "shape": wire.encode(array.reshape(2, 8)),
        "nonsense": b'{"error": "no"}',
    }

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=wrong[lie])

    app = web.Application()
    app.router.add_post(wire.path, handle)
    with pytest.raises(Failed, match=f"bare, {case}"):
        await check(case, app, aiohttp_server)


def test_the_identity_is_one() -> None:
    folder = CONFIGURATION.parent
    path = yaml.safe_load(CONFIGURATION.read_text())["models"]["identity"]["path"]
    session = onnxruntime.InferenceSession(folder / path / "1/model.onnx", providers=["CPUExecutionProvider"])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], x, strict=True)
    assert Path(folder / path / "1/model.onnx").stat().st_size < 1000


CONTESTS = [json_http.CONTEST, binary_http.CONTEST]


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda contest: contest.name)
def test_contenders_have_ports_of_their_own(contest: Contest) -> None:
    bind = yaml.safe_load(CONFIGURATION.read_text())["listen"]["http"][0]["bind"]
    ports = [port for port, _ in contest.commands.values()]
    assert ports[0] == int(bind.rpartition(":")[2])
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda contest: contest.name)
def test_one_core_for_both_sides_is_refused(contest: Contest) -> None:
    with pytest.raises(Failed, match="one core"):
        replace(contest, find_load=lambda: "wrk").check_machine(
            contest.parse(["--server-core", "0", "--load-core", "0"])
        )


@pytest.mark.parametrize("case", binary_http.cases().values(), ids=lambda case: case.name)
async def test_the_echo_sends_back_what_it_got(case: binary_http.Case, aiohttp_server: StartServer) -> None:
    port = (await aiohttp_server(echo.make_app())).port
    assert port is not None
    await asyncio.to_thread(case.check, Server("echo", port, 0))
    with pytest.raises(Failed, match=r"gateway, binary/\d+: the answer is no such tensor"):
        await asyncio.to_thread(case.check, Server("gateway", port, 0))  # its echo has no such output
