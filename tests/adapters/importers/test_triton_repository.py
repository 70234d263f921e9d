"""Triton's model configurations, in the forms that people write, against the entries and remarks that they give."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorgate.adapters.importers.common.key_locations import read_key_locations
from tensorgate.adapters.importers.common.source import MAX_BYTES
from tensorgate.adapters.importers.triton_repository import Reading, model_folders, read_model
from tensorgate.adapters.importers.triton_repository.ignored import HONOURED, IGNORED
from tensorgate.adapters.importers.triton_repository.text import parse_text
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.plain import plain

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A model's folder: its name, config.pbtxt, and the files of version 1."""

    def make(text: str | bytes | None, *files: str, name: str = "m") -> Path:
        folder = tmp_path / name
        (folder / "1").mkdir(parents=True)
        for file in files or ("model.onnx",):
            (folder / "1" / file).write_bytes(b"")
        if text is not None:
            (folder / "config.pbtxt").write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder

    return make


def told(reading: Reading) -> dict[str, Any]:
    """The entry without what all have; paths as they are below the folder."""
    entry = json.loads(json.dumps(reading.entry))
    folder = entry.pop("path", None)
    del entry["open_inference"]
    if folder and "class_labels" in entry:
        entry["class_labels"] = {name: str(Path(f).relative_to(folder)) for name, f in entry["class_labels"].items()}
    return dict(entry)


COMPLETED: dict[str, Any] = {
    "backend": "onnx",
    "versions": "latest",
    "device": "all",
    "max_batch_size": "auto",
    "scalars_as_vectors": True,
    "max_queue_size": 65536,
}
X = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
Y = {"name": "y", "datatype": "FP32", "shape": [-1, 2]}
DECLARED: dict[str, Any] = {
    "backend": "onnx",
    "versions": "latest",
    "device": "all",
    "max_batch_size": 8,
    "batching": False,
    "max_queue_size": 65536,
    "inputs": [X],
    "outputs": [Y],
}
ONE = 'input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 2 }\n'
BATCHED = "max_batch_size: 8\n" + ONE


def shaped(shape: list[int]) -> dict[str, Any]:
    return {"inputs": [X | {"shape": shape}], "outputs": [Y | {"shape": [2]}], "max_batch_size": 0, "batching": None}


