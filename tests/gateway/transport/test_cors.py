"""What pages of other sites may send and read, header by header."""

from typing import Any

import pytest

from tensorgate.adapters.open_inference.raw import HEADER_LENGTH
from tensorgate.gateway.config import Cors
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.telemetry.request_id import REQUEST_ID
from tensorgate.gateway.telemetry.trace_context import TRACEPARENT, TRACESTATE
from tensorgate.gateway.transport.cors import CrossOrigin
from tensorgate.gateway.transport.http_server import TIMEOUT_HEADER

ORIGIN = "https://app.example"
ASKS = {"access-control-request-method": "POST"}
HEADERS = [
    # header, may be sent, may be read
    ("Authorization", True, False),
    ("X-Api-Key", True, False),
    ("Content-Type", True, False),
    ("Content-Encoding", True, False),
    (HEADER_LENGTH, True, True),
    (TIMEOUT_HEADER, True, False),
    (REQUEST_ID, True, True),
    (TRACEPARENT, True, True),
    (TRACESTATE, True, True),
    ("Retry-After", False, True),
    ("WWW-Authenticate", False, True),
    ("Allow", False, True),
    ("Cookie", False, False),
    ("Set-Cookie", False, False),
]


class Asked:
    """Plays an HttpExchange, and keeps what is sent."""

    method, target, begun, request_id = "OPTIONS", "/v2/models/m/infer", 0.0, ""

    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.sent: list[Reply] = []

    def send(self, reply: Reply) -> None:
        self.sent.append(reply)


def names(headers: Any, key: str) -> set[str]:
    return {name.strip().lower() for name in headers[key].split(",")}


@pytest.mark.parametrize(("header", "may_be_sent", "may_be_read"), HEADERS)
def test_headers(header: str, may_be_sent: bool, may_be_read: bool) -> None:
    port = CrossOrigin(Cors(origins=(ORIGIN,)))
    reply = port.preflight(Asked(origin=ORIGIN, **ASKS))
    assert reply is not None
    assert reply.http_status == 204
    assert (header.lower() in names(reply.headers, "Access-Control-Allow-Headers")) is may_be_sent
    asked = Asked(origin=ORIGIN)
    port.wrapped(asked).send(Reply(b"", headers={"Content-Type": "text/plain"}))
    [answer] = asked.sent
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert (header.lower() in names(answer.headers, "Access-Control-Expose-Headers")) is may_be_read


@pytest.mark.parametrize("origin", ["https://other.example", "null", ""])
def test_other_sites_may_nothing(origin: str) -> None:
    port = CrossOrigin(Cors(origins=(ORIGIN,)))
    reply = port.preflight(Asked(origin=origin, **ASKS))
    assert reply is not None
    assert (reply.http_status, reply.headers) == (403, {"Vary": "Origin"})
    asked = Asked(origin=origin)
    assert port.wrapped(asked) is asked


def test_the_configuration_may_name_others() -> None:
    port = CrossOrigin(Cors(origins=("*",), headers=("X-Mine",)))
    reply = port.preflight(Asked(origin=ORIGIN, **ASKS))
    assert reply is not None
    assert reply.headers["Access-Control-Allow-Origin"] == "*"
    assert names(reply.headers, "Access-Control-Allow-Headers") == {"x-mine"}
