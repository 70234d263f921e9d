"""What a process of a group is, and what it has inherited: JSON in the environment, beside open file descriptors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

ROLE: Final = "TENSORGATE_ROLE"
"""The environment variable."""


@dataclass(frozen=True, slots=True)
class Role:
    """One process of a group: the engine, or the door of a slot. Numbers of files are descriptors that it inherits."""

    role: Literal["engine", "door"]
    slot: int
    """Which door, from 0 on; 0 of the engine."""
    row: int
    """Which cells of the shared state are its own: see `shared_state`. Of doors."""
    doors: int
    folder: Path
    """Where the engine and the doors have their Unix sockets; only this user can enter it."""
    shared: int
    """The shared state, a memfd."""
    ready: int
    """Where it writes a byte once it serves."""
    text: int
    """The YAML text that the group started with, a memfd; empty where there is no file. Its ports and all else that
    needs a full restart stay as they are there."""
    http: Sequence[int] = ()
    """The listening sockets of `listen.http`, in its order; none of the engine."""
    metrics: int | None = None
    grpc: Sequence[int] = ()
    addresses: Sequence[str] = ()
    """What the group listens on, as `serve` says it; known to all."""
    restarts: Mapping[str, int] | None = None
    """How often the process of this role and slot was started again, by reason; None of the first one."""
    is_next: bool = False
    """Of a door: whether it is to replace one that serves."""

    @classmethod
    def of_environment(cls, environment: MutableMapping[str, str]) -> Role | None:
        """This process's role, None of one that nobody has given any. The variable is removed, and the descriptors are
        kept from children: they are for nobody else.
        """
        said = environment.pop(ROLE, None)
        if said is None:
            return None
        plain = json.loads(said)
        role = cls(**plain | {"folder": Path(plain["folder"])})
        for number in role.inherited():
            os.set_inheritable(number, False)
        return role

    def environment(self) -> dict[str, str]:
        """What tells a child that this is its role."""
        return {ROLE: json.dumps(asdict(self) | {"folder": str(self.folder)})}

    def inherited(self) -> tuple[int, ...]:
        """All descriptors."""
        metrics = () if self.metrics is None else (self.metrics,)
        return (self.shared, self.ready, self.text, *self.http, *metrics, *self.grpc)

    @property
    def engine_socket(self) -> Path:
        """Where the engine listens for doors."""
        return self.folder / "engine.sock"

    def door_socket(self, row: int) -> Path:
        """Where the door of a row takes connections that others have accepted."""
        return self.folder / f"door-{row}.sock"

    def is_ready(self) -> None:
        """Tell the supervisor that this process serves. To be called once."""
        os.write(self.ready, b"1")
        os.close(self.ready)

    def configuration(self) -> str:
        """The YAML text that the group started with; "" where it has no file."""
        return os.pread(self.text, os.fstat(self.text).st_size, 0).decode()