READS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # text, the entry that it is like, and where it differs; None: without that key
    "nothing": ("", COMPLETED, {}),
    "only comments": ("# a model\n\n  # of mine", COMPLETED, {}),
    "a platform": ('platform: "onnxruntime_onnx"', COMPLETED, {}),
    "a backend": ("backend : 'onnxruntime'", COMPLETED, {}),
    "both, and a name": ('name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime"', COMPLETED, {}),
    "a byte order mark": ('\ufeffname: "m"', COMPLETED, {}),
    "carriage returns": ('name: "m"\r\nmax_batch_size: 2\r\n', COMPLETED, {"max_batch_size": 2}),
    "only a size": ("max_batch_size: 16", COMPLETED, {"max_batch_size": 16}),
    "a size of 0 is to be found out": ("max_batch_size: 0", COMPLETED, {}),
    "declared": (BATCHED, DECLARED, {}),
    "declared in lists with commas": (
        "max_batch_size: 8,\ninput [ { name: 'x', data_type: TYPE_FP32, dims: [ 3 ] } ],\n"
        "output: [ { name: 'y'; data_type: TYPE_FP32; dims: [ 2, ] } ]".replace("2, ]", "2 ]"),
        DECLARED,
        {},
    ),
    "declared in angle brackets": (
        'max_batch_size: 8 input < name: "x" data_type: TYPE_FP32 dims: 3 > '
        'output: < name: "y" data_type: TYPE_FP32 dims: 2 >',
        DECLARED,
        {},
    ),
    "numbers of enums": (BATCHED.replace("TYPE_FP32", "11"), DECLARED, {}),
    "text in pieces": (BATCHED + 'name: "" "m"', DECLARED, {}),
    "without a size": (ONE.replace("dims: 3", "dims: [ 3, 224, 224 ]"), DECLARED, shaped([3, 224, 224])),
    "dims one by one": (ONE.replace("dims: 3", "dims: 3 dims: -1"), DECLARED, shaped([3, -1])),
    "hexadecimal": (ONE.replace("dims: 3", "dims: 0x10"), DECLARED, shaped([16])),
    "no output": (
        "input [ { name: 'x' data_type: TYPE_FP32 dims: [ 3 ] } ]",
        COMPLETED,
        {"inputs": [X | {"shape": [3]}]},
    ),
    "no input, but a size": (
        "max_batch_size: 4 output { name: 'y' data_type: TYPE_FP32 dims: 2 }",
        COMPLETED,
        {"max_batch_size": 4, "outputs": [Y]},
    ),
    "an optional input": (
        BATCHED + "input { name: 'z' data_type: TYPE_STRING dims: -1 optional: true }",
        DECLARED,
        {"inputs": [X, {"name": "z", "datatype": "BYTES", "shape": [-1, -1], "optional": True}]},
    ),
    "a format": (BATCHED.replace("dims: 3", "dims: 3 format: FORMAT_NONE"), DECLARED, {}),
    "a reshape": (
        "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } "
        "output { name: 'y' data_type: TYPE_FP32 dims: [ 2, -1 ] reshape: { shape: [ -1, 2 ] } }",
        DECLARED,
        {
            "inputs": [X | {"shape": [-1, 1]}],
            "outputs": [Y | {"shape": [-1, 2, -1]}],
            "preprocess": [{"op": "reshape", "input": "x", "before": [1], "after": []}],
            "postprocess": [{"op": "reshape", "input": "y", "before": [-1, 2], "after": [2, -1]}],
        },
    ),
    "a reshape to the same": (BATCHED.replace("dims: 3", "dims: 3 reshape { shape: 3 }"), DECLARED, {}),
    "labels": (
        BATCHED.replace("dims: 2", "dims: 2 label_filename: 'labels/y.txt'"),
        DECLARED,
        {"class_labels": {"y": "labels/y.txt"}},
    ),
    "all versions": ("version_policy { all {} }", COMPLETED, {"versions": "all"}),
    "all versions, with colons": ("version_policy: { all: { } }", COMPLETED, {"versions": "all"}),
    "the latest": ("version_policy: { latest { num_versions: 1 } }", COMPLETED, {}),
    "the latest two": ("version_policy: { latest: { num_versions: 2 } }", COMPLETED, {"versions": {"latest": 2}}),
    "some versions": ("version_policy: { specific: { versions: [3, 1, 3] } }", COMPLETED, {"versions": [1, 3]}),
    "a file's name": ('default_model_filename: "best.onnx"', COMPLETED, {"file": "best.onnx"}),
    "the usual file's name": ('default_model_filename: "model.onnx"', COMPLETED, {}),
    "two copies": ("instance_group [ { count: 2 } ]", COMPLETED, {"instances": 2}),
    "two copies on the CPU": (
        "instance_group [\n  {\n    count: 2\n    kind: KIND_CPU\n  }\n]",
        COMPLETED,
        {"instances": 2, "device": "cpu"},
    ),
    "every GPU": ("instance_group { kind: KIND_GPU }", COMPLETED, {"device": "cuda:*"}),
    "that GPU": ("instance_group [{ kind: KIND_GPU gpus: [ 1 ] }]", COMPLETED, {"device": "cuda:1"}),
    "that GPU, of any kind": ("instance_group [{ gpus: [ 0 ] }]", COMPLETED, {"device": "cuda:0"}),
    "two GPUs": (
        "instance_group [{ kind: KIND_GPU gpus: [ 1, 0, 1 ] count: 3 }]",
        COMPLETED,
        {"device": ["cuda:1", "cuda:0"], "instances": 3},
    ),
    "different counts": (
        "instance_group [ { count: 4 gpus: 0 }, { count: 2 gpus: [ 1, 2 ] }, { kind: KIND_CPU count: 2 } ]",
        COMPLETED,
        {"device": ["cuda:0", "cuda:0", "cuda:1", "cuda:2", "cpu"], "instances": 2},
    ),
    "groups that overlap": (
        "instance_group [ { gpus: [ 0, 1 ] }, { gpus: 1 } ]",
        COMPLETED,
        {"device": ["cuda:0", "cuda:1", "cuda:1"]},
    ),
    "every GPU twice": ("instance_group [ { kind: KIND_AUTO }, { } ]", COMPLETED, {"instances": 2}),
    "the model chooses": ("instance_group [{ kind: KIND_MODEL name: 'a' }]", COMPLETED, {"device": None}),
    "groups on one device": (
        "instance_group [ { kind: KIND_CPU, count: 2 }, { kind: KIND_CPU } ]",
        COMPLETED,
        {"instances": 3, "device": "cpu"},
    ),
    "a dynamic batcher": (BATCHED + "dynamic_batching { }", DECLARED, {"batching": None}),
    "one with everything": (
        BATCHED + "dynamic_batching { preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 100 "
        "priority_levels: 2 default_priority_level: 2 default_queue_policy { timeout_action: DELAY "
        "default_timeout_microseconds: 7 allow_timeout_override: true max_queue_size: 9 } "
        "priority_queue_policy { key: 1 value: { max_queue_size: 3 } } }",
        DECLARED,
        {
            "batching": None,
            "preferred_batch_sizes": [4, 8],
            "max_queue_delay_us": 100,
            "max_queue_size": 9,
            "queue": {"timeout_us": 7, "timeout_action": "delay", "allow_timeout_override": True},
            "priorities": {"levels": 2, "default": 2, "queue_policies": {"1": {"max_queue_size": 3}}},
        },
    ),
    "a batch that is sent for a request of another shape": (
        BATCHED.replace("dims: 3", "dims: -1") + "dynamic_batching { max_queue_delay_microseconds: 100 }",
        DECLARED,
        {
            "batching": None,
            "max_queue_delay_us": 100,
            "send_on_mismatch": True,
            "inputs": [X | {"shape": [-1, -1]}],
        },
    ),
    "a level that takes nothing from the default's policy": (
        BATCHED + "dynamic_batching { priority_levels: 3 default_priority_level: 3 default_queue_policy { "
        "default_timeout_microseconds: 7 max_queue_size: 9 } priority_queue_policy { key: 1 value: { } } "
        "priority_queue_policy { key: 2 value: { max_queue_size: 9 timeout_action: DELAY } } }",
        DECLARED,
        {
            "batching": None,
            "max_queue_size": 9,
            "queue": {"timeout_us": 7},
            "priorities": {
                "levels": 3,
                "default": 3,
                "queue_policies": {"1": {"max_queue_size": 65536}, "2": {"timeout_action": "delay"}},
            },
        },
    ),
    "sequences": (
        BATCHED + "sequence_batching { max_sequence_idle_microseconds: 5000000 direct { } control_input [ "
        "{ name: 'START' control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] }, "
        "{ name: 'READY' control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] }, "
        "{ name: 'END' control [ { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } ] }, "
        "{ name: 'CORRID' control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ] }",
        DECLARED,
        {
            "batching": None,
            "sequences": {
                "max_idle_us": 5000000,
                "controls": [
                    {"input": "START", "kind": "start", "datatype": "FP32", "values": [0.0, 1.0]},
                    {"input": "READY", "kind": "ready", "datatype": "INT32", "values": [0, 1]},
                    {"input": "END", "kind": "end", "datatype": "BOOL", "values": [0, 1]},
                    {"input": "CORRID", "kind": "correlation_id", "datatype": "UINT64"},
                ],
            },
        },
    ),
    "sequences, oldest first, with a state": (
        BATCHED + "sequence_batching { oldest { max_queue_delay_microseconds: 5 preferred_batch_size: 4 } "
        "state [ { input_name: 'a' output_name: 'b' data_type: TYPE_INT32 dims: [ 1 ] "
        "initial_state: { name: 'n' data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } ] }",
        DECLARED,
        {
            "batching": None,
            "max_queue_delay_us": 5,
            "preferred_batch_sizes": [4],
            "sequences": {
                "states": [{"input": "a", "output": "b", "datatype": "INT32", "shape": [-1, 1], "initial": "zero"}]
            },
        },
    ),
    "sequences that wait for half of the slots": (
        BATCHED + "sequence_batching { direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 0.5 } }",
        DECLARED,
        {"batching": None, "max_queue_delay_us": 5, "preferred_batch_sizes": [4], "sequences": {}},
    ),
    "sequences that wait for all of them": (
        BATCHED + "sequence_batching { direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 1 } }",
        DECLARED,
        {"batching": None, "max_queue_delay_us": 5, "sequences": {}},
    ),
    "sequences that wait for nobody": (
        BATCHED + "sequence_batching { direct { max_queue_delay_microseconds: 5 } }",
        DECLARED,
        {"batching": None, "sequences": {}},
    ),
    "parameters": (
        'parameters { key: "b" value: { string_value: "2" } } parameters: { key: "a", value { string_value: "" } }',
        COMPLETED,
        {"parameters": {"a": "", "b": "2"}},
    ),
    "a limit of memory": (
        'parameters { key: "gpu_mem_limit" value { string_value: "1073741824" } }',
        COMPLETED,
        {"memory_limit_bytes": 1 << 30, "parameters": {"gpu_mem_limit": "1073741824"}},
    ),
    "ONNX Runtime's settings": (
        'parameters { key: "intra_op_thread_count" value { string_value: "2" } } '
        'parameters { key: "inter_op_thread_count" value { string_value: "0" } } '
        'parameters { key: "execution_mode" value { string_value: "1" } } optimization { graph { level: -1 } }',
        COMPLETED,
        {
            "intra_op_threads": 2,
            "execution_mode": "parallel",
            "graph_optimization": "basic",
            "parameters": {"intra_op_thread_count": "2", "inter_op_thread_count": "0", "execution_mode": "1"},
        },
    ),
}


