"""Triton model folders as models of the configuration: read at start, or imported as YAML. Both say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorgate.adapters.importers.common import Imported, document
from tensorgate.adapters.importers.triton_repository import read_model
from tensorgate.gateway import app
from tensorgate.gateway.cli import migrate
from tensorgate.gateway.cli.migrate import triton_document
from tensorgate.gateway.config import Config, config_class, parse_config

KINDS = app.registries()
CLASSES = config_class(KINDS)
TENSORS = (
    '\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] reshape { shape: [ 3, 1 ] } } ]\n'
    'output [ { name: "y" data_type: TYPE_STRING dims: [ 2 ] label_filename: "labels.txt" } ]\n'
)
CONFIGS = {
    "nothing": "",
    "a size": "max_batch_size: 2",
    "tensors": "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 7 }" + TENSORS,
    "unbatched": TENSORS,
    "alone": "max_batch_size: 8" + TENSORS,
    "versions": "version_policy { specific { versions: [ 1, 3 ] } } instance_group { kind: KIND_CPU count: 2 }",
    "runtime": 'parameters { key: "execution_mode" value { string_value: "1" } } optimization { graph { level: 2 } }'
    ' parameters { key: "free: text #1" value { string_value: "yes\\n\\"no\\"" } }',
    "priorities": "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
    "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9 } "
    "priority_queue_policy { key: 2 value { max_queue_size: 4 } } }",
    "sequences": "sequence_batching { control_input { name: 'S' control { int32_false_true: [ 0, 1 ] } } }",
    "an ensemble": 'platform: "ensemble"'
    + TENSORS.replace("reshape { shape: [ 3, 1 ] }", "")
    + 'ensemble_scheduling { step { model_name: "a" model_version: -1 input_map { key: "i" value: "x" } '
    'output_map { key: "o" value: "y" } } }',
}

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def folder(text: str | None, name: str = "m", repository: str = "models", file: str = "model.onnx") -> Path:
        model = tmp_path / repository / name
        (model / "1").mkdir(parents=True)
        (model / "1" / file).write_bytes(b"")
        (model / "labels.txt").write_text("a\nb\n")
        if text is not None:
            (model / "config.pbtxt").write_text(text)
        return model

    return folder


def parse(models: Any, path: Path) -> Config:
    return parse_config(json.dumps({"models": models}), path, CLASSES)


@pytest.mark.parametrize("case", CONFIGS)
def test_what_is_written_reads_back_as_the_same(make: Make, tmp_path: Path, case: str) -> None:
    """The entry as YAML, with paths relative to a file elsewhere, is the entry; and the same configuration."""
    model = make(CONFIGS[case], name="no")  # a name that YAML takes for something else, if it is let
    reading = read_model(model)
    elsewhere = tmp_path / "configs" / "here"
    elsewhere.mkdir(parents=True)
    text = document(["title"], [], [Imported("no", reading.entry, reading.notes)], elsewhere)
    written = yaml.safe_load(text)["models"]["no"]
    entry = {key: value for key, value in reading.entry.items() if key != "open_inference"}
    if "path" in entry:
        assert (elsewhere / written["path"]).resolve() == model
        written["path"] = entry["path"]
    for output, file in written.get("class_labels", {}).items():
        assert file == "../../models/no/labels.txt"
        written["class_labels"][output] = entry["class_labels"][output]
    assert written == entry
    config = parse_config(text, elsewhere / "gateway.yaml", CLASSES).models["no"]
    same = parse({"no": entry}, model).models["no"]
    assert config.model_dump(exclude={"path", "class_labels"}) == same.model_dump(exclude={"path", "class_labels"})
    assert config.path is None or config.path.path.resolve() == model


def test_the_document_is_made_for_people(make: Make, tmp_path: Path) -> None:
    reading = read_model(make("max_batch_size: 2\nmodel_operations { op_library_filename: 'x' }"))
    models = [Imported("m", reading.entry, reading.notes), Imported("n", error="no\nsuch file")]
    text = triton_document("x", models, tmp_path)
    assert (
        text
        == """\
# Imported from the Triton model repository x.
# What Triton's configuration says and is not done here stands beside each model.

listen:                               # Triton's ports
  http:
    - {bind: "0.0.0.0:8000"}
  grpc:
    - {bind: "0.0.0.0:8001"}
  metrics: {bind: "0.0.0.0:8002"}
server_name: triton                   # what GET /v2 tells (--id)
# Was more on the old command line? Import it, --from-command-line 'tritonserver --…', or take from these:
# readiness: lenient                  # --strict-readiness=false
# model_control: {mode: explicit, load: ['*']}            # --model-control-mode=explicit --load-model=*
# allow_uploads: true in it lets loads bring files, as in Triton; it needs admin or auth beside it
# shared_memory: {system: true, cuda: true}               # regions of callers on this machine
# open_inference: {http_header_forward_pattern: '^x-'}    # --http-header-forward-pattern

models:

  m:
    # config.pbtxt:2: model_operations is ignored: no library of custom operations is loaded
    backend: onnx
    path: models/m
    versions: latest
    device: all
    max_batch_size: 2
    max_queue_size: 65536
    scalars_as_vectors: true

  # n: not imported: no such file
"""
    )


def test_migrate_says_what_it_cannot_do(make: Make, tmp_path: Path) -> None:
    said: list[str] = []
    complaints: list[str] = []
    make('backend: "tensorrt"', name="engine")
    assert migrate.from_triton(tmp_path / "models", "", None, said.append, complaints.append) == 1
    assert complaints == [
        'engine: NOT IMPORTED: config.pbtxt:1:1: backend: "tensorrt" is not supported; '
        "onnxruntime, python, pytorch, tensorflow (SavedModels) and ensemble are",
        "0 of 1 models imported",
    ]
    complaints.clear()
    assert migrate.from_triton(tmp_path / "gone", "", None, said.append, complaints.append) == 1
    assert complaints == [f"{tmp_path / 'gone'}: no such file or directory"]
    complaints.clear()
    make(None)
    target = tmp_path / "gone" / "gateway.yaml"
    assert migrate.from_triton(tmp_path / "models", "", target, said.append, complaints.append) == 1
    assert complaints[-1] == f"{target}: no such file or directory"
