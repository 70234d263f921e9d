"""One address of another server: a message there, what it says back. Made, used and closed on the event loop.

What never reached the server is `NotReached`, and may be sent to another one. Of what went with a connection that broke
(`ConnectionLost`), nobody knows what the server did before. Everything else is a Reply, also that the time was over, or
that the answer has no end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, Protocol

from tensorgate.backends.remote.options import UpstreamAccess
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.upstream import Ask

CONNECTS_WITHIN_S: Final = 1.0
TOO_LARGE: Final = "the upstream server's answer has {size} bytes, of at most {max_bytes} (upstream.max_answer_bytes)"
OPEN: Final = UpstreamAccess()
"""No TLS, no headers."""


class NotReached(Exception):
    """The server could not be connected to: nothing was sent."""


class ConnectionLost(Exception):
    """The connection broke before there was an answer."""


class UpstreamConnection(Protocol):
    """One address of another server."""

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        """One message, one reply. Raises NotReached, ConnectionLost."""
        ...

    def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        """One message, any number of replies; one that is no success is the last. Raises NotReached, ConnectionLost."""
        ...

    async def close(self) -> None:
        """Calls that are under way end."""
        ...