@pytest.mark.parametrize("case", READS)
def test_reads(write: Write, case: str) -> None:
    text, like, changes = READS[case]
    reading = read_model(write(text, "model.onnx", "best.onnx"))
    assert told(reading) == {key: value for key, value in (like | changes).items() if value is not None}
    assert reading.notes == ()


SAVED: dict[str, Any] = {
    "backend": "tensorflow",
    "versions": "latest",
    "max_batch_size": "auto",
    "max_queue_size": 65536,
}


@pytest.mark.parametrize(
    ("text", "like", "changes"),
    [
        (None, SAVED, {}),
        ('platform: "tensorflow_savedmodel"', SAVED, {}),
        ('backend: "tensorflow" default_model_filename: "model.savedmodel"', SAVED, {}),
        ('backend: "tensorflow" default_model_filename: "best"', SAVED, {"folder": "best"}),
        ('default_model_filename: "best.savedmodel"', SAVED, {"folder": "best.savedmodel"}),
        ('backend: "tensorflow"' + BATCHED, DECLARED, {"backend": "tensorflow"}),
        (
            'parameters { key: "TF_NUM_INTRA_THREADS" value { string_value: "2" } }\n'
            'parameters { key: "TF_NUM_INTER_THREADS" value { string_value: "0" } }\n'
            'parameters { key: "TF_GRAPH_TAG" value { string_value: "tpu" } }\n'
            'parameters { key: "TF_SIGNATURE_DEF" value { string_value: "both" } }',
            SAVED,
            {
                "intra_op_threads": 2,
                "tags": ["tpu"],
                "signature": "both",
                "parameters": {
                    "TF_GRAPH_TAG": "tpu",
                    "TF_NUM_INTER_THREADS": "0",
                    "TF_NUM_INTRA_THREADS": "2",
                    "TF_SIGNATURE_DEF": "both",
                },
            },
        ),
    ],
)
def test_a_saved_model(write: Write, text: str | None, like: dict[str, Any], changes: dict[str, Any]) -> None:
    reading = read_model(write(text, "model.savedmodel", "best.savedmodel"))
    assert told(reading) == like | {"device": "all"} | changes
    assert reading.notes == ()


def test_what_a_saved_model_does_not_do_is_told(write: Write) -> None:
    text = (
        "model_transaction_policy { decoupled: true }\n"
        'parameters { key: "TF_INIT_OPS_FILE" value { string_value: "a" } }\n'
        'parameters { key: "TF_USE_PER_SESSION_THREADS" value { string_value: "true" } }'
    )
    reading = read_model(write(text, "model.savedmodel"))
    assert [str(note).partition(" is ignored: ")[2] for note in reading.notes] == [
        "a SavedModel answers once",
        "a SavedModel says itself what initializes it",
        "all models of the process share TensorFlow's threads",
    ]
    many = 'parameters { key: "TF_NUM_INTRA_THREADS" value { string_value: "many" } }'
    with pytest.raises(ValueError, match='TF_NUM_INTRA_THREADS is "many", expected a number of threads'):
        read_model(write(many, "model.savedmodel", name="n"))


