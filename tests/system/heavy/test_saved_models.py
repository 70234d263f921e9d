"""SavedModels that TensorFlow itself wrote, served by a gateway with TensorFlow in it, in .venv-tensorflow."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from client_scripts import Outcomes, checks_of, environment, run_script
from serving import HOST, ROOT, Gateway, running

from tensorgate.adapters.protobuf.messages import message

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-tensorflow/bin/python"
WRITER = Path(__file__).parent / "saved_models.py"
CHECKS = Path(__file__).parent / "saved_model_functions.py"
WRITES_WITHIN_S = 120.0
BALLAST_BYTES = 64 << 20
OPTIONS: dict[str, dict[str, Any]] = {
    "half_plus_two": {},
    "half_plus_three": {"intra_op_threads": 1},
    "examples": {"max_batch_size": 8},
    "words": {"max_batch_size": 8},
    "several": {"inter_op_threads": 0},
    "rows": {"max_batch_size": 64, "max_queue_delay_us": 2000},
    "triton": {"max_batch_size": "auto"},
    "datatypes": {"parallel_runs": 2},
    "old_words": {},
    "tagged": {"tags": ["serve", "tpu"]},
    "conv1d": {},
    "conv2d": {},
    "conv3d": {},
    "depthwise": {},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them."""
    if not PYTHON.exists():
        pytest.fail("TensorFlow is not installed: say `make test-system`", pytrace=False)
    folder = tmp_path_factory.mktemp("models")
    done = subprocess.run(
        [PYTHON, WRITER, folder], env=environment(), capture_output=True, text=True, timeout=WRITES_WITHIN_S
    )
    assert done.returncode == 0, done.stderr
    (folder / "words.txt").unlink()  # what is saved along must do
    return folder


def written(file: Path, models: Path, options: dict[str, dict[str, Any]], **sections: Any) -> Path:
    entries = {
        name: {"backend": "tensorflow", "path": str(models / name), "device": "cpu", **more}
        for name, more in options.items()
    }
    bind = {"bind": f"{HOST}:0"}
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    file.write_text(yaml.safe_dump({"listen": listen, "models": entries, **sections}))
    return file


@pytest.fixture(scope="module")
def gateway(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    file = written(tmp_path_factory.mktemp("gateway") / "gateway.yaml", models, OPTIONS)
    with running(file, python=PYTHON) as started:
        yield started
        assert started.stop() == 0, started.said
        assert "Traceback" not in started.said_itself, started.said


def predict(gateway: Gateway, model: str, **body: Any) -> Any:
    answer = gateway.post(f"/v1/models/{model}:predict", body)
    assert answer.status == 200, answer.body
    return answer.json


def refused(gateway: Gateway, model: str, **body: Any) -> tuple[int, str]:
    answer = gateway.post(f"/v1/models/{model}:predict", body)
    return answer.status, answer.json["error"]


# ---------------------------------------------------------------------------------------------- what TensorFlow Serving


def test_the_first_example_of_tensorflow_serving_is_answered_to_the_byte(gateway: Gateway) -> None:
    answer = gateway.post("/v1/models/half_plus_two:predict", {"instances": [1.0, 2.0, 5.0]})
    assert (answer.status, answer.body) == (200, b'{\n    "predictions": [2.5, 3.0, 4.5\n    ]\n}')


@pytest.mark.parametrize(
    ("model", "shape"),
    [("conv1d", (1, 8, 1)), ("conv2d", (1, 8, 8, 1)), ("conv3d", (1, 4, 4, 4, 1)), ("depthwise", (1, 8, 8, 1))],
)
def test_a_wrong_rank_is_refused_and_ends_nothing(
    model: str, shape: tuple[int, ...], gateway: Gateway, channel: grpc.Channel
) -> None:
    declared = [-1, *shape[1:]]
    for body in ({"instances": [1]}, {"inputs": 1.0}, {"instances": [[1, 2]]}, {"inputs": [[[[[[1.0]]]]]]}):
        status, text = refused(gateway, model, **body)
        assert status == 400, text
        assert text.startswith(f"input 'x' of model '{model}' has shape [")
        assert text.endswith(f", expected {declared}")
    one = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": 1}]}, "float_val": [1.0]}
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, "Predict", "Predict", model_spec={"name": model}, inputs={"x": one})
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert predict(gateway, model, instances=np.ones(shape).tolist())["predictions"]


