"""Triton's own suites of `qa/`, one row each: what they need, and where they are deliberately answered otherwise.

The suites are Triton's and are not kept here: TRITON_QA names the folder of checkouts that FETCH makes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper
from triton_suite_models import IDENTITY, ITERATIVE, REPEAT

FETCH = (
    "git clone --branch v2.51.0 https://github.com/triton-inference-server/server $TRITON_QA/server; "
    "git clone --branch r24.10 https://github.com/triton-inference-server/python_backend $TRITON_QA/python_backend"
)
QA = "server/qa"
NAME = re.compile(r"^name:.*", re.MULTILINE)
DATATYPES = {
    "TYPE_FP32": TensorProto.FLOAT,
    "TYPE_FP16": TensorProto.FLOAT16,
    "TYPE_INT32": TensorProto.INT32,
    "TYPE_STRING": TensorProto.STRING,
}


def for_numpy_2(text: str) -> str:
    """Source code with what NumPy 2 no longer has written as it wants it."""
    return text.replace("np.NINF", "-np.inf")


def for_one_process(text: str) -> str:
    """A model that tests itself: `model` is a module of Triton's process for it, and sys.argv that process's."""
    return text.replace('unittest.main("model"', 'unittest.main(__import__("sys").modules[__name__], argv=[""]')


@dataclass(frozen=True, slots=True)
class Copied:
    """A model whose files the suites bring: a folder of the checkouts, or its `model.py` and `config.pbtxt`."""

    source: str
    name: str = ""
    """As which it is served, where not as its folder is called."""
    replace: tuple[tuple[str, str], ...] = ()
    """Texts of its configuration and what stands in their place."""
    append: str = ""
    """To the configuration."""
    program: str = "model.py"
    config: str = "config.pbtxt"
    model: str = ""
    """Source of a Python model that stands in for a compiled backend."""
    more: str = ""
    """To the source of its Python model."""
    copies: tuple[int, ...] = ()
    """Further versions, the same as the first."""

    def write(self, checkouts: Path, repository: Path) -> None:
        source = checkouts / self.source
        target = repository / (self.name or source.name)
        (target / "1").mkdir(parents=True)
        if (source / self.config).exists():
            text = (source / self.config).read_text()
            for old, new in self.replace:
                assert old in text, f"{self.source} does not say {old}"
                text = text.replace(old, new)
            text = NAME.sub(f'name: "{target.name}"', text, count=1)
            (target / "config.pbtxt").write_text(f"{text}\n{self.append}")
        if self.model:
            (target / "1/model.py").write_text(self.model)
        elif (source / "1").is_dir():
            shutil.copytree(source / "1", target / "1", dirs_exist_ok=True)
        if not self.model and (source / self.program).exists():
            shutil.copyfile(source / self.program, target / "1/model.py")
            for helper_file in source.glob("*_common.py"):
                shutil.copyfile(helper_file, target / "1" / helper_file.name)
        if self.more:
            (target / "1/model.py").write_text((target / "1/model.py").read_text() + self.more)
        for file in (target / "1").glob("*.py"):
            file.write_text(for_one_process(for_numpy_2(file.read_text())))
        for version in self.copies:
            shutil.copytree(target / "1", target / str(version))


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Another configuration of a model of the checkouts, which tests put in place of its own."""

    source: str
    name: str
    append: str

    def write(self, checkouts: Path, folder: Path) -> None:
        text = (checkouts / self.source / "config.pbtxt").read_text()
        text = text.replace('backend: "identity"', 'backend: "python"')
        (folder / self.name).write_text(f"{text}\n{self.append}\n")


@dataclass(frozen=True, slots=True)
class OnnxIdentity:
    """INPUT0, INPUT1… given back as OUTPUT0, OUTPUT1…: what Triton's generators write for `onnx_zero_*`."""

    name: str
    datatype: str
    count: int = 1
    dims: tuple[int, ...] = (-1,)
    append: str = ""
    max_batch_size: int = 8

    def write(self, checkouts: Path, repository: Path) -> None:
        def infos(kind: str) -> list[Any]:
            rows = [None] if self.max_batch_size else []
            shape = [*rows, *(None if size < 0 else size for size in self.dims)]
            return [
                helper.make_tensor_value_info(f"{kind}{n}", DATATYPES[self.datatype], shape) for n in range(self.count)
            ]

        nodes = [helper.make_node("Identity", [f"INPUT{n}"], [f"OUTPUT{n}"]) for n in range(self.count)]
        graph = helper.make_graph(nodes, self.name, infos("INPUT"), infos("OUTPUT"))
        folder = repository / self.name
        (folder / "1").mkdir(parents=True)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, folder / "1/model.onnx")
        tensors = "\n".join(
            f'{kind} [ {{ name: "{kind.upper()}{n}" data_type: {self.datatype} dims: {list(self.dims)} }} ]'
            for kind in ("input", "output")
            for n in range(self.count)
        )
        head = f'name: "{self.name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: {self.max_batch_size}\n'
        (folder / "config.pbtxt").write_text(f"{head}{tensors}\n{self.append}\n")