TORCH: dict[str, Any] = {
    "backend": "torch",
    "versions": "latest",
    "device": "all",
    "max_batch_size": "auto",
    "max_queue_size": 65536,
}
SHAPED = (
    "max_batch_size: 4 input { name: 'INPUT__0' data_type: TYPE_FP32 dims: 6 reshape { shape: [ 2, 3 ] } } "
    "output { name: 'OUTPUT__0' data_type: TYPE_FP32 dims: 6 }"
)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (None, {}),
        ('platform: "pytorch_libtorch"', {}),
        ('backend: "pytorch" default_model_filename: "model.pt"', {}),
        ('backend: "pytorch" default_model_filename: "model.pt2"', {"file": "model.pt2"}),
        ('default_model_filename: "best.pt2"', {"file": "best.pt2"}),
        (
            'backend: "pytorch" parameters { key: "INTRA_OP_THREAD_COUNT" value { string_value: "2" } }\n'
            'parameters { key: "ENABLE_CUDNN_BENCHMARK" value { string_value: "true" } }',
            {
                "intra_op_threads": 2,
                "cudnn_benchmark": True,
                "parameters": {"ENABLE_CUDNN_BENCHMARK": "true", "INTRA_OP_THREAD_COUNT": "2"},
            },
        ),
        (
            'backend: "pytorch" ' + SHAPED,
            {
                "max_batch_size": 4,
                "inputs": [{"name": "INPUT__0", "datatype": "FP32", "shape": [-1, 6]}],
                "outputs": [{"name": "OUTPUT__0", "datatype": "FP32", "shape": [-1, 6]}],
                "preprocess": [{"op": "reshape", "input": "INPUT__0", "before": [6], "after": [2, 3]}],
                "model_inputs": [{"name": "INPUT__0", "datatype": "FP32", "shape": [-1, 2, 3]}],
            },
        ),
    ],
)
def test_a_pytorch_model(write: Write, text: str | None, changes: dict[str, Any]) -> None:
    reading = read_model(write(text, "model.pt", "best.pt2"))
    found = told(reading)
    assert {key: found.get(key) for key in (*TORCH, *changes)} == TORCH | changes
    assert found.keys() - TORCH.keys() <= changes.keys() | {"batching"}
    assert reading.notes == ()


def test_what_a_pytorch_model_does_not_do_is_told(write: Write) -> None:
    text = 'backend: "pytorch" parameters { key: "ENABLE_WEIGHT_SHARING" value { string_value: "true" } }'
    (note,) = read_model(write(text, "model.pt")).notes
    assert "is ignored: each instance has weights of its own" in str(note)


def test_an_ensemble(write: Write) -> None:
    text = """
platform: "ensemble" max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "CLASS" data_type: TYPE_FP32 dims: [ 10 ] } ]
ensemble_scheduling { step [
  { model_name: "read" model_version: -1
    input_map { key: "raw" value: "IMAGE" } output_map { key: "pixels" value: "p" } },
  { model_name: "net" model_version: 2
    input_map { key: "INPUT" value: "p" } output_map: { key: "OUTPUT", value: "CLASS" } } ] }"""
    folder = write(text)
    reading = read_model(folder)
    assert told(reading) == {
        "backend": "ensemble",
        "max_batch_size": 8,
        "inputs": [{"name": "IMAGE", "datatype": "BYTES", "shape": [-1, 1]}],
        "outputs": [{"name": "CLASS", "datatype": "FP32", "shape": [-1, 10]}],
        "steps": [
            {"model": "read", "version": None, "inputs": {"raw": "IMAGE"}, "outputs": {"pixels": "p"}},
            {"model": "net", "version": 2, "inputs": {"INPUT": "p"}, "outputs": {"OUTPUT": "CLASS"}},
        ],
    }
    assert reading.entry["open_inference"]["model_config"]["ensemble_scheduling"]["step"][0]["model_version"] == -1
    (folder / "config.pbtxt").write_text(text + "model_transaction_policy { decoupled: true }")
    assert read_model(folder).entry["decoupled"] is True


@pytest.mark.parametrize(
    ("folders", "policy", "versions"),
    [
        (("1",), "", None),
        ((), "", None),
        (("1", "3", "x"), "", [3]),
        (("1", "3"), "version_policy { specific { versions: [ 1, 3, 4 ] } }", [1, 3]),
        (("2", "10", "9"), "version_policy { latest { num_versions: 2 } }", [9, 10]),
        (("1", "2"), "version_policy { all { } }", [1, 2]),
    ],
)
def test_an_ensemble_has_the_versions_of_its_folders(
    write: Write, folders: tuple[str, ...], policy: str, versions: list[int] | None
) -> None:
    """Triton: L0_lifecycle, test_model_control."""
    folder = write(f"{STEP} {policy}")
    shutil.rmtree(folder / "1")
    for name in folders:
        (folder / name).mkdir()
    assert read_model(folder).entry.get("versions") == versions


STEP = """platform: "ensemble" input [ { name: "i" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "o" data_type: TYPE_FP32 dims: [ 1 ] } ] ensemble_scheduling { step [
  { model_name: "PART" input_map { key: "a" value: "i" } output_map { key: "b" value: "o" } } ] }"""


def test_an_ensemble_answers_as_often_as_its_steps_do(write: Write) -> None:
    """Triton: L0_decoupled, whose ensembles of decoupled models do not say so themselves."""
    write("model_transaction_policy { decoupled: true }", name="part")
    write(STEP.replace("PART", "part"), name="outer")
    assert read_model(write(STEP.replace("PART", "outer"))).entry["decoupled"] is True
    assert "decoupled" not in read_model(write(STEP.replace("PART", "alone"), name="around")).entry
    write(STEP.replace("PART", "around"), name="alone")
    write("not a configuration", name="broken")
    assert "decoupled" not in read_model(write(STEP.replace("PART", "broken"), name="over")).entry


def test_an_iterative_sequence(write: Write) -> None:
    text = 'backend: "python" sequence_batching { iterative_sequence: true }'
    entry = read_model(write(text, "model.py")).entry
    assert (entry["iterative"], "sequences" in entry) == (True, False)


