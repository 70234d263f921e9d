"""What `import tensorgate` gives: names that are there, imported late, and a gateway inside another program."""

import ast
import asyncio
import inspect
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

import tensorgate
from tensorgate import ConfigError, GatewayError, ModelContext, PythonModel, Server
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.errors.base import Worded

ROOT = Path(__file__).parent.parent
MODEL = """
from tensorgate import Exhausted, InvalidArgument, ModelContext, ModelRequest

class Double:
    def __init__(self, context: ModelContext) -> None:
        self.most = context.parameters["most"]

    def infer(self, inputs, request: ModelRequest):
        if (inputs["x"] < 0).any():
            raise InvalidArgument("x is below 0")
        if (inputs["x"] > self.most).any():
            raise Exhausted("x is too much")
        return {"y": inputs["x"] * 2}
"""


def test_importing_it_imports_nothing() -> None:
    code = "import sys; before = {*sys.modules}; import tensorgate; print(sorted({*sys.modules} - before))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "['tensorgate']"


def test_errors_are_imported_without_any_library() -> None:
    code = (
        "import sys; from tensorgate import InvalidArgument; print({'numpy', 'pydantic', 'aiohttp'} & {*sys.modules})"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


def test_every_name_is_there_and_says_what_it_is() -> None:
    tree = ast.parse(Path(tensorgate.__file__).read_text())
    typed = {name.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {*dir(tensorgate)} == typed - {None}
    for name in dir(tensorgate):
        assert inspect.getdoc(getattr(tensorgate, name)), name
    with pytest.raises(AttributeError, match="'tensorgate' has no attribute 'Absent'"):
        _ = tensorgate.Absent  # type: ignore[attr-defined]


def test_every_error_with_a_text_of_its_own_is_among_them() -> None:
    """But for one that only a dialect can mean."""
    worded = {kind.__name__ for kind in errors.kinds() if Worded in kind.__bases__} - {"EncodingFailed"}
    found = {name: getattr(tensorgate, name) for name in dir(tensorgate)}
    public = {name for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, GatewayError)}
    assert public == worded | {"GatewayError"}


def test_a_class_is_a_model() -> None:
    class Echo:
        def __init__(self, context: ModelContext) -> None:
            pass

        def infer(self, inputs: Any, request: Any) -> Any:
            return inputs

    model: PythonModel = Echo(ModelContext("m", 1, ROOT, "cpu", None, {}))
    assert model.infer({}, None) == {}


# -------------------------------------------------------------------------------------------------------------- server


def ask(url: str, x: float) -> tuple[int, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}
    body = json.dumps({"inputs": [tensor]}).encode()
    try:
        with urllib.request.urlopen(f"{url}/v2/models/double/infer", body) as answer:  # noqa: S310
            return answer.status, json.load(answer)["outputs"][0]["data"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error).get("error")


def assert_ended(threads: set[threading.Thread]) -> None:
    """Threads of a pool that was told to end may take a moment for it."""
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), thread


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "models.py").write_text(MODEL)
    tensors = {
        key: [{"name": name, "datatype": "FP32", "shape": [1]}] for key, name in (("inputs", "x"), ("outputs", "y"))
    }
    path = f"{tmp_path}/models.py:Double"
    return {"models": {"double": {"backend": "python", "path": path, "parameters": {"most": 100}, **tensors}}}


def test_a_server_answers_where_it_is_entered(config: dict[str, Any]) -> None:
    threads = {*threading.enumerate()}
    with Server(config) as server:
        assert ask(server.url, 4) == (200, [8.0])
        assert ask(server.url, -1) == (400, "x is below 0")
        assert ask(server.url, 101) == (429, "x is too much")
        url = server.url
    with pytest.raises(urllib.error.URLError):
        ask(url, 1)
    assert_ended({*threading.enumerate()} - threads)


def test_a_server_may_be_entered_again_and_beside_others(config: dict[str, Any]) -> None:
    server = Server(config)
    for _ in range(2):
        with server, Server(yaml.safe_dump(config)) as other:
            assert (ask(server.url, 1), ask(other.url, 2)) == ((200, [2.0]), (200, [4.0]))
            assert server.url != other.url


async def test_a_server_runs_beside_a_loop_as_in_a_notebook(config: dict[str, Any]) -> None:
    with Server(config) as server:
        assert ask(server.url, 1) == (200, [2.0])
    async with Server(config) as server, grpc.aio.insecure_channel(server.grpc_address) as channel:
        live = await channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"")
        assert message("inference.ServerReadyResponse").FromString(live).ready
        assert await asyncio.to_thread(ask, server.url, 3) == (200, [6.0])


def test_a_file_keeps_what_it_says_of_ports_but_for_their_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    listen = {
        "http": [{"bind": "0.0.0.0:8000", "dialects": ["grps"]}, {"bind": "0.0.0.0:8080"}],
        "grpc": [{"bind": "0.0.0.0:8001"}],
        "metrics": {"bind": "0.0.0.0:8002"},
    }
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({**config, "listen": listen}))
    with Server(file) as one, Server(file) as two:
        assert len({one.url, two.url, one.grpc_address, two.grpc_address}) == 4
        assert ask(one.url, 1)[0] == 404


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"backend": "absent"}, ConfigError, "models.double.backend"),
        ({"parameters": {}}, RuntimeError, "FAILED double version 1: KeyError: 'most'"),
    ],
)
def test_what_is_wrong_is_raised(
    config: dict[str, Any], change: dict[str, Any], error: type[Exception], text: str
) -> None:
    config["models"]["double"].update(change)
    threads = {*threading.enumerate()}
    with pytest.raises(error, match=text), Server(config):
        raise AssertionError("it was entered")
    assert_ended({*threading.enumerate()} - threads)
