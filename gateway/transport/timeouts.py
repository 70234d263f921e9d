"""How long clients are waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Seconds after which a lane gives up: on the next request, on the rest of a head, on more of a body, on a client
    that takes nothing of its answer (as far as the kernel tells, which holds megabytes of it), and on one that still
    sends what was refused. `sweep` is how often it looks.
    """

    idle: float = 75.0
    head: float = 30.0
    body: float = 60.0
    answer: float = 300.0
    linger: float = 10.0
    sweep: float = 1.0
