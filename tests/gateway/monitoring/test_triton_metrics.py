"""The exposition under Triton's names: every series from load on, gone after unload, read by a real parser."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tensorgate.adapters.open_inference.metrics import render
from tensorgate.gateway.contract.execution import Traffic
from tensorgate.gateway.contract.metrics import EngineStatistics, Gpu
from tensorgate.gateway.models.meters import Meters, model_counts
from tensorgate.gateway.monitoring.exposition import exposition
from tensorgate.gateway.monitoring.gpu_metrics import gpu_families
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.monitoring.server_counts import ServerCounter
from tensorgate.gateway.telemetry.statistics import Counters

STAT = "cpu  {} 0 {} 700 100 0 0 0 0 0\ncpu0 1 2 3\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nHugePages_Total:       0\n"


def model(name: str, **changes: Any) -> Any:
    """As much of a loaded version as metrics read."""
    given = {
        "version": 1,
        "counters": Counters(),
        "queued": 0,
        "queued_tokens": None,
        "running": 0,
        "load_seconds": 0.25,
        "devices": ("cpu",),
        "goal": None,
    }
    given["is_cached"] = False
    given["computation"] = SimpleNamespace(traffic=lambda: changes.get("traffic", Traffic()))
    return SimpleNamespace(name=name, **(given | changes))


class Engine:
    """Has these models; they may change."""

    def __init__(self, *models: Any) -> None:
        self.models = list(models)

    def settle(self) -> None:
        pass

    def statistics(self) -> EngineStatistics:
        return EngineStatistics([model_counts(each) for each in self.models])


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def rendered(*models: Any) -> dict[str, float]:
    """`name{label="value",…}` -> value, labels in their order."""
    lines = render(ServerCounter(Engine(*models).statistics, proc=Path("/nonexistent")).read()).splitlines()
    return {name: float(value) for line in lines if line[0] != "#" for name, value in [line.rsplit(" ", 1)]}


def test_every_series_is_there_at_nothing_from_load_on() -> None:
    labels = 'model="m",version="3"'
    assert rendered(model("m", version=3)) == {
        **{
            f"nv_inference_{name}{{{labels}}}": 0
            for name in (
                "request_success",
                "count",
                "exec_count",
                "request_duration_us",
                "queue_duration_us",
                "compute_input_duration_us",
                "compute_infer_duration_us",
                "compute_output_duration_us",
                "pending_request_count",
            )
        },
        **{
            f'nv_inference_request_failure{{model="m",reason="{reason}",version="3"}}': 0
            for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
        },
        f"nv_model_load_duration_secs{{{labels}}}": 0.25,
    }


def test_numbers_are_those_of_the_statistics() -> None:
    counters = Counters()
    counters.ran(5, (0.1, 0.2, 0.3))
    counters.succeeded(2, 0.0, 1.5, 0.5, (0.1, 0.2, 0.3))
    counters.succeeded(3, 0.0, 1.0, 0.25, (0.1, 0.2, 0.3))
    counters.failed("BACKEND", 9.0)
    found = rendered(model("m", counters=counters, queued=7))
    assert {name: value for name, value in found.items() if value} == {
        'nv_inference_request_success{model="m",version="1"}': 2,
        'nv_inference_request_failure{model="m",reason="BACKEND",version="1"}': 1,
        'nv_inference_count{model="m",version="1"}': 5,
        'nv_inference_exec_count{model="m",version="1"}': 1,
        'nv_inference_request_duration_us{model="m",version="1"}': 2_500_000,
        'nv_inference_queue_duration_us{model="m",version="1"}': 750_000,
        'nv_inference_compute_input_duration_us{model="m",version="1"}': 200_000,
        'nv_inference_compute_infer_duration_us{model="m",version="1"}': 400_000,
        'nv_inference_compute_output_duration_us{model="m",version="1"}': 600_000,
        'nv_inference_pending_request_count{model="m",version="1"}': 7,
        'nv_model_load_duration_secs{model="m",version="1"}': 0.25,
    }


def test_a_parser_reads_it_with_any_name_and_types() -> None:
    name = 'a "quoted" \\ name\nof two lines'
    text = render(ServerCounter(Engine(model(name)).statistics).read())
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert families["nv_inference_pending_request_count"] == "gauge"
    assert families["nv_inference_exec_count"] == "counter"
    found = series(text)
    assert found["nv_model_load_duration_secs", frozenset({("model", name), ("version", "1")})] == 0.25
    assert found["nv_cpu_memory_total_bytes", frozenset()] > 0


def test_the_machine(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT.format(100, 100))
    (tmp_path / "meminfo").write_text(MEMINFO)
    counter = ServerCounter(Engine().statistics, proc=tmp_path)
    found = series(render(counter.read()))
    assert found == {
        ("nv_cpu_utilization", frozenset()): 0.2,
        ("nv_cpu_memory_total_bytes", frozenset()): 1024_000,
        ("nv_cpu_memory_used_bytes", frozenset()): 614_400,
    }
    (tmp_path / "stat").write_text(STAT.format(130, 100).replace("700", "770"))
    assert series(render(counter.read()))["nv_cpu_utilization", frozenset()] == 0.3
    assert series(render(counter.read()))["nv_cpu_utilization", frozenset()] == 0
    (tmp_path / "stat").unlink()
    assert not series(render(counter.read())), "no numbers are better than wrong ones"


def test_gpus_that_models_are_on() -> None:
    asked: list[str] = []

    def read_gpu(device: str) -> Gpu | None:
        asked.append(device)
        own = {"cuda:1": {"utilization": 0.5, "power_watts": 350.5, "power_limit_watts": 700.0, "energy_joules": 9.25}}
        return Gpu(device, f"GPU-{device[5:]}", "H200", 1000, 300, **own.get(device, {})) if device != "cpu" else None

    models = [
        model(name, devices=devices)
        for name, devices in (("a", ("cuda:1",)), ("b", ("cpu",)), ("c", ("cuda:0", "cuda:1")))
    ]
    found = series(render(ServerCounter(Engine(*models).statistics, read_gpu, Path("/nonexistent")).read()))
    told = {(name, dict(labels).get("gpu_uuid")): value for (name, labels), value in found.items()}
    assert {key: value for key, value in told.items() if key[1]} == {
        ("nv_gpu_memory_total_bytes", "GPU-0"): 1000,
        ("nv_gpu_memory_total_bytes", "GPU-1"): 1000,
        ("nv_gpu_memory_used_bytes", "GPU-0"): 300,
        ("nv_gpu_memory_used_bytes", "GPU-1"): 300,
        ("nv_gpu_utilization", "GPU-1"): 0.5,
        ("nv_gpu_power_usage", "GPU-1"): 350.5,
        ("nv_gpu_power_limit", "GPU-1"): 700,
        ("nv_energy_consumption_total", "GPU-1"): 9.25,  # so the parser calls every counter
    }, "what a GPU does not tell is not there"
    assert asked == ["cpu", "cuda:0", "cuda:1"], "each device once"


def test_models_come_and_go_and_the_names_can_be_left_out() -> None:
    engine = Engine(model("m"))
    metrics = MetricsCollector(engine, end=lambda: render(ServerCounter(engine.statistics).read()))
    assert b'nv_inference_count{model="m"' in metrics.render()
    engine.models.clear()
    assert b'model="m"' not in metrics.render()
    assert b"nv_" not in MetricsCollector(engine).render()


def test_hundreds_of_idle_models_are_little_text() -> None:
    meters, models = Meters(), [model(f"quite_a_usual_name_{number:03}") for number in range(300)]
    for each in models:
        each.counters = meters.meter(each.name, 1).counters

    class Loaded(Engine):
        def statistics(self) -> EngineStatistics:
            return EngineStatistics(super().statistics().models, meters.distributions())

    engine = Loaded(*models)
    metrics = MetricsCollector(engine, end=lambda: render(ServerCounter(engine.statistics).read()))
    for openmetrics in (False, True):
        assert len(metrics.render(openmetrics=openmetrics)) < 500_000
    names = {line.split(b"{")[0] for line in metrics.render().splitlines() if line.startswith(b"tensorgate_")}
    assert names == {b"tensorgate_queued_requests", b"tensorgate_model_load_seconds"}


def test_a_new_load_begins_at_nothing() -> None:
    meters = Meters()
    first = meters.meter("m", 1)
    first.counters.ran(1, (0.0, 0.0, 0.0))
    assert meters.meter("m", 1).counters.runs == 0


def test_gpus_under_our_own_names() -> None:
    gpus = [
        Gpu("cuda:0", "GPU-0", "H200", 1000, 300),
        Gpu("cuda:1", "GPU-1", "H200", 1000, 400, 0.5, 300.0, 700.0, 9.0, 55.0),
    ]
    text = exposition(gpu_families(gpus)).decode()
    found = {
        (sample.name, sample.labels["device"]): sample.value
        for each in text_string_to_metric_families(text)
        for sample in each.samples
    }
    assert found == {
        ("tensorgate_gpu_memory_bytes", "cuda:0"): 1000,
        ("tensorgate_gpu_memory_bytes", "cuda:1"): 1000,
        ("tensorgate_gpu_memory_used_bytes", "cuda:0"): 300,
        ("tensorgate_gpu_memory_used_bytes", "cuda:1"): 400,
        ("tensorgate_gpu_utilization_ratio", "cuda:1"): 0.5,
        ("tensorgate_gpu_power_watts", "cuda:1"): 300,
        ("tensorgate_gpu_temperature_celsius", "cuda:1"): 55,
        ("tensorgate_gpu_energy_joules_total", "cuda:1"): 9,
    }
    assert list(gpu_families([])) == []


def test_copies_between_host_and_device() -> None:
    engine = Engine(model("a", devices=("cuda:0",), traffic=Traffic(3, 300, 2, 20, 3)), model("b"))
    text = MetricsCollector(engine).render().decode()
    lines = {line for line in text.splitlines() if line.startswith("tensorgate_device")}
    assert lines == {
        'tensorgate_device_copies_total{direction="in",model="a",version="1"} 3.0',
        'tensorgate_device_copies_total{direction="out",model="a",version="1"} 2.0',
        'tensorgate_device_copied_bytes_total{direction="in",model="a",version="1"} 300.0',
        'tensorgate_device_copied_bytes_total{direction="out",model="a",version="1"} 20.0',
        'tensorgate_device_batches_total{model="a",version="1"} 3.0',
    }, "a model on the host has none"
