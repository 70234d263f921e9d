"""TensorFlow Serving's own end-to-end test of its server, unmodified, against this gateway, in .venv-tensorflow."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from client_scripts import environment, outcomes_of
from serving import ROOT

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-tensorflow/bin/python"
VARIABLE = "TF_SERVING_SOURCES"
SUITE = Path(__file__).parent / "tf_serving_suite.py"
SERVER = Path(__file__).parent / "tensorflow_model_server.py"
RUNS_WITHIN_S = 900.0
DIFFERENT = {
    "testPredictOnTfLite": "TensorFlow Lite models are not run",
    "testPredictWithSignatureDefOnTfLite": "TensorFlow Lite models are not run",
    "test_profiler_service_with_valid_trace_request": "there is no TensorFlow profiler; tracing.file writes the times",
    "test_tf_text": "it asks TensorFlow for flags.os, which that has not any more; no server is called",
}
"""Test -> why the gateway does something else, on purpose."""


@pytest.mark.timeout(RUNS_WITHIN_S + 60)
def test_only_what_is_listed_differs(tmp_path: Path) -> None:
    if (sources := os.environ.get(VARIABLE)) is None:
        pytest.skip(f"no {VARIABLE}: git clone https://github.com/tensorflow/serving, and let it name the folder")
    if not PYTHON.exists():
        pytest.fail("TensorFlow is not installed: say `make test-system`", pytrace=False)
    laid_out = tmp_path / "tf_serving/tensorflow_serving"
    (laid_out / "servables/tensorflow").mkdir(parents=True)
    (laid_out / "servables/tensorflow/testdata").symlink_to(
        Path(sources).absolute() / "tensorflow_serving/servables/tensorflow/testdata"
    )
    server = laid_out / "model_servers/tensorflow_model_server"
    server.parent.mkdir()
    server.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{ROOT}" "{PYTHON}" "{SERVER}" "$@"\n')
    server.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    variables = {
        "TEST_SRCDIR": str(tmp_path),
        "TEST_TMPDIR": str(tmp_path / "tmp"),
        "CUDA_VISIBLE_DEVICES": "",
        "TF_USE_LEGACY_KERAS": "1",  # Keras 3 names a model's input otherwise than the test calls it
    }
    done = subprocess.run(
        [PYTHON, SUITE, sources, tmp_path / "tmp"],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=RUNS_WITHIN_S,
    )
    outcomes = outcomes_of(done, SUITE.stem)
    failed = {test: failure for test, failure in outcomes.items() if failure is not None}
    assert {*failed} == {*DIFFERENT}, "\n".join(failed[test] for test in failed if test not in DIFFERENT)
    assert len(outcomes) >= 30