def test_a_python_model_gets_its_configuration_whole(write: Write) -> None:
    text = """
backend: "python" max_batch_size: 4 model_transaction_policy { decoupled: True }
input { name: "x" data_type: TYPE_INT64 dims: [ -1 ] } output { name: "y" data_type: TYPE_STRING dims: 1 }
instance_group [ { kind: KIND_CPU } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }"""
    reading = read_model(write(text, "model.py"))
    entry = told(reading)
    config = entry.pop("triton_config")
    assert entry == {
        "backend": "triton_python",
        "versions": "latest",
        "device": "cpu",
        "decoupled": True,
        "max_batch_size": 4,
        "max_queue_size": 65536,
        "parameters": {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env.tar.gz"},
    }
    assert config["name"] == "m"
    assert config["default_model_filename"] == "model.py"
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["input"][0] == {
        "name": "x",
        "data_type": "TYPE_INT64",
        "format": "FORMAT_NONE",
        "dims": [-1],
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["instance_group"][0]["name"] == "m_0"
    assert config["instance_group"][0]["count"] == 1
    assert [str(note) for note in reading.notes] == [
        "config.pbtxt:5: parameters.EXECUTION_ENV_PATH is ignored: the model runs in the gateway's own interpreter"
    ]


@pytest.mark.parametrize(
    ("file", "backend"), [("model.onnx", "onnx"), ("model.py", "triton_python"), ("best.onnx", "onnx")]
)
def test_the_file_tells_the_backend(write: Write, file: str, backend: str) -> None:
    text = None if file.startswith("model") else f'default_model_filename: "{file}"'
    assert read_model(write(text, file, "notes.txt")).entry["backend"] == backend


WARMUP = """
model_warmup [
  { name: "one" batch_size: 8 count: 3 inputs { key: "x" value { random_data: true dims: 3 data_type: TYPE_FP32 } } },
  { inputs { key: "x" value { zero_data: true dims: [ 3 ] data_type: TYPE_FP32 } } },
  { batch_size: 1 inputs { key: "x" value { input_data_file: "raw/x" dims: 3 data_type: TYPE_FP32 } } }
]"""


def test_samples_of_the_warm_up(write: Write) -> None:
    folder = write(BATCHED + WARMUP, "model.onnx")
    reading = read_model(folder)
    assert reading.entry["warmup"] == [
        {"name": "one", "batch_size": 8, "count": 3, "inputs": {"x": {"shape": [3], "data": "random"}}},
        {"name": "", "batch_size": 1, "count": 1, "inputs": {"x": {"shape": [3], "data": "zeros"}}},
        {
            "name": "",
            "batch_size": 1,
            "count": 1,
            "inputs": {"x": {"shape": [3], "file": str(folder / "warmup/raw/x")}},
        },
    ]
    assert reading.notes == ()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("batch_size: 8", "batch_size: 9", "model_warmup.batch_size: 9 is more than max_batch_size, 8"),
        ("random_data: true dims: 3 data_type: TYPE_FP32", "dims: 3 data_type: TYPE_INT8", "'x' is INT8, but FP32 is"),
        ("dims: [ 3 ]", "dims: [ -1 ]", r"model_warmup\[1\].inputs: each of the dims \[-1\] of 'x' must be known"),
        ("raw/x", "../x", "must lie in the model's folder"),
    ],
)
def test_a_sample_that_cannot_be(write: Write, before: str, after: str, words: str) -> None:
    folder = write(BATCHED + WARMUP.replace(before, after), "model.onnx")
    with pytest.raises(ValueError, match=words):
        read_model(folder)


