"""From a TensorFlow Serving server's files to answers: import, check, serve, predict, with real ONNX models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from serving import Gateway, command, running
from waiting import wait_until


def plus(file: Path, amount: float) -> None:
    """y = x + amount, of any number of rows."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    constant = helper.make_tensor("c", TensorProto.FLOAT, [1], [amount])
    graph = helper.make_graph([helper.make_node("Add", ["x", "c"], ["y"])], "g", [x], [y], [constant])
    file.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


def new_version(folder: Path, version: int) -> None:
    """Copied as TensorFlow Serving wants it: whole, under another name, then renamed."""
    plus(folder / "coming" / "model.onnx", version)
    (folder / "coming").rename(folder / str(version))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for version in (1, 2):
        new_version(folder / "labelled", version)
    new_version(folder / "growing", 1)
    return folder


@pytest.fixture(scope="module")
def gateway(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The command line of the old server, pasted; ports alone are changed, to free ones."""
    folder = tmp_path_factory.mktemp("old server")
    config, batching, file = folder / "models.config", folder / "batching.txt", folder / "gateway.yaml"
    config.write_text(
        f"""model_config_list {{
          config {{ name: "labelled" base_path: "{models}/labelled" model_platform: "tensorflow"
                    model_version_policy {{ all {{}} }}
                    version_labels {{ key: "stable" value: 1 }} version_labels {{ key: "canary" value: 2 }} }}
          config {{ name: "growing" base_path: "{models}/growing" model_platform: "tensorflow" }}
        }}"""
    )
    batching.write_text(
        "max_batch_size { value: 4 }\nbatch_timeout_micros { value: 0 }\nnum_batch_threads { value: 2 }"
    )
    done = command(
        "import", "tf-serving", "-o", str(file), "--", "tensorflow_model_server", "--port=8500", "--rest_api_port=8501",
        f"--model_config_file={config}", "--enable_batching", f"--batching_parameters_file={batching}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = command("check", "--load", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    text = file.read_text()
    assert text.count("0.0.0.0:850") == 2
    file.write_text(text.replace("0.0.0.0:8500", "127.0.0.1:0").replace("0.0.0.0:8501", "127.0.0.1:0"))
    with running(file) as serving:
        yield serving
        assert serving.stop() == 0


def predict(gateway: Gateway, model: str, rows: list[float]) -> tuple[int, object]:
    answer = gateway.post(f"/v1/models/{model}:predict", {"instances": rows})
    return answer.status, answer.json.get("predictions", answer.json)


def test_versions_and_labels_answer(gateway: Gateway) -> None:
    assert predict(gateway, "labelled", [1.0, 2.0]) == (200, [3.0, 4.0])
    assert predict(gateway, "labelled/versions/1", [1.0]) == (200, [2.0])
    assert predict(gateway, "labelled/labels/stable", [1.0]) == (200, [2.0])
    assert predict(gateway, "labelled/labels/canary", [1.0]) == (200, [3.0])


def test_the_batch_has_the_old_limit(gateway: Gateway) -> None:
    assert predict(gateway, "labelled", [0.0] * 4)[0] == 200
    assert predict(gateway, "labelled", [0.0] * 5)[0] == 400


def test_only_the_old_dialect_is_spoken(gateway: Gateway) -> None:
    assert gateway.get("/v1/models/labelled").status == 200
    assert gateway.get("/v2/models/labelled").status == 404


def test_a_new_version_is_found(gateway: Gateway, models: Path) -> None:
    assert predict(gateway, "growing", [1.0]) == (200, [2.0])
    new_version(models / "growing", 7)
    wait_until(lambda: predict(gateway, "growing", [1.0]) == (200, [8.0]), lambda: gateway.said)
    assert predict(gateway, "growing/versions/1", [1.0])[0] == 404
