"""The configuration: YAML -> frozen Config, strictly, every problem with its line and column.

yaml_tree.py   YAML text -> plain data that remembers where each value stands
options.py     what may be said: the classes, put together for the registries of what is plugged in
values.py      the small values in them, and their checks
checks.py      contradictions between parts of a file
words.py       pydantic's errors -> an operator's words
file.py        all of it in order: load_config
"""

from gateway.config.file import ConfigError, load_config, parse_config
from gateway.config.options import (
    Config,
    Listener,
    MetricsListener,
    ModelConfig,
    RouteTarget,
    SignatureConfig,
    config_class,
    json_schema,
)

__all__ = [
    "Config",
    "ConfigError",
    "Listener",
    "MetricsListener",
    "ModelConfig",
    "RouteTarget",
    "SignatureConfig",
    "config_class",
    "json_schema",
    "load_config",
    "parse_config",
]