NOTES: dict[str, tuple[str, list[str]]] = {
    "optimization": (
        "optimization {\n  cuda { graphs: true\n    output_copy_stream: true }\n  execution_accelerators {\n"
        '    gpu_execution_accelerator : [ { name : "tensorrt" } ]\n  }\n  input_pinned_memory { enable: false } }',
        [
            "2: optimization.cuda.graphs is ignored: cuda_graph",
            "3: optimization.cuda.output_copy_stream is ignored: copies",
            "5: optimization.execution_accelerators.gpu_execution_accelerator is ignored: ONNX Runtime",
            "7: optimization.input_pinned_memory is ignored: copies",
        ],
    ),
    "single keys": (
        'runtime: "x"\nmetric_tags { key: "a" value: "b" }\nmodel_operations { op_library_filename: "o" }\n'
        'cc_model_filenames [ { key: "8.0" value: "a" } ]',
        [
            "1: runtime is ignored",
            "2: metric_tags is ignored",
            "3: model_operations is ignored",
            "4: cc_model_filenames is ignored",
        ],
    ),
    "groups beside every GPU": (
        "instance_group [\n{ kind: KIND_GPU },\n{ kind: KIND_CPU },\n{ kind: KIND_GPU } ]",
        ["3: instance_group[1] runs where the first group does, device: cuda:*"],
    ),
    "every GPU beside groups": (
        "instance_group [\n{ gpus: 0 },\n{ kind: KIND_GPU } ]",
        ["3: instance_group[1] is ignored: beside groups that name their GPUs, it must, too"],
    ),
    "a cache": ("response_cache { enable: true }", []),
    "instances": (
        "instance_group [\n{ count: 1 kind: KIND_GPU gpus: [ 1, 2 ] rate_limiter { priority: 2 } },\n"
        "{ kind: KIND_CPU\n host_policy: 'h' },\n{ passive: true kind: KIND_GPU } ]",
        [
            "2: instance_group.rate_limiter is ignored",
            "4: instance_group[1].host_policy is ignored",
            "5: instance_group[2].passive leaves its group out",
        ],
    ),
    "tensors": (
        ONE.replace("dims: 3", "dims: 3 allow_ragged_batch: true is_shape_tensor: false"),
        ["1: input.allow_ragged_batch is ignored"],
    ),
    "batchers": (
        "max_batch_size: 8\ndynamic_batching { preserve_ordering: true\n"
        "  priority_queue_policy { key: 2 value { max_queue_size: 8 } } }",
        [
            "2: dynamic_batching.preserve_ordering is ignored",
            "3: dynamic_batching.priority_queue_policy is ignored: there are no priority_levels",
        ],
    ),
    "sequences": (
        "sequence_batching { oldest { max_candidate_sequences: 4 }\nstate { input_name: 'a' output_name: 'b' "
        "data_type: TYPE_INT32 dims: 1\n use_growable_memory: true initial_state: [ {}, {} ] } }",
        [
            "1: sequence_batching.oldest.max_candidate_sequences is ignored",
            "3: sequence_batching.state.use_growable_memory is ignored",
            "3: sequence_batching.state.initial_state[1] is ignored",
        ],
    ),
    "parameters by name": (
        'parameters { key: "x" value { string_value: "1" } }\n'
        'parameters { key: "enable_mem_arena" value { string_value: "1" } }',
        ["2: parameters.enable_mem_arena is ignored"],
    ),
    "decoupled": ("model_transaction_policy { decoupled: true }", ["1: model_transaction_policy.decoupled is ignored"]),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes(write: Write, case: str) -> None:
    text, wanted = NOTES[case]
    notes = [str(note) for note in read_model(write(text)).notes]
    assert len(notes) == len(wanted), notes
    for note, start in zip(sorted(notes), sorted(wanted), strict=True):
        assert note.startswith(f"config.pbtxt:{start}"), notes


REFUSES: dict[str, tuple[str | bytes, str]] = {
    "an unknown key": ('\nnam: "x"', 'config.pbtxt:2:1: nam: unknown key "nam"; did you mean name?'),
    "an unknown key inside": (
        "input [ {\n  dtype: TYPE_FP32 } ]",
        'config.pbtxt:2:3: input.dtype: unknown key "dtype"',
    ),
    "a key of old": ('tags { key: "a" }', 'config.pbtxt:1:1: tags: unknown key "tags"'),
    "a wrong enum": (
        "input { data_type: FP32 }",
        'config.pbtxt:1:20: input.data_type: Enum type "inference.DataType" has no value named FP32.',
    ),
    "an unknown number of an enum": (
        "input { name: 'x' dims: 1 data_type: 99 }",
        "config.pbtxt:1:27: input.data_type: unknown data_type 99",
    ),
    "twice": ("max_batch_size: 1\nmax_batch_size: 2", 'should not have multiple "max_batch_size" fields.'),
    "text for a number": ('max_batch_size: "4"', "config.pbtxt:1:17: max_batch_size: Couldn't parse integer"),
    "a number for text": ("name: 3", "config.pbtxt:1:7: name: Expected string but found: '3'"),
    "too large": ("max_batch_size: 3000000000", "config.pbtxt:1:17: max_batch_size: Value out of range"),
    "negative": ("max_batch_size: -1", "config.pbtxt:1:1: max_batch_size: must be at least 0"),
    "cut short": ('input { name: "x"', "Expected"),
    "a text cut short": ('name: "x', "config.pbtxt:1:7: name: String missing ending quote"),
    "two schedulers": ("dynamic_batching {} sequence_batching {}", "another member of oneof"),
    "JSON": ('{"name": "m"}', "config.pbtxt:1:1: Expected identifier or number, got {."),
    "not text": (b"name: 'm'\n\xff\xfe", "config.pbtxt:2: not UTF-8 text"),
    "binary": (bytes(range(32)) * 8, "config.pbtxt:1:"),
    "deep": ("input {" * 140_000, 'unknown key "input"'),
    "deep lists": ("input " + "[" * 100_000, "config.pbtxt:1:"),
    "large": (b"#" * (MAX_BYTES + 1), "config.pbtxt: larger than 1 MiB"),
    "another name": ('name: "n"', 'config.pbtxt:1:1: name: "n" is not the name of its folder, m'),
    "another backend": ('backend: "tensorrt"', '"tensorrt" is not supported; onnxruntime, python, pytorch'),
    "another platform": ('platform: "tensorrt_plan"', 'config.pbtxt:1:1: platform: "tensorrt_plan" is not supported'),
    "platform and backend at odds": ('backend: "python" platform: "onnxruntime_onnx"', "is not a platform of"),
    "an ensemble of nothing": ('platform: "ensemble"', "an ensemble needs ensemble_scheduling"),
    "an ensemble by a backend": ('backend: "python" ensemble_scheduling {}', "is an ensemble"),
    "an ensemble without inputs": (
        'platform: "ensemble" ensemble_scheduling { step { model_name: "a" input_map { key: "a" value: "b" } '
        'output_map { key: "a" value: "b" } } }',
        "an ensemble needs its inputs declared",
    ),
    "a step without a model": ('platform: "ensemble" ' + ONE + "ensemble_scheduling { step {} }", "needs a model_name"),
    "no name": ("input { data_type: TYPE_FP32 dims: 1 }", "config.pbtxt:1:1: input: a tensor needs a name"),
    "no datatype": ("input { name: 'x' dims: 1 }", "a tensor needs a data_type"),
    "no dims": ("output [ {name: 'x' data_type: TYPE_FP32 } ]", "config.pbtxt:1:1: output: 'x' needs dims"),
    "a dimension of 0": (ONE.replace("dims: 2", "dims: [ 2, 0 ]"), "[2, 0] of 'y' must be at least 1, or -1"),
    "another size by reshape": (
        ONE.replace("dims: 3", "dims: 3 reshape { shape: [ 2 ] }"),
        "config.pbtxt:1:48: input.reshape: 'x' has different size for dims [3] and reshape [2]",
    ),
    "labels elsewhere": (ONE.replace("dims: 2", "dims: 2 label_filename: '../y'"), "must lie in the model's folder"),
    "labels at the root": (ONE.replace("dims: 2", "dims: 2 label_filename: '/y'"), "must lie in the model's folder"),
    "a file elsewhere": ("backend: 'onnxruntime' default_model_filename: 'a/../../b.onnx'", "must lie in the model's"),
    "no version": ("version_policy { latest { } }", "num_versions must be at least 1"),
    "version 0": ("version_policy { specific { versions: [ 0 ] } }", "versions must be given, each at least 1"),
    "a negative GPU": ("instance_group { kind: KIND_GPU gpus: -1 }", "no such GPU: -1"),
    "a negative count": ("instance_group { count: -1 }", "config.pbtxt:1:18: instance_group.count: must be at least 0"),
    "a kind of no meaning": ("instance_group { kind: 9 }", "unknown kind 9"),
    "no default priority": ("dynamic_batching { priority_levels: 2 }", "default_priority_level must be from 1 to"),
    "a policy for no priority": (
        "dynamic_batching { priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 2 value {} } }",
        "there is no priority 2 of 1",
    ),
    "a control of nothing": (
        "sequence_batching { control_input { name: 'a' control { kind: CONTROL_SEQUENCE_START } } }",
        "needs int32_false_true, fp32_false_true or bool_false_true with two values",
    ),
    "iterative sequences of no program": (
        "sequence_batching { iterative_sequence: true }",
        "sequence_batching.iterative_sequence: is supported for a python model alone",
    ),
    "iterative sequences with controls": (
        'backend: "python" sequence_batching { iterative_sequence: true control_input { name: "a" } }',
        "sequence_batching.control_input: is not supported with iterative_sequence",
    ),
    "a batch input": (
        "batch_input { kind: BATCH_ELEMENT_COUNT }",
        "config.pbtxt:1:1: batch_input: is not supported: Triton joins ragged inputs end to end",
    ),
    "an accumulated one": (
        "batch_input [{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: 'i' source_input: 'x' "
        "data_type: TYPE_FP32 }, { kind: BATCH_ITEM_SHAPE_FLATTEN }, { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE }]",
        "Give the model rows that are filled up to one length (see ragged), or serve it by Triton behind backend",
    ),
    "a ragged input": (
        BATCHED.replace("dims: 3", "dims: 3 allow_ragged_batch: true"),
        "config.pbtxt:2:48: input.allow_ragged_batch: is not supported: Triton joins ragged inputs end to end",
    ),
    "a limit of memory": (
        'parameters { key: "gpu_mem_limit" value { string_value: "2GB" } }',
        'gpu_mem_limit is "2GB", expected a number of bytes',
    ),
    "threads of text": (
        'parameters { key: "intra_op_thread_count" value { string_value: "many" } }',
        'config.pbtxt:1:1: parameters: intra_op_thread_count is "many", expected a number of threads',
    ),
    "an execution mode": (
        'parameters { key: "execution_mode" value { string_value: "2" } }',
        'execution_mode is "2", expected "0" or "1"',
    ),
    "an optimization level": ("optimization { graph { level: 7 } }", "found 7, expected -1, 0, 1 or 2"),
}


@pytest.mark.parametrize("case", REFUSES)
def test_refuses(write: Write, case: str) -> None:
    text, wanted = REFUSES[case]
    with pytest.raises(ValueError) as caught:
        read_model(write(text))
    assert wanted in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("model.plan", "model.plan is a TensorRT engine"),
        ("model.graphdef", "model.graphdef is a TensorFlow GraphDef"),
        ("model.xml", "model.xml is an OpenVINO model"),
        (
            "weights.bin",
            "no version has one of model.onnx, model.py, model.savedmodel, model.pt, model.pt2; found weights.bin",
        ),
    ],
)
def test_refuses_files(write: Write, file: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        read_model(write("max_batch_size: 1", file))


JSON_READS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("{}", {}),
    "quoted integers": ('{"max_batch_size": "16"}', {"max_batch_size": 16}),
    "names in the other style": ('{"maxBatchSize": 3}', {"max_batch_size": 3}),
    "null": ('{"input": null, "max_batch_size": 2}', {"max_batch_size": 2}),
    "a list": ('{"version_policy": {"specific": {"versions": ["2", 1]}}}', {"versions": [1, 2]}),
    "parameters": (
        '{"parameters": {"execution_mode": {"string_value": "1"}}}',
        {"parameters": {"execution_mode": "1"}, "execution_mode": "parallel"},
    ),
}