def test_the_state_of_a_version_is_that_of_its_folder(gateway: Gateway) -> None:
    (state,) = gateway.get("/v1/models/half_plus_three").json["model_version_status"]
    assert (state["version"], state["state"]) == ("123", "AVAILABLE")


def test_every_method_of_signature_predicts(gateway: Gateway) -> None:
    both = predict(gateway, "half_plus_two", signature_name="both", inputs=[[1.0]])
    assert both == {"outputs": {"y": [[2.5]], "y2": [[3.5]]}}
    three = predict(gateway, "half_plus_two", signature_name="regress_x2_to_y3", inputs=[[4.0]])
    assert three == {"outputs": [[5.0]]}
    rows = [{"b64": base64.b64encode(example(x)).decode()} for x in (1.0, 3.0)]
    low_high = predict(gateway, "half_plus_two", signature_name="classify_low_high", instances=rows)["predictions"]
    assert low_high == [
        {"classes": ["low", "high"], "scores": [2.5, 3.5]},
        {"classes": ["low", "high"], "scores": [3.5, 4.5]},
    ]


def example(x: float) -> bytes:
    """A serialized tf.Example with the float feature "x"."""
    floats = b"\x0a\x04" + struct.pack("<f", x)
    entry = b"\x0a\x01x\x12" + bytes([len(floats) + 2]) + b"\x12" + bytes([len(floats)]) + floats
    features = b"\x0a" + bytes([len(entry)]) + entry
    return b"\x0a" + bytes([len(features)]) + features


def post(gateway: Gateway, model: str, verb: str, **body: Any) -> Any:
    return gateway.post(f"/v1/models/{model}:{verb}", body).json


def test_examples_are_read_by_the_model_itself(gateway: Gateway) -> None:
    def ask(verb: str, name: str, *examples: Any) -> Any:
        return post(gateway, "half_plus_two", verb, signature_name=name, examples=examples)

    assert ask("regress", "regress_x_to_y", {"x": 1.0}, {"x": 2.0}) == {"results": [2.5, 3.0]}
    assert ask("classify", "classify_x_to_y", {"x": 1.0}) == {"results": [[["", 2.5]]]}
    assert ask("classify", "classify_low_high", {"x": 1.0}) == {"results": [[["low", 2.5], ["high", 3.5]]]}
    required = "Name: <unknown>, Feature: x (data type: float) is required but could not be found."
    assert ask("regress", "regress_x_to_y", {"x2": 1.0}) == {"error": required}
    integer = "Name: <unknown>, Key: x, Index: 0.  Data types don't match. Data type: int64 but expected type: float"
    assert ask("regress", "regress_x_to_y", {"x": 1}) == {"error": integer}


@pytest.fixture(scope="module")
def channel(gateway: Gateway) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as opened:
        yield opened


def call(channel: grpc.Channel, method: str, kind: str, **fields: Any) -> Any:
    """One call of PredictionService; `fields` are those of its request."""
    request = message(f"tensorflow.serving.{kind}Request")(**fields)
    answer = message(f"tensorflow.serving.{kind}Response").FromString
    unary = channel.unary_unary(
        f"/tensorflow.serving.PredictionService/{method}", lambda m: m.SerializeToString(), answer
    )
    return unary(request, timeout=10)


