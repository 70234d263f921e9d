"""The gateway keeps all that its protocols promise, as `tensorgate conform` asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from serving import DEMO, HOST, ROOT, Gateway, command, running, started

pytest.importorskip("grpc")

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


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that serves the models whose behaviour the cases of V2 know."""
    folder = tmp_path_factory.mktemp("conform")
    written = command("conform", "--dialect", "v2", "--repository", folder / "models")
    assert written.returncode == 0, written.stderr
    ports = [word for name in ("http", "grpc", "metrics") for word in (f"--{name}-port", "0")]
    with started(folder / "log", "--model-repository", str(folder / "models"), *ports) as gateway:
        gateway.wait_until_ready()
        yield gateway


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that serves what the cases of TensorFlow Serving and of grps know, without TensorFlow."""
    models = {
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
    file = tmp_path_factory.mktemp("conform") / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": listen, "models": models}))
    with running(file) as gateway:
        yield gateway


def _python(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], datatype: str) -> dict[str, Any]:
    sides = {
        side: [{"name": name, "datatype": datatype, "shape": [-1]} for name in names]
        for side, names in (("inputs", inputs), ("outputs", outputs))
    }
    return {"backend": "python", "path": f"{CLASSES}:{kind}"} | sides


def conform(gateway: Gateway, folder: Path, *options: str) -> dict[str, Any]:
    """The report on a gateway."""
    addresses = ("--http", gateway.url, "--grpc", f"{HOST}:{gateway.grpc_port}")
    asked = command("conform", *addresses, "--json", folder / "report.json", *options)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize(("dialect", "server"), [("v2", "v2"), ("tf_serving", "classes")])
def test_all_is_as_promised(dialect: str, server: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    report = conform(request.getfixturevalue(server), tmp_path, "--dialect", dialect)
    assert report["totals"] == {"passed": len(report["cases"]), "differs": 0, "not offered": 0}
    assert {each["transport"] for each in report["cases"]} == {"http", "grpc"}
    assert report["notes"] == []