@dataclass(frozen=True, slots=True)
class OnnxAddSub:
    """The sum and the difference of INPUT0 and INPUT1: what Triton's generators and its quick start call `simple`."""

    name: str
    datatype: str = "TYPE_INT32"
    dims: tuple[int, ...] = (16,)
    outputs: tuple[str, str] = ("OUTPUT0", "OUTPUT1")
    versions: tuple[int, ...] = (1,)
    max_batch_size: int = 8
    empty: tuple[int, ...] = ()
    """Further versions, whose folders have no file."""
    swaps: bool = False
    """Whether versions after the first give the difference before the sum, as those of Triton's generators do."""
    policy: str = "all {}"
    folders: Mapping[int, str] = field(default_factory=dict)
    """What the folder of a version is called where that is not its number."""

    def write(self, checkouts: Path, repository: Path) -> None:
        batch = [None] if self.max_batch_size else []
        shape = [*batch, *(None if size < 0 else size for size in self.dims)]
        kind = DATATYPES[self.datatype]
        infos = {name: helper.make_tensor_value_info(name, kind, shape) for name in ("INPUT0", "INPUT1", *self.outputs)}
        inputs = [infos["INPUT0"], infos["INPUT1"]]
        folder = repository / self.name
        folder.mkdir()
        for version in (*self.versions, *self.empty):
            (folder / self.folders.get(version, str(version))).mkdir()
        for version in self.versions:
            operators = ("Sub", "Add") if self.swaps and version > 1 else ("Add", "Sub")
            nodes = [
                helper.make_node(operator, ["INPUT0", "INPUT1"], [output])
                for operator, output in zip(operators, self.outputs, strict=True)
            ]
            graph = helper.make_graph(nodes, self.name, inputs, [infos[each] for each in self.outputs])
            made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
            onnx.save(made, folder / self.folders.get(version, str(version)) / "model.onnx")
        head = f'name: "{self.name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: {self.max_batch_size}\n'
        tensors = "\n".join(
            f'{way} [ {{ name: "{name}" data_type: {self.datatype} dims: {list(self.dims)} }} ]'
            for way, names in (("input", ("INPUT0", "INPUT1")), ("output", self.outputs))
            for name in names
        )
        (folder / "config.pbtxt").write_text(f"{head}{tensors}\nversion_policy: {{ {self.policy} }}\n")


@dataclass(frozen=True, slots=True)
class Written:
    """A model whose configuration a suite's test.sh writes, or that has none among the checkouts."""

    name: str
    config: str
    model: str = ""
    """Source of its `model.py`, where it has one."""
    versions: tuple[int, ...] = (1,)

    def write(self, checkouts: Path, repository: Path) -> None:
        for version in self.versions:
            folder = repository / self.name / str(version)
            folder.mkdir(parents=True)
            if self.model:
                (folder / "model.py").write_text(self.model)
        (repository / self.name / "config.pbtxt").write_text(f'name: "{self.name}"\n{self.config}\n')


@dataclass(frozen=True, slots=True)
class Sums:
    """Triton's Python model that sums a sequence up, configured as its generator configures the ONNX one."""

    name: str
    control: str
    """int32 or bool"""

    def write(self, checkouts: Path, repository: Path) -> None:
        source = (checkouts / QA / "python_models/sequence_int32/model.py").read_text()
        config = (
            'backend: "python"\nmax_batch_size: 0\ninput [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
            'output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
            "instance_group [ { kind: KIND_CPU count: 4 } ]" + SEQUENCE_CONTROLS.replace("TYPE", self.control)
        )
        Written(self.name, config, source).write(checkouts, repository)


Model = Copied | OnnxIdentity | OnnxAddSub | Written | Sums


@dataclass(frozen=True, slots=True)
class Suite:
    """One run of a module of tests against one gateway."""

    name: str
    folder: str
    """Below `qa/`."""
    module: str
    count: int
    """How many tests run."""
    models: tuple[Model, ...]
    only: tuple[str, ...] = ()
    """Names of tests or of their classes; nothing is all."""
    alone: bool = False
    """Whether each of `only` has a gateway of its own, as the suite's `test.sh` does it."""
    edits: tuple[tuple[str, str], ...] = ()
    """Texts of the module and what stands in their place."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the gateway's configuration."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, as the suite's `test.sh` sets them."""
    beside: tuple[Model | ConfigFile, ...] = ()
    """What is in the tests' own folder, and they put into the repository."""
    is_ready: bool = True
    """Whether the gateway becomes ready: not all of its models need to load."""
    needs_torch: bool = False
    """Its models import torch: served from .venv-torch."""
    gpu: tuple[str, ...] = ()
    """Tests (class.name) that need a GPU: where there is none, their outcome does not count."""
    differs: Mapping[str, str] = field(default_factory=dict)
    """Tests that are to fail (class.name), and why."""


def python(*names: str, **more: Any) -> tuple[Copied, ...]:
    """Models of `qa/python_models`, as they are."""
    return tuple(Copied(f"{QA}/python_models/{name}", **more) for name in names)


def there(folder: str, *names: str) -> tuple[Copied, ...]:
    """Models that lie below a suite's own folder."""
    return tuple(Copied(f"{QA}/{folder}/{name}") for name in names)


BACKEND_IDENTITY = {"replace": (('backend: "identity"', 'backend: "python"'),), "model": IDENTITY}
TRAILING_SPACE = dict.fromkeys(
    (
        "InferenceParametersTest.test_async_http_parameter",
        "InferenceParametersTest.test_ensemble_parameter_forwarding",
        "InferenceParametersTest.test_http_async_parameter",
        "InferenceParametersTest.test_http_parameter",
    ),
    "it sends a header of HTTP whose value ends in a space, which is no part of the value (RFC 9110, 5.5)",
)
DECOUPLED = "model_transaction_policy { decoupled: True }"
DELAYED = "dynamic_batching { max_queue_delay_microseconds: 500000 }"
SQUARE = Copied(
    "python_backend/examples/decoupled", "square_int32", program="square_model.py", config="square_config.pbtxt"
)


def page() -> str:
    """What docs/triton-suites.md says below its first paragraphs: the suites, and the tests that are to fail."""
    rows = ["| suite | tests | pass | need a GPU | differ |", "|---|---|---|---|---|"]
    reasons = ["| test | why it is answered otherwise |", "|---|---|"]
    for suite in SUITES:
        passing = suite.count - len(suite.gpu) - len(suite.differs)
        rows.append(f"| {suite.name} | {suite.count} | {passing} | {len(suite.gpu)} | {len(suite.differs)} |")
        reasons += [f"| {suite.name}: {test.partition('.')[2]} | {why} |" for test, why in suite.differs.items()]
    return "\n".join([*rows, "", *reasons, ""])


def batch_of_8(delay_us: int) -> dict[str, Any]:
    """Edits of a model's configuration: batches of eight rows, which wait for that long."""
    delay = f"max_queue_delay_microseconds: {delay_us}"
    return {
        "replace": (("max_batch_size: 64", "max_batch_size: 8"),),
        "append": f"dynamic_batching {{ preferred_batch_size: [ 8 ] {delay} }}",
    }


