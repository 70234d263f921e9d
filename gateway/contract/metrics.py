"""What the core has counted, for a dialect that shows it under the names of the server it imitates.

The core counts and keeps; a dialect's metrics are pure functions from these numbers to exposition text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.execution import Traffic


@dataclass(frozen=True, slots=True)
class Total:
    """How often something happened, and how many seconds it took in all."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GoalStatus:
    """How a model's goal is held (`target_p99_ms`), since it was loaded."""

    target_s: float
    share: float
    """The part of the goal that queue and run may use now, 0 to 1: the rest is left for what is beside them."""
    rows: int
    """The size that a batch has at most now."""
    wait_s: float
    """How long the last look at the queue let an idle device wait for company."""
    held: int
    """Requests that were answered within the goal; `missed`: later."""
    missed: int
    shed: Mapping[str, int]
    """goal or deadline -> requests that were refused since they would have missed it."""
    batches: int
    predicted_s: float
    """Seconds that batches were expected to run, summed; `actual_s`: that they ran."""
    actual_s: float
    waited_s: float
    """Seconds that the oldest request of each batch had waited, summed."""
    alone_s: float
    """How long a request of one row runs on the quickest device; 0: not known. A goal below it cannot be held."""


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """What one loaded version has done since it was loaded."""

    model: str
    version: int
    successes: Total
    """Requests that got their last answer; of these `hits` came from the response cache."""
    failures: Mapping[str, int]
    """Reason -> requests that failed: REJECTED, CANCELED, BACKEND, OTHER."""
    hits: Total
    misses: Total
    is_cached: bool
    """Whether the response cache is asked at all."""
    rows: int
    """Rows of the requests that succeeded."""
    runs: int
    """Executions of the model."""
    in_doors: int
    """Those of copies that doors have."""
    queue_s: float
    """Seconds that requests waited, summed as are the next three: before, in and after the model."""
    input_s: float
    infer_s: float
    output_s: float
    queued: int
    """Requests that wait now."""
    queued_tokens: int | None
    """Tokens of their texts; None where the model has no budget of them."""
    running: int
    """Requests in batches that run now, and requests that run without a batch."""
    load_s: float
    devices: tuple[str, ...]
    traffic: Traffic
    goal: GoalStatus | None = None


@dataclass(frozen=True, slots=True)
class HostUsage:
    """The machine, whoever uses it."""

    cpu_share: float
    """The busy share of all processors since the last reading, 0 to 1."""
    memory_bytes: float
    memory_used_bytes: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as it is now, whoever uses it. None: it does not say."""

    device: str
    """cuda:N."""
    uuid: str
    name: str
    total: int
    """Bytes of memory; so is `used`."""
    used: int
    utilization: float | None = None
    """The share of time in which it computed, 0 to 1."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Since its driver was loaded."""
    temperature_celsius: float | None = None


ReadGpu: TypeAlias = Callable[[str], Gpu | None]
"""A model's device, "cuda:0" -> that GPU; None for other devices, and where it cannot be asked."""


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Every loaded version, and what they run on."""

    models: Sequence[ModelCounts]
    host: HostUsage | None
    """None where the system does not tell."""
    gpus: Sequence[Gpu]
    """Those that models are on."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observations by size."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Observations up to each bound and above the one before; the last number is of those above all bounds."""
    sum: float


@dataclass(frozen=True, slots=True)
class VersionDistributions:
    """What the requests and batches of one version were like since it was loaded."""

    stages: Mapping[str, Distribution]
    """Stage -> seconds, for the stages that the engine runs: queue, preprocess, infer, postprocess. Of decoupled models
    also first_answer, since the request came, and next_answer, since the one before."""
    batches: Distribution
    """Rows of the batches that ran."""


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """The response cache as it is now; `evictions` are all so far."""

    nbytes: int = 0
    max_bytes: int = 0
    entries: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class ShadowCounts:
    """What a route's mirror has compared since the gateway started."""

    results: Mapping[str, int]
    """equal, different, error or dropped -> mirrored requests."""
    differences: Mapping[str, Distribution]
    """Output -> the largest relative difference of each request."""
    beyond: Mapping[str, int]
    """Output -> elements that differ by more than the tolerance."""
    seconds: Mapping[str, Distribution]
    """primary or shadow -> seconds until its answer."""
    held_bytes: int
    """Tensors of copies that are not compared yet."""
    running: int
    """Copies of requests under way."""


@dataclass(frozen=True, slots=True)
class RouteUsage:
    """What a route has counted since the gateway started; `running` requests are not answered yet."""

    name: str
    taken: Mapping[tuple[str, str, str], int]
    """(model, version, why) -> requests."""
    refused: int
    running: int
    mirror: ShadowCounts | None


@dataclass(frozen=True, slots=True)
class ShareUsage:
    """What one caller has had of one device since the gateway started, where callers have shares; "" is who has no
    name. `queued` and `refused` are the caller's requests on all devices: those that wait, and those that were refused
    for its own limit.
    """

    caller: str
    device: str
    weight: float
    seconds: float
    queued: int
    refused: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """All that the engine has counted, at one moment."""

    models: Sequence[ModelCounts] = ()
    """The versions that serve."""
    distributions: Mapping[tuple[str, str], VersionDistributions] = field(default_factory=dict)
    """(model, version) -> those of every version that is loading or loaded."""
    cache: CacheUsage = CacheUsage()
    routes: Sequence[RouteUsage] = ()
    shares: Sequence[ShareUsage] = ()


@dataclass(frozen=True, slots=True)
class CallCounts:
    """The calls of one dialect by one method to one model."""

    model: str
    """A public name, "" where the call named none that exists."""
    method: str
    """`Endpoint.method`"""
    transport: str
    """http or grpc"""
    codes: Mapping[Code, int]
    """What callers were told -> how many calls."""
    latency_us: Distribution
    """Of the calls that succeeded, as the next two."""
    runtime_us: Distribution
    """The time in the model."""
    rows: Distribution
    """Rows of the requests whose method is one of `CallMetrics.row_methods`."""


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """What is counted of a dialect's calls, and the page that shows it."""

    path: str
    """Where the page is, on every HTTP port."""
    answer: Callable[[str, Sequence[CallCounts]], Reply]
    """(HTTP target, counts) -> the page. Called in a thread, for any method."""
    bounds_us: tuple[float, ...]
    row_bounds: tuple[float, ...] = ()
    row_methods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DialectMetrics:
    """The metrics of the server that a dialect imitates."""

    render: Callable[[ServerCounts], str] | None = None
    """Exposition text that ends /metrics. Called in a thread."""
    calls: CallMetrics | None = None


def label_text(**values: str) -> str:
    """Labels as the exposition text has them between braces."""
    return ",".join(f'{key}="{_escaped(value)}"' for key, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@dataclass(frozen=True, slots=True)
class ResidencyCounts:
    """Models that are loaded on demand: what is in memory now, and what has happened so far."""

    models: int
    loading: int
    held: Mapping[str, int]
    """Device -> the bytes that they hold there."""
    bounds: Mapping[str, int]
    """Device -> the most that they may hold."""
    loads: Mapping[str, int]
    """Why -> how many were loaded."""
    evictions: Mapping[str, int]
    """Why -> how many were unloaded."""
    failures: int
    """Loads that failed."""
    refusals: int
    """Callers who were told to ask again."""
    waits: Distribution
    """Seconds that callers waited who got their model."""
