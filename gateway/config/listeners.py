"""The ports: where they listen, their certificates, and which pages of the web may call them.

The PEM files of a port are checked when the configuration is read.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tensorgate.gateway.config.security import Mode
from tensorgate.gateway.config.values import UNIX, Bind, parse_bind, socket_path
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

HTTP1: Final = "http/1.1"

Client = Literal["require", "verify_if_given"]


class Tls(Options):
    """The certificate of a port, and whether its clients need one. Files are in PEM form; they are read again when they
    change. Keys with a password are not supported."""

    certificate: Annotated[FileRef, Existing("file")]
    """The certificate, and after it those between it and its authority."""
    key: Annotated[FileRef, Existing("file")]
    """Its key."""
    client_ca: Annotated[FileRef, Existing("file")] | None = None
    """The authorities whose certificates clients show; null: they show none."""
    client: Literal["require", "verify_if_given"] = "require"
    """With client_ca: whether a client without one is turned away."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS; 1.3 is for HTTP ports alone."""

    @model_validator(mode="after")
    def _works(self) -> Tls:
        self.files().check()
        return self

    def files(self) -> TlsFiles:
        """The same settings as absolute paths, for the port."""
        client_ca = self.client_ca.path if self.client_ca else None
        return TlsFiles(self.certificate.path, self.key.path, client_ca, self.client, self.min_version)


class Cors(Options):
    """Which pages of the web may call from a browser. Off unless it is set."""

    origins: Annotated[tuple[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")], ...], Field(min_length=1)]
    """Origins, like "https://app.example"; "*" is any."""
    headers: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], ...] = (
        "Authorization",
        "Content-Type",
        "X-Api-Key",
        "Inference-Header-Content-Length",
        "Content-Encoding",
        "X-Request-Id",
        "X-Request-Timeout-Ms",
        "Traceparent",
        "Tracestate",
    )
    """The headers that they may send. Those that the configuration has names for, such as the key of `admin` and what
    routes match, are not among them."""
    max_age_seconds: int = Field(default=600, ge=0)
    """How long a browser may remember that."""


class MetricsListener(Options):
    """Where Prometheus finds /metrics."""

    bind: Bind
    """HOST:PORT, an IPv6 host in brackets; port 0 takes any free one. Or unix:/PATH, a Unix socket."""
    socket_mode: Annotated[str, Field(pattern=r"^0?[0-7]{3}$")] | None = None
    """Of a Unix socket: who may connect, as chmod says it, like "660"; null: what the umask leaves."""
    tls: Tls | None = None
    """Its certificate; null: it speaks without TLS."""
    auth: Mode | None = None
    """Whether callers must say who they are, where it is not as the section auth says."""

    @field_validator("socket_mode")
    @classmethod
    def _has_a_file(cls, mode: str | None, info: ValidationInfo) -> str | None:
        if mode is not None and socket_path(info.data.get("bind", UNIX)) is None:
            raise ValueError("only a Unix socket, bind: unix:/PATH, has a mode")
        return mode

    @property
    def path(self) -> Path | None:
        """The path of a Unix socket; None for a port, which alone has a host and a number."""
        return socket_path(self.bind)

    @property
    def file_mode(self) -> int | None:
        """`socket_mode` as a number."""
        return None if self.socket_mode is None else int(self.socket_mode, 8)

    @property
    def host(self) -> str:
        """The host, an IPv6 address without its brackets."""
        return parse_bind(self.bind)[0]

    @property
    def port(self) -> int:
        """The port; 0 is any free one."""
        return parse_bind(self.bind)[1]


class Listener(MetricsListener):
    """A port and the dialects spoken there."""

    dialects: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Which dialects are spoken here; null is all of them."""
    name: str | None = Field(default=None, min_length=1)
    """What routes call it; null: its bind."""
    cors: Cors | None = None
    """Which pages of the web may call it from a browser; null: none. For HTTP ports."""

    @property
    def title(self) -> str:
        """The name by which rules and logs refer to the port: `name`, or else `bind`."""
        return self.name or self.bind


class Listen(Options):
    """All ports."""

    http: tuple[Listener, ...] = (Listener(bind="0.0.0.0:8000"),)
    """HTTP ports."""
    grpc: tuple[Listener, ...] = ()
    """gRPC ports."""
    metrics: MetricsListener | None = None
    """A port for Prometheus alone."""


# ----------------------------------------------------------------------------------------------------------- PEM files


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a port. With `client_ca`, clients must or may show a certificate signed by one of its
    authorities.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client: Client = "require"
    min_version: str = "1.2"

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when a file is replaced or written. Raises OSError."""
        files = (self.certificate, self.key, *((self.client_ca,) if self.client_ca else ()))
        return tuple((seen.st_mtime_ns, seen.st_size, seen.st_ino) for seen in (path.stat() for path in files))

    def context(self, protocol: str) -> ssl.SSLContext:
        """A server's TLS context; `protocol` is its name in ALPN. Raises ValueError naming the file that is wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[self.min_version]
        context.set_alpn_protocols([protocol])
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"{self.certificate} and {self.key}: {_reason(error)}") from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"{self.client_ca}: {_reason(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED if self.client == "require" else ssl.CERT_OPTIONAL
        return context

    def check(self) -> None:
        """Handshake with a client that trusts the certificate. Raises ValueError for files that cannot be used."""
        context = self.context(HTTP1)
        context.verify_mode = ssl.CERT_NONE  # it is its own client here
        if (why := _refused_by_a_client(context, self.certificate)) is not None:
            raise ValueError(f"{self.certificate}: {why}")


def _refuse_password() -> str:
    raise ValueError("the key is encrypted, and keys with a password are not supported")


def _reason(error: OSError) -> str:
    """The text of an error of Python's, or of OpenSSL's."""
    if isinstance(error, ssl.SSLError):
        texts = {
            "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
            "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate in PEM form",
            "NO_START_LINE": "not in PEM form",
            "PEM": "not in PEM form",
        }
        return texts.get(error.reason or "", (error.reason or "not in PEM form").lower().replace("_", " "))
    return (error.strerror or "unreadable").lower()


def _refused_by_a_client(server: ssl.SSLContext, certificate: Path) -> str | None:
    """Why a client that trusts only this certificate refuses it, for example because it has expired; None if it accepts
    it. Both shake hands in memory.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    return None
