"""PyTorch's programs that torch itself wrote, served by a gateway with torch in it, in .venv-torch."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
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

PYTHON = ROOT / ".venv-torch/bin/python"
WRITER = Path(__file__).parent / "torch_models.py"
CHECKS = Path(__file__).parent / "torch_programs.py"
WRITES_WITHIN_S = 300.0  # one of them is compiled
BALLAST_BYTES = 64 << 20
PAIR = [{"name": name, "datatype": "FP32", "shape": [-1, 3]} for name in ("INPUT0", "INPUT1")]


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


OPTIONS: dict[str, dict[str, Any]] = {
    "add_sub": {"inputs": PAIR, "outputs": [tensor(f"OUTPUT{n}", "FP32", -1, 3) for n in (0, 1)], "max_batch_size": 8},
    "add_sub_export": {"max_batch_size": 16},
    "classifier": {"max_batch_size": "auto", "postprocess": [{"op": "softmax", "input": "logits", "output": "scores"}]},
    "rows": {
        "inputs": [tensor("x", "INT64", -1, 2)],
        "outputs": [tensor("sum", "INT64", -1), tensor("rows", "INT64", -1)],
        "max_batch_size": 64,
        "max_queue_delay_us": 2000,
    },
    "scaled": {
        "path": "identity",
        "inputs": [tensor("x", "UINT8", -1, 2)],
        "outputs": [tensor("y", "FP32", -1, 2)],
        "model_inputs": [tensor("x", "FP32", -1, 2)],
        "preprocess": [
            {"op": "cast", "input": "x", "to": "FP32"},
            {"op": "normalize", "input": "x", "mean": [1.0], "std": [2.0]},
        ],
        "max_batch_size": 4,
    },
    "compiled": {"inputs": PAIR, "outputs": [tensor(n, "FP32", -1, 3) for n in "sd"], "trusted": True},
    "product": {"inputs": [tensor(n, "FP32", -1, -1) for n in "ab"], "outputs": [tensor("y", "FP32", -1, -1)]},
    "scale": {
        "inputs": [tensor("x", "FP32", -1), tensor("by", "FP32"), {**tensor("plus", "FP32", -1), "optional": True}],
        "outputs": [tensor("y", "FP32", -1)],
    },
    "half": {"path": "identity", "inputs": [tensor("x", "BF16", -1)], "outputs": [tensor("y", "BF16", -1)]},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them."""
    if not PYTHON.exists():
        pytest.fail("PyTorch is not installed: say `make test-system`", pytrace=False)
    folder = tmp_path_factory.mktemp("models")
    done = subprocess.run(
        [PYTHON, WRITER, folder], env=environment(), capture_output=True, text=True, timeout=WRITES_WITHIN_S
    )
    assert done.returncode == 0, done.stderr
    return folder


def written(file: Path, models: Path, options: dict[str, dict[str, Any]], **sections: Any) -> Path:
    entries = {
        name: {"backend": "torch", "device": "cpu", **more, "path": str(models / more.get("path", name))}
        for name, more in options.items()
    }
    bind = {"bind": f"{HOST}:0"}
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    file.write_text(yaml.safe_dump({"listen": listen, "models": entries, **sections}))
    return file


