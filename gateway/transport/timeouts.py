"""How long clients are waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Seconds after which a client is given up."""

    idle: float = 75.0
    """Waiting for the next request."""
    head: float = 30.0
    """Waiting for the rest of a head, or of a TLS handshake."""
    body: float = 60.0
    """Waiting for more of a body."""
    answer: float = 300.0
    """The client takes nothing of its answer, as far as the kernel tells, which holds megabytes of it."""
    linger: float = 10.0
    """The client still sends what was refused."""
    sweep: float = 1.0
    """How often all of this is checked."""
