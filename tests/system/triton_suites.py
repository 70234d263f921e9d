"""Triton's own suites of `qa/`, one row each: what they need, and where they are deliberately answered otherwise.

The suites are Triton's and are not kept here: TRITON_QA names the folder of checkouts that FETCH makes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

FETCH = (
    "git clone --branch v2.51.0 https://github.com/triton-inference-server/server $TRITON_QA/server; "
    "git clone --branch r24.10 https://github.com/triton-inference-server/python_backend $TRITON_QA/python_backend"
)
QA = "server/qa"
IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensors = [pb_utils.Tensor("OUTPUT0", each.as_numpy()) for each in request.inputs()]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""
"""What stands in for Triton's backend `identity`, which is a library of its build."""
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
        for file in (target / "1").glob("*.py"):
            file.write_text(for_numpy_2(file.read_text()))


@dataclass(frozen=True, slots=True)
class OnnxIdentity:
    """INPUT0, INPUT1… given back as OUTPUT0, OUTPUT1…: what Triton's generators write for `onnx_zero_*`."""

    name: str
    datatype: str
    count: int = 1
    dims: tuple[int, ...] = (-1,)
    append: str = ""

    def write(self, checkouts: Path, repository: Path) -> None:
        def infos(kind: str) -> list[Any]:
            shape = [None, *(None if size < 0 else size for size in self.dims)]
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
        head = f'name: "{self.name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
        (folder / "config.pbtxt").write_text(f"{head}{tensors}\n{self.append}\n")


Model = Copied | OnnxIdentity


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
    """Parts of ids; nothing is all."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the gateway's configuration."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, as the suite's `test.sh` sets them."""
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
        differs={"IOTest.test_ensemble_io": "an ensemble that is not decoupled has no decoupled step"},
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
        options={"model_control": {"mode": "explicit", "load": ["*"]}, "readiness": "lenient"},
        differs=dict.fromkeys(
            ("GrpcEndpointTest.test_grpc_decoupled", "GrpcEndpointTest.test_grpc_non_decoupled"),
            "sequence_batching.iterative_sequence is not supported: a configuration that has it is refused",
        ),
    ),
    Suite(
        "L0_backend_python/model_control",
        "L0_backend_python/model_control",
        "model_control_test",
        1,
        python("identity_fp32", "simple_identity_fp32"),
        options={"model_control": {"mode": "explicit"}},
    ),
)