@pytest.mark.parametrize("case", JSON_READS)
def test_a_configuration_in_place_of_the_files(write: Write, case: str) -> None:
    text, changes = JSON_READS[case]
    assert told(read_model(write("max_batch_size: 77"), text)) == COMPLETED | changes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        '{"nam": 1}',
        '{"max_batch_size": "x"}',
        '{"max_batch_size": 1.5}',
        '{"max_batch_size": 1e400}',
        '{"name": 1}',
        '{"name": "\\ud800"}',
        '{"name": "n"}',
        '{"input": [{"data_type": "FP32"}]}',
        "[" * 100_000,
        '{"input":' * 100_000,
        '{"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1], "label_filename": "../x"}]}',
        '{"default_model_filename": "../../x.onnx", "backend": "onnxruntime"}',
    ],
)
def test_refuses_configurations(write: Write, text: str) -> None:
    with pytest.raises(ValueError, match="configuration: "):
        read_model(write(None), text)


def test_a_folder_of_another_name(write: Write) -> None:
    """As a load that brings its files makes one."""
    folder = write(None, name="upload-7")
    assert read_model(folder, '{"name": "m"}', name="m").entry["open_inference"]["model_config"]["name"] == "m"
    with pytest.raises(ValueError, match='configuration: name: "upload-7" is not the name of its folder, m'):
        read_model(folder, '{"name": "upload-7"}', name="m")


