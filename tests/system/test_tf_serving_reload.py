"""Versions rolled out by TensorFlow Serving's own call while the real command serves: nothing is lost on the way."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf import text_format
from serving import DEMO, HOST, Gateway, running
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message

PACKAGE = "tensorflow.serving"
MODELS = DEMO.parent / "demo/models"
SLOW = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            time.sleep(1)

        def execute(self, requests):
            x = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each)]) for each in x]
"""
ANY = {"datatype": "FP32", "shape": [-1]}
ALL = "model_version_policy { all {} }"


class Caller:
    """A client of a gateway over both transports, with reloads of its models below one folder."""

    def __init__(self, gateway: Gateway, channel: grpc.Channel, roots: Path) -> None:
        self.gateway = gateway
        self.roots = roots
        self._channel = channel

    def ask(self, service: str, method: str, request: str, response: str, text: str) -> Any:
        call = self._channel.unary_unary(
            f"/{PACKAGE}.{service}/{method}",
            lambda asked: asked.SerializeToString(),
            message(f"{PACKAGE}.{response}").FromString,
        )
        return call(text_format.Parse(text, message(f"{PACKAGE}.{request}")()), timeout=20)

    def reload(self, **models: str) -> str:
        """Name = what its entry has beside platform and path -> "" or the error's code and text."""
        entries = " ".join(
            f'config {{ name: "{name}" base_path: "{self.roots / name}" model_platform: "tensorflow" {more} }}'
            for name, more in models.items()
        )
        text = f"config {{ model_config_list {{ {entries} }} }}"
        try:
            self.ask("ModelService", "HandleReloadConfigRequest", "ReloadConfigRequest", "ReloadConfigResponse", text)
        except grpc.RpcError as error:
            refused: Any = error
            return f"{refused.code().name}: {refused.details()}"
        return ""

    def states(self, name: str) -> dict[int, str]:
        """Version -> state, highest first, as REST and gRPC tell it."""
        versions = self.gateway.get(f"/v1/models/{name}").json["model_version_status"]
        return {int(each["version"]): each["state"] for each in versions}

    def over_grpc(self, name: str, choice: str) -> tuple[float, int]:
        """y of 4.0, and the version that answered."""
        tensor = "dtype: DT_FLOAT tensor_shape { dim { size: 1 } } float_val: 4"
        text = f'model_spec {{ name: "{name}" {choice} }} inputs {{ key: "x" value {{ {tensor} }} }}'
        answer = self.ask("PredictionService", "Predict", "PredictRequest", "PredictResponse", text)
        return answer.outputs["y"].float_val[0], answer.model_spec.version.value

    def over_http(self, address: str) -> float:
        answer = self.gateway.post(f"/v1/models/{address}:predict", {"instances": [4.0]})
        assert answer.status == 200, answer.body
        return float(answer.json["predictions"][0])

    def until(self, what: Callable[[], bool]) -> None:
        wait_until(what, lambda: self.gateway.said)


def add(folder: Path, model: str) -> None:
    folder.mkdir(parents=True)
    (file,) = (MODELS / model).glob("*/model.onnx")
    shutil.copy(file, folder / "model.onnx")


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """The model `half` in version 1 (y = x / 2 + 2) and 2 (+ 3); `slow`, which takes a second to load."""
    folder = tmp_path_factory.mktemp("reload")
    add(folder / "roots/half/1", "half_plus_two")
    add(folder / "roots/half/00000002", "half_plus_three")
    for version in (1, 2):
        (folder / f"roots/slow/{version}").mkdir(parents=True)
        (folder / f"roots/slow/{version}/model.py").write_text(dedent(SLOW))
    slow = {"backend": "triton_python", "path": "roots/slow", "versions": [1]}
    config = {
        "listen": {"http": [{"bind": f"{HOST}:0"}], "grpc": [{"bind": f"{HOST}:0"}]},
        "models": {
            "half": {"backend": "onnx", "path": "roots/half", "versions": [1], "labels": {"stable": 1}},
            "slow": slow | {"inputs": [{"name": "x"} | ANY], "outputs": [{"name": "y"} | ANY]},
        },
        "model_control": {"mode": "explicit", "load": ["half", "slow"], "model_roots": ["roots"]},
    }
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config))
    with running(folder / "gateway.yaml") as gateway, grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        yield Caller(gateway, channel, folder / "roots")
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said_itself


