"""The tables of what can be plugged in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.dialect import DialectKind
from tensorgate.gateway.contract.operator import LoadOp, OpKind


@dataclass(frozen=True, slots=True)
class Registries:
    """The tables of what can be plugged in, with their lines imported: handed to the configuration by the composition
    root.
    """

    dialects: Mapping[str, DialectKind] = field(default_factory=dict)
    backends: Mapping[str, BackendKind] = field(default_factory=dict)
    ops: Mapping[str, OpKind] = field(default_factory=dict)
    load_op: LoadOp | None = None
    """For the operators that a configuration brings along."""
