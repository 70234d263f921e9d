"""The tables of what can be plugged in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.dialect import DialectKind
from tensorgate.gateway.contract.operator import LoadOp, OpKind
from tensorgate.gateway.contract.upstream import MakeClient


@dataclass(frozen=True, slots=True)
class Registries:
    """What the composition root makes of the tables: each line imported, by name."""

    dialects: Mapping[str, DialectKind] = field(default_factory=dict)
    backends: Mapping[str, BackendKind] = field(default_factory=dict)
    ops: Mapping[str, OpKind] = field(default_factory=dict)
    load_op: LoadOp | None = None
    """Loads the operators that a configuration brings along."""

    def client(self, dialect: str, transport: str) -> MakeClient | None:
        """The client half of a dialect, None if there is none over that transport."""
        kind = self.dialects.get(dialect)
        if kind is None:
            return None
        return kind.grpc_client if transport == "grpc" else kind.http_client
