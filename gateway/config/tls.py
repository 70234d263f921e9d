"""The PEM files of a port, checked when the configuration is read."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

HTTP1: Final = "http/1.1"

Client = Literal["require", "verify_if_given"]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a port. With `client_ca` clients show a certificate, or may, that one of its authorities has
    signed.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client: Client = "require"
    min_version: str = "1.2"

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Differs once a file has been replaced or written. Raises OSError."""
        files = (self.certificate, self.key, *((self.client_ca,) if self.client_ca else ()))
        return tuple((seen.st_mtime_ns, seen.st_size, seen.st_ino) for seen in (path.stat() for path in files))

    def context(self, protocol: str) -> ssl.SSLContext:
        """For the server's side of a protocol, which has that name in ALPN. Raises ValueError that says what is wrong
        with which file.
        """
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
        """Raises ValueError for files that no client would accept, or that cannot be used at all."""
        context = self.context(HTTP1)
        context.verify_mode = ssl.CERT_NONE  # it is its own client here
        if (why := _refused_by_a_client(context, self.certificate)) is not None:
            raise ValueError(f"{self.certificate}: {why}")


def _refuse_password() -> str:
    raise ValueError("the key is encrypted, and keys with a password are not supported")


def _reason(error: OSError) -> str:
    """In words, of Python's, or of OpenSSL's that Python passes on."""
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
    """Why a client that trusts just this certificate would not have it: it has expired, for example. They shake hands
    in memory.
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