@pytest.fixture(scope="module")
def gateway(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    sections = {"grps": {"default_model": "add_sub-1", "initially_online": True}}
    file = written(tmp_path_factory.mktemp("gateway") / "gateway.yaml", models, OPTIONS, **sections)
    with running(file, python=PYTHON) as started:
        yield started
        assert started.stop() == 0, started.said
        assert "Traceback" not in started.said_itself, started.said
        assert "Warning" not in started.said, started.said


def infer(gateway: Gateway, model: str, **inputs: tuple[str, list[int], Any]) -> Any:
    sent = [
        {"name": name, "datatype": kind, "shape": shape, "data": data} for name, (kind, shape, data) in inputs.items()
    ]
    return gateway.post(f"/v2/models/{model}/infer", {"inputs": sent})


def outputs(gateway: Gateway, model: str, **inputs: tuple[str, list[int], Any]) -> dict[str, Any]:
    answer = infer(gateway, model, **inputs)
    assert answer.status == 200, answer.body
    return {each["name"]: each["data"] for each in answer.json["outputs"]}


ONE = ("FP32", [1, 3], [1.0, 2.0, 3.0])
TWO = ("FP32", [1, 3], [2.0, 2.0, 2.0])


# ------------------------------------------------------------------------------------------------- in every dialect


def test_open_inference(gateway: Gateway) -> None:
    assert outputs(gateway, "add_sub", INPUT0=ONE, INPUT1=TWO) == {"OUTPUT0": [3, 4, 5], "OUTPUT1": [-1, 0, 1]}
    assert outputs(gateway, "compiled", INPUT0=ONE, INPUT1=TWO) == {"s": [3, 4, 5], "d": [-1, 0, 1]}
    described = gateway.get("/v2/models/add_sub_export").json
    assert described["platform"] == "pytorch_libtorch"
    assert described["inputs"] == PAIR
    assert described["outputs"] == [tensor(f"output__{n}", "FP32", -1, 3) for n in (0, 1)]
    assert gateway.get("/v2/models/classifier/config").json["max_batch_size"] == 4


def test_open_inference_over_grpc(gateway: Gateway) -> None:
    raw = np.array([1, 2, 3], np.float32).tobytes()
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            lambda m: m.SerializeToString(),
            message("inference.ModelInferResponse").FromString,
        )
        inputs = [{"name": each["name"], "datatype": "FP32", "shape": [1, 3]} for each in PAIR]
        request = message("inference.ModelInferRequest")(
            model_name="add_sub", inputs=inputs, raw_input_contents=[raw] * 2
        )
        answer = call(request, timeout=10)
        bf16 = message("inference.ModelInferRequest")(
            model_name="half", inputs=[{"name": "x", "datatype": "BF16", "shape": [2]}]
        )
        bf16.raw_input_contents.append(b"\x80\x3f\x00\xc0")
        half = call(bf16, timeout=10)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [2, 4, 6]
    assert list(half.raw_output_contents) == [b"\x80\x3f\x00\xc0"]


def test_tensorflow_serving(gateway: Gateway) -> None:
    rows = [{"INPUT0": [1.0, 2.0, 3.0], "INPUT1": [2.0, 2.0, 2.0]}]
    answer = gateway.post("/v1/models/add_sub:predict", {"instances": rows})
    assert answer.json == {"predictions": [{"OUTPUT0": [3.0, 4.0, 5.0], "OUTPUT1": [-1.0, 0.0, 1.0]}]}
    wrong = gateway.post("/v1/models/product:predict", {"inputs": {"a": [[1.0, 2.0]], "b": [[1.0, 2.0]]}})
    assert "mat1 and mat2 shapes cannot be multiplied (1x2 and 1x2)" in wrong.json["error"]


def test_grps(gateway: Gateway) -> None:
    tensors = [
        {"name": each["name"], "dtype": "DT_FLOAT32", "shape": [1, 3], "flat_float32": [1, 2, 3]} for each in PAIR
    ]
    body = {"model": "add_sub-1", "gtensors": {"tensors": tensors}}
    answer = gateway.post("/grps/v1/infer/predict", body)
    assert answer.status == 200, answer.body
    found = answer.json["gtensors"]["tensors"]
    assert [each["flat_float32"] for each in found] == [[2, 4, 6], [0, 0, 0]]


# ------------------------------------------------------------------------------------------------- what goes with it


def test_operators_before_and_after(gateway: Gateway) -> None:
    assert outputs(gateway, "scaled", x=("UINT8", [1, 2], [1, 5])) == {"y": [0.0, 2.0]}
    image = ("FP32", [1, 3, 8, 8], [0.5] * 192)
    found = outputs(gateway, "classifier", image=image, scale=("FP32", [1], [1.0]))
    assert sum(found["scores"]) == pytest.approx(1.0)


def test_numbers_and_what_may_be_left_out(gateway: Gateway) -> None:
    x = ("FP32", [2], [1.0, 2.0])
    assert outputs(gateway, "scale", x=x, by=("FP32", [], [3.0])) == {"y": [3.0, 6.0]}
    assert outputs(gateway, "scale", x=x, by=("FP32", [], [3.0]), plus=x) == {"y": [4.0, 8.0]}


def test_an_exported_programs_rows_are_bounded(gateway: Gateway) -> None:
    sizes = {name: ("FP32", [17, 3], [1.0] * 51) for name in ("INPUT0", "INPUT1")}
    answer = infer(gateway, "add_sub_export", **sizes)
    assert (answer.status, "batch" in answer.json["error"]) == (400, True)


def test_errors_leave_the_model_as_it_was(gateway: Gateway) -> None:
    for _ in range(3):
        bad = infer(gateway, "product", a=ONE, b=ONE)
        assert bad.status == 500
        assert bad.json["error"].endswith("mat1 and mat2 shapes cannot be multiplied (1x3 and 1x3)")
        wrong = infer(gateway, "product", a=("INT32", [1, 3], [1, 2, 3]), b=ONE)
        assert wrong.status == 400
        text = infer(gateway, "product", a=("BYTES", [1, 3], ["a", "b", "c"]), b=ONE)
        assert text.status == 400
        right = outputs(gateway, "product", a=ONE, b=("FP32", [3, 1], [1.0, 1.0, 1.0]))
        assert right == {"y": [6.0]}
    empty = infer(gateway, "product", a=("FP32", [0, 3], []), b=("FP32", [3, 1], [1.0, 1.0, 1.0]))
    assert (empty.status, empty.json["outputs"][0]["shape"]) == (200, [0, 1])


