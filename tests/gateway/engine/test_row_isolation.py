"""Every caller gets its rows and only its rows, or its own error: whatever others do at the same time.

Models compute row by row, and every row carries a number that nobody else has. Who asks, in which form, with how many
rows, how urgently, and who sends what the model refuses, leaves, is late, reads slowly, or has the model loaded anew
meanwhile, is up to hypothesis. ROW_ISOLATION_EXAMPLES asks for more worlds than usual, and others each time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_forms import FORMS, Form, Refused
from onnx import TensorProto, helper
from waiting import steps

from tensorgate.backends.remote import http1_client
from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.upstream import Ask, Description, UpstreamModel

EXAMPLES = int(os.environ.get("ROW_ISOLATION_EXAMPLES", "0"))
WITHIN_S = 20.0
MAX_BATCH = 8
STREAMED = 40  # as PYTHON says
PRIORITIES = ("v2 binary", "v2 grpc raw")
"""Forms that can say how urgent they are."""

PYTHON = """
import time
import numpy as np

class Rows:
    def __init__(self, context):
        self.by = context.parameters["by"]

    def infer(self, inputs, request):
        x = inputs["x"]
        time.sleep(float(x[:, 1].max()) / 1e6)
        refused = x[x[:, 2] < 0]
        if len(refused):
            raise ValueError(f"refused {refused[0, 0]}")
        return {"y": x * self.by, "first": x[:, 0]}

class Stream:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        x = inputs["x"]
        for number in range(40):
            if x[0, 2] < 0 and number == 3:
                raise ValueError(f"refused {x[0, 0]}")
            yield {"y": x + number, "first": x[:, 0]}