def response_senders() -> tuple[Copied, ...]:
    """The eight forms of one model: with answers in any number, of its loop, in batches."""
    return tuple(
        Copied(
            f"{QA}/python_models/response_sender",
            f"response_sender{decoupled}{way}{batching}",
            append=f"{DECOUPLED if decoupled else ''}\n{DELAYED if batching else ''}",
            program="model_async.py" if way else "model.py",
        )
        for decoupled in ("", "_decoupled")
        for way in ("", "_async")
        for batching in ("", "_batching")
    )


def parameters(test: str, pattern: str = "", grpc_only: bool = False, **more: Any) -> Suite:
    patterns = {"grpc_header_forward_pattern": pattern} if pattern else {}
    if pattern and not grpc_only:
        patterns["http_header_forward_pattern"] = pattern
    own = "L0_parameters/model_repository"
    models = (Copied(f"{QA}/{own}/identity", **BACKEND_IDENTITY), *there(own, "parameter", "ensemble"))
    options = {"open_inference": patterns} if patterns else {}
    return Suite(
        f"L0_parameters {test}",
        "L0_parameters",
        "parameters_test",
        8,
        models,
        options=options,
        variables={"TEST_HEADER": test},
        **more,
    )


def dlpack_io(trial: str, model: str, **more: Any) -> Suite:
    models = (*(Copied(f"{QA}/python_models/{model}", f"dlpack_io_identity_{n}") for n in (1, 2, 3)),)
    return Suite(
        f"L0_backend_python/io {trial}",
        "L0_backend_python/io",
        "io_test",
        1,
        (*models, *python("ensemble_io")),
        only=("test_ensemble_io",),
        variables={"TRIAL": trial},
        needs_torch=True,
        **more,
    )


REPEAT_CONFIG = """
backend: "python"
max_batch_size: 0
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }
]
output [
  { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }
]
instance_group [ { kind: KIND_CPU } ]
"""
ENSEMBLE_OF_DYNAMIC_BATCH = """
platform: "ensemble"
max_batch_size: 1
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  {
    model_name: "dynamic_batch" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "out" }
  },
  {
    model_name: "dynamic_batch" model_version: -1
    input_map { key: "INPUT0" value: "out" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
  }
] }
"""


SHARED_MEMORY = {"shared_memory": {"system": True, "cuda": True}}


def repeat(unit_s: float, decoupled: bool = True) -> Written:
    """Triton's model of its backend `repeat`, its milliseconds counted in `unit_s`."""
    policy = DECOUPLED if decoupled else ""
    unit = f'parameters {{ key: "unit_s" value: {{ string_value: "{unit_s}" }} }}'
    return Written("repeat_int32", f"{REPEAT_CONFIG}\n{policy}\n{unit}", REPEAT)


def identity(name: str, datatype: str, dims: int, max_batch_size: int, *more: str, delay_ms: int = 0) -> Written:
    """A model of Triton's backend `identity`, as a `test.sh` writes its configuration."""
    tensors = [
        f'{way} [ {{ name: "{way.upper()}0" data_type: {datatype} dims: [ {dims} ] }} ]' for way in ("input", "output")
    ]
    delay = f'parameters {{ key: "execute_delay_ms" value: {{ string_value: "{delay_ms}" }} }}'
    head = f'backend: "python"\nmax_batch_size: {max_batch_size}\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]'
    return Written(name, "\n".join([head, *tensors, delay, *more]), IDENTITY)


WAIT = "max_queue_delay_microseconds: 100000"
LONG = "max_queue_delay_microseconds: 10000000"
PREFERRED = "preferred_batch_size: [ 4, 8 ]"
SEQUENCE_CONTROLS = """
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START TYPE_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY TYPE_false_true: [ 0, 1 ] } ] }
  ]
}
"""


def sequence_models() -> tuple[Sums, ...]:
    """What test.sh makes of Triton's Python model of sequences, without batches on four instances."""
    return tuple(Sums(f"python_nobatch_sequence_{kind}", kind) for kind in ("int32", "bool"))


def delayed(name: str, batching: str = "") -> Copied:
    """An identity of L0_metrics, which takes two seconds a run."""
    return Copied(f"{QA}/L0_metrics/identity_delay", name, append=batching, **BACKEND_IDENTITY)


def model_queue(test: str, batching: str, delay_ms: int = 0, differs: str = "") -> Suite:
    """One test of L0_model_queue, which has models of its own."""
    zero = identity(
        "custom_zero_1_float32", "TYPE_FP32", -1, 32, f"dynamic_batching {{ {batching} }}", delay_ms=delay_ms
    )
    return Suite(
        f"L0_model_queue {test}",
        "L0_model_queue",
        "model_queue_test",
        1,
        (zero, *there("L0_model_queue", "ensemble_zero_1_float32")),
        only=(test,),
        options={"readiness": "lenient"},
        differs={f"ModelQueueTest.{test}": differs} if differs else {},
    )


def shared_memory(client: str) -> tuple[Suite, Suite]:
    return (
        Suite(
            f"L0_shared_memory {client}",
            "L0_shared_memory",
            "shared_memory_test",
            13,
            (OnnxAddSub("simple"),),
            only=(
                "test_invalid_create_shm",
                "test_valid_create_set_register",
                "test_unregister_before_register",
                "test_unregister_after_register",
                "test_reregister_after_register",
                "test_unregister_after_inference",
                "test_register_after_inference",
                "test_too_big_shm",
                "test_mixed_raw_shm",
                "test_unregisterall",
                "test_infer_offset_out_of_bound",
                "test_infer_byte_size_out_of_bound",
                "test_register_out_of_bound",
            ),
            alone=True,
            options=SHARED_MEMORY,
            variables={"CLIENT_TYPE": client},
            differs={
                "SharedMemoryTest.test_invalid_create_shm": "it expects words of its own client that this has no longer"
            },
        ),
        Suite(
            f"L0_shared_memory unregister {client}",
            "L0_shared_memory",
            "shared_memory_test",
            1,
            python("execute_delayed_model"),
            only=(f"test_unregister_shm_during_inference_{client}",),
            options=SHARED_MEMORY,
            variables={"CLIENT_TYPE": client},
            differs={
                f"TestSharedMemoryUnregister.test_unregister_shm_during_inference_{client}": (
                    "a region may be unregistered at any time: what requests use of it stays mapped until they are done"
                )
            },
        ),
    )


