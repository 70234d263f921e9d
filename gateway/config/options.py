"""What the configuration may say: frozen classes, given the registries of what is plugged in.

`config_class` puts them together for one set of registries: a model takes the keys of its backend beside the common
ones, a step those of its op, and every dialect may have a section at the top and one in each model. What these
classes hold is checked, files that they name exist; `file` reads them from YAML and words what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, PrivateAttr, ValidationInfo, create_model, field_validator
from pydantic.fields import FieldInfo

from tensorgate.gateway.config.control import Admin, ModelControl, Reload
from tensorgate.gateway.config.cpu import Cpu
from tensorgate.gateway.config.observing import AccessLogConfig, OpenTelemetryConfig
from tensorgate.gateway.config.padding import RaggedConfig
from tensorgate.gateway.config.routes import Route
from tensorgate.gateway.config.schedule import PrioritiesConfig, QueueConfig, SequencesConfig
from tensorgate.gateway.config.security import Auth, Cors, Mode, RateLimit, Tls
from tensorgate.gateway.config.signatures import SignatureConfig
from tensorgate.gateway.config.values import (
    MAX_VERSION,
    PUBLIC_NAMES,
    Bind,
    ByteSize,
    OneOfClasses,
    OneOfNames,
    OwnOp,
    Placement,
    PublicName,
    Section,
    VersionPolicy,
    parse_bind,
    refuse,
)
from tensorgate.gateway.config.warmup import WarmupSample
from tensorgate.gateway.contract.backend import BackendKind, Padding
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.contract.tensor import DTYPES, NOTHING, TensorSpec

# ----------------------------------------------------------------------------------------------------------- listeners


class MetricsListener(Section):
    """Where Prometheus finds /metrics."""

    bind: Bind
    """HOST:PORT, an IPv6 host in brackets; port 0 takes any free one."""
    tls: Tls | None = None
    """Its certificate; null: it speaks without TLS."""
    auth: Mode | None = None
    """Whether callers must say who they are, where it is not as the section auth says."""

    @property
    def host(self) -> str:
        """The host, an IPv6 address without its brackets."""
        return parse_bind(self.bind)[0]

    @property
    def port(self) -> int:
        """The port; 0 is any free one."""
        return parse_bind(self.bind)[1]


class Listener(MetricsListener):
    """A port and the dialects spoken there."""

    dialects: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Which dialects are spoken here; null is all of them."""
    name: str | None = Field(default=None, min_length=1)
    """What routes call it; null: its bind."""
    cors: Cors | None = None
    """Which pages of the web may call it from a browser; null: none. For HTTP ports."""

    @property
    def title(self) -> str:
        """What it is called."""
        return self.name or self.bind


class Listen(Section):
    """All ports."""

    http: tuple[Listener, ...] = (Listener(bind="0.0.0.0:8000"),)
    """HTTP ports."""
    grpc: tuple[Listener, ...] = ()
    """gRPC ports."""
    metrics: MetricsListener | None = None
    """A port for Prometheus alone."""


# -------------------------------------------------------------------------------------------------------------- models


class OutputConfig(Section):
    """An output of a model, where its file does not say it."""

    name: str = Field(min_length=1)
    """The tensor's name."""
    datatype: Literal[tuple(DTYPES)]  # type: ignore[valid-type]
    """Open Inference's name of the datatype."""
    shape: tuple[Annotated[int, Field(ge=-1)], ...] | None = None
    """The whole shape, batch dimension included (but not with max_batch_size auto), -1 where it varies; null is any
    rank."""

    def spec(self, labels: tuple[str, ...] = ()) -> TensorSpec:
        """As a specification; `labels` name the classes along the last axis."""
        return TensorSpec(self.name, DTYPES[self.datatype], self.shape, labels=labels)


class InputConfig(OutputConfig):
    """An input of a model, where its file does not say it."""

    optional: bool = False
    """Whether a request may leave it out."""

    def spec(self, labels: tuple[str, ...] = ()) -> TensorSpec:
        """As a specification."""
        return TensorSpec(self.name, DTYPES[self.datatype], self.shape, self.optional, labels)


class Step(Section):
    """One op before or after a model, beside the options of that op."""

    op: str
    """Which op."""


