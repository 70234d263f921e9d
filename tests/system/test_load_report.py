"""How full a language model's cache is, in the header of its answers, for balancers that ask for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from serving import JSON, running

MODEL = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            family = pb_utils.MetricFamily
            self.family = family("nv_trt_llm_kv_cache_block_metrics", "Blocks.", family.GAUGE)
            self.blocks = {
                kind: self.family.Metric(labels={"kv_cache_block_type": kind, "model": "llm", "version": "1"})
                for kind in ("used", "max", "tokens_per")
            }
            for kind, value in (("used", 25), ("max", 200), ("tokens_per", 64)):
                self.blocks[kind].set(value)

        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                told = request.parameters()
                for part in ("a", told):
                    text = pb_utils.Tensor("text_output", np.array([part], object))
                    sender.send(pb_utils.InferenceResponse([text], parameters={"own": 1}))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
    """
REPORTS = {
    "json": 'JSON {"named_metrics":{"kv_cache_utilization":0.125,"max_token_capacity":12800}}',
    "text": "TEXT named_metrics.kv_cache_utilization=0.125000, named_metrics.max_token_capacity=12800",
    "xml": None,
}


@pytest.mark.parametrize("doors", [1, 2])
def test_who_asks_for_the_load_is_told_it(tmp_path: Path, doors: int) -> None:
    version = tmp_path / "models/llm/1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(dedent(MODEL))
    (version.parent / "config.pbtxt").write_text(dedent(CONFIG))
    (tmp_path / "gateway.yaml").write_text(
        'listen: {http: [{bind: "127.0.0.1:0"}], grpc: [{bind: "127.0.0.1:0"}], metrics: {bind: "127.0.0.1:0"}}\n'
        "repositories: [models]\n"
    )
    options, python = (("--doors", "2"), Path(sys.executable)) if doors > 1 else ((), None)
    with running(tmp_path / "gateway.yaml", *options, python=python) as gateway:
        for form, report in REPORTS.items():
            headers = {**JSON, "endpoint-load-metrics-format": form}
            answer = gateway.request("POST", "/v2/models/llm/generate_stream", {"text_input": "x"}, headers)
            assert answer.status == 200
            assert answer.headers.get("endpoint-load-metrics") == report
            events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line]
            told = {"model_name": "llm", "model_version": "1", "own": 1}
            assert events == [{**told, "text_output": "a"}, {**told, "text_output": "{}"}]
        assert (
            "endpoint-load-metrics" not in gateway.post("/v2/models/llm/generate_stream", {"text_input": "x"}).headers
        )
