"""Gateways that serve the models whose behaviour conformance cases know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from serving import DEMO, HOST, ROOT, Gateway, command, running, started

CLASSES = ROOT / "tests/system/conform_models.py"
TYPES = {
    "float": "FP32",
    "double": "FP64",
    "int32": "INT32",
    "uint8": "UINT8",
    "int16": "INT16",
    "int8": "INT8",
    "string": "BYTES",
    "int64": "INT64",
    "bool": "BOOL",
    "uint32": "UINT32",
    "uint64": "UINT64",
}
"""TensorFlow's types, and what they are called here."""


@contextmanager
def serving_repository(folder: Path) -> Iterator[Gateway]:
    """Those of V2, a Triton repository that the verb writes there."""
    written = command("conform", "--dialect", "v2", "--repository", folder / "models")
    assert written.returncode == 0, written.stderr
    ports = [word for name in ("http", "grpc", "metrics") for word in (f"--{name}-port", "0")]
    with started(folder / "log", "--model-repository", str(folder / "models"), *ports) as gateway:
        gateway.wait_until_ready()
        yield gateway


@contextmanager
def serving_classes(folder: Path) -> Iterator[Gateway]:
    """Those of TensorFlow Serving and of grps, without TensorFlow."""
    models: dict[str, Any] = {
        "conform_half_plus_two": {
            "backend": "onnx",
            "path": str(DEMO.parent / "demo/models/half_plus_two"),
            "max_batch_size": 0,
        },
        "conform_add_sub": _python("AddSub", ("a", "b"), ("sum", "difference"), "FP32"),
    }
    for name, datatype in TYPES.items():
        models[f"conform_identity_{name}"] = _python("Identity", ("x",), ("y",), datatype)
    bind = {"bind": f"{HOST}:0"}
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": listen, "models": models, "openai": {"short_paths": False}}))
    with running(file) as gateway:
        yield gateway


def _python(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], datatype: str) -> dict[str, Any]:
    sides = {
        side: [{"name": name, "datatype": datatype, "shape": [-1]} for name in names]
        for side, names in (("inputs", inputs), ("outputs", outputs))
    }
    return {"backend": "python", "path": f"{CLASSES}:{kind}"} | sides
