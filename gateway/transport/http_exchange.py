"""What a way of speaking HTTP offers to the one flow that answers requests. There are two: aiohttp, and the lane."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from tensorgate.gateway.contract.call import Buffer, Peer, Reply


class Exchange(Protocol):
    """One request, and how to answer it: `send` once, or `start`, any number of `chunk` and `end`.

    `target` is still percent-encoded, `headers` are read case-insensitively with lower-case keys, `begun` is when the
    head was read, in seconds of `time.monotonic()`; `request_id` goes into the reply's headers, unless it is "".
    Sending waits for a reader that is slow, and raises ConnectionError once there is none.
    """

    @property
    def method(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def begun(self) -> float: ...

    request_id: str

    @property
    def peer(self) -> Peer: ...

    async def read(self, limit: int) -> Buffer:
        """The whole body. Raises BodyTooLarge beyond `limit` bytes, as soon as that is known."""
        ...

    async def send(self, reply: Reply) -> None:
        """The only reply."""
        ...

    async def start(self, reply: Reply) -> None:
        """The first of several."""
        ...

    async def chunk(self, reply: Reply) -> None:
        """One more: of its parts, only the body can still be sent."""
        ...

    async def end(self) -> None:
        """No more."""
        ...


Answer: TypeAlias = Callable[[Exchange], Coroutine[Any, Any, None]]
