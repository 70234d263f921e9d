"""What is said in two places is the same in both."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import find_packages

from gateway.app import registries
from gateway.config import json_schema

ROOT = Path(__file__).parent.parent


def test_the_schema_for_editors_is_that_of_the_classes() -> None:
    committed = json.loads((ROOT / "config/schema.json").read_text(encoding="utf-8"))
    assert committed == json_schema(registries()), "say `make schema`"


def test_the_descriptor_set_is_that_of_the_proto_files(tmp_path: Path) -> None:
    made = tmp_path / "descriptors.binpb"
    sources = sorted(path.name for path in (ROOT / "proto").glob("*.proto"))
    command = ["-m", "grpc_tools.protoc", "-Iproto", "--include_imports", f"--descriptor_set_out={made}", *sources]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    assert made.read_bytes() == (ROOT / "adapters/pb/descriptors.binpb").read_bytes(), "say `make proto`"


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("gateway", "adapters", "backends")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert found == set(find_packages(ROOT, **project["tool"]["setuptools"]["packages"]["find"]))


def test_heavy_libraries_are_imported_only_when_a_model_asks_for_them() -> None:
    heavy = "{'onnxruntime', 'cupy', 'onnx', 'tensorflow'}"
    code = f"import sys, gateway.app as a; a.registries(); print(sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
