"""What a reader of HTTP offers to the one flow that answers requests. There are two: the fast path, and aiohttp."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from tensorgate.gateway.contract.call import Buffer, Peer, Reply


class HttpExchange(Protocol):
    """One request, and how to answer it: `send` once, or `start`, any number of `chunk` and `end`.

    Sending waits for a reader that is slow, and raises ConnectionError once there is none.
    """

    @property
    def method(self) -> str: ...

    @property
    def target(self) -> str:
        """The request target, still percent-encoded."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Read case-insensitively with lower-case keys."""
        ...

    @property
    def begun(self) -> float:
        """When the head was read, in seconds of `time.monotonic()`."""
        ...

    request_id: str
    """Goes into the reply's headers, unless it is ""."""

    @property
    def peer(self) -> Peer: ...

    async def read(self, limit: int) -> Buffer:
        """Read the whole body. Raises BodyTooLarge beyond `limit` bytes, as soon as that is known."""
        ...

    async def send(self, reply: Reply) -> None:
        """Send the only reply."""
        ...

    async def start(self, reply: Reply) -> None:
        """Send the first of several replies."""
        ...

    async def chunk(self, reply: Reply) -> None:
        """Send the body of one more."""
        ...

    async def end(self) -> None:
        """End the reply."""
        ...


Answer: TypeAlias = Callable[[HttpExchange], Coroutine[Any, Any, None]]