def test_defaults_of_a_signature_may_be_left_out_over_grpc(channel: grpc.Channel) -> None:
    x = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": 2}]}, "float_val": [1.0, 2.0]}
    spec = {"name": "tagged", "signature_name": "add"}
    plus = {"dtype": "DT_FLOAT", "float_val": [4.0]}
    assert list(call(channel, "Predict", "Predict", model_spec=spec, inputs={"x": x}).outputs["y"].float_val) == [
        1.5,
        2.5,
    ]
    both = call(channel, "Predict", "Predict", model_spec=spec, inputs={"x": x, "plus": plus})
    assert list(both.outputs["y"].float_val) == [5.0, 6.0]


def test_examples_over_grpc(channel: grpc.Channel) -> None:
    rows = [message("tensorflow.Example").FromString(example(x)) for x in (1.0, 2.0)]
    sent = {"example_list": {"examples": rows}}
    specs = {
        name: {"name": "half_plus_two", "signature_name": name} for name in ("regress_x_to_y", "classify_low_high")
    }
    regressed = call(channel, "Regress", "Regression", model_spec=specs["regress_x_to_y"], input=sent)
    assert [each.value for each in regressed.result.regressions] == [2.5, 3.0]
    classified = call(channel, "Classify", "Classification", model_spec=specs["classify_low_high"], input=sent)
    found = [[(each.label, each.score) for each in row.classes] for row in classified.result.classifications]
    assert found == [[("low", 2.5), ("high", 3.5)], [("low", 3.0), ("high", 4.0)]]
    tasks = [
        {"model_spec": specs["regress_x_to_y"], "method_name": "tensorflow/serving/regress"},
        {"model_spec": specs["classify_low_high"], "method_name": "tensorflow/serving/classify"},
    ]
    several = call(channel, "MultiInference", "MultiInference", tasks=tasks, input=sent).results
    assert several[0].regression_result == regressed.result
    assert several[1].classification_result == classified.result


def test_signature_defs_come_back_as_they_were_saved(channel: grpc.Channel) -> None:
    fields = {"model_spec": {"name": "tagged"}, "metadata_field": ["signature_def"]}
    answer = call(channel, "GetModelMetadata", "GetModelMetadata", **fields)
    told = message("tensorflow.serving.SignatureDefMap").FromString(answer.metadata["signature_def"].value)
    add = told.signature_def["add"]
    assert {name: info.name for name, info in [*add.inputs.items(), *add.outputs.items()]} == {
        "x": "x:0",
        "plus": "plus:0",
        "y": "add:0",
    }
    assert (add.method_name, list(add.defaults["plus"].float_val)) == ("tensorflow/serving/predict", [0.5])


def test_the_metadata_is_that_of_the_signature_defs(gateway: Gateway) -> None:
    metadata = gateway.get("/v1/models/half_plus_two/metadata").json["metadata"]["signature_def"]["signature_def"]
    methods = {name: signature["method_name"].rpartition("/")[2] for name, signature in metadata.items()}
    assert methods == {
        "both": "predict",
        "classify_low_high": "classify",
        "classify_x_to_y": "classify",
        "regress_x2_to_y3": "regress",
        "regress_x_to_y": "regress",
        "regress_x_to_y2": "regress",
        "serving_default": "predict",
    }
    inputs = metadata["classify_x_to_y"]["inputs"]
    shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    assert inputs["inputs"]["dtype"] == "DT_STRING"
    assert inputs["inputs"]["tensor_shape"] == shape


def test_what_no_dialect_can_carry_is_left_out_and_the_log_says_so(gateway: Gateway) -> None:
    assert refused(gateway, "half_plus_two", signature_name="spectrum", inputs=[[1.0]]) == (
        400,
        'Serving signature name: "spectrum" not found in signature def',
    )
    said = "model half_plus_two: signature spectrum is left out: output 'y' is DT_COMPLEX64, which no dialect can"
    assert said in gateway.said