"""


@dataclass(frozen=True, slots=True)
class Action:
    """What one caller does. `wait_us` is how long the model takes over it, `after_ms` when it comes, `lasts_ms` how
    long it stays if it leaves, or how long it has if it is late.
    """

    model: str
    form: str
    rows: int
    kind: Literal["asks", "refused", "leaves", "late", "reads slowly", "streams", "streams and leaves", "reloads"]
    wait_us: int
    after_ms: int
    lasts_ms: int
    priority: int


BY = {"times": 3, "plain": 7, "alone": 5, "onnx": 2}
actions = st.builds(
    Action,
    st.sampled_from(sorted(BY)),
    st.sampled_from(sorted(FORMS)),
    st.integers(1, MAX_BATCH),
    st.sampled_from(
        ["asks"] * 12
        + ["refused", "refused", "leaves", "late", "reads slowly", "streams", "streams and leaves", "reloads"]
    ),
    st.sampled_from([0, 0, 0, 200, 2000]),
    st.integers(0, 6),
    st.integers(0, 8),
    st.integers(0, 3),
)


class World:
    """A gateway in this process, and what callers know of it."""

    def __init__(self, folder: Path) -> None:
        (folder / "rows.py").write_text(PYTHON)
        _write_onnx(folder / "onnx/1")
        self.folder = folder
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        file = self.folder / "gateway.yaml"
        file.write_text(json.dumps(_config()))
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)
        await self.app.start()
        failed: list[str] = []
        await self.app.load(lambda report: failed.append(report.error) if report.error else None)
        assert failed == []
        addresses = dict(address.split("://") for address in self.app.addresses)
        self.port = int(addresses["http"].rpartition(":")[2])
        self.http = HttpConnection(addresses["http"], 1 << 20)
        self.grpc = GrpcConnection(addresses["grpc"], 1 << 20)

    async def stop(self) -> None:
        await self.http.close()
        await self.grpc.close()
        assert await self.app.drain()

    async def run(self, world: list[Action]) -> None:
        """Everybody at once; whoever got what it should not have says so."""
        async with asyncio.timeout(WITHIN_S):
            wrong = await asyncio.gather(*[self._act(action) for action in world])
        assert [line for line in wrong if line] == []
        for name in (*BY, "stream"):
            handle: Any = self.view(name).handle
            assert handle.queued == 0

    def view(self, name: str) -> ModelView:
        return self.app.router.resolve(ModelRef(name))

    async def _act(self, action: Action) -> str:
        await steps(int(action.after_ms))
        try:
            return await _KINDS[action.kind](self, action)
        except Exception as error:  # whoever fails must not end the others' wait
            return f"{action}: {error!r}"

    # ----------------------------------------------------------------------------------------------------- what they do

    async def asks(self, action: Action) -> str:
        x = self._rows(action)
        return _judge(action, x, await self._answer(action, x))

    async def refused(self, action: Action) -> str:
        """Only the Python models refuse anything; the words name the number of the first row that they did not like."""
        x = self._rows(action, refused=action.model != "onnx")
        answer = await self._answer(action, x)
        if action.model == "onnx":
            return _judge(action, x, answer)
        if isinstance(answer, Exception) and f"refused {x[x[:, 2] < 0][0, 0]}" in str(answer):
            return ""
        return f"{action}: its own refusal wanted, but {answer!r}"

    async def leaves(self, action: Action) -> str:
        x = self._rows(action)
        task = asyncio.create_task(self._answer(action, x))
        done, _ = await asyncio.wait({task}, timeout=action.lasts_ms / 1e3)
        task.cancel()
        return _judge(action, x, task.result()) if done else ""

    async def late(self, action: Action) -> str:
        x = self._rows(action)
        answer = await self._answer(action, x, max(1, action.lasts_ms) / 1e3)
        if isinstance(answer, TimeoutError) or (isinstance(answer, Exception) and _is_late(str(answer))):
            return ""
        return _judge(action, x, answer)

    async def reads_slowly(self, action: Action) -> str:
        """An HTTP caller who takes its answer in pieces, over a connection of its own."""
        form = FORMS["v2 json"]
        x = self._rows(action)
        ask = form.encode(self.view(action.model), {"x": x})
        body = b"".join(map(bytes, ask.body))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"POST {ask.target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1]) for line in head.lower().splitlines() if line.startswith(b"content-length")
        )
        answer = b""
        while len(answer) < size:
            await steps(int(action.lasts_ms))
            answer += await reader.read(50)
        writer.close()
        await writer.wait_closed()
        outputs = {
            item["name"]: np.array(item["data"]).reshape(item["shape"]) for item in json.loads(answer)["outputs"]
        }
        return _judge(action, x, outputs)

    async def streams(self, action: Action) -> str:
        return await self._stream(action, STREAMED)

    async def streams_and_leaves(self, action: Action) -> str:
        return await self._stream(action, action.lasts_ms)

    async def _stream(self, action: Action, most: int) -> str:
        """One caller in four is refused in the middle, and all of them read slowly."""
        x = self._rows(action, refused=action.rows % 4 == 0)[:1]
        view = self.view("stream")
        make: Any = registries().client("open_inference", "grpc")
        client = make(UpstreamModel("stream"))
        description = Description(tuple(view.inputs.values()), tuple(view.outputs.values()), decoupled=True)
        ask = client.encode({"x": x}, tuple(view.outputs), InferRequest(view, {"x": x}), description, stream=True)
        number = 0
        replies = self.grpc.stream(ask, WITHIN_S)
        try:
            async for reply in replies:
                outputs = client.decode_part(reply, description).outputs
                if outputs and not _same(outputs, x + number, x):
                    return f"{action}: answer {number} is {outputs}, not of {x}"
                number += bool(outputs)
                if number >= most:
                    return ""
                await steps(int(action.lasts_ms))
        except GatewayError as error:
            own = x[0, 2] < 0 and number == 3 and f"refused {x[0, 0]}" in str(error)
            return "" if own else f"{action}: {error!r} after {number} answers to {x}"
        finally:
            await replies.aclose()
        return f"{action}: {number} answers, and no more"

    async def reloads(self, action: Action) -> str:
        """Who is in the middle of it keeps its rows; who comes then gets the new model, which is the same."""
        reply = await self.http.call(Ask(f"/v2/repository/models/{action.model}/load"), WITHIN_S)
        return "" if reply.http_status == 200 else f"{action}: {reply}"

    # ------------------------------------------------------------------------------------------------------------ means

    def _rows(self, action: Action, *, refused: bool = False) -> Any:
        """[rows, 3]: a number that is this row's alone, the time it takes, and below 0 what the model refuses."""
        x = np.zeros((action.rows, 3), np.int64)
        x[:, 0] = [next(self._numbers) for _ in range(action.rows)]
        x[:, 1] = action.wait_us
        if refused:
            x[action.rows // 2 :, 2] = -1
        return x

    async def _answer(self, action: Action, x: Any, seconds: float = WITHIN_S) -> Any:
        """The outputs by name, or what was said instead."""
        form: Form = FORMS[action.form]
        facts = {"priority": action.priority} if form.name in PRIORITIES else {}
        view = self.view(action.model)
        connection = self.http if form.transport == "http" else self.grpc
        try:
            return form.decode(await connection.call(form.encode(view, {"x": x}, **facts), seconds), view)
        except (GatewayError, Refused, TimeoutError) as error:
            return error


_KINDS: dict[str, Callable[[World, Action], Awaitable[str]]] = {
    "asks": World.asks,
    "refused": World.refused,
    "leaves": World.leaves,
    "late": World.late,
    "reads slowly": World.reads_slowly,
    "streams": World.streams,
    "streams and leaves": World.streams_and_leaves,
    "reloads": World.reloads,
}


def _judge(action: Action, x: Any, answer: Any) -> str:
    if isinstance(answer, Exception):
        return f"{action}: {answer!r} to {x.tolist()}"
    return "" if _same(answer, x * BY[action.model], x) else f"{action}: {answer} to {x.tolist()}"


def _same(outputs: Any, y: Any, x: Any) -> bool:
    return np.array_equal(outputs["y"], y) and np.array_equal(outputs["first"], x[:, 0])


def _is_late(text: str) -> bool:
    return any(word in text.lower() for word in ("deadline", "timeout", "timed out", "time"))


def _config() -> dict[str, Any]:
    x = {"name": "x", "datatype": "INT64", "shape": [-1, 3]}
    outputs = [{**x, "name": "y"}, {"name": "first", "datatype": "INT64", "shape": [-1]}]
    python = {"backend": "python", "path": "rows.py:Rows", "inputs": [x], "outputs": outputs}
    urgent = {"priorities": {"levels": 3, "default": 2}, "max_queue_size": 4096}
    batched = {"max_batch_size": MAX_BATCH, "max_queue_size": 4096}
    models = {
        "times": {**python, **batched, **urgent, "parameters": {"by": BY["times"]}, "max_queue_delay_us": 1500},
        "plain": {**python, **batched, "parameters": {"by": BY["plain"]}, "instances": 2},
        "alone": {**python, "parameters": {"by": BY["alone"]}, "max_queue_size": 4096},
        "onnx": {"backend": "onnx", "path": "onnx", "intra_op_threads": 1, **batched, **urgent},
        "stream": {**python, "path": "rows.py:Stream", "max_queue_size": 4096},
    }
    bind = [{"bind": "127.0.0.1:0"}]
    return {
        "models": models,
        "listen": {"http": bind, "grpc": bind},
        "model_control": {"mode": "explicit", "load": ["*"]},
        "drain_seconds": 5,
    }


def _write_onnx(folder: Path) -> None:
    """y = 2 x, first = column 0 of x."""
    folder.mkdir(parents=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 3]) for name in ("x", "y"))
    first = helper.make_tensor_value_info("first", TensorProto.INT64, ["n"])
    nodes = [
        helper.make_node("Mul", ["x", "by"], ["y"]),
        helper.make_node("Gather", ["x", "zero"], ["first"], axis=1),
    ]
    constants = [
        helper.make_tensor("by", TensorProto.INT64, [1], [BY["onnx"]]),
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
    ]
    graph = helper.make_graph(nodes, "rows", [x], [y, first], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list[Action]], None]]:
    """One gateway for all examples: what one leaves behind, the next would meet."""
    world = World(tmp_path_factory.mktemp("rows"))
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patched:
        # A loop that others keep from running for a second takes its own connection for one that cannot be made.
        patched.setattr(http1_client, "CONNECTS_WITHIN_S", WITHIN_S)
        runner.run(world.start())
        yield lambda actions: runner.run(world.run(actions))
        runner.run(world.stop())


@settings(
    max_examples=EXAMPLES or 40,
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(actions, min_size=5, max_size=50))
def test_everybody_gets_their_own(run: Callable[[list[Action]], None], world: list[Action]) -> None:
    run(world)