def own_unittest(folder: str, model: str, *models: Model, **more: Any) -> Suite:
    """A Python model whose one request runs unittest in it."""
    return Suite(
        f"L0_backend_python/{folder} {model}",
        "L0_backend_python",
        "test_infer_shm_leak",
        1,
        models,
        edits=(("import pytest\n", ""), ("class TestInferShmLeak:", "class TestInferShmLeak(unittest.TestCase):")),
        variables={"MODEL_NAME": model, "BLS_KIND": "non_decoupled"},
        **more,
    )


def add_sub(base: str, **more: Any) -> OnnxAddSub:
    """What Triton's generators call BASE_float32_float32_float32: versions 1 to 3, of which 1 and 3 are served."""
    facts: dict[str, Any] = {
        "versions": (1, 2, 3), "swaps": True, "policy": "specific { versions: [ 1, 3 ] }", "max_batch_size": 1
    }  # fmt: skip
    return OnnxAddSub(f"{base}_float32_float32_float32", "TYPE_FP32", **(facts | more))


def lifecycle(test: str, *models: Model, differs: str = "", **more: Any) -> Suite:
    """One test of L0_lifecycle, which has models and options of its own."""
    return Suite(
        f"L0_lifecycle {test}",
        "L0_lifecycle",
        "lifecycle_test",
        1,
        models,
        only=(f"test_{test}",),
        differs={f"LifeCycleTest.test_{test}": differs} if differs else {},
        **more,
    )


HISTOGRAMS = "latencies are counters, as by default, and histograms of the gateway's own: there are no summaries"
SLOW_TO_LOAD = """
    def initialize(self, args):
        import time
        time.sleep(10)
"""
SIMPLE_ENSEMBLE = """
platform: "ensemble"
max_batch_size: 1
version_policy: { specific { versions: [ 1, 3 ] } }
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
ensemble_scheduling { step [
  {
    model_name: "onnx_float32_float32_float32" model_version: -1
    input_map [ { key: "INPUT0" value: "INPUT0" }, { key: "INPUT1" value: "INPUT1" } ]
    output_map [ { key: "OUTPUT0" value: "OUTPUT0" }, { key: "OUTPUT1" value: "OUTPUT1" } ]
  }
] }
"""
"""What Triton's generators call simple_onnx_float32_float32_float32."""
EXPLICIT = {"model_control": {"mode": "explicit"}}
POLL = {"mode": "poll", "poll_seconds": 1}
LENIENT = {"readiness": "lenient"}
ZERO_OF_5_S = identity("custom_zero_1_float32", "TYPE_FP32", 1, 1, "dynamic_batching { }", delay_ms=5000)
SLOW_ZERO = 'parameters { key: "creation_delay_sec" value: { string_value: "10" } }'
ENSEMBLE_ZERO = Copied(f"{QA}/L0_lifecycle/ensemble_zero_1_float32")
LIFECYCLE_ZERO = f"{QA}/L0_lifecycle/identity_zero_1_int32"
IDENTITY_ZERO = Copied(f"{QA}/L0_lifecycle/identity_zero_1_int32", **BACKEND_IDENTITY)


def on_reload(number: str, protocol: str) -> Suite:
    """One of three tests of a model that is loaded anew, by one of two clients."""
    policies = {
        "": "latest { num_versions: 1 }",
        "_2": "specific { versions: [ 1 ] }",
        "_3": "specific { versions: [ 1 ] }",
    }
    test = f"model_availability_on_reload{number}"
    return replace(
        lifecycle(
            test,
            Copied(
                LIFECYCLE_ZERO,
                append=f"version_policy {{ {policies[number]} }}",
                copies=(2,) if number else (),
                **BACKEND_IDENTITY,
            ),
            options={"model_control": {"mode": "explicit", "load": ["*"]}},
            beside=(
                ConfigFile(LIFECYCLE_ZERO, "config.pbtxt.v2", "version_policy { specific { versions: [ 2 ] } }"),
                ConfigFile(LIFECYCLE_ZERO, "config.pbtxt.new", "version_policy { specific { versions: [ 1 ] } }"),
            ),
            edits=(
                (
                    'os.mkdir("models/" + model_name + "/2")',
                    'shutil.copytree("models/" + model_name + "/1", "models/" + model_name + "/2")',
                ),
            ),
            variables={"TRITONSERVER_USE_GRPC": "1"} if protocol == "grpc" else {},
        ),
        name=f"L0_lifecycle {test} {protocol}",
    )


