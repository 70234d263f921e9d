"""Observability: the access log, Prometheus metrics, traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options


class AccessLogConfig(Options):
    """A line of JSON for each call."""

    file: Annotated[FileRef, Existing("new")] = FileRef("stdout", Path("stdout"))
    """stdout, stderr, or a file's name, relative to this file; opened anew when it was renamed, or at SIGUSR1."""
    sample: float = Field(default=1.0, ge=0, le=1)
    """The share of calls that leave a line."""
    slow_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Calls that take so long always leave one; null: they are like others."""
    errors: Literal["always", "sampled"] = "always"
    """Whether calls that fail always leave one."""


class EventsConfig(Options):
    """Inferences as CloudEvents, sent to an HTTP address: what KServe's logger sends."""

    url: str = Field(pattern=r"^https?://[^\s/]+[^\s]*$")
    """Where each event is posted: a Knative broker, a collector of payloads."""
    mode: Literal["all", "request", "response"] = "all"
    """Which halves of an inference are sent."""
    source: str = ""
    """The attribute source of the events; empty: the server's name."""
    service: str = ""
    """The extension inferenceservicename; empty: the model's name."""
    namespace: str = ""
    """The extension namespace."""


class RecordConfig(Options):
    """Calls with their answers, kept in files, sent to an address, or both: docs/record.md."""

    file: Annotated[FileRef, Existing("new")] | None = None
    """Where, relative to this file. A full one is renamed to FILE.1, the one before to FILE.2, and so on. Doors write
    one each, FILE-0, FILE-1 and so on. null: in no file."""
    events: EventsConfig | None = None
    """Where inferences are sent as CloudEvents; null: nowhere."""
    share: float = Field(default=1.0, gt=0, le=1)
    """The share of calls that are recorded."""
    max_load: float = Field(default=0.05, gt=0, le=1)
    """The share of the time that recording may take. Under more load calls are passed over, and counted; 1: none are,
    whatever it costs."""
    models: tuple[str, ...] = ()
    """Of these models and routes only; empty: all calls, also those that name none."""
    max_bytes: int = Field(default=256 << 20, ge=1 << 16)
    """The size of one file."""
    files: int = Field(default=4, ge=1, le=1000)
    """How many are kept."""
    max_body_bytes: int = Field(default=1 << 20, ge=0)
    """Longer bodies are left out: only their length is recorded."""
    redact: tuple[str, ...] = ()
    """Headers, and gRPC metadata, that are left out, beside credentials, which always are."""

    @model_validator(mode="after")
    def _goes_somewhere(self) -> RecordConfig:
        if self.file is None and self.events is None:
            raise ValueError("calls are recorded nowhere: give a file, or events with a url")
        return self


class OpenTelemetryConfig(Options):
    """Spans of calls, sent to a collector by OTLP. Needs the extra otel. Headers for the collector, certificates and
    attributes of the resource come from OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_HEADERS and so on)."""

    endpoint: str = Field(pattern=r"^https?://[^\s]+$")
    """The collector: http://HOST:4318 for http, http://HOST:4317 for grpc."""
    protocol: Literal["http", "grpc"] = "http"
    """How OTLP is sent."""
    ratio: float = Field(default=0.01, ge=0, le=1)
    """The share of calls that are traced, of those whose callers say nothing of it (traceparent)."""
    service_name: str = Field(default="tensorgate", min_length=1)
    """What the service is called in traces."""
    max_waiting: int = Field(default=8192, ge=1)
    """How many spans may wait for the collector; more are dropped."""


class Metrics(Options):
    """What Prometheus is shown."""  # each dialect adds its own

    stages: tuple[Literal["decode", "queue", "preprocess", "infer", "postprocess", "encode"], ...] = (
        "decode",
        "queue",
        "preprocess",
        "infer",
        "postprocess",
        "encode",
    )
    """The stages of a request whose times tensorgate_stage_seconds has, for each model; empty: none."""
    genai_names: bool = False
    """Also OpenTelemetry's names for generative models, of models that stream: gen_ai_server_time_to_first_token and so
    on, where an answer counts as a token."""
    usage: bool = False
    """Whether calls, rows, bytes and computing time are counted for each caller and model, whom auth knows by name."""


class Tracing(Options):
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
