"""Requests and answers of models as CloudEvents, sent to an HTTP address: what KServe's logger sends, for whoever
watches drift. Two events of one id for each inference that succeeded, the body as it came and as it went.

Source: CloudEvents 1.0, HTTP binding in binary mode; the types and extensions are those of KServe's logger.
"""

from __future__ import annotations

import http.client
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tensorgate.gateway.config.observing import EventsConfig
from tensorgate.gateway.recording.backlog import Backlog

REQUEST: Final = "org.kubeflow.serving.inference.request"
RESPONSE: Final = "org.kubeflow.serving.inference.response"
GRPC_BODY: Final[Mapping[str, str]] = {"content-type": "application/grpc+proto"}
OF_BODIES: Final = ("content-type", "inference-header-content-length")
"""Headers without which a body cannot be read."""
_ANSWERS_WITHIN_S: Final = 10.0
_SUCCESS: Final = range(200, 300)
_ATTEMPTS: Final = 2
"""A connection that was kept may have been closed by the other side meanwhile."""


class Exchanged(NamedTuple):
    """One inference that succeeded, with the headers that say what its bodies are."""

    request_id: str
    model: str
    version: int | str
    came: float
    """In seconds since 1970."""
    ended: float
    endpoint: str
    """HTTP's target, or the full gRPC method."""
    headers: Mapping[str, str]
    body: bytes
    answers: Sequence[tuple[Mapping[str, str], bytes]]


class EventSink(Backlog[Exchanged]):
    """Sends events, one request each, over one connection."""

    at_once = 1

    def __init__(self, config: EventsConfig, source: str) -> None:
        """`source` is what the events say where they come from, unless the configuration does."""
        super().__init__(config.url)
        self._config = config
        self._source = config.source or source
        url = urlsplit(config.url)
        self._is_secure = url.scheme == "https"
        self._host, self._port = url.hostname or "", url.port
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._connection: http.client.HTTPConnection | None = None

    def put(self, items: Sequence[Exchanged]) -> None:
        for item in items:
            for headers, body in self.events(item):
                self._send(headers, body)

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def events(self, item: Exchanged) -> Iterator[tuple[Mapping[str, str], bytes]]:
        """(headers, body) of each event, the request's first."""
        number = item.request_id or str(uuid.uuid4())
        wanted = self._config.mode
        if wanted != "response":
            yield self._headers(item, number, REQUEST, item.came, item.headers), item.body
        if wanted != "request":
            for own, body in item.answers:
                yield self._headers(item, number, RESPONSE, item.ended, own), body

    def _headers(self, item: Exchanged, number: str, kind: str, at: float, own: Mapping[str, str]) -> Mapping[str, str]:
        config = self._config
        headers = {
            "ce-specversion": "1.0",
            "ce-id": number,
            "ce-type": kind,
            "ce-source": self._source,
            "ce-time": datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z"),
            "ce-inferenceservicename": config.service or item.model,
            "ce-namespace": config.namespace,
            "ce-component": "predictor",
            "ce-endpoint": "",
            "ce-modelname": item.model,
            "ce-modelversion": str(item.version),
        }
        said = {name: _escaped(value) for name, value in headers.items() if value or name == "ce-endpoint"}
        return {**said, "content-type": "application/json", **own}

    def _send(self, headers: Mapping[str, str], body: bytes) -> None:
        """Raises OSError where the event was not taken."""
        for attempt in range(_ATTEMPTS):
            is_new = self._connection is None
            connection = self._connection or self._connect()
            try:
                connection.request("POST", self._target, body, dict(headers))
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.leave()
                if is_new or attempt + 1 == _ATTEMPTS:
                    raise OSError(f"no event was taken: {error or type(error).__name__}") from None
                continue
            if answer.will_close:
                self.leave()
            if answer.status not in _SUCCESS:
                raise OSError(f"an event was refused: {answer.status} {answer.reason}")
            return

    def _connect(self) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        self._connection = make(self._host, self._port, timeout=_ANSWERS_WITHIN_S)
        return self._connection


def _escaped(value: str) -> str:
    """Source: CloudEvents' HTTP binding, 3.1.3.2: what is no printable ASCII is percent-encoded, and so are space,
    double quote and percent.
    """
    if value.isascii() and value.isprintable() and not {" ", '"', "%"} & {*value}:
        return value
    return "".join(
        each if "!" <= each <= "~" and each not in '"%' else "".join(f"%{byte:02X}" for byte in _bytes(each))
        for each in value
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