SUITES = (
    Suite("L0_http generate", "L0_http", "generate_endpoint_test", 17, there("L0_http/generate_models", "mock_llm")),
    Suite(
        "L0_http infer",
        "L0_http",
        "http_test",
        9,
        (
            OnnxIdentity("onnx_zero_1_float32", "TYPE_FP32"),
            OnnxIdentity("onnx_zero_1_object", "TYPE_STRING"),
            OnnxIdentity("onnx_zero_1_float16", "TYPE_FP16", dims=(-1, -1)),
            OnnxIdentity("onnx_zero_3_float32", "TYPE_FP32", count=3),
            OnnxIdentity("onnx_zero_1_object_1_element", "TYPE_STRING", dims=(1,)),
            OnnxIdentity(
                "onnx_zero_1_float32_queue",
                "TYPE_FP32",
                append="dynamic_batching { max_queue_delay_microseconds: 1000000 preferred_batch_size: [ 8 ] "
                "default_queue_policy { max_queue_size: 1 } }",
            ),
        ),
        differs={
            "HttpTest.test_content_encoding_chunked_manually": "it sends Content-Length beside Transfer-Encoding, "
            "which lets two servers read one message as different ones (RFC 9112, 6.3): refused"
        },
    ),
    Suite(
        "L0_http plug-ins", "L0_http", "http_client_plugin_test", 4, (OnnxIdentity("onnx_zero_1_float32", "TYPE_FP32"),)
    ),
    parameters("test_params"),
    parameters("test_headers", "my_header.*", differs=TRAILING_SPACE),
    parameters("test_header_forward_pattern_case_insensitive", "MY_HEADER.*", differs=TRAILING_SPACE),
    parameters("test_grpc_header_forward_pattern_case_sensitive", "(?-i)MY_HEADER.*", grpc_only=True),
    Suite(
        "L0_input_validation",
        "L0_input_validation",
        "input_validation_test",
        5,
        there("L0_input_validation/models", "input_all_optional", "input_all_required", "input_optional"),
        only=("InputValTest",),
    ),
    Suite("L0_nan_inf", "L0_nan_inf", "nan_inf_test", 3, there("L0_nan_inf/models", "nan_inf_output")),
    Suite(
        "L0_backend_python/decoupled",
        "L0_backend_python/decoupled",
        "decoupled_test",
        7,
        (
            *python("identity_fp32", "execute_cancel", "dlpack_add_sub"),
            SQUARE,
            *there(
                "L0_backend_python/decoupled/models",
                "decoupled_bls",
                "decoupled_bls_stream",
                "decoupled_execute_error",
                "decoupled_raise_exception",
                "decoupled_return_response_error",
                "decoupled_send_after_close_error",
            ),
        ),
        needs_torch=True,
        gpu=("DecoupledTest.test_decoupled_bls",),
        differs={
            "DecoupledTest.test_decoupled_execute_error": "it expects two requests in one call of execute: a decoupled "
            "model is called for one at a time",
        },
    ),
    Suite(
        "L0_backend_python/response_sender",
        "L0_backend_python/response_sender",
        "response_sender_test",
        19,
        response_senders(),
    ),
    Suite(
        "L0_backend_python/lifecycle",
        "L0_backend_python/lifecycle",
        "lifecycle_test",
        8,
        (
            *python("error_code", "execute_cancel", "execute_return_error"),
            Copied(f"{QA}/python_models/execute_error", **batch_of_8(12_000_000)),
            Copied(f"{QA}/python_models/execute_grpc_error", **batch_of_8(1_200_000)),
            *python("wrong_model", replace=(("TYPE_FP32", "TYPE_UINT32"),)),
        ),
    ),
    dlpack_io("default", "dlpack_io_identity", gpu=("IOTest.test_ensemble_io",)),
    dlpack_io(
        "decoupled",
        "dlpack_io_identity_decoupled",
        gpu=("IOTest.test_ensemble_io",),
    ),
    Suite(
        "L0_backend_python/bls parameters",
        "L0_backend_python/bls",
        "bls_parameters_test",
        1,
        python("bls_parameters"),
    ),
    Suite(
        "L0_backend_python/ensemble",
        "L0_backend_python/ensemble",
        "ensemble_test",
        2,
        (
            Copied(f"{QA}/python_models/add_sub", "add_sub_1"),
            Copied(f"{QA}/python_models/add_sub", "add_sub_2"),
            *python("ensemble"),
        ),
        differs={"EnsembleTest.test_ensemble_gpu": "its models are programs of Triton's build, not made here"},
    ),
    Suite(
        "L0_backend_python/request_rescheduling",
        "L0_backend_python/request_rescheduling",
        "grpc_endpoint_test",
        2,
        python("bls_request_rescheduling", "request_rescheduling_addsub", "iterative_sequence", "wrong_return_type"),
        options={"model_control": {"mode": "explicit", "load": ["*"]}},
    ),
    Suite(
        "L0_backend_python/model_control",
        "L0_backend_python/model_control",
        "model_control_test",
        1,
        python("identity_fp32", "simple_identity_fp32"),
        options={"model_control": {"mode": "explicit"}},
    ),
    Suite(
        "L0_decoupled",
        "L0_decoupled",
        "decoupled_test",
        6,
        (
            repeat(0.0001),
            Copied(f"{QA}/L0_decoupled/models/identity_int32", **BACKEND_IDENTITY),
            *there(
                "L0_decoupled/models",
                "repeat_square",
                "sequence_repeat",
                "fan_repeat",
                "nested_square",
                "simple_repeat",
            ),
            SQUARE,
            OnnxAddSub(
                "libtorch_nobatch_int32_int32_int32",
                dims=(1,),
                outputs=("OUTPUT__1", "OUTPUT__0"),
                max_batch_size=0,
            ),
        ),
        only=(
            "test_one_to_none",
            "test_one_to_one",
            "test_one_to_many",
            "test_no_streaming",
            "test_response_order",
            "test_wrong_shape",
        ),
        edits=(("request_delay / 1000", "request_delay / 10000"),),
    ),
    Suite(
        "L0_decoupled NonDecoupledTest",
        "L0_decoupled",
        "decoupled_test",
        2,
        (repeat(0.001, decoupled=False),),
        only=("NonDecoupledTest",),
    ),
    Suite(
        "L0_simple_ensemble",
        "L0_simple_ensemble",
        "ensemble_test",
        3,
        (
            OnnxAddSub("simple", versions=(1, 2)),
            *there("L0_simple_ensemble/models", "ensemble_add_sub_int32_int32_int32"),
        ),
        only=("test_ensemble_add_sub", "test_ensemble_sequence_flags", "test_ensemble_add_sub_one_output"),
        alone=True,
        differs={
            "EnsembleTest.test_ensemble_sequence_flags": (
                "an ensemble's answer does not say again which sequence its caller has named"
            )
        },
    ),
    Suite(
        "L0_string_io",
        "L0_string_io",
        "string_client_test",
        1,
        (
            identity("graphdef_nobatch_zero_1_object", "TYPE_STRING", -1, 0),
            *python("string_identity", replace=(("[ 1 ]", "[ 8 ]"),)),
        ),
    ),
    *shared_memory("http"),
    *shared_memory("grpc"),
    Suite(
        "L0_grpc_state_cleanup",
        "L0_grpc_state_cleanup",
        "cleanup_test",
        13,
        (identity("custom_zero_1_float32", "TYPE_FP32", 1, 1, delay_ms=1000), repeat(0.001)),
        only=(
            "test_simple_infer",
            "test_simple_infer_cancellation",
            "test_simple_infer_timeout",
            "test_streaming_infer",
            "test_streaming_timeout",
            "test_streaming_cancellation",
            "test_streaming_infer_shutdownserver",
            "test_decoupled_infer",
            "test_decoupled_cancellation",
            "test_decoupled_timeout",
            "test_decoupled_infer_shutdownserver",
            "test_decoupled_infer_with_params_shutdownserver",
            "test_decoupled_infer_complete",
        ),
        alone=True,
        edits=(("SERVER_PID = None", 'SERVER_PID = os.environ["SERVER_PID"]'),),
    ),
    Suite(
        "L0_http aio",
        "L0_http",
        "python_http_aio_test",
        18,
        (OnnxAddSub("simple"), *(OnnxAddSub(f"simple_{n}") for n in range(6))),
        options=SHARED_MEMORY,
    ),
    Suite(
        "L0_grpc aio",
        "L0_grpc",
        "python_grpc_aio_test",
        18,
        (OnnxAddSub("simple"), *(OnnxAddSub(f"simple_{n}") for n in range(7))),
        options=SHARED_MEMORY,
        gpu=("TestGrpcAioClient.test_register_cuda_shared_memory",),
    ),
    Suite(
        "L0_grpc plug-ins",
        "L0_grpc",
        "grpc_client_plugin_test",
        2,
        there("L0_grpc/client_plugin_models", "client_plugin_test"),
        options={"open_inference": {"grpc_header_forward_pattern": ".*"}},
    ),
    Suite(
        "L0_request_cancellation gRPC",
        "L0_request_cancellation",
        "grpc_cancellation_test",
        4,
        (identity("custom_identity_int32", "TYPE_INT32", -1, 1024, delay_ms=10000),),
        only=(
            "test_grpc_async_infer",
            "test_grpc_stream_infer",
            "test_aio_grpc_async_infer",
            "test_aio_grpc_stream_infer",
        ),
        alone=True,
    ),
    Suite(
        "L0_request_cancellation schedulers",
        "L0_request_cancellation",
        "scheduler_test",
        6,
        (
            identity(
                "dynamic_batch",
                "TYPE_FP32",
                -1,
                2,
                "dynamic_batching { max_queue_delay_microseconds: 600000 }",
                delay_ms=6000,
            ),
            identity(
                "sequence_direct",
                "TYPE_FP32",
                -1,
                1,
                "sequence_batching { direct { } max_sequence_idle_microseconds: 6000000 }",
                delay_ms=6000,
            ),
            identity(
                "sequence_oldest",
                "TYPE_FP32",
                -1,
                1,
                "sequence_batching { oldest { max_candidate_sequences: 1 } max_sequence_idle_microseconds: 6000000 }",
                delay_ms=6000,
            ),
            Written("ensemble_model", ENSEMBLE_OF_DYNAMIC_BATCH),
        ),
    ),
    Suite(
        "L0_iterative_sequence",
        "L0_iterative_sequence",
        "iterative_sequence_e2e",
        6,
        (
            Copied(
                f"{QA}/L0_iterative_sequence/models/iterative_sequence",
                replace=(('backend: "iterative_sequence"', 'backend: "python"'),),
                model=ITERATIVE,
            ),
        ),
        options={"model_control": {"mode": "explicit"}},
        edits=(('"backend": "iterative_sequence"', '"backend": "python"'), (", direct: {", ', "direct": {')),
        differs={
            "IterativeSequenceTest.test_reschedule_error": (
                "a request that its model has not given back yet is no idle sequence"
            )
        },
    ),
    Suite(
        "L0_backend_python",
        "L0_backend_python",
        "python_test",
        12,
        (
            *python("identity_fp32", "identity_bf16", "delayed_model", "optional", "non_contiguous"),
            *python("string", "string_fixed", "dlpack_identity"),
            *python("init_args"),
            Copied(
                f"{QA}/python_models/identity_fp32",
                "identity_uint8",
                replace=(("TYPE_FP32", "TYPE_UINT8"), ("max_batch_size: 64", "max_batch_size: 8")),
                append="dynamic_batching { preferred_batch_size: [8], max_queue_delay_microseconds: 12000000 }",
            ),
            Copied(
                f"{QA}/python_models/identity_fp32",
                "identity_uint8_nobatch",
                replace=(("TYPE_FP32", "TYPE_UINT8"), ("max_batch_size: 64", "")),
            ),
            Copied(f"{QA}/python_models/identity_fp32", "identity_uint32", replace=(("TYPE_FP32", "TYPE_UINT32"),)),
            Copied(f"{QA}/python_models/identity_fp32", "identity_bool", replace=(("TYPE_FP32", "TYPE_BOOL"),)),
            *python("pytorch_fp32_fp32"),
        ),
        options={"readiness": "lenient"},
        needs_torch=True,
        gpu=("PythonTest.test_gpu_tensor_error", "PythonTest.test_dlpack_tensor_error"),
        differs={
            "PythonTest.test_bf16": "its own client refuses the array that it makes: since 26.06 it wants ml_dtypes",
            "PythonTest.test_growth_error": "it fills memory between Triton and its Python models: here is none",
            "PythonTest.test_init_args": "its model expects to lie in a folder of Triton's image",
        },
    ),
    Suite(
        "L0_backend_python/async_execute",
        "L0_backend_python/async_execute",
        "concurrency_test",
        6,
        python("async_execute_decouple", "async_execute_decouple_bls"),
    ),
    Suite(
        "L0_backend_python/logging",
        "L0_backend_python/logging",
        "logging_test",
        1,
        python("identity_fp32_logging"),
    ),
    Suite(
        "L0_backend_python/response_sender complete_final",
        "L0_backend_python/response_sender",
        "response_sender_complete_final_test",
        1,
        python("response_sender_complete_final"),
    ),
    Suite(
        "L0_backend_python/io empty output",
        "L0_backend_python/io",
        "io_test",
        1,
        python("dlpack_empty_output"),
        only=("test_empty_gpu_output",),
        needs_torch=True,
        gpu=("IOTest.test_empty_gpu_output",),
    ),
    Suite(
        "L0_backend_python/io requested output",
        "L0_backend_python/io",
        "io_test",
        2,
        python("add_sub", "dlpack_io_identity_decoupled"),
        only=("test_requested_output_default", "test_requested_output_decoupled"),
        needs_torch=True,
        gpu=("IOTest.test_requested_output_decoupled",),
    ),
    own_unittest(
        "custom_metrics",
        "custom_metrics",
        *python("custom_metrics"),
        differs={
            "TestInferShmLeak.test_shm_leak": (
                "of the ten tests in its model two differ: Prometheus's own client calls a counter whose name does not "
                "end in _total untyped, and a metric is valid for as long as its model has it"
            )
        },
    ),
    own_unittest(
        "argument_validation",
        "argument_validation",
        *there("L0_backend_python/argument_validation/models", "argument_validation"),
    ),
    Suite(
        "L0_metrics queue size",
        "L0_metrics",
        "metrics_queue_size_test",
        6,
        (
            *(delayed(name) for name in ("default", "default_composing")),
            *(delayed(name, f"dynamic_batching {{ {WAIT} }}") for name in ("dynamic", "dynamic_composing")),
            delayed("max_queue_size", f"dynamic_batching {{ {WAIT} default_queue_policy {{ max_queue_size: 4 }} }}"),
            delayed("sequence_direct", f"sequence_batching {{ direct {{ {WAIT}, minimum_slot_utilization: 1.0 }} }}"),
            delayed("sequence_oldest", f"sequence_batching {{ oldest {{ {WAIT}, max_candidate_sequences: 4 }} }}"),
            Copied(f"{QA}/L0_metrics/ensemble_delay", "ensemble"),
        ),
    ),
    Suite(
        "L0_optional_input",
        "L0_optional_input",
        "optional_input_test",
        10,
        (
            Copied(f"{QA}/L0_optional_input/models/identity_2_float32", **BACKEND_IDENTITY),
            *there(
                "L0_optional_input/models",
                "ensemble_identity_2_float32",
                "optional_connecting_tensor",
                "optional_identity",
                "pipeline_identity_2_float32",
            ),
        ),
        only=(
            "test_all_inputs",
            "test_optional_same_input",
            "test_optional_mix_inputs",
            "test_optional_mix_inputs_2",
            "test_ensemble_all_inputs",
            "test_ensemble_optional_same_input",
            "test_ensemble_optional_mix_inputs",
            "test_ensemble_optional_mix_inputs_2",
            "test_ensemble_optional_pipeline",
            "test_ensemble_optional_connecting_tensor",
        ),
        alone=True,
    ),
    model_queue("test_max_queue_size", f"{PREFERRED} default_queue_policy {{ max_queue_size: 8 }}", delay_ms=5000),
    model_queue(
        "test_policy_delay",
        f"{PREFERRED} {LONG} default_queue_policy {{ timeout_action: DELAY default_timeout_microseconds: 100000 }}",
    ),
    model_queue(
        "test_policy_reject",
        f"{PREFERRED} {LONG} default_queue_policy {{ default_timeout_microseconds: 100000 }}",
        differs="an ensemble's failure is counted once and for its step's reason, and not twice for OTHER",
    ),
    model_queue(
        "test_timeout_override",
        f"{PREFERRED} {LONG} default_queue_policy {{ allow_timeout_override: true "
        "default_timeout_microseconds: 1000000 }",
    ),
    model_queue("test_priority_levels", f"{PREFERRED} {LONG} priority_levels: 2 default_priority_level: 2"),
    model_queue(
        "test_max_priority_levels",
        f"{PREFERRED} {LONG} priority_levels: {2**64 - 1} default_priority_level: {2**32}",
    ),
    model_queue(
        "test_priority_with_policy",
        f"preferred_batch_size: [ 4, 8, 32 ] {LONG} priority_levels: 2 default_priority_level: 2 "
        "default_queue_policy { timeout_action: DELAY allow_timeout_override: true "
        "default_timeout_microseconds: 11000000 } priority_queue_policy { key: 2 value: { timeout_action: REJECT "
        "allow_timeout_override: true default_timeout_microseconds: 11000000 } }",
    ),
    Suite(
        "L0_sequence_batcher",
        "L0_sequence_batcher",
        "sequence_batcher_test",
        7,
        sequence_models(),
        only=(
            "test_simple_sequence",
            "test_length1_sequence",
            "test_batch_size",
            "test_no_sequence_start",
            "test_no_sequence_start2",
            "test_no_sequence_end",
            "test_no_correlation_id",
        ),
        alone=True,
        variables={
            "BACKENDS": "python",
            "ENSEMBLES": "0",
            "NO_BATCHING": "1",
            "MODEL_INSTANCES": "4",
            "IMPLICIT_STATE": "0",
            "INITIAL_STATE_FILE": "0",
            "BATCHER_TYPE": "FIXED",
        },
    ),
    Suite(
        "L0_metrics config",
        "L0_metrics",
        "metrics_config_test",
        8,
        (IDENTITY_ZERO,),
        only=(
            "test_inf_counters_exist",
            "test_inf_counters_missing",
            "test_inf_summaries_exist",
            "test_inf_summaries_missing",
            "test_cache_counters_missing",
            "test_cache_summaries_missing",
            "test_summaries_custom_quantiles",
            "test_model_namespacing_label_with_namespace_off",
        ),
        variables={"SUMMARY_QUANTILES": "0.1:0.0.1,0.7:0.01,0.75:0.01"},
        differs=dict.fromkeys(
            (
                "MetricsConfigTest.test_inf_counters_missing",
                "MetricsConfigTest.test_inf_summaries_exist",
                "MetricsConfigTest.test_summaries_custom_quantiles",
            ),
            HISTOGRAMS,
        ),
    ),
    Suite(
        "L0_metrics config, with a cache",
        "L0_metrics",
        "metrics_config_test",
        3,
        (
            Copied(
                f"{QA}/L0_lifecycle/identity_zero_1_int32", append="response_cache { enable: true }", **BACKEND_IDENTITY
            ),
        ),
        only=("test_cache_counters_exist", "test_cache_summaries_exist", "test_inf_summaries_exist_with_cache"),
        differs=dict.fromkeys(
            ("MetricsConfigTest.test_cache_summaries_exist", "MetricsConfigTest.test_inf_summaries_exist_with_cache"),
            HISTOGRAMS,
        ),
    ),
    Suite(
        "L0_trace",
        "L0_trace",
        "trace_endpoint_test",
        6,
        (OnnxAddSub("simple"),),
        options={"tracing": {"file": "global_unittest.log", "level": ["TIMESTAMPS"], "rate": 1}},
    ),
    lifecycle(
        "model_control",
        add_sub("onnx"),
        Written("simple_onnx_float32_float32_float32", SIMPLE_ENSEMBLE, versions=(1, 3)),
        options=EXPLICIT,
    ),
    lifecycle(
        "model_control_ensemble",
        add_sub("onnx"),
        Written("simple_onnx_float32_float32_float32", SIMPLE_ENSEMBLE, versions=(1, 3)),
        options=EXPLICIT,
    ),
    lifecycle("dynamic_file_delete", add_sub("savedmodel"), add_sub("plan"), options={"model_control": POLL}),
    *(on_reload(number, protocol) for number in ("", "_2", "_3") for protocol in ("http", "grpc")),
    lifecycle("model_control_fail", add_sub("onnx", versions=(), empty=(1, 2, 3)), options=EXPLICIT),
    lifecycle("config_override", add_sub("onnx", versions=(2,), empty=(1, 3)), options=EXPLICIT),
    lifecycle(
        "file_override",
        add_sub("onnx", versions=(2, 3)),
        options={"model_control": {"mode": "explicit", "load": ["*"], "allow_uploads": True}},
    ),
    lifecycle(
        "file_override_security",
        add_sub("onnx", versions=(2, 3)),
        options={"model_control": {"mode": "explicit", "load": ["*"], "allow_uploads": True}},
    ),
    lifecycle(
        "parse_error_modelfail",
        add_sub("graphdef", versions=(), empty=(1,)),
        add_sub("savedmodel"),
        add_sub("onnx"),
        is_ready=False,
    ),
    lifecycle(
        "parse_error_modelfail_nostrict",
        add_sub("graphdef", versions=(), empty=(1,)),
        add_sub("savedmodel"),
        add_sub("onnx"),
        options=LENIENT,
    ),
    lifecycle(
        "parse_error_no_model_config",
        Written("graphdef_float32_float32_float32", ""),
        add_sub("savedmodel"),
        add_sub("onnx"),
        differs="a model whose configuration cannot be read is known, and its version is not there",
        options=LENIENT,
    ),
    lifecycle(
        "parse_error_model_no_version",
        add_sub("graphdef", versions=()),
        *(add_sub(base, policy="latest { num_versions: 1 }") for base in ("savedmodel", "onnx")),
        add_sub("plan"),
        is_ready=False,
    ),
    lifecycle(
        "shutdown_dynamic",
        ZERO_OF_5_S,
        differs="who ends takes no more connections: who comes then is not told why",
        options={"drain_seconds": 60},
    ),
    lifecycle(
        "shutdown_ensemble",
        ZERO_OF_5_S,
        ENSEMBLE_ZERO,
        differs="who ends takes no more connections: who comes then is not told why",
        options={"drain_seconds": 60},
    ),
    lifecycle(
        "concurrent_model_load_speedup",
        *(
            Copied(f"{QA}/L0_lifecycle/identity_zero_1_int32", f"identity_zero_1_int32_{n}", **BACKEND_IDENTITY)
            for n in (1, 2)
        ),
        *(Copied(f"{QA}/python_models/identity_fp32", f"python_identity_fp32_{n}", more=SLOW_TO_LOAD) for n in (1, 2)),
        options=EXPLICIT,
    ),
    lifecycle(
        "concurrent_model_load_unload",
        IDENTITY_ZERO,
        ENSEMBLE_ZERO,
        identity("custom_zero_1_float32", "TYPE_FP32", 1, 1, SLOW_ZERO),
        options=EXPLICIT,
    ),
    lifecycle(
        "concurrent_model_instance_load_speedup",
        *python("identity_fp32", more=SLOW_TO_LOAD),
        differs="its model has no configuration, and nothing says what it gives",
        options=EXPLICIT,
    ),
    lifecycle(
        "model_config_overwite",
        *python("identity_fp32"),
        differs="its model has no configuration, and nothing says what it gives",
        options={"model_control": {"mode": "explicit", "load": ["*"]}},
        edits=(('"backend": "identity",', '"backend": "python",'),),
    ),
    *(
        lifecycle(
            test,
            add_sub("onnx"),
            options={"model_control": control},
            beside=(add_sub("savedmodel"),),
        )
        for test, control in (
            ("dynamic_model_load_unload", POLL),
            ("dynamic_model_load_unload_disabled", {"mode": "none"}),
        )
    ),
    *(
        lifecycle(
            test,
            OnnxAddSub("graphdef_int32_int32_int32", versions=(1, 2, 3), swaps=True, max_batch_size=8),
            options={"model_control": control},
            differs=why,
        )
        for test, control, why in (
            ("dynamic_version_load_unload", POLL, "a version that has left is not found, as one that never was"),
            ("dynamic_version_load_unload_disabled", {"mode": "none"}, ""),
        )
    ),
    *(
        lifecycle(
            f"parse_ignore_{kind}_version",
            add_sub("savedmodel", versions=(1, 3), policy="all { }", folders={3: name}),
            differs=why,
        )
        for kind, name, why in (
            ("zero_prefixed", "003", "003 is version 3, as for TensorFlow Serving, whose exporters write such folders"),
            ("non_intergral", "abc", ""),
        )
    ),
)
