"""MLServer's own tests of its endpoints, unmodified, against this gateway, in .venv-mlserver.

Its conftest.py files get one more line each, which names the gateway: see mlserver_addresses.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from client_scripts import environment
from serving import HOST, ROOT, running

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-mlserver/bin/python"
VARIABLE = "MLSERVER_SOURCES"
HERE = Path(__file__).parent
RUNS_WITHIN_S = 300.0
MODULES = ("rest/test_endpoints.py", "grpc/test_servicers.py", "grpc/test_model_repository.py")
REST = "rest.test_endpoints.test"
GRPC = "grpc.test_servicers.test"
STREAMED = "text_stream_model-text_stream_model_settings-settings_stream"
VERSIONS = "versions are numbers: v1.2.3 is none, as for Triton"
DIFFERENT = {
    **dict.fromkeys(
        (
            f"{REST}_model_ready",
            f"{REST}_infer[sum-model-v1.2.3]",
            f"{REST}_generate[text-model-v1.2.3-text_model]",
            f"{GRPC}_model_ready",
            f"{GRPC}_model_metadata",
            f"{GRPC}_model_infer[sum-model-v1.2.3]",
            f"{GRPC}_model_infer_raw_contents",
            f"{GRPC}_model_stream_infer[text-stream-model-v1.2.3-{STREAMED}]",
        ),
        VERSIONS,
    ),
    **dict.fromkeys(
        (
            f"{REST}_infer_error[infer]",
            f"{REST}_infer_error[generate]",
            f"{REST}_model_repository_load_error",
            f"{REST}_infer_invalid_datatype_error",
            f"{GRPC}_model_infer_error",
            f"{GRPC}_model_repository_load_error",
            f"{GRPC}_infer_invalid_datatype_error",
        ),
        "unknown models, versions and datatypes are refused with Triton's status and words",
    ),
    **dict.fromkeys(
        (
            f"{REST}_docs",
            *(
                f"{REST}_model_{kind}[sum-model-{version}]"
                for kind in ("openapi", "docs")
                for version in ("v1.2.3", None)
            ),
        ),
        "the API is described at /v2/docs, /openapi.json and /v2/models/NAME/openapi.json",
    ),
    **dict.fromkeys(
        (f"{REST}_metadata", f"{GRPC}_server_metadata"), "the version is the gateway's, and extensions are named"
    ),
    **dict.fromkeys(
        (
            f"{REST}_generate[text-model-None-text_model]",
            f"{REST}_generate_stream[generate_stream-text_stream_model-settings_stream]",
        ),
        "generate takes Triton's body, tensors by their names, and not an inference request",
    ),
    f"{REST}_generate_stream[infer_stream-text_stream_model-settings_stream]": "there is no infer_stream over HTTP",
    f"{GRPC}_model_stream_infer[text-stream-model-None-{STREAMED}]": "messages of streams are Triton's",
    f"{REST}_model_metadata": "the platform is the backend's, and inputs are those that are checked",
    f"{GRPC}_model_infer[sum-model-None]": "tensors over gRPC are answered raw, as Triton does",
    f"{GRPC}_model_stream_infer_error[{STREAMED}]": "an error of a stream is a message of it, as for Triton",
    **dict.fromkeys(
        (f"{REST}_infer_headers", f"{GRPC}_model_infer_headers"),
        "models set no headers, and answers have none of CloudEvents",
    ),
    **dict.fromkeys(
        (
            f"grpc.test_model_repository.test_model_repository_{each}"
            for each in ("index", "unload", "load", "load_error")
        ),
        "MLServer's own, deprecated service of a repository: GRPCInferenceService has these calls",
    ),
}
"""Test -> why the gateway does something else, on purpose."""


def model(kind: str, inputs: dict[str, object], outputs: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "backend": "python",
        "path": f"{HERE / 'mlserver_models.py'}:{kind}",
        "max_batch_size": 0,
        "inputs": [inputs],
        "outputs": [outputs],
        **more,
    }


PROMPT = {"name": "prompt", "datatype": "BYTES", "shape": [-1, -1]}
OUTPUT = {"name": "output", "datatype": "BYTES", "shape": [-1]}
SUM = {
    "sum-model": model(
        "Sum",
        {"name": "input-0", "datatype": "INT32", "shape": [-1, -1]},
        {"name": "total", "datatype": "INT64", "shape": [-1, 1]},
    )
}
TEXT = {
    "text-model": model("Text", PROMPT | {"shape": [-1]}, OUTPUT),
    "text-stream-model": model("Words", PROMPT, OUTPUT),
}


def configuration(models: dict[str, dict[str, object]]) -> str:
    listen = {"http": [{"bind": f"{HOST}:0"}], "grpc": [{"bind": f"{HOST}:0"}]}
    control = {"mode": "explicit", "load": ["*"]}
    return yaml.safe_dump({"listen": listen, "server_name": "mlserver", "model_control": control, "models": models})


@pytest.mark.timeout(RUNS_WITHIN_S + 60)
def test_only_what_is_listed_differs(tmp_path: Path) -> None:
    if (sources := os.environ.get(VARIABLE)) is None:
        pytest.skip(
            f"no {VARIABLE}: git clone --branch 1.7.1 https://github.com/SeldonIO/MLServer, and let it name the folder"
        )
    if not PYTHON.exists():
        pytest.fail("MLServer is not installed: say `make test-system`", pytrace=False)
    shutil.copytree(Path(sources) / "tests", tmp_path / "tests")
    for folder in ("rest", "grpc"):
        with (tmp_path / "tests" / folder / "conftest.py").open("a") as conftest:
            conftest.write("\nfrom mlserver_addresses import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\naddopts = --import-mode=importlib\n")
    (tmp_path / "sum.yaml").write_text(configuration(SUM))
    (tmp_path / "texts.yaml").write_text(configuration(TEXT))
    with running(tmp_path / "sum.yaml") as sums, running(tmp_path / "texts.yaml") as texts:
        addresses = {
            "SUM_HTTP": sums.url,
            "SUM_GRPC": str(sums.grpc_port),
            "TEXTS_HTTP": texts.url,
            "TEXTS_GRPC": str(texts.grpc_port),
        }
        report = tmp_path / "report.xml"
        done = subprocess.run(
            [PYTHON, "-m", "pytest", "-q", f"--junitxml={report}", *(f"tests/{module}" for module in MODULES)],
            cwd=tmp_path,
            env=environment() | addresses | {"PYTHONPATH": f"{HERE}:{tmp_path}"},
            capture_output=True,
            text=True,
            timeout=RUNS_WITHIN_S,
        )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - written by the pytest above
    outcomes = {
        f"{case.attrib['classname'].removeprefix('tests.')}.{case.attrib['name']}": [
            *case.iter("failure"),
            *case.iter("error"),
        ]
        for case in cases
    }
    failed = {name for name, failures in outcomes.items() if failures}
    assert failed == {*DIFFERENT}, done.stdout
    assert len(outcomes) == 49