def test_64_callers_share_runs_and_get_their_own(gateway: Gateway) -> None:
    """Some of them send what the model refuses, which is nothing to the others."""

    def ask(number: int) -> int:
        bad, shared = number % 16 == 7, 0
        for turn in range(20):
            x = ("INT64", [1, 2], [number * 1000 + turn, -1 if bad else 1])
            answer = infer(gateway, "rows", x=x)
            if bad:
                assert answer.status == 500, answer.body
                assert answer.json["error"].endswith("ValueError: x must not be negative")
            else:
                found = {each["name"]: each["data"] for each in answer.json["outputs"]}
                assert found["sum"] == [number * 1000 + turn + 1]
                shared += found["rows"][0] > 1
        return shared

    with ThreadPoolExecutor(64) as threads:
        assert sum(threads.map(ask, range(64))) > 0


def test_unloading_gives_memory_back(models: Path, tmp_path: Path) -> None:
    """A model of 64 MiB comes and goes eight times: what stays is less than two of them."""
    options = {"inputs": [tensor("x", "FP32", -1, 4096)], "outputs": [tensor("y", "FP32", -1, 4096)]}
    file = written(tmp_path / "gateway.yaml", models, {"ballast": options})
    with running(file, "--model-control-mode", "explicit", "--load-model", "ballast", python=PYTHON) as gateway:
        x = ("FP32", [1, 4096], [1.0] * 4096)
        first, sizes = outputs(gateway, "ballast", x=x), []
        for _ in range(8):
            assert gateway.post("/v2/repository/models/ballast/unload", {}).status == 200
            assert gateway.post("/v2/repository/models/ballast/load", {}).status == 200
            assert outputs(gateway, "ballast", x=x) == first
            sizes.append(gateway.rss_bytes())
        assert sizes[-1] - sizes[0] < 2 * BALLAST_BYTES, sizes
        assert gateway.stop() == 0


def test_a_repository_of_triton_is_served_as_it_is(models: Path, tmp_path: Path) -> None:
    inputs, results = (
        "".join(f' {kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 3 ] }}' for name in names)
        for kind, names in (("input", ("INPUT0", "INPUT1")), ("output", ("OUTPUT__1", "OUTPUT__0")))
    )
    for name, first in (("by_platform", 'platform: "pytorch_libtorch"'), ("by_backend", 'backend: "pytorch"')):
        shutil.copytree(models / "add_sub", tmp_path / "repository" / name)
        text = f"{first} max_batch_size: 4{inputs}{results}"
        (tmp_path / "repository" / name / "config.pbtxt").write_text(text)
    file = written(tmp_path / "gateway.yaml", models, {}, repositories=[str(tmp_path / "repository")])
    with running(file, python=PYTHON) as gateway:
        for name in ("by_platform", "by_backend"):
            assert outputs(gateway, name, INPUT0=ONE, INPUT1=TWO) == {"OUTPUT__1": [-1, 0, 1], "OUTPUT__0": [3, 4, 5]}
        assert gateway.stop() == 0


def test_what_cannot_be_loaded_says_why(models: Path, tmp_path: Path) -> None:
    options: dict[str, dict[str, int]] = {name: {} for name in ("bad_pickle", "bad_size", "nested")}
    options["nested"] = {"max_batch_size": 4}
    sound = {"rows": OPTIONS["rows"]}
    file = written(tmp_path / "gateway.yaml", models, options | sound, readiness="lenient")
    with running(file, python=PYTHON) as gateway:
        assert "was written by torch.save: it is a pickle, and pickles are never read" in gateway.said
        assert "by which it could run code of its own; say trusted: true" in gateway.said
        assert "does not support batching" in gateway.said
        assert outputs(gateway, "rows", x=("INT64", [1, 2], [1, 2]))["sum"] == [3]
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said_itself, gateway.said
    assert not (models / "EXECUTED").exists()


# --------------------------------------------------------------------------------------------------- inside the process


@pytest.fixture(scope="module")
def outcomes(models: Path) -> Outcomes:
    return run_script(PYTHON, CHECKS, str(models))


@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_programs(check: str, outcomes: Outcomes) -> None:
    if (failure := outcomes[check]) is not None:
        pytest.fail(failure, pytrace=False)
