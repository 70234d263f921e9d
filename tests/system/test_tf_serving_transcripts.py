"""The examples of TensorFlow Serving's REST documentation, as a reader pastes them: real curl, and every byte of the
answer but the value of its Date header.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from email.utils import parsedate_to_datetime
from typing import Any

import grpc
import pytest
from client_scripts import environment
from serving import HOST, Gateway

from tensorgate.adapters.protobuf.messages import message

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")

STATUS = """{
 "model_version_status": [
  {
   "version": "123",
   "state": "AVAILABLE",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  }
 ]
}
"""
PREDICTIONS = """{
    "predictions": [3.5, 4.0, 5.5
    ]
}"""
RESULTS = """{
    "results": [3.5, 4.0]
}"""
UNKNOWN = """{
    "error": "Servable not found for request: Latest(half)"
}"""
MALFORMED = """{
    "error": "Malformed request: GET /v1/models/half_plus_three:predict"
}"""

TRANSCRIPTS: dict[str, tuple[str, int, str, str]] = {
    "status": ("curl localhost:8501/v1/models/half_plus_three", 200, "OK", STATUS),
    "status of a version": ("curl localhost:8501/v1/models/half_plus_three/versions/123", 200, "OK", STATUS),
    "predict": (
        """curl -d '{"instances": [1.0,2.0,5.0]}' -X POST localhost:8501/v1/models/half_plus_three:predict""",
        200,
        "OK",
        PREDICTIONS,
    ),
    "regress": (
        """curl -d '{"signature_name": "tensorflow/serving/regress","examples": [{"x": 1.0}, {"x": 2.0}]}' """
        "-X POST localhost:8501/v1/models/half_plus_three:regress",
        200,
        "OK",
        RESULTS,
    ),
    "unknown model": (
        """curl -d '{"instances": [1.0,5.0]}' -X POST localhost:8501/v1/models/half:predict""",
        404,
        "Not Found",
        UNKNOWN,
    ),
    "wrong method": ("curl localhost:8501/v1/models/half_plus_three:predict", 400, "Bad Request", MALFORMED),
}


def pasted(command: str, gateway: Gateway) -> bytes:
    """What curl prints, head included."""
    line = command.replace("curl", "curl -s -i", 1).replace("localhost:8501", gateway.url)
    return subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, timeout=20, check=True).stdout


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str, demo: Gateway) -> None:
    command, status, reason, body = TRANSCRIPTS[name]
    head, _, got = pasted(command, demo).partition(b"\r\n\r\n")
    assert got.decode() == body
    first, *lines = head.decode().split("\r\n")
    assert first == f"HTTP/1.1 {status} {reason}"
    headers = dict(line.split(": ", 1) for line in lines)
    assert parsedate_to_datetime(headers.pop("Date")) is not None
    assert headers == {"Content-Type": "application/json", "Content-Length": str(len(body)), "Server": "tensorgate"}


def predict_by_grpc(gateway: Gateway, **values: Any) -> None:
    """An answer or a refusal, no matter which."""
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "half_plus_three"
    request.inputs["x"].CopyFrom(message("tensorflow.TensorProto")(**values))
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel, contextlib.suppress(grpc.RpcError):
        channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(request.SerializeToString(), timeout=10)


def test_metrics_are_where_prometheus_looks_for_them(demo: Gateway) -> None:
    for name in ("predict", "regress", "unknown model"):
        pasted(TRANSCRIPTS[name][0], demo)
    predict_by_grpc(demo, dtype="DT_FLOAT", float_val=[1.0])
    predict_by_grpc(demo, dtype="DT_INT32", int_val=[1])
    for port in (demo.port, demo.metrics_port):
        answer = demo.request("GET", "/monitoring/prometheus/metrics", port=port)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain")
    text = answer.body.decode()
    counts = dict(re.findall(r"^:tensorflow:serving:([a-z_]+\{[^}]*\}) (\d+)$", text, re.MULTILINE))
    assert int(counts['request_count{model_name="half_plus_three",status="OK"}']) >= 2
    assert int(counts['request_count{model_name="",status="NOT_FOUND"}']) >= 1
    assert 'half"' not in text
    assert int(counts['request_count{model_name="half_plus_three",status="INVALID_ARGUMENT"}']) == 1
    assert int(counts['request_latency_count{model_name="half_plus_three",API="Predict",entrypoint="GRPC"}']) == 1
    for api in ("predict", "regress"):
        labels = f'{{model_name="half_plus_three",API="{api}",entrypoint="REST"}}'
        assert int(counts[f"request_latency_count{labels}"]) >= 1
        labels = f'{{model_name="half_plus_three",API="{api.title()}",runtime="TF1"}}'
        assert int(counts[f"runtime_latency_count{labels}"]) >= 1
    assert int(counts['request_example_count_total{model="half_plus_three"}']) >= 2
    refused = demo.get("/monitoring/prometheus/metrics?a=1")
    text = "Unexpected path: /monitoring/prometheus/metrics?a=1. Should be /monitoring/prometheus/metrics"
    assert (refused.status, refused.headers["Content-Type"], refused.body.decode()) == (400, "text/plain", text)
