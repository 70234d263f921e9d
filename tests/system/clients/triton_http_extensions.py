"""What tritonclient.http reads and sets beside inferences: statistics, configuration, trace and log settings."""

from __future__ import annotations

from typing import Any

import checks
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

MODEL = "add_sub"
STAGES = {"success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"}
COMPUTE = ("compute_input", "compute_infer", "compute_output")


def connect(address: str) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(address)


def infer(client: triton.InferenceServerClient, rows: int) -> None:
    inputs = [triton.InferInput(name, [rows, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(np.ones((rows, 16), np.int32))
    client.infer(MODEL, inputs)


def statistics(client: triton.InferenceServerClient, version: str = "") -> dict[str, Any]:
    (only,) = client.get_inference_statistics(MODEL, version)["model_stats"]
    assert (only["name"], only["version"]) == (MODEL, "1")
    assert only["inference_stats"].keys() == STAGES
    assert only["response_stats"] == {}
    assert only["memory_usage"] == []
    made: dict[str, Any] = only
    return made


def check_statistics_count_requests_rows_and_runs(address: str) -> None:
    client = connect(address)
    before = statistics(client)
    for rows in (1, 3, 3):
        infer(client, rows)
    after = statistics(client, "1")
    gained = {key: after[key] - before[key] for key in ("inference_count", "execution_count")}
    assert gained == {"inference_count": 7, "execution_count": 3}
    for stage in ("success", "queue", *COMPUTE):
        assert after["inference_stats"][stage]["count"] - before["inference_stats"][stage]["count"] == 3, stage
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]
    assert after["last_inference"] >= before["last_inference"]
    assert after["last_inference"] > 1_600_000_000_000
    runs = {each["batch_size"]: each["compute_infer"]["count"] for each in after["batch_stats"]}
    had = {each["batch_size"]: each["compute_infer"]["count"] for each in before["batch_stats"]}
    assert {rows: runs[rows] - had.get(rows, 0) for rows in (1, 3)} == {1: 1, 3: 2}
    assert all(each.keys() == {"batch_size", *COMPUTE} for each in after["batch_stats"])


def check_statistics_of_all_models(address: str) -> None:
    found = connect(address).get_inference_statistics()["model_stats"]
    names = [(each["name"], int(each["version"])) for each in found]
    assert names == sorted(names)
    assert {("digits", 1), ("digits", 2), (MODEL, 1)} <= set(names)


def check_statistics_of_what_is_not_there(address: str) -> None:
    client = connect(address)
    for name, version, text in (
        ("nothing", "", "requested model 'nothing' is not available"),
        (MODEL, "9", f"requested model version is not available for model '{MODEL}'"),
    ):
        error = checks.raised(
            InferenceServerException, lambda name=name, version=version: client.get_inference_statistics(name, version)
        )
        assert (error.status(), error.message()) == ("400", text)


def check_configuration_has_what_perf_analyzer_reads(address: str) -> None:
    client = connect(address)
    metadata, config = client.get_model_metadata(MODEL), client.get_model_config(MODEL)
    assert (config["name"], config["platform"], config["backend"]) == (MODEL, "onnxruntime_onnx", "onnxruntime")
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" in config
    assert not {"sequence_batching", "ensemble_scheduling", "model_transaction_policy"} & config.keys()
    for kind in ("input", "output"):
        assert [each["name"] for each in config[kind]] == [each["name"] for each in metadata[f"{kind}s"]]
        assert all(each["dims"] == [16] and each["data_type"] == "TYPE_INT32" for each in config[kind])
        assert not any(each["is_shape_tensor"] for each in config[kind])
    assert not any(each["optional"] for each in config["input"])
    assert client.get_model_config("countdown")["model_transaction_policy"] == {"decoupled": True}
    assert client.get_model_config("digits", "1")["version_policy"] == {"all": {}}
    assert client.get_model_config("digits")["output"][0]["label_filename"] == "labels.txt"


def check_extensions_are_listed(address: str) -> None:
    listed = connect(address).get_server_metadata()["extensions"]
    assert {"model_configuration", "statistics", "trace", "logging"} <= set(listed)


def check_trace_settings(address: str) -> None:
    client = connect(address)
    first = client.get_trace_settings()
    assert first == {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "trace.json",
        "trace_mode": "triton",
    }
    wanted = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "2"}
    assert client.update_trace_settings(MODEL, wanted) == {**first, **wanted}
    assert client.get_trace_settings("digits") == client.get_trace_settings() == first
    for rows in (2, 2, 2):
        infer(client, rows)
    assert client.get_trace_settings(MODEL)["trace_count"] == "0"
    assert client.update_trace_settings(MODEL, dict.fromkeys(wanted)) == first


def check_trace_settings_that_cannot_be(address: str) -> None:
    client = connect(address)
    for model, settings, status, text in (
        (None, {"trace_file": "x"}, "501", "trace file location can not be updated through network protocol"),
        (None, {"trace_rate": "x"}, "400", "Unable to parse 'trace_rate', got: x"),
        ("nothing", {"trace_rate": "1"}, "400", "Request for unknown model : nothing"),
    ):
        error = checks.raised(
            InferenceServerException,
            lambda model=model, settings=settings: client.update_trace_settings(model, settings),
        )
        assert (error.status(), error.message()) == (status, text)


def check_log_settings(address: str) -> None:
    client = connect(address)
    first = client.get_log_settings()
    assert first == {
        "log_file": "",
        "log_info": False,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    changes = {"log_info": True, "log_verbose_level": 1, "log_format": "ISO8601"}
    assert client.update_log_settings(changes) == {**first, **changes}
    assert client.update_log_settings(first | {"log_file": None}) == first
    for settings, status, text in (
        ({"log_file": "x"}, "501", "log file location can not be updated through network protocol"),
        ({"log_info": "yes"}, "400", "attempt to access JSON non-boolean as boolean"),
    ):
        error = checks.raised(InferenceServerException, lambda settings=settings: client.update_log_settings(settings))
        assert (error.status(), error.message()) == (status, text)


if __name__ == "__main__":
    checks.main(globals())
