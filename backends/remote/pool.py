"""The addresses of another server: which of them are well, and who is asked next.

Every address is asked once a second whether the model is ready there. Requests go to the one with the fewest on their
way, among those that are; if none is, to any, so that the caller gets the server's own words. An address that answers
time and again that it cannot, or loses its connections, is left alone for a while where there are others. What never
reached one address is sent to one other.

A sequence stays with the address that its first request went to, however that is: no other one has its state. If it
cannot be reached, the sequence's requests fail, until one begins it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric

from tensorgate.backends.remote.address import FAILED, OK, Address, families
from tensorgate.backends.remote.connection import ConnectionLost, NotReached, UpstreamConnection
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import Sequence
from tensorgate.gateway.contract.errors import Code, ErrorReason, GatewayError, Unavailable
from tensorgate.gateway.contract.upstream import Ask, Client

log = logging.getLogger(__name__)

_PROBE_EVERY_S: Final = 1.0
_PROBE_AGAIN_S: Final = 0.1
_PROBE_WITHIN_S: Final = 0.9
_MAX_SEQUENCES: Final = 1 << 16
"""Of those that never end, the oldest is forgotten."""
_BAD_STATUSES: Final = frozenset({502, 503})


class Pool:
    """All addresses of one model. Made, used and closed on the event loop."""

    def __init__(
        self, client: Client, connect: Callable[[str], UpstreamConnection], addresses: Iterable[str], model: str = ""
    ) -> None:
        self._client = client
        self.addresses = [Address(model, name, connect(name)) for name in addresses]
        self._turn = 0
        self._sequences: dict[int | str, Address] = {}
        """Where those are that have begun, the oldest first."""
        self._probes = [asyncio.ensure_future(self._watch(address)) for address in self.addresses]
        _open[id(self)] = self

    def is_ready(self) -> bool:
        return any(address.ready for address in self.addresses)

    async def close(self) -> None:
        _open.pop(id(self), None)
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        await asyncio.gather(*(address.connection.close() for address in self.addresses))

    # ----------------------------------------------------------------------------------------------------------- asking

    async def call(self, ask: Ask, seconds: float | None, sequence: Sequence | None = None) -> Reply:
        """One reply, to a request of a sequence or of none. Raises Unavailable."""
        tried: Address | None = None
        started = time.monotonic()
        for _ in range(2):
            address = self._choose(sequence, tried)
            address.busy += 1
            begun = time.monotonic()
            try:
                reply = await address.connection.call(ask, _left(seconds, started))
            except (NotReached, ConnectionLost) as error:
                _doubt(address, error)
                tried = address
                continue
            finally:
                address.busy -= 1
            unwell = _is_unwell(reply)
            address.note(failed=unwell)
            address.counts.ended(FAILED if unwell else OK, time.monotonic() - begun)
            if sequence is not None and sequence.end:
                self._sequences.pop(sequence.id, None)
            return reply
        raise _nobody()

    async def stream(
        self, ask: Ask, seconds: float | None, sequence: Sequence | None = None
    ) -> AsyncGenerator[Reply, None]:
        """The replies to one message. Raises Unavailable."""
        tried: Address | None = None
        started = time.monotonic()
        for _ in range(2):
            address = self._choose(sequence, tried)
            address.busy += 1
            begun, result = time.monotonic(), OK
            try:
                async with contextlib.aclosing(address.connection.stream(ask, _left(seconds, started))) as replies:
                    async for reply in replies:
                        result = FAILED if _is_unwell(reply) else result
                        address.note(failed=_is_unwell(reply))
                        yield reply
                address.counts.ended(result, time.monotonic() - begun)
                if sequence is not None and sequence.end:
                    self._sequences.pop(sequence.id, None)
                return
            except (NotReached, ConnectionLost) as error:
                _doubt(address, error)
                tried = address
            finally:
                address.busy -= 1
        raise _nobody()

    def _choose(self, sequence: Sequence | None, tried: Address | None) -> Address:
        """The least loaded of the best; those that are alike take turns. Raises Unavailable if none is left."""
        if len(self.addresses) == 1:
            if tried is not None:
                raise _nobody()
            return self.addresses[0]
        if sequence is not None and not sequence.start and (has_it := self._sequences.get(sequence.id)) is not None:
            if tried is not None:
                text = f"the upstream server that has sequence {sequence.id} cannot be reached"
                raise Unavailable(text, ErrorReason.UPSTREAM)
            return has_it
        now = time.monotonic()
        others = [address for address in self.addresses if address is not tried]
        ready = [address for address in others if address.ready]
        best = [address for address in ready if address.ejected_until <= now] or ready or others
        if sequence is not None:  # gateways beside this one come to the same, if they find the same addresses well
            key = sequence.id
            self._sequences[key] = found = max(best, key=lambda one: zlib.crc32(f"{one.name} {key}".encode()))
            if len(self._sequences) > _MAX_SEQUENCES:
                del self._sequences[next(iter(self._sequences))]
            return found
        self._turn += 1
        turn = self._turn % len(best)
        return min(best[turn:] + best[:turn], key=lambda address: address.busy)

    # ----------------------------------------------------------------------------------------------------------- health

    async def _watch(self, address: Address) -> None:
        while True:
            begun = time.monotonic()
            try:
                was, address.ready = address.ready, await self._probe(address)
            except Exception:
                log.exception("upstream %s cannot be probed", address.name)
            else:
                if was != address.ready:
                    log.info("upstream %s is %s", address.name, "ready" if address.ready else "not ready")
            pause = max(_PROBE_AGAIN_S, begun + _PROBE_EVERY_S - time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await address.doubt.wait()
                    await asyncio.sleep(_PROBE_AGAIN_S)
            address.doubt.clear()

    async def _probe(self, address: Address) -> bool:
        try:
            async with asyncio.timeout(_PROBE_WITHIN_S):
                return self._client.is_ready(await address.connection.call(self._client.probe(), _PROBE_WITHIN_S))
        except (NotReached, ConnectionLost, TimeoutError, GatewayError):
            return False


_open: Final[dict[int, Pool]] = {}


def collect() -> Iterator[Metric]:
    """What all pools count; called in any thread."""
    return families([address for pool in list(_open.values()) for address in pool.addresses])


def _left(seconds: float | None, started: float) -> float | None:
    """The rest of a call's time: an address that could not be reached may have taken some of it."""
    return None if seconds is None else max(0.0, started + seconds - time.monotonic())


def _is_unwell(reply: Reply) -> bool:
    """Whether the server itself could not answer: no word on the request."""
    return reply.grpc_code == Code.UNAVAILABLE or reply.http_status in _BAD_STATUSES


def _doubt(address: Address, error: Exception) -> None:
    """A connection broke, or could not be had: others are asked until a probe says that all is well. Raises
    Unavailable where nobody knows what the server did before.
    """
    if address.ready:  # once: what else is on its way there fails for the same reason
        log.warning("upstream %s: %s", address.name, error)
    address.ready = False
    address.doubt.set()
    address.counts.ended("unreachable" if isinstance(error, NotReached) else "broken", 0.0)
    if isinstance(error, ConnectionLost):
        raise Unavailable("the connection to the upstream server broke", ErrorReason.UPSTREAM) from None


def _nobody() -> Unavailable:
    return Unavailable("the upstream server cannot be reached", ErrorReason.UPSTREAM)
