"""What can be asked of the gateway besides an inference, and what it answers: a small frozen class each.

A dialect's decode makes the question, `service` looks the answer up, the dialect's encode writes it. Each docstring
says what the answer is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tensorgate.gateway.contract.call import Caller
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.metrics import Distribution, GoalStatus
from tensorgate.gateway.contract.tensor import NOTHING

if TYPE_CHECKING:
    from tensorgate.gateway.contract.canonical import ModelView


@dataclass(frozen=True, slots=True)
class ServerLive:
    """Can the process answer? -> bool"""


@dataclass(frozen=True, slots=True)
class ServerReady:
    """Should traffic come here? -> bool.

    `online_gate` asks for the operator's online switch too, as grps clients do.
    """

    online_gate: bool = False


@dataclass(frozen=True, slots=True)
class SetOnline:
    """Turn the operator's online switch. -> None. Source: grps health/online, health/offline."""

    online: bool


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Who answers? -> ServerDescription"""


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The server's name and version, its whole configuration as plain data, the kinds of shared memory that work."""

    name: str
    version: str
    configuration: Mapping[str, Any] = field(default_factory=dict)
    shared_memory: frozenset[MemoryKind] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelList:
    """Which public names are served? -> tuple[str, ...]"""


@dataclass(frozen=True, slots=True)
class ServedModels:
    """What are the models that are served now, the highest version of each public name? -> tuple[ModelView, ...]

    Two are for the dialect's own encoder: `name` is the one to tell of alone, `form` how. `absent`: those too that are
    not in memory and would be loaded for whoever asks, as far as the configuration file tells of them: without tensors.
    """

    name: str = ""
    form: str = ""
    absent: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class KnownAnswer:
    """What a dialect could answer while it read the question, with what it knows of the model. -> `answer`"""

    answer: Any


@dataclass(frozen=True, slots=True)
class ModelReady:
    """Is this model (this version of it) ready? Never fails: an unknown model is not ready. -> bool"""

    ref: ModelRef


@dataclass(frozen=True, slots=True, eq=False)
class ModelMetadata:
    """What does this model take and give? The dialect has resolved it already. -> ModelView"""

    view: ModelView


@dataclass(frozen=True, slots=True, eq=False)
class ApiDocument:
    """How is the API called, as OpenAPI writes it down? -> bytes of JSON, or NotFound where nobody may ask.

    `target` is the request target of the document, from where addresses are told. It is about one model, `view`, by
    the addresses of `version` if that is not None; or else about the whole server, with the models that `caller`
    may use. `dialect` "" means all that `listener` speaks; `long_examples`: also requests that are too long for
    people.
    """

    listener: tuple[str, ...]
    caller: Caller | None
    target: str
    dialect: str = ""
    view: ModelView | None = None
    version: int | None = None
    long_examples: bool = False


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """In what state are a model's versions? -> tuple[VersionStatus, ...], highest version first, or ModelNotFound"""

    ref: ModelRef


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """State is START, LOADING, AVAILABLE, UNLOADING or END; `error` tells why a version ended that should not have, and
    `code` of what kind that is.

    Source: TensorFlow Serving's ModelVersionStatus.
    """

    version: int
    state: str
    error: str = ""
    code: Code = Code.UNKNOWN


@dataclass(frozen=True, slots=True)
class ModelConfiguration:
    """How is this model configured, by its bare name? -> Mapping of plain data, or ModelNotFound"""

    name: str


@dataclass(frozen=True, slots=True)
class ModelConfigurations:
    """How is every model configured? -> Mapping of plain data by bare name. The service asks it for ServerMetadata."""


@dataclass(frozen=True, slots=True)
class KnownVersions:
    """Which versions were ever wanted? -> tuple[IndexEntry, ...], by name. The operator's page asks it."""


@dataclass(frozen=True, slots=True)
class ModelActivities:
    """What do the versions that are loaded do now? -> tuple[ModelActivity, ...]. The operator's page asks it.

    `detailed` are the models of which what was copied and how large batches were is wanted, None being all: of hundreds
    of models that takes time.
    """

    detailed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelActivity:
    """A version that is loaded, under its own name."""

    view: ModelView
    is_ready: bool
    queued: int
    """Requests that wait."""
    running: int
    """Requests in batches that run, and requests that run without a batch."""
    rows: int
    """Rows that it has computed."""
    runs: int
    """How often it ran."""
    traffic: Mapping[str, int] = NOTHING
    """What was copied between host and device so far: copies_in, bytes_in, copies_out, bytes_out, batches."""
    batches: Distribution | None = None
    """Rows of the batches that ran. None, as no traffic: no details were wanted."""
    streams: Mapping[str, Distribution] = NOTHING
    """Of a decoupled model: first_answer and next_answer, in seconds."""
    queued_tokens: int | None = None
    """Tokens of the requests that wait. None: nobody counts them."""
    goal: GoalStatus | None = None
    """How its goal is held; None where it has none."""


