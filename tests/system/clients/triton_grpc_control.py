"""What tritonclient.grpc reads and sets beside inferences: models, statistics, configuration, trace and log settings,
as messages and as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checks
import numpy as np
from triton_grpc import INPUT0, asked, connect, is_sum_and_difference, operands, tensor
from tritonclient.utils import InferenceServerException

NAME = "goes_and_comes"
MODELS = Path(__file__).parents[3] / "config/demo/models"
STAGES = {"success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"}
DURATIONS = ("success", "queue", "compute_infer", "compute_output")


def raised(call: Any) -> tuple[str, str]:
    error = checks.raised(InferenceServerException, call)
    return error.status().removeprefix("StatusCode."), error.message()


def halved(client: Any) -> float:
    """What the model makes of 4: 4 / 2 + 2, or + 3 where the other model's file took its place."""
    return float(client.infer(NAME, [tensor("x", np.array([4], np.float32), "FP32")]).as_numpy("y")[0])


def entries(client: Any) -> list[dict[str, str]]:
    models = client.get_model_repository_index(as_json=True)["models"]
    return [entry for entry in models if entry["name"] == NAME]


def until_unloaded(client: Any) -> None:
    """An unload is answered before it has ended."""
    unloaded = [{"name": NAME, "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
    checks.wait_until(lambda: entries(client) == unloaded, lambda: entries(client))


# -------------------------------------------------------------------------------------------------------------- models


def check_unload_and_load(address: str) -> None:
    """simple_grpc_model_control, and loads with a configuration and with files."""
    with connect(address) as client:
        client.load_model(NAME)
        assert client.is_model_ready(NAME)
        client.unload_model(NAME)
        assert not client.is_model_ready(NAME)
        assert raised(lambda: halved(client)) == (
            "NOT_FOUND",
            f"Request for unknown model: '{NAME}' has no available versions",
        )
        until_unloaded(client)
        client.load_model(NAME, client_timeout=20)
        assert halved(client) == 4.0
        assert entries(client) == [{"name": NAME, "version": "1", "state": "READY"}]
        client.unload_model(NAME, unload_dependents=True)
        until_unloaded(client)
        content = (MODELS / "half_plus_three/123/model.onnx").read_bytes()
        config = '{"backend": "onnxruntime", "version_policy": {"specific": {"versions": [7]}}}'
        client.load_model(NAME, config=config, files={"file:7/model.onnx": content})
        assert client.is_model_ready(NAME, "7")
        assert halved(client) == 5.0
        client.load_model(NAME)
        assert halved(client) == 4.0


def check_loads_that_fail(address: str) -> None:
    with connect(address) as client:
        assert raised(lambda: client.load_model("absent")) == (
            "INTERNAL",
            "failed to load 'absent', failed to poll from model repository",
        )
        status, text = raised(lambda: client.load_model(NAME, config='{"max_batch_size": "x"}'))
        assert (status, text.startswith(f"failed to load '{NAME}', ")) == ("INVALID_ARGUMENT", True), text
        rubbish = {"file:1/model.onnx": b"rubbish"}
        status, text = raised(lambda: client.load_model(NAME, config="{}", files=rubbish))
        assert (status, f"load failed for model '{NAME}'" in text) == ("INVALID_ARGUMENT", True), text
        client.unload_model("absent")
        assert halved(client) == 4.0


def check_the_index(address: str) -> None:
    with connect(address) as client:
        index = client.get_model_repository_index()
        assert {("digits", "1", "READY"), ("digits", "2", "READY"), ("add_sub", "1", "READY")} <= {
            (model.name, model.version, model.state) for model in index.models
        }
        assert {"name": "add_sub", "version": "1", "state": "READY"} in client.get_model_repository_index(as_json=True)[
            "models"
        ]


# ---------------------------------------------------------------------------------------------- descriptions as JSON


def check_descriptions(address: str) -> None:
    with connect(address) as client:
        server = client.get_server_metadata(as_json=True)
        assert server.keys() == {"name", "version", "extensions"}
        model = client.get_model_metadata("add_sub", "1", as_json=True)
        assert model["versions"] == ["1"]
        assert [(each["name"], each["shape"]) for each in model["outputs"]] == [
            ("OUTPUT0", ["-1", "16"]),
            ("OUTPUT1", ["-1", "16"]),
        ]
        config = client.get_model_config("add_sub", as_json=True)["config"]
        assert (config["name"], config["max_batch_size"], config["backend"]) == ("add_sub", 8, "onnxruntime")
        assert [(each["data_type"], each["dims"]) for each in config["input"]] == [("TYPE_INT32", ["16"])] * 2
        assert "dynamic_batching" in config
        assert client.get_model_config("digits", as_json=True)["config"]["version_policy"] == {"all": {}}
        refused = raised(lambda: client.get_model_config("absent", as_json=True))
        assert refused == ("NOT_FOUND", "Request for unknown model: 'absent' is not found")


def check_an_answer_as_json(address: str) -> None:
    with connect(address) as client:
        result = client.infer("add_sub", operands(), outputs=asked("OUTPUT1"), request_id="j")
        response = result.get_response(as_json=True)
        raw = response.pop("raw_output_contents")
        assert len(raw) == 1
        assert response == {
            "model_name": "add_sub",
            "model_version": "1",
            "id": "j",
            "outputs": [{"name": "OUTPUT1", "datatype": "INT32", "shape": ["1", "16"]}],
        }
        assert result.get_output("OUTPUT1").name == "OUTPUT1"
        assert result.get_output("OUTPUT0") is None


def check_statistics(address: str) -> None:
    def read(client: Any) -> dict[str, Any]:
        (only,) = client.get_inference_statistics("add_sub", "1", as_json=True)["model_stats"]
        assert only["inference_stats"].keys() == STAGES
        made: dict[str, Any] = only
        return made

    with connect(address) as client:
        client.infer("add_sub", operands())
        before = read(client)
        for _ in range(3):
            client.infer("add_sub", operands(np.tile(INPUT0, (2, 1)), np.tile(INPUT0, (2, 1))))
        after = read(client)
        assert int(after["inference_count"]) - int(before["inference_count"]) == 6
        assert int(after["execution_count"]) - int(before["execution_count"]) == 3
        for stage in DURATIONS:
            gained = [int(each["inference_stats"][stage]["count"]) for each in (before, after)]
            assert gained[1] - gained[0] == 3, stage
        rows = {each["batch_size"]: int(each["compute_infer"]["count"]) for each in after["batch_stats"]}
        assert rows["2"] >= 3
        everything = client.get_inference_statistics()
        assert {"add_sub", "digits"} <= {each.name for each in everything.model_stats}
        assert raised(lambda: client.get_inference_statistics("absent")) == (
            "INVALID_ARGUMENT",
            "requested model 'absent' is not available",
        )


# ------------------------------------------------------------------------------------------------------------ settings


def check_trace_settings(address: str) -> None:
    with connect(address) as client:
        first = client.get_trace_settings(as_json=True)["settings"]
        assert (first["trace_level"], first["trace_rate"]) == ({"value": ["OFF"]}, {"value": ["1000"]})
        wanted = {"trace_rate": "7", "log_frequency": "5"}
        changed = client.update_trace_settings("digits", wanted, as_json=True)["settings"]
        assert changed == first | {key: {"value": [value]} for key, value in wanted.items()}
        assert client.get_trace_settings("digits").settings["trace_rate"].value == ["7"]
        assert client.get_trace_settings(as_json=True)["settings"] == first
        cleared = client.update_trace_settings("digits", dict.fromkeys(wanted), as_json=True)
        assert cleared["settings"] == first
        assert client.update_trace_settings(settings={"trace_rate": ["9"]}).settings["trace_rate"].value == ["9"]
        assert client.update_trace_settings(settings={"trace_rate": []}, as_json=True)["settings"] == first
        assert raised(lambda: client.update_trace_settings(settings={"trace_rate": "x"})) == (
            "INVALID_ARGUMENT",
            "Unable to parse 'trace_rate', got: x",
        )
        assert raised(lambda: client.update_trace_settings("absent", {"trace_rate": "1"})) == (
            "INVALID_ARGUMENT",
            "Request for unknown model : absent",
        )
        assert raised(lambda: client.update_trace_settings(settings={"trace_file": "x"}))[0] == "UNIMPLEMENTED"


def check_log_settings(address: str) -> None:
    with connect(address) as client:
        first = client.get_log_settings(as_json=True)["settings"]
        assert first.keys() == {
            "log_file",
            "log_info",
            "log_warning",
            "log_error",
            "log_verbose_level",
            "log_format",
        }
        changes = {"log_warning": False, "log_verbose_level": 1, "log_format": "ISO8601"}
        changed = client.update_log_settings(changes).settings
        assert changed["log_warning"].bool_param is False
        assert changed["log_verbose_level"].uint32_param == 1
        assert changed["log_format"].string_param == "ISO8601"
        back = {"log_warning": True, "log_verbose_level": 0, "log_format": "default"}
        assert client.update_log_settings(back, as_json=True)["settings"] == first
        assert raised(lambda: client.update_log_settings({"log_format": "x"})) == (
            "INVALID_ARGUMENT",
            "invalid argument for log_format, got: x",
        )
        assert raised(lambda: client.update_log_settings({"log_file": "x"}))[0] == "UNIMPLEMENTED"


# ------------------------------------------------------------------------------------------------------------ patience


def check_a_deadline_and_a_cancellation_leave_the_model_free(address: str) -> None:
    """client_timeout ends the call; a call that is cancelled ends at once, and the next one is answered."""

    def wait(ms: int) -> list[Any]:
        return [tensor("x", np.array([ms], np.int32), "INT32")]

    with connect(address) as client:
        assert client.infer("slow", wait(1), client_timeout=5).as_numpy("x").tolist() == [1]
        assert raised(lambda: client.infer("slow", wait(500), client_timeout=0.1)) == (
            "DEADLINE_EXCEEDED",
            "Deadline Exceeded",
        )
        done: list[Any] = []
        context = client.async_infer("slow", wait(500), lambda result, error: done.append(error))
        context.cancel()
        checks.wait_until(lambda: done)
        assert done[0].status() == "StatusCode.CANCELLED"
        assert client.infer("slow", wait(2)).as_numpy("x").tolist() == [2]


def check_hundreds_of_requests(address: str) -> None:
    """memory_growth_test: the same request over and over, with inputs that are made anew and with the same ones."""
    with connect(address) as client:
        inputs = operands()
        for number in range(400):
            first = np.full((1, 16), number, np.int32)
            assert is_sum_and_difference(client.infer("add_sub", operands(first)), first)
            assert is_sum_and_difference(client.infer("add_sub", inputs))


if __name__ == "__main__":
    checks.main(globals())
