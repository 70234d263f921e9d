"""The configuration: YAML -> frozen Config, strictly, every problem with its line and column.

file.py        all steps in order: load_config; one model's entry alone: model_validator
yaml_tree.py   YAML text -> plain data that remembers where each value stands
checks.py      contradictions between sections
messages.py    pydantic's errors -> an operator's words
values.py      single values, and their checks
options.py     Config, the whole file; config_class adds what is plugged in
  listeners.py   ports: addresses, certificates, CORS
  model.py       a model: versions, devices, batches, tensors, padding, warm-up, signatures
  schedule.py    a model's queue, priorities and sequences
  routes.py      public names that lead to models, and mirroring
  residency.py   which models are in memory
  security.py    who may call, administrate, how often, and with which shares
  stores.py      models that lie on other machines
  resources.py   processors, memory, caches, and what a caller may send
  observing.py   access log, metrics and traces
"""

from tensorgate.gateway.config.file import (
    ConfigError,
    Problem,
    load_config,
    load_text,
    locator,
    model_validator,
    parse_config,
    read_plain,
    with_doors,
    with_model_control,
)
from tensorgate.gateway.config.listeners import Cors, Listener, MetricsListener, Tls
from tensorgate.gateway.config.model import ModelConfig, SignatureConfig, WarmupInput, WarmupSample
from tensorgate.gateway.config.observing import AccessLogConfig, OpenTelemetryConfig
from tensorgate.gateway.config.options import Config, ModelControl, config_class, json_schema
from tensorgate.gateway.config.residency import Residency
from tensorgate.gateway.config.routes import ANY, DifferenceSamples, Mirror, RouteConfig, RouteTarget, Rule
from tensorgate.gateway.config.schedule import ControlConfig, LevelConfig, QueueConfig, StateConfig
from tensorgate.gateway.config.security import Admin, ApiKey, Auth, Jwt, RateLimit, SharesConfig
from tensorgate.gateway.config.stores import CacheConfig, SourceConfig, StoresConfig
from tensorgate.gateway.config.values import MAX_VERSION, VersionPolicy
from tensorgate.gateway.contract.files import FileRef

__all__ = [
    "ANY",
    "MAX_VERSION",
    "AccessLogConfig",
    "Admin",
    "ApiKey",
    "Auth",
    "CacheConfig",
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
    "Residency",
    "RouteConfig",
    "RouteTarget",
    "Rule",
    "SharesConfig",
    "SignatureConfig",
    "SourceConfig",
    "StateConfig",
    "StoresConfig",
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
    "with_doors",
    "with_model_control",
]
