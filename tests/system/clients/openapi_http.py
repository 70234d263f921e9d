"""Clients that openapi-python-client generates from the documents of the API: every function is the generator's."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import checks
import requests
from openapi_spec_validator import validate

FOLDER = Path(tempfile.mkdtemp())
DARK = [[0.0] * 8] * 8


def document(address: str, target: str) -> Any:
    return requests.get(f"http://{address}{target}", timeout=10).json()


@cache
def generated(address: str, name: str, target: str) -> Any:
    """The package of a document, all of which the generator has understood."""
    file, settings = FOLDER / f"{name}.json", FOLDER / "settings.yaml"
    file.write_text(json.dumps(document(address, target)))
    settings.write_text("post_hooks: []\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", file, "--meta", "none"]
    options = ["--output-path", FOLDER / name, "--config", settings]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert "Warning" not in done.stdout, done.stdout
    sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


def call(address: str, name: str, dialect: str, operation: str, target: str = "", **arguments: Any) -> Any:
    """What a function of the generated client returns."""
    package = generated(address, name, target or f"/openapi.json?model={name}")
    module = importlib.import_module(f"{name}.api.{dialect}.{operation}")
    client = package.Client(base_url=f"http://{address}", raise_on_unexpected_status=True)
    return module.sync(client=client, **arguments)


def models(name: str) -> Any:
    return importlib.import_module(f"{name}.models")


def check_documents_are_valid(address: str) -> None:
    """The server's has every model; those of one have what only they have, a version and a dialect."""
    for target in ("/openapi.json", "/openapi.json?model=writer", "/v2/models/digits/versions/2/openapi.json"):
        validate(document(address, target))


def check_infer(address: str) -> None:
    generated(address, "digits", "/openapi.json?model=digits")
    made = models("digits")
    image = made.DigitsInputImage(name="image", datatype="FP32", shape=[1, 8, 8], data=[0.0] * 64)
    answer = call(
        address, "digits", "open_inference_v2", "infer_digits", body=made.DigitsInferRequest(inputs=[image], id="7")
    )
    (scores,) = answer.outputs
    assert (answer.id, answer.model_name, scores.name, scores.shape) == ("7", "digits", "scores", [1, 10])
    assert abs(sum(scores.data) - 1) < 1e-5
    image.shape, image.data = [1, 8, 9], [0.0] * 72
    refused = call(address, "digits", "open_inference_v2", "infer_digits", body=made.DigitsInferRequest(inputs=[image]))
    assert "digits" in refused.error


def check_predict(address: str) -> None:
    generated(address, "digits", "/openapi.json?model=digits")
    made = models("digits")
    rows = call(
        address, "digits", "tensor_flow_serving", "predict_digits", body=made.DigitsPredictRows(instances=[DARK] * 2)
    )
    assert [len(row) for row in rows.predictions] == [10, 10]
    columns = call(
        address, "digits", "tensor_flow_serving", "predict_digits", body=made.DigitsPredictColumns(inputs=[DARK])
    )
    assert abs(sum(columns.outputs[0]) - 1) < 1e-5
    (status, *_) = call(address, "digits", "tensor_flow_serving", "model_version_status_digits").model_version_status
    assert status.state.value == "AVAILABLE"


def check_grps(address: str) -> None:
    generated(address, "digits", "/openapi.json?model=digits")
    made = models("digits")
    answer = call(
        address,
        "digits",
        "grps",
        "predict_grps_digits",
        body=made.DigitsGrpsArray(ndarray=[DARK]),
        return_ndarray=True,
    )
    assert (answer.status.status.value, len(answer.ndarray[0])) == ("SUCCESS", 10)


def check_generate(address: str) -> None:
    generated(address, "writer", "/openapi.json?model=writer")
    body = models("writer").WriterGenerateRequest(text_input="In the beginning")
    body.additional_properties = {"max_tokens": 4}
    answer = call(address, "writer", "open_inference_v2", "generate_writer", body=body)
    assert answer.text_output.startswith(" ")


def check_the_whole_server(address: str) -> None:
    def ask(dialect: str, operation: str, **arguments: Any) -> Any:
        return call(address, "whole", dialect, operation, "/openapi.json", **arguments)

    assert ask("open_inference_v2", "server_ready").ready
    assert "digits" in ask("open_inference_v2", "model_list").models
    assert ask("open_inference_v2", "model_metadata", model="digits").inputs[0].shape == [-1, 8, 8]
    assert ask("open_inference_v2", "model_ready_of_version", model="digits", version="1").ready
    assert "unknown model" in ask("open_inference_v2", "model_config", model="nobody").error
    assert ask("grps", "health_live_by_get").status.code == 200


if __name__ == "__main__":
    checks.main(globals())
