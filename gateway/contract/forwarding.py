"""Whole calls that another server answers: that which computes a model, in the dialect that its callers speak.

Nothing of such a call is decoded here: its bytes go there, and what comes back goes to the caller. So that server's
versions, labels, signatures and methods are there for all, also those that this gateway has no word for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from tensorgate.gateway.contract.call import Call, Reply


class Forwarder(Protocol):
    """The server behind a model, as the gateway needs it for whole calls."""

    @property
    def kinds(self) -> frozenset[tuple[str, str]]:
        """(dialect, transport) of the calls that it can answer."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of the model in calls that it can answer."""
        ...

    def takes(self, call: Call, name: str) -> bool:
        """Whether the server can be asked by the very bytes of this call, which names the model so. In any thread."""
        ...

    def forward(
        self, call: Call, headers: Mapping[str, str], *, streams: bool, whole: bool
    ) -> AsyncGenerator[Reply, None]:
        """What the server replies: once, or with `streams` any number of times. `headers` go along with the caller's.
        Unless it is to be `whole`, the only reply may be one that still arrives. On the event loop.

        Raises Unavailable where it cannot be reached.
        """
        ...