def test_every_state_is_seen(caller: Caller) -> None:
    """A version that loads slowly beside one that serves, in the order of the rollout."""
    assert caller.states("slow") == {1: "AVAILABLE"}
    both = "model_version_policy { specific { versions: 1 versions: 2 } }"
    assert caller.reload(half="", slow=both) == ""
    caller.until(lambda: 2 in caller.states("slow"))
    assert caller.states("slow") == {2: "LOADING", 1: "AVAILABLE"}
    assert caller.over_grpc("slow", "") == (4.0, 1)
    caller.until(lambda: caller.states("slow") == {2: "AVAILABLE", 1: "AVAILABLE"})
    assert caller.over_grpc("slow", "version { value: 1 }") == (4.0, 1)
    assert caller.reload(half="", slow="model_version_policy { specific { versions: 2 } }") == ""
    caller.until(lambda: caller.states("slow") == {2: "AVAILABLE", 1: "END"})
    assert caller.reload(half="") == ""
    caller.until(lambda: caller.states("slow") == {2: "END", 1: "END"})
    answer = caller.gateway.post("/v1/models/slow:predict", {"instances": [1.0]})
    assert (answer.status, answer.json) == (404, {"error": "Servable not found for request: Latest(slow)"})


def test_nothing_is_lost_while_versions_and_labels_change(caller: Caller) -> None:
    """Six callers, three a transport, ask for the latest version and for a label through thirty reloads."""
    versions = {1: 4.0, 2: 5.0}
    assert caller.reload(half=ALL) == ""
    caller.until(lambda: caller.states("half") == {2: "AVAILABLE", 1: "AVAILABLE"})
    label = 'version_labels {{ key: "stable" value: {} }}'
    assert caller.reload(half=ALL + label.format(1)) == ""
    done = threading.Event()

    def latest_over_http() -> int:
        return count(lambda: caller.over_http("half") in versions.values())

    def stable_over_http() -> int:
        return count(lambda: caller.over_http("half/labels/stable") in versions.values())

    def latest_over_grpc() -> int:
        return count(lambda: caller.over_grpc("half", "") in {(y, version) for version, y in versions.items()})

    def stable_over_grpc() -> int:
        choice = 'version_label: "stable"'
        return count(lambda: caller.over_grpc("half", choice) in {(y, version) for version, y in versions.items()})

    def count(asked: Callable[[], bool]) -> int:
        right = 0
        while not done.is_set():
            assert asked()
            right += 1
        return right

    with ThreadPoolExecutor(6) as threads:
        kinds = (latest_over_http, stable_over_http, latest_over_grpc, stable_over_grpc, latest_over_http)
        running = [threads.submit(kind) for kind in (*kinds, stable_over_grpc)]
        try:
            for turn in range(10):
                version = 1 + turn % 2
                assert caller.reload(half=ALL + label.format(version)) == ""  # it flips, at once, for everybody
                assert caller.over_http("half/labels/stable") == versions[version]
                assert caller.over_grpc("half", 'version_label: "stable"') == (versions[version], version)
                only = f"model_version_policy {{ specific {{ versions: {version} }} }}"
                assert caller.reload(half=only + label.format(version)) == ""
                caller.until(lambda version=version: caller.states("half")[3 - version] == "END")
                assert caller.reload(half=ALL + label.format(version)) == ""
                caller.until(lambda: set(caller.states("half").values()) == {"AVAILABLE"})
        finally:
            done.set()
        assert min(each.result() for each in running) > 10


def test_a_version_that_fails_keeps_the_one_that_serves(caller: Caller) -> None:
    (caller.roots / "half/3").mkdir()
    (caller.roots / "half/3/model.onnx").write_bytes(b"no model")
    assert caller.reload(half="") == ""
    caller.until(lambda: caller.states("half").get(3) == "END")
    assert caller.over_grpc("half", "") == (5.0, 2)
    (failed,) = caller.gateway.get("/v1/models/half/versions/3").json["model_version_status"]
    assert failed["status"]["error_code"] != "OK"
    assert "model.onnx" in failed["status"]["error_message"]
    assert "/" not in failed["status"]["error_message"]
    label = 'version_labels { key: "stable" value: 3 }'
    assert caller.reload(half=label) == (
        "FAILED_PRECONDITION: Request to assign label to version 3 of model half, which is not currently available for "
        "inference"
    )


def test_a_new_model_is_there_when_the_call_returns(caller: Caller) -> None:
    add(caller.roots / "fresh/1", "half_plus_two")
    assert caller.reload(half="", fresh="") == ""
    assert caller.over_grpc("fresh", "") == (4.0, 1)
    assert caller.over_http("fresh") == 4.0
    assert caller.reload(half="", fresh="", **{"../../elsewhere": ""}).startswith(
        "INVALID_ARGUMENT: Model ../../elsewhere cannot be loaded: "
    )
    assert caller.over_http("fresh") == 4.0
