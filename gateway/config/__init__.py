"""The configuration: YAML -> frozen Config, strictly, every problem with its line and column.

yaml_tree.py   YAML text -> plain data that remembers where each value stands
options.py     what may be said: the classes, put together for the registries of what is plugged in
control.py     who may change a running server: model control, administrators, reloads
observing.py   the part of it that is about the access log and OpenTelemetry
cpu.py         how many threads compute on the host
padding.py     the part of it that is about rows and lengths that are added to batches
routes.py      the part of it that is about routes
schedule.py    the part of it that is about queues, priorities and sequences
security.py    the part of it that is about TLS, callers and their limits
signatures.py  the part of it that is about signatures
warmup.py      the part of it that is about what a model runs before it is ready
values.py      the small values in them, and their checks
own_ops.py     operators that a file brings along
checks.py      contradictions between parts of a file
words.py       pydantic's errors -> an operator's words
file.py        all of it in order: load_config; one model's entry alone: model_validator
"""

from tensorgate.gateway.config.control import Admin, ModelControl
from tensorgate.gateway.config.file import (
    ConfigError,
    Problem,
    load_config,
    load_text,
    locator,
    model_validator,
    parse_config,
    read_plain,
    with_model_control,
)
from tensorgate.gateway.config.observing import AccessLogConfig, OpenTelemetryConfig
from tensorgate.gateway.config.options import Config, Listener, MetricsListener, ModelConfig, config_class, json_schema
from tensorgate.gateway.config.routes import ANY, DifferenceSamples, Mirror, RouteConfig, RouteTarget, Rule
from tensorgate.gateway.config.schedule import ControlConfig, LevelConfig, QueueConfig, StateConfig
from tensorgate.gateway.config.security import ApiKey, Auth, Cors, Jwt, RateLimit, Tls
from tensorgate.gateway.config.signatures import SignatureConfig
from tensorgate.gateway.config.values import MAX_VERSION, VersionPolicy
from tensorgate.gateway.config.warmup import WarmupInput, WarmupSample
from tensorgate.gateway.contract.files import FileRef

__all__ = [
    "ANY",
    "MAX_VERSION",
    "AccessLogConfig",
    "Admin",
    "ApiKey",
    "Auth",
    "Config",
    "ConfigError",
    "ControlConfig",
    "Cors",
    "DifferenceSamples",
    "FileRef",
    "Jwt",
    "LevelConfig",
    "Listener",
    "MetricsListener",
    "Mirror",
    "ModelConfig",
    "ModelControl",
    "OpenTelemetryConfig",
    "Problem",
    "QueueConfig",
    "RateLimit",
    "RouteConfig",
    "RouteTarget",
    "Rule",
    "SignatureConfig",
    "StateConfig",
    "Tls",
    "VersionPolicy",
    "WarmupInput",
    "WarmupSample",
    "config_class",
    "json_schema",
    "load_config",
    "load_text",
    "locator",
    "model_validator",
    "parse_config",
    "read_plain",
    "with_model_control",
]