@pytest.mark.parametrize(
    ("model", "words", "ids"),
    [("words", ["two", "zero", "three"], [2, 0, -1]), ("old_words", ["one", "two", "zero"], [1, -1, 0])],
)
def test_tables_are_there(gateway: Gateway, model: str, words: Sequence[str], ids: Sequence[int]) -> None:
    predictions = predict(gateway, model, instances=words)["predictions"]
    assert [row["id"] if isinstance(row, dict) else row for row in predictions] == ids


def test_bytes_go_in_and_come_out_as_they_are(gateway: Gateway) -> None:
    raw = base64.b64encode(b"\x00\xff \x80").decode()
    answer = gateway.post("/v1/models/words:predict", {"instances": [{"b64": raw}]})
    (row,) = json.loads(answer.body.decode(errors="replace"))["predictions"]  # "louder" is raw, as its name says
    assert row["word_bytes"] == {"b64": raw}


def test_scalars_and_inputs_of_several_ranks(gateway: Gateway) -> None:
    inputs = {"a": [[1, 2]], "b": [[3], [4]], "k": 7}
    assert predict(gateway, "several", inputs=inputs) == {"outputs": {"product": [[11.0]], "times": 14, "name": "7"}}


def test_a_model_without_serving_default_has_none(gateway: Gateway) -> None:
    inputs = {"x": [1.5], "plus": 2.0}
    assert predict(gateway, "tagged", signature_name="add", inputs=inputs) == {"outputs": [3.5]}
    assert refused(gateway, "tagged", inputs=inputs)[0] == 400
    metadata = gateway.get("/v1/models/tagged/metadata").json["metadata"]["signature_def"]["signature_def"]
    assert list(metadata) == ["add"]


DATATYPES = {
    "bool": True, "uint8": 255, "uint32": 2**32 - 1, "uint64": 2**64 - 1, "int8": -128, "int16": -(2**15),
    "int32": -(2**31), "int64": -(2**63), "float32": 0.1, "float64": 1e300, "string": "é",
}  # fmt: skip


@pytest.mark.parametrize("name", DATATYPES)
def test_every_datatype_and_any_shape(gateway: Gateway, name: str) -> None:
    value = DATATYPES[name]
    for tensor in (value, [value], [[value], [value]], []):
        assert predict(gateway, "datatypes", signature_name=name, inputs=tensor) == {"outputs": tensor}


# ------------------------------------------------------------------------------------------------------- Open Inference


def infer(gateway: Gateway, model: str, outputs: Sequence[str] = (), **inputs: tuple[str, list[int], list[Any]]) -> Any:
    body: dict[str, Any] = {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "data": data}
            for name, (datatype, shape, data) in inputs.items()
        ]
    }
    if outputs:
        body["outputs"] = [{"name": name} for name in outputs]
    return gateway.post(f"/v2/models/{model}/infer", body).json


