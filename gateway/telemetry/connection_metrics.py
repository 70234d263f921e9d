"""What passes through a listener, as its transport counts it, and how Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class ListenerTraffic:
    """Open connections (None where the transport does not tell), calls that are being answered, and bytes of bodies so
    far.
    """

    connections: int | None
    running: int
    received: int
    sent: int

    def __add__(self, other: ListenerTraffic) -> ListenerTraffic:
        known = [each for each in (self.connections, other.connections) if each is not None]
        return ListenerTraffic(
            sum(known) if known else None,
            self.running + other.running,
            self.received + other.received,
            self.sent + other.sent,
        )


@dataclass(slots=True)
class ListenerCounters:
    """The same as a transport counts it."""

    running: int = 0
    received: int = 0
    sent: int = 0


_LABELS: Final = ["listener", "transport"]


class Listeners:
    """All of them; those of one name are one."""

    def __init__(self) -> None:
        self._readers: list[tuple[tuple[str, str], Callable[[], ListenerTraffic]]] = []
        self._groups: list[Callable[[], Mapping[tuple[str, str], ListenerTraffic]]] = []

    def add(self, name: str, transport: str, read: Callable[[], ListenerTraffic]) -> None:
        """Another one, whose numbers `read` gives, in any thread."""
        self._readers.append(((name, transport), read))

    def add_all(self, read: Callable[[], Mapping[tuple[str, str], ListenerTraffic]]) -> None:
        """Others, whose numbers `read` gives by name and transport, in any thread."""
        self._groups.append(read)

    def read(self) -> dict[tuple[str, str], ListenerTraffic]:
        """The numbers of each name and transport."""
        groups = [{labels: read()} for labels, read in list(self._readers)] + [read() for read in list(self._groups)]
        together: dict[tuple[str, str], ListenerTraffic] = {}
        for group in groups:
            for labels, traffic in group.items():
                together[labels] = traffic + together.get(labels, ListenerTraffic(None, 0, 0, 0))
        return together

    def listed(self) -> list[dict[str, Any]]:
        """All of them as plain data; `connections` is None where the transport does not tell."""
        return [
            {"name": name, "transport": transport, "connections": traffic.connections, "running": traffic.running}
            for (name, transport), traffic in sorted(self.read().items())
        ]

    def collect(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily("tensorgate_open_connections", "Connections of clients.", labels=_LABELS)
        running = GaugeMetricFamily("tensorgate_calls_in_flight", "Calls that are being answered.", labels=_LABELS)
        received = CounterMetricFamily("tensorgate_received_bytes", "Bytes of bodies that came in.", labels=_LABELS)
        sent = CounterMetricFamily("tensorgate_sent_bytes", "Bytes of bodies that went out.", labels=_LABELS)
        for labels, traffic in self.read().items():
            if traffic.connections is not None:
                connections.add_metric(labels, traffic.connections)
            running.add_metric(labels, traffic.running)
            received.add_metric(labels, traffic.received)
            sent.add_metric(labels, traffic.sent)
        yield from (connections, running, received, sent)
