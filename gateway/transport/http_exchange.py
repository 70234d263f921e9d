"""What a reader of HTTP offers to the one flow that answers requests. There are two: the fast path, and aiohttp."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from tensorgate.gateway.contract.call import Buffer, Peer, Reply
from tensorgate.gateway.wire.http1_body import Body


class HttpExchange(Protocol):
    """One request, and how to answer it: `send` once, or `start`, any number of `chunk` and `end`.

    Sending waits for a reader that is slow, and raises ConnectionError once there is none. What is sent at once, as
    most replies are, is not waited for.
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
        """When the head was read, in seconds of `time.monotonic()`; 0.0: with the body, just now."""
        ...

    request_id: str
    """Goes into the reply's headers, unless it is ""."""

    @property
    def peer(self) -> Peer: ...

    @property
    def has_begun(self) -> bool:
        """Something has been sent."""
        ...

    def take_body(self) -> Buffer | None:
        """Hand over the body if all of it is here, to be its reader's alone; None: `read` it."""
        ...

    async def read(self, limit: int) -> Buffer:
        """Read the whole body. Raises BodyTooLarge beyond `limit` bytes, as soon as that is known."""
        ...

    def send(self, reply: Reply) -> Awaitable[None] | None:
        """Send the only reply -> what is to be waited for, None where nothing is."""
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

AnswerArriving: TypeAlias = Callable[[HttpExchange, Body, int], Coroutine[Any, Any, None] | None]
"""(request, what takes its body, the body's size) -> what answers it meanwhile, None where the body has to be whole."""