def test_a_response_cache_is_asked_for_by_name(write: Write) -> None:
    assert read_model(write("response_cache { enable: true }")).entry["response_cache"] is True
    assert "response_cache" not in read_model(write("response_cache { enable: false }", name="n")).entry


def test_notes_of_a_configuration_have_no_line(write: Write) -> None:
    (note,) = read_model(write(None), '{"cc_model_filenames": {"8.0": "a"}}').notes
    assert str(note) == "configuration: cc_model_filenames is ignored: one file serves every device"


def test_the_original_configuration_goes_along(write: Write) -> None:
    """As it is: what it does not say, the gateway knows better."""
    text = BATCHED + "dynamic_batching { priority_queue_policy { key: 2 value { timeout_action: DELAY } } }"
    entry = read_model(write(text)).entry
    assert entry["open_inference"] == {
        "model_config": {
            "name": "m",
            "max_batch_size": 8,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
            "dynamic_batching": {"priority_queue_policy": {"2": {"timeout_action": "DELAY"}}},
        }
    }


def test_every_key_is_honoured_or_ignored_by_name() -> None:
    """Down to where a table has it: no key of the message is in neither, none in both, none is invented."""

    def uncovered(descriptor: Any, path: str) -> list[str]:
        found = []
        for field in descriptor.fields:
            here = f"{path}{field.name}"
            known.add(here)
            if here in HONOURED or here in IGNORED:
                continue
            if field.message_type is None or len(here) > 200:
                found.append(here)
            else:
                found += uncovered(field.message_type, f"{here}.")
        return found

    known: set[str] = set()
    assert uncovered(message("inference.ModelConfig").DESCRIPTOR, "") == []
    assert HONOURED.isdisjoint(IGNORED)
    assert HONOURED | IGNORED.keys() <= known


def test_plain_writes_64_bit_integers_as_numbers() -> None:
    source = parse_text("dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 } input { dims: -1 }")
    assert plain(source.config, defaults=False) == {
        "input": [{"dims": [-1]}],
        "dynamic_batching": {"max_queue_delay_microseconds": 18446744073709551615},
    }
    assert "version_policy" not in plain(source.config, defaults=True)
    assert plain(source.config, defaults=True)["metric_tags"] == {}


def test_places() -> None:
    places = read_key_locations(
        'input [ { dims: [ 1, 2 ] },\n  { name: "b" } ] # input { }\ninput < name: "c" >\n'
        "parameters { key: 'k' value {} } parameters { key: 'l' }"
    )
    at = {path: (place.line, place.column, place.value) for path, place in places.found.items()}
    assert at["input[0].dims[0]"] == (1, 11, "")
    assert at["input[1].name[0]"] == (2, 5, "b")
    assert at["input[2].name[0]"] == (3, 9, "c")
    assert places.of("input[2].name") == places.of("input[2].name[0]")
    entry = places.of_entry("parameters", "l")
    assert entry is not None
    assert (entry.line, entry.column) == (4, 47)
    assert places.before(2, 6) == "input[1].name"


def test_what_others_wrote_stays_on_its_line(write: Write) -> None:
    folder = write('name: "a\\nFAILED b"', "model.onnx", "\udcff\n.bin")
    for text in (None, '{"name": "a\\nb"}', '{"a\\nb": 1}', '{"max_batch_size": "1\\n2"}', '{"platform": "\\u0007"}'):
        with pytest.raises(ValueError) as caught:
            read_model(folder, text)
        assert str(caught.value).isprintable()


def test_model_folders(write: Write, tmp_path: Path) -> None:
    for name in ("b", "a", ".git", "new\nline"):
        write(None, name=name)
    (tmp_path / "README").write_text("")
    assert model_folders(tmp_path) == {"a": tmp_path / "a", "b": tmp_path / "b"}


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        read_model(tmp_path / "gone")


WORDS = st.sampled_from(
    ["input", "output", "name", "dims", "reshape", "shape", "{", "}", "[", "]", "<", ">", ":", ",", '"', "'", "#", "\n",
     "data_type", "TYPE_FP32", "-1", "3", "parameters", "key", "value", "string_value", '"x"', "instance_group", "gpus",
     "dynamic_batching", "optimization", "cuda", "graphs", "true", "\\", "\x00", "é"]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(WORDS, max_size=40).map(" ".join) | st.text(max_size=60))
def test_garbage_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "garbage" / "m"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1/model.onnx").touch()
    (folder / "config.pbtxt").write_text(text, encoding="utf-8", errors="surrogateescape")
    remark = "config.pbtxt"
    try:
        assert json.dumps(read_model(folder).entry)
    except ValueError as error:
        remark = str(error)
    assert remark.startswith("config.pbtxt")


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "input", "dims", "max_batch_size", "parameters", "x", "instance_group"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    folder = tmp_path_factory.getbasetemp() / "json" / "m"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1/model.onnx").touch()
    remark = "configuration: "
    try:
        assert json.dumps(read_model(folder, json.dumps(value)).entry)
    except ValueError as error:
        remark = str(error)
    assert remark.startswith("configuration: ")


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    """To open one would wait for ever for somebody who writes."""
    os.mkfifo(tmp_path / "config.pbtxt")
    with pytest.raises(ValueError, match="not a file"):
        read_model(tmp_path)


@pytest.mark.parametrize("file", ["model.onnx", "model.pt", "model.savedmodel"])
def test_nobody_gets_ragged_inputs_that_were_not_asked_for(write: Write, file: str) -> None:
    """Joined end to end they would be other tensors than the ones declared."""
    folder = write(BATCHED.replace("dims: 3", "dims: 3 allow_ragged_batch: true"), file)
    with pytest.raises(ValueError, match="allow_ragged_batch: is not supported"):
        read_model(folder)
