"""The configuration of clients/text_models.py: models of text for clients of OpenAI and its neighbours."""

from __future__ import annotations

from typing import Any

from client_scripts import SCRIPTS

DEFAULT_MODELS = {"default_models": {"embedding": "letters", "reranker": "overlap", "classifier": "classes"}}


def text_models(tokenizer: str) -> dict[str, Any]:
    """Models of text, some of them in batches."""

    def model(member: str, inputs: str, output: dict[str, Any], **more: Any) -> dict[str, Any]:
        shape = more.pop("shape", [-1])
        return {
            "backend": "python",
            "path": f"{SCRIPTS / 'text_models.py'}:{member}",
            "inputs": [{"name": name, "datatype": "BYTES", "shape": shape} for name in inputs.split()],
            "outputs": [output],
            **more,
        }

    counts = {"name": "counts", "datatype": "FP32", "shape": [-1, 3]}
    score = {"name": "score", "datatype": "FP32", "shape": [-1]}
    embedding = {"kind": "embedding", "tokenizer": tokenizer, "max_tokens": 40}
    told = {"name": "told", "datatype": "BYTES", "shape": [1]}
    return {
        "letters": model("Letters", "text", counts, max_batch_size=8, text={"kind": "embedding"}),
        "packed": model("Letters", "text", counts, max_batch_size=8, text={**embedding, "max_batch_tokens": 64}),
        "tokens": model("Letters", "text", counts, text=embedding),
        "classes": model("Letters", "text", counts, text={"kind": "classifier"}),
        "overlap": model("Overlap", "query text", score, text={"kind": "reranker", "query": "query", "prompt": "text"}),
        "breaks": model("Breaks", "text", told, shape=[1], text={"kind": "completion"}),
    }
