"""What Triton's own examples of model control do, done by tritonclient.http itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checks
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

NAME = "comes_and_goes"
MODELS = Path(__file__).parents[3] / "config/demo/models"


def connect(address: str) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(address, network_timeout=20)


def raised(call: Callable[[], object]) -> tuple[str, str]:
    error = checks.raised(InferenceServerException, call)
    return error.status(), error.message()


def halved(client: triton.InferenceServerClient, value: float = 4.0) -> float:
    """What the model makes of a number: x / 2 + 2, or + 3 where the other model's file took its place."""
    x = triton.InferInput("x", [1], "FP32")
    x.set_data_from_numpy(np.array([value], np.float32))
    return float(client.infer(NAME, [x]).as_numpy("y")[0])


def entries(client: triton.InferenceServerClient) -> list[dict[str, str]]:
    return [entry for entry in client.get_model_repository_index() if entry["name"] == NAME]


def until_unloaded(client: triton.InferenceServerClient) -> None:
    """An unload is answered before it has ended."""
    unloaded = [{"name": NAME, "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
    checks.wait_until(lambda: entries(client) == unloaded, lambda: entries(client))


def check_the_extension_is_announced(address: str) -> None:
    extensions = connect(address).get_server_metadata()["extensions"]
    assert {"model_repository", "model_repository(unload_dependents)"} <= set(extensions)


def check_unload_and_load(address: str) -> None:
    client = connect(address)
    assert client.is_model_ready(NAME)
    assert halved(client) == 4.0
    client.unload_model(NAME)
    assert not client.is_model_ready(NAME)
    assert client.is_server_ready()
    status, text = raised(lambda: halved(client))
    assert (status, text) == ("404", f"Request for unknown model: '{NAME}' has no available versions")
    until_unloaded(client)
    client.load_model(NAME)
    assert client.is_model_ready(NAME)
    assert halved(client) == 4.0
    assert entries(client) == [{"name": NAME, "version": "1", "state": "READY"}]


def check_load_anew_and_unload_with_dependents(address: str) -> None:
    client = connect(address)
    client.load_model(NAME)
    assert halved(client) == 4.0
    client.unload_model(NAME, unload_dependents=True)
    client.unload_model(NAME)
    until_unloaded(client)
    client.load_model(NAME)
    assert client.is_model_ready(NAME, "1")


def check_load_with_another_configuration(address: str) -> None:
    client = connect(address)
    client.load_model("add_sub", config=json.dumps({"max_batch_size": "2"}))
    inputs = [triton.InferInput(name, [3, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(np.ones((3, 16), np.int32))
    status, text = raised(lambda: client.infer("add_sub", inputs))
    assert (status, "must be <= 2" in text) == ("400", True), text
    client.load_model("add_sub")  # it stands, as long as nothing of the model has changed
    assert raised(lambda: client.infer("add_sub", inputs))[0] == "400"
    client.unload_model("add_sub")
    checks.wait_until(lambda: not client.is_model_ready("add_sub"), lambda: client.get_model_repository_index())
    client.load_model("add_sub")
    assert client.infer("add_sub", inputs).as_numpy("OUTPUT0").sum() == 96


def check_load_with_files(address: str) -> None:
    client = connect(address)
    content = (MODELS / "half_plus_three/123/model.onnx").read_bytes()
    config = '{"backend": "onnxruntime", "version_policy": {"specific": {"versions": [7]}}}'
    client.load_model(NAME, config=config, files={"file:7/model.onnx": content})
    assert client.is_model_ready(NAME, "7")
    assert not client.is_model_ready(NAME, "1")
    assert halved(client) == 5.0
    client.load_model(NAME)
    assert halved(client) == 4.0
    assert not client.is_model_ready(NAME, "7")


def check_errors(address: str) -> None:
    client = connect(address)
    wrong: list[tuple[str, dict[str, Any], str, str]] = [
        ("absent", {}, "500", "failed to load 'absent', failed to poll from model repository"),
        (NAME, {"config": "{"}, "400", f"failed to load '{NAME}', "),
        (NAME, {"config": '{"max_batch_size": "x"}'}, "400", f"failed to load '{NAME}', "),
        (NAME, {"files": {"file:1/model.onnx": b"x"}}, "400", "config"),
        (NAME, {"config": "{}", "files": {"file:../x": b"x"}}, "400", "does not lie below"),
        (
            NAME,
            {"config": "{}", "files": {"file:1/model.onnx": b"rubbish"}},
            "400",
            f"load failed for model '{NAME}': version 1 is at UNAVAILABLE state: ",
        ),
    ]
    for name, options, want, part in wrong:
        status, text = raised(lambda name=name, options=options: client.load_model(name, **options))  # type: ignore[misc]
        assert (status, part in text) == (want, True), text
        assert "/" not in text.replace("../x", ""), text
    client.unload_model("absent")
    assert halved(client) == 4.0


if __name__ == "__main__":
    checks.main(globals())
