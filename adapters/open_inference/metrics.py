"""Metrics under Triton's names, for dashboards and alerts that were made for it.

Written by hand: Triton's counters do not end in `_total`, which the client library would insist on. What a GPU does not
tell, and the host where the system does not, is left out. Source: Triton's metrics documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, TypeAlias

from pydantic import Field

from tensorgate.gateway.contract.metrics import (
    DialectMetrics,
    Gpu,
    HostUsage,
    ModelCounts,
    ServerCounts,
    label_text,
)
from tensorgate.gateway.contract.options import Options

_US: Final = 1e6
_Type: TypeAlias = Literal["counter", "gauge"]

_COUNTERS: Final[tuple[tuple[str, str, Callable[[ModelCounts], float]], ...]] = (
    ("nv_inference_request_success", "Requests that succeeded.", lambda m: m.successes.count),
    ("nv_inference_count", "Rows of requests that succeeded.", lambda m: m.rows),
    ("nv_inference_exec_count", "Runs of the model.", lambda m: m.runs),
    (
        "nv_inference_request_duration_us",
        "Time of requests that succeeded, in microseconds.",
        lambda m: m.successes.seconds * _US,
    ),
    ("nv_inference_queue_duration_us", "Time that they waited for a run.", lambda m: m.queue_s * _US),
    ("nv_inference_compute_input_duration_us", "Time before the model.", lambda m: m.input_s * _US),
    ("nv_inference_compute_infer_duration_us", "Time in the model.", lambda m: m.infer_s * _US),
    ("nv_inference_compute_output_duration_us", "Time after the model.", lambda m: m.output_s * _US),
)
_CACHE: Final[tuple[tuple[str, str, Callable[[ModelCounts], float]], ...]] = (
    ("nv_cache_num_hits_per_model", "Requests that the response cache answered.", lambda m: m.hits.count),
    ("nv_cache_num_misses_per_model", "Requests that it could not answer.", lambda m: m.misses.count),
    (
        "nv_cache_hit_duration_per_model",
        "Time to look up what it answered, in microseconds.",
        lambda m: m.hits.seconds * _US,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Time to look up and to insert what it could not, in microseconds.",
        lambda m: m.misses.seconds * _US,
    ),
)
_GAUGES: Final[tuple[tuple[str, str, Callable[[ModelCounts], float]], ...]] = (
    ("nv_inference_pending_request_count", "Requests that wait for a run.", lambda m: m.queued),
    ("nv_model_load_duration_secs", "How long the model took to load, in seconds.", lambda m: m.load_s),
)
_HOST: Final[tuple[tuple[str, str, Callable[[HostUsage], float]], ...]] = (
    ("nv_cpu_utilization", "Busy share of all processors since the last scrape.", lambda host: host.cpu_share),
    ("nv_cpu_memory_total_bytes", "Memory of the machine.", lambda host: host.memory_bytes),
    ("nv_cpu_memory_used_bytes", "Memory that is not available.", lambda host: host.memory_used_bytes),
)
_GPU: Final[tuple[tuple[str, _Type, str, Callable[[Gpu], float | None]], ...]] = (
    ("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", lambda gpu: gpu.total),
    ("nv_gpu_memory_used_bytes", "gauge", "Memory of the GPU that is in use.", lambda gpu: gpu.used),
    ("nv_gpu_utilization", "gauge", "Share of the last moments in which it computed.", lambda gpu: gpu.utilization),
    ("nv_gpu_power_usage", "gauge", "Power that it takes, in watts.", lambda gpu: gpu.power_watts),
    ("nv_gpu_power_limit", "gauge", "Power that it may take, in watts.", lambda gpu: gpu.power_limit_watts),
    (
        "nv_energy_consumption",
        "counter",
        "Energy since its driver was loaded, in joules.",
        lambda gpu: gpu.energy_joules,
    ),
)


class TritonMetricsOptions(Options):
    """What the section `metrics` may say of them."""

    triton_names: bool = Field(
        default=True, description="Also the series of Triton's dashboards, nv_inference_request_success and so on."
    )


def make_metrics(options: TritonMetricsOptions) -> DialectMetrics | None:
    return DialectMetrics(render) if options.triton_names else None


def render(counts: ServerCounts) -> str:
    """The exposition text: models, host, GPUs."""
    return "".join([*_of_models(counts.models), *_of_host(counts.host), *_of_gpus(counts.gpus)])


def _of_models(models: Iterable[ModelCounts]) -> Iterator[str]:
    labelled = [(label_text(model=each.model, version=str(each.version)), each) for each in models]
    cached = [(labels, each) for labels, each in labelled if each.is_cached]
    for families, those in ((_COUNTERS, labelled), (_CACHE if cached else (), cached)):
        for name, text, read in families:
            yield _family(name, "counter", text, [(labels, float(int(read(each)))) for labels, each in those])
    failures = [
        (label_text(model=each.model, reason=reason, version=str(each.version)), float(count))
        for each in models
        for reason, count in each.failures.items()
    ]
    yield _family("nv_inference_request_failure", "counter", "Requests that failed, by reason.", failures)
    for name, text, read in _GAUGES:
        yield _family(name, "gauge", text, [(labels, float(read(each))) for labels, each in labelled])


def _of_host(host: HostUsage | None) -> Iterator[str]:
    if host is None:
        return
    for name, text, read in _HOST:
        yield _family(name, "gauge", text, [("", read(host))])


def _of_gpus(gpus: Iterable[Gpu]) -> Iterator[str]:
    for name, kind, text, read in _GPU:
        told = [(label_text(gpu_uuid=gpu.uuid), float(value)) for gpu in gpus if (value := read(gpu)) is not None]
        if told:
            yield _family(name, kind, text, told)


def _family(name: str, kind: _Type, text: str, samples: Iterable[tuple[str, float]]) -> str:
    """One metric; a sample is (labels, value)."""
    lines = [f"{name}{{{labels}}} {value!r}\n" if labels else f"{name} {value!r}\n" for labels, value in samples]
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{''.join(lines)}"