def test_open_inference_sees_the_default_signature(gateway: Gateway) -> None:
    metadata = gateway.get("/v2/models/half_plus_two").json
    assert metadata["platform"] == "tensorflow_savedmodel"
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}]
    assert metadata["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}]
    (y,) = infer(gateway, "half_plus_two", x=("FP32", [2, 1], [1.0, 2.0]))["outputs"]
    assert y == {"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [2.5, 3.0]}


def test_open_inference_gets_the_outputs_it_asks_for(gateway: Gateway) -> None:
    answer = infer(gateway, "words", ["louder"], word=("BYTES", [2], ["two", "nine"]))
    assert answer["outputs"] == [{"name": "louder", "datatype": "BYTES", "shape": [2], "data": ["TWO", "NINE"]}]


def test_open_inference_checks_the_declared_shape(gateway: Gateway) -> None:
    assert "unexpected shape for input 'x'" in infer(gateway, "half_plus_two", x=("FP32", [2], [1.0, 2.0]))["error"]


def test_half_precision_goes_as_bytes(gateway: Gateway) -> None:
    """The default of a model that has only datatypes is the first by name, bfloat16."""
    bits = struct.pack("<3H", 0x3F80, 0xC000, 0x7F80)
    tensor = {"name": "x", "datatype": "BF16", "shape": [3], "parameters": {"binary_data_size": len(bits)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = gateway.request("POST", "/v2/models/datatypes/infer", head + bits, headers)
    assert answer.status == 200, answer.body
    assert answer.body.endswith(bits)


def test_tritons_folders_and_batch_sizes_are_known(gateway: Gateway) -> None:
    assert predict(gateway, "triton", instances=[1.0]) == {"predictions": [4.5]}
    assert gateway.get("/v2/models/triton/config").json["max_batch_size"] == 4


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("model", "body", "text"),
    [
        (
            "several",
            {"inputs": {"a": [[1, 2]], "b": [[3]], "k": 7}},
            "Matrix size-incompatible: In[0]: [1,2], In[1]: [1,1]",
        ),
        ("several", {"inputs": {"a": [[1, 2]], "b": 3, "k": 7}}, "In[1] ndims must be >= 2: 0"),
        ("examples", {"instances": ["text"]}, "Could not parse example input, value: 'text'"),
        (
            "examples",
            {"instances": [""]},
            "Name: <unknown>, Feature: x (data type: float) is required but could not be",
        ),
        ("examples", {"instances": [{"b64": "/v8="}]}, "Could not parse example input, value: '\ufffd\ufffd'"),
        ("examples", {"instances": ["text" * 25_000]}, "Could not parse example input, value: 'texttext"),
        ("rows", {"instances": [{"x": [-1], "who": "me"}]}, "assertion failed: [x must not be negative.  ]"),
    ],
)
def test_the_caller_is_told_what_tensorflow_objects_to(gateway: Gateway, model: str, body: Any, text: str) -> None:
    status, error = refused(gateway, model, **body)
    assert status == 400
    assert error.startswith(text)
    assert "{{" not in error
    assert len(error) < 1100


# --------------------------------------------------------------------------------------------------- together and apart


def test_64_callers_share_runs_and_get_their_own(gateway: Gateway) -> None:
    """Some of them send what the model refuses, which is nothing to the others."""

    def ask(number: int) -> int:
        who, bad = f"caller-{number}", number % 16 == 7
        shared = 0
        for turn in range(20):
            x = [[number, turn, -1 if bad else 1]]
            answer = gateway.post("/v1/models/rows:predict", {"inputs": {"x": x, "who": [who]}})
            if bad:
                assert answer.status == 400, answer.body
                assert f"[{number} {turn} -1]" in answer.json["error"]
            else:
                outputs = answer.json["outputs"]
                assert (outputs["sum"], outputs["who"]) == ([number + turn + 1], [who])
                shared += outputs["rows"][0] > 1
        return shared

    with ThreadPoolExecutor(64) as threads:
        assert sum(threads.map(ask, range(64))) > 0


def test_requests_of_different_signatures_at_once(gateway: Gateway) -> None:
    def ask(number: int) -> None:
        name, value = (("int64", number), ("string", str(number)), ("float32", number / 2))[number % 3]
        for _ in range(20):
            assert predict(gateway, "datatypes", signature_name=name, inputs=[value]) == {"outputs": [value]}

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(ask, range(48)))


def test_unloading_gives_memory_back(models: Path, tmp_path: Path) -> None:
    """A model of 64 MiB comes and goes eight times: what stays is less than two of them."""
    file = written(tmp_path / "gateway.yaml", models, {"ballast": {}})
    with running(file, "--model-control-mode", "explicit", "--load-model", "ballast", python=PYTHON) as gateway:
        body = {"inputs": [[1.0] * 4096]}
        first = predict(gateway, "ballast", **body)
        sizes = []
        for _ in range(8):
            assert gateway.post("/v2/repository/models/ballast/unload", {}).status == 200
            assert gateway.post("/v1/models/ballast:predict", body).status == 404
            assert gateway.post("/v2/repository/models/ballast/load", {}).status == 200
            assert predict(gateway, "ballast", **body) == first
            sizes.append(gateway.rss_bytes())
        assert sizes[-1] - sizes[0] < 2 * BALLAST_BYTES, sizes
        assert gateway.stop() == 0


def test_a_repository_of_triton_is_served_as_it_is(models: Path, tmp_path: Path) -> None:
    for name, text in (("bare", None), ("told", 'platform: "tensorflow_savedmodel" max_batch_size: 16')):
        shutil.copytree(models / "triton", tmp_path / "repository" / name)
        if text:
            (tmp_path / "repository" / name / "config.pbtxt").write_text(text)
    file = written(tmp_path / "gateway.yaml", models, {}, repositories=[str(tmp_path / "repository")])
    with running(file, python=PYTHON) as gateway:
        for name, size in (("bare", 4), ("told", 16)):
            (y,) = infer(gateway, name, x=("FP32", [2], [1.0, 2.0]))["outputs"]
            assert y["data"] == [4.5, 5.0]
            assert gateway.get(f"/v2/models/{name}/config").json["max_batch_size"] == size
        assert gateway.stop() == 0


def test_what_cannot_be_loaded_says_why(models: Path, tmp_path: Path) -> None:
    for name in ("broken", "lost"):
        shutil.copytree(models / "half_plus_two", tmp_path / name)
    (tmp_path / "broken/1/saved_model.pb").write_bytes(b"\x08\x01\xff")
    shutil.rmtree(tmp_path / "lost/1/variables")
    bad = {"tags": ["gpu"]}
    options: dict[str, dict[str, Any]] = {
        "half_plus_three": bad,
        "rows": {"modules": ["no_such_module"]},
        "datatypes": {"max_batch_size": 4},
        "half_plus_two": {"signatures": {"both": {"inputs": {"x": "x"}}}},
    }
    file = written(tmp_path / "gateway.yaml", models, options, readiness="lenient")
    plain = yaml.safe_load(file.read_text())
    plain["models"] |= {name: {"backend": "tensorflow", "path": str(tmp_path / name)} for name in ("broken", "lost")}
    file.write_text(yaml.safe_dump(plain))
    with running(file, python=PYTHON) as gateway:
        assert "MetaGraphDef associated with tags 'gpu' could not be found" in gateway.said
        assert "modules names 'no_such_module', which cannot be imported" in gateway.said
        assert "FAILED half_plus_two version 1: signature both is one of the model's own" in gateway.said
        assert "FAILED broken version 1: TensorFlow cannot load" in gateway.said
        assert "FAILED lost version 1: TensorFlow cannot load" in gateway.said
        assert predict(gateway, "datatypes", signature_name="int8", inputs=[[5]]) == {"outputs": [[5]]}
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said_itself, gateway.said


# --------------------------------------------------------------------------------------------------- inside the process


@pytest.fixture(scope="module")
def outcomes(models: Path) -> Outcomes:
    return run_script(PYTHON, CHECKS, str(models))


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_functions(check: str, outcomes: Outcomes) -> None:
    if (failure := outcomes[check]) is not None:
        pytest.fail(failure, pytrace=False)


@pytest.mark.parametrize(
    "order", ["import tensorflow, tensorgate.gateway.app", "import tensorgate.gateway.app, tensorflow"]
)
def test_tensorflows_messages_and_ours_share_a_process_in_any_order(order: str) -> None:
    code = f"""
{order}
from tensorgate.adapters.protobuf.messages import message
from tensorflow.core.protobuf import meta_graph_pb2
theirs = meta_graph_pb2.SignatureDef(method_name="m")
assert message("tensorflow.SignatureDef").FromString(theirs.SerializeToString()).method_name == "m"
"""
    done = subprocess.run(
        [PYTHON, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=WRITES_WITHIN_S
    )
    assert done.returncode == 0, done.stderr
