"""What the configuration may say: frozen classes, given the registries of what is plugged in.

`config_class` puts them together for one set of registries: a model takes the keys of its backend beside the common
ones, a step those of its op, and every dialect may have a section at the top and one in each model. The classes check
their values, and that the files they name exist; `file` reads them from YAML and words what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, PrivateAttr, ValidationInfo, create_model, field_validator
from pydantic.fields import FieldInfo

from tensorgate.gateway.config.listeners import Listen, Listener
from tensorgate.gateway.config.model import ModelConfig, Step
from tensorgate.gateway.config.observing import AccessLogConfig, Metrics, OpenTelemetryConfig, RecordConfig, Tracing
from tensorgate.gateway.config.residency import Residency
from tensorgate.gateway.config.resources import Cpu, Limits, Processes, ResponseCacheConfig, SharedMemoryConfig
from tensorgate.gateway.config.routes import Route
from tensorgate.gateway.config.security import Admin, Auth, RateLimit, SharesConfig
from tensorgate.gateway.config.stores import StoresConfig
from tensorgate.gateway.config.values import PUBLIC_NAMES, CustomOp, OneOfClasses, OneOfNames, PublicName
from tensorgate.gateway.config.verification import VerifyConfig
from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.registries import Registries

EVERYTHING = "*"


class ModelControl(Options):
    """Which models are loaded, and who decides. Source: Triton's model control modes."""

    mode: Literal["none", "poll", "explicit"] = "none"
    """none: all are loaded at start, and stay; poll: what changes on disk is followed; explicit: callers load and
    unload."""
    load: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Of mode explicit: the models that are loaded at start; "*" is all."""
    poll_seconds: float = Field(default=15, gt=0, allow_inf_nan=False)
    """Of mode poll: how often the disk is looked at."""
    allow_uploads: bool = False
    """Of mode explicit: whether a load may bring the model's files with it. Ports that others reach need admin or auth
    for that."""
    trusted: bool = False
    """Whether those files may be programs: Python, shared libraries, models of the backends python, triton_python,
    tensorflow, torch and classic. Who may upload them has all that the server's user may do."""

    verify: VerifyConfig | None = None
    """What models have to prove whose entries say nothing, and those of repositories whatever their model.yaml says."""
    require_verification: bool = False
    """Whether every model that has files needs a proof, its own or this one; others are not loaded, whoever brings
    them."""

    model_roots: tuple[Annotated[FileRef, Existing("folder")], ...] = ()
    """Of modes poll and explicit: the folders below which the models may lie that TensorFlow Serving's callers list in
    a reload, which replaces all that is served; without any, reloads are refused."""

    @field_validator("load")
    @classmethod
    def _explicit_only(cls, load: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if load and info.data.get("mode", "explicit") != "explicit":
            raise ValueError("only mode explicit chooses the models to load")
        return load

    @field_validator("model_roots")
    @classmethod
    def _for_callers(cls, roots: tuple[FileRef, ...], info: ValidationInfo) -> tuple[FileRef, ...]:
        if roots and info.data.get("mode") == "none":
            raise ValueError("mode none lets nobody reload")
        return roots

    def chosen(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The models to load at start, out of `names` and those that `load` names, which may not exist."""
        if self.mode != "explicit" or EVERYTHING in self.load:
            return (*names, *(name for name in self.load if name not in names and name != EVERYTHING))
        return tuple(dict.fromkeys(self.load))


class Reload(Options):
    """When the configuration is read anew, beside SIGHUP and POST /admin/reload."""

    watch: bool = False
    """Whether it is followed: read anew whenever the file has become another."""
    poll_seconds: float = Field(default=1, gt=0, allow_inf_nan=False)
    """How often the file is looked at; it is read once it has been the same twice."""


class Config(Options):
    """The whole configuration. `config_class` adds one section per dialect."""

    dialect_names: ClassVar[tuple[str, ...]] = ()
    uploading_dialects: ClassVar[tuple[str, ...]] = ()

    listen: Listen = Listen()
    """Where requests come in."""
    server_name: str = Field(default="tensorgate", min_length=1, max_length=256)
    """What the server is called in Open Inference's metadata, GET /v2: triton for clients that look at it."""
    models: dict[PublicName, ModelConfig] = Field(default_factory=dict, json_schema_extra=PUBLIC_NAMES)
    """The models, by name; may be left out where there are repositories."""
    ops: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], CustomOp] = Field(default_factory=dict)
    """Operators of your own for preprocess and postprocess: a name -> file.py:Class, relative to this file."""
    repositories: tuple[Annotated[FileRef, Existing("folder", or_elsewhere=True)], ...] = ()
    """Folders of further models, paths or URLs: a folder each, named like the model."""
    stores: StoresConfig = StoresConfig()
    """Models that lie on other machines: where their stores are, and what is kept of them here."""
    upstreams: dict[PublicName, Options] = Field(default_factory=dict)
    """Other servers by a name of yours, whose models are served here under their own names."""
    model_control: ModelControl = ModelControl()
    """Which models are loaded, and who decides."""
    residency: Residency = Residency()
    """Which models are in memory: all from the start on, or those that somebody asks for."""
    admin: Admin | None = None
    """What callers must show who change the server's state; null: nothing."""
    auth: Auth | None = None
    """Who may call; null: everybody."""
    rate_limits: tuple[RateLimit, ...] = ()
    """How much callers may ask for."""
    shares: SharesConfig | None = None
    """How much of a device each caller gets where several want it; null: whoever comes first is served first."""
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
    record: RecordConfig | None = None
    """Calls with their answers, kept in files; null: none."""
    opentelemetry: OpenTelemetryConfig | None = None
    """Spans of calls, sent to a collector; null: none."""
    cpu: Cpu = Cpu()
    """The host's processors."""
    processes: Processes = Processes()
    """How many processes serve."""
    shared_memory: SharedMemoryConfig = SharedMemoryConfig()
    """Memory that callers share."""
    response_cache: ResponseCacheConfig = ResponseCacheConfig()
    """Answers that are given again."""
    page: bool = True
    """Whether HTTP ports show the operator's page at /."""
    api_docs: bool = True
    """Whether HTTP ports describe their API: /openapi.json, /v2/models/NAME/openapi.json, and /docs for browsers."""
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
    _custom_ops: Mapping[str, OpKind] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Keep the path of the YAML file, which is the validation's context."""
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

    def is_of(self, text: str) -> bool:
        """Whether this configuration was made of a YAML text."""
        return self._digest == sha256(text.encode()).hexdigest()

    def with_digest(self, digest: str) -> Config:
        """Set the digest of the text that this configuration was made of, and return it."""
        self._digest = digest
        return self

    def with_ops(self, ops: Mapping[str, OpKind]) -> Config:
        """Set the operators that the section `ops` names, and return the configuration."""
        self._custom_ops = ops
        return self

    def extended(self, registries: Registries) -> Registries:
        """The registries plus the operators that the file defines."""
        return replace(registries, ops={**registries.ops, **self._custom_ops})

    def dialects(self) -> dict[str, Options]:
        """The section of each dialect, by name, with its defaults where the YAML has none."""
        return {name: getattr(self, name) for name in self.dialect_names}

    def plain(self) -> dict[str, Any]:
        """The configuration as plain data, defaults filled in, paths as they are written. It reads back as the same
        configuration."""
        return self.model_dump(mode="json", warnings=False)  # a reload may leave sections of another class here


