"""What the configuration says of being seen: the access log, and OpenTelemetry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tensorgate.gateway.config.values import Section
from tensorgate.gateway.contract.files import Existing, FileRef


class AccessLogConfig(Section):
    """A line of JSON for each call."""

    file: Annotated[FileRef, Existing("new")] = FileRef("stdout", Path("stdout"))
    """stdout, stderr, or a file's name, relative to this file; opened anew when it was renamed, or at SIGUSR1."""
    sample: float = Field(default=1.0, ge=0, le=1)
    """The share of calls that leave a line."""
    slow_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Calls that take so long always leave one; null: they are like others."""
    errors: Literal["always", "sampled"] = "always"
    """Whether calls that fail always leave one."""


class OpenTelemetryConfig(Section):
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
