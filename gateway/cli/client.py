"""The client side of the command line: Open Inference V2 over HTTP, and gRPC's health, without any other library."""

from __future__ import annotations

import csv
import io
import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, Final, Protocol

from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.grpc_messages import MESSAGE_PREFIX, PREFIX_BYTES
from tensorgate.gateway.wire.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame_header,
)

PrintLine = Callable[[str], None]

_CHECK: Final = "/grpc.health.v1.Health/Check"
_STATUSES: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


class ClientError(Exception):
    """The gateway could not be reached, or answered with an error; str() is for the terminal."""


class Gateway:
    """An HTTP port of a running gateway."""

    def __init__(self, url: str, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ClientError(f"--url must start with http:// or https://, found {url}")
        self._url = url.rstrip("/")
        self._timeout = timeout

    def probe(self, *, live: bool) -> None:
        """Ask the health page that every HTTP port has. Raises ClientError unless it is ready (or live)."""
        self._read("/healthz" if live else "/readyz")

    def ask(self, path: str) -> Any:
        """GET -> the answer's JSON. Raises ClientError."""
        return self._json(path, self._read(path))

    def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        """POST -> the answer's JSON. Raises ClientError."""
        return self._json(path, self._read(path, body, headers))

    def _json(self, path: str, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError as error:
            raise ClientError(f"{self._url}{path}: {error}") from None

    def read(self, path: str) -> str:
        """GET -> the answer's text. Raises ClientError."""
        return self._read(path).decode("utf-8", "replace")

    def _read(self, path: str, body: bytes | None = None, headers: Mapping[str, str] = NOTHING) -> bytes:
        request = urllib.request.Request(self._url + path, body, dict(headers))  # noqa: S310  (its scheme is checked)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:  # noqa: S310
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            raise ClientError(f"{self._url}{path}: {error.code} {_error_text(error.read())}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error) or type(error).__name__
            raise ClientError(f"{self._url}{path}: {reason}") from None


class GrpcGateway:
    """A gRPC port of a running gateway, at HOST:PORT."""

    def __init__(self, address: str, timeout: float) -> None:
        self._address = address.removeprefix("grpc://")
        self._timeout = timeout

    def probe(self, *, live: bool) -> None:
        """Ask gRPC's health service. Raises ClientError unless it is ready (with `live`: unless it answers)."""
        try:
            status = self._status()
        except (OSError, ValueError, IndexError, hpack.BadBlock) as error:
            raise ClientError(f"{self._address}: {error}") from None
        if not live and status != "SERVING":
            raise ClientError(f"{self._address}: {status}")

    def _status(self) -> str:
        """What grpc.health.v1.Health/Check says of the whole server. Raises OSError, ValueError."""
        host, _, port = self._address.rpartition(":")
        if not (host and port.isdecimal()):
            raise ValueError("expected HOST:PORT")
        head = [(":method", "POST"), (":scheme", "http"), (":authority", self._address), (":path", _CHECK)]
        block = hpack.encode([*head, ("te", "trailers"), ("content-type", "application/grpc")])
        question = MESSAGE_PREFIX.pack(0, 0)
        with (
            socket.create_connection((host.strip("[]"), int(port)), self._timeout) as sock,
            sock.makefile("rb") as answers,
        ):
            sock.sendall(
                PREFACE
                + (frame_header(len(block), HEADERS, END_HEADERS, 1) + block)
                + (frame_header(len(question), DATA, END_STREAM, 1) + question)
            )
            answer = b""
            while True:
                head_bytes = answers.read(FRAME_HEADER_BYTES)
                if len(head_bytes) < FRAME_HEADER_BYTES:
                    raise ConnectionError("the server has closed the connection")
                high, low, kind, flags, _ = FRAME_HEADER.unpack(head_bytes)
                data = answers.read(high << 8 | low)
                if kind == SETTINGS and not flags & ACK:
                    sock.sendall(frame_header(0, SETTINGS, ACK, 0))
                elif kind == DATA:
                    answer += data
                elif kind == HEADERS and flags & END_STREAM:
                    return _health_status(hpack.decode(data), answer)
                elif kind in (RST_STREAM, GOAWAY):
                    raise ConnectionError("the server has ended the call")


def _health_status(trailers: Mapping[str, str], answer: bytes) -> str:
    """The name of the status in a HealthCheckResponse, its only field. Raises ValueError for a call that failed."""
    code = int(trailers.get("grpc-status", Code.UNKNOWN))
    if code:
        raise ValueError(f"{Code(code).name} {urllib.parse.unquote(trailers.get('grpc-message', ''))}")
    return _STATUSES[answer[-1] if len(answer) > PREFIX_BYTES else 0]


class Probed(Protocol):
    """A gateway whose health can be asked."""

    def probe(self, *, live: bool) -> None:
        """Raises ClientError unless it is ready (or live)."""
        ...


def health(gateway: Probed, live: bool, wait: float, print_line: PrintLine) -> None:
    """Wait until the gateway is ready (or live). Raises ClientError after `wait` seconds."""
    until = time.monotonic() + wait
    while True:
        try:
            gateway.probe(live=live)
        except ClientError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.2)
        else:
            print_line("live" if live else "ready")
            return


def models(gateway: Gateway, only: str | None, print_line: PrintLine) -> None:
    """Print a block per model, or of the `only` one: versions, every input and output with datatype and shape, and its
    last errors. Raises ClientError where there is no such model.
    """
    errors = _errors(gateway)
    names = gateway.ask("/v2/models")["models"]
    if only is not None and only not in names:
        raise ClientError(f"there is no model {only}, but {', '.join(names)}")
    for name in names if only is None else [only]:
        try:
            about = gateway.ask(f"/v2/models/{urllib.parse.quote(name, safe='')}")
        except ClientError as error:
            print_line(f"{name}: {error}")
            continue
        config = _config(gateway, name)
        print_line(f"{name}  versions {', '.join(about['versions'])}  {about['platform']}{_placed(config)}")
        if digest := config.get("parameters", {}).get("verified_sha256"):
            print_line(
                f"  verified by {config['parameters']['verified_by']['string_value']}, sha256 {digest['string_value']}"
            )
        for kind in ("inputs", "outputs"):
            for tensor in about[kind]:
                print_line(f"  {kind[:-1]:6} {tensor['name']}: {tensor['datatype']} {tensor['shape']}")
        for failed in errors:
            if failed["model"] == name:
                print_line(f"  error  {_error(failed)}")


def _errors(gateway: Gateway) -> Sequence[Mapping[str, Any]]:
    """The last errors of all models; none if the gateway shows them to nobody, or not to this caller."""
    try:
        errors: Sequence[Mapping[str, Any]] = gateway.ask("/overview.json?rows=0")["errors"]
    except ClientError:
        return ()
    return errors


def _error(error: Mapping[str, Any]) -> str:
    """One line: how it failed, how often, and what it said last."""
    since, last = (f"{datetime.fromtimestamp(error[key], UTC):%Y-%m-%dT%H:%M:%SZ}" for key in ("since", "last"))
    call = f"{error['dialect']} {error['transport']} {error['method']}"
    times = f"{error['count']} times since {since}, last {last}"
    return f"{error['code']} {error['reason']}, {call}, {times}: {ascii(error['text'])[1:-1]}"


_USED: Final = {
    "tensorgate_usage_calls_total": "calls",
    "tensorgate_usage_rows_total": "rows",
    "tensorgate_usage_received_bytes_total": "bytes_in",
    "tensorgate_usage_sent_bytes_total": "bytes_out",
    "tensorgate_usage_compute_seconds_total": "compute_ms",
}
"""Series -> the column that shows it."""


def usage(gateway: Gateway, print_line: PrintLine, *, as_csv: bool) -> None:
    """Print a line for each caller and model, with a head. Raises ClientError where nothing is counted."""
    from prometheus_client.parser import text_string_to_metric_families  # the other verbs start without it

    rows: dict[tuple[str, str], dict[str, int]] = {}
    for family in text_string_to_metric_families(gateway.read("/metrics")):
        for sample in family.samples:
            if (column := _USED.get(sample.name)) is not None:
                number = sample.value * 1e3 if column == "compute_ms" else sample.value
                rows.setdefault((sample.labels["caller"], sample.labels["model"]), {})[column] = round(number)
    if not rows:
        raise ClientError("no usage is counted: is it asked for (metrics: {usage: true}), and has anybody called?")
    table = [("caller", "model", *_USED.values())]
    table += [(*key, *(str(columns.get(column, 0)) for column in _USED.values())) for key, columns in rows.items()]
    if as_csv:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table)
        print_line(text.getvalue().rstrip("\n"))
        return
    widths = [max(len(ascii(row[at])) for row in table) - 2 for at in range(len(table[0]))]
    for row in table:
        cells = zip(row, widths, strict=True)
        print_line("  ".join([ascii(cell)[1:-1].ljust(width) for cell, width in cells]).rstrip())


def _config(gateway: Gateway, name: str) -> Mapping[str, Any]:
    """A model's configuration in Triton's terms; empty if the gateway does not give it."""
    try:
        config: Mapping[str, Any] = gateway.ask(f"/v2/models/{urllib.parse.quote(name, safe='')}/config")
    except ClientError:
        return {}
    return config


def _placed(config: Mapping[str, Any]) -> str:
    """A model's instances and devices."""
    return "".join(f"  {_times(group['count'])}{_where(group)}" for group in config.get("instance_group", ()))


def _where(group: Mapping[str, Any]) -> str:
    gpus = group.get("gpus") or ()
    return ", ".join(f"cuda:{gpu}" for gpu in gpus) or ("cuda" if group.get("kind") == "KIND_GPU" else "cpu")


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""


def _error_text(body: bytes) -> str:
    """The text of an error response."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