@dataclass(frozen=True, slots=True)
class MonitorSeries:
    """How has this number been lately? -> Points, or None for a name that is none. Source: grps' monitor.

    Names are requests_per_second, error_percent, mean_latency_ms, max_latency_ms, latency_percentiles_ms, cpu_percent,
    memory_percent, gpu0_memory_mib and so on.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Points:
    """A trend has 174 points: 30 days, 24 hours, 60 minutes, 60 seconds, the last one being now. A cdf has the
    percentiles of the last second: x is 100 for 99.9 %, 101 for 99.99 %.
    """

    kind: Literal["trend", "cdf"]
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class InferTogether:
    """Several inferences of one model that are one question, each with one answer. -> tuple[InferResponse, ...] in
    their order, or the first error, after which nobody waits for the others.

    `wire` is as in InferRequest. Source: TensorFlow Serving's MultiInference.
    """

    requests: tuple[InferRequest, ...]
    wire: Any = None


# ---------------------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """What have a model's versions done since they were loaded; ref None: all models'? -> tuple[Statistics, ...], by
    name and version, or ModelNotFound. Source: Triton's statistics extension.
    """

    ref: ModelRef | None = None


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and how many nanoseconds it took in all."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """One version's. `inference_count` counts rows, `execution_count` runs of the model, `stages["success"]` requests.

    `stages` has success, fail, queue, compute_input, compute_infer, compute_output, cache_hit and cache_miss; `batches`
    the three compute stages by batch size; `responses`, of decoupled models, compute_infer, compute_output, success,
    fail, empty_response and cancel by the answer's index. `last_inference_ms` is in milliseconds since the epoch.
    """

    name: str
    version: int
    last_inference_ms: int
    inference_count: int
    execution_count: int
    stages: Mapping[str, Duration]
    batches: Mapping[int, Mapping[str, Duration]] = field(default_factory=dict)
    responses: Mapping[str, Mapping[str, Duration]] = NOTHING


# ----------------------------------------------------------------------------------------------- the model repository


@dataclass(frozen=True, slots=True)
class RepositoryIndex:
    """Which models are there, loaded or not? -> tuple[IndexEntry, ...], one per version that was ever wanted."""

    ready_only: bool = False


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A version and its state: READY, UNAVAILABLE, LOADING or UNLOADING, and why. A model that was never loaded has
    neither version nor state. Source: Triton's model repository extension.
    """

    name: str
    version: int | None = None
    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load a model, or load it anew. -> None once it is ready.

    `configuration` replaces the model's own, in the text form of the dialect's repository (Triton: a ModelConfig as
    JSON); `files` are contents by path below the model's folder, in place of what lies there.
    """

    name: str
    configuration: str | None = None
    files: Mapping[str, bytes] = NOTHING


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Unload a model, with `dependents` also what it is composed of. -> None, at once."""

    name: str
    dependents: bool = False


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A model as a caller wants it served.

    `base_path` is the absolute path of the folder that holds its version folders, `platform` what its caller takes it
    for. `versions` is a version policy as YAML says it: latest, all, a list, or {"latest": n}.
    """

    name: str
    base_path: str
    platform: str
    versions: str | list[int] | dict[str, int] = "latest"
    labels: Mapping[str, int] = NOTHING


@dataclass(frozen=True, slots=True)
class ReloadModels:
    """Serve these models and no others. -> int, how many inferences were answered meanwhile, once all that are new
    serve. Source: TensorFlow Serving's HandleReloadConfigRequest.

    `counters` are names that the dialect reports on.
    """

    models: tuple[WantedModel, ...]
    counters: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------------------- trace and log settings


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Read, and first change, how requests are traced. -> Mapping[str, tuple[str, ...]], all settings afterwards.

    `model` "" is the server. `changes` maps a setting to its new values; None clears it.
    """

    model: str = ""
    changes: Mapping[str, tuple[str, ...] | None] = NOTHING


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Read, and first change, what is logged. -> Mapping[str, bool | int | str], all settings afterwards."""

    changes: Mapping[str, bool | int | str] = NOTHING


# -------------------------------------------------------------------------------------------------------- shared memory

MemoryKind: TypeAlias = Literal["system", "cuda"]


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """Which regions are registered, or this one? -> tuple[Region, ...]"""

    kind: MemoryKind
    name: str = ""


@dataclass(frozen=True, slots=True)
class Region:
    """A registered region. `key` and `offset` belong to system memory, `device_id` to a GPU's."""

    name: str
    byte_size: int
    key: str = ""
    offset: int = 0
    device_id: int = 0


@dataclass(frozen=True, slots=True)
class RegisterRegion:
    """Let requests name a piece of memory that the caller shares. -> None

    `handle` is a CUDA IPC handle; system memory is found by its key.
    """

    kind: MemoryKind
    region: Region
    handle: bytes = b""


@dataclass(frozen=True, slots=True)
class UnregisterRegion:
    """Forget a region, or with an empty name all of its kind; unknown names are no error. -> None"""

    kind: MemoryKind
    name: str = ""


def asked_model(question: Any) -> ModelRef | None:
    """The model of which a question asks how it is; None for what asks of the server, or changes something."""
    if type(question) in (ModelReady, ModelStatus, ModelStatistics):
        ref: ModelRef | None = question.ref
        return ref
    return ModelRef(question.name) if type(question) is ModelConfiguration else None


Question: TypeAlias = (
    InferRequest
    | InferTogether
    | ServerLive
    | ServerReady
    | SetOnline
    | ServerMetadata
    | ModelList
    | ServedModels
    | KnownAnswer
    | ModelReady
    | ModelMetadata
    | ApiDocument
    | ModelStatus
    | ModelConfiguration
    | MonitorSeries
    | ModelStatistics
    | RepositoryIndex
    | LoadModel
    | UnloadModel
    | ReloadModels
    | TraceSettings
    | LogSettings
    | RegionStatus
    | RegisterRegion
    | UnregisterRegion
)
