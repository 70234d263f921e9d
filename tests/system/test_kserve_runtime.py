"""What KServe starts of deploy/kubernetes/kserve: its arguments, with the InferenceService's name and what its storage
has put into /mnt/models.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployment import DEPLOY
from serving import DEMO, started

RUNTIMES = {
    each["metadata"]["name"]: each["spec"]
    for each in yaml.safe_load_all((DEPLOY / "kubernetes/kserve/runtime.yaml").read_text())
}
MODEL = DEMO.parent / "demo/models/half_plus_two/1/model.onnx"
STORAGES = {
    "a file": "net.onnx",
    "the usual file": "model.onnx",
    "versions": "1/model.onnx",
    "a Triton repository": "half/1/model.onnx",
}


def arguments(name: str, model: str, storage: Path) -> list[str]:
    (container,) = RUNTIMES[name]["containers"]
    words = [word.replace("{{.Name}}", model).replace("/mnt/models", str(storage)) for word in container["args"]]
    assert words.pop(0) == "serve"
    ports = {word.partition("=")[0] for word in words if "-port=" in word}
    assert ports == {"--http-port", "--grpc-port", "--metrics-port"}
    return [f"{word.partition('=')[0]}=0" if "-port=" in word else word for word in words]


@pytest.mark.parametrize("file", STORAGES.values(), ids=STORAGES)
def test_an_inference_service_answers_under_its_name(file: str, tmp_path: Path) -> None:
    target = tmp_path / "models" / file
    target.parent.mkdir(parents=True)
    shutil.copyfile(MODEL, target)
    with started(tmp_path / "log", *arguments("tensorgate", "half", tmp_path / "models")) as gateway:
        gateway.wait_until_ready()
        for path in ("/v2/models/half/ready", "/v2/models/half"):
            assert gateway.get(path).status == 200
        answer = gateway.post("/v1/models/half:predict", {"instances": [1.0, 2.0]})
        assert (answer.status, answer.json) == (200, {"predictions": [2.5, 3.0]})
        assert gateway.stop() == 0


def formats(name: str) -> set[Any]:
    return {each["name"] for each in RUNTIMES[name]["supportedModelFormats"]}


def test_the_runtimes_differ_only_in_formats_and_image() -> None:
    assert {name: formats(name) for name in RUNTIMES} == {
        "tensorgate": {"onnx", "triton"},
        "tensorgate-tensorflow": {"tensorflow"},
    }
    plain, other = (
        {**spec, "supportedModelFormats": 0, "containers": [{**spec["containers"][0], "image": ""}]}
        for spec in RUNTIMES.values()
    )
    assert plain == other