class ModelConfig(Section):
    """What is common to all models; the class of a backend adds that backend's options."""

    dialect_names: ClassVar[tuple[str, ...]] = ()

    backend: str
    """What computes the model."""
    path: Annotated[FileRef, Existing("any")] | None
    """Where the model lies, relative to this file."""
    versions: VersionPolicy = Field(default=VersionPolicy(latest=1), json_schema_extra={"default": "latest"})
    """Which versions are served: latest, all, a list of them, or {latest: 2}; none: there are no version folders, the
    path is the model itself."""
    labels: dict[str, Annotated[int, Field(ge=0, le=MAX_VERSION)]] = Field(default_factory=dict)
    """Version labels."""
    device: Placement = "auto"
    """auto: the first GPU, or the CPU where there is none; cpu; cuda or cuda:N: that GPU; cuda:*: every GPU; all: every
    GPU, or the CPU where there is none; a list of cpu and cuda:N: each of them, as often as it is named."""
    instances: int = Field(default=1, ge=1, le=1024)
    """How many copies of the model run side by side on each device."""
    max_batch_size: Annotated[int, Field(ge=0)] | Literal["auto"] = 0
    """The most rows in one batch; 0: the model has no batch dimension; auto: as the model's file allows, 4 or 0."""
    max_queue_delay_us: int = Field(default=0, ge=0)
    """How long an idle device waits for a fuller batch, in microseconds."""
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Sizes in which a batch leaves without waiting for more company."""
    batching: bool = True
    """Whether requests share runs; false: each runs alone, even with max_batch_size."""
    max_queue_size: int = Field(default=512, ge=1)
    """How many requests may wait."""
    queue: QueueConfig = QueueConfig()
    """What becomes of requests that wait long."""
    priorities: PrioritiesConfig | None = None
    """Which requests go first; null: all are equal."""
    inputs: tuple[InputConfig, ...] = ()
    """Inputs, where the model's file does not say them."""
    outputs: tuple[OutputConfig, ...] = ()
    """Outputs, where the model's file does not say them."""
    memory_limit_bytes: ByteSize | None = None
    """The most of a GPU's memory that each copy of the model may take, weights and what it computes with: a number, or
    text like 2GiB. Of ONNX models alone: other backends share one pool for the whole process. null: no limit."""
    pad_batches_to: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """The only numbers of rows that batches may have, [1, 4, 16] for example: copies of a row are added to others. The
    largest bounds max_batch_size. Empty: any number."""
    ragged: RaggedConfig | None = None
    """How requests of different lengths share a batch; null: only those of the same shapes do."""
    sequences: SequencesConfig | None = None
    """What makes it a model of sequences; null: every request stands for itself."""
    class_labels: dict[str, Annotated[FileRef, Existing("file")]] = Field(default_factory=dict)
    """An output -> a file with the names of its classes, one per line."""
    preprocess: tuple[Step, ...] = ()
    """Ops before the model, in order, on its device."""
    postprocess: tuple[Step, ...] = ()
    """Ops after the model, in order, on its device."""
    signatures: dict[str, SignatureConfig] = Field(default_factory=dict)
    """Named views for TensorFlow Serving's callers; serving_default over all inputs and outputs stands by itself."""
    response_cache: bool = False
    """Whether equal requests may get an answer that was given before; for models whose answer depends on nothing but
    the request's tensors and parameters. See the section of the same name."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Free data handed to the model."""
    example: Annotated[FileRef, Existing("file")] | None = None
    """A JSON file with the inputs of one request: {"input": nested list}, or the bare list of a model's only input."""

    warmup: tuple[WarmupSample, ...] = ()
    """What it runs before it is ready. Empty: the example, and full batches of it, on a GPU or in the sizes of
    pad_batches_to, unless a run may have effects beyond its answer."""

    @field_validator("inputs", "outputs")
    @classmethod
    def _names_differ(cls, tensors: tuple[OutputConfig, ...]) -> tuple[OutputConfig, ...]:
        names = [tensor.name for tensor in tensors]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise refuse(index, "name", text=f'"{name}" stands already at [{names.index(name)}]')
        return tensors

    @field_validator("preferred_batch_sizes")
    @classmethod
    def _sizes_fit(cls, sizes: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        most = info.data.get("max_batch_size")
        for index, size in enumerate(sizes):
            if isinstance(most, int) and size > most:
                raise refuse(index, text=f"more than max_batch_size, {most}")
        return sizes

    @field_validator("pad_batches_to")
    @classmethod
    def _sizes_rise(cls, sizes: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        for index, (size, following) in enumerate(pairwise(sizes)):
            if following <= size:
                raise refuse(index + 1, text=f"no more than {size} before it; expected sizes that rise")
        return cls._sizes_fit(sizes, info)

    @field_validator("sequences")
    @classmethod
    def _sequences_stand_alone(cls, sequences: SequencesConfig | None, info: ValidationInfo) -> SequencesConfig | None:
        if sequences is None:
            return sequences
        if info.data.get("priorities") is not None:
            raise ValueError("requests of a sequence keep their order, so that the model can have no priorities")
        if info.data.get("pad_batches_to") or info.data.get("ragged"):
            raise ValueError("a row that is added would be a step of a sequence: no pad_batches_to, no ragged")
        sequences.refuse_declared("input", [tensor.name for tensor in info.data.get("inputs", ())])
        sequences.refuse_declared("output", [tensor.name for tensor in info.data.get("outputs", ())])
        return sequences

    @field_validator("labels")
    @classmethod
    def _labels_are_served(cls, labels: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        policy = info.data.get("versions")
        for label, version in labels.items():
            if policy is not None and policy.named and version not in policy.named:
                raise refuse(label, text=f"version {version} is not among the versions of this model")
        return labels

    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The declared inputs, and with them those that sequences add; none where the model's file says them."""
        if not self.inputs or self.sequences is None:
            return tuple(tensor.spec() for tensor in self.inputs)
        return (*(tensor.spec() for tensor in self.inputs), *self.sequences.input_specs())

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The declared outputs, and with them the states of sequences; none where the model's file says them."""
        if not self.outputs or self.sequences is None:
            return tuple(tensor.spec() for tensor in self.outputs)
        return (*(tensor.spec() for tensor in self.outputs), *self.sequences.output_specs())

    def padding(self) -> Padding:
        """What is added to batches."""
        ragged = self.ragged
        cuts = tuple(each.cut() for each in ragged.cut) if ragged else ()
        return Padding(self.pad_batches_to, ragged.ragged() if ragged else NOTHING, cuts)

    def mappings(self) -> dict[str, Options]:
        """The sections that single dialects have in this model, by dialect name; only those that are written."""
        sections = {name: getattr(self, name) for name in self.dialect_names}
        return {name: section for name, section in sections.items() if section is not None}


# ----------------------------------------------------------------------------------------------------------- the whole


class Timeouts(Section):
    """Seconds after which an HTTP port closes a connection."""

    idle_seconds: float = Field(default=75, gt=0, allow_inf_nan=False)
    """That has no request."""
    head_seconds: float = Field(default=30, gt=0, allow_inf_nan=False)
    """Whose request's head, or handshake, is not whole."""
    body_seconds: float = Field(default=60, gt=0, allow_inf_nan=False)
    """Of whose request's body nothing more comes."""
    answer_seconds: float = Field(default=300, gt=0, allow_inf_nan=False)
    """Whose client takes nothing of its answer."""


class Limits(Section):
    """What a caller may send."""

    max_body_bytes: int = Field(default=64 << 20, ge=1)
    """The largest body, or the largest JSON part of one with binary tensors."""
    max_binary_bytes: int = Field(default=1 << 30, ge=1, lt=2**31)
    """The largest body with tensors as bytes: Open Inference's binary extension, and every message of gRPC."""
    max_json_depth: int | None = Field(default=None, ge=1)
    """How deep JSON may nest; null is each dialect's own limit."""
    max_elements: int | None = Field(default=None, ge=1)
    """How many elements the tensors of a request may have in all; null: as many as a body holds."""
    max_header_bytes: int = Field(default=8190, ge=1024, le=1 << 20)
    """The longest request line or header; of gRPC, all metadata of a call."""
    max_headers: int = Field(default=128, ge=8, le=10_000)
    """How many headers a request may have."""
    max_connections: int | None = Field(default=None, ge=1)
    """How many connections each port may have open; more are closed at once. null: any number."""
    max_concurrent_streams: int | None = Field(default=1000, ge=1, lt=2**31)
    """How many calls of gRPC one connection may have open: clients let further ones wait; null: any number."""
    timeouts: Timeouts = Timeouts()
    """How long HTTP ports wait for clients."""


class Metrics(Section):
    """What Prometheus is shown."""  # each dialect adds its own


class Tracing(Section):
    """Traces of single requests, as Triton's. Callers may change all of it but the file."""

    file: Annotated[FileRef, Existing("new")] | None = None
    """Where traces are written, relative to this file; null: nowhere."""
    level: tuple[Literal["TIMESTAMPS", "TENSORS"], ...] = ()
    """TIMESTAMPS: the times of each stage. TENSORS is accepted and writes nothing. Empty: nothing is traced."""
    rate: int = Field(default=1000, ge=0, lt=2**32)
    """Every so many-th request is traced."""
    count: int = Field(default=-1, ge=-1, lt=2**31)
    """How many requests are traced; -1 is no end."""
    log_frequency: int = Field(default=0, ge=0, lt=2**32)
    """How many traces go into a file before another begins, FILE.0, FILE.1 and so on; 0: all into FILE."""


class SharedMemoryConfig(Section):
    """Memory that callers on this machine share with the gateway, in place of sending tensors. Whoever may call the
    gateway may read and write what is registered."""

    system: bool = False
    """Allow POSIX shared memory: files below /dev/shm that the gateway's own user owns and only it can write."""
    cuda: bool = False
    """Allow a GPU's memory, by CUDA IPC handles."""
    prefix: str = ""
    """What the keys of system memory must begin with; empty allows every key."""
    max_regions: int = Field(default=256, ge=1)
    """How many regions may be registered at once. Each holds a file open."""


class ResponseCacheConfig(Section):
    """Answers that are given again to equal requests, of all models that ask for it with `response_cache: true`."""

    max_bytes: int = Field(default=64 << 20, ge=1)
    """How much they may take in all; what was used longest ago leaves first."""
    max_entry_bytes: int = Field(default=1 << 20, ge=1)
    """The largest inputs, and the largest outputs, that are kept."""
    ttl_seconds: float = Field(default=0, ge=0, allow_inf_nan=False)
    """How long an answer may be given again; 0: until its version is unloaded."""


class Config(Section):
    """The whole configuration. `config_class` adds one section per dialect."""

    dialect_names: ClassVar[tuple[str, ...]] = ()
    uploading_dialects: ClassVar[tuple[str, ...]] = ()

    listen: Listen = Listen()
    """Where requests come in."""
    models: dict[PublicName, ModelConfig] = Field(default_factory=dict, json_schema_extra=PUBLIC_NAMES)
    """The models, by name; may be left out where there are repositories."""
    ops: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], OwnOp] = Field(default_factory=dict)
    """Operators of your own for preprocess and postprocess: a name -> file.py:Class, relative to this file."""
    repositories: tuple[Annotated[FileRef, Existing("folder")], ...] = ()
    """Folders of further models: a folder each, named like the model."""
    model_control: ModelControl = ModelControl()
    """Which models are loaded, and who decides."""
    admin: Admin | None = None
    """What callers must show who change the server's state; null: nothing."""
    auth: Auth | None = None
    """Who may call; null: everybody."""
    rate_limits: tuple[RateLimit, ...] = ()
    """How much callers may ask for."""
    routes: dict[PublicName, Route] = Field(default_factory=dict, json_schema_extra=PUBLIC_NAMES)
    """Further public names, each with the models that it leads to."""
    limits: Limits = Limits()
    """Bounds on every request."""
    metrics: Metrics = Metrics()
    """What Prometheus is shown."""
    tracing: Tracing = Tracing()
    """Traces of single requests."""
    access_log: AccessLogConfig | None = None
    """A line of JSON for each call; null: none."""
    request_ids: bool = False
    """Whether every answer has an x-request-id in its headers; else those to callers who sent one, which is kept."""
    expose_model_errors: bool = True
    """Whether callers read what a model's code has raised, its last line; false: only that it failed. The log has it
    with a traceback in any case."""
    opentelemetry: OpenTelemetryConfig | None = None
    """Spans of calls, sent to a collector; null: none."""
    cpu: Cpu = Cpu()
    """The host's processors."""
    shared_memory: SharedMemoryConfig = SharedMemoryConfig()
    """Memory that callers share."""
    response_cache: ResponseCacheConfig = ResponseCacheConfig()
    """Answers that are given again."""
    page: bool = True
    """Whether HTTP ports show the operator's page at /."""
    readiness: Literal["strict", "lenient"] = "strict"
    """strict: ready when every model is; lenient: failed models are ignored."""
    supervise: bool | Literal["auto"] = "auto"
    """Whether a parent process starts the server again when its process ends unasked: after a crash, an exit that a
    model's code called, or when a GPU refuses all further work; auto: where models may be on a GPU."""
    reload: Reload = Reload()
    """When the configuration is read anew."""
    unready_seconds: float = Field(default=0, ge=0, allow_inf_nan=False)
    """How long requests are still accepted after the signal to stop, while every health check says unready already: as
    long as load balancers need to notice."""
    drain_seconds: float = Field(default=30, ge=0, allow_inf_nan=False)
    """How long running requests may go on after that."""
    _source: Path = PrivateAttr(default_factory=Path)
    _digest: str = PrivateAttr(default="")
    _own_ops: Mapping[str, OpKind] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Keep where the configuration comes from: the validation's context."""
        if isinstance(context, Path):
            self._source = context

    @property
    def source(self) -> Path:
        """The YAML file, absolute."""
        return self._source

    @property
    def digest(self) -> str:
        """The SHA-256 of the YAML text, as sha256sum prints it."""
        return self._digest

    def named(self, digest: str) -> Config:
        """The same, made of the text that has this digest."""
        self._digest = digest
        return self

    def bring(self, ops: Mapping[str, OpKind]) -> Config:
        """The same, with the operators that its section `ops` names."""
        self._own_ops = ops
        return self

    def extended(self, registries: Registries) -> Registries:
        """The registries with the operators that the file brings."""
        return replace(registries, ops={**registries.ops, **self._own_ops})

    def dialects(self) -> dict[str, Options]:
        """The section of each dialect, by name, with its defaults where the YAML has none."""
        return {name: getattr(self, name) for name in self.dialect_names}

    def plain(self) -> dict[str, Any]:
        """The configuration as plain data, defaults filled in, paths as they are written. It reads back as the same
        configuration."""
        return self.model_dump(mode="json", warnings=False)  # a reload may leave sections of another class here


# ----------------------------------------------------------------------------------------------------- with registries


_DESCRIBED: Final = {"use_attribute_docstrings": False}
"""What is made here has no source to look for docstrings in: its fields have their descriptions already."""

Tables: TypeAlias = tuple[tuple[tuple[str, Any], ...], ...]
"""Registries as a key to remember by: the classes of one take a quarter of a second to make."""


def config_class(registries: Registries) -> type[Config]:
    """The Config whose models, steps, listeners and sections are those of the registries."""
    return _config_class(_tables(registries))


def some_model(registries: Registries) -> Any:
    """The type of one model's entry: the class that its backend's name chooses."""
    return Annotated[ModelConfig, OneOfClasses("backend", _model_classes(_tables(registries)))]


def _tables(registries: Registries) -> Tables:
    return tuple(tuple(table.items()) for table in (registries.dialects, registries.backends, registries.ops))


# Never stale: the key has every kind that the class is made of.
@lru_cache(maxsize=8)
def _config_class(tables: Tables) -> type[Config]:
    dialects, backends, ops = map(dict, tables)
    registries = Registries(dialects, backends, ops)
    listen = _listen_class(tuple(registries.dialects))
    metrics = _metrics_class([kind.metrics_options for kind in registries.dialects.values() if kind.metrics_options])
    fields: dict[str, Any] = {
        "listen": (listen, _described(Config, "listen", default_factory=listen)),
        "metrics": (metrics, _described(Config, "metrics", default=metrics())),
        "models": (dict[PublicName, some_model(registries)], _like(Config, "models")),  # type: ignore[misc]
    }
    for name, kind in registries.dialects.items():
        required = any(field.is_required() for field in kind.options.model_fields.values())
        fields[name] = (kind.options, ... if required else Field(default_factory=kind.options))
    config = create_model("Config", __base__=Config, __cls_kwargs__=_DESCRIBED, **fields)
    config.dialect_names = tuple(registries.dialects)
    config.uploading_dialects = tuple(name for name, kind in registries.dialects.items() if kind.uploads)
    return config


def _metrics_class(of_dialects: list[type[Options]]) -> type[Metrics]:
    """The last base's fields come first."""
    bases: Any = (Metrics, *reversed(of_dialects))
    metrics: type[Metrics] = create_model("Metrics", __base__=bases, __doc__=Metrics.__doc__, __cls_kwargs__=_DESCRIBED)
    return metrics


def _listen_class(dialects: tuple[str, ...]) -> type[Listen]:
    some = tuple[Annotated[str, OneOfNames(dialects)], ...] | None
    listener: Any = create_model(
        "Listener", __base__=Listener, __cls_kwargs__=_DESCRIBED, dialects=(some, _like(Listener, "dialects"))
    )
    several = tuple[listener, ...]
    default = tuple(listener(bind=each.bind) for each in Listen().http)
    return create_model(
        "Listen",
        __base__=Listen,
        __cls_kwargs__=_DESCRIBED,
        http=(several, _described(Listen, "http", default=default)),
        grpc=(several, _like(Listen, "grpc")),
    )


# Never stale: the key has every kind that the classes are made of.
@lru_cache(maxsize=8)
def _model_classes(tables: Tables) -> Mapping[str, type[ModelConfig]]:
    dialects, backends, ops = map(dict, tables)
    registries = Registries(dialects, backends, ops)
    steps = {name: _step_class(name, kind.options) for name, kind in registries.ops.items()}
    sections = {name: kind.model_options for name, kind in registries.dialects.items() if kind.model_options}
    return {name: _model_class(name, kind, steps, sections) for name, kind in registries.backends.items()}


def _step_class(name: str, options: type[Options]) -> type[Step]:
    fields: dict[str, Any] = {"op": (Literal[name], _like(Step, "op"))}
    bases: Any = (Step, options)
    step: type[Step] = create_model(
        f"{name}_step", __base__=bases, __doc__=options.__doc__, __cls_kwargs__=_DESCRIBED, **fields
    )
    return step


def _model_class(
    name: str, kind: BackendKind, steps: Mapping[str, type[Step]], sections: Mapping[str, type[Options]]
) -> type[ModelConfig]:
    """The common part and one backend's options in one class. What both name, the backend says: one that needs no
    path makes it optional.
    """
    some_steps = tuple[Annotated[Step, OneOfClasses("op", steps)], ...]
    path = Annotated[FileRef, Existing("any" if kind.versioned else "member")]
    own = kind.options.model_fields
    fields: dict[str, Any] = {
        "backend": (Literal[name], _like(ModelConfig, "backend")),
        "path": (path, _like(ModelConfig, "path")),
        "preprocess": (some_steps, _like(ModelConfig, "preprocess")),
        "postprocess": (some_steps, _like(ModelConfig, "postprocess")),
    }
    fields |= {dialect: (options | None, None) for dialect, options in sections.items()}
    fields |= {key: (own[key].annotation, own[key]) for key in own if key in ModelConfig.model_fields}
    bases: Any = (ModelConfig, kind.options)
    model: type[ModelConfig] = create_model(
        f"{name}_model", __base__=bases, __doc__=kind.options.__doc__, __cls_kwargs__=_DESCRIBED, **fields
    )
    model.dialect_names = tuple(sections)
    return model


def _like(base: type[Options], key: str) -> FieldInfo:
    """The field of a base class, to be given a narrower type: its default, bounds and description stay."""
    return copy(base.model_fields[key])


def _described(base: type[Options], key: str, **default: Any) -> Any:
    return Field(description=base.model_fields[key].description, **default)


# --------------------------------------------------------------------------------------------------------- JSON schema


_SOME_MODELS: Final = [
    {"required": ["models"], "properties": {"models": {"minProperties": 1}}},
    {"required": ["repositories"], "properties": {"repositories": {"minItems": 1}}},
]


def json_schema(registries: Registries) -> dict[str, Any]:
    """What the YAML may hold, as JSON Schema 2020-12: for editors, and for the unknown keys' nearest neighbours."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return head | config_class(registries).model_json_schema() | {"title": "tensorgate", "anyOf": _SOME_MODELS}