# ----------------------------------------------------------------------------------------------------- with registries


Tables: TypeAlias = tuple[tuple[tuple[str, Any], ...], ...]
"""Registries as a cache key: making the classes of one takes a quarter of a second."""


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
        "listen": (listen, Field(default_factory=listen)),
        "metrics": (metrics, Field(default=metrics())),
        "models": (dict[PublicName, some_model(registries)], _like(Config, "models")),  # type: ignore[misc]
    }
    for server in [each.server_options for each in registries.backends.values() if each.server_options is not None]:
        fields["upstreams"] = (dict[PublicName, server], _like(Config, "upstreams"))  # type: ignore[valid-type]
    for name, kind in registries.dialects.items():
        required = any(field.is_required() for field in kind.options.model_fields.values())
        fields[name] = (kind.options, ... if required else Field(default_factory=kind.options))
    config = create_model("Config", __base__=Config, **fields)
    config.dialect_names = tuple(registries.dialects)
    config.uploading_dialects = tuple(name for name, kind in registries.dialects.items() if kind.uploads)
    return config


def _metrics_class(of_dialects: list[type[Options]]) -> type[Metrics]:
    """The last base's fields come first."""
    bases: Any = (Metrics, *reversed(of_dialects))
    metrics: type[Metrics] = create_model("Metrics", __base__=bases, __doc__=Metrics.__doc__)
    return metrics


def _listen_class(dialects: tuple[str, ...]) -> type[Listen]:
    some = tuple[Annotated[str, OneOfNames(dialects)], ...] | None
    listener: Any = create_model("Listener", __base__=Listener, dialects=(some, _like(Listener, "dialects")))
    several = tuple[listener, ...]
    default = tuple(listener(bind=each.bind) for each in Listen().http)
    return create_model(
        "Listen",
        __base__=Listen,
        http=(several, Field(default=default)),
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
    step: type[Step] = create_model(f"{name}_step", __base__=bases, __doc__=options.__doc__, **fields)
    return step


def _model_class(
    name: str, kind: BackendKind, steps: Mapping[str, type[Step]], sections: Mapping[str, type[Options]]
) -> type[ModelConfig]:
    """ModelConfig and one backend's options in one class. The backend's definition of a key wins: one that needs no
    path makes it optional.
    """
    some_steps = tuple[Annotated[Step, OneOfClasses("op", steps)], ...]
    path = Annotated[FileRef, Existing("any" if kind.versioned else "member", or_elsewhere=True)]
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
    model: type[ModelConfig] = create_model(f"{name}_model", __base__=bases, __doc__=kind.options.__doc__, **fields)
    model.dialect_names = tuple(sections)
    return model


def _like(base: type[Options], key: str) -> FieldInfo:
    """A copy of a base class's field for a narrower type; default and bounds stay."""
    return copy(base.model_fields[key])


# --------------------------------------------------------------------------------------------------------- JSON schema


_SOME_MODELS: Final = [
    {"required": ["models"], "properties": {"models": {"minProperties": 1}}},
    {"required": ["repositories"], "properties": {"repositories": {"minItems": 1}}},
    {"required": ["upstreams"], "properties": {"upstreams": {"minProperties": 1}}},
]


def json_schema(registries: Registries) -> dict[str, Any]:
    """What the YAML may hold, as JSON Schema 2020-12: for editors, and for the unknown keys' nearest neighbours."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return head | config_class(registries).model_json_schema() | {"title": "tensorgate", "anyOf": _SOME_MODELS}
