"""The real all-MiniLM-L6-v2, served from a file, beside its own library: the same vectors, in every dialect."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from client_scripts import environment
from serving import ROOT, running

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-torch/bin/python"
SCRIPT = Path(__file__).parent / "minilm.py"


@pytest.mark.timeout(300)
def test_it_agrees_with_its_library(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.fail("PyTorch is not installed: say `make test-system`", pytrace=False)
    folder = tmp_path / "minilm"
    done = subprocess.run([PYTHON, SCRIPT, folder], env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "told.json").read_text())
    texts, wanted = told["texts"], np.array(told["vectors"])
    text = {"kind": "embedding", "tokenizer": str(folder / "tokenizer.json"), "pooling": "mean", "truncation": True}
    text["max_tokens"] = told["max_tokens"]
    model = {"backend": "onnx", "path": str(folder), "max_batch_size": 8, "text": text}
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": {"http": [{"bind": "127.0.0.1:0"}]}, "models": {"minilm": model}}))
    with running(file) as gateway:
        answers: dict[str, Any] = {
            "openai": [
                each["embedding"]
                for each in gateway.post("/v1/embeddings", {"model": "minilm", "input": texts}).json["data"]
            ],
            "one by one": [gateway.post("/embed?model=minilm", {"inputs": each}).json[0] for each in texts],
            "tf_serving": gateway.post("/v1/models/minilm:predict", {"instances": texts}).json["predictions"],
        }
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        (output,) = gateway.post("/v2/models/minilm/infer", {"inputs": [tensor]}).json["outputs"]
        answers["open_inference"] = np.reshape(output["data"], output["shape"])
        assert gateway.stop() == 0
    for name, found in answers.items():
        assert np.abs(np.array(found) - wanted).max() < 1e-5, name
